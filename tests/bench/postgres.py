"""Search by words on SQLite and on PostgreSQL, the same library over both, in turns: `python -m tests.bench.postgres`.

Prints one JSON object. Text as in `retrieval`; queries of 6 to 12 words of one chunk's. PostgreSQL runs here too.
"""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from retriever.catalog.sqlite import SqliteCatalog
from retriever.contract.catalog import Catalog
from retriever.library import Library
from retriever.postgres.database import PostgresDatabase
from retriever.postgres.schemas import open_catalog
from retriever.search import Query
from tests.bench.retrieval import PER_DOCUMENT, World, fill
from tests.servers.postgres import postgres_server

CLIENTS, ASKED, ROUNDS = 8, 150, 3


def measured(library: Library, queries: list[str]) -> tuple[float, float]:
    """The median of single searches in milliseconds, and searches a second of all clients at once."""

    def ask(query: str) -> float:
        began = time.perf_counter()
        library.search(Query(query, limit=10, mode="lexical"))
        return time.perf_counter() - began

    alone = median(map(ask, queries))
    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(ask, queries))
    return 1000 * alone, len(queries) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=10_000)
    documents = parser.parse_args().chunks // PER_DOCUMENT
    world, random = World(8), np.random.default_rng(5)
    texts = [world.texts(int(random.integers(documents)))[0].split() for _ in range(ASKED)]
    queries = [" ".join(random.choice(text, random.integers(6, 13))) for text in texts]
    with TemporaryDirectory() as name, postgres_server() as server:
        assert server is not None, "install PostgreSQL"
        folder = Path(name)
        with closing(PostgresDatabase(server.database())) as database:
            catalogs: dict[str, Catalog] = {
                "sqlite": SqliteCatalog(folder / "catalog.sqlite"),
                "postgres": open_catalog(database, "bench"),
            }
            report: dict[str, dict[str, object]] = {}
            libraries: dict[str, Library] = {}
            for kind, catalog in catalogs.items():
                report[kind] = {"ingest_s": round(_seconds(catalog, world, documents), 1)}
                libraries[kind] = Library(catalog, folder / kind, embedders=[])
                measured(libraries[kind], queries)  # what a first search reads
            runs = [(kind, *measured(libraries[kind], queries)) for _ in range(ROUNDS) for kind in catalogs]
            for kind, catalog in catalogs.items():
                report[kind]["p50_ms"] = [round(ms, 2) for each, ms, _ in runs if each == kind]
                report[kind]["searches_s"] = [round(rate, 1) for each, _, rate in runs if each == kind]
                catalog.close()
    print(json.dumps({"chunks": documents * PER_DOCUMENT, **report}, indent=2))


def _seconds(catalog: Catalog, world: World, documents: int) -> float:
    began = time.perf_counter()
    fill(catalog, world, documents=range(documents))
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
