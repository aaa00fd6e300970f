"""What every catalog promises of uploads; `test_catalog_model.py` has them in any order."""

import time
from dataclasses import replace

import pytest

from retriever.catalog.catalog import Catalog
from retriever.documents import chunk_id
from retriever.errors import DocumentError
from retriever.types import Counts, Removal
from retriever.upload_types import NewUpload, QueuedUpload, UploadState
from tests.retriever.catalogs import Contract, Sqlite, deleted, document, ids, put, served, staged


def new(name: str, content: bytes = b"x", *, collection: str = "c", file: str = "") -> NewUpload:
    return NewUpload(name, collection, file, content)


def accepted(catalog: Catalog, *uploads: NewUpload, job: str = "j") -> list[QueuedUpload]:
    with catalog.change() as change:
        return change.accept(job, uploads)


def advanced(catalog: Catalog, upload: QueuedUpload, **changes: object) -> bool:
    with catalog.change() as change:
        return change.advance(replace(upload, **changes))  # type: ignore[arg-type]


def expanded(catalog: Catalog, file: QueuedUpload, *uploads: NewUpload) -> bool:
    with catalog.change() as change:
        return change.expand(file.number, uploads)


def computing(catalog: Catalog, upload: QueuedUpload, *parts: str) -> int:
    """With these parts staged for it."""
    with catalog.change() as change:
        version = change.stage(document(upload.document, *parts), collection=upload.collection)
        assert change.advance(replace(upload, state=UploadState.COMPUTING, version=version))
    return version


def told(catalog: Catalog, job: str = "j") -> list[QueuedUpload]:
    with catalog.view() as view:
        return view.uploads(job, limit=1000)


def states(catalog: Catalog, job: str = "j") -> list[str]:
    return [each.state for each in told(catalog, job)]


def live(catalog: Catalog) -> list[int]:
    with catalog.view() as view:
        return [each.number for each in view.live(1000)]


def known(catalog: Catalog, *told: str) -> list[str]:
    """Those of these texts that are chunks."""
    with catalog.view() as view:
        rows = view.rows_of(ids(*told))
    return [text for text in told if chunk_id(text) in rows]


