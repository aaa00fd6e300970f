"""What every catalog promises of uploads and of sweeping. See `Contract`."""

import time
from dataclasses import replace

import pytest

from retriever.catalog.catalog import Catalog
from retriever.catalog.change import CatalogChange
from retriever.documents import chunk_id
from retriever.errors import DocumentError
from retriever.types import Counts, Removal
from retriever.upload_types import Job, NewUpload, QueuedUpload, UploadState
from tests.retriever.catalogs import Contract, Opened, Sqlite, deleted, document, ids, put, served, staged, texts

ENDS = [state for state in UploadState if not state.is_live]


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


def summed(catalog: Catalog, job: str = "j") -> Job:
    with catalog.view() as view:
        found = view.job(job)
    assert found
    return found


def unswept(catalog: Catalog, limit: int = 1000) -> list[str]:
    with catalog.view() as view:
        return [chunk for _, chunk in view.unswept(limit)]


def swept(catalog: Catalog, row: int) -> None:
    with catalog.change() as change:
        change.swept(row)


def known(catalog: Catalog, *told: str) -> list[str]:
    """Those of these texts that are chunks."""
    with catalog.view() as view:
        rows = view.rows_of(ids(*told))
    return [text for text in told if chunk_id(text) in rows]


class UploadContract(Contract):
    # What waits

    def test_what_was_accepted_waits_with_its_content_in_the_order_it_came(self, opened: Opened) -> None:
        before = time.time()
        given = [new("a", b"\0\xff"), new("", b"", file="ä/b.pdf"), new("b", b"y" * 100_000, collection="d")]
        found = accepted(opened(), *given)
        catalog = opened()
        assert told(catalog) == found and sorted({each.number for each in found}) == live(catalog)
        for each, upload in zip(given, found, strict=True):
            assert (upload.document, upload.collection, upload.name) == (each.document, each.collection, each.name)
            assert (upload.job, upload.state, upload.version, upload.detail) == ("j", UploadState.WAITING, None, "")
            assert before <= upload.created == upload.updated <= time.time()
            with catalog.view() as view:
                assert view.content(upload.number) == each.content
        with catalog.view() as view:
            assert view.document("a") is None and view.counts() == Counts(0, 0, 0)

    def test_what_is_not_there_is_absent(self, catalog: Catalog) -> None:
        with catalog.view() as view:
            assert view.job("j") is None and view.jobs() == view.uploads("j") == view.live(9) == []
            assert view.content(1) is None and view.upload_of("a") is None and view.upload_of("") is None
            assert view.unswept(9) == [] and view.chunk_ids(9) == [] and view.counts() == Counts(0, 0, 0)
        with catalog.change() as change:
            assert change.cancel("j") == change.forget_uploads(time.time()) == 0 and not change.expand(1, [new("a")])

    def test_of_a_change_that_fails_nothing_waits(self, catalog: Catalog) -> None:
        [upload] = accepted(catalog, new("a"))

        def failing(change: CatalogChange) -> None:
            change.accept("k", [new("a"), new("b")])
            change.swept(5)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError), catalog.change() as change:
            failing(change)
        assert told(catalog) == [upload] and told(catalog, "k") == []
        with catalog.view() as view:
            assert [job.id for job in view.jobs()] == ["j"]

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

    # Jobs

    def test_a_job_tells_its_states_and_sums(self, catalog: Catalog) -> None:
        first, second, third = accepted(catalog, new("a"), new("b"), new("c"))
        accepted(catalog, new("d"), job="k")
        assert summed(catalog).states == {UploadState.WAITING: 3} and not summed(catalog).is_over
        advanced(catalog, first, state=UploadState.READY, chunks=5, stored=3, over_budget=1, unsupported=1)
        advanced(catalog, second, state=UploadState.FAILED, detail="why")
        advanced(catalog, third, state=UploadState.COMPUTING, chunks=2, stored=1)
        job, uploads = summed(catalog), told(catalog)
        assert job.states == {UploadState.READY: 1, UploadState.FAILED: 1, UploadState.COMPUTING: 1}
        assert (job.chunks, job.stored, job.over_budget, job.unsupported, job.is_over) == (7, 4, 1, 1, False)
        assert job.updated == max(each.updated for each in uploads) >= job.created
        advanced(catalog, third, state=UploadState.READY)
        assert summed(catalog).is_over and not summed(catalog, "k").is_over

    def test_a_job_may_be_empty_and_may_be_added_to(self, catalog: Catalog) -> None:
        assert accepted(catalog) == []
        job = summed(catalog)
        assert job.is_over and job.states == {} and job.chunks == 0 and job.updated == job.created
        accepted(catalog, new("a"))
        accepted(catalog, new("b"))
        assert [each.document for each in told(catalog)] == ["a", "b"] and not summed(catalog).is_over

    def test_jobs_and_uploads_are_paged(self, catalog: Catalog) -> None:
        for number in range(7):
            accepted(catalog, *(new(f"{number} {each}") for each in range(5)), job=f"j{number}")
        with catalog.view() as view:
            jobs: list[str] = []
            while page := view.jobs(after=jobs[-1] if jobs else "", limit=3):
                assert len(page) <= 3 and all(job.states == {UploadState.WAITING: 5} for job in page)
                jobs += [job.id for job in page]
            assert jobs == [f"j{number}" for number in reversed(range(7))] and view.jobs(after="unknown") == []
            first = view.uploads("j3", limit=2)
            second = view.uploads("j3", first=len(first), limit=9)
            assert [each.document for each in first + second] == [f"3 {each}" for each in range(5)]
            assert [each.document for each in view.live(6)] == [*(f"0 {each}" for each in range(5)), "1 0"]

    def test_only_jobs_that_are_over_for_long_are_forgotten(self, catalog: Catalog) -> None:
        [over] = accepted(catalog, new("a"), job="over")
        ended, _ = accepted(catalog, new("b"), new("c"), job="half over")
        for each in (over, ended):
            version = computing(catalog, each, "text")
            served(catalog, version)
            assert advanced(catalog, each, state=UploadState.READY, version=version)
        accepted(catalog, job="empty")
        with catalog.change() as change:
            assert change.forget_uploads(over.created) == 0
            assert change.forget_uploads(time.time() + 1) == 2
            assert change.forget_uploads(time.time() + 1) == 0
        with catalog.view() as view:
            assert [job.id for job in view.jobs()] == ["half over"] and view.upload_of("a") is None
            assert view.document("a") and len(view.uploads("half over")) == 2
        [again] = accepted(catalog, new("a"), job="over")
        assert again.number > ended.number and states(catalog, "over") == ["waiting"]

    # How they end

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

    @pytest.mark.parametrize("state", ENDS)
    def test_an_end_is_for_good_and_lets_the_content_go(self, catalog: Catalog, state: UploadState) -> None:
        [upload] = accepted(catalog, new("a"))
        assert advanced(catalog, upload, state=state, detail="first")
        ended = told(catalog)
        for other in UploadState:
            assert not advanced(catalog, upload, state=other, detail="second")
        with catalog.change() as change:
            assert change.cancel("j") == 0 and not change.expand(upload.number, [new("b")])
        deleted(catalog, "a")
        accepted(catalog, new("a"), job="k")
        assert told(catalog) == ended and ended[0].state is state
        with catalog.view() as view:
            assert view.content(upload.number) is None

    def test_an_upload_that_is_not_there_is_not_advanced(self, catalog: Catalog) -> None:
        [upload] = accepted(catalog, new("a"))
        assert not advanced(catalog, upload, number=999) and told(catalog) == [upload]

    def test_what_serves_when_it_is_ready_goes_on_serving(self, catalog: Catalog) -> None:
        [upload] = accepted(catalog, new("a"))
        version = computing(catalog, upload, "x", "y")
        with catalog.change() as change:
            change.serve(version)
            assert change.advance(replace(upload, state=UploadState.READY, version=version, chunks=2))
        assert texts(catalog, "a") == ["x", "y"] and told(catalog)[0].version == version
        accepted(catalog, new("a"), job="k")
        with catalog.change() as change:
            assert change.cancel("k") == 1 and change.cancel("j") == 0
        assert texts(catalog, "a") == ["x", "y"] and states(catalog) == ["ready"]

    def test_ready_may_be_written_before_it_serves(self, catalog: Catalog) -> None:
        [upload] = accepted(catalog, new("a"))
        version = computing(catalog, upload, "x")
        with catalog.change() as change:
            assert change.advance(replace(upload, state=UploadState.READY, version=version))
            change.serve(version)
        assert texts(catalog, "a") == ["x"]

    @pytest.mark.parametrize("end", ["superseded", "cancelled", "deleted", "collection", "failed", "other version"])
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
                case _:
                    assert change.advance(replace(upload, version=None))
        assert known(catalog, "x", "shared") == ([] if end == "collection" else ["shared"])
        assert chunk_id("x") in unswept(catalog)
        assert told(catalog)[0].version is None
        with pytest.raises(DocumentError, match="put it again"):
            served(catalog, version)

    def test_a_document_or_collection_that_is_deleted_takes_its_live_uploads_along(self, catalog: Catalog) -> None:
        accepted(catalog, new("a"), new("b", collection="d"), new("", file="f"), new("", file="g", collection="d"))
        assert deleted(catalog, "b", "unknown", "b") == Removal()
        assert states(catalog) == ["waiting", "deleted", "waiting", "waiting"]
        with catalog.change() as change:
            assert change.delete_collection("c") == Removal()
        assert states(catalog) == ["deleted", "deleted", "deleted", "waiting"] and len(live(catalog)) == 1

    # Which of them counts

    def test_of_one_document_the_last_upload_counts(self, catalog: Catalog) -> None:
        first, second = accepted(catalog, new("a", b"1"), new("a", b"2"))
        assert (first.state, second.state) == (UploadState.SUPERSEDED, UploadState.WAITING)
        [third] = accepted(catalog, new("a", b"3", collection="d"), job="k")
        accepted(catalog, new("A"), new("", file="f"), new("", file="f"), job="k")
        assert states(catalog) == ["superseded"] * 2 and states(catalog, "k") == ["waiting"] * 4
        with catalog.view() as view:
            assert view.upload_of("a") == third and view.content(third.number) == b"3"
            assert view.content(first.number) is view.content(second.number) is None

    def test_what_is_expected_counts_what_serves_and_what_arrives_once(self, catalog: Catalog) -> None:
        put(catalog, document("serves", "a text", "another"))
        accepted(catalog, new("serves"), new("comes"), new("", file="a.pdf"), new("ends"), new("comes"))
        with catalog.change() as change:
            assert change.expected() == (1 + 3, 2 + 3)
        *_, ends, _ = told(catalog)
        assert advanced(catalog, ends, state=UploadState.FAILED)
        with catalog.change() as change:
            assert change.expected() == (1 + 2, 2 + 2)

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

    def test_a_later_file_supersedes_the_documents_of_an_earlier_one_whichever_is_cut_first(
        self, catalog: Catalog
    ) -> None:
        [one], [two] = (accepted(catalog, new("", file=name), job=name) for name in ("one", "two"))
        assert expanded(catalog, one, new("a")) and expanded(catalog, two, new("a"))
        assert states(catalog, "one") == ["ready", "superseded"] and states(catalog, "two") == ["ready", "waiting"]

    @pytest.mark.parametrize("state", [UploadState.FAILED, UploadState.CANCELLED, UploadState.DELETED])
    def test_an_upload_that_came_to_nothing_overtakes_no_file(self, catalog: Catalog, state: UploadState) -> None:
        [file] = accepted(catalog, new("", file="f"))
        [newer] = accepted(catalog, new("a"), job="newer")
        assert advanced(catalog, newer, state=state) and expanded(catalog, file, new("a"))
        assert states(catalog) == ["ready", "waiting"]

    # Sweeping

    def test_chunks_that_went_are_told_until_they_are_swept(self, opened: Opened) -> None:
        catalog = opened()
        put(catalog, document("a", "x", "y"), document("b", "y", "z"))
        deleted(catalog, "a")
        assert unswept(catalog) == list(ids("x"))
        deleted(catalog, "b")
        with catalog.view() as view:
            found, [first] = view.unswept(9), view.unswept(1)
        assert found[0] == first and {chunk for _, chunk in found} == set(ids("x", "y", "z"))
        swept(catalog, first[0])
        swept(catalog, 0)
        assert unswept(opened()) == [chunk for _, chunk in found[1:]]
        swept(catalog, found[-1][0])
        assert unswept(opened()) == []

    def test_a_chunk_that_is_one_again_is_not_told_until_it_goes_again(self, catalog: Catalog) -> None:
        put(catalog, document("a", "x"))
        deleted(catalog, "a")
        version = staged(catalog, document("a", "x"))
        assert unswept(catalog) == []
        with catalog.view() as view:
            removed = view.state().removed
        swept(catalog, removed)
        with catalog.change() as change:
            change.drop(version)
        assert unswept(catalog) == list(ids("x"))


class TestSqliteUploads(Sqlite, UploadContract):
    pass
