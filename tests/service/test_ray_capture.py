"""Chunks over a cluster, without one: how many actors there are, what is refused, and what is done about losses."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator, Sequence

import pytest

from service.commands.precompute import _remote
from service.documents.chunk_capture import BATCH_CHUNKS, CaptureItem, CaptureOutcome
from service.errors import ServiceError
from service.model.capture_context import ChunkIds
from service.settings import Settings, SettingsError
from store.blob_store import Put
from store.key import CacheKey

RayError = pytest.importorskip("ray.exceptions", reason="needs the extra kvweave[ray]").RayError

from service.app import ray_capture  # noqa: E402  # it needs ray


@pytest.mark.parametrize(
    ("address", "store", "told"),
    [
        ("127.0.0.1:9", "lmdb:///nowhere", ":9 does not answer"),
        ("local", "lmdb:///nowhere", "local does not answer"),  # Ray would begin one, that listens everywhere
        ("ray://127.0.0.1:9", "lmdb:///nowhere", "RAY_ADDRESS names the cluster's own HOST:PORT"),
        ("127.0.0.1:9", "tiered:lmdb:///nowhere| mem://", "mem:// is of one machine alone"),
    ],
)
def test_what_cannot_be_begun_is_refused(monkeypatch: pytest.MonkeyPatch, address: str, store: str, told: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ServiceError, match=re.escape(told)):
        ray_capture.ray_capture(Settings(store=store), 0)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "service.app.ray_capture", None)
    with pytest.raises(SettingsError, match=re.escape("install the extra `kvweave[ray]`")):
        _remote(Settings(store="mem://"), 0)


class Lossy:
    """In the place of Ray: actors whose batches end in any order, or are lost as often as `loss` says."""

    def __init__(self, loss: float) -> None:
        self.chance = random.Random(3)
        self.loss = loss
        self._results: dict[int, list[CaptureOutcome]] = {}

    def remote(self, kind: type) -> Lossy:
        return self

    def options(self, **wanted: int) -> Hiring:
        assert wanted["max_restarts"] == wanted["max_task_retries"] == 0
        return Hiring(self)

    def begin(self, batch: Sequence[CaptureItem]) -> int:
        flight = self.chance.getrandbits(60)
        self._results[flight] = [CaptureOutcome(item, Put.STORED) for item in batch]
        return flight

    def wait(self, flights: list[int], *, timeout: float) -> tuple[list[int], list[int]]:
        first = self.chance.choice(flights)
        return [first], [flight for flight in flights if flight != first]

    def get(self, flight: int) -> list[CaptureOutcome]:
        outcomes = self._results.pop(flight)
        if self.chance.random() < self.loss:
            raise RayError("a node is gone")
        return outcomes


class Hiring:
    def __init__(self, cluster: Lossy) -> None:
        self._cluster = cluster

    def remote(self, order: object) -> Hired:
        return Hired(self._cluster)


class Hired:
    """An actor; `compute` has the form of Ray's methods."""

    def __init__(self, cluster: Lossy) -> None:
        self.compute = self
        self._cluster = cluster

    def remote(self, batch: Sequence[CaptureItem]) -> int:
        return self._cluster.begin(batch)


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.5])
def test_each_chunk_comes_once_whatever_is_lost_and_few_wait(monkeypatch: pytest.MonkeyPatch, loss: float) -> None:
    monkeypatch.setattr(ray_capture, "ray", Lossy(loss))
    items = [
        CaptureItem(CacheKey("default", f"{number:032x}", "f" * 32, "q4"), ChunkIds((number,) * 40))
        for number in range(5000)
    ]
    taken = 0

    def coming() -> Iterator[CaptureItem]:
        nonlocal taken
        for item in items:
            taken += 1
            yield item

    seen: list[CaptureItem] = []
    for outcome in ray_capture._computed(None, coming(), form=ray_capture.ActorShape(3, 1, 0)):  # type: ignore[arg-type]
        seen.append(outcome.item)
        assert taken - len(seen) <= (3 * (1 + ray_capture.AT_ONCE) + 2) * BATCH_CHUNKS
    assert sorted(each.key.chunk for each in seen) == [each.key.chunk for each in items]


def test_actors_that_are_lost_again_and_again_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_capture, "ray", Lossy(1.0))
    items = [CaptureItem(CacheKey("default", "c" * 32, "f" * 32, "q4"), ChunkIds((1, 2)))]
    with pytest.raises(ServiceError, match="no actor could compute anything"):
        list(ray_capture._computed(None, items, form=ray_capture.ActorShape(2, 1, 0)))  # type: ignore[arg-type]


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
    assert ray_capture.shape(nodes, device, actors=actors) == ray_capture.ActorShape(*wanted)


def test_where_none_is_named_one_is_found_here_or_none_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(address: str, **options: object) -> None:
        assert address == "auto"
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_capture.ray, "init", init)
    with pytest.raises(ServiceError, match="RAY_ADDRESS names"):
        ray_capture.ray_capture(Settings(store="s3://bucket/prefix"), 0)
