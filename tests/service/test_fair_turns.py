"""Fair shares: work of each owner in turn, memory of tenants for schemas, and threads that compute behind others."""

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import pytest

from blend.engine.sampling import LogitsProcessor
from service.access.principal import Role
from service.answers.fair_turns import COMPUTES, LATER, FairTurns, SchemaMemory, lower_priority
from service.answers.pipeline import LOOKUPS
from service.app.core import Core
from service.commands import serve
from service.errors import Exhausted
from service.model.constraint import Grammars
from service.model.schema_grammar import LEAST_BYTES, checked_grammar
from tests.service.serving import Inside, Json, ask, in_process, settings_in

WITHIN_S = 30  # for broken products alone
LARGE: Json = {"enum": [f"value {number}" for number in range(8000)]}
HELD_UP = LOOKUPS + 2  # requests
HELD: Json = {"const": "held"}
LOWEST = 19  # nice steps that Linux has: the tests themselves may run behind others


class Held:
    """Work that lasts until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def __call__(self) -> int:
        self.begun.set()
        assert self.let_go.wait(WITHIN_S)
        return 7


async def begun(work: Held) -> None:
    assert await asyncio.to_thread(work.begun.wait, WITHIN_S)


def played(play: Callable[[FairTurns], Awaitable[None]], *, threads: int = 2, longest: int = 3) -> None:
    async def run() -> None:
        turns = FairTurns(threads, longest=longest, waiting="pieces of work wait")
        try:
            await asyncio.wait_for(play(turns), WITHIN_S)
        finally:
            turns.close()

    asyncio.run(run())


def test_who_asks_for_much_waits_behind_itself_alone() -> None:
    async def play(turns: FairTurns) -> None:
        held = [Held() for _ in range(3)]
        much = [asyncio.create_task(turns.run("a", work)) for work in held]
        await begun(held[0])
        assert await turns.run("b", lambda: 8) == 8  # there is a thread for it
        assert not held[1].begun.is_set()
        for work in held:
            work.let_go.set()
        assert await asyncio.gather(*much) == [7, 7, 7]

    played(play)


def test_a_line_that_is_too_long_is_refused_until_it_is_shorter() -> None:
    async def play(turns: FairTurns) -> None:
        held = [Held(), Held()]
        much = [asyncio.create_task(turns.run("a", work)) for work in held]
        await begun(held[0])
        with pytest.raises(Exhausted, match="2 pieces of work wait") as refusal:
            await turns.run("a", lambda: 8)
        assert refusal.value.retry_after_s
        much.pop().cancel()
        await asyncio.sleep(0)
        late = asyncio.create_task(turns.run("a", lambda: 8))
        held[0].let_go.set()
        assert (await much[0], await late) == (7, 8)
        assert not held[1].begun.is_set()

    played(play, longest=2)


def test_work_goes_on_and_keeps_its_turn_when_who_asked_is_gone() -> None:
    async def play(turns: FairTurns) -> None:
        held = Held()
        gone = asyncio.create_task(turns.run("a", held))
        await begun(held)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        with pytest.raises(Exhausted):
            await turns.run("a", lambda: 8)
        held.let_go.set()
        while True:
            try:
                assert await turns.run("a", lambda: 8) == 8
                return
            except Exhausted:
                await asyncio.sleep(0)

    played(play, longest=1)


def test_what_fails_raises_and_leaves_the_turn_to_the_next() -> None:
    async def play(turns: FairTurns) -> None:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await turns.run("a", lambda: 1 // 0)

    played(play, threads=1, longest=1)


def test_a_tenants_schemas_take_its_share_alone_until_their_answers_end() -> None:
    memory = SchemaMemory(100)
    with memory.held("a", 60):
        for nbytes in (41, 1000):
            with pytest.raises(Exhausted, match="this tenant's answers") as refused, memory.held("a", nbytes):
                pass
            assert refused.value.retry_after_s
        with memory.held("b", 100), memory.held("a", 40):
            pass
    with memory.held("a", 100):
        pass


def test_a_large_schema_is_counted_for_what_it_takes() -> None:
    assert checked_grammar({"type": "string"}).nbytes == checked_grammar({}).nbytes == LEAST_BYTES
    assert LEAST_BYTES < checked_grammar(LARGE).nbytes < 8 * LEAST_BYTES


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with in_process(settings_in(tmp_path_factory.mktemp("turns"))) as served:
        yield served


def test_an_answer_counts_while_it_runs(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    said, memory = as_json({"const": "x"}), SchemaMemory(2 * LEAST_BYTES - 1)
    monkeypatch.setattr(inside.core.pipeline, "_schema_memory", memory)
    _, key = inside.core.control.create_key("other", Role.READ)
    with inside.client() as client:
        for _ in range(3):
            assert ask(client, "Who?", top_k=0, sampling=said)["answer"] == '"x"'
        with memory.held("default", LEAST_BYTES), inside.client(key) as other:
            body = {"question": "Who?", "top_k": 0, "sampling": said}
            refused = client.post("/v1/query", json=body)
            assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1"), refused.text
            assert ask(client, "Who?", top_k=0, sampling={"max_tokens": 2})["answer"]
            assert ask(other, "Who?", top_k=0, sampling=said)["answer"] == '"x"'


def test_schemas_of_one_tenant_hold_up_no_answer_of_another(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, let_go, before = threading.Event(), threading.Event(), Grammars.processor

    def processor(grammars: Grammars, schema: Json) -> LogitsProcessor:
        if schema == HELD:
            begun.set()
            assert let_go.wait(4 * WITHIN_S)
        return before(grammars, schema)

    monkeypatch.setattr(Grammars, "processor", processor)
    others = inside.core.control.create_key("others", Role.READ)[1]
    with inside.client() as much, inside.client(others) as other, ThreadPoolExecutor(HELD_UP) as threads:
        other.timeout = WITHIN_S
        try:
            held = [threads.submit(ask, much, "Who?", top_k=0, sampling=as_json(HELD)) for _ in range(HELD_UP)]
            assert begun.wait(WITHIN_S)
            assert ask(other, "Who?", top_k=0, sampling={"max_tokens": 2})["answer"]
            assert ask(other, "Who?", top_k=0, sampling=as_json({"const": "free"}))["answer"] == '"free"'
            assert ask(much, "Who?", top_k=0, sampling={"max_tokens": 2})["answer"]  # its own, without a schema
        finally:
            let_go.set()
        assert [each.result()["answer"] for each in held] == ['"held"'] * len(held)


def as_json(schema: Json) -> Json:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


def steps(thread: threading.Thread) -> int:
    assert thread.native_id
    return os.getpriority(os.PRIO_PROCESS, thread.native_id)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have one priority")
def test_threads_that_compute_and_those_that_they_begin_step_back(monkeypatch: pytest.MonkeyPatch) -> None:
    over, begun = threading.Event(), list[threading.Thread]()
    here = steps(threading.current_thread())

    def lowered() -> None:
        lower_priority(LATER)
        begun.append(threading.Thread(target=over.wait))
        begun[0].start()
        over.wait()

    threads = [threading.Thread(target=over.wait, name=name) for name in ("kvweave-engine", "another")]
    threads.append(threading.Thread(target=lowered))
    try:
        for thread in threads:
            thread.start()
        for name in ("collect", "freeze"):  # which would change this process
            monkeypatch.setattr(gc, name, lambda: None)
        serve._settle_when_loaded(cast(Core, SimpleNamespace(wait=lambda: None)))
        while not begun or begun[0].native_id is None:
            threading.Event().wait(0.001)
        expected = [min(here + each, LOWEST) for each in (COMPUTES, 0, LATER, LATER)]
        assert [steps(each) for each in (*threads, *begun)] == expected
        assert steps(threading.current_thread()) == here
    finally:
        over.set()
        for thread in (*threads, *begun):
            thread.join()
