"""Finds a prompt's passages (named, searched, recognised) and its system prompt; tells or refuses an empty find."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from retriever.documents import Json
from retriever.filter_condition import FilterCondition, scope
from retriever.search import MOST, Found, Query, Relevance, in_prompt_order
from retriever.types import Passage
from service.answers.answer_request import AnswerRequest, Lookup, Turn
from service.answers.events import Source
from service.documents.collection_rules import REFUSE, check_collection, rules_of, sees_collection
from service.documents.tenants import Tenant
from service.errors import Invalid, NotFound
from service.model.prompt_builder import ASK, SYSTEM, PromptPassage, TurnPart, TurnParts, passage_parts
from service.reports import RelevanceReport

RERANKED = 4  # times as many as are wanted are reranked
_BETWEEN = "\0"  # joins texts that are searched together: hardly any chunk holds it


@dataclass(frozen=True, slots=True)
class GatheredPassage:
    """A passage of the prompt. `found`: a search brought it, so it may be left out where there is no room."""

    passage: Passage
    score: float
    found: bool

    @property
    def titled(self) -> PromptPassage:
        return PromptPassage(self.passage.text.strip(), self.passage.title)


@dataclass(frozen=True, slots=True)
class TextPlace:
    """Where a passage stands: from `start` to `end` of the text with this number, a turn's or a loose document's."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Gathered:
    """The passages of a prompt by their numbers: those before the question, those inside of turns, and those inside
    of the documents that came with the request."""

    ask: AnswerRequest
    system: str
    passages: tuple[GatheredPassage, ...]
    inside: tuple[tuple[TextPlace, GatheredPassage], ...] = ()
    loose: tuple[tuple[TextPlace, GatheredPassage], ...] = ()
    relevance: RelevanceReport | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader should know of what was found."""
        return () if self.relevance is None or self.relevance.found else (nothing_found(self.relevance),)

    @property
    def all(self) -> tuple[GatheredPassage, ...]:
        return (*self.passages, *(each for _, each in (*self.inside, *self.loose)))

    @property
    def texts(self) -> list[str]:
        """The texts behind the answer: all passages, and the documents that came with the request."""
        return [each.titled.text for each in self.all] + [each.text.strip() for each in self.ask.documents]

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources of the prompt, each once: what came with the request is named as it came, not by its passages."""
        shown = (*self.passages, *(each for _, each in self.inside))
        return (*(self._source(each) for each in shown), *self._loose_sources())

    def _source(self, shown: GatheredPassage) -> Source:
        """The passage as an answer names it, its document as the asker does."""
        passage, document = shown.passage, self.ask.principal.shown_id(shown.passage.document)
        return Source(passage.id, document, passage.title, passage.text, shown.score, passage)

    def _loose_sources(self) -> Iterator[Source]:
        """The loose documents; with a chunk's id where one is a chunk from its first letter to its last."""
        whole = {
            place.number: each.passage.id
            for place, each in self.loose
            if place.end - place.start == len(self.ask.documents[place.number].text.strip())
        }
        for number, each in enumerate(self.ask.documents):
            yield Source(whole.get(number, ""), each.id, each.title, each.text, 0.0)

    def turns(self, *, without: frozenset[int] = frozenset()) -> list[TurnParts]:
        """The chat, with the passages in their places."""
        turns = [self._turn_parts(number, turn) for number, turn in enumerate(self.ask.turns)]
        asked = turns[self.ask.question]
        parts = _framed(asked.parts) if self.ask.asks else asked.parts
        shown = {number: each.titled for number, each in enumerate(self.passages) if number not in without}
        turns[self.ask.question] = replace(asked, parts=(*passage_parts(shown), *self._loose_parts(), *parts))
        system = [TurnParts("system", (TurnPart(self.system),))] if self.system else []
        return [*system, *turns]

    def _turn_parts(self, number: int, turn: Turn) -> TurnParts:
        """A turn cut where passages stand in it."""
        places = self._places(self.inside, first=len(self.passages))
        parts = tuple(_cut(turn.text, places.get(number, [])))
        role = "system" if turn.role == "developer" else turn.role
        return TurnParts(role, parts, turn.calls, turn.answers)

    def _loose_parts(self) -> Iterator[TurnPart]:
        """The documents that came with the request, cut where passages stand in them."""
        places = self._places(self.loose, first=len(self.passages) + len(self.inside))
        for number, each in enumerate(self.ask.documents):
            titled = PromptPassage(each.text.strip(), each.title)
            yield from _cut(titled.text + titled.gap, places.get(number, []))

    def _places(
        self, found: Sequence[tuple[TextPlace, GatheredPassage]], *, first: int
    ) -> dict[int, list[tuple[TextPlace, int]]]:
        """The places of passages by the numbers of the texts, each with its passage's number."""
        places: dict[int, list[tuple[TextPlace, int]]] = {}
        for at, (place, _) in enumerate(found, start=first):
            places.setdefault(place.number, []).append((place, at))
        return places


