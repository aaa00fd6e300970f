"""What every catalog promises of reading and of transactions. See `Contract`."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from retriever.catalog.catalog import Catalog
from retriever.documents import chunk_id
from retriever.errors import CatalogError
from retriever.filter_condition import EVERYTHING, condition, in_collection
from tests.retriever import catalogs
from tests.retriever.catalogs import Contract, Opened, Sqlite, document, ids, put


class ViewContract(Contract):
    def test_pages_of_documents_join_to_all_of_them_in_the_order_of_ids(self, catalog: Catalog) -> None:
        told = [f"{prefix}{number}" for prefix in ("", "a", "B", "ä", "🙂") for number in range(7)]
        put(catalog, *(document(name, "x", metadata={"n": place % 2}) for place, name in enumerate(told)))
        for where in ({}, {"n": 1}):
            with catalog.view() as view:
                found: list[str] = []
                while page := view.documents(condition(where), after=found[-1] if found else "", limit=4):
                    assert len(page) <= 4
                    found += [each.id for each in page]
                assert found == sorted(name for place, name in enumerate(told) if not where or place % 2)
                assert view.count(condition(where)) == len(found)

    def test_there_may_be_any_number_of_ids(self, catalog: Catalog) -> None:
        put(catalog, document("a", "x"))
        with catalog.view() as view:
            many = [f"{number:032x}" for number in range(40_000)]
            assert list(view.rows_of([*many, chunk_id("x")])) == list(ids("x"))
            assert [each.text for each in view.holding(range(40_000), EVERYTHING)] == ["x"]
        assert catalogs.deleted(catalog, *many, "a").gone == ids("x")

    def test_vectors_are_kept_once_for_each_chunk_and_embedder(self, catalog: Catalog) -> None:
        put(catalog, document("a", "x", "y"))
        x, y, unknown = ids("x", "y", "unknown")
        with catalog.change() as change:
            change.add_embedder("e", dim=2)
            change.put_vectors([unknown, y], catalogs.unit((1, 0), (0.5, 0.25)), embedder="e")
            change.put_vectors([y, x], catalogs.unit((9, 9), (0, 1)), embedder="e")
            change.put_vectors([x], catalogs.unit((0, 1)), embedder="unknown")
        with catalog.view() as view:
            rows = view.rows_of([x, y])
            found = view.embedded_after(0, embedder="e", limit=9)
            assert found.chunks.tolist() == [rows[y], rows[x]] and found.vectors.tolist() == [[0.5, 0.25], [0, 1]]
            assert found.rows[0] < found.rows[1] == view.state().vectors
            later = view.embedded_after(int(found.rows[0]), embedder="e", limit=1)
            assert later.chunks.tolist() == [rows[x]] and later.vectors.dtype == np.float32
            told = view.vectors([y, unknown], embedder="e")
            assert list(told) == [y] and told[y].tolist() == [0.5, 0.25]
            assert view.vectors([y], embedder="other") == {}

    def test_vectors_of_another_size_are_a_fault_of_ours(self, catalog: Catalog) -> None:
        put(catalog, document("a", "x"))
        with pytest.raises(AssertionError), catalog.change() as change:  # noqa: PT012
            change.add_embedder("e", dim=2)
            change.put_vectors(ids("x"), catalogs.unit((1, 0, 0)), embedder="e")

    def test_a_view_does_not_see_later_changes_though_it_reads_first_after_them(self, catalog: Catalog) -> None:
        put(catalog, document("a", "x"))
        with catalog.view() as view:
            put(catalog, document("a", "y"), document("b", "y"))
            assert [each.text for each in view.passages("a")] == ["x"] and view.document("b") is None
            assert view.lexical("y", EVERYTHING, limit=5) == [] and view.state().changes == 1
        assert catalogs.texts(catalog, "a") == ["y"]

    def test_a_view_inside_a_change_sees_the_state_before_it(self, catalog: Catalog) -> None:
        with catalog.change() as change:
            change.put([document("a", "x")], collection="c")
            assert catalogs.entry(catalog, "a") is None
        assert catalogs.entry(catalog, "a") is not None

    def test_a_change_is_seen_by_whoever_has_the_same_catalog_open(self, catalog: Catalog, opened: Opened) -> None:
        other = opened()
        put(catalog, document("a", "x"))
        assert catalogs.observed(other) == catalogs.observed(catalog)
        put(other, document("a", "y"))
        assert catalogs.texts(catalog, "a") == ["y"]

    def test_a_closed_catalog_says_so(self, catalog: Catalog) -> None:
        with catalog.view() as view:
            catalog.close()
            assert view.count(EVERYTHING) == 0
        with pytest.raises(CatalogError, match="closed"), catalog.view():
            pass
        with pytest.raises(CatalogError, match="closed"), catalog.change():
            pass
        catalog.close()

    def test_threads_see_whole_changes_and_lose_none(self, catalog: Catalog, opened: Opened) -> None:
        """Each change puts one document into each of two collections."""
        other, writers, rounds = opened(), 3, 8

        def write(number: int) -> None:
            for each in range(rounds):
                with (catalog, other)[number % 2].change() as change:
                    for side in "cd":
                        change.put([document(f"{side}-{number}-{each}", f"shared {side} {each}")], collection=side)

        def read(number: int) -> None:
            for _ in range(rounds * 2):
                with (catalog, other)[number % 2].view() as view:
                    assert view.count(in_collection("c")) == view.count(in_collection("d"))
                    assert view.count(EVERYTHING) == 2 * view.state().changes

        with ThreadPoolExecutor(writers + 2) as threads:
            working = [threads.submit(write, number) for number in range(writers)]
            working += [threads.submit(read, number) for number in range(2)]
        for each in working:
            each.result()
        with catalog.view() as view:
            assert view.count(EVERYTHING) == 2 * writers * rounds == 2 * view.state().changes
            assert len(view.chunks_of(EVERYTHING)) == 2 * rounds


class TestSqliteViews(Sqlite, ViewContract):
    pass
