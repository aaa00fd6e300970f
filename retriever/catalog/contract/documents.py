"""Documents, their versions and passages. Knows no uploads and no vectors."""

from collections.abc import Sequence
from typing import Protocol

from retriever.catalog.base import Entry, Passage, Removal
from retriever.documents import Document, Json
from retriever.filters import EVERYTHING, Condition


class DocumentsView(Protocol):
    """Documents that serve, in one committed state."""

    def document(self, document: str) -> Entry | None: ...

    def serves(self, document: Document, *, collection: str) -> bool:
        """Is it there already, just so, and was not patched since?"""
        ...

    def documents(self, allowed: Condition, *, after: str = "", limit: int = 100) -> list[Entry]:
        """In the order of their ids, from behind `after` on."""
        ...

    def count(self, allowed: Condition) -> int:
        """How many documents."""
        ...

    def passages(
        self, document: str, *, first: int = 0, limit: int = 1 << 40, allowed: Condition = EVERYTHING
    ) -> list[Passage]:
        """A document's, in its order: of the places from `first` on, so many, those that fit."""
        ...

    def holding(self, chunks: Sequence[int], allowed: Condition) -> list[Passage]:
        """Of each of these chunks the oldest passage that fits, in the order of `chunks`."""
        ...

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """The numbers of chunks that are known."""
        ...

    def texts(self, chunks: Sequence[int]) -> dict[int, str]: ...

    def chunk_ids(self, after: str, limit: int) -> list[str]:
        """Of all chunks, those of staged versions too, in the order of their ids, from behind `after` on."""
        ...


class DocumentsChange(Protocol):
    """Part of one transaction."""

    def put(self, documents: Sequence[Document], *, collection: str) -> Removal:
        """Make them serve. A document that is there already, just so, is left alone."""
        ...

    def stage(self, document: Document, *, collection: str) -> int:
        """Keep a version that does not serve yet; its number."""
        ...

    def serve(self, version: int) -> Removal:
        """In the place of the one that served so far. Raises DocumentError where the version is not there."""
        ...

    def drop(self, version: int) -> Removal:
        """Of a version that never served. One that is not there is dropped."""
        ...

    def drop_orphans(self) -> Removal:
        """Of versions that were staged for no live upload: whoever wanted to serve them was killed."""
        ...

    def patch(self, document: str, *, metadata: Json) -> Entry | None:
        """Lay metadata over what is there; null takes a field away. None where there is no such document."""
        ...

    def delete(self, documents: Sequence[str]) -> Removal:
        """Every version of them; their live uploads, in whatever collection, end as deleted.

        So do those that come out of files which are live now, when they are expanded.
        """
        ...
