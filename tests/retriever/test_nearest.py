"""Nearest vectors in memory, in lists and without, against exact search by numpy."""

from pathlib import Path

import numpy as np
import pytest

from retriever import nearest
from retriever.nearest import Allowed, Nearest
from tests.retriever.indexed import DIM, units


def clustered(noise: np.random.Generator, count: int) -> np.ndarray:
    """As texts are: many near to few."""
    rows = units(np.random.default_rng(64), 64)[noise.integers(64, size=count)] + 0.15 * noise.standard_normal(
        (count, DIM)
    )
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def recall(index: Nearest, rows: dict[int, np.ndarray], queries: np.ndarray) -> float:
    numbers, vectors = np.array(list(rows)), np.stack(list(rows.values())).astype(np.float16).astype(np.float32)
    hits = 0
    for query in queries:
        wanted = set(numbers[np.argsort(-(vectors @ query))[:10]].tolist())
        hits += len(wanted & {row for row, _ in index.search(query, limit=10)})
    return hits / (10 * len(queries))


def test_lists_find_nearly_all_that_exact_search_finds_also_after_changes() -> None:
    noise = np.random.default_rng(1)
    vectors = clustered(noise, 8000)
    index = Nearest.listed(vectors[::2], count=len(vectors))
    rows = dict(enumerate(vectors))
    index.add(np.arange(len(vectors)), vectors)
    assert recall(index, rows, clustered(noise, 40)) > 0.9
    index.remove(np.arange(0, 8000, 3))
    more = clustered(noise, 2000)
    index.add(np.arange(8000, 10_000), more)
    rows = {number: row for number, row in rows.items() if number % 3} | dict(enumerate(more, start=8000))
    assert len(index) == len(rows)
    assert recall(index, rows, clustered(noise, 40)) > 0.9


@pytest.mark.parametrize("kept", [1, 7, 500, 4000])
def test_behind_a_filter_lists_find_all(kept: int) -> None:
    noise = np.random.default_rng(kept)
    vectors = clustered(noise, 5000)
    index = Nearest.listed(vectors, count=len(vectors))
    index.add(np.arange(len(vectors)), vectors)
    fits = np.sort(noise.choice(5000, kept, replace=False))
    found = index.search(vectors[0], limit=20, allowed=Allowed.of(fits))
    cosines = vectors[fits].astype(np.float16).astype(np.float32) @ vectors[0]
    assert [row for row, _ in found] == fits[np.argsort(-cosines)[:20]].tolist()


def test_lists_are_outgrown_by_four_times_what_they_were_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "FLAT", 100)
    noise = np.random.default_rng(0)
    index = Nearest.flat(DIM)
    index.add(np.arange(100), units(noise, 100))
    assert not index.is_outgrown
    index.add(np.arange(100, 101), units(noise, 1))
    assert index.is_outgrown
    listed = Nearest.listed(units(noise, 400), count=400)
    listed.add(np.arange(1600), units(noise, 1600))
    assert not listed.is_outgrown
    listed.add(np.arange(1600, 1601), units(noise, 1))
    assert listed.is_outgrown


def test_what_is_read_from_a_file_finds_and_forgets_as_before(tmp_path: Path) -> None:
    noise = np.random.default_rng(0)
    vectors = units(noise, 600)
    for index in (Nearest.flat(DIM), Nearest.listed(vectors, count=600)):
        index.add(np.arange(600), vectors)
        index.write(tmp_path / "i")
        again = Nearest.read(tmp_path / "i")
        for each in (index, again):
            each.remove(np.arange(0, 600, 2))
            each.add(np.arange(600, 610), vectors[:10])
        assert again.dim == DIM and len(again) == len(index) == 310
        assert [again.search(query, limit=9) for query in vectors[:20]] == [
            index.search(query, limit=9) for query in vectors[:20]
        ]
