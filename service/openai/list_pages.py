"""Pages of lists as OpenAI's clients walk them: from behind an id on, or before it. Knows nothing of what is listed."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final, Literal

from blake3 import blake3
from fastapi import Depends, Query, Request
from pydantic import BaseModel

from service.api.caller import By
from service.errors import NotFound

MOST: Final = 100
MOST_ASKED: Final = 10_000  # of files; a page has no more than the others all the same
MOST_ENDS: Final = 20_000  # of pages that keys got lately from this process

LONGEST_ID: Final = len("file-") + 1100 * 4 * len("~XX")  # a document has 1,100 characters, each four bytes at most

_Id = Annotated[str | None, Query(max_length=LONGEST_ID, pattern=r"^[A-Za-z0-9._~-]*$")]  # as ids are spelt


@dataclass(frozen=True, slots=True)
class Cursor:
    """The page that is asked for, and by whom. Without an order the newest come first."""

    by: By
    request: Request
    limit: Annotated[int, Query(ge=1, le=MOST)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: _Id = None
    before: _Id = None


@dataclass(frozen=True, slots=True)
class FileCursor(Cursor):
    """A page of all files."""

    limit: Annotated[int, Query(ge=1, le=MOST_ASKED)] = MOST_ASKED


At = Annotated[Cursor, Depends()]
AtFile = Annotated[FileCursor, Depends()]


class ListBody(BaseModel):
    """A page as it is sent, but for what it lists."""

    object: Literal["list"] = "list"
    first_id: str | None
    last_id: str | None
    has_more: bool


@dataclass(frozen=True, slots=True)
class ListPage:
    """The ids of a page, in its order, and whether more follow."""

    ids: list[str]
    has_more: bool

    @property
    def first_id(self) -> str | None:
        return self.ids[0] if self.ids else None

    @property
    def last_id(self) -> str | None:
        return self.ids[-1] if self.ids else None


@dataclass(slots=True)
class _End:
    """The item at an end of a page. `time`: what it had there; None where no page ended with it."""

    time: float | None = None


@lru_cache(MOST_ENDS)
def _end_of(_digest: bytes) -> _End:
    """What is kept of an end, new where nothing is. By a digest: what is deleted leaves no name here."""
    return _End()


def _end(at: Cursor, name: str) -> _End:
    """An end of this list's pages, for this key alone."""
    told = (at.by.who.tenant, at.by.who.key_id, at.request.url.path, name)
    return _end_of(blake3(json.dumps(told).encode()).digest())


def page_of(listed: Iterable[tuple[float, str]], at: Cursor) -> ListPage:
    """A page of these ids, each of which comes with its time. Raises NotFound for a place that is none.

    Where a page ended the next one goes on, though what stood there has left the list.
    """
    limit = min(at.limit, MOST)
    times = {each: time for time, each in listed}
    for each in (at.after, at.before):
        if each is not None and each not in times and (time := _end(at, each).time) is not None:
            times[each] = time
    ids = sorted(times, key=lambda each: (times[each], each), reverse=at.order == "desc")
    if at.after is not None:
        ids = ids[_place(ids, at.after) + 1 :]
    if at.before is not None:
        ids = ids[: _place(ids, at.before)]
    page = ListPage(ids[:limit] if at.before is None else ids[-limit:], len(ids) > limit)
    if len(page.ids) < len(times):
        for each in (*page.ids[:1], *page.ids[-1:]):
            _end(at, each).time = times[each]
    return page


def _place(ids: list[str], wanted: str) -> int:
    if wanted not in ids:
        raise NotFound(f"{wanted[:80]!r} is not in this list: give an id that a page had")
    return ids.index(wanted)
