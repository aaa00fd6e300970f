"""The worker's half against a kvweave with a script: what ends up in the paged cache, and what becomes of faults."""

from __future__ import annotations

import fcntl
import json
import secrets
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_kvweave.load_jobs import LoadJob, StepJobs, digest_of
from vllm_kvweave.source import Source

pytest.importorskip("torch")

import torch

from vllm_kvweave.loading import FOLDER, Loading, PagedLayer, PagedRows, WorkerPlace

LAYERS = (0, 2, 3)  # the second reads another one's keys
HEADS, KEY_DIM, VALUE_DIM = 4, 3, 2
IDS = list(range(30))
KEY = "kvw_secret"


@dataclass
class Prompt:
    """What the server holds, and what it does wrong. `gate`: no layer is sent before it is open."""

    keys: dict[int, torch.Tensor]
    values: dict[int, torch.Tensor]
    form: dict[str, object]
    damaged: set[int] = field(default_factory=set)
    short: set[int] = field(default_factory=set)
    gate: threading.Event = field(default_factory=threading.Event)
    asked: list[str] = field(default_factory=list)


def prompt(**wrong: object) -> Prompt:
    draw = torch.Generator().manual_seed(7)
    keys, values = (
        {each: torch.randn(len(IDS) - 1, HEADS, dim, generator=draw) for each in LAYERS} for dim in (KEY_DIM, VALUE_DIM)
    )
    shape = {"key_heads": HEADS, "key_dim": KEY_DIM, "value_heads": HEADS, "value_dim": VALUE_DIM}
    form = {
        "tokens": len(IDS),
        "digest": digest_of(IDS),
        "dtype": "float32",
        "layers": [{"index": each, **shape} for each in LAYERS],
        "final": 0,
        "shared": "",
    }
    made = Prompt(keys, values, {**form, **wrong})
    made.gate.set()
    return made


@contextmanager
def shared(held: Prompt, *, wrong: str = "") -> Iterator[None]:
    """The prompt in this host's memory, as kvweave lays it there, too."""
    parts = [each[layer].numpy().tobytes() for layer in LAYERS for each in (held.keys, held.values)]
    path = FOLDER / f"kvweave-{secrets.token_urlsafe(24)}"
    path.write_bytes(b"".join(parts) + (b"more" if wrong == "size" else b""))
    held.form["shared"] = {"name": f"../shm/{path.name}", "absent": path.name[:-1]}.get(wrong, path.name)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # kvweave removes what nobody has locked
        try:
            yield
        finally:
            path.unlink()


