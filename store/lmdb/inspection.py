"""Checks an LMDB folder in a process of its own: `python -m store.lmdb.inspection FOLDER`. Changes nothing.

It exits with `BAD` where pages are damaged. Where the disk cannot read them, the system kills the process.
"""

import mmap
import resource
import sys
from pathlib import Path

import msgspec

from store.lmdb.broken import BAD, DATA
from store.lmdb.pages import Pages
from store.lmdb.rows import ROW_TYPES, BlobRow


def inspect(folder: Path) -> None:
    """Visit every page of the trees, and where values begin. Raises ValueError, or DecodeError, on damage."""
    with (folder / DATA).open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))  # as long as a view of it is alive
    before: tuple[bytes, bytes] | None = None
    for name, (key, value, _) in Pages(data).entries():
        if before is not None and before[0] == name and before[1] >= key:
            raise ValueError(f"the keys of {name!r} are not in order")
        before, row_type = (name, key), ROW_TYPES.get(name)
        if row_type is BlobRow:
            key.decode()
        if row_type is not None:
            msgspec.msgpack.decode(value, type=row_type)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        inspect(Path(sys.argv[1]))
    except (ValueError, msgspec.DecodeError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(BAD)
