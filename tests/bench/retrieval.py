"""Measures a library at a size: ingest, files, memory, start-up, each kind of search. Random text, no model.

`python -m tests.bench.retrieval --chunks 1000000 --folder DIR` prints one JSON object; a folder that holds that many
already is only searched. Words are Zipf-distributed over 200,000, chunks have 60 to 140 of them, documents 100 chunks.
Vectors lie around 1,000 topics of 20 subtopics. Queries have 6 to 12 words of one chunk's, or a vector near one's.
`overlap`: how much of the ten best by all words of the query the pruned search finds; `recall`: how much of the ten
nearest by exact search. Times are milliseconds over single searches; the first ones of a filter read its rows.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retriever.catalog import lexical
from retriever.catalog.catalog import Catalog
from retriever.catalog.sqlite import SqliteCatalog
from retriever.documents import Document, DocumentPart, Json, chunk_id
from retriever.embedders.embedding import Embedders
from retriever.filter_condition import scope
from retriever.library import Library
from retriever.search import Mode, Query

EXACT_SCORED = 20_000  # passages that are read for the answer that pruning is compared with
WORDS, PER_DOCUMENT, TOPICS, SUBTOPICS = 200_000, 100, 1000, 20
FILTERS: dict[str, Json | None] = {"none": None, "10 %": {"ten": 3}, "1 %": {"hundred": 3}, "0.1 %": {"thousand": 3}}
Vectors = NDArray[np.float32]


class World:
    """Text and vectors of chunk number so and so, always the same."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        random = np.random.default_rng(0)
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        lengths = random.integers(3, 11, WORDS)
        self._words = ["".join(letters[random.integers(0, 26, length)]) for length in lengths]
        shares = 1 / np.arange(1, WORDS + 1)
        self._shares = np.cumsum(shares / shares.sum())
        self._topics = _unit(random.standard_normal((TOPICS, dim), np.float32))
        self._subtopics = _unit(random.standard_normal((TOPICS * SUBTOPICS, dim), np.float32))

    def texts(self, document: int) -> list[str]:
        random = np.random.default_rng((1, document))
        ends = np.cumsum(random.integers(60, 141, PER_DOCUMENT))
        drawn = np.searchsorted(self._shares, random.random(int(ends[-1])))
        words = [self._words[each] for each in drawn.tolist()]
        return [" ".join(words[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def vectors(self, document: int) -> Vectors:
        random = np.random.default_rng((2, document))
        subtopics = random.integers(0, TOPICS * SUBTOPICS, PER_DOCUMENT)
        noise = _unit(random.standard_normal((PER_DOCUMENT, self.dim), np.float32))
        mixed = 0.6 * self._topics[subtopics // SUBTOPICS] + 0.5 * self._subtopics[subtopics] + 0.6 * noise
        return _unit(mixed.astype(np.float32))


class Oracle:
    """An embedder that knows the vector of each query before it is asked. No passage is near to any."""

    name = "bench"

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.vector: Vectors = np.zeros(dim, np.float32)

    def passages(self, texts: Sequence[str]) -> Vectors:
        return np.zeros((len(texts), self.dim), np.float32)

    def query(self, text: str) -> Vectors:
        return self.vector

    def tokens(self, texts: Sequence[str]) -> None:
        return None


def fill(catalog: Catalog, world: World, *, documents: range, batch: int = 20) -> None:
    """So many documents, a batch in each transaction."""
    for first in range(documents.start, documents.stop, batch):
        numbers = range(first, min(first + batch, documents.stop))
        made = [
            Document(
                f"{number:07}",
                tuple(map(DocumentPart, world.texts(number))),
                metadata={"thousand": number % 1000, "hundred": number % 100, "ten": number % 10},
            )
            for number in numbers
        ]
        with catalog.change() as change:
            change.put(made, collection="bench")
            for number, document in zip(numbers, made, strict=True):
                ids = [part.id for part in document.parts]
                change.put_vectors(ids, world.vectors(number), embedder=Oracle.name)


def lexical_searches(library: Library, world: World, *, documents: int, count: int) -> dict[str, object]:
    """Pruned and not."""
    random = np.random.default_rng(3)
    texts = [world.texts(int(random.integers(documents)))[int(random.integers(PER_DOCUMENT))] for _ in range(count)]
    asked = [" ".join(random.choice(text.split(), random.integers(6, 13))) for text in texts]
    found = {name: _timed(library, asked, mode="lexical", where=where) for name, where in FILTERS.items()}
    report: dict[str, object] = {name: _times(seconds) for name, (_, seconds) in found.items()}
    report["repeated"] = _times(_timed(library, asked, mode="lexical", where=None)[1])
    limits = lexical.ROWS, lexical.SCORED
    lexical.ROWS, lexical.SCORED = 1 << 40, EXACT_SCORED
    some = asked[: count // 4]
    try:
        whole, seconds = _timed(library, some, mode="lexical", where=None)
    finally:
        lexical.ROWS, lexical.SCORED = limits
    overlaps = [len({*a} & {*b}) / max(1, len(b)) for a, b in zip(found["none"][0], whole, strict=False)]
    return report | {"unpruned": _times(seconds), "overlap": round(float(np.mean(overlaps)), 4)}


def vector_searches(library: Library, world: World, *, documents: int, count: int) -> dict[str, object]:
    """Against exact search in the same vectors, as halves of floats."""
    random = np.random.default_rng(4)
    near = [world.vectors(int(random.integers(documents)))[0] for _ in range(count)]
    noise = _unit(random.standard_normal((count, world.dim), np.float32))
    queries = _unit(np.stack(near) + 0.5 * noise)
    report: dict[str, object] = {}
    for name, where in FILTERS.items():
        exact = _exact(library, world, queries=queries, where=where, documents=documents)
        ids, seconds = _timed(library, queries, mode="vector", where=where)
        recalls = [len({*a} & {*b}) / len(b) for a, b in zip(ids, exact, strict=True)]
        report[name] = (
            _times(seconds[1:]) | {"first": round(1000 * seconds[0], 1)} | {"recall": round(float(np.mean(recalls)), 4)}
        )
    return report


def _exact(library: Library, world: World, *, queries: Vectors, where: Json | None, documents: int) -> list[list[str]]:
    every = 1 if where is None else {"ten": 10, "hundred": 100, "thousand": 1000}[next(iter(where))]
    best: list[list[tuple[float, str]]] = [[] for _ in queries]
    for number in range(0 if where is None else 3, documents, every):
        vectors = world.vectors(number).astype(np.float16).astype(np.float32)
        scores = queries @ vectors.T
        ids: list[str] = []
        for row, each in zip(best, scores, strict=True):
            for place in np.argpartition(-each, 10)[:10].tolist():
                if len(row) < 10 or each[place] > row[-1][0]:
                    ids = ids or [chunk_id(text) for text in world.texts(number)]
                    row.append((float(each[place]), ids[place]))
                    row.sort(reverse=True)
                    del row[10:]
    return [[chunk for _, chunk in row] for row in best]


def _timed(
    library: Library, queries: Sequence[str] | Vectors, *, mode: Mode, where: Json | None
) -> tuple[list[list[str]], list[float]]:
    allowed = scope(where=where)
    found: list[list[str]] = []
    seconds: list[float] = []
    for query in queries:
        if not isinstance(query, str):
            ORACLE.vector = query
        asked = Query(query if isinstance(query, str) else "near", 10, mode=mode, allowed=allowed)
        start = time.perf_counter()
        hits = library.search(asked)
        seconds.append(time.perf_counter() - start)
        found.append([hit.passage.id for hit in hits])
    return found, seconds


def _times(seconds: Sequence[float]) -> dict[str, float]:
    return {name: round(1000 * float(np.percentile(seconds, part)), 2) for name, part in (("p50", 50), ("p99", 99))}


def _unit(rows: Vectors) -> Vectors:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def _clocked(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return round(time.perf_counter() - start, 2)


def _sizes(folder: Path) -> Iterator[tuple[str, int]]:
    for path in sorted(folder.iterdir()):
        yield path.suffix.lstrip("."), path.stat().st_size


def measure(options: argparse.Namespace) -> dict[str, object]:
    world = World(options.dim)
    ORACLE.__init__(options.dim)
    documents = options.chunks // PER_DOCUMENT
    folder = options.folder / str(options.chunks)
    report: dict[str, object] = {"chunks": options.chunks, "dim": options.dim}
    fresh = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    catalog = SqliteCatalog(folder / "catalog.sqlite")
    library = Library(catalog, folder, embedders=Embedders(ORACLE))
    if fresh:
        seconds = _clocked(lambda: fill(catalog, world, documents=range(documents)))
        report["ingest_s"], report["ingest_chunks_s"] = seconds, round(options.chunks / seconds)
        report["index_s"] = _clocked(library.maintain)
        catalog.close()
        catalog = SqliteCatalog(folder / "catalog.sqlite")
        library = Library(catalog, folder, embedders=Embedders(ORACLE))
    report["bytes"] = dict(_sizes(folder))
    ORACLE.vector = world.vectors(0)[0]
    report["start_s"] = {
        "vector": _clocked(lambda: library.search(Query("near", mode="vector"))),
        "lexical": _clocked(lambda: library.search(Query(world.texts(0)[0][:60], mode="lexical"))),
        "inline": _clocked(lambda: library.recognise(world.texts(0)[0])),
    }
    report["lexical"] = lexical_searches(library, world, documents=documents, count=options.queries)
    report["vector"] = vector_searches(library, world, documents=documents, count=options.queries // 4)
    asked = [" ".join(world.texts(number)[0].split()[:9]) for number in range(min(documents, options.queries // 4))]
    report["hybrid"] = _times(_timed(library, asked, mode="hybrid", where=None)[1])
    report["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    catalog.close()
    return report


ORACLE = Oracle(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=10_000, help=f"a multiple of {PER_DOCUMENT} (default 10000)")
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--queries", type=int, default=400)
    parser.add_argument("--folder", type=Path, default=Path("build/retrieval"))
    print(json.dumps(measure(parser.parse_args()), indent=1))


if __name__ == "__main__":
    main()
