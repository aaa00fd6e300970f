"""A collection's rules (chunk tokens, system prompt, context, search, floor, on_empty), and which keys see it."""

from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches

from retriever.catalog.catalog import Catalog
from retriever.catalog.view import CatalogView
from retriever.documents import Json
from retriever.filter_condition import scope
from retriever.types import Collection
from service.errors import NotFound

ANSWER, REFUSE = "answer", "refuse"
DEFAULT_COLLECTION = "default"  # of requests that name none: it need not be there


@dataclass(frozen=True, slots=True)
class CollectionRules:
    """A collection's rules. `system`: the system prompt that chunks are captured behind; None for that of prompts where
    nothing is said, which new collections have of the built-in model alone.

    Chunks are captured behind the first one that the collection ever had: another one later misses no chunk.
    `in_context`: whether chunks are captured behind passages of their kind, and what is before them in their document.
    `search`: whether they are embedded and found; their caches serve in any case.
    `floor`: what a find has to do with the question at least; None for what is fitted. `on_empty`: what becomes of a
    question for which nothing is found.
    """

    chunk_tokens: int = 256
    system: str | None = None
    embedder: str = ""
    search: bool = True
    in_context: bool = True
    floor: float | None = None
    on_empty: str = ANSWER

    def to_json(self) -> Json:
        """The JSON that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, rules: Json) -> "CollectionRules":
        """The rules in JSON, which somebody else may have put in: what is not known is left out."""
        known = {field.name: rules[field.name] for field in fields(cls) if field.name in rules}
        return cls(**known)  # pyright: ignore[reportArgumentType] (as `to_json` wrote it)


def kept_rules(catalog: Catalog, collection: str, *, fresh: CollectionRules) -> CollectionRules:
    """The rules by which all documents of a collection are cut. One that is not there is made, with the fresh ones."""
    with catalog.view() as view:
        found = view.collection(collection)
    if found is None:
        made = Collection(collection, fresh.to_json())
        with catalog.change() as change:
            change.put_collection(made, only_new=True)
        with catalog.view() as view:  # others may have made it meanwhile
            found = view.collection(collection) or made
    return CollectionRules.from_json(found.rules)


def rules_of(view: CatalogView, name: str) -> CollectionRules:
    """The rules of a collection; those of a new one where it is not there."""
    found = view.collection(name) if name else None
    return CollectionRules.from_json(found.rules) if found else CollectionRules()


def check_collection(view: CatalogView, name: str, *, bound: Json | None) -> None:
    """Raise NotFound for a collection that is not there for a key with this filter."""
    if name != DEFAULT_COLLECTION and not sees_collection(view, name, bound=bound):
        raise no_collection(view, name, bound=bound)


def no_collection(view: CatalogView, name: str, *, bound: Json | None) -> NotFound:
    """The error for a collection that is not there for a key with this filter, with the name that was meant."""
    names = (each.name for each in view.collections())
    near = get_close_matches(name, [each for each in names if sees_collection(view, each, bound=bound)], n=1)
    remedy = f"did you mean {near[0]!r}?" if near else "GET /v1/collections lists all that there are for this key"
    return NotFound(f"there is no collection {name[:80]!r}: {remedy}")


def sees_collection(view: CatalogView, name: str, *, bound: Json | None) -> bool:
    """Whether the collection is there for the key: where it has a filter, if a document serves that fits it."""
    if bound is None:
        return view.collection(name) is not None
    return view.count(scope(name, bound=bound)) > 0
