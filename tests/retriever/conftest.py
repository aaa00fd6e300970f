"""What tests of libraries share: one catalog, and libraries on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from retriever.catalog.sqlite import SqliteCatalog
from retriever.embedders.embedding import Embedders
from retriever.library import Library
from tests.retriever.fakes import Longest, WordEmbedder
from tests.retriever.libraries import Made


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqliteCatalog]:
    catalog = SqliteCatalog(tmp_path / "catalog.sqlite")
    yield catalog
    catalog.close()


@pytest.fixture
def make(catalog: SqliteCatalog, tmp_path: Path) -> Made:
    """Libraries on the same catalog."""

    def made(*embedders: WordEmbedder) -> Library:
        known = Embedders(embedders[0], embedders[1:]) if embedders else Embedders()
        return Library(catalog, tmp_path / "index", embedders=known, reranker=Longest())

    return made
