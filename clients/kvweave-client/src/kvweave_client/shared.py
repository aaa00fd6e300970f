"""Clients that a whole process shares: for libraries whose objects are copied, pickled and used in many event loops.

Connections are those of the process and of each event loop; a fork of the process has others.
"""

import asyncio
import atexit
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import httpx

from kvweave_client.aio import AsyncClient
from kvweave_client.client import Client
from kvweave_client.target import BASE_URL, RETRIES, TIMEOUTS, Retries, Timeouts

REMEMBERED: Final = 128  # clients; each is small
LIMITS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=3.0)

Lives = dict[asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, AsyncGenerator[httpx.AsyncClient]]]


@dataclass(frozen=True, slots=True)
class Access:
    """Where a service is, and how it is asked. Nobody closes the clients that come of it."""

    base_url: str = BASE_URL
    api_key: str | None = field(default=None, repr=False)
    timeouts: Timeouts = TIMEOUTS
    retries: Retries = RETRIES

    @staticmethod
    def within(seconds: float | None, base_url: str, *, api_key: str | None, max_retries: int | None) -> "Access":
        """A service whose calls take so long, and whose streams stand still for so long. None: as long as usual."""
        timeouts = TIMEOUTS
        if seconds is not None:
            timeouts = Timeouts(min(TIMEOUTS.connect_s, seconds), call_s=seconds, silence_s=seconds)
        return Access(base_url, api_key, timeouts, RETRIES if max_retries is None else Retries(most=max_retries))

    def client(self) -> Client:
        """The process's client, for any thread."""
        return _client(self, os.getpid())

    async def async_client(self) -> AsyncClient:
        """The client of the event loop that runs, as no other can use its connections."""
        return _async_client(self, await _http_of_loop())


class Connection:
    """The clients that an object was given, else those that the process shares. A copy has none that were given."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._client: Client | None = None
        self._aclient: AsyncClient | None = None

    def use(self, client: Client | None, aclient: AsyncClient | None) -> None:
        """Takes these clients; who gives them closes them."""
        self._client = client or self._client
        self._aclient = aclient or self._aclient

    @property
    def client(self) -> Client:
        """The client for any thread."""
        return self._client or self._access.client()

    async def asynchronous(self) -> AsyncClient:
        """The client for the event loop that runs."""
        return self._aclient or await self._access.async_client()

    def __reduce__(self) -> tuple[type["Connection"], tuple[Access]]:
        return Connection, (self._access,)


@lru_cache(REMEMBERED)
def _client(access: Access, process: int) -> Client:
    http = _http(process)
    return Client(access.base_url, access.api_key, timeouts=access.timeouts, retries=access.retries, http=http)


@lru_cache(REMEMBERED)
def _async_client(access: Access, http: httpx.AsyncClient) -> AsyncClient:
    return AsyncClient(access.base_url, access.api_key, timeouts=access.timeouts, retries=access.retries, http=http)


@lru_cache(1)
def _http(process: int) -> httpx.Client:
    """The connections of a process, until it ends."""
    http = httpx.Client(limits=LIMITS)
    atexit.register(http.close)
    return http


async def _http_of_loop() -> httpx.AsyncClient:
    """The connections of the event loop that runs, until it ends."""
    loop = asyncio.get_running_loop()
    for closed in [each for each in list(_lives) if each.is_closed()]:
        _lives.pop(closed, None)
    if loop not in _lives:
        life = _life(loop)
        _lives[loop] = await anext(life), life  # does not wait for anything
    return _lives[loop][0]


async def _life(loop: asyncio.AbstractEventLoop) -> AsyncGenerator[httpx.AsyncClient]:
    """Whoever ends a loop, as asyncio.run does, closes its generators; and this one closes the connections."""
    async with httpx.AsyncClient(limits=LIMITS) as http:
        try:
            yield http
        finally:
            _lives.pop(loop, None)


_lives: Final[Lives] = {}
