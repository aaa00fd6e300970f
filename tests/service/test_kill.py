"""A service that is killed at random instants, or told to stop while it is busy: what it acknowledged is there."""

from __future__ import annotations

import logging
import os
import re
import signal
import sqlite3
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import httpx
import pytest

from service.truth.control import Control
from store.key import Scope
from store.scrub import verify
from store.url import open_store
from tests.service.acknowledged import REMEDIES, Acknowledged, change, marked
from tests.service.checkpoints import IS_HYBRID
from tests.service.killed import Killed
from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import WAIT_S, Json, Service, events_of, good, put_in, wait_for
from tests.service.small_disk import SmallDisk, small_disk

log = logging.getLogger(__name__)

SEED = 6
FIXED = [{"id": f"fixed {at}", "title": each.title, "text": each.text} for at, each in enumerate(PASSAGES)]
BLENDED: Json = {"policy": "hybrid", "ratio": 1.0}  # equals full, whatever is stored
AS_TEXT: Json = {"policy": "full"}
LONG: Json = {"type": "object", "properties": {"a": {"type": "string", "minLength": 200}}, "required": ["a"]}
MARK = re.compile(rb"(\d{4})mark")  # its end: an index writes what is alike at the beginning of two words once
_CUT = re.compile(rb"(?<![0-9a-f])[0-9a-f]{32}(?=\d{1,3}mark)")  # a chunk's id before a text that was cut within a mark


@contextmanager
def ending(service: Killed) -> Generator[Killed]:
    try:
        yield service
    finally:
        if service.process is not None:
            service.kill()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Killed]:
    with ending(Killed(tmp_path, log=tmp_path / "service.log")) as service:
        yield service


def ask(client: httpx.Client, blend: Json, **sources: object) -> str:
    body = {"question": QUESTIONS[2], "blend": blend, "sampling": {"max_tokens": 16}, **sources}
    return good(client.post("/v1/query", json=body))["answer"]


def said_next(client: httpx.Client, said: Sequence[Json], **more: object) -> str:
    body = {"model": "default", "messages": said, "max_tokens": 16, "temperature": 0, **more}
    return good(client.post("/v1/chat/completions", json=body))["choices"][0]["message"]["content"]


