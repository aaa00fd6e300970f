"""Measures whether what the service chooses is ever slower than reading: `python -m tests.bench.never_slower`.

A service with the built-in model, or with random weights of `--shape 24x256`, has chunks of several lengths in a store
that is as slow as `--speeds` say, in MB a second; its LMDB is warm. Prompts of `--cells TOKENS/CHUNKS,...` are asked
in turns: read whole, blended, and as the service chooses, `ROUNDS` times each after some that only teach it, and
without the blended ones up to `MOST_ROUNDS` times within `ROW_S` seconds: else noise alone makes a row wrong. Before
each the shortest prompt is read, for who comes behind a slow link finds caches cold and cores asleep. A row holds
medians in milliseconds, what was chosen, and `ok`: at most 1.05 of reading and 2 ms, and blended where that wins by
more than 1.3. The last line counts the rows that are not.
"""

import argparse
import asyncio
import itertools
import json
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from retriever.documents import chunk_id
from service.app.core import Core
from service.settings import Settings
from store.blob_store import BlobStore
from store.errors import Miss
from store.key import CacheKey
from store.reader import BlobReader
from tests.bench.in_process import READ, first_token, made_up, precompute, serving
from tests.bench.link import MB, Link
from tests.bench.models import random_model

TAUGHT, ROUNDS, MOST_ROUNDS = 3, 9, 60
ROW_S = 10.0
CELLS = "50/1,100/2,200/1,200/5,500/2,500/12,1000/4,1000/25,2000/8,2000/50,4000/16,4000/100"
SPEEDS = "1,10,100,1000,10000"
WAYS = ("full", "blend", "chosen")
TURNS = [*itertools.permutations(WAYS)]  # none always comes behind the same other


def slow(store: BlobStore, link: Link) -> BlobStore:
    """The store behind the link; each speed is a tier of its own, as one store has one speed."""
    opened = store.open

    def open_slowly(key: CacheKey) -> BlobReader | Miss:
        found = opened(key)
        if isinstance(found, Miss):
            return found
        link.carry(len(found.raw_head))

        @contextmanager
        def fetch(number: int) -> Generator[Any]:
            with found.frame(number) as data:
                link.carry(len(data))
                yield data

        return BlobReader(found.head, found.raw_head, fetch=fetch, source=f"link {link.bytes_per_s() / MB:g}")

    store.open = open_slowly  # pyright: ignore[reportAttributeAccessIssue]
    return store


@dataclass(frozen=True, slots=True)
class Cell:
    tokens: int
    chunks: int


async def row(core: Core, cell: Cell, chunk_ids: Sequence[str], *, shortest: Sequence[str]) -> dict[str, Any]:
    orders = {"full": READ, "blend": core.model.order, "chosen": None}
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    chosen: list[str] = []
    began = 0.0
    for number in range(-TAUGHT, MOST_ROUNDS):
        if number == 0:
            began = time.monotonic()
        if number >= ROUNDS and time.monotonic() - began > ROW_S:
            break
        for way in TURNS[number % len(TURNS)]:
            if way == "blend" and number >= ROUNDS:
                continue
            await first_token(core, shortest, READ)
            ms, report = await first_token(core, chunk_ids, orders[way])
            if number >= 0:
                found[way].append(ms)
                chosen += [report.policy.partition("/")[0]] if way == "chosen" else []
    ms = {way: round(median(each), 1) for way, each in found.items()}
    missed = ms["full"] / ms["blend"] > 1.3 and ms["chosen"] > ms["full"] / 1.15
    is_ok = ms["chosen"] <= 1.05 * ms["full"] + 2 and not missed
    counts = {name: chosen.count(name) for name in sorted(set(chosen))}
    return {"tokens": cell.tokens, "chunks": cell.chunks, **ms, "chose": counts, "ok": is_ok}


def measure(folder: Path, cells: Sequence[Cell], *, speeds: Sequence[float], model: str, threads: int) -> None:
    settings = Settings(data=folder / "data", store=f"lmdb://{folder}/store", model=model, auth=False, threads=threads)
    link = Link()
    behind = partial(slow, link=link)
    with serving(settings, behind) as core:
        cells = [cell for cell in cells if cell.tokens + 100 < core.model.window]
        texts = {
            cell: [made_up(core, cell.tokens // cell.chunks, number=at) for at in range(cell.chunks)] for cell in cells
        }
    precompute(settings, folder, texts=[*{text: None for each in texts.values() for text in each}])
    ids = {cell: [chunk_id(text) for text in each] for cell, each in texts.items()}
    shortest, bad = ids[min(cells, key=lambda cell: cell.tokens)], 0
    with serving(settings, behind) as core, asyncio.Runner() as runner:
        print(
            json.dumps({"model": model, "policy": core.model.order.policy, "speeds": str(core.model.speeds)}),
            flush=True,
        )
        for speed in speeds:
            link.hold(speed)
            for cell in cells:
                found = runner.run(row(core, cell, ids[cell], shortest=shortest))
                bad += not found["ok"]
                print(json.dumps({"MB/s": speed, **found}), flush=True)
    print(json.dumps({"rows": len(cells) * len(speeds), "not ok": bad}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--speeds", default=SPEEDS)
    parser.add_argument("--shape", default="")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    cells = [Cell(*map(int, each.split("/"))) for each in given.cells.split(",")]
    with TemporaryDirectory() as folder:
        model = random_model(given.shape, Path(folder) / "model") if given.shape else "builtin"
        speeds = [float(each) for each in given.speeds.split(",")]
        measure(Path(folder), cells, speeds=speeds, model=model, threads=given.threads)


if __name__ == "__main__":
    main()
