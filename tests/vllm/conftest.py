"""A service in this process and vLLM beside it, shared by a file of tests. They compute with one thread each."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache

import httpx
import pytest

from service.lab.questions.cases import Case
from service.lab.questions.suites import Draw, multihop
from tests.servers.free_port import free_port
from tests.service.serving import Inside, Json, good, in_process, put_in, settings_in, wait_for
from tests.vllm.vllm_server import MODEL, PYTHON, VllmOptions, VllmServer

ANSWER = 24  # tokens at most
MOST = 500  # documents in a request
COUNT = int(os.environ.get("CASES", "200"))  # questions


@dataclass(frozen=True, slots=True)
class Pair:
    """kvweave and vLLM, with a client of each. `alone`: a service with the same documents that generates itself."""

    inside: Inside
    server: VllmServer
    kvweave: httpx.Client
    vllm: httpx.Client
    alone: httpx.Client

    def fuse(self, number: int, policy: str) -> Json:
        """A question of the suite that needs two passages, put in place."""
        return good(self.kvweave.post("/v1/fuse", json=question(number, policy)))

    def own(self, number: int, policy: str) -> Json:
        """The answer of kvweave's own engine to it."""
        return good(self.alone.post("/v1/query", json=asked(number, policy)))

    def generated(self, number: int, policy: str) -> Json:
        """kvweave's answer to it, which vLLM generates."""
        return good(self.kvweave.post("/v1/query", json=asked(number, policy)))

    def complete(self, fused: Json, **other: object) -> Json:
        """vLLM's answer to a fused prompt; `other` takes the place of what is sent, and None leaves it out."""
        body = {
            "model": MODEL,
            "prompt": fused["ids"],
            "max_tokens": ANSWER,
            "temperature": 0,
            "return_token_ids": True,
            "cache_salt": fused["salt"],
            "kv_transfer_params": fused["kv_transfer_params"],
            **other,
        }
        return good(
            self.vllm.post("/v1/completions", json={name: each for name, each in body.items() if each is not None})
        )

    def exact(self, fused: Json) -> str:
        """The text of vLLM's own answer to the same ids, as somebody asks who knows of no kvweave."""
        return text_of(self.complete(fused, cache_salt=None, kv_transfer_params=None))

    def running(self) -> dict[str, float]:
        """What vLLM says that it runs and holds."""
        lines = [line for line in self.vllm.get("/metrics").text.splitlines() if not line.startswith("#")]
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(names)}


@cache
def cases() -> list[Case]:
    """The questions of the suite that need two passages."""
    return multihop(seed=41, size=2 * COUNT, drawn=Draw(3))[1::2]


def question(number: int, policy: str) -> Json:
    """A request for the case of this number, whose passages come along in it and are known."""
    case = cases()[number]
    documents = [{"title": each.title, "text": each.text} for each in case.passages]
    return {"question": case.question, "documents": documents, "blend": {"policy": policy}}


def asked(number: int, policy: str) -> Json:
    """The whole request for an answer."""
    return {**question(number, policy), "sampling": {"max_tokens": ANSWER}}


@cache
def known() -> list[Json]:
    """All passages of all questions, each a document of one chunk."""
    texts = {each.text: each.title for case in cases() for each in case.passages}
    return [
        {"id": f"passage-{number}", "title": title, "chunks": [{"text": text}]}
        for number, (text, title) in enumerate(texts.items())
    ]


def text_of(completion: Json) -> str:
    """The answer's text."""
    return completion["choices"][0]["text"]


def loaded(completion: Json) -> int:
    """How many tokens vLLM took over."""
    return completion["kv_transfer_params"]["kvweave"]["loaded"]


@pytest.fixture(scope="module")
def options() -> dict[str, object]:
    """What vLLM is started with besides, as the variable VLLM_ARGS has it; a file of tests may have its own."""
    return {"extra": os.environ.get("VLLM_ARGS", "").split()}


@pytest.fixture(scope="module")
def through() -> Callable[[str], AbstractContextManager[str]]:
    """The address at which vLLM finds kvweave; a file of tests may put something between them."""
    return nullcontext


@pytest.fixture(scope="module")
def pair(
    tmp_path_factory: pytest.TempPathFactory,
    options: dict[str, object],
    through: Callable[[str], AbstractContextManager[str]],
) -> Iterator[Pair]:
    if not os.environ.get(PYTHON):
        pytest.skip(f"{PYTHON} names no interpreter with vLLM: `make test-vllm`")
    folder = tmp_path_factory.mktemp("pair")
    port = free_port()
    settings = settings_in(folder, generator=f"http://127.0.0.1:{port}/v1")
    with (
        in_process(settings) as inside,
        in_process(settings_in(tmp_path_factory.mktemp("alone"))) as alone,
        alone.client() as generating_itself,
        through(inside.base_url) as address,
        VllmServer(folder, VllmOptions(address, inside.key, port=port, **options)) as server,  # type: ignore
        inside.client() as kvweave,
        server.client() as vllm,
    ):
        for start in range(0, len(known()), MOST):
            for client in (kvweave, generating_itself):
                put_in(client, known()[start : start + MOST])
        question = {"question": "Who?", "blend": {"policy": "full"}}
        wait_for(lambda: kvweave.post("/v1/query", json=question).is_success, "vLLM agrees")
        yield Pair(inside, server, kvweave, vllm, generating_itself)
