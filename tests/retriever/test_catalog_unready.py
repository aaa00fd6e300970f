"""What every catalog promises of what does not serve, and of what waits for a collection. See `Contract`."""

import time
from dataclasses import replace

from retriever.catalog.catalog import Catalog
from retriever.types import Removal
from retriever.upload_types import UploadState
from tests.retriever.catalogs import Contract, Opened, Sqlite, deleted, document, put
from tests.retriever.test_catalog_uploads import accepted, advanced, live, new, states


class UnreadyContract(Contract):
    def test_what_has_no_collection_waits_and_nothing_works_on_it_until_it_has_one(self, opened: Opened) -> None:
        [waiting] = accepted(opened(), new("a", b"kept", collection=""))
        catalog = opened()
        with catalog.change() as change:
            assert (change.expected(), change.waiting_bytes()) == ((1, 1), (0, 4))
            assert change.forget_uploads(time.time() + 1) == 0
        with catalog.view() as view:
            assert view.live(9) == view.jobs() == [] and view.content(waiting.number) == b"kept"
            assert view.unready() == view.unready("") == [waiting] and view.unready("c") == []
        [put_in] = accepted(catalog, replace(new("a", b"kept"), replaces=waiting.number), job="k")
        with catalog.change() as change:
            assert change.waiting_bytes() == (4, 0)
        assert states(catalog) == ["superseded"] and live(catalog) == [put_in.number]
        with catalog.view() as view:
            assert view.content(waiting.number) is None and view.unready("c") == view.unready() == [put_in]
            assert [job.id for job in view.jobs()] == ["k", "j"]

    def test_what_was_deleted_does_not_come_back_by_a_copy_that_was_read_before(self, catalog: Catalog) -> None:
        [waiting] = accepted(catalog, new("a", b"kept", collection=""))
        assert deleted(catalog, "a") == Removal()
        [late] = accepted(catalog, replace(new("a", b"kept"), replaces=waiting.number), job="k")
        assert late.state is UploadState.DELETED and live(catalog) == []
        with catalog.view() as view:
            assert view.content(late.number) is view.content(waiting.number) is None and view.unready() == []

    def test_of_two_copies_that_were_read_at_once_the_second_hides_none(self, catalog: Catalog) -> None:
        """Of what waits, and of what serves."""
        put(catalog, document("source", "x"), collection="c")
        [waiting] = accepted(catalog, new("a", b"kept", collection=""))
        with catalog.view() as view:
            wanted = {
                "a": replace(new("a", b"kept"), replaces=waiting.number),
                "b": replace(new("b"), copies=view.version("source")),
            }
        first = accepted(catalog, *wanted.values(), job="k")
        deleted(catalog, "source")
        assert [each.state for each in accepted(catalog, *wanted.values(), job="l")] == ["superseded"] * 2
        with catalog.view() as view:
            assert view.unready("c") == first == [view.upload_of(each) for each in wanted]
        assert advanced(catalog, first[0], state=UploadState.FAILED)
        deleted(catalog, "b")
        with catalog.view() as view:
            assert [each.number for each in view.unready("c")] == [first[0].number]
        assert accepted(catalog, wanted["b"], job="m")[0].state is UploadState.DELETED

    def test_a_copy_ends_as_deleted_where_what_it_was_read_from_serves_no_more(self, catalog: Catalog) -> None:
        for number, end in enumerate(("stays", "deleted", "replaced")):
            put(catalog, document("a", "x"), collection="c")
            with catalog.view() as view:
                version = view.version("a")
            if end != "stays":
                deleted(catalog, "a")
            if end == "replaced":
                put(catalog, document("a", "x"), collection="c")
            [copy] = accepted(catalog, replace(new(f"b{number}", collection="d"), copies=version))
            assert (copy.state is UploadState.DELETED) == (end != "stays")
        with catalog.view() as view:
            assert view.version("never") is None

    def test_a_copy_of_what_waits_is_one_of_what_it_became(self, catalog: Catalog) -> None:
        [upload] = accepted(catalog, new("a"))
        with catalog.change() as change:
            version = change.stage(document("a", "x"), collection="c")
            change.serve(version)
            assert change.advance(replace(upload, state=UploadState.READY, version=version))
        [copy] = accepted(catalog, replace(new("b", collection="d"), replaces=upload.number))
        assert copy.state is UploadState.WAITING
        deleted(catalog, "a")
        [late] = accepted(catalog, replace(new("c", collection="d"), replaces=upload.number))
        assert late.state is UploadState.DELETED

    def test_what_does_not_serve_is_told_once_by_the_upload_that_counts(self, catalog: Catalog) -> None:
        put(catalog, document("serves", "x"), collection="c")
        ends = {"failed": UploadState.FAILED, "cancelled": UploadState.CANCELLED, "gone": UploadState.DELETED}
        for name, state in ends.items():
            [upload] = accepted(catalog, new(name))
            assert advanced(catalog, upload, state=state)
        accepted(catalog, new("serves"), new("again"), new("", file="a.txt"))
        accepted(catalog, new("again"), new("far", collection="d"))
        with catalog.view() as view:
            assert sorted(each.document for each in view.unready("c")) == ["again", "cancelled", "failed"]
            assert sorted(each.document for each in view.unready()) == ["again", "cancelled", "failed", "far"]


class TestSqliteUnready(Sqlite, UnreadyContract):
    pass
