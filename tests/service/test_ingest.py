"""The thread that works on all tenants' uploads: what fails for one of them, or for once, does not end it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from retriever.catalog.view import CatalogView
from retriever.documents import Draft
from retriever.errors import CatalogError
from retriever.library import Library
from retriever.upload_types import QueuedUpload
from service.documents import chunk_capture
from service.documents.drafts import upload_of
from service.truth.control import Quota
from tests.service import serving
from tests.service.demo_served import DOCUMENTS, NEW, Demo, demo
from tests.service.faulty import Gate
from tests.service.serving import client_of, finished, good, put_in, wait_for


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with demo(tmp_path_factory.mktemp("worker")) as running:
        yield running


def test_a_quota_holds_for_what_waits_too(running: Demo) -> None:
    """Many at once, none of which is ready yet; what replaces a document is no more than there was."""
    most = len(DOCUMENTS) + 3
    running.core.control.set_quota("default", Quota(most, None))
    names = [f"within-{number}" for number in range(8)]

    def put(name: str) -> httpx.Response:
        body = {"documents": [{"id": name, "text": f"{NEW} {name}"}]}
        with client_of(running.inside.base_url, running.inside.key) as client:
            return client.post("/v1/documents", json=body)

    try:
        with ThreadPoolExecutor(len(names)) as threads:
            answers = list(threads.map(put, names))
        assert sorted(each.status_code for each in answers) == [202] * 3 + [429] * 5
        refused = next(each for each in answers if each.status_code == 429)
        assert f"the quota of tenant 'default' is {most} documents" in refused.json()["detail"]
        assert put(str(DOCUMENTS[0]["id"])).status_code == 202
        for answer in answers:
            if answer.is_success:
                finished(running.client, answer.json()["job_id"])
        serve = [running.client.get(f"/v1/documents/{name}").is_success for name in names]
        assert serve == [each.is_success for each in answers]
    finally:
        running.core.control.set_quota("default", Quota())
        put_in(running.client, DOCUMENTS[:1])
        for name in names:
            running.client.delete(f"/v1/documents/{name}")


def test_an_index_that_cannot_be_saved_does_not_end_it(running: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Gate()

    def maintain(library: Library) -> None:
        tried.reached.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Library, "maintain", maintain)
    assert tried.reached.wait(serving.WAIT_S)
    running.check_ready(running.upload("new", NEW), "new")
    running.forget("new")


def test_a_tenant_without_a_catalog_holds_up_no_other(running: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    tenants, opened, tried = running.core.tenants, running.core.tenants.open, Gate()
    broken = running.core.tenants.open("broken")

    def open_or_fail(name: str) -> object:
        if name == "broken":
            tried.reached.set()
            raise CatalogError("it is damaged: restore it from a backup")
        return opened(name)

    monkeypatch.setattr(tenants, "open", open_or_fail)
    running.core.ingest.wake(broken.name)
    assert tried.reached.wait(serving.WAIT_S)
    running.check_ready(running.upload("new", NEW), "new")
    running.forget("new")


def test_an_upload_that_comes_while_it_finds_nothing_to_do_is_not_overheard(
    running: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[str] = []
    live = CatalogView.live

    def live_and_late(view: CatalogView, limit: int, *, but: Sequence[int] = ()) -> list[QueuedUpload]:
        found = live(view, limit, but=but)
        if not found and not jobs:
            late = upload_of(Draft(NEW, id="late"), "default")
            jobs.append(running.core.ingest.accept(running.core.tenants.open("default"), [late]))
        return found

    monkeypatch.setattr(CatalogView, "live", live_and_late)
    running.check_ready(running.upload("new", f"{NEW} It was early."), "new")
    wait_for(lambda: jobs, "the worker found nothing to do")
    running.check_ready(jobs[0], "late")
    for name in ("new", "late"):
        running.forget(name)


def test_it_leaves_a_long_document_to_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_capture, "BATCH_CHUNKS", 1)
    chunks = [{"text": f"{number} {NEW}"} for number in range(30)]
    held, computed = Gate(), list[int]()

    def fault(name: str, what: object) -> None:
        if name == "put":
            computed.append(1)
            held.pass_through()

    with demo(tmp_path) as running:
        with running.store.failing(fault):
            body = {"documents": [{"id": "long", "chunks": chunks}]}
            job = good(running.client.post("/v1/documents", json=body))["job_id"]
            assert held.reached.wait(serving.WAIT_S)
            ends = threading.Thread(target=running.core.ingest.close)
            ends.start()
            wait_for(lambda: running.core.ingest._closing, "it is told to stop")
            held.opened.set()
            ends.join(serving.WAIT_S)
        assert (len(computed), good(running.client.get(f"/v1/jobs/{job}"))["status"]) == (1, "running")
    with demo(tmp_path) as running:
        running.check_ready(job, "long")
