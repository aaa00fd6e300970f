"""Embedders and the vectors of chunks. Computes none."""

from collections.abc import Sequence
from typing import Protocol

from retriever.types import EmbeddedChunks, EmbedderEntry, Vectors


class VectorsView(Protocol):
    """Vectors, in one committed state."""

    def embedders(self) -> list[EmbedderEntry]: ...
    def embedded_after(self, row: int, *, embedder: str, limit: int) -> EmbeddedChunks: ...

    def vectors(self, ids: Sequence[str], *, embedder: str) -> dict[str, Vectors]:
        """The vectors of these chunks that are known, by chunk id."""
        ...

    def without_vector(self, after: int, *, embedder: str, limit: int) -> list[tuple[int, str, str]]:
        """Chunks (row, id, text) that lack one, in the order of their rows; not those that no search may find."""
        ...


class VectorsChange(Protocol):
    """The changes of vectors, as part of one transaction."""

    def add_embedder(self, name: str, *, dim: int) -> None:
        """Add an embedder. It serves at once if there is nothing to embed yet."""
        ...

    def serve_embedder(self, name: str) -> None:
        """Make this embedder the one that serves; the vectors of all others are removed."""
        ...

    def put_vectors(self, ids: Sequence[str], vectors: Vectors, *, embedder: str) -> None:
        """Keep the vectors of chunks that are known and have none; those of other chunks are left out."""
        ...
