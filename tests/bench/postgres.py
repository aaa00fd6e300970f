"""Search by words on SQLite and on PostgreSQL, the same library over both, in turns: `python -m tests.bench.postgres`.

Prints one JSON object. Text as in `retrieval`; queries of 6 to 12 words of one chunk's. PostgreSQL runs here too. With
`--served` a whole service stands over each, and is asked over HTTP: for what it finds, and for an answer of one token.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TypeVar

import httpx
import numpy as np

from retriever.catalog.catalog import Catalog
from retriever.catalog.sqlite import SqliteCatalog
from retriever.library import Library
from retriever.postgres.catalog import open_catalog
from retriever.postgres.database import PostgresDatabase
from retriever.search import Query
from service.app.compose_truth import compose_truth
from tests.bench.retrieval import PER_DOCUMENT, World, fill
from tests.servers.postgres import postgres_server
from tests.service.serving import Service, settings_in

T = TypeVar("T")

CLIENTS, ASKED, ROUNDS = 8, 150, 3
ANSWERED = 24  # questions of a round, each of which reads a prompt


@dataclass(frozen=True, slots=True)
class Asking:
    """How a service is asked: the times of single requests, and how many at once come in a second."""

    client: httpx.Client
    path: str
    bodies: list[dict[str, object]]

    def ask(self, body: dict[str, object]) -> float:
        began = time.perf_counter()
        self.client.post(self.path, json=body).raise_for_status()
        return time.perf_counter() - began

    def measured(self) -> tuple[float, float]:
        return timed(self.ask, self.bodies)


def timed(ask: Callable[[T], float], each: Sequence[T]) -> tuple[float, float]:
    """The median of single ones in milliseconds, and how many a second all clients at once have."""
    alone = median(map(ask, each))
    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(ask, each))
    return 1000 * alone, len(each) / (time.perf_counter() - began)


def measured(library: Library, queries: list[str]) -> tuple[float, float]:
    """The median of single searches in milliseconds, and searches a second of all clients at once."""

    def ask(query: str) -> float:
        began = time.perf_counter()
        library.search(Query(query, limit=10, mode="lexical"))
        return time.perf_counter() - began

    return timed(ask, queries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--served", action="store_true", help="over HTTP, by a service over each")
    told = parser.parse_args()
    documents = told.chunks // PER_DOCUMENT
    world, random = World(8), np.random.default_rng(5)
    texts = [world.texts(int(random.integers(documents)))[0].split() for _ in range(ASKED)]
    queries = [" ".join(random.choice(text, random.integers(6, 13))) for text in texts]
    with TemporaryDirectory() as name, postgres_server() as server:
        assert server is not None, "install PostgreSQL"
        made = served if told.served else searched
        report = made(Path(name), server.database(), world, documents=documents, queries=queries)
    print(json.dumps({"chunks": documents * PER_DOCUMENT, **report}, indent=2))


def searched(folder: Path, url: str, world: World, *, documents: int, queries: list[str]) -> dict[str, object]:
    """The library over both catalogs."""
    with closing(PostgresDatabase(url)) as database:
        catalogs: dict[str, Catalog] = {
            "sqlite": SqliteCatalog(folder / "catalog.sqlite"),
            "postgres": open_catalog(database, "bench"),
        }
        ingest = {kind: round(_seconds(catalog, world, documents), 1) for kind, catalog in catalogs.items()}
        libraries = {kind: Library(catalog, folder / kind) for kind, catalog in catalogs.items()}
        for library in libraries.values():
            measured(library, queries)  # what a first search reads
        report = _in_turns({kind: partial(measured, library, queries) for kind, library in libraries.items()})
        for catalog in catalogs.values():
            catalog.close()
    return {kind: {"ingest_s": ingest[kind], **report[kind]} for kind in catalogs}


def served(folder: Path, url: str, world: World, *, documents: int, queries: list[str]) -> dict[str, object]:
    """A service over each."""
    homes = {"sqlite": str(folder / "sqlite/data"), "postgres": f"{url}#{folder}/postgres/data"}
    searches: list[dict[str, object]] = [{"query": query, "top_k": 10} for query in queries]
    questions: list[dict[str, object]] = [
        {"question": query, "top_k": 2, "blend": {"policy": "full"}, "sampling": {"max_tokens": 1}}
        for query in queries[:ANSWERED]
    ]
    report: dict[str, object] = {}
    with ExitStack() as stack:
        asking: dict[str, dict[str, Asking]] = {"search": {}, "query": {}}
        for kind, data in homes.items():
            (folder / kind).mkdir()
            settings = settings_in(folder / kind, data=data)
            with closing(compose_truth(settings)) as truth, closing(truth.catalog("default")) as catalog:
                fill(catalog, world, documents=range(documents))
            service = stack.enter_context(Service(folder / kind, data=data))
            client = stack.enter_context(service.client())
            for path, bodies in (("search", searches), ("query", questions)):
                asking[path][kind] = Asking(client, f"/v1/{path}", bodies)
                asking[path][kind].measured()
        for path, each in asking.items():
            report[path] = _in_turns({kind: one.measured for kind, one in each.items()})
    return report


def _in_turns(kinds: Mapping[str, Callable[[], tuple[float, float]]]) -> dict[str, dict[str, object]]:
    runs = [(kind, *measure()) for _ in range(ROUNDS) for kind, measure in kinds.items()]
    return {
        wanted: {
            "p50_ms": [round(ms, 2) for kind, ms, _ in runs if kind == wanted],
            "a_second": [round(rate, 1) for kind, _, rate in runs if kind == wanted],
        }
        for wanted in kinds
    }


def _seconds(catalog: Catalog, world: World, documents: int) -> float:
    began = time.perf_counter()
    fill(catalog, world, documents=range(documents))
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
