"""Pages of lists as OpenAI's clients walk them: from behind an id on, or before it. Knows nothing of what is listed."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from fastapi import Depends, Query
from pydantic import BaseModel

from service.errors import NotFound

MOST: Final = 100
MOST_ASKED: Final = 10_000  # of files; a page has no more than the others all the same

LONGEST_ID: Final = len("file-") + 1100 * 4 * len("~XX")  # a document has 1,100 characters, each four bytes at most

_Id = Annotated[str | None, Query(max_length=LONGEST_ID, pattern=r"^[A-Za-z0-9._~-]*$")]  # as ids are spelt


@dataclass(frozen=True, slots=True)
class Cursor:
    """The page that is asked for. Without an order the newest come first."""

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


def page_of(listed: Iterable[tuple[float, str]], at: Cursor) -> ListPage:
    """A page of these ids, each of which comes with its time. Raises NotFound for a place that is none."""
    limit = min(at.limit, MOST)
    ids = [each for _, each in sorted(listed, reverse=at.order == "desc")]
    if at.after is not None:
        ids = ids[_place(ids, at.after) + 1 :]
    if at.before is not None:
        ids = ids[: _place(ids, at.before)]
        return ListPage(ids[-limit:], len(ids) > limit)
    return ListPage(ids[:limit], len(ids) > limit)


def _place(ids: list[str], wanted: str) -> int:
    if wanted not in ids:
        raise NotFound(f"{wanted[:80]!r} is not in this list: give an id that a page had")
    return ids.index(wanted)
