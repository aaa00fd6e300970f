"""Calls of several requests, written once for both clients: what is asked next depends on what was answered.

A plan is a generator. It yields a step, gets its answer, or the error of that, and returns the result of the whole.
`Client.follow` and `AsyncClient.follow` carry it out. Sends nothing itself.
"""

import math
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar, cast

from kvweave_client.requests import Cursor, Listing, Operation

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """A step: an operation, and how long it may take."""

    operation: Operation[object]
    within_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Pause:
    """A step: nothing, for so long."""

    seconds: float


Plan = Generator[Ask | Pause, object, T]


def ask(operation: Operation[T], *, within_s: float = math.inf) -> Plan[T]:
    """The answer to an operation."""
    return cast(T, (yield Ask(operation, within_s)))


def entries(
    listing: Listing[T], *, most: int = sys.maxsize, fits: Callable[[T], bool] = lambda _: True
) -> Plan[list[T]]:
    """The entries of a listing that fit, the first ones where there are more than `most`."""
    found: list[T] = []
    after: Cursor | None = None
    while True:
        page = yield from ask(listing.page(after))
        found += filter(fits, page.entries)
        after = listing.following(page, after)
        if after is None or len(found) >= most:
            return found[:most]
