"""What chunks are captured behind: where they stand, the fillers of collections, and which chunks have moved."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from retriever.filter_condition import Value
from retriever.types import ChunkPlace, FillerPassage, Label


class ContextsView(Protocol):
    """Where chunks stand, in one committed state."""

    def places_of(self, ids: Sequence[str]) -> list[ChunkPlace]:
        """All places of these chunks, in staged versions too, in no order."""
        ...

    def fillers(self, collection: str) -> dict[str, tuple[FillerPassage, ...]]:
        """The fillers of a collection by domain."""
        ...

    def moved(self, limit: int, *, swept: bool) -> list[tuple[int, str]]:
        """Chunks (row, id) that may stand in another context than when they were captured, oldest first.

        Of those that are `swept`, blobs may lack; those most used come first. The same id may come twice.
        """
        ...


class ContextsChange(Protocol):
    """The changes of contexts, as part of one transaction."""

    def in_context(self, collection: str) -> bool:
        """Whether the collection is there, and its rules do not say `"in_context": false`."""
        ...

    def keep_filler(self, collection: str, domain: str, *, passages: Sequence[FillerPassage]) -> None:
        """Make this the filler, in the place of any other; what was captured behind the other has moved."""
        ...

    def places_of(self, ids: Sequence[str]) -> list[ChunkPlace]:
        """See `ContextsView`."""
        ...

    def fillers_with(self, documents: Sequence[str]) -> list[tuple[str, str, str, str, str]]:
        """The passages of fillers that are of these documents: collection, domain, document, chunk and title."""
        ...

    def has_filler(self, collection: str, domain: str) -> bool: ...

    def drop_fillers(self, collection: str, *, but: Sequence[str]) -> None:
        """Forget a collection's fillers, but for those of these domains."""
        ...

    def labels_in(self, documents: Sequence[str]) -> list[Label]:
        """What filters see of these documents, as far as they serve; each once."""
        ...

    def collection_passages(
        self, collection: str, *, facet: tuple[str, Value] | None = None, staged: Sequence[int] = ()
    ) -> Iterator[ChunkPlace]:
        """The passages of a collection that serve, or are in these staged versions, those of the oldest versions first.

        With a facet, at least those that have it in their metadata.
        """
        ...

    def texts_of(self, ids: Sequence[str]) -> dict[str, str]:
        """The texts of chunks by their ids."""
        ...

    def settled(self, rows: Sequence[int]) -> None:
        """Forget these rows of `moved`: nothing of an old context is left, or nothing of a new one lacks."""
        ...

    def lack_contexts(self, uses: Mapping[str, int]) -> None:
        """Note that these chunks lack blobs, or will, as `swept` ones of `moved`; and how often each was used."""
        ...
