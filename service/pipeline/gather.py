"""What goes into a prompt: finds passages and puts them where they belong. Computes nothing of the model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from retriever.catalog.base import Passage
from retriever.filters import Condition
from retriever.search import MOST, Hit, Query, in_prompt_order, scope, with_neighbors
from service.errors import NotFound
from service.pipeline.ask import Ask, Lookup, Turn
from service.pipeline.events import Source
from service.prompts import ASK, SYSTEM, Part, Said, Titled
from service.tenants import Tenant

RERANKED = 4  # times as many as are wanted are reranked


@dataclass(frozen=True, slots=True)
class Entry:
    """A passage of the prompt. `found`: a search brought it, so it may be left out where there is no room."""

    passage: Passage
    score: float
    found: bool

    @property
    def titled(self) -> Titled:
        """As it stands in a prompt."""
        return Titled(self.passage.text.strip(), self.passage.title)

    @property
    def source(self) -> Source:
        """As an answer names it."""
        passage = self.passage
        return Source(passage.id, passage.document, passage.title, passage.text, self.score, passage)


@dataclass(frozen=True, slots=True)
class Place:
    """In the turn with this number the text of a passage stands from `start` to `end`."""

    turn: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Gathered:
    """The passages of a prompt by their numbers: those before the question, then those inside of turns."""

    ask: Ask
    system: str
    entries: tuple[Entry, ...]
    inside: tuple[tuple[Place, Entry], ...] = ()

    @property
    def all(self) -> tuple[Entry, ...]:
        """By number."""
        return (*self.entries, *(entry for _, entry in self.inside))

    @property
    def sources(self) -> tuple[Source, ...]:
        """In the order of the prompt."""
        loose = (Source("", each.id, each.title, each.text, 0.0) for each in self.ask.documents)
        return (*(entry.source for entry in self.all), *loose)

    def turns(self, *, without: frozenset[int] = frozenset()) -> list[Said]:
        """The chat, with the passages in their places."""
        said = [self._said(number, turn) for number, turn in enumerate(self.ask.turns)]
        asked = said[-1]
        ahead = [
            part
            for number, entry in enumerate(self.entries)
            if number not in without
            for part in (Part(entry.titled.text, number), Part(entry.titled.gap))
        ]
        loose = [Titled(each.text.strip(), each.title) for each in self.ask.documents]
        ahead += [Part(each.text + each.gap) for each in loose]
        last = Said(asked.role, (*ahead, *(_framed(asked.parts) if self.ask.asks else asked.parts)))
        first = [Said("system", (Part(self.system),))] if self.system else []
        return [*first, *said[:-1], last]

    def _said(self, number: int, turn: Turn) -> Said:
        """A turn cut where passages stand in it."""
        parts: list[Part] = []
        end = 0
        for at, (place, _) in enumerate(self.inside, start=len(self.entries)):
            if place.turn == number:
                parts += [Part(turn.text[end : place.start]), Part(turn.text[place.start : place.end], at)]
                end = place.end
        parts.append(Part(turn.text[end:]))
        return Said("system" if turn.role == "developer" else turn.role, tuple(part for part in parts if part.text))


def _framed(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """As a question, in one part with its first words: parts are tokenized apart."""
    if not parts or parts[0].passage is not None:
        return (Part(ASK), *parts)
    return (Part(ASK + parts[0].text), *parts[1:])


def gather(tenant: Tenant, ask: Ask) -> Gathered:
    """All that the request brings, names, or asks to look up. No passage is seen that its key may not see."""
    named = [Entry(passage, 0.0, found=False) for passage in _named(tenant, ask)]
    known = {entry.passage.id for entry in named}
    hits = in_prompt_order(look_up(tenant, ask.lookup, ask=ask)) if ask.lookup else []
    found = [Entry(hit.passage, hit.score, found=True) for hit in hits if hit.passage.id not in known]
    entries = (*named, *found)
    return Gathered(
        ask, _system(tenant, ask, entries=entries), entries, tuple(_inside(tenant, ask)) if ask.inline else ()
    )


def look_up(tenant: Tenant, lookup: Lookup, *, ask: Ask) -> list[Hit]:
    """Best first, each hit before its neighbors."""
    allowed = allowed_by(ask, lookup)
    hits = tenant.library.search(query_of(lookup, ask=ask))
    if lookup.neighbors and hits:
        with tenant.catalog.view() as view:
            hits = with_neighbors(view, hits, before=lookup.neighbors, after=lookup.neighbors, allowed=allowed)
        hits = sorted(hits, key=lambda hit: -hit.score)
    return hits


def query_of(lookup: Lookup, *, ask: Ask) -> Query:
    """What the library is asked."""
    reranked = min(RERANKED * lookup.top_k, MOST) if lookup.rerank else 0
    allowed, bound = allowed_by(ask, lookup), allowed_by(ask)
    return Query(lookup.query, lookup.top_k, lookup.mode, allowed, reranked, bound)


def allowed_by(ask: Ask, lookup: Lookup | None = None) -> Condition:
    """What the request wants to see, within what its key may."""
    if lookup is None:
        return scope(bound=ask.principal.bound)
    return scope(collection=lookup.collection, where=lookup.where, bound=ask.principal.bound)


def _named(tenant: Tenant, ask: Ask) -> Sequence[Passage]:
    """Chunks by their ids, in the order of the request."""
    if not ask.chunk_ids:
        return ()
    with tenant.catalog.view() as view:
        rows = view.rows_of(ask.chunk_ids)
        held = view.holding(list(rows.values()), allowed_by(ask))
    by_id: Mapping[str, Passage] = {passage.id: passage for passage in held}
    missing = [chunk for chunk in ask.chunk_ids if chunk not in by_id]
    if missing:
        raise NotFound(f"no chunk {missing[0]!r} is known: ask POST /v1/search for the ids of chunks")
    return [by_id[chunk] for chunk in dict.fromkeys(ask.chunk_ids)]


def _inside(tenant: Tenant, ask: Ask) -> Iterator[tuple[Place, Entry]]:
    """Chunks whose text stands in the turns."""
    allowed = allowed_by(ask)
    for number, turn in enumerate(ask.turns):
        if turn.text.strip():
            for each in tenant.library.recognise(turn.text, allowed=allowed):
                entry = Entry(each.passage, 0.0, found=False)
                yield Place(number, each.start, each.end), entry


def _system(tenant: Tenant, ask: Ask, *, entries: Sequence[Entry]) -> str:
    """The system prompt that stands before all turns: none, where they have their own or it is a plain chat."""
    if not ask.asks or any(turn.role in ("system", "developer") for turn in ask.turns):
        return ""
    name = ask.lookup.collection if ask.lookup else ""
    name = name or (entries[0].passage.collection if entries else "")
    with tenant.catalog.view() as view:
        bound = ask.principal.bound
        is_seen = bound is None or view.count(scope(collection=name, bound=bound)) > 0
        collection = view.collection(name) if name and is_seen else None
    system = collection.rules.get("system") if collection else None
    return SYSTEM if system is None else str(system)
