"""Chunks over a cluster, without one: how many actors there are, what is refused, and what rounds that lose some do."""

from __future__ import annotations

import pickle
import random
import re
import sys
from collections.abc import Iterator

import pytest

from service.commands.precompute import _remote
from service.errors import ServiceError
from service.ingest.capturing import BATCH_CHUNKS, Item, Outcome
from service.settings import Settings, SettingsError
from store.base import Put
from store.key import CacheKey

RayError = pytest.importorskip("ray.exceptions", reason="needs the extra kvweave[ray]").RayError

from service.precompute import spread  # noqa: E402  # it needs ray


@pytest.mark.parametrize(
    ("address", "store", "told"),
    [
        ("127.0.0.1:9", "lmdb:///nowhere", ":9 does not answer"),
        ("ray://127.0.0.1:9", "lmdb:///nowhere", "RAY_ADDRESS names the cluster's own HOST:PORT"),
        ("127.0.0.1:9", "tiered:lmdb:///nowhere| mem://", "mem:// is of one machine alone"),
    ],
)
def test_what_cannot_be_begun_is_refused(monkeypatch: pytest.MonkeyPatch, address: str, store: str, told: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ServiceError, match=re.escape(told)):
        spread.spread(Settings(store=store), 0)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "service.precompute.spread", None)
    with pytest.raises(SettingsError, match=re.escape("install the extra `kvweave[ray]`")):
        _remote(Settings(store="mem://"), 0)


def test_each_chunk_comes_once_whatever_rounds_lose_and_few_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    chance, taken = random.Random(3), 0
    items = [Item(CacheKey("default", f"{number:032x}", "f" * 32, "q4"), (number,) * 40) for number in range(5000)]

    def coming() -> Iterator[Item]:
        nonlocal taken
        for item in items:
            taken += 1
            yield item

    def lossy(order: object, left: dict[int, bytes], *, form: object) -> Iterator[tuple[int, list[Outcome]]]:
        kept = chance.choice([0.0, 0.5, 1.0])
        for number, batch in list(left.items()):
            if chance.random() < kept:
                yield number, [Outcome(item, Put.STORED) for item in pickle.loads(batch)]
        if chance.random() < 0.5:
            raise RayError("a node is gone")

    monkeypatch.setattr(spread, "_round", lossy)
    monkeypatch.setattr(spread, "_shape_now", lambda *given: spread.Shape(2, 1, 0))
    monkeypatch.setattr(spread, "PAUSE_S", 0)
    monkeypatch.setattr(spread, "ROUNDS", 50)
    monkeypatch.setattr(spread, "WINDOW", 4)
    seen: list[Item] = []
    for outcome in spread._rounds(order=None, items=coming(), actors=2):  # type: ignore[arg-type]
        seen.append(outcome.item)
        assert taken - len(seen) <= (2 * 8 + 2) * BATCH_CHUNKS
    assert sorted(each.key.chunk for each in seen) == [each.key.chunk for each in items]

    monkeypatch.setattr(spread, "_round", lambda *given, **named: iter(()))
    with pytest.raises(ServiceError, match="no actor could compute anything"):
        list(spread._rounds(order=None, items=iter(items), actors=2))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "device", "actors", "wanted"),
    [
        ([{"CPU": 8}, {"CPU": 8}], "auto", 0, (2, 8, 0)),
        ([{"CPU": 2}, {"CPU": 64}], "auto", 0, (2, 2, 0)),  # whichever is lost, the other has room for one
        ([{"CPU": 2}, {"CPU": 64}], "auto", 20, (20, 2, 0)),
        ([{"CPU": 8}, {"CPU": 8}], "auto", 3, (3, 4, 0)),
        ([{"CPU": 1}], "auto", 5, (5, 1, 0)),
        ([{}, {"CPU": 8}], "auto", 0, (1, 8, 0)),  # a head that only leads
        ([{"CPU": 4, "GPU": 2}], "cpu", 0, (1, 4, 0)),
        ([{"CPU": 4, "GPU": 2}, {"CPU": 16}], "auto", 0, (2, 1, 1)),
        ([{"CPU": 4, "GPU": 2}], "cuda", 1, (1, 1, 1)),
        ([], "auto", 0, (1, 1, 0)),
    ],
)
def test_actors_are_as_many_and_as_wide_as_fit(
    nodes: list[dict[str, float]], device: str, actors: int, wanted: tuple[int, int, int]
) -> None:
    assert spread.shape(nodes, device, actors=actors) == spread.Shape(*wanted)


def test_no_cluster_is_begun_that_would_listen_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "canonicalize_bootstrap_address", lambda address: None)
    with pytest.raises(ServiceError, match="set RAY_ADDRESS"):
        spread.spread(Settings(store="s3://bucket/prefix"), 0)
