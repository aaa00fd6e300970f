"""Catalogs whose chunks have random vectors, and what an exact search by numpy finds in them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np

from retriever.catalog.sqlite import SqliteCatalog
from retriever.catalog.view import CatalogView
from retriever.documents import Document, DocumentPart
from retriever.filter_condition import EVERYTHING, FilterCondition, condition
from retriever.vectors import VectorIndex

DIM, ALL = 16, 10_000
FILTERS = [
    EVERYTHING,
    condition({"kind": "rare"}),
    condition({"kind": {"$ne": "rare"}}),
    condition({"kind": "none such"}),
]


@contextmanager
def opened(folder: Path) -> Iterator[SqliteCatalog]:
    catalog = SqliteCatalog(folder / "catalog.sqlite")
    with catalog.change() as change:
        change.add_embedder("e", dim=DIM)
    try:
        yield catalog
    finally:
        catalog.close()


def units(noise: np.random.Generator, count: int) -> np.ndarray:
    rows = noise.standard_normal((count, DIM)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def fill(catalog: SqliteCatalog, numbers: Sequence[int], *, seed: int = 0) -> None:
    """A document of two chunks for each number; every tenth is rare."""
    made = [
        Document(
            f"d{number}",
            tuple(DocumentPart(f"text {number} {seed} {place}") for place in range(2)),
            metadata={"kind": "often" if number % 10 else "rare"},
        )
        for number in numbers
    ]
    ids = [part.id for document in made for part in document.parts]
    with catalog.change() as change:
        change.put(made, collection="c")
        change.put_vectors(ids, units(np.random.default_rng([seed, *numbers[:1]]), len(ids)), embedder="e")


def index_in(folder: Path) -> VectorIndex:
    return VectorIndex(folder / "index", embedder="e", dim=DIM)


def exact(view: CatalogView, query: np.ndarray, allowed: FilterCondition) -> list[tuple[int, float]]:
    held = view.embedded_after(0, embedder="e", limit=ALL)
    fits = set(view.chunks_of(allowed).tolist())
    found = [
        (int(chunk), float(row @ query)) for chunk, row in zip(held.chunks, held.vectors, strict=True) if chunk in fits
    ]
    return sorted(found, key=lambda each: -each[1])


def agrees(index: VectorIndex, catalog: SqliteCatalog, *, limit: int = 25) -> bool:
    """What the index finds is what there is, behind every filter."""
    with catalog.view() as view:
        for query, allowed in zip(units(np.random.default_rng(7), len(FILTERS)), FILTERS, strict=True):
            for many in (limit, ALL):
                found = index.search(view, query, allowed=allowed, limit=many)
                wanted = exact(view, query, allowed)[:many]
                assert [chunk for chunk, _ in found] == [chunk for chunk, _ in wanted]
                np.testing.assert_allclose([s for _, s in found], [s for _, s in wanted], atol=1e-5)
    return True


def saved(folder: Path, catalog: SqliteCatalog) -> None:
    """An index in its file, and a catalog that has gone on."""
    fill(catalog, range(30))
    index = index_in(folder)
    index.maintain(catalog)
    with catalog.change() as change:
        change.delete(["d3", "d4"])
    fill(catalog, range(30, 60), seed=1)


def damage(file: Path, chance: Random) -> None:
    """Gone, shorter, or one bit different."""
    data = bytearray(file.read_bytes())
    match chance.randrange(3):
        case 0:
            file.unlink()
        case 1:
            file.write_bytes(data[: chance.randrange(len(data))])
        case _:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            file.write_bytes(data)