def recognised(client: httpx.Client, text: str) -> set[str]:
    """The chunks that are known in a chat which has the text in a turn."""
    body = {"model": "default", "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    answer = good(client.post("/v1/chat/completions", json=body))
    return {each["chunk_id"] for each in answer["kvweave"]["report"]["chunks"]}


@contextmanager
def asking(service: Killed, state: Acknowledged, chunks: Sequence[str], *, chance: Random) -> Generator[None]:
    """Somebody asks all the time, with chunks, with texts that come along, in chats, and in a session, until the
    service is gone.
    """
    answers: list[tuple[str, str]] = []
    said: list[Json] = []

    def go_on() -> None:
        with service.client() as client:
            try:
                wanted = ask(client, AS_TEXT, chunk_ids=chunks)
                while True:
                    inline = [marked(chance, f"Kelo lives in K{chance.randint(1, 9)}."), str(FIXED[2]["text"])]
                    state.asked += inline[:1]
                    loose = [{"text": text} for text in inline]
                    answers.append((ask(client, BLENDED, chunk_ids=chunks), wanted))
                    answers.append((ask(client, BLENDED, documents=loose), ask(client, AS_TEXT, documents=loose)))
                    assert recognised(client, " ".join(inline))
                    said[:] = [*(said if len(said) < 8 else ()), {"role": "user", "content": " ".join(inline)}]
                    further = said_next(client, said, blend=BLENDED, session="talk")
                    answers.append((further, said_next(client, said, blend=AS_TEXT)))
                    said.append({"role": "assistant", "content": further})
            except httpx.TransportError:
                return

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(go_on)
        with ending(service):
            yield
        asked.result(WAIT_S)
    assert [each for each in answers if len(set(each)) > 1] == []


def chunks_of(client: httpx.Client, document: str) -> list[Json]:
    return good(client.get(f"/v1/documents/{document}/chunks", params={"limit": 1000}))["chunks"]


def is_done(client: httpx.Client, job: str) -> bool:
    """A job is forgotten days after its end, and the clock jumps by more."""
    answer = client.get(f"/v1/jobs/{job}")
    status = "done" if answer.status_code == 404 else good(answer)["status"]
    assert status in ("running", "done"), answer.text
    return status == "done"


def is_whole(client: httpx.Client, document: str) -> bool:
    return {each["state"] for each in chunks_of(client, document)} <= {"stored"}


def check(service: Killed, state: Acknowledged) -> None:
    """Every document that was acknowledged is ready, stored whole, and answers as its text does; no other is found."""
    with service.client() as client:
        put_in(client, [{"id": "last", "text": "Nothing else was noted."}])  # what comes after it sweeps
        wait_for(lambda: all(is_done(client, job) for job in state.jobs), "all jobs are done", log=service.log)
        state.jobs.clear()
        for name, texts in state.texts.items():
            found = client.get(f"/v1/documents/{name}")
            parts = chunks_of(client, name) if found.is_success else []
            text = "".join(each["text"] for each in parts) if found.is_success else None
            assert text in texts, f"{name} is {text!r}"
            if found.is_success:  # what is behind another filler since is captured anew
                wait_for(partial(is_whole, client, name), f"{name} is stored whole", log=service.log)
            state.texts[name] = {text}
        named = [name for name, texts in state.texts.items() if texts != {None}]
        for name in named[:2]:
            chunks = list(dict.fromkeys(each["chunk_id"] for each in chunks_of(client, name)))
            assert ask(client, BLENDED, chunk_ids=chunks) == ask(client, AS_TEXT, chunk_ids=chunks)
        check_gone(client, state)
    living = {text for texts in state.texts.values() for text in texts if text}
    wait_for(lambda: marks_in(service) <= marks_of(living), "no file holds a text that is gone")
    check_files(service)


def check_gone(client: httpx.Client, state: Acknowledged) -> None:
    """What is not there any more is found by no search, in no chat, and by no id."""
    [*names] = (each["id"] for each in good(client.get("/v1/documents", params={"limit": 1000}))["documents"])
    assert {*names} <= {name for name, texts in state.texts.items() if texts != {None}} | {"last"} | FIXED_NAMES
    texts = {each["chunk_id"]: each["text"] for name in names for each in chunks_of(client, name)}
    gone = [text for text in state.asked if {text} not in state.texts.values()]
    for text in [*gone[:4], *gone[-4:]]:
        hits = good(client.post("/v1/search", json={"query": text, "top_k": 100}))["hits"]
        assert all(texts.get(hit["chunk_id"]) == hit["text"] for hit in hits)
        assert recognised(client, text) <= texts.keys()
    unknown = [*state.chunks - texts.keys()]
    if unknown:
        assert {*good(client.post("/v1/cache/lookup", json={"chunk_ids": unknown}))["unknown"]} == {*unknown}
    for name in [name for name in names if name in state.texts][:2]:
        last = chunks_of(client, name)[-1]
        hits = good(client.post("/v1/search", json={"query": last["text"], "top_k": 100}))["hits"]
        assert last["chunk_id"] in [hit["chunk_id"] for hit in hits]
    state.chunks, state.asked = {*texts}, []


FIXED_NAMES = {str(each["id"]) for each in FIXED}


def marks_of(texts: set[str]) -> set[bytes]:
    return {mark for text in texts for mark in MARK.findall(text.encode())}


def marks_in(service: Killed) -> set[bytes]:
    """What any file that it owns has, whatever the file is."""
    files = [service.log, *(file for name in ("data", "store", "spool") for file in (service.folder / name).rglob("*"))]
    marks: set[bytes] = set()
    for file in files:
        with suppress(FileNotFoundError):  # it was there a moment ago
            marks.update(MARK.findall(_CUT.sub(b"", file.read_bytes())) if file.is_file() else [])
    return marks


def waiting(service: Killed) -> list[int]:
    """Numbers of uploads that are accepted, and not done."""
    with closing(sqlite3.connect(service.data / "tenants/default/catalog.sqlite")) as catalog:
        return [number for (number,) in catalog.execute("SELECT upload FROM contents")]


def check_files(service: Killed) -> None:
    """Nothing waits, nothing is staged for nobody, and every blob is sound and some document's."""
    assert waiting(service) == []
    with closing(sqlite3.connect(service.data / "tenants/default/catalog.sqlite")) as catalog:
        assert catalog.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert catalog.execute("SELECT id FROM documents WHERE serving <> 1").fetchall() == []
        known = {chunk for (chunk,) in catalog.execute("SELECT id FROM chunks")}
    with open_store(service.store) as store:
        assert {entry.key.chunk for entry in store.entries(Scope("default"))} == known
        *_, (_, report) = verify(store)
        assert (report.bad, report.strays) == ([], [])


def run_and_kill(
    service: Killed, state: Acknowledged, chunks: Sequence[str], *, chance: Random, disk: SmallDisk | None
) -> bool:
    """Changes and questions until it is killed, on a disk that may fill up or break; whether it had work to do."""
    fault = chance.choice([None, "full", "full", "read-only", "read-only"]) if disk else None
    with asking(service, state, chunks, chance=Random(chance.random())), service.client() as client:
        for _ in range(chance.choice([1, 2, chance.randrange(1, 12)])):
            change(client, state, chance)
        if disk and fault:
            disk.fill() if fault == "full" else disk.remount("abort")
            for _ in range(chance.randrange(6)):
                change(client, state, chance)
            if fault == "full" and chance.random() < 0.5:
                disk.free()
        late = threading.Timer(chance.random() / 10, service.kill)
        late.start()
        while change(client, state, chance):
            pass
        late.join()
    if disk and fault:
        start_on(disk, fault, service)
        return True
    return len(waiting(service)) > 0


def start_on(disk: SmallDisk, fault: str, service: Killed) -> None:
    """A start on a full disk, or on one that may not be written, serves or says what to do; then the disk is mended."""
    if fault == "read-only":
        disk.unmount()
        disk.mount()
        disk.remount("ro")
    begin = len(service.text())
    try:
        service.start()
    except AssertionError:
        said = service.text()[begin:]
        assert service.process is None and "Traceback" not in said, said
        assert any(remedy in said for remedy in REMEDIES), said
    else:
        service.kill()
    if fault == "read-only":
        disk.remount("rw")
    disk.free()


def kill_often(service: Killed, times: int, *, disk: SmallDisk | None = None) -> None:
    """Each start goes on where the one before was killed; some are killed before they are ready."""
    chance, state, interrupted = Random(SEED), Acknowledged(), 0
    while service.kills < 1 + times // 6:
        service.start(ready=False)
        threading.Event().wait(chance.random() / 2)  # chooses the instant, nothing waits for it
        service.kill()
    service.start()
    with service.client() as client:
        put_in(client, FIXED)
        fixed = [each["chunk_id"] for each in (chunks_of(client, str(each["id"]))[0] for each in FIXED)]
    while service.kills < times or not interrupted:  # until it was killed while it had something to do
        for _ in range(chance.randint(1, 3)):
            interrupted += run_and_kill(service, state, fixed, chance=chance, disk=disk)
            service.start()
        check(service, state)
    assert state.acknowledged, "nothing was there to lose"
    assert service.terminate() == 0
    assert service.verify()["bad"] == []
    log.warning("%d kills, %d changes acknowledged, %d refused", service.kills, state.acknowledged, state.refused)


@pytest.mark.skipif(IS_HYBRID, reason="memory has room for all that the small hybrid's prompts take")
def test_rows_of_prompts_that_went_to_the_disk_are_gone_with_the_process(service: Killed) -> None:
    service.start()
    with service.client() as client:
        put_in(client, FIXED[:1])
        files = {*service.data.rglob("*")}
        for number in range(3):  # memory has no room for two of them
            text = f"{number}. " + 5 * "Kelo lives in K3, and nobody knows since when. "
            said_next(client, [{"role": "user", "content": text}])
        wait_for(service.has_nameless_files, "rows of a prompt are on the disk")
    service.kill()
    assert {*service.data.rglob("*")} <= files


@pytest.mark.parametrize("times", [3, pytest.param(100, marks=pytest.mark.long)])
def test_a_service_that_is_killed_loses_nothing_that_it_acknowledged(times: int, service: Killed) -> None:
    kill_often(service, times)


@pytest.mark.parametrize(("times", "block_bytes"), [(4, 4096), pytest.param(100, 1024, marks=pytest.mark.long)])
def test_a_service_on_a_disk_that_fills_and_breaks_loses_nothing(times: int, block_bytes: int, tmp_path: Path) -> None:
    with (
        small_disk(tmp_path, block_bytes=block_bytes) as disk,
        ending(Killed(disk.path, log=tmp_path / "service.log")) as service,
    ):
        kill_often(service, times, disk=disk)


def test_a_first_start_that_is_killed_leaves_a_key_that_works(service: Killed) -> None:
    def has_key() -> bool:
        return (service.data / "admin.key").exists() or (service.data / "admin.key.tmp").exists()

    service.start(ready=False)
    wait_for(has_key, "the key is being made", log=service.log)
    service.kill()
    service.start()
    with service.client() as client:
        assert good(client.get("/v1/stats"))["documents"] == 0
    assert service.terminate() == 0
    with closing(Control(service.data / "control.sqlite")) as control:
        assert len(control.keys()) == 1


@dataclass(frozen=True, slots=True)
class Heard:
    """A stream from its first token to its end."""

    text: str
    last: str


def hear(client: httpx.Client, body: Json, begun: threading.Event) -> Heard:
    """`begun` when the first token is there."""
    with client.stream("POST", "/v1/query", json={**body, "stream": True}) as response:
        events: list[tuple[str, Json]] = []
        for event in events_of(response):
            events.append(event)
            if event[0] == "token":
                begun.set()
    name, last = events[-1]
    return Heard(last.get("answer", ""), name)


def test_a_service_that_is_told_to_stop_finishes_what_runs_and_goes_on_later(service: Killed) -> None:
    service.start()
    sampling = {"max_tokens": 80, "response_format": {"type": "json_schema", "json_schema": {"schema": LONG}}}
    with service.client() as client, ThreadPoolExecutor() as pool:
        put_in(client, FIXED)
        body = {"question": QUESTIONS[0], "blend": BLENDED, "sampling": sampling}
        wanted = good(client.post("/v1/query", json=body))["answer"]
        begun = [threading.Event() for _ in range(3)]
        heard = [pool.submit(hear, client, body, each) for each in begun]
        assert all(each.wait(WAIT_S) for each in begun)
        chunks = [{"text": f"Number {at}. Kelo lives in C{at}."} for at in range(24)]
        job = good(client.post("/v1/documents", json={"documents": [{"id": "long", "chunks": chunks}]}))["job_id"]
        os.kill(service.pid, signal.SIGTERM)
        wait_for(lambda: is_refused(service), "new connections are refused", log=service.log)
        assert [each.result() for each in heard] == [Heard(wanted, "done")] * 3
    assert service.terminate() == 0
    assert "Traceback" not in service.text()
    service.start()
    with service.client() as client:
        wait_for(lambda: is_done(client, job), "the job is done", log=service.log)
        assert len(chunks_of(client, "long")) == len(chunks)
        assert {each["state"] for each in chunks_of(client, "long")} == {"stored"}
        assert good(client.post("/v1/query", json=body))["answer"] == wanted
    check_files(service)


def is_refused(service: Service) -> bool:
    try:
        httpx.get(f"{service.base_url}/healthz", trust_env=False)
    except httpx.ConnectError:
        return True
    except (httpx.ReadError, httpx.RemoteProtocolError):
        return False  # it waited to be accepted when the listener closed: the next one is refused
    return False
