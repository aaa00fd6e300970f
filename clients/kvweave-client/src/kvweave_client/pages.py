"""How lists come over the wire: entries under a name of their own, and where the next page begins."""

from typing import Any, ClassVar, TypeVar, cast

import msgspec

from kvweave_client import answers
from kvweave_client.requests import Cursor, Page

T = TypeVar("T")


class SearchAnswer(msgspec.Struct, frozen=True):
    """The hits of a search, and how much they have to do with the query."""

    hits: tuple[answers.Source, ...]
    relevance: answers.Relevance | None = None
    note: str = ""


class _Whole(msgspec.Struct, frozen=True):
    next: ClassVar[None] = None


def _listed(entries: str, kind: type[T], *, cursor: type[Cursor] | None = None) -> type[Page[T]]:
    """What holds entries under this name; pages also say where the next one begins, as a cursor of that type."""
    fields: list[Any] = [("entries", tuple[kind, ...], msgspec.field(name=entries))]
    fields += [("next", cursor | None, None)] if cursor else []
    return cast("type[Page[T]]", msgspec.defstruct(entries, fields, bases=(_Whole,), frozen=True))


Results = _listed("results", answers.Ranked)
Models = _listed("data", answers.Model)
Collections = _listed("collections", answers.Collection)
Documents = _listed("documents", answers.Document, cursor=str)
Chunks = _listed("chunks", answers.DocumentChunk, cursor=int)
Jobs = _listed("jobs", answers.Job, cursor=str)
Items = _listed("items", answers.JobItem, cursor=int)
States = _listed("chunks", answers.ChunkState, cursor=int)
