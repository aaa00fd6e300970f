"""Vector search against exact search by numpy, whatever happened to the catalog and to the index file in between."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pytest

from retriever import nearest
from retriever.catalog.sqlite import SqliteCatalog
from retriever.catalog.view import CatalogView
from retriever.filter_condition import EVERYTHING
from retriever.nearest import Nearest
from retriever.vectors import Overtaken
from tests.retriever.indexed import ALL, agrees, damage, fill, index_in, opened, saved, units


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqliteCatalog]:
    with opened(tmp_path) as catalog:
        yield catalog


@pytest.fixture
def small_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists come soon, and all of them are searched."""
    monkeypatch.setattr(nearest, "FLAT", 40)
    monkeypatch.setattr(nearest, "FEWEST_PROBED", ALL)


class Walk:
    """Random things that happen to a catalog and its index, after each of which they agree."""

    def __init__(self, folder: Path, catalogs: Sequence[SqliteCatalog], seed: int) -> None:
        self._folder = folder
        self._catalogs = catalogs
        self._random = Random(seed)
        self._index = index_in(folder)
        self._step = 0

    def step(self) -> None:
        self._step += 1
        happens = [self._put, self._put, self._delete, self._delete_many, self._maintain, self._restart, self._damage]
        self._random.choice(happens)()
        assert agrees(self._index, self._random.choice(self._catalogs), limit=self._random.choice([1, 5, 40]))

    def _numbers(self, most: int) -> list[int]:
        return self._random.sample(range(80), self._random.randint(1, most))

    def _put(self) -> None:
        fill(self._random.choice(self._catalogs), self._numbers(30), seed=self._step)

    def _delete(self) -> None:
        with self._random.choice(self._catalogs).change() as change:
            change.delete([f"d{number}" for number in self._numbers(5)])

    def _delete_many(self) -> None:
        with self._random.choice(self._catalogs).change() as change:
            change.delete([f"d{number}" for number in self._numbers(75)])

    def _maintain(self) -> None:
        self._index.maintain(self._catalogs[0])

    def _restart(self) -> None:
        self._index = index_in(self._folder)

    def _damage(self) -> None:
        files = sorted(file for file in (self._folder / "index").glob("*") if file.suffix != ".lock")
        if files:
            damage(self._random.choice(files), self._random)
        self._restart()


LONG = [pytest.param(seed, "lists", 100, marks=pytest.mark.long) for seed in range(100, 130)]


@pytest.mark.parametrize(
    ("seed", "held", "steps"),
    [*((seed, "flat", 25) for seed in range(3)), *((seed, "lists", 25) for seed in range(3, 6)), *LONG],
)
def test_whatever_happens_search_is_exact_in_lists_too_when_all_are_searched(
    seed: int, held: str, steps: int, *, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if held == "lists":
        request.getfixturevalue("small_lists")
    with opened(tmp_path) as one, opened(tmp_path) as other:
        walk = Walk(tmp_path, [one, other], seed)
        for _ in range(steps):
            walk.step()


def test_what_the_file_holds_is_not_read_from_the_catalog_again(catalog: SqliteCatalog, tmp_path: Path) -> None:
    saved(tmp_path, catalog)
    with catalog.view() as view:
        spy = Watched(view)
        index_in(tmp_path).search(spy, units(np.random.default_rng(0), 1)[0], allowed=EVERYTHING, limit=1)  # pyright: ignore[reportArgumentType]
    assert min(spy.asked) == 60


class Watched:
    """A view that tells behind which rows it was asked for many vectors, and may fail."""

    def __init__(self, view: CatalogView, *, fails_at: int = -1) -> None:
        self.asked: list[int] = []
        self._view = view
        self._fails_at = fails_at

    def __getattr__(self, name: str) -> object:
        return getattr(self._view, name)

    def embedded_after(self, row: int, *, embedder: str, limit: int) -> object:
        if len(self.asked) == self._fails_at:
            raise OSError("the disk is gone")
        if limit > 1:
            self.asked.append(row)
        return self._view.embedded_after(row, embedder=embedder, limit=limit)


def test_one_index_can_be_shown_two_catalogs(catalog: SqliteCatalog, tmp_path: Path) -> None:
    index = index_in(tmp_path)
    fill(catalog, range(20))
    with opened(tmp_path / "other") as other:
        fill(other, range(9, 50), seed=9)
        for shown in (catalog, other, catalog):
            assert agrees(index, shown)


def test_an_index_that_fails_while_it_catches_up_holds_nothing_twice(
    catalog: SqliteCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retriever.vectors.BATCH", 20)
    fill(catalog, range(50))
    index, query = index_in(tmp_path), units(np.random.default_rng(0), 1)[0]
    with catalog.view() as view, pytest.raises(OSError, match="gone"):
        index.search(Watched(view, fails_at=3), query, allowed=EVERYTHING, limit=5)  # pyright: ignore[reportArgumentType]
    assert agrees(index, catalog)


def test_an_index_that_has_seen_more_than_a_view_says_so(catalog: SqliteCatalog, tmp_path: Path) -> None:
    index, query = index_in(tmp_path), units(np.random.default_rng(0), 1)[0]
    fill(catalog, range(5))
    with catalog.view() as old:
        before = old.state()
        fill(catalog, range(5, 9))
        assert agrees(index, catalog)
        assert old.state() == before
        with pytest.raises(Overtaken):
            index.search(old, query, allowed=EVERYTHING, limit=5)
    assert agrees(index, catalog)


def test_maintaining_goes_on_where_a_search_has_seen_a_later_state(catalog: SqliteCatalog, tmp_path: Path) -> None:
    index = index_in(tmp_path)
    fill(catalog, range(5))
    with catalog.view() as old:
        assert old.state().vectors == 10
        fill(catalog, range(5, 9))
        assert agrees(index, catalog)
        index.maintain(Behind(catalog, [old]))  # pyright: ignore[reportArgumentType]
    assert list((tmp_path / "index").glob("*.json"))
    assert agrees(index_in(tmp_path), catalog)


@dataclass(frozen=True, slots=True)
class Behind:
    """A catalog whose first views are old."""

    catalog: SqliteCatalog
    old: list[CatalogView]

    @contextmanager
    def view(self) -> Iterator[CatalogView]:
        if self.old:
            yield self.old.pop()
        else:
            with self.catalog.view() as view:
                yield view


@pytest.mark.usefixtures("small_lists")
def test_an_index_is_made_anew_while_searches_go_on(
    catalog: SqliteCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(catalog, range(40))
    index, listed = index_in(tmp_path), Nearest.listed
    making, searched = threading.Event(), threading.Event()

    def slowly(sample: np.ndarray, *, count: int) -> Nearest:
        making.set()
        assert searched.wait(30)
        return listed(sample, count=count)

    monkeypatch.setattr(Nearest, "listed", slowly)
    maker = threading.Thread(target=index.maintain, args=(catalog,))
    maker.start()
    assert making.wait(30)
    fill(catalog, range(30, 50), seed=4)
    with catalog.change() as change:
        change.delete(["d1", "d2", "d45"])
    assert agrees(index, catalog)
    searched.set()
    maker.join()
    assert agrees(index, catalog)
    index.maintain(catalog)
    assert agrees(index_in(tmp_path), catalog)