def _cut(text: str, places: Sequence[tuple[TextPlace, int]]) -> Iterator[TurnPart]:
    """The parts of a text, cut where passages stand in it, with their numbers; none is empty."""
    end = 0
    for place, passage in places:
        if place.start > end:
            yield TurnPart(text[end : place.start])
        yield TurnPart(text[place.start : place.end], passage)
        end = place.end
    if end < len(text):
        yield TurnPart(text[end:])


def _framed(parts: tuple[TurnPart, ...]) -> tuple[TurnPart, ...]:
    """The parts as a question: `ASK` is in one part with its first words, as parts are tokenized apart."""
    if not parts or parts[0].passage is not None:
        return (TurnPart(ASK), *parts)
    return (TurnPart(ASK + parts[0].text), *parts[1:])


def gather(tenant: Tenant, ask: AnswerRequest) -> Gathered:
    """Gather all that the request brings, names, or asks to look up, of the passages that its key may see.

    Raises NotFound where there is nothing to answer a question from.
    """
    named = [GatheredPassage(passage, 0.0, found=False) for passage in _named(tenant, ask)]
    known = {each.passage.id for each in named}
    looked = look_up(tenant, ask.lookup, bound=ask.principal.bound) if ask.lookup else Found([])
    relevance = relevance_report(looked)
    hits = in_prompt_order(looked.hits)
    found = [GatheredPassage(hit.passage, hit.score, found=True) for hit in hits if hit.passage.id not in known]
    passages = (*named, *found)
    inside = _recognised(tenant, ask, texts=[turn.text for turn in ask.turns]) if ask.inline else ()
    loose = _recognised(tenant, ask, texts=[each.text.strip() for each in ask.documents])
    if ask.asks and ask.lookup and ask.lookup.top_k and not passages and not ask.documents:
        _refuse_nothing(tenant, ask)
    if ask.lookup and relevance and not relevance.found and not named and not ask.documents:
        _refuse_unfound(tenant, ask.lookup, looked=looked, relevance=relevance)
    return Gathered(ask, _system(tenant, ask, passages=passages), passages, tuple(inside), tuple(loose), relevance)


def _refuse_unfound(tenant: Tenant, lookup: Lookup, *, looked: Found, relevance: RelevanceReport) -> None:
    """Raises NotFound where one of the collections has no answer without a find."""
    with tenant.catalog.view() as view:
        for name in lookup.collections or [hit.passage.collection for hit in looked.hits[:1]]:
            if rules_of(view, name).on_empty == REFUSE:
                raise NotFound(f"{nothing_found(relevance)}, and the collection {name!r} refuses to answer without")


def nothing_found(relevance: RelevanceReport) -> str:
    """A sentence for whoever asked."""
    return (
        f"nothing was found that answers this: the nearest passage comes to {relevance.best:.2f}, "
        f"a find to {relevance.floor:.2f} at least"
    )


def relevance_report(found: Found) -> RelevanceReport | None:
    each = found.relevance
    return each and RelevanceReport(each.is_found, round(each.best, 4), round(each.floor, 4))


def _refuse_nothing(tenant: Tenant, ask: AnswerRequest) -> None:
    """Raises NotFound where the key sees no document: an answer would be made up."""
    with tenant.catalog.view() as view:
        if view.count(scope(bound=ask.principal.bound)):
            return
    raise NotFound(
        "there are no documents to answer from: put some in with kvweave precompute or on the console page, or wait "
        "for those that are on their way"
    )


