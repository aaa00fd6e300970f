"""What every catalog promises of documents, versions and metadata. See `Contract`."""

from dataclasses import replace

import pytest

from retriever.catalog.catalog import Catalog
from retriever.documents import Document, DocumentPart, chunk_id
from retriever.errors import DocumentError
from retriever.filter_condition import EVERYTHING, condition
from retriever.types import Collection, Passage, Removal
from tests.retriever.catalogs import Contract, Sqlite, deleted, document, entry, ids, names, put, served, staged, texts


class CatalogContract(Contract):
    # What is put

    def test_what_was_put_is_read_back(self, catalog: Catalog) -> None:
        parts = (
            DocumentPart("one", "first", 3, 7, {"lang": "en", "own": [1]}),
            DocumentPart("two\0\r\n\u2028🙂 "),
            DocumentPart(""),
        )
        put(catalog, Document("a/ä 🙂", parts, "Title", {"lang": "de", "deep": {"x": [None, True, 1.5]}}))
        with catalog.view() as view:
            found = view.document("a/ä 🙂")
            first, second, third = view.passages("a/ä 🙂")
        assert found is not None
        assert (found.title, found.collection, found.parts, found.created) == ("Title", "c", 3, found.updated)
        assert found.metadata == {"lang": "de", "deep": {"x": [None, True, 1.5]}}
        assert first == Passage(
            row=first.row, chunk=first.chunk, id=chunk_id("one"), text="one", document="a/ä 🙂", collection="c",
            title="Title", place=0, name="first", start=3, page=7,
            metadata={**found.metadata, "lang": "en", "own": [1]},
        )  # fmt: skip
        assert (second.text, second.name, second.start, second.page) == ("two\0\r\n\u2028🙂 ", "", None, None)
        assert second.metadata == found.metadata and third.text == ""

    def test_what_is_not_there_is_absent(self, catalog: Catalog) -> None:
        with catalog.view() as view:
            assert view.document("a") is None and view.collection("c") is None and view.prefix("c", model="m") is None
            assert view.documents(EVERYTHING) == [] and view.count(EVERYTHING) == 0
            assert view.passages("a") == [] and view.holding([1, 2], EVERYTHING) == [] and view.rows_of(["x"]) == {}
            assert view.lexical("word", EVERYTHING, limit=5) == [] and view.chunks_of(EVERYTHING).tolist() == []
            assert view.marked_after(0).rows.tolist() == [] and view.removed_after(0).tolist() == []
            assert len(view.embedded_after(0, embedder="e", limit=5).rows) == 0 and view.embedders() == []
            assert view.vectors(["x"], embedder="e") == {}

    def test_a_document_that_is_there_just_so_is_left_alone(self, catalog: Catalog) -> None:
        same = document("a", DocumentPart("x", "n", 0, 1, {"p": 1}), title="t", metadata={"m": {"b": 1, "a": 2}})
        put(catalog, same)
        with catalog.view() as view:
            before = view.document("a"), view.passages("a")
        assert put(catalog, replace(same, metadata={"m": {"a": 2, "b": 1}})) == Removal()
        with catalog.view() as view:
            assert (view.document("a"), view.passages("a")) == before

    @pytest.mark.parametrize(
        "other",
        [
            document("a", "x", title="t"),
            document("a", "x", metadata={"m": 1}),
            document("a", DocumentPart("x", "n")),
            document("a", DocumentPart("x", start=0)),
            document("a", DocumentPart("x", page=0)),
            document("a", DocumentPart("x", metadata={"m": 1})),
            document("a", "x", "x"),
            document("a"),
        ],
    )
    def test_a_document_that_differs_in_anything_replaces(self, catalog: Catalog, other: Document) -> None:
        put(catalog, document("a", "x"))
        put(catalog, other)
        with catalog.view() as view:
            found = view.document("a")
            assert found and (found.title, found.metadata, found.parts) == (
                other.title, other.metadata, len(other.parts)
            )  # fmt: skip
            assert [(p.text, p.name, p.start, p.page) for p in view.passages("a")] == [
                (p.text, p.name, p.start, p.page) for p in other.parts
            ]

    @pytest.mark.parametrize(
        "bad",
        [
            document("", "x"),
            document("n" * 1101, "x"),
            document("nul\0", "x"),
            document("half \ud800", "x"),
            document("a", "half \ud800"),
            document("a", "x", title="half \udfff"),
            document("a", DocumentPart("x", "half \ud800")),
            document("a", "x", metadata={"m": "half \ud800"}),
            document("a", "x", metadata={"half \ud800": 1}),
            document("a", "x", metadata={"m": float("nan")}),
            document("a", DocumentPart("x", metadata={"m": float("-inf")})),
            document("a", "x", metadata={"m": {1, 2}}),
            document("a", "x", metadata={"m": b"bytes"}),
        ],
    )
    def test_what_cannot_be_kept_is_refused_and_undoes_the_change(self, catalog: Catalog, bad: Document) -> None:
        with pytest.raises(DocumentError), catalog.change() as change:
            change.put([document("good", "y"), bad], collection="c")
        with pytest.raises(DocumentError), catalog.change() as change:
            change.stage(bad, collection="c")
        assert names(catalog, {}) == []

    def test_names_are_texts_and_never_patterns(self, catalog: Catalog) -> None:
        odd = [
            "%",
            "_",
            "a'b",
            'a"b',
            "'; DROP TABLE documents; --",
            "[1]",
            '["x"]',
            "\\",
            " a",
            "a ",
            "A",
            "a",
            "ä",
            "💥",
        ]
        put(catalog, *(document(name, f"text of {name}") for name in odd))
        for name in odd:
            assert deleted(catalog, name).gone == ids(f"text of {name}")
            assert entry(catalog, name) is None
        assert names(catalog, {}) == []

    def test_a_name_with_nul_names_nothing(self, catalog: Catalog) -> None:
        put(catalog, document("a", "x"))
        assert deleted(catalog, "a\0b", "\0", "half \ud800") == Removal()
        with catalog.view() as view:
            assert view.document("a") and view.rows_of([f"{chunk_id('x')}\0", "half \ud800"]) == {}

    # Versions

    def test_a_staged_version_is_seen_by_nobody_before_it_serves(self, catalog: Catalog) -> None:
        put(catalog, document("a", "old words", metadata={"v": 1}))
        version = staged(catalog, document("a", "new words", metadata={"v": 2}), collection="d")
        new = staged(catalog, document("b", "fresh words"))
        with catalog.view() as view:
            chunks = view.rows_of(ids("old words", "new words", "fresh words"))
            assert texts(catalog, "a") == ["old words"] and view.document("b") is None and view.passages("b") == []
            assert view.count(EVERYTHING) == 1 and view.count(condition({"v": 2})) == 0
            assert [p.text for p in view.holding(list(chunks.values()), EVERYTHING)] == ["old words"]
            assert [w.passage.text for w in view.lexical("words", EVERYTHING, limit=9)] == ["old words"]
            assert view.lexical("new fresh", EVERYTHING, limit=9) == []
            assert view.chunks_of(EVERYTHING).tolist() == [chunks[chunk_id("old words")]]
        first = entry(catalog, "a")
        assert served(catalog, version) == Removal(gone=ids("old words")) and served(catalog, new) == Removal()
        second = entry(catalog, "a")
        assert first and second and second.created == first.created
        assert (second.collection, second.metadata, texts(catalog, "a")) == ("d", {"v": 2}, ["new words"])

    def test_a_version_that_is_gone_cannot_serve(self, catalog: Catalog) -> None:
        version, dropped, older = (staged(catalog, document(name, "x")) for name in ("a", "b", "c"))
        served(catalog, older)
        put(catalog, document("c", "y"))
        deleted(catalog, "a")
        with catalog.change() as change:
            assert change.drop(dropped) == Removal(gone=ids("x"))
        for gone in (version, dropped, older, 999):
            with pytest.raises(DocumentError, match="put it again"):
                served(catalog, gone)

    def test_only_what_never_served_is_dropped(self, catalog: Catalog) -> None:
        version = staged(catalog, document("a", "x"))
        served(catalog, version)
        with catalog.change() as change:
            assert change.drop(version) == change.drop(999) == Removal()
        assert texts(catalog, "a") == ["x"]

    # What goes

    def test_a_collection_goes_with_what_is_in_it_and_nothing_else(self, catalog: Catalog) -> None:
        with catalog.change() as change:
            change.put_collection(Collection("c", {"n": 1}))
            change.put_collection(Collection("d", {}))
            change.keep_prefix("c", model="m", ids=[1, 2])
        put(catalog, document("both", "old"), document("only", "x", "shared"), collection="c")
        put(catalog, document("other", "shared"), collection="d")
        staged(catalog, document("both", "new"), collection="d")
        staged(catalog, document("other", "newer"), collection="c")
        with catalog.change() as change:
            removal = change.delete_collection("c")
            assert change.delete_collection("unknown") == Removal()
        assert set(removal.gone) == set(ids("old", "x", "newer")) and removal.kept == ids("shared")
        with catalog.view() as view:
            assert [each.name for each in view.collections()] == ["d"] and view.prefix("c", model="m") is None
            assert [each.id for each in view.documents(EVERYTHING)] == ["other"]

    # Metadata

    def test_a_patch_is_laid_over_the_metadata_and_null_takes_a_field_away(self, catalog: Catalog) -> None:
        own = DocumentPart("x", metadata={"lang": "en"})
        put(catalog, document("a", own, "y", metadata={"lang": "de", "year": 1, "null": None, "deep": {"a": 1}}))
        with catalog.change() as change:
            patched = change.patch("a", metadata={"year": None, "team": "t", "deep": {"b": 2}, "no": None})
            assert change.patch("unknown", metadata={}) is None
        assert patched == entry(catalog, "a")
        assert patched and patched.metadata == {"lang": "de", "null": None, "team": "t", "deep": {"b": 2}}
        with catalog.view() as view:
            first, second = view.passages("a")
            assert first.metadata == {**patched.metadata, "lang": "en"} and second.metadata == patched.metadata
            assert [p.text for p in view.holding([first.chunk, second.chunk], condition({"lang": "en"}))] == ["x"]
        assert names(catalog, {"deep.b": 2, "team": "t"}) == ["a"]
        assert names(catalog, {"year": {"$exists": True}}) == names(catalog, {"deep.a": 1}) == []

    def test_a_bad_patch_changes_nothing(self, catalog: Catalog) -> None:
        put(catalog, document("a", "x", metadata={"m": 1}))
        with pytest.raises(DocumentError), catalog.change() as change:
            change.patch("a", metadata={"n": float("nan")})
        assert names(catalog, {"m": 1}) == ["a"]

    def test_a_patch_is_undone_by_a_put_of_what_was_there_before(self, catalog: Catalog) -> None:
        put(catalog, document("a", "x", metadata={"m": 1}))
        with catalog.change() as change:
            change.patch("a", metadata={"m": 2})
        put(catalog, document("a", "x", metadata={"m": 1}))
        assert names(catalog, {"m": 1}) == ["a"] and names(catalog, {"m": 2}) == []


class TestSqliteCatalog(Sqlite, CatalogContract):
    pass
