"""How a collection's documents are cut and captured, as its catalog keeps it."""

from dataclasses import asdict, dataclass, fields

from retriever.catalog.catalog import Catalog
from retriever.documents import Json
from retriever.types import Collection


@dataclass(frozen=True, slots=True)
class CollectionRules:
    """A collection's rules. `system`: the system prompt that chunks are captured behind; None for the service's own.

    Chunks are captured behind the first one that the collection ever had: another one later misses no chunk.
    `in_context`: whether chunks are captured behind passages of their kind, and what is before them in their document.
    `search`: whether they are embedded and found; their caches serve in any case.
    """

    chunk_tokens: int = 256
    system: str | None = None
    embedder: str = ""
    search: bool = True
    in_context: bool = True

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
    if found is not None:
        return CollectionRules.from_json(found.rules)
    with catalog.change() as change:
        change.put_collection(Collection(collection, fresh.to_json()))
    return fresh