class UploadContract(Contract):
    def test_what_is_not_there_is_absent(self, catalog: Catalog) -> None:
        with catalog.view() as view:
            assert view.job("j") is None and view.jobs() == view.uploads("j") == view.live(9) == []
            assert view.content(1) is None and view.upload_of("a") is None and view.upload_of("") is None
            assert view.unswept(9) == [] and view.chunk_ids(9) == [] and view.counts() == Counts(0, 0, 0)
        with catalog.change() as change:
            assert change.cancel("j") == change.forget_uploads(time.time()) == 0 and not change.expand(1, [new("a")])

    @pytest.mark.parametrize(
        "bad",
        [
            new("n" * 1101), new("nul\0"), new("half \ud800"), new("a", collection="half \ud800"),
            new("", file="half \ud800"),
        ],
    )  # fmt: skip
    def test_names_that_cannot_be_kept_are_refused_and_undo_the_change(self, catalog: Catalog, bad: NewUpload) -> None:
        [file] = accepted(catalog, new("", file="f"))
        with pytest.raises(DocumentError):
            accepted(catalog, new("good"), bad)
        with pytest.raises(DocumentError):
            expanded(catalog, file, new("good"), bad)
        with pytest.raises(DocumentError):
            accepted(catalog, new("good"), job="half \ud800")
        assert told(catalog) == [file]

    def test_names_are_texts_and_never_patterns(self, catalog: Catalog) -> None:
        odd = ["%", "_", "a'b", 'a"b', "'; DROP TABLE uploads; --", '["x"]', " a", "A", "a", "ä", "💥"]
        for name in odd:
            accepted(catalog, new(name, collection=name), job=name)
        for name in odd:
            with catalog.view() as view:
                assert [each.document for each in view.uploads(name)] == [name]
                found = view.upload_of(name)
            assert found and found.collection == name
            deleted(catalog, name)
            assert states(catalog, name) == ["deleted"]
        assert live(catalog) == []

    def test_what_is_advanced_is_read_back(self, catalog: Catalog) -> None:
        [upload] = accepted(catalog, new("a"))
        version = staged(catalog, document("a", "x"))
        wanted = replace(upload, state=UploadState.COMPUTING, version=version, chunks=4, stored=3, over_budget=2)
        wanted = replace(wanted, unsupported=1, detail="line\n\0ä")
        assert advanced(catalog, wanted)
        [found] = told(catalog)
        assert found == replace(wanted, updated=found.updated) and found.updated >= upload.updated
        assert advanced(catalog, found, state=UploadState.WAITING, detail="half \ud800")
        assert told(catalog)[0].detail == "half ?" and live(catalog) == [upload.number]

    @pytest.mark.parametrize(
        "end", ["superseded", "cancelled", "deleted", "collection", "failed", "expanded", "other version"]
    )
    def test_what_was_staged_goes_with_what_comes_to_nothing(self, catalog: Catalog, end: str) -> None:
        put(catalog, document("other", "shared"))
        [upload] = accepted(catalog, new("a"))
        version = computing(catalog, upload, "x", "shared")
        with catalog.change() as change:
            match end:
                case "superseded":
                    change.accept("k", [new("a", collection="d")])
                case "cancelled":
                    assert change.cancel("j") == 1
                case "deleted":
                    assert change.delete(["a"]) == Removal(ids("x"), ids("shared"))
                case "collection":
                    assert set(change.delete_collection("c").gone) == set(ids("x", "shared"))
                case "failed":
                    assert change.advance(replace(upload, state=UploadState.FAILED, version=version))
                case "expanded":
                    assert change.expand(upload.number, [])
                case _:
                    assert change.advance(replace(upload, version=None))
        assert known(catalog, "x", "shared") == ([] if end == "collection" else ["shared"])
        with catalog.view() as view:
            assert chunk_id("x") in [chunk for _, chunk in view.unswept(9)]
        assert told(catalog)[0].version is None
        with pytest.raises(DocumentError, match="put it again"):
            served(catalog, version)

    def test_a_file_becomes_its_documents_in_the_same_job(self, catalog: Catalog) -> None:
        [file] = accepted(catalog, new("", b"all", file="f"))
        accepted(catalog, new("other"), job="k")
        assert expanded(catalog, file, new("a", b"1"), new("b", b"2", file="f"), new("a", b"3"))
        assert not expanded(catalog, file, new("z"))
        found = told(catalog)
        assert [(each.document, each.state) for each in found] == [
            ("", "ready"), ("a", "superseded"), ("b", "waiting"), ("a", "waiting"),
        ]  # fmt: skip
        assert found[0].chunks == 0 and len({each.number for each in found}) == 4
        with catalog.view() as view:
            assert [view.content(each.number) for each in found] == [None, None, b"2", b"3"]
            assert view.upload_of("a") == found[3]

    @pytest.mark.parametrize("later", ["document", "ready", "file"])
    def test_a_files_documents_count_from_when_the_file_was_accepted(self, catalog: Catalog, later: str) -> None:
        accepted(catalog, new("a"), job="older")
        [file] = accepted(catalog, new("", file="f"))
        [newer] = accepted(catalog, new("" if later == "file" else "a"), job="newer")
        if later == "ready":
            assert advanced(catalog, newer, state=UploadState.READY)
        if later == "file":
            assert expanded(catalog, newer, new("a"))
        assert expanded(catalog, file, new("a"), new("b"))
        assert states(catalog) == ["ready", "superseded", "waiting"] and states(catalog, "older") == ["superseded"]
        with catalog.view() as view:
            counts = view.upload_of("a")
        assert counts and counts.job == "newer" and counts.state != UploadState.SUPERSEDED

    @pytest.mark.parametrize("state", [UploadState.FAILED, UploadState.CANCELLED, UploadState.DELETED])
    def test_an_upload_that_came_to_nothing_overtakes_no_file(self, catalog: Catalog, state: UploadState) -> None:
        [file] = accepted(catalog, new("", file="f"))
        [newer] = accepted(catalog, new("a"), job="newer")
        assert advanced(catalog, newer, state=state) and expanded(catalog, file, new("a"))
        assert states(catalog) == ["ready", "waiting"]

    def test_what_is_expected_counts_what_serves_and_what_arrives_once(self, catalog: Catalog) -> None:
        put(catalog, document("serves", "a text", "another"))
        accepted(catalog, new("serves"), new("comes"), new("", file="a.pdf"), new("ends"), new("comes"))
        with catalog.change() as change:
            assert change.expected() == (1 + 3, 2 + 3)
        *_, ends, _ = told(catalog)
        assert advanced(catalog, ends, state=UploadState.FAILED)
        with catalog.change() as change:
            assert change.expected() == (1 + 2, 2 + 2)

    def test_what_is_expected_counts_the_chunks_of_what_is_staged_without_those_that_then_go(
        self, catalog: Catalog
    ) -> None:
        put(catalog, document("serves", "stays", "goes", "goes"), document("other", "stays here"))
        for upload in accepted(catalog, new("serves"), new("comes")):
            version = staged(catalog, document(upload.document, "stays", f"new in {upload.document}", "and this"))
            assert advanced(catalog, replace(upload, state=UploadState.COMPUTING, version=version))
        with catalog.change() as change:
            assert change.expected() == (2 + 1, 3 - 1 + 3)


class TestSqliteUploads(Sqlite, UploadContract):
    pass
