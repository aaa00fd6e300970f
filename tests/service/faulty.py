"""Parts of a service in this process that fail, or wait, when a test says so. Knows no requests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import httpx
from torch import Tensor

from blend.engine.engine import EngineRequest, Event
from blend.engine.local_engine import LocalEngine
from blend.run.context import Segment
from service.app.core import Core
from store.blob import Blob, Buffer
from store.blob_store import BlobStore, Put
from store.errors import Miss, StoreUnavailable
from store.key import CacheKey, Scope
from store.reader import BlobReader
from tests.service.serving import WAIT_S, wait_for

ENDLESS = 12  # a request for so many tokens, or more, gets all of them

Fault = Callable[[str, object], None]  # of a method's name and its first argument; raises, or waits


def nothing(name: str, what: object) -> None:
    """No fault."""


class FaultyStore:
    """A store that does what the fault in force says before each call, and before each `frame` (a key, a number)."""

    def __init__(self, inner: BlobStore) -> None:
        self.inner = inner
        self.hidden: frozenset[str] = frozenset()  # chunks that nobody reaches, so that nobody fills them either
        self._fault: Fault = nothing

    @contextmanager
    def failing(self, fault: Fault) -> Generator[None]:
        """Until the block ends."""
        self._fault = fault
        try:
            yield
        finally:
            self._fault = nothing

    def open(self, key: CacheKey) -> BlobReader | Miss:
        self._fault("open", key)
        if key.chunk in self.hidden:
            raise StoreUnavailable(f"{key.chunk} is out of reach: wait")
        found = self.inner.open(key)
        if isinstance(found, Miss):
            return found

        @contextmanager
        def fetch(number: int) -> Generator[Buffer]:
            self._fault("frame", (key, number))
            with found.frame(number) as data:
                yield data

        return BlobReader(found.head, found.raw_head, fetch=fetch, source=found.source)  # through frames alone

    def put_all(self, blobs: Sequence[Blob]) -> list[Put]:
        """Through the faults of each put."""
        return [self.put(blob) for blob in blobs]

    def delete_all(self, scopes: Sequence[Scope]) -> list[int]:
        """Through the faults of each delete."""
        for scope in scopes:
            self._fault("delete", scope)
        return self.inner.delete_all(scopes)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (any method of a store)
        found = getattr(self.inner, name)
        if not callable(found):
            return found

        def call(*arguments: object, **named: object) -> object:
            self._fault(name, arguments[0] if arguments else None)
            return found(*arguments, **named)

        return call


def around(store: BlobStore) -> BlobStore:
    """For `in_process`."""
    return cast(BlobStore, FaultyStore(store))


def flipped(data: Buffer) -> bytes:
    """With one bit in its midst changed."""
    changed = bytearray(data)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


def damage(store: BlobStore, key: CacheKey, *, frame: int | None) -> None:
    """Behind everybody's back: one frame, or the head where none is named, in every tier that has the blob.

    One that keeps layers, which were checked, forgets them.
    """
    store.flush()  # copies on their way to a nearer tier are there
    for tier in store.tiers:
        found = tier.open(key)
        if isinstance(found, BlobReader) and found.unpacked is not None:
            tier.discard(key)
        elif isinstance(found, BlobReader):
            blob = found.blob()
            frames = [flipped(data) if frame == number else data for number, data in enumerate(blob.frames)]
            head = flipped(blob.head_bytes) if frame is None else blob.head_bytes
            tier.replace(Blob(blob.head, head, tuple(frames)))


def is_sound(store: BlobStore, key: CacheKey) -> bool:
    """Has every tier that has the blob all of it?"""
    found = [tier.open(key) for tier in store.tiers]
    absent = [each for each in found if isinstance(each, Miss)]
    if len(absent) == len(found) or any(each.reason.value != "absent" for each in absent):
        return False
    try:
        return all(each.unpacked or each.blob() for each in found if isinstance(each, BlobReader))
    except ValueError:
        return False


@dataclass(slots=True)
class Gate:
    """Where a thread waits until a test lets it go on."""

    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def pass_through(self) -> None:
        self.reached.set()
        assert self.opened.wait(WAIT_S), "a gate was never opened"


class Steps:
    """An engine's decoding steps: counted, and failing or waiting as told. Long requests never stop by themselves."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self.taken = 0
        self.before: Callable[[Sequence[Segment]], None] = lambda segments: None
        decoder = engine._decoder
        self._advance, self._submit = decoder.advance, engine.submit
        decoder.advance = self._step  # type: ignore[method-assign]
        engine.submit = self._begin  # type: ignore[method-assign]

    @property
    def is_idle(self) -> bool:
        """Does nobody hold a place in the engine?"""
        return not (self.engine._running or self.engine._waiting)

    def _step(self, segments: list[Segment], ids: Tensor, **more: Any) -> Tensor | None:  # noqa: ANN401
        if not more:  # captures have a course
            self.before(segments)
            self.taken += 1
        return self._advance(segments, ids, **more)

    def _begin(self, request: EngineRequest, listen: Callable[[Event], None]) -> Any:  # noqa: ANN401
        if request.sampling.max_tokens >= ENDLESS:
            request = replace(request, sampling=replace(request.sampling, ignore_eos=True))
        return self._submit(request, listen)


def begun(base_url: str, key: str, *, path: str, body: bytes) -> socket.socket:
    """A connection on which a request was sent, and nothing was read."""
    url = httpx.URL(base_url)
    connection = socket.create_connection((url.host, url.port or 80))
    head = f"POST {path} HTTP/1.1\r\nHost: {url.host}\r\nAuthorization: Bearer {key}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def wait_idle(core: Core, steps: Steps) -> None:
    """Until nobody's request is under way."""
    wait_for(lambda: core.pipeline.in_flight == 0 and steps.is_idle, "no request is under way")
