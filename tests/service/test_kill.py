"""A service that is killed at random instants, or told to stop while it is busy: what it acknowledged is there."""

from __future__ import annotations

import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import cast

import httpx
import pytest

from service.access.control import Control
from service.demo import PASSAGES, QUESTIONS
from store.key import Scope
from store.scrub import verify
from store.url import open_store
from tests.service import serving
from tests.service.serving import Json, Service, events_of, finished, good, put_in, wait_for

ROOT = Path(__file__).resolve().parents[2]
SEED = 6
NAMES = 9
FIXED = [{"id": f"fixed {at}", "title": each.title, "text": each.text} for at, each in enumerate(PASSAGES)]
BLENDED: Json = {"policy": "hybrid", "ratio": 1.0}  # equals full, whatever is stored
AS_TEXT: Json = {"policy": "full"}
LONG: Json = {"type": "object", "properties": {"a": {"type": "string", "minLength": 400}}, "required": ["a"]}


@dataclass(slots=True)
class Process:
    """What a `Service` needs of one. Its parent tells when it ended."""

    pid: int
    parent: subprocess.Popen[bytes]
    returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._ended(timeout)
        assert status is not None, "it does not end"
        return status

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        assert self.parent.stdout is not None
        if self.returncode is None and select.select([self.parent.stdout], [], [], timeout)[0]:
            self.returncode = int(self.parent.stdout.readline())
        return self.returncode


@dataclass(slots=True)
class Nursery:
    """One process with the libraries, from which the others are forked, one after the other."""

    parent: subprocess.Popen[bytes]

    def begin(self, *arguments: str, environment: Json, output: Path) -> Process:
        assert self.parent.stdin is not None
        assert self.parent.stdout is not None
        self.parent.stdin.write(json.dumps([arguments, environment, str(output)]).encode() + b"\n")
        self.parent.stdin.flush()
        return Process(int(self.parent.stdout.readline()), self.parent)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    few = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-m", "tests.service.kill_child"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, bufsize=0, env={**os.environ, **few}) as parent:
        yield Nursery(parent)


class Forked(Service):
    """A service that starts in no time."""

    def __init__(self, folder: Path, nursery: Nursery) -> None:
        super().__init__(folder, dtype="float32", device="cpu", codec="lossless", chunk_tokens=16)
        self.folder, self._nursery = folder, nursery
        self.store = f"lmdb://{folder}/store"

    def start(self, *, ready: bool = True) -> None:
        assert self.process is None, "it runs"
        process = self._nursery.begin("serve", environment=self._environment(), output=self.log)
        self.process = cast("subprocess.Popen[bytes]", process)
        if ready:
            self.wait_ready()

    def verify(self) -> Json:
        """What the command `kvweave verify` says."""
        output = self.folder / "verified.json"
        output.unlink(missing_ok=True)
        process = self._nursery.begin("verify", "--json", environment=self._environment(), output=output)
        assert process.wait(serving.WAIT_S) == 0
        return json.loads(output.read_text())


@pytest.fixture
def service(nursery: Nursery, tmp_path: Path) -> Iterator[Forked]:
    service = Forked(tmp_path, nursery)
    try:
        yield service
    finally:
        if service.process is not None:
            service.kill()


@dataclass(slots=True)
class State:
    """Of each document the texts that it may have now: one, or two where no answer came. None: it is not there."""

    texts: dict[str, set[str | None]] = field(default_factory=dict[str, "set[str | None]"])
    jobs: list[str] = field(default_factory=list[str])

    def asks(self, name: str, text: str | None) -> None:
        self.texts[name] = {*self.texts.get(name, {None}), text}

    def hears(self, name: str, text: str | None) -> None:
        self.texts[name] = {text}


def written(chance: Random) -> str:
    """A document of several chunks, some of which others have, too."""
    sentences = [f"{who} lives in {chance.choice('BCK')}{chance.randint(1, 9)}." for who in ("Halio", "Sunel", "Kelo")]
    return " ".join(chance.choice(sentences) for _ in range(chance.randint(1, 24))) + f" It was day {chance.random()}."


def change(client: httpx.Client, state: State, chance: Random) -> bool:
    """Put documents in or replace them, one or several at once, or delete one; False where no answer came."""
    if chance.random() < 0.3:
        return change_several(client, state, chance)
    name, text = f"d{chance.randrange(NAMES)}", None if chance.random() < 0.2 else written(chance)
    state.asks(name, text)
    try:
        if text is None:
            answer = client.delete(f"/v1/documents/{name}")
            assert answer.status_code in (200, 404), answer.text
        else:
            answer = client.put(f"/v1/documents/{name}", json={"text": text})
            assert answer.status_code == 202, answer.text
            state.jobs.append(answer.json()["job_id"])
    except httpx.TransportError:
        return False
    state.hears(name, text)
    return True


def change_several(client: httpx.Client, state: State, chance: Random) -> bool:
    texts = {f"d{number}": written(chance) for number in chance.sample(range(NAMES), 5)}
    for name, text in texts.items():
        state.asks(name, text)
    try:
        body = {"documents": [{"id": name, "text": text} for name, text in texts.items()]}
        state.jobs.append(good(client.post("/v1/documents", json=body))["job_id"])
    except httpx.TransportError:
        return False
    for name, text in texts.items():
        state.hears(name, text)
    return True


