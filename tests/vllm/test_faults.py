"""What can go wrong on the way from kvweave into the real vLLM: right answers, and nothing is held afterwards."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

import httpx
import pytest

from tests.servers.listening import listening
from tests.service.serving import Json, wait_for
from tests.vllm.conftest import COUNT, Pair, loaded, text_of
from tests.vllm.vllm_server import MODEL

pytestmark = pytest.mark.long
LAST = 11  # layer of the built-in model


@dataclass
class Wire:
    """What lies between vLLM and kvweave. `gate`: no layer goes through before it is open; `asked`: layers so far."""

    gate: threading.Event = field(default_factory=threading.Event)
    damaged: set[int] = field(default_factory=set)
    asked: int = 0


WIRE = Wire()


class WireHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target = ""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        asked = re.search(r"/layers/(\d+)\?", self.path)
        layer = int(asked[1]) if asked else -1
        if layer >= 0:
            WIRE.asked += 1
            WIRE.gate.wait(60)
        parts = urlsplit(self.target)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port)
        connection.request(self.command, self.path, headers={"Authorization": self.headers["Authorization"]})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        if answer.status == 200 and "/layers/" not in self.path:  # layers take the wire, as between two hosts
            body = json.dumps({**json.loads(body), "shared": ""}).encode()
        if layer in WIRE.damaged:
            body = body[:50] + bytes([body[50] ^ 64]) + body[51:]
        self.send_response(answer.status)
        for name in ("Content-Type", "X-Crc32"):
            if answer.headers[name]:
                self.send_header(name, answer.headers[name])
        if answer.status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_DELETE = do_GET


@pytest.fixture(scope="module")
def through() -> Callable[[str], AbstractContextManager[str]]:
    @contextmanager
    def wired(address: str) -> Iterator[str]:
        WIRE.gate.set()
        handler = type("Handler", (WireHandler,), {"target": address})
        with listening(handler) as url:
            yield url

    return wired


@pytest.fixture(scope="module")
def options() -> dict[str, object]:
    """So few blocks that a dozen of answers do not fit."""
    return {"extra": ["--max-model-len", "1024", "--num-gpu-blocks-override", "80"]}


@pytest.fixture(autouse=True)
def nothing_is_held_afterwards(pair: Pair) -> Iterator[None]:
    yield
    WIRE.gate.set()
    WIRE.damaged.clear()
    wait_for(lambda: set(pair.running().values()) == {0.0}, "vLLM runs and holds nothing")
    wait_for(lambda: len(pair.inside.core.handoffs) == 0, "kvweave holds no handle")


def deceived(pair: Pair) -> tuple[Json, str, str]:
    """A prompt of plain reuse that misleads, the misled answer, and the exact one."""
    for number in range(COUNT):
        fused = pair.fuse(number, "reuse")
        exact, misled = pair.exact(fused), text_of(pair.complete(fused))
        if misled != exact:
            return pair.fuse(number, "reuse"), misled, exact
    raise AssertionError("no question is answered otherwise by plain reuse")


@pytest.mark.parametrize("layer", [0, LAST])
def test_a_damaged_layer_is_computed_by_vllm(pair: Pair, layer: int) -> None:
    fused, _, exact = deceived(pair)
    WIRE.damaged = {layer}
    completion = pair.complete(fused)
    assert (text_of(completion), loaded(completion)) == (exact, 0)


def test_a_prompt_that_comes_too_late_is_computed_by_vllm(pair: Pair) -> None:
    fused, _, exact = deceived(pair)
    WIRE.gate.clear()
    fused["kv_transfer_params"]["kvweave"]["timeout_s"] = 0.5
    completion = pair.complete(fused)
    assert (text_of(completion), loaded(completion)) == (exact, 0)


def test_a_slow_prompt_holds_nobody_up(pair: Pair) -> None:
    fused, misled, exact = deceived(pair)
    WIRE.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        asked = WIRE.asked
        slow = pool.submit(pair.complete, fused)
        wait_for(lambda: WIRE.asked > asked, "it is being fetched")
        assert pair.exact(fused) == exact, "another request is answered meanwhile"
        assert not slow.done()
        WIRE.gate.set()
        assert text_of(slow.result()) == misled


def test_a_client_that_leaves_while_its_prompt_is_fetched(pair: Pair) -> None:
    fused, _, exact = deceived(pair)
    WIRE.gate.clear()
    body = {
        "model": MODEL,
        "prompt": fused["ids"],
        "max_tokens": 5,
        "cache_salt": fused["salt"],
        "kv_transfer_params": fused["kv_transfer_params"],
    }
    with pytest.raises(httpx.ReadTimeout):
        pair.vllm.post("/v1/completions", json=body, timeout=1.0)
    WIRE.gate.set()
    assert pair.exact(fused) == exact


def test_more_answers_than_blocks_are_begun_as_fused_and_are_whole(pair: Pair) -> None:
    policies = ("reuse", "hybrid")
    wanted = [(number, policy) for number in range(6) for policy in policies]
    made = [pair.fuse(*each) for each in wanted]
    own = [text_of(pair.complete(pair.fuse(*each))) for each in wanted]
    more = {"max_tokens": 300, "min_tokens": 300, "ignore_eos": True}
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda fused: pair.complete(fused, **more), made))
    assert all(len(each["choices"][0]["token_ids"]) == 300 for each in found)
    assert [text_of(each).startswith(begun) for each, begun in zip(found, own, strict=True)] == [True] * len(own)
    lines = [
        line for line in pair.vllm.get("/metrics").text.splitlines() if line.startswith("vllm:num_preemptions_total")
    ]
    print(f"{len(found)} answers, {lines}")


def test_a_prompt_over_vllms_window_says_so(pair: Pair) -> None:
    question = {"question": "Who? " * 900, "blend": {"policy": "full"}, "top_k": 0}
    answer = pair.kvweave.post("/v1/query", json=question)
    assert answer.status_code == 422 and "the generator's window 1024" in answer.json()["detail"]
