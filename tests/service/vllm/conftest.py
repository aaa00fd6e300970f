"""A service in this process beside a scripted vLLM, shared by a file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from service.vllm import agreement, vllm_engine
from service.vllm.vllm_engine import VllmEngine
from tests.servers.free_port import free_port
from tests.service.serving import (
    Inside,
    Json,
    in_process,
    put_in,
    settings_in,
    wait_for,
)
from tests.service.vllm.scripted_vllm import VllmScript, scripted_vllm

QUESTION = "Which animal does Halio keep?"
LETTERS = [
    {"id": "letter-40", "title": "Letter 40", "text": "Halio lives in K7. Halio keeps a badger."},
    {"id": "letter-73", "title": "Letter 73", "text": "Belio lives in K7. Belio keeps a pony."},
]
REUSE = {"policy": "reuse"}


@dataclass(frozen=True, slots=True)
class Pair:
    """A service, and the script of the vLLM that it has."""

    inside: Inside
    client: httpx.Client
    script: VllmScript

    @property
    def engine(self) -> VllmEngine:
        engine = self.inside.core.model.engine
        assert isinstance(engine, VllmEngine)
        return engine

    def problem(self) -> str:
        """The reason why vLLM is not used, once it was compared."""
        said: list[str] = []

        def is_said() -> bool:
            answer = self.client.post("/v1/query", json={"question": QUESTION})
            if answer.status_code == 503 and "cannot be reached" not in answer.text:
                said.append(answer.json()["detail"])
            return bool(said)

        wait_for(is_said, "vLLM was compared")
        return said[0]

    def becomes(self, **script: object) -> None:
        """Let vLLM be another one, with which nothing was agreed."""
        self.script.status = 500
        wait_for(lambda: "it answers 500" in self.problem(), "vLLM is away")
        for name, value in script.items():
            setattr(self.script, name, value)
        self.script.status = 200

    def agreed(self) -> None:
        """Wait until vLLM is used."""
        wait_for(lambda: self.client.post("/v1/query", json={"question": QUESTION}).is_success, "vLLM is used")
        self.script.bodies.clear()


@contextmanager
def paired(folder: Path, script: VllmScript, *, address: str = "http://127.0.0.1:{port}/v1") -> Iterator[Pair]:
    """A service in this process beside a scripted vLLM."""
    port = free_port()
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_engine, "AGAIN_S", 0.1)
        patch.setattr(agreement, "LONG", 128)  # the times of prompts are not looked at
        settings = settings_in(folder, generator=address.format(port=port))
        inside = stack.enter_context(in_process(settings))
        client = stack.enter_context(inside.client())
        put_in(client, LETTERS)
        if script.kvweave is not None:
            script.kvweave, script.key = inside.base_url, inside.key
        stack.enter_context(scripted_vllm(script, port))
        yield Pair(inside, client, script)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with paired(tmp_path_factory.mktemp("pair"), VllmScript(kvweave="")) as pair:
        pair.agreed()
        yield pair


@pytest.fixture
def pair(shared: Pair) -> Iterator[Pair]:
    shared.script.bodies.clear()
    yield shared
    for name, value in vars(VllmScript(kvweave=shared.inside.base_url)).items():
        if name not in ("key", "bodies", "gate", "open"):
            setattr(shared.script, name, value)
    shared.script.gate.set()
    shared.agreed()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service that generates itself."""
    with in_process(settings_in(tmp_path_factory.mktemp("own"))) as inside, inside.client() as client:
        put_in(client, LETTERS)
        yield client


def chatted(question: str, **more: object) -> Json:
    return {"model": "default", "messages": [{"role": "user", "content": question}], "collection": "default", **more}
