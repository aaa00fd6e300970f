"""The thread that works on all tenants' uploads: what fails for one of them, or for once, does not end it."""

from __future__ import annotations

import errno
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from retriever.catalog.view import CatalogView
from retriever.documents import Draft, chunk_id
from retriever.errors import CatalogError
from retriever.library import Library
from retriever.upload_types import QueuedUpload
from service.access.principal import Role
from service.documents import chunk_capture, ingest, lines
from service.documents.drafts import upload_of
from service.truth.control import Quota
from store.blob import Blob
from store.key import CacheKey
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


def test_a_quota_holds_for_what_comes_out_of_a_file_and_of_a_text(running: Demo) -> None:
    """One that exceeds it fails for itself, beside others; what replaces as much does not."""
    counts = good(running.client.get("/v1/stats"))
    long = " ".join(f"Kelo {number} lives in house {number} of Sunel." for number in range(300))
    told = "the quota of tenant 'default' is {} {}, this would be more: delete some, or have the quota raised"

    def ended(**sent: Any) -> list[tuple[str, str]]:  # noqa: ANN401
        job = good(running.client.post("/v1/documents", **sent))["job_id"]
        items = finished(running.client, job)["items"]
        return [(each["state"], each["detail"]) for each in items]

    try:
        most = counts["documents"] + 2
        running.core.control.set_quota("default", Quota(most, None))
        for count, states in ((3, [("failed", told.format(most, "documents"))]), (2, [("ready", "")] * 3)):
            lines = "\n".join(json.dumps({"id": f"line-{at}", "text": f"{NEW} {at}"}) for at in range(count))
            assert ended(files={"files": ("x.jsonl", lines)}) == states
        most = counts["chunks"] + 4
        running.core.control.set_quota("default", Quota(None, most))
        documents = [{"id": "long", "text": long}, {"id": "line-0", "text": f"{NEW} again"}, {"id": "a", "text": NEW}]
        assert ended(json={"documents": documents}) == [
            ("failed", told.format(most, "chunks")),
            ("ready", ""),
            ("ready", ""),
        ]
        assert good(running.client.get("/v1/stats"))["chunks"] <= most
    finally:
        running.core.control.set_quota("default", Quota())
        for name in ("line-0", "line-1", "a"):
            running.client.delete(f"/v1/documents/{name}")


def test_of_what_a_file_has_that_cannot_be_read_the_first_is_told_and_how_much_there_is(running: Demo) -> None:
    lines = "\n".join(['{"id": "bad"}'] * 1030 + [json.dumps({"id": "good-line", "text": NEW})])
    job = good(running.client.post("/v1/documents", files={"files": ("x.jsonl", lines)}))["job_id"]
    file, line = finished(running.client, job)["items"]
    assert (file["state"], line["document"], line["state"]) == ("ready", "good-line", "ready")
    assert re.findall(r"x\.jsonl:(\d+): ", file["detail"]) == [str(number) for number in range(1, 21)]
    assert file["detail"].endswith("; and 1,010 more")
    running.forget("good-line")


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


LARGE = "".join(f"Kelo {number} lives in house {number} of Sunel, and keeps a heron. " for number in range(1500))


@pytest.mark.parametrize("tenant", ["default", "other"])
def test_a_small_upload_is_done_while_a_large_one_has_chunks_left(running: Demo, tenant: str) -> None:
    """Of the same tenant and of another, while the large one does not come on, and while it does."""
    held, core, others = Gate(), running.core, {chunk_id(NEW), *running.chunks}

    def fault(name: str, what: object) -> None:
        if name == "put" and cast(Blob, what).head.key.chunk not in others:
            held.pass_through()

    wait_for(lambda: core.ingest._lines.is_idle, "what was begun before is over")
    with client_of(running.inside.base_url, core.control.create_key(tenant, Role.ADMIN)[1]) as client:
        with running.store.failing(fault):
            large = running.upload("large", LARGE)
            wait_for(lambda: good(running.client.get(f"/v1/jobs/{large}"))["chunks"] > 100, "it is cut")
            assert held.reached.wait(serving.WAIT_S)
            put_in(client, [{"id": "new", "text": NEW}])
            held.opened.set()
        put_in(client, [{"id": "newer", "text": f"{NEW} It is late."}])
        left = good(running.client.get(f"/v1/jobs/{large}"))
        assert left["status"] == "running" and left["stored"] < left["chunks"]
        assert not running.client.get("/v1/documents/large").is_success
        running.forget("large")
        for name in ("new", "newer"):
            assert good(client.delete(f"/v1/documents/{name}"))["done"]


def test_of_more_large_uploads_than_threads_all_go_on(running: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LARGE", 1)
    monkeypatch.setattr(ingest, "SLICE_S", 0.0)
    monkeypatch.setattr(chunk_capture, "BATCH_CHUNKS", 8)
    seen, jobs = list[CacheKey](), list[tuple[httpx.Client, str]]()

    def note(name: str, what: object) -> None:
        if name == "put":
            seen.append(cast(Blob, what).head.key)

    with running.store.failing(note), ExitStack() as stack:
        for tenant in ("one", "two"):
            key = running.core.control.create_key(tenant, Role.WRITE)[1]
            client = stack.enter_context(client_of(running.inside.base_url, key))
            body = {"documents": [{"id": "large", "text": LARGE}]}
            jobs.append((client, good(client.post("/v1/documents", json=body))["job_id"]))
        wait_for(lambda: len(list(groupby(key.tenant for key in seen))) > 4, "they take turns")
        for client, job in jobs:
            assert good(client.get(f"/v1/jobs/{job}"))["status"] == "running"
            assert good(client.delete("/v1/documents/large"))["done"]
    assert len(seen) == len({*seen}), "a chunk was computed twice"


def test_what_waits_of_a_tenant_is_bounded(tmp_path: Path) -> None:
    held = Gate()

    def fault(name: str, what: object) -> None:
        if name == "epoch":
            held.pass_through()

    with demo(tmp_path, max_body_bytes=4096) as running, ExitStack() as stack:
        stack.callback(held.opened.set)
        stack.enter_context(running.store.failing(fault))
        post = partial(running.client.post, "/v1/documents")
        bodies = [{"documents": [{"id": f"n{at}", "text": f"{NEW} {at} " * 60}]} for at in range(6)]
        jobs = [good(post(json=body))["job_id"] for body in bodies[:4]]
        refused = post(json=bodies[4])
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "10")
        assert "more than 0 MiB" in refused.json()["detail"] and "or cancel a job" in refused.json()["detail"]
        held.opened.set()
        for job in jobs:
            assert finished(running.client, job)["status"] == "done"
        put_in(running.client, bodies[4]["documents"])


def test_an_upload_that_comes_while_it_finds_nothing_to_do_is_not_overheard(
    running: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[str] = []
    once = threading.Lock()  # several threads look for work
    live = CatalogView.live

    def live_and_late(view: CatalogView, limit: int, **which: Any) -> list[QueuedUpload]:  # noqa: ANN401
        found = live(view, limit, **which)
        if not found and "most" in which and once.acquire(blocking=False):
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
    chunks = [{"text": f"{number} {NEW}"} for number in range(8)]
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
            wait_for(lambda: running.core.ingest._lines.closing, "it is told to stop")
            held.opened.set()
            ends.join(serving.WAIT_S)
        assert (len(computed), good(running.client.get(f"/v1/jobs/{job}"))["status"]) == (1, "running")
    with demo(tmp_path) as running:
        running.check_ready(job, "long")
