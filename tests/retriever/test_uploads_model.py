"""The catalog of `test_catalog_model` under random changes once more, with uploads and sweeps among them."""

import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from retriever.catalog.change import CatalogChange
from retriever.documents import Document
from retriever.types import Collection
from retriever.upload_types import NewUpload, QueuedUpload, UploadState
from tests.retriever import test_catalog_model
from tests.retriever.test_catalog_model import COLLECTIONS, NAMES, Changes, Model, Version, told

JOBS = ("j", "k")
ENDS = (UploadState.READY, UploadState.FAILED)

new = st.builds(
    NewUpload,
    st.sampled_from([*NAMES, "", ""]),
    test_catalog_model.collections,
    name=st.just("f"),
    content=st.binary(max_size=3),
)


@dataclass
class Kept:
    job: str
    origin: int
    put: NewUpload
    state: UploadState = UploadState.WAITING
    version: int | None = None


@dataclass
class Uploads(Model):
    """What a catalog is to hold, with its uploads."""

    uploads: dict[int, Kept] = field(default_factory=dict)
    jobs: list[str] = field(default_factory=list)
    swept: int = 0
    deletions: dict[str, int] = field(default_factory=dict)

    def live(self) -> dict[int, Kept]:
        return {number: each for number, each in self.uploads.items() if each.state.is_live}

    def end(self, ended: dict[int, Kept], state: UploadState) -> None:
        for each in ended.values():
            each.state = state
            if state is not UploadState.READY:
                self.let_go(each.version)
                each.version = None

    def let_go(self, version: int | None) -> None:
        if version in self.staged:
            self.removal([self.staged.pop(version)])

    def accept(self, number: int, kept: Kept) -> None:
        """A document's uploads in the order of their origins: the last that is live or ready counts.

        A deletion counts among them where a file was live.
        """
        name = kept.put.document
        same = {other: each for other, each in self.uploads.items() if name and each.put.document == name}
        is_late = any(each.origin > kept.origin for each in same.values() if each.state.is_live or _is_ready(each))
        self.uploads[number] = kept
        if is_late:
            kept.state = UploadState.SUPERSEDED
        elif kept.origin != number and name and self.deletions.get(name, 0) >= kept.origin:
            kept.state = UploadState.DELETED
        else:
            self.end({other: each for other, each in same.items() if each.state.is_live}, UploadState.SUPERSEDED)

    def delete(self, fits: set[tuple[str, str]]) -> tuple[set[str], set[str]]:
        removal = super().delete(fits)
        ended = {n: each for n, each in self.live().items() if (each.put.document, each.put.collection) in fits}
        self.end(ended, UploadState.DELETED)
        return removal


def _is_ready(kept: Kept) -> bool:
    return kept.state is UploadState.READY