class PromptHandler(BaseHTTPRequestHandler):
    held: Prompt
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def say(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.held.asked.append(self.path)
        parts = urlsplit(self.path)
        if self.headers["Authorization"] != f"Bearer {KEY}" or "/handle" not in parts.path:
            return self.say(404, b"there is no such handle")
        if "/layers/" not in parts.path:
            final = int(parse_qs(parts.query)["final"][0])
            if final:
                self.held.gate.wait(20)
            return self.say(200, json.dumps({**self.held.form, "final": final}).encode())
        self.held.gate.wait(20)
        layer = int(parts.path.rpartition("/")[2])
        wanted = {name: int(value[0]) for name, value in parse_qs(parts.query).items()}
        mine = max(1, HEADS // wanted["ranks"])
        first = wanted["rank"] * HEADS // wanted["ranks"]
        cut = [
            each[layer][wanted["start"] : wanted["stop"], first : first + mine].contiguous()
            for each in (self.held.keys, self.held.values)
        ]
        body = b"".join(each.numpy().tobytes() for each in cut)
        crc = str(zlib.crc32(body))
        if layer in self.held.damaged:
            body = body[:-1] + bytes([body[-1] ^ 1])
        if layer in self.held.short:
            body = body[:-4]
            crc = str(zlib.crc32(body))
        return self.say(200, body, x_crc32=crc)

    def do_DELETE(self) -> None:
        self.held.asked.append(f"DELETE {self.path}")
        self.say(204, b"")


@contextmanager
def served(held: Prompt) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (PromptHandler,), {"held": held}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        held.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()


class Cache:
    """The paged cache of a worker: a row for each slot of each layer."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], tuple[list[object], list[object]]] = {}

    def layer(self, index: int, *, group: int, heads: int) -> PagedLayer:
        def write(rows: PagedRows) -> None:
            keys, values, slots = rows.keys, rows.values, rows.slots
            assert keys.shape == (len(slots), heads, KEY_DIM)
            assert values.shape == (len(slots), heads, VALUE_DIM)
            for row, slot in enumerate(slots.tolist()):
                assert (index, slot) not in self.rows
                self.rows[index, slot] = (keys[row].tolist(), values[row].tolist())

        return PagedLayer(index, group, heads, KEY_DIM, VALUE_DIM, write)


@contextmanager
def worker(
    url: str, cache: Cache, *, rank: int = 0, ranks: int = 1, sizes: tuple[int, ...] = (4,)
) -> Iterator[Loading]:
    place = WorkerPlace(rank, ranks, "float32", sizes, nullcontext)
    heads = max(1, HEADS // ranks)
    layers = [cache.layer(each, group=each % len(sizes), heads=heads) for each in reversed(LAYERS)]
    loading = Loading(Source(f"{url}/v1", KEY), layers, place=place)
    try:
        yield loading
    finally:
        loading.close()


def job(name: str = "one", *, start: int = 0, blocks: tuple[list[int], ...] | None = None, **more: object) -> LoadJob:
    stop = len(IDS) - 1
    blocks = blocks or ([*range(1, 12)],)
    said = {"handle": "handle", "digest": digest_of(IDS), "timeout_s": 20.0, **more}
    return LoadJob(name, start=start, stop=stop, blocks=blocks, **said)  # type: ignore[arg-type]


def until_ended(loading: Loading, count: int = 1) -> tuple[set[str], set[str]]:
    ended, failed = set[str](), set[str]()
    end = time.monotonic() + 60
    while len(ended) < count:
        assert time.monotonic() < end
        more, wrong = loading.ended(is_idle=True)
        assert not more & ended
        ended |= more
        failed |= wrong
    assert loading.ended(is_idle=False) == (set(), set())
    return ended, failed


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from([(4,), (3, 8), (32, 1)]),
    st.sampled_from([(0, 1), (1, 2), (3, 4), (5, 8)]),
    st.integers(0, len(IDS) - 2),
    st.sampled_from(["memory", "http"]),
    st.randoms(use_true_random=False),
)
def test_each_token_that_has_a_block_stands_in_its_slot_and_nothing_else_is_written(
    sizes: tuple[int, ...], place: tuple[int, int], start: int, medium: str, draw: object
) -> None:
    rank, ranks = place
    blocks = tuple(draw.sample(range(1, 200), -(-len(IDS) // size)) for size in sizes)  # type: ignore[attr-defined]
    if len(sizes) > 1:  # a window has left the first blocks of the second group
        blocks[1][: len(blocks[1]) // 2] = [0] * (len(blocks[1]) // 2)
    held, cache = prompt(), Cache()
    with (
        shared(held) if medium == "memory" else nullcontext(),
        served(held) as url,
        worker(url, cache, rank=rank, ranks=ranks, sizes=sizes) as loading,
    ):
        loading.begin(StepJobs([job(start=start, blocks=blocks)]))
        assert until_ended(loading) == ({"one"}, set())
    assert any("/layers/" in each for each in held.asked) == (medium == "http")
    mine, first = max(1, HEADS // ranks), rank * HEADS // ranks
    wanted: dict[tuple[int, int], object] = {}
    for layer in LAYERS:
        size, of = sizes[layer % len(sizes)], blocks[layer % len(sizes)]
        for token in range(start, len(IDS) - 1):
            if of[token // size]:
                both = (each[layer][token, first : first + mine].tolist() for each in (held.keys, held.values))
                wanted[layer, of[token // size] * size + token % size] = tuple(both)
    assert cache.rows == wanted


SHAPE = {"key_heads": HEADS, "key_dim": KEY_DIM, "value_heads": HEADS, "value_dim": VALUE_DIM}
FAULTS = {
    "a damaged first layer": {"damaged": {0}},
    "a damaged last layer": {"damaged": {3}},
    "a short layer": {"short": {2}},
    "other ids": {"digest": digest_of([1])},
    "another length": {"tokens": 31},
    "another dtype": {"dtype": "bfloat16"},
    "fewer layers": {"layers": [{"index": 0, **SHAPE}]},
    "other layers": {"layers": [{"index": each, **SHAPE} for each in (0, 1, 3)]},
    "more heads": {"layers": [{"index": each, **SHAPE, "value_heads": 8} for each in LAYERS]},
    "other dims": {"layers": [{"index": each, **SHAPE, "key_dim": 8} for each in LAYERS]},
    "no layers": {"layers": "none"},
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_prompt_with_a_fault_fails_and_the_next_one_loads(what: str) -> None:
    wrong = dict(FAULTS[what])
    marks = {name: wrong.pop(name) for name in ("damaged", "short") if name in wrong}
    held = prompt(**wrong)
    for name, layers in marks.items():
        setattr(held, name, layers)
    with served(held) as url, worker(url, Cache()) as loading:
        loading.begin(StepJobs([job()]))
        assert until_ended(loading) == ({"one"}, {"one"})
    assert held.asked[-1] == "DELETE /v1/handoffs/handle?used=false"
    with served(prompt()) as url, worker(url, Cache()) as loading:
        loading.begin(StepJobs([job()]))
        assert until_ended(loading) == ({"one"}, set())


@pytest.mark.parametrize("wrong", ["size", "name", "absent"])
def test_memory_that_is_not_the_prompts_is_left_alone_and_the_layers_are_fetched(wrong: str) -> None:
    held, cache = prompt(), Cache()
    with shared(held, wrong=wrong), served(held) as url, worker(url, cache) as loading:
        loading.begin(StepJobs([job()]))
        assert until_ended(loading) == ({"one"}, set())
    assert sum("/layers/" in each for each in held.asked) == len(LAYERS) and len(cache.rows) == 3 * (len(IDS) - 1)


def test_a_shared_prompt_is_written_layer_by_layer_as_they_come_and_asked_for_whole() -> None:
    held, cache = prompt(), Cache()
    held.gate.clear()
    with shared(held), served(held) as url, worker(url, cache) as loading:
        loading.begin(StepJobs([job()]))
        end = time.monotonic() + 30
        while len(held.asked) < 2:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert not cache.rows
        held.gate.set()
        assert until_ended(loading) == ({"one"}, set())
    assert [each.rpartition("=")[2] for each in held.asked] == ["0", "1", "2", "3"]


def test_a_handle_that_is_gone_and_a_service_that_is_away_fail() -> None:
    with served(prompt()) as url, worker(url, Cache()) as loading:
        loading.begin(StepJobs([job(handle="gone")]))
        assert until_ended(loading) == ({"one"}, {"one"})
    with worker(url, Cache()) as loading:
        loading.begin(StepJobs([job()]))
        assert until_ended(loading) == ({"one"}, {"one"})


def test_a_load_that_is_late_fails_and_holds_nobody_up() -> None:
    held = prompt()
    held.gate.clear()
    with served(held) as url, served(prompt()) as other, worker(url, Cache()) as slow, worker(other, Cache()) as quick:
        slow.begin(StepJobs([job(timeout_s=0.2)]))
        quick.begin(StepJobs([job()]))
        assert until_ended(quick) == ({"one"}, set())
        assert until_ended(slow) == ({"one"}, {"one"})


def test_a_load_that_is_called_off_ends_before_its_next_layer() -> None:
    held = prompt()
    held.gate.clear()
    with served(held) as url, worker(url, Cache()) as loading:
        loading.begin(StepJobs([job()]))
        end = time.monotonic() + 30
        while len(held.asked) < 2:
            assert time.monotonic() < end
            time.sleep(0.01)
        loading.begin(StepJobs(cancelled=["one", "unknown"]))
        held.gate.set()
        assert until_ended(loading) == ({"one"}, {"one"})
        assert len(held.asked) == 3, "the form and one layer, and that nothing came of it"


def test_a_key_stays_with_the_address_that_it_is_for() -> None:
    for url in ("http://user:password@host", "ftp://host", "host:8000", ""):
        with pytest.raises(ValueError, match="is like http://kvweave:8000"):
            Source(url, KEY)
