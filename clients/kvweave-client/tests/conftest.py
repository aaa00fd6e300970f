"""Both clients behind one face, so that each test says once what holds for both."""

import importlib.util
from collections.abc import AsyncIterable, Awaitable, Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

import kvweave_client as kv

KINDS = ("sync", "asyncio", *(["trio"] if importlib.util.find_spec("trio") else []))

PATIENT = kv.Timeouts(call_s=60, silence_s=60)
QUICK = kv.Retries(first_s=0.001)

Found = Any  # whatever an operation gives


class Caller(Protocol):
    """A client. `do` makes a call; of what comes bit by bit, it gives a list."""

    def do(self, name: str, *args: object, **options: object) -> Found: ...

    def some(self, name: str, *args: object, most: int, **options: object) -> list[Found]:
        """The first of what comes bit by bit; then the call is left."""
        ...


class SyncCaller:
    def __init__(self, client: kv.Client) -> None:
        self.client = client

    def do(self, name: str, *args: object, **options: object) -> Found:
        found = getattr(self.client, name)(*args, **options)
        return list(found) if isinstance(found, Iterator) else found

    def some(self, name: str, *args: object, most: int, **options: object) -> list[Found]:
        with getattr(self.client, name)(*args, **options) as stream:
            return [event for event, _ in zip(stream, range(most), strict=False)]


class AsyncCaller:
    def __init__(self, client: kv.AsyncClient, portal: BlockingPortal) -> None:
        self.client = client
        self.portal = portal

    def do(self, name: str, *args: object, **options: object) -> Found:
        async def go() -> Found:
            found = getattr(self.client, name)(*args, **options)
            if isinstance(found, AsyncIterable):
                return [each async for each in found]
            assert isinstance(found, Awaitable)
            return await found

        return self.portal.call(go)

    def some(self, name: str, *args: object, most: int, **options: object) -> list[Found]:
        async def go() -> list[Found]:
            async with getattr(self.client, name)(*args, **options) as stream:
                return [await anext(stream) for _ in range(most)]

        return self.portal.call(go)


Connect = Callable[..., Caller]


@contextmanager
def caller_of(
    kind: str,
    base_url: str,
    *,
    api_key: str | None = None,
    timeouts: kv.Timeouts = PATIENT,
    retries: kv.Retries = QUICK,
    http: Found = None,
) -> Generator[Caller]:
    """A client of this kind, closed when the block ends."""
    if kind == "sync":
        with kv.Client(base_url, api_key, timeouts=timeouts, retries=retries, http=http) as client:
            yield SyncCaller(client)
        return
    with start_blocking_portal(kind) as portal:
        client = kv.AsyncClient(base_url, api_key, timeouts=timeouts, retries=retries, http=http)
        with portal.wrap_async_context_manager(client):
            yield AsyncCaller(client, portal)


@pytest.fixture(scope="session", autouse=True)
def _no_proxy() -> Iterator[None]:
    """Between the tests and their servers, whatever the environment says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "*")
        yield


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def connect(kind: str) -> Iterator[Connect]:
    """Makes clients of one kind."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(caller_of(kind, *args, **options))


@pytest.fixture(scope="module")
def connect_once(kind: str) -> Iterator[Connect]:
    """The same, for a client that all tests of a module share."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(caller_of(kind, *args, **options))
