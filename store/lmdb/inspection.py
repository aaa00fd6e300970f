"""Looks an LMDB folder through, in a process of its own: `python -m store.lmdb.inspection FOLDER`. Changes nothing.

It ends with `BAD` where pages are damaged. Where they lead out of the file, the system ends the process.
"""

import os
import resource
import sys
from contextlib import closing
from pathlib import Path

import lmdb
import msgspec

from store.lmdb.broken import BAD
from store.lmdb.rows import DATABASES, ROW_TYPES, BlobRow

_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    msgspec.DecodeError,
    ValueError,
)


def inspect(folder: Path) -> None:
    """Visit every page of the trees and both ends of every value. Raises what is found, if the process lives."""
    size = (folder / "data.mdb").stat().st_size
    env = lmdb.open(str(folder), map_size=size, max_dbs=len(DATABASES), readonly=True, lock=False, create=False)
    with closing(env), Path(os.devnull).open("wb") as nowhere:
        env.copyfd(nowhere.fileno(), compact=True)  # counts the pages, those in the list of free ones too
        with env.begin() as txn:
            names = [bytes(name) for name, value in txn.cursor() if value]
        for name in names:
            _check_entries(env, name)


def _check_entries(env: lmdb.Environment, name: bytes) -> None:
    row_type, before = ROW_TYPES.get(name), b""
    database = env.open_db(name, create=False)
    with env.begin(buffers=True) as txn:
        for key, value in txn.cursor(db=database):
            if bytes(key) <= before:
                raise ValueError(f"the keys of {name!r} are not in order")
            before = bytes(key)
            bytes(value[:1])
            bytes(value[-1:])
            if row_type is BlobRow:
                before.decode()
            if row_type is not None:
                msgspec.msgpack.decode(value, type=row_type)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        inspect(Path(sys.argv[1]))
    except _DAMAGE as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(BAD)
