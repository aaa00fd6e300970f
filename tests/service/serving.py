"""A running service for tests: as a process of its own, or in this process where a test must reach into it.

Its catalogs and keys are in a folder, or in PostgreSQL where `TEST_DATA` says `postgres`: the same tests run on both.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
import pytest

from service.app import composition
from service.app.core import Core
from service.application import application
from service.commands.serve import server_over
from service.settings import PREFIX, Settings
from service.telemetry.middleware import TelemetryMiddleware
from service.truth.databases import ADMIN_KEY
from store.blob_store import BlobStore
from tests.nursery import FEW, Nursery, nursing
from tests.servers.free_port import free_port
from tests.servers.postgres import PostgresServer, postgres_server
from tests.service.lent import application_over, lend_model

WAIT_S = 120  # for what a working service does at once
TICK_S = 0.02
KVWEAVE = (sys.executable, "-c", "from service.cli import main; main()")
FORKS = "tests.service.forks"

# What is chosen is not to depend on how quick this machine is, and nothing is fetched.
STEADY = {"reuse": "always", "embedder": "none"}

DATA = "TEST_DATA"

_servers = ExitStack()
_postgres: list[PostgresServer] = []
_databases: dict[Path, str] = {}
_nurseries: list[Nursery] = []

Json = dict[str, Any]
Kind = TypeVar("Kind")


class Service:
    """`kvweave serve` over a folder, on a port that stays the same when it is started again.

    `settings` are those of the service, by their names. The default store is LMDB in the folder.
    """

    def __init__(self, folder: Path, *, environment: Mapping[str, str] | None = None, **settings: object) -> None:
        self.data = folder / "data"
        self.log = folder / "service.log"
        self._port = free_port()
        self._more = dict(environment or {})
        self._settings: dict[str, object] = {
            "store": f"lmdb://{folder}/store",
            **STEADY,
            "data": data_of(self.data),
            **settings,
            "port": self._port,
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def key(self) -> str:
        """The admin key that the first start left."""
        return (self.data / ADMIN_KEY).read_text().strip()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def client(self, key: str | None = None) -> httpx.Client:
        """With the admin key, another one, or none where it is empty."""
        return client_of(self.base_url, self.key if key is None else key)

    def start(self, *, ready: bool = True) -> None:
        """Run it on what the folder holds; returns when it is ready."""
        assert self.process is None, "it runs"
        with self.log.open("ab") as log:
            self.process = kvweave("serve", stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment())
        if ready:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Raises with the log where the process ended instead."""
        wait_for(self._is_ready, "the service is ready", log=self.log)

    def terminate(self) -> int:
        """End it as an operator does; its exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut does."""
        self._end(signal.SIGKILL)

    def text(self) -> str:
        """All that it logged, of every start."""
        return self.log.read_text()

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        try:
            return self.process.wait(WAIT_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.process = None

    def _is_ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            status, self.process = self.process.returncode, None
            raise AssertionError(f"kvweave serve ended with {status}:\n{self.text()}")
        try:
            return httpx.get(f"{self.base_url}/readyz", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        named = {PREFIX + name.upper(): str(value) for name, value in self._settings.items()}
        return {**inherited, **named, **self._more}

    def __enter__(self) -> Service:
        with ExitStack() as undo:
            undo.callback(self._stop_if_running)
            self.start()
            undo.pop_all()
        return self

    def _stop_if_running(self) -> None:
        if self.process is not None:
            self.kill()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            self.terminate() if kind is None else self.kill()


@dataclass(frozen=True, slots=True)
class Inside:
    """A service in this process."""

    core: Core
    base_url: str
    key: str

    def client(self, key: str | None = None) -> httpx.Client:
        """As `Service.client`."""
        return client_of(self.base_url, self.key if key is None else key)


@contextmanager
def in_process(
    settings: Settings,
    *,
    wrap: Callable[[BlobStore], BlobStore] = lambda store: store,
    reach: Callable[[Core], None] = lambda core: None,
    documents: Sequence[Mapping[str, object]] = (),
) -> Iterator[Inside]:
    """The whole service behind a real socket. `wrap` puts something around its store; `reach` changes the core
    before its first request, such as `core.model.engine`. `documents` serve when it begins."""
    with ExitStack() as lent:
        with pytest.MonkeyPatch.context() as patch:
            compose_store = composition.compose_store
            patch.setattr(composition, "compose_store", lambda settings: wrap(compose_store(settings)))
            patch.setattr(composition, "load", partial(lend_model, lent))
            core = composition.compose_core(settings)
            core.wait()
        assert not core.failed.is_set(), core.not_ready()
        reach(core)
        app = lent.enter_context(application_over(core, application))
        watched = TelemetryMiddleware(app, metrics=core.metrics, tracer=core.tracer)
        server = server_over(watched, tell=core.metrics.refused, stop_s=settings.stop_s)
        listening = lent.enter_context(socket.create_server(("127.0.0.1", 0)))
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as `kvweave serve` has it
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            key = settings.data / ADMIN_KEY
            port = listening.getsockname()[1]
            inside = Inside(core, f"http://127.0.0.1:{port}", key.read_text().strip() if key.exists() else "")
            if documents:
                with inside.client() as client:
                    put_in(client, documents)
            yield inside
        finally:
            server.should_exit = True
            thread.join(WAIT_S)
            core.close()


def settings_in(folder: Path, **settings: object) -> Settings:
    """For `in_process`: a data folder of its own, and a store in LMDB where no other is named."""
    named = {"store": f"lmdb://{folder}/store", "data": data_of(folder / "data"), **STEADY, **settings}
    return Settings.model_validate(named)


def data_of(folder: Path) -> str | Path:
    """The setting `data` for a folder: itself, or a database that stays the folder's own."""
    if os.environ.get(DATA) != "postgres":
        return folder
    if not _postgres:
        server = _servers.enter_context(postgres_server())
        assert server is not None, f"{DATA} asks for PostgreSQL, and there is none: Debian's package is `postgresql`"
        atexit.register(_servers.close)
        _postgres.append(server)
    if folder not in _databases:
        _databases[folder] = _postgres[0].database()
    return f"{_databases[folder]}#{folder}"


def for_models(kinds: Sequence[Kind]) -> Sequence[Kind]:
    """The parameters of tests that ask several models. Where they run again on another database, the first is enough:
    catalogs hold the same whatever the model."""
    return kinds[:1] if os.environ.get(DATA) == "postgres" else kinds


def kvweave(*words: str, env: Mapping[str, str], **options: Any) -> subprocess.Popen[Any]:  # noqa: ANN401
    """The command in a process of its own, with one thread: a fork of one that has all loaded, where its environment
    allows that."""
    env = {**env, **FEW}
    if not _nurseries:
        _nurseries.append(_servers.enter_context(nursing(FORKS)))
        atexit.register(_servers.close)
    if _nurseries[0].fits(env):
        return _nurseries[0].start(words, env=env, **options)
    return subprocess.Popen([*KVWEAVE, *words], env=env, **options)


def kvweave_ended(*words: str, status: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command at its end, with what it wrote; `environment` is what differs from this process'."""
    env, pipe = {**os.environ, **environment}, subprocess.PIPE
    with kvweave(*words, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            out, err = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == status, err
    return subprocess.CompletedProcess(words, status, out, err)


def client_of(base_url: str, key: str) -> httpx.Client:
    """A client that holds this key, or none where it is empty."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=base_url, headers=headers, timeout=WAIT_S, trust_env=False)


def wait_for(is_so: Callable[[], object], what: str, *, log: Path | None = None) -> None:
    """Look until it is so. The deadline is there for broken products alone."""
    end = time.monotonic() + WAIT_S
    while not is_so():
        if time.monotonic() > end:
            raise AssertionError(f"after {WAIT_S} s it is not so that {what}\n{log.read_text() if log else ''}")
        time.sleep(TICK_S)


def good(response: httpx.Response) -> Json:
    """The body of an answer that succeeded."""
    assert response.is_success, f"{response.status_code}: {response.text}"
    return response.json()


def put_in(client: httpx.Client, documents: Iterable[Mapping[str, object]], *, collection: str = "default") -> Json:
    """Ingest documents and wait until they serve: the job at its end."""
    body = {"documents": list(documents), "collection": collection}
    return finished(client, good(client.post("/v1/documents", json=body))["job_id"])


def finished(client: httpx.Client, job_id: str) -> Json:
    """The job when it is over."""
    job: Json = {}

    def is_over() -> bool:
        job.update(good(client.get(f"/v1/jobs/{job_id}")))
        return job["status"] != "running"

    wait_for(is_over, f"{job_id} is over")
    return job


def ask(client: httpx.Client, question: str, **more: object) -> Json:
    """The whole answer to a question; it is greedy where `sampling` does not say otherwise."""
    return good(client.post("/v1/query", json={"question": question, **more}))


def events_of(response: httpx.Response) -> Iterator[tuple[str, Json]]:
    """Server-sent events of a response that is open, by their names."""
    name = "message"
    for line in response.iter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data" and value != "[DONE]":
            yield name, json.loads(value)
        elif not line:
            name = "message"


def sampled(client: httpx.Client) -> dict[str, float]:
    """Everything that /metrics tells, by name with labels."""
    response = client.get("/metrics")
    assert response.status_code == 200, response.text
    lines = (line for line in response.text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