class UploadChanges(Changes):
    def __init__(self) -> None:
        super().__init__()
        self.model = self.uploads = Uploads()

    def pick(self, data: st.DataObject) -> QueuedUpload:
        """Any, live or not."""
        with self.catalog.view() as view:
            found = [each for job in JOBS for each in view.uploads(job, limit=1000)]
        return data.draw(st.sampled_from(found))

    @rule(names=st.lists(st.sampled_from(NAMES), max_size=3))
    def delete(self, names: list[str]) -> None:
        files = [number for number, each in self.uploads.live().items() if not each.put.document]
        self.uploads.deletions |= dict.fromkeys(names, max(files, default=0))
        with self.catalog.change() as change:
            removal = change.delete(names)
        assert told(removal) == self.uploads.delete({(name, each) for name in names for each in COLLECTIONS})

    @rule(name=test_catalog_model.collections)
    def delete_collection(self, name: str) -> None:
        with self.catalog.change() as change:
            change.put_collection(Collection(name, {"size": 1}))
            removal = change.delete_collection(name)
        assert told(removal) == self.uploads.delete({(each, name) for each in (*NAMES, "")})

    @rule(job=st.sampled_from(JOBS), uploads=st.lists(new, max_size=3))
    def accept(self, job: str, uploads: list[NewUpload]) -> None:
        with self.catalog.change() as change:
            found = change.accept(job, uploads)
        for upload, each in zip(found, uploads, strict=True):
            self.uploads.accept(upload.number, Kept(job, upload.number, each))
        if job not in self.uploads.jobs:
            self.uploads.jobs.append(job)
        assert [each.state for each in found] == [self.uploads.uploads[each.number].state for each in found]

    @rule(data=st.data(), uploads=st.lists(new, max_size=3))
    @precondition(lambda self: self.uploads.uploads)
    def expand(self, data: st.DataObject, uploads: list[NewUpload]) -> None:
        file = self.pick(data)
        kept = self.uploads.uploads[file.number]
        with self.catalog.change() as change:
            assert change.expand(file.number, uploads) == kept.state.is_live
        if kept.state.is_live:
            self.uploads.end({file.number: kept}, UploadState.READY)
            self.uploads.let_go(kept.version)
            kept.version = None
            with self.catalog.view() as view:
                known, found = max(self.uploads.uploads), view.uploads(file.job, limit=1000)
            after = [each for each in found if each.number > known]
            for upload, each in zip(after, uploads, strict=True):
                self.uploads.accept(upload.number, Kept(file.job, kept.origin, each))

    @rule(data=st.data(), document=test_catalog_model.documents)
    @precondition(lambda self: self.uploads.uploads)
    def compute(self, data: st.DataObject, document: Document) -> None:
        upload = self.pick(data)
        kept, name = self.uploads.uploads[upload.number], upload.document or "a"
        staged = Version(replace(document, id=name), upload.collection)
        with self.catalog.change() as change:
            version = change.stage(staged.document, collection=upload.collection)
            is_live = change.advance(replace(upload, state=UploadState.COMPUTING, version=version, chunks=2))
        assert is_live == kept.state.is_live
        self.uploads.staged[version] = staged
        if is_live:
            self.uploads.let_go(kept.version)
            kept.state, kept.version = UploadState.COMPUTING, version

    @rule(data=st.data(), state=st.sampled_from(ENDS))
    @precondition(lambda self: self.uploads.uploads)
    def finish(self, data: st.DataObject, state: UploadState) -> None:
        upload = self.pick(data)
        kept = self.uploads.uploads[upload.number]
        with self.catalog.change() as change:
            is_live = change.advance(replace(upload, state=state))
            if is_live and state is UploadState.READY and kept.version in self.uploads.staged:
                assert told(change.serve(kept.version)) == self.uploads.serve(kept.version)
        assert is_live == kept.state.is_live
        if is_live:
            self.uploads.end({upload.number: kept}, state)

    @rule(job=st.sampled_from(JOBS))
    def cancel(self, job: str) -> None:
        live = {number: each for number, each in self.uploads.live().items() if each.job == job}
        with self.catalog.change() as change:
            assert change.cancel(job) == len(live)
        self.uploads.end(live, UploadState.CANCELLED)

    @rule()
    def forget(self) -> None:
        live = {each.job for each in self.uploads.live().values()}
        over = [job for job in self.uploads.jobs if job not in live]
        with self.catalog.change() as change:
            assert change.forget_uploads(time.time() + 1) == len(over)
        self.uploads.jobs = [job for job in self.uploads.jobs if job in live]
        self.uploads.uploads = {number: each for number, each in self.uploads.uploads.items() if each.job in live}

    @rule(data=st.data())
    def sweep(self, data: st.DataObject) -> None:
        with self.catalog.view() as view:
            rows = [row for row, _ in view.unswept(1000)] or [view.state().removed]
        row = data.draw(st.sampled_from(rows))
        with self.catalog.change() as change:
            change.swept(row)
        self.uploads.swept = max(row, self.uploads.swept)

    @rule(job=st.sampled_from(JOBS), uploads=st.lists(new, max_size=3))
    def fail_to_accept(self, job: str, uploads: list[NewUpload]) -> None:
        def failing(change: CatalogChange) -> None:
            change.accept(job, uploads)
            change.cancel(job)
            change.swept(1 << 40)
            raise ZeroDivisionError

        with suppress(ZeroDivisionError), self.catalog.change() as change:
            failing(change)

    @invariant()
    def uploads_are_those_of_the_model(self) -> None:
        kept = self.uploads.uploads
        with self.catalog.view() as view:
            found = {each.number: each for job in JOBS for each in view.uploads(job, limit=1000)}
            assert found.keys() == kept.keys()
            for number, each in kept.items():
                assert (found[number].state, found[number].version) == (each.state, each.version)
                assert view.content(number) == (each.put.content if each.state.is_live else None)
            assert view.live(1000) == [found[number] for number in sorted(self.uploads.live())]
            assert [job.id for job in view.jobs()] == self.uploads.jobs[::-1]
            for name in NAMES:
                same = {(each.origin, n): n for n, each in kept.items() if each.put.document == name}
                assert view.upload_of(name) == (found[same[max(same)]] if same else None)

    @invariant()
    def what_went_is_told_until_it_is_swept(self) -> None:
        uses = self.uploads.uses()
        with closing(sqlite3.connect(self.path)) as connection:
            removed = connection.execute("SELECT row, id FROM removed ORDER BY row").fetchall()
            assert connection.execute("SELECT count(*) FROM contents").fetchone() == (len(self.uploads.live()),)
        with self.catalog.view() as view:
            assert view.unswept(10_000) == [
                (row, chunk) for row, chunk in removed if row > self.uploads.swept and chunk not in uses
            ]
            counts = view.counts()
            assert (counts.documents, counts.chunks) == (len(self.uploads.serving), len(uses))
            assert counts.passages == sum(len(each.chunks) for each in self.uploads.serving.values())
            assert view.chunk_ids(1000) == sorted(uses)


@pytest.mark.parametrize(("examples", "steps"), [(20, 25), pytest.param(200, 60, marks=pytest.mark.long)])
def test_a_catalog_holds_the_uploads_that_its_changes_say(examples: int, steps: int) -> None:
    length = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    run_state_machine_as_test(UploadChanges, settings=length)
