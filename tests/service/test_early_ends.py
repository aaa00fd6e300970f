"""What is deleted or cancelled while it is worked on ends soon, and a document of many chunks goes in few steps."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from blend.engine import local_engine
from service.documents import chunk_capture, ingestion, tenants
from store.key import Scope
from store.record import Record
from tests.service.checkpoints import small
from tests.service.serving import Inside, good, in_process, settings_in, wait_for
from tests.service.test_deletes import IN_JOBS, SECRET, TENANT, FirstHeld, accepted, check_gone, deleted, draft, passed

LAMPS = f"{SECRET} sells lamps in shop {{}}."


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    folder = tmp_path_factory.mktemp("ends")
    with in_process(settings_in(folder, store=f"tiered:mem://|lmdb://{folder}/store", model=small())) as inside:
        yield inside


@pytest.fixture
def client(running: Inside) -> Iterator[httpx.Client]:
    with running.client() as client:
        yield client


@pytest.mark.parametrize("what", ["document", "job"])
def test_what_ends_while_it_is_computed_is_computed_no_further_than_its_turn(
    running: Inside, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    engine, gate, passes, whole = running.core.model.engine, FirstHeld(), list[int](), local_engine.capture
    captures, begun = engine.capture, list[Future[list[Record]]]()

    def counted(decoder: object, prefix: object, **named: Any) -> list[Record]:  # noqa: ANN401
        passes.append(len(named["chunks"]))
        return whole(decoder, prefix, **named)  # type: ignore[arg-type]

    def noted(*told: Any, **named: Any) -> Future[list[Record]]:  # noqa: ANN401
        begun.append(captures(*told, **named))
        return begun[-1]

    monkeypatch.setattr(local_engine, "capture", gate.before(counted))
    monkeypatch.setattr(local_engine, "TURN_S", 0.0)  # of one pass
    monkeypatch.setattr(engine, "capture", noted)
    monkeypatch.setattr(chunk_capture, "BATCH_CHUNKS", 16)
    monkeypatch.setattr(chunk_capture, "LOOK_S", 0.01)
    try:
        job = accepted(client, draft("a", *(LAMPS.format(number) for number in range(40))))
        passed(gate)
        wait_for(lambda: len(begun) == 2, "one batch is computed, and one waits")
        good(client.delete("/v1/documents/a" if what == "document" else f"/v1/jobs/{job}"))
        wait_for(lambda: all(each.cancelled() for each in begun), "both are given up")
    finally:
        gate.opened.set()
    check_gone(client, running.core, [])
    assert passes[1:] == [1]  # of what `settled` puts in


@pytest.mark.parametrize("what", ["document", "job"])
def test_what_ends_while_it_is_cut_is_cut_no_further(
    running: Inside, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    gate, model, seen = FirstHeld(), running.core.model, list[str]()
    count = model.counted

    def counted(texts: Iterable[str]) -> list[int]:
        seen.extend(texts := [*texts])
        return count(texts)

    monkeypatch.setattr(type(model), "counted", lambda self, texts: gate.before(counted)(texts))
    monkeypatch.setattr(ingestion, "PROGRESS_S", 0.0)
    try:
        text = "".join(f"{LAMPS.format(number)} " for number in range(40_000))
        job = good(client.post("/v1/documents", json={"documents": [{"id": "a", "text": text}]}))["job_id"]
        passed(gate)
        good(client.delete("/v1/documents/a" if what == "document" else f"/v1/jobs/{job}"))
    finally:
        gate.opened.set()
    check_gone(client, running.core, [])
    assert 0 < len([each for each in seen if SECRET in each]) < 10_000


def test_many_chunks_go_in_pieces_for_which_the_store_has_time(
    running: Inside, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One piece that took too long makes the next one smaller, not small."""
    store, now, pieces = running.core.tenants.open(TENANT).store, [0.0], list[int]()
    deletes = store.delete_all

    def slow(scopes: Sequence[Scope]) -> list[int]:
        pieces.append(len(scopes))
        now[0] += len(scopes) / 1000
        return deletes(scopes)

    with IN_JOBS["before it begins"].gated(running.core) as gate, monkeypatch.context() as patch:
        accepted(client, draft("a", *(LAMPS.format(number) for number in range(1500))))
        passed(gate)
        patch.setattr(store, "delete_all", slow)
        patch.setattr(tenants, "time", SimpleNamespace(monotonic=lambda: now[0]))
        deleted(client, "a")
    assert sum(pieces) == 1500 and max(pieces) < 200 and len(pieces) < 25, pieces
    check_gone(client, running.core, [])
