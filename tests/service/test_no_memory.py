"""A model that runs out of memory: who asked for too much is told so, the others never notice."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import torch

from blend.capture.capture import Ids
from blend.engine import local_engine
from blend.fuse.fuse import FusedPrompt
from blend.fuse.prompt import PromptLayout
from blend.run.context import Context, Segment
from blend.run.decoder import Decoder
from store.record import Record
from tests.service import serving
from tests.service.demo_served import AS_TEXT, BLENDED, REUSED, Demo, demo
from tests.service.faulty import ENDLESS, Gate, wait_idle
from tests.service.serving import Json, events_of, finished, good, wait_for

EXHAUSTED = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "torch": torch.OutOfMemoryError("allocation failed"),
    "cpu": RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
    "python": MemoryError(),
}
GREEDY = 3 * ENDLESS  # tokens that mark the request which needs too much
HEAVY = "This chunk is too heavy. It lives in Z9."


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with demo(tmp_path_factory.mktemp("memory")) as running:
        yield running


@pytest.fixture(params=list(EXHAUSTED))
def exhausted(request: pytest.FixtureRequest) -> Exception:
    """Every way in which it is said."""
    return EXHAUSTED[request.param]


@contextmanager
def failing_fuses(error: Exception) -> Generator[None]:
    """Of the greedy request."""
    fuse = local_engine.fuse

    def fuse_or_fail(decoder: Decoder, layout: PromptLayout, *, context: Context, **more: Any) -> FusedPrompt:  # noqa: ANN401
        if context.capacity > len(layout.ids) + GREEDY - 1:
            raise error
        return fuse(decoder, layout, context=context, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_engine, "fuse", fuse_or_fail)
        yield


@contextmanager
def failing_steps(running: Demo, is_too_much: Callable[[Sequence[Segment]], bool], error: Exception) -> Generator[None]:
    """Decoding steps that have too much to do."""

    def check(segments: Sequence[Segment]) -> None:
        if is_too_much(segments):
            raise error

    running.steps.before = check
    try:
        yield
    finally:
        running.steps.before = lambda segments: None


def greedy(running: Demo, *, stream: bool = False) -> Json:
    return running.body(BLENDED, sampling={"max_tokens": GREEDY}, stream=stream)


def chat(running: Demo, **more: object) -> Json:
    question = running.body(BLENDED)["question"]
    messages = [{"role": "user", "content": question}]
    return {"model": "default", "messages": messages, "chunk_ids": running.chunks, "max_tokens": GREEDY, **more}


def check_refused(answer: httpx.Response) -> None:
    assert answer.status_code == 503, answer.text
    assert "Retry-After" in answer.headers
    body = answer.json()
    detail = body["error"]["message"] if "error" in body else body["detail"]
    assert "out of memory" in detail
    assert "fewer chunks or tokens" in detail


def check_alive(running: Demo) -> None:
    """Nothing is left of what failed, and the next answers are what they should be."""
    wait_idle(running.core, running.steps)
    assert running.ask(BLENDED).text == running.wanted
    assert running.stored() == len(running.chunks)


class TestAFuse:
    def test_the_request_is_refused_and_others_go_on(self, running: Demo, exhausted: Exception) -> None:
        held = Gate()
        running.steps.before = lambda segments: held.pass_through()
        with ThreadPoolExecutor() as pool, failing_fuses(exhausted):
            other = pool.submit(running.hear, BLENDED)
            assert held.reached.wait(serving.WAIT_S)
            refused = pool.submit(running.client.post, "/v1/query", json=greedy(running))
            wait_for(lambda: running.engine._waiting, "the greedy one waits")
            held.opened.set()
            check_refused(refused.result())
            assert other.result().text == running.wanted
        running.steps.before = lambda segments: None
        check_alive(running)

    def test_a_stream_and_openai_clients_are_told_so_too(self, running: Demo) -> None:
        with failing_fuses(EXHAUSTED["cuda"]):
            check_refused(running.client.post("/v1/chat/completions", json=chat(running)))
            with running.client.stream("POST", "/v1/query", json=greedy(running, stream=True)) as response:
                name, last = list(events_of(response))[-1]
            assert (name, last["status"]) == ("error", 503)
            assert "out of memory" in last["detail"]
            chunks = running.client.post("/v1/chat/completions", json=chat(running, stream=True))
            assert "out of memory" in chunks.text
        check_alive(running)

    def test_no_memory_for_stored_keys_refuses_that_request(
        self, running: Demo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def place(*arguments: object, **more: object) -> object:
            raise EXHAUSTED["torch"]

        with monkeypatch.context() as patch:
            patch.setattr(Decoder, "place", place)
            check_refused(running.client.post("/v1/query", json=running.body(REUSED)))
            assert running.ask(AS_TEXT).text == running.wanted
        check_alive(running)


class TestADecodingStep:
    def test_the_request_is_refused_and_others_go_on(self, running: Demo) -> None:
        def is_too_much(segments: Sequence[Segment]) -> bool:
            contexts = [each.context for each in segments if isinstance(each.context, Context)]
            return any(each.capacity > running.prompt_tokens + ENDLESS for each in contexts)

        with ThreadPoolExecutor() as pool, failing_steps(running, is_too_much, EXHAUSTED["python"]):
            others = [pool.submit(running.hear, BLENDED) for _ in range(2)]
            refused = pool.submit(running.client.post, "/v1/query", json=greedy(running))
            check_refused(refused.result())
            assert [other.result().text for other in others] == [running.wanted] * 2
        check_alive(running)

    def test_requests_that_are_too_much_together_go_on_alone(self, running: Demo) -> None:
        sizes: list[int] = []

        def is_too_much(segments: Sequence[Segment]) -> bool:
            if not sizes:
                wait_for(lambda: running.engine._waiting, "another one comes")
            sizes.append(len(segments))
            return len(segments) > 1

        with ThreadPoolExecutor() as pool, failing_steps(running, is_too_much, EXHAUSTED["cpu"]):
            asked = [pool.submit(running.ask, BLENDED) for _ in range(2)]
            assert [each.result().text for each in asked] == [running.wanted] * 2
        assert max(sizes) == 2
        check_alive(running)


@pytest.mark.parametrize("kind", ["cuda", "python"])
def test_no_memory_for_what_later_turns_would_begin_with_costs_no_answer(
    running: Demo, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = {"role": "user", "content": f"Why {EXHAUSTED[kind]!r}?"}
    blend = {"policy": "prefix"}  # each turn is exact
    body = {"model": "default", "messages": [turn], "max_tokens": 4, "temperature": 0, "session": "s", "blend": blend}
    kept, first = Context.first, list[int]()

    def fail(context: Context, tokens: int) -> Context:
        first.append(tokens)
        raise EXHAUSTED[kind]

    monkeypatch.setattr(Context, "first", fail)
    told = [good(running.client.post("/v1/chat/completions", json=body)) for _ in range(2)]
    monkeypatch.setattr(Context, "first", kept)
    told += [good(running.client.post("/v1/chat/completions", json=body)) for _ in range(2)]
    assert first
    assert len({each["choices"][0]["message"]["content"] for each in told}) == 1
    assert told[3]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    check_alive(running)


@contextmanager
def failing_captures(error: Exception, is_too_much: Callable[[Sequence[Ids]], bool]) -> Generator[list[int]]:
    """How many chunks each capture was asked for."""
    capture, sizes = local_engine.capture, list[int]()

    def capture_or_fail(decoder: Decoder, prefix: Ids, *, chunks: Sequence[Ids], **more: Any) -> list[Record]:  # noqa: ANN401
        sizes.append(len(chunks))
        if is_too_much(chunks):
            raise error
        return capture(decoder, prefix, chunks=chunks, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_engine, "capture", capture_or_fail)
        yield sizes


class TestACapture:
    def test_it_is_tried_again_in_smaller_batches(self, running: Demo) -> None:
        texts = [f"Number {at}. Kelo lives in C{at}." for at in range(8)]
        body = {"documents": [{"id": "many", "chunks": [{"text": text} for text in texts]}]}
        with failing_captures(EXHAUSTED["cpu"], lambda chunks: len(chunks) > 2) as sizes:
            job = good(running.client.post("/v1/documents", json=body))["job_id"]
            running.check_ready(job, "many")
        assert sizes[0] == 8
        assert sizes.count(8) == 1
        running.forget("many")

    def test_a_chunk_that_never_fits_is_served_as_text(self, running: Demo) -> None:
        heavy = running.core.model.prompt_builder.ids(HEAVY)
        texts = ["Kelo lives in C1.", HEAVY, "Kelo keeps a heron."]
        body = {"documents": [{"id": "some", "chunks": [{"text": text} for text in texts]}]}
        with failing_captures(EXHAUSTED["cuda"], lambda chunks: heavy in [tuple(ids[: len(heavy)]) for ids in chunks]):
            job = finished(running.client, good(running.client.post("/v1/documents", json=body))["job_id"])
            assert (job["status"], job["stored"], job["unsupported"]) == ("done", 2, 1)
            assert "1 of 3 chunks are served as text only" in job["items"][0]["detail"]
            chunks = running.chunks_of("some")
            asked = running.ask(REUSED, chunks)
            assert [each.startswith("computed") for each in asked.chunks] == [False, True, False]
            assert running.ask(BLENDED, chunks).text == running.ask(AS_TEXT, chunks).text
        running.ask(REUSED, chunks)
        wait_for(lambda: not running.ask(REUSED, chunks).chunks[1].startswith("computed"), "there is memory again")
        assert running.ask(BLENDED, chunks).text == running.ask(AS_TEXT, chunks).text
        running.forget("some")
        check_alive(running)
