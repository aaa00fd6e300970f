"""Collections: their rules, the prefixes, files and limits that are kept with them. Knows no documents."""

from collections.abc import Sequence
from typing import Protocol

from retriever.types import Collection, Limit, Removal, SourceFile


class CollectionsView(Protocol):
    """What is kept of collections, in one committed state."""

    def collection(self, name: str) -> Collection | None: ...
    def collections(self) -> list[Collection]: ...

    def unsearched(self) -> tuple[str, ...]:
        """The names of the collections that are kept without search."""
        ...

    def prefix(self, collection: str, *, model: str) -> tuple[int, ...] | None:
        """The token ids that a model's captures of this collection stand behind."""
        ...

    def sources(self, collection: str) -> dict[str, SourceFile]:
        """The files that were put into a collection, by their names."""
        ...

    def limit(self, collection: str, *, model: str) -> Limit | None:
        """What stopped a model's caches of this collection, if anything did."""
        ...


class CollectionsChange(Protocol):
    """The changes of collections, as part of one transaction."""

    def put_collection(self, collection: Collection) -> None:
        """Make a collection, or give it other rules; its documents stay as they were cut."""
        ...

    def delete_collection(self, name: str) -> Removal:
        """Delete a collection with all its documents, staged ones too; its live uploads end as deleted."""
        ...

    def keep_prefix(self, collection: str, *, model: str, ids: Sequence[int]) -> tuple[int, ...]:
        """Keep a prefix; returns the first that was ever kept for this collection and model, which never changes."""
        ...

    def put_source(self, collection: str, name: str, *, source: SourceFile) -> None:
        """Remember a file, in the place of what it was before."""
        ...

    def forget_source(self, collection: str, name: str) -> None:
        """Forget a file; its documents stay."""
        ...

    def put_limit(self, collection: str, limit: Limit | None, *, model: str) -> None:
        """Remember what stopped a model's caches of a collection, or that nothing does any more."""
        ...