def look_up(tenant: Tenant, lookup: Lookup, *, bound: Json | None) -> Found:
    """The hits, best first, each before its neighbors. One search finds those of all collections, scored alike.

    Raises NotFound for a collection that is not there, and Invalid for one that is kept without search.
    """
    allowed, floors = _searched(tenant, lookup, bound=bound)
    reranked = min(RERANKED * lookup.top_k, MOST) if lookup.rerank else 0
    asked = (lookup.query, lookup.top_k, lookup.mode, allowed, reranked)
    query = Query(*asked, bound=scope(bound=bound), neighbors=lookup.neighbors, floors=floors)
    found = tenant.library.look_for(query)
    return found if lookup.least is None else _scoring(found, lookup.least)


def _scoring(found: Found, least: float) -> Found:
    """The hits that score so much at least. Where some were found and none does, nothing is found."""
    hits = [hit for hit in found.hits if hit.score >= least]
    is_left_out = bool(found.hits) and not hits
    return Found(hits, Relevance(found.hits[0].score, least) if is_left_out else found.relevance)


def _searched(tenant: Tenant, lookup: Lookup, *, bound: Json | None) -> tuple[FilterCondition, Mapping[str, float]]:
    """The part of the catalog to search for the request, within what its key may see, and the floors of finds of
    collections that have their own."""
    floors: dict[str, float] = {}
    with tenant.catalog.view() as view:
        hidden = view.unsearched()
        for name in lookup.collections:
            check_collection(view, name, bound=bound)
            if name in hidden and sees_collection(view, name, bound=bound):
                raise Invalid(
                    f'the collection {name!r} is kept without search: put "search": true into its rules '
                    "(PUT /v1/collections/{name}), or name chunk_ids",
                    field="collection",
                )
            if (floor := rules_of(view, name).floor) is not None:
                floors[name] = floor
    return scope(*lookup.collections, where=lookup.where, bound=bound, without=hidden), floors


def _named(tenant: Tenant, ask: AnswerRequest) -> Sequence[Passage]:
    """The chunks that the request names by their ids, in its order."""
    if not ask.chunk_ids:
        return ()
    with tenant.catalog.view() as view:
        rows = view.rows_of(ask.chunk_ids)
        held = view.holding(list(rows.values()), scope(bound=ask.principal.bound))
    by_id: Mapping[str, Passage] = {passage.id: passage for passage in held}
    missing = [chunk for chunk in ask.chunk_ids if chunk not in by_id]
    if missing:
        raise NotFound(f"no chunk {missing[0]!r} is known: ask POST /v1/search for the ids of chunks")
    return [by_id[chunk] for chunk in dict.fromkeys(ask.chunk_ids)]


def _recognised(
    tenant: Tenant, ask: AnswerRequest, *, texts: Sequence[str]
) -> Iterator[tuple[TextPlace, GatheredPassage]]:
    """Chunks whose text stands in these: by one search, as the work of a search is bounded, not the number of texts."""
    if not any(text.strip() for text in texts):
        return
    starts = list(accumulate((len(text) + len(_BETWEEN) for text in texts), initial=0))
    for each in tenant.library.recognise(_BETWEEN.join(texts), allowed=scope(bound=ask.principal.bound)):
        number = bisect_right(starts, each.start) - 1
        place = TextPlace(number, each.start - starts[number], each.end - starts[number])
        if place.end <= len(texts[number]):  # a chunk may also hold the text between two texts
            yield place, GatheredPassage(each.passage, 0.0, found=False)


def _system(tenant: Tenant, ask: AnswerRequest, *, passages: Sequence[GatheredPassage]) -> str:
    """The system prompt that stands before all turns: none, where they have their own or it is a plain chat."""
    if not ask.asks or any(turn.role in ("system", "developer") for turn in ask.turns):
        return ""
    named = ask.lookup.collections if ask.lookup else ()
    name = next(iter(named or [each.passage.collection for each in passages]), "")
    with tenant.catalog.view() as view:
        is_seen = name and sees_collection(view, name, bound=ask.principal.bound)
        collection = view.collection(name) if is_seen else None
    system = collection.rules.get("system") if collection else None
    return SYSTEM if system is None else str(system)
