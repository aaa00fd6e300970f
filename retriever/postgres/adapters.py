"""How Python's values go to PostgreSQL and come back: as they go to SQLite and come back.

Its texts cannot hold NUL, ours may: NUL and the character behind it are written as two, which keeps their order.
"""

from typing import TYPE_CHECKING

from psycopg import Connection
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper, StrDumper

if TYPE_CHECKING:
    from psycopg.rows import TupleRow

_TEXTS = ("text", "varchar", "name")


def adapt(connection: "Connection[TupleRow]") -> None:
    adapters = connection.adapters
    adapters.register_dumper(str, _NulText)
    adapters.register_dumper(str, _NulBinaryText)
    adapters.register_dumper(int, Int8BinaryDumper)
    for name in _TEXTS:
        adapters.register_loader(name, _TextLoader)
        adapters.register_loader(name, _BinaryTextLoader)


class _NulText(StrDumper):
    def dump(self, obj: str) -> Buffer | None:
        return super().dump(_written(obj))


class _NulBinaryText(StrBinaryDumper):
    def dump(self, obj: str) -> Buffer | None:
        return super().dump(_written(obj))


class _TextLoader(Loader):
    def load(self, data: Buffer) -> str:
        text = bytes(data).decode()
        return text.replace("\x01\x30", "\0").replace("\x01\x31", "\x01") if "\x01" in text else text


class _BinaryTextLoader(_TextLoader):
    format = Format.BINARY


def _written(text: str) -> str:
    if "\0" not in text and "\x01" not in text:
        return text
    return text.replace("\x01", "\x01\x31").replace("\0", "\x01\x30")
