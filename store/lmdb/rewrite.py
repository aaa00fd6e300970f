"""Copies an LMDB environment entry by entry: LMDB's own copy includes what pages hold besides entries."""

from contextlib import closing
from pathlib import Path

import lmdb

BATCH_BYTES = 64 << 20  # held in memory by one transaction


def rewrite(env: lmdb.Environment, folder: Path) -> None:
    """Copy all named databases into a new environment in this folder. The caller flushes it to the disk."""
    map_bytes = 2 * env.info()["map_size"]  # batches waste a page now and then
    with env.begin() as txn:
        names = [bytes(name) for name, value in txn.cursor() if value]
    sources = {name: env.open_db(name, create=False) for name in names}
    made = lmdb.open(str(folder), map_size=map_bytes, max_dbs=len(names), mode=0o600, lock=False, sync=False)
    with closing(made), env.begin(buffers=True) as txn:
        for name, source in sources.items():
            _copy(txn.cursor(db=source), made, target=made.open_db(name))


def _copy(cursor: lmdb.Cursor, made: lmdb.Environment, *, target: "lmdb._Database") -> None:
    more = cursor.first()
    while more:
        nbytes = 0
        with made.begin(write=True, db=target) as txn:
            while more and nbytes < BATCH_BYTES:
                key, value = cursor.item()
                txn.put(key, value, append=True)
                nbytes += len(value)
                more = cursor.next()
