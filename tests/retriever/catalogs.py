"""Catalogs for tests: how they are opened and filled, and what can be told of them."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np
import pytest

from retriever.catalog.catalog import Catalog
from retriever.catalog.sqlite import SqliteCatalog
from retriever.catalog.view import CatalogView
from retriever.documents import Document, DocumentPart, Json, chunk_id
from retriever.filter_condition import EVERYTHING, condition
from retriever.postgres.catalog import open_catalog
from retriever.postgres.database import PostgresDatabase
from retriever.postgres.schemas import schema_of
from retriever.types import DocumentRow, Removal
from tests.servers.postgres import PostgresServer

Opened = Callable[[], Catalog]  # the same catalog, as another process opens it


def document(name: str, *parts: str | DocumentPart, title: str = "", metadata: Json | None = None) -> Document:
    cut = tuple(part if isinstance(part, DocumentPart) else DocumentPart(part) for part in parts)
    return Document(name, cut, title, metadata or {})


def put(catalog: Catalog, *documents: Document, collection: str = "c") -> Removal:
    with catalog.change() as change:
        return change.put(documents, collection=collection)


def deleted(catalog: Catalog, *names: str) -> Removal:
    with catalog.change() as change:
        return change.delete(names)


def staged(catalog: Catalog, version: Document, *, collection: str = "c") -> int:
    with catalog.change() as change:
        return change.stage(version, collection=collection)


def served(catalog: Catalog, version: int) -> Removal:
    with catalog.change() as change:
        return change.serve(version)


def entry(catalog: Catalog, name: str) -> DocumentRow | None:
    with catalog.view() as view:
        return view.document(name)


def texts(catalog: Catalog, name: str) -> list[str]:
    with catalog.view() as view:
        return [passage.text for passage in view.passages(name)]


def names(catalog: Catalog, where: Json) -> list[str]:
    with catalog.view() as view:
        return [each.id for each in view.documents(condition(where))]


def ids(*told: str) -> tuple[str, ...]:
    return tuple(chunk_id(text) for text in told)


def unit(*rows: Sequence[float]) -> np.ndarray:
    return np.array(rows, np.float32)


def observed(catalog: Catalog) -> list[object]:
    """All that can be told of a state, but for marks."""
    with catalog.view() as view:
        return seen(view)


def seen(view: CatalogView) -> list[object]:
    entries = view.documents(EVERYTHING, limit=10_000)
    rows = view.chunks_of(EVERYTHING).tolist()
    return [
        view.state(), view.collections(), entries, [view.passages(each.id) for each in entries], rows,
        view.texts(rows), view.embedders(), view.removed_after(0).tolist(),
        [(each.passage, each.score) for each in view.lexical("words x y text catalog 1", EVERYTHING, limit=1000)],
        view.embedded_after(0, embedder="e", limit=1000).vectors.tolist(),
        view.documents(condition({"n": {"$gte": 1}})), view.marked_after(0).rows.tolist(),
        view.without_vector(0, embedder="e", limit=10_000),
    ]  # fmt: skip


class Contract:
    """Tests of every catalog. An implementation inherits them and gives its own `opened`."""

    @pytest.fixture
    def opened(self, tmp_path: Path) -> Iterator[Opened]:
        raise NotImplementedError

    @pytest.fixture
    def catalog(self, opened: Opened) -> Catalog:
        return opened()


class Sqlite:
    @pytest.fixture
    def opened(self, tmp_path: Path) -> Iterator[Opened]:
        catalogs: list[Catalog] = []

        def again() -> Catalog:
            catalogs.append(SqliteCatalog(tmp_path / "folder" / "catalog.sqlite"))
            return catalogs[-1]

        yield again
        for catalog in catalogs:
            catalog.close()


class Postgres:
    @pytest.fixture
    def opened(self, postgres: PostgresServer) -> Iterator[Opened]:
        databases: list[PostgresDatabase] = []
        url = postgres.database()

        def again() -> Catalog:
            databases.append(PostgresDatabase(url, connections=4))
            return open_catalog(databases[-1], "acme")

        yield again
        for database in databases:
            database.close()


class CatalogTables(Protocol):
    """A new catalog, and its tables behind its back."""

    def open(self) -> Catalog: ...

    def rows(self, query: str) -> list[tuple[Any, ...]]: ...

    def holds_words(self, terms: Mapping[int, Sequence[str]]) -> bool:
        """Whether the index holds the terms of these passages and nothing else."""
        ...

    def forget(self) -> None: ...


class SqliteTables:
    def __init__(self) -> None:
        self._folder = TemporaryDirectory()
        self._path = Path(self._folder.name) / "catalog.sqlite"

    def open(self) -> Catalog:
        return SqliteCatalog(self._path)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path)) as connection:
            return connection.execute(query).fetchall()

    def holds_words(self, terms: Mapping[int, Sequence[str]]) -> bool:
        with closing(sqlite3.connect(self._path)) as connection:
            connection.execute("INSERT INTO terms (terms) VALUES ('integrity-check')")
            connection.execute("CREATE VIRTUAL TABLE temp.instances USING fts5vocab (main, terms, instance)")
            found = set(connection.execute("SELECT doc, offset, term FROM instances"))
        return found == {(row, place, term) for row, told in terms.items() for place, term in enumerate(told)}

    def forget(self) -> None:
        self._folder.cleanup()


class PostgresTables:
    """A tenant's. It stays in the database, which goes with the tests."""

    def __init__(self, database: PostgresDatabase, tenant: str) -> None:
        self._database, self._tenant = database, tenant

    def open(self) -> Catalog:
        return open_catalog(self._database, self._tenant)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self._database.transaction(" READ ONLY", schema=schema_of(self._tenant)) as connection:
            return connection.execute(query).fetchall()

    def holds_words(self, terms: Mapping[int, Sequence[str]]) -> bool:
        found = self.rows("SELECT passage, tsvector_to_array(words) FROM terms")
        return {row: set(told) for row, told in found} == {row: set(told) for row, told in terms.items()}

    def forget(self) -> None:
        """Nothing is open."""
