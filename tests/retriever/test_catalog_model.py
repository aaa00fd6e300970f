"""A catalog under random changes, uploads and sweeps among them, in each database."""

import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from retriever.catalog.change import CatalogChange
from retriever.catalog.view import CatalogView
from retriever.documents import Document
from retriever.postgres.database import PostgresDatabase
from retriever.upload_types import Job, NewUpload, QueuedUpload, UploadState
from tests.retriever import catalog_model
from tests.retriever.catalog_model import COLLECTIONS, NAMES, Changes, Model, Version, told
from tests.retriever.catalogs import CatalogTables, PostgresTables, SqliteTables
from tests.servers.postgres import PostgresServer

JOBS = ("j", "k")
ENDS = (UploadState.READY, UploadState.FAILED)
COUNTS = {"chunks": 4, "stored": 3, "over_budget": 2, "unsupported": 1}  # of each upload that computes

new = st.builds(
    NewUpload,
    st.sampled_from([*NAMES[:2], ""]),  # so few that they meet
    catalog_model.collections,
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
    is_counted: bool = False


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


def counted(told: QueuedUpload | Job) -> list[int]:
    return [getattr(told, name) for name in COUNTS]


class UploadChanges(Changes):
    def __init__(self, tables: CatalogTables, *, apart: int) -> None:
        super().__init__(tables, apart=apart)
        self.model = self.uploads = Uploads()
        self.last = 0  # number that was given

    def pick(self, data: st.DataObject) -> QueuedUpload:
        """Any, but mostly one that is live."""
        with self.catalog.view() as view:
            found = [each for job in JOBS for each in view.uploads(job, limit=1000)]
            return data.draw(st.sampled_from([*view.live(1000) * 3, *found]))

    @rule(names=st.lists(st.sampled_from(NAMES), max_size=3))
    def delete(self, names: list[str]) -> None:
        files = [number for number, each in self.uploads.live().items() if not each.put.document]
        self.uploads.deletions |= dict.fromkeys(names, max(files, default=0))
        with self.catalog.change() as change:
            removal = change.delete(names)
        assert told(removal) == self.uploads.delete({(name, each) for name in names for each in COLLECTIONS})

    @rule(job=st.sampled_from(JOBS), uploads=st.lists(new, max_size=3))
    def accept(self, job: str, uploads: list[NewUpload]) -> None:
        before = time.time()
        with self.catalog.change() as change:
            found = change.accept(job, uploads)
        for upload, each in zip(found, uploads, strict=True):
            assert before <= upload.created <= upload.updated <= time.time()
            self.uploads.accept(self.given(upload.number), Kept(job, upload.number, each))
        if job not in self.uploads.jobs:
            self.uploads.jobs.append(job)
        assert [each.state for each in found] == [self.uploads.uploads[each.number].state for each in found]

    def given(self, number: int) -> int:
        """A number is given once, though the upload that had it is forgotten."""
        assert number > self.last
        self.last = number
        return number

    @rule(data=st.data(), uploads=st.lists(new, min_size=1, max_size=3))
    @precondition(lambda self: self.uploads.uploads)
    def expand(self, data: st.DataObject, uploads: list[NewUpload]) -> None:
        file = self.pick(data)
        kept = self.uploads.uploads[file.number]
        with self.catalog.change() as change:
            assert change.expand(file.number, uploads) == kept.state.is_live
        if kept.state.is_live:
            self.uploads.end({file.number: kept}, UploadState.READY)
            self.uploads.let_go(kept.version)
            kept.version, kept.is_counted = None, False
            with self.catalog.view() as view:
                after = [each for each in view.uploads(file.job, limit=1000) if each.number > self.last]
            for upload, each in zip(after, uploads, strict=True):
                self.uploads.accept(self.given(upload.number), Kept(file.job, kept.origin, each))

    @rule(data=st.data(), document=catalog_model.documents)
    @precondition(lambda self: self.uploads.uploads)
    def compute(self, data: st.DataObject, document: Document) -> None:
        upload = self.pick(data)
        kept, name = self.uploads.uploads[upload.number], upload.document or "a"
        staged = Version(replace(document, id=name), upload.collection)
        with self.catalog.change() as change:
            version = change.stage(staged.document, collection=upload.collection)
            is_live = change.advance(replace(upload, state=UploadState.COMPUTING, version=version, **COUNTS))
        assert is_live == kept.state.is_live
        self.uploads.staged[version] = staged
        if is_live:
            self.uploads.let_go(kept.version)
            kept.state, kept.version, kept.is_counted = UploadState.COMPUTING, version, True

    @rule(data=st.data(), state=st.sampled_from(ENDS), serves_first=st.booleans())
    @precondition(lambda self: self.uploads.uploads)
    def finish(self, data: st.DataObject, state: UploadState, *, serves_first: bool) -> None:
        """Ends any upload, live or not. What is ready serves, from before it is told or from then on."""
        upload = self.pick(data)
        kept = self.uploads.uploads[upload.number]
        is_served = kept.state.is_live and state is UploadState.READY and kept.version in self.uploads.staged
        version = kept.version if is_served else None
        with self.catalog.change() as change:
            assert not change.advance(replace(upload, number=self.last + 1, state=state)), "there is none"
            if version is not None and serves_first:
                assert told(change.serve(version)) == self.uploads.serve(version)
            is_live = change.advance(replace(upload, state=state))
            if version is not None and not serves_first:
                assert told(change.serve(version)) == self.uploads.serve(version)
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
        with self.catalog.view() as view:
            earliest = min((job.updated for job in view.jobs()), default=0.0)
        with self.catalog.change() as change:
            assert change.forget_uploads(earliest) == 0
            assert change.forget_uploads(time.time() + 1) == len(over)
            assert change.forget_uploads(time.time() + 1) == 0
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

    def agrees(self) -> None:
        super().agrees()
        with self.catalog.view() as view:
            self.uploads_are_those_of_the_model(view)
            self.jobs_are_those_of_the_model(view)
            self.what_went_is_told_until_it_is_swept(view)

    def uploads_are_those_of_the_model(self, view: CatalogView) -> None:
        kept = self.uploads.uploads
        found = {each.number: each for job in JOBS for each in view.uploads(job, limit=1000)}
        assert found.keys() == kept.keys()
        for number, each in kept.items():
            upload, put = found[number], each.put
            assert (upload.state, upload.version, upload.job) == (each.state, each.version, each.job)
            assert (upload.document, upload.collection, upload.name) == (put.document, put.collection, put.name)
            assert counted(upload) == [each.is_counted * one for one in COUNTS.values()]
            assert view.content(number) == (put.content if each.state.is_live else None)
        live = [found[number] for number in sorted(self.uploads.live())]
        assert view.live(1000) == live and view.live(1) == live[:1]
        for name in NAMES:
            counting = {n: each for n, each in kept.items() if each.state is not UploadState.SUPERSEDED}
            same = {(each.origin, n): n for n, each in counting.items() if each.put.document == name}
            assert view.upload_of(name) == (found[same[max(same)]] if same else None)

    def jobs_are_those_of_the_model(self, view: CatalogView) -> None:
        jobs = view.jobs()
        assert [job.id for job in jobs] == self.uploads.jobs[::-1]
        assert view.jobs(limit=1) == jobs[:1] and view.jobs(after="unknown") == []
        assert [each for job in jobs for each in view.jobs(after=job.id, limit=1)] == jobs[1:]
        for job in jobs:
            own = [each for each in self.uploads.uploads.values() if each.job == job.id]
            assert job.states == Counter(each.state for each in own) and job == view.job(job.id)
            assert job.is_over == (not any(each.state.is_live for each in own))
            assert counted(job) == [sum(each.is_counted for each in own) * one for one in COUNTS.values()]
            uploads = view.uploads(job.id, limit=1000)
            assert job.updated == max([job.created, *(each.updated for each in uploads)])
            assert view.uploads(job.id, first=1, limit=2) == uploads[1:3]

    def what_went_is_told_until_it_is_swept(self, view: CatalogView) -> None:
        uses = self.uploads.uses()
        removed = self.tables.rows("SELECT row, id FROM removed ORDER BY row")
        assert self.tables.rows("SELECT count(*) FROM contents") == [(len(self.uploads.live()),)]
        wanted = [(row, chunk) for row, chunk in removed if row > self.uploads.swept and chunk not in uses]
        assert view.unswept(10_000) == wanted and view.unswept(1) == wanted[:1]
        counts = view.counts()
        assert (counts.documents, counts.chunks) == (len(self.uploads.serving), len(uses))
        assert counts.passages == sum(len(each.chunks) for each in self.uploads.serving.values())
        assert view.chunk_ids(1000) == sorted(uses) and view.chunk_ids(1) == sorted(uses)[:1]


@pytest.mark.parametrize(("examples", "steps"), [(30, 40), pytest.param(200, 60, marks=pytest.mark.long)])
def test_a_catalog_holds_what_its_changes_say(examples: int, steps: int) -> None:
    length = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    run_state_machine_as_test(lambda: UploadChanges(SqliteTables(), apart=4), settings=length)  # type: ignore[arg-type]


@pytest.mark.parametrize(("examples", "steps"), [(6, 30), pytest.param(100, 60, marks=pytest.mark.long)])
def test_a_catalog_in_postgresql_holds_what_its_changes_say(
    examples: int, steps: int, postgres: PostgresServer
) -> None:
    length, tenants = settings(max_examples=examples, stateful_step_count=steps, deadline=None), count()
    with closing(PostgresDatabase(postgres.database(), connections=4)) as database:

        def machine() -> UploadChanges:
            return UploadChanges(PostgresTables(database, f"t{next(tenants)}"), apart=6)

        run_state_machine_as_test(machine, settings=length)  # type: ignore[arg-type]
