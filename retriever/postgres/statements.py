"""SQLite's statements and tables as PostgreSQL reads them, and filter values as bytes in SQLite's order. Runs nothing.

Both read the same SQL but for a few words. What is replaced here is replaced to the letter; whatever is not named goes
through as it is, and the contract tests, which both databases pass, tell whether that is right.

Values that filters compare are bytes there, ordered as SQLite orders them. Its index takes no long ones: what is longer
keeps its beginning and a digest. It is equal to what it equals, and among texts with the same long beginning its order
is any.
"""

import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from blake3 import blake3

from retriever.filter_condition import ListedValues

NUMBER: Final = b"n"
TEXT: Final = b"t"
OTHER: Final = b"b"  # true, false and null
LONGEST: Final = 1200  # bytes of a value
LONGEST_FIELD: Final = 400

_REPLACED: Final = (
    ("CAST(c.text AS BLOB)", "c.text"),  # bytes there
    ("CAST(text AS BLOB)", "text"),
    ("CAST(? AS TEXT)", "?"),
    ("json_type(rules, '$.search') = 'false'", "CAST(rules AS jsonb) -> 'search' = CAST('false' AS jsonb)"),
    ("FROM sqlite_sequence", "FROM numbered"),
    ("typeof(facets.value) = 'text'", f"get_byte(facets.value, 0) = {TEXT[0]}"),
    ("typeof(facets.value) IN ('integer', 'real')", f"get_byte(facets.value, 0) = {NUMBER[0]}"),
    (" CROSS JOIN ", " JOIN "),
)
_INDEX = re.compile(r" (?:NOT INDEXED|INDEXED BY \w+)")
_LISTED = re.compile(r"\b(NOT )?IN \(SELECT value FROM json_each\(\?\)\)")
_PLACE = re.compile(r"\?(\d*)")
_VALUES = re.compile(r"facets\.value (?:[=<>]+ |IN \()[?, ]*$")
_FIELD = re.compile(r"facets\.field = $")
_HALF = re.compile("[\ud800-\udfff]")
_FACETS = "INSERT INTO facets VALUES (?, ?, ?)"

Changed = Callable[[object], object]


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement for PostgreSQL. `keyed`: the places of parameters that are kept in another form, and how."""

    sql: str
    is_change: bool
    keyed: tuple[tuple[int, Changed], ...] = ()

    def values(self, given: Sequence[object]) -> list[object]:
        """The parameters as PostgreSQL takes them."""
        values = [_loaded(each) if isinstance(each, ListedValues) else each for each in given]
        for place, changed in self.keyed:
            values[place] = changed(values[place])
        return values

    def rows(self, given: Iterable[Sequence[object]]) -> list[list[object]]:
        return [self.values(each) for each in given]


def _loaded(values: ListedValues) -> list[int] | list[str]:
    """The values, but for texts with half characters, which nothing is called."""
    return [each for each in json.loads(values) if not (isinstance(each, str) and _HALF.search(each))]


@lru_cache(maxsize=1024)
def statement(sql: str) -> Statement:
    is_change = sql.lstrip()[:6].upper() in ("INSERT", "UPDATE", "DELETE")
    keyed: list[tuple[int, Changed]] = [(0, field_key), (1, facet_key)] if sql.startswith(_FACETS) else []
    for told, replacement in _REPLACED:
        sql = sql.replace(told, replacement)
    sql = _LISTED.sub(lambda found: "<> ALL(?)" if found[1] else "= ANY(?)", _INDEX.sub("", sql))
    parts: list[str] = []
    at = last = 0
    for found in _PLACE.finditer(sql):
        last = int(found[1]) if found[1] else last + 1
        before = sql[: found.start()]
        if _VALUES.search(before):
            keyed.append((last - 1, facet_key))
        elif _FIELD.search(before):
            keyed.append((last - 1, field_key))
        parts += [sql[at : found.start()], f"${last}"]
        at = found.end()
    return Statement("".join([*parts, sql[at:]]), is_change, tuple(keyed))


def facet_key(value: object) -> bytes:
    """A value as bytes that are ordered as SQLite orders values."""
    match value:
        case bytes():
            return OTHER + value
        case str():
            return TEXT + _short(value.encode(), LONGEST)
        case int() | float():
            return NUMBER + _number(value)
        case _:
            raise AssertionError(f"no value of a filter: {type(value)}")


def field_key(name: object) -> str:
    """The name of a field, shortened so that it can be told from all others."""
    assert isinstance(name, str), type(name)
    return name if len(name) <= LONGEST_FIELD else name[:LONGEST_FIELD] + blake3(name.encode()).hexdigest()


def _short(data: bytes, longest: int) -> bytes:
    return data if len(data) <= longest else data[:longest] + blake3(data).digest()


def _number(value: int | float) -> bytes:
    """The largest double that is not above it, made to order as bytes do, and what is left; integers are kept whole."""
    near = float(value)
    if near > value:
        near = math.nextafter(near, -math.inf)
    left = value - int(near) if isinstance(value, int) else 0
    [bits] = struct.unpack(">q", struct.pack(">d", near + 0.0))  # there is one zero
    ordered = bits ^ (-1 if bits < 0 else -(1 << 63))
    return struct.pack(">QQ", ordered & (1 << 64) - 1, left)


WORDS_INDEX: Final = "CREATE INDEX terms_of_word ON terms USING gin (words)"
_NUMBERED = "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"

# What of the tables differs. The columns of texts order by bytes, as SQLite does.
_TYPES: Final = (
    (re.compile(r"(?<=CREATE TABLE facts \(name TEXT PRIMARY KEY, )value ANY"), "value BIGINT"),
    (re.compile(r"\bvalue ANY\b"), "value BYTEA"),
    (re.compile(r"\btext TEXT NOT NULL"), "text BYTEA NOT NULL"),
    (re.compile(r"\brow INTEGER PRIMARY KEY(?: AUTOINCREMENT)?"), f"row {_NUMBERED}"),
    (re.compile(r"\bINTEGER\b"), "BIGINT"),
    (re.compile(r"\bREAL\b"), "DOUBLE PRECISION"),
    (re.compile(r"\bBLOB\b"), "BYTEA"),
    (re.compile(r"\bTEXT\b"), 'TEXT COLLATE "C"'),
    (re.compile(r"\) STRICT(?:, WITHOUT ROWID)?"), ")"),
    (re.compile(r"hex\(randomblob\(8\)\)"), "CAST(random() * 9e18 AS BIGINT)"),
    (re.compile(r"^PRAGMA .*$", re.MULTILINE), ""),
    (
        re.compile(r"CREATE VIRTUAL TABLE terms .*"),
        "CREATE TABLE terms (passage BIGINT NOT NULL, words TSVECTOR NOT NULL);\n"
        "CREATE INDEX terms_of_passage ON terms (passage);\n"
        f"{WORDS_INDEX};\n"
        "CREATE TABLE numbered (name TEXT PRIMARY KEY, seq BIGINT NOT NULL);\n"
        "INSERT INTO numbered VALUES ('chunks', 0), ('removed', 0), ('vectors', 0);",
    ),
)  # fmt: skip


def tables(script: str) -> str:
    for pattern, replacement in _TYPES:
        script = pattern.sub(lambda _, text=replacement: text, script)
    return script