def ask(client: httpx.Client, chunks: Sequence[str], blend: Json) -> str:
    body = {"question": QUESTIONS[2], "chunk_ids": chunks, "blend": blend, "sampling": {"max_tokens": 16}}
    return good(client.post("/v1/query", json=body))["answer"]


@contextmanager
def asking(service: Service, chunks: Sequence[str], wanted: str) -> Generator[None]:
    """Somebody asks all the time, until the service is gone."""
    found: list[str] = []

    def go_on() -> None:
        with service.client() as client:
            try:
                while True:
                    found.append(ask(client, chunks, BLENDED))
            except httpx.TransportError:
                return

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        thread.join(serving.WAIT_S)
    assert set(found) <= {wanted}


def chunks_of(client: httpx.Client, document: str) -> list[Json]:
    return good(client.get(f"/v1/documents/{document}/chunks", params={"limit": 1000}))["chunks"]


def check(service: Forked, state: State) -> None:
    """Every document that was acknowledged is ready, stored whole, and answers as its text does."""
    with service.client() as client:
        put_in(client, [{"id": "last", "text": "Nothing else was noted."}])  # what comes after it sweeps
        for job in state.jobs:
            assert finished(client, job)["status"] == "done"
        state.jobs.clear()
        for name, texts in state.texts.items():
            found = client.get(f"/v1/documents/{name}")
            parts = chunks_of(client, name) if found.is_success else []
            text = "".join(each["text"] for each in parts) if found.is_success else None
            assert text in texts, f"{name} is {text!r}"
            assert {each["state"] for each in parts} <= {"stored"}
            state.texts[name] = {text}
        named = [name for name, texts in state.texts.items() if texts != {None}]
        for name in named[:3]:
            chunks = list(dict.fromkeys(each["chunk_id"] for each in chunks_of(client, name)))
            assert ask(client, chunks, BLENDED) == ask(client, chunks, AS_TEXT)
    check_files(service)


def waiting(service: Forked) -> list[int]:
    """Numbers of uploads that are accepted, and not done."""
    with closing(sqlite3.connect(service.data / "tenants/default/catalog.sqlite")) as catalog:
        return [number for (number,) in catalog.execute("SELECT upload FROM contents")]


def check_files(service: Forked) -> None:
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


def kill_often(service: Forked, times: int) -> None:
    """Each start goes on where the one before was killed; some are killed before they are ready."""
    chance, state, interrupted = Random(SEED), State(), 0
    for _ in range(1 + times // 5):
        service.start(ready=False)
        threading.Event().wait(chance.random() / 2)  # chooses the instant, nothing waits for it
        service.kill()
    service.start()
    with service.client() as client:
        put_in(client, FIXED)
        fixed = [each["chunk_id"] for each in (chunks_of(client, str(each["id"]))[0] for each in FIXED)]
        wanted = ask(client, fixed, AS_TEXT)
    for _ in range(times):
        with asking(service, fixed, wanted), service.client() as client:
            for _ in range(chance.choice([1, 2, chance.randrange(12)])):
                change(client, state, chance)
            late = threading.Timer(chance.random() / 10, service.kill)
            late.start()
            while change(client, state, chance):
                pass
            late.join()
        interrupted += len(waiting(service)) > 0
        service.start()
        check(service, state)
    assert sum(texts != {None} for texts in state.texts.values()) > 3
    assert interrupted, "it was never killed while it had something to do"
    assert service.terminate() == 0
    assert service.verify()["bad"] == []


def test_a_service_that_is_killed_loses_nothing_that_it_acknowledged(service: Forked) -> None:
    kill_often(service, 6)


@pytest.mark.long
def test_a_service_that_is_killed_30_times_loses_nothing_that_it_acknowledged(service: Forked) -> None:
    kill_often(service, 30)


def test_a_first_start_that_is_killed_leaves_a_key_that_works(service: Forked) -> None:
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


def test_a_service_that_is_told_to_stop_finishes_what_runs_and_goes_on_later(service: Forked) -> None:
    service.start()
    sampling = {"max_tokens": 400, "response_format": {"type": "json_schema", "json_schema": {"schema": LONG}}}
    with service.client() as client, ThreadPoolExecutor() as pool:
        put_in(client, FIXED)
        body = {"question": QUESTIONS[0], "blend": BLENDED, "sampling": sampling}
        wanted = good(client.post("/v1/query", json=body))["answer"]
        begun = [threading.Event() for _ in range(3)]
        heard = [pool.submit(hear, client, body, each) for each in begun]
        assert all(each.wait(serving.WAIT_S) for each in begun)
        chunks = [{"text": f"Number {at}. Kelo lives in C{at}."} for at in range(150)]
        job = good(client.post("/v1/documents", json={"documents": [{"id": "long", "chunks": chunks}]}))["job_id"]
        os.kill(service.pid, signal.SIGTERM)
        wait_for(lambda: is_refused(service), "new connections are refused", log=service.log)
        assert [each.result() for each in heard] == [Heard(wanted, "done")] * 3
    assert service.terminate() == 0
    assert "Traceback" not in service.text()
    service.start()
    with service.client() as client:
        ended = finished(client, job)
        assert (ended["status"], ended["stored"]) == ("done", len(chunks))
        assert good(client.post("/v1/query", json=body))["answer"] == wanted
    check_files(service)


def is_refused(service: Service) -> bool:
    try:
        httpx.get(f"{service.base_url}/healthz", trust_env=False)
    except httpx.ConnectError:
        return True
    return False
