"""What every catalog promises of reading, vectors and transactions. See `Contract`."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from retriever.catalog.catalog import Catalog
from retriever.documents import chunk_id
from retriever.errors import CatalogError, SearchError
from retriever.filter_condition import EVERYTHING, condition, in_collection
from retriever.types import Collection, Counts
from tests.retriever import catalogs
from tests.retriever.catalogs import Contract, Opened, Sqlite, deleted, document, ids, put, served, staged

LONG = "a text that is long enough to be recognised in another"


class ViewContract(Contract):
    # Reading

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

    def test_passages_of_a_document_are_paged_by_place(self, catalog: Catalog) -> None:
        put(catalog, document("a", *(str(number) for number in range(10))))
        with catalog.view() as view:
            assert [each.text for each in view.passages("a", first=3, limit=2)] == ["3", "4"]
            assert [each.place for each in view.passages("a", first=8)] == [8, 9]

    def test_holding_answers_in_the_order_asked_and_only_what_fits(self, catalog: Catalog) -> None:
        put(catalog, document("b", "x", "y", "x", metadata={"n": 1}), document("a", "y", metadata={"n": 2}))
        with catalog.view() as view:
            x, y = (view.rows_of(ids(text))[chunk_id(text)] for text in "xy")
            found = [(each.text, each.document, each.place) for each in view.holding([y, x, 999], EVERYTHING)]
            assert found == [("y", "b", 1), ("x", "b", 0)]
            assert [each.document for each in view.holding([x, y], condition({"n": 2}))] == ["a"]
            assert view.chunks_of(condition({"n": 2})).tolist() == [y] and view.texts([x, 999]) == {x: "x"}

    def test_there_may_be_any_number_of_ids(self, catalog: Catalog) -> None:
        put(catalog, document("a", "x"))
        with catalog.view() as view:
            many = [f"{number:032x}" for number in range(40_000)]
            assert list(view.rows_of([*many, chunk_id("x")])) == list(ids("x"))
            assert [each.text for each in view.holding(range(40_000), EVERYTHING)] == ["x"]
        assert catalogs.deleted(catalog, *many, "a").gone == ids("x")

    def test_long_chunks_have_marks_and_short_ones_have_none(self, catalog: Catalog) -> None:
        put(catalog, document("a", LONG, "short"))
        with catalog.view() as view:
            marked, row = view.marked_after(0), view.rows_of(ids(LONG))[chunk_id(LONG)]
            assert (marked.rows.tolist(), marked.nbytes.tolist()) == ([row], [len(LONG)])
            assert view.marked_after(row).rows.tolist() == []

    # Collections and prefixes

    def test_a_collection_gets_other_rules_and_keeps_its_documents(self, catalog: Catalog) -> None:
        put(catalog, document("a", "x"))
        for rules in ({"size": 1, "nested": {"ä": [None]}}, {}):
            with catalog.change() as change:
                change.put_collection(Collection("c", rules))
            with catalog.view() as view:
                assert view.collection("c") == Collection("c", rules) and view.collections() == [Collection("c", rules)]
        assert catalogs.texts(catalog, "a") == ["x"]

    def test_the_first_prefix_that_was_kept_stays(self, catalog: Catalog) -> None:
        with catalog.change() as change:
            assert change.keep_prefix("c", model="m", ids=[5, 2**32 - 1, 0]) == (5, 2**32 - 1, 0)
            assert change.keep_prefix("c", model="m", ids=[1]) == (5, 2**32 - 1, 0)
            assert change.keep_prefix("c", model="n", ids=[]) == ()
        with catalog.view() as view:
            assert view.prefix("c", model="m") == (5, 2**32 - 1, 0) and view.prefix("c", model="n") == ()

    # Vectors

    def test_the_first_embedder_serves_only_where_nothing_waits_for_vectors(self, catalog: Catalog) -> None:
        with catalog.change() as change:
            change.add_embedder("first", dim=2)
            change.add_embedder("first", dim=2)
            change.add_embedder("second", dim=3)
        with catalog.view() as view:
            assert [(e.name, e.dim, e.serving) for e in view.embedders()] == [("first", 2, True), ("second", 3, False)]

    def test_an_embedder_that_comes_late_does_not_serve(self, catalog: Catalog) -> None:
        put(catalog, document("a", "x"))
        with catalog.change() as change:
            change.add_embedder("e", dim=2)
        with catalog.view() as view:
            assert [e.serving for e in view.embedders()] == [False]

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

    def test_chunks_without_a_vector_are_told_in_pages(self, catalog: Catalog) -> None:
        put(catalog, document("a", "x", "y", "z"))
        with catalog.change() as change:
            change.add_embedder("e", dim=2)
            change.put_vectors(ids("y"), catalogs.unit((1, 0)), embedder="e")
        with catalog.view() as view:
            ((first, *found),) = view.without_vector(0, embedder="e", limit=1)
            assert found == [chunk_id("x"), "x"]
            assert [text for _, _, text in view.without_vector(first, embedder="e", limit=9)] == ["z"]

    def test_the_embedder_that_serves_has_the_only_vectors(self, catalog: Catalog) -> None:
        put(catalog, document("a", "x"))
        with catalog.change() as change:
            for name in ("e", "f"):
                change.add_embedder(name, dim=2)
                change.put_vectors(ids("x"), catalogs.unit((1, 0)), embedder=name)
            change.serve_embedder("f")
        with catalog.view() as view:
            assert [(e.name, e.serving) for e in view.embedders()] == [("f", True)]
            assert view.vectors(ids("x"), embedder="e") == {} and list(view.vectors(ids("x"), embedder="f")) == list(
                ids("x")
            )
        with pytest.raises(SearchError, match="add it first"), catalog.change() as change:
            change.serve_embedder("unknown")
        with catalog.view() as view:
            assert list(view.vectors(ids("x"), embedder="f")) == list(ids("x"))

    # Transactions

    def test_an_exception_inside_a_change_undoes_all_of_it(self, catalog: Catalog) -> None:
        put(catalog, document("a", "x"), document("b", "words"))
        state = catalogs.observed(catalog)
        with pytest.raises(ZeroDivisionError), catalog.change() as change:  # noqa: PT012
            change.put([document("a", "y"), document("n", "words")], collection="d")
            change.delete(["b"])
            change.put_collection(Collection("new", {}))
            change.add_embedder("e", dim=1)
            change.put_vectors(ids("y"), catalogs.unit((1,)), embedder="e")
            change.stage(document("s", "s"), collection="c")
            raise ZeroDivisionError
        assert catalogs.observed(catalog) == state
        put(catalog, document("b", "z"))
        assert catalogs.texts(catalog, "b") == ["z"]

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

    def test_a_catalog_that_is_opened_again_is_the_same(self, catalog: Catalog, opened: Opened) -> None:
        put(catalog, document("a", "x", LONG))
        state = catalogs.observed(catalog)
        catalog.close()
        assert catalogs.observed(opened()) == state

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

    # Counts

    def test_counts_and_chunk_ids_are_those_of_what_is_kept(self, catalog: Catalog) -> None:
        put(catalog, document("a", "x", "y", "x"), document("b", "y"))
        version = staged(catalog, document("a", "z"))
        wanted = sorted(ids("x", "y", "z"))
        with catalog.view() as view:
            assert view.counts() == Counts(documents=2, passages=4, chunks=3)
            assert view.chunk_ids(9) == wanted and view.chunk_ids(1) == wanted[:1]
        served(catalog, version)
        deleted(catalog, "b")
        with catalog.view() as view:
            assert view.counts() == Counts(documents=1, passages=1, chunks=1)
            assert view.chunk_ids(9) == list(ids("z"))


class TestSqliteViews(Sqlite, ViewContract):
    pass
