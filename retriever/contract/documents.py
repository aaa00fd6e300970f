"""Documents, their versions and passages. Knows no uploads and no vectors."""

from collections.abc import Sequence
from typing import Protocol

from retriever.documents import Document, Json
from retriever.filter_condition import EVERYTHING, FilterCondition
from retriever.types import DocumentRow, Label, Passage, Removal


class DocumentsView(Protocol):
    """Documents that serve, in one committed state."""

    def document(self, document: str) -> DocumentRow | None: ...

    def serves(self, document: Document, *, collection: str) -> bool:
        """Whether this document serves already, just so, and was not patched since."""
        ...

    def documents(self, allowed: FilterCondition, *, after: str = "", limit: int = 100) -> list[DocumentRow]:
        """The documents that fit, in the order of their ids, from behind `after` on."""
        ...

    def count(self, allowed: FilterCondition) -> int:
        """How many documents fit."""
        ...

    def passages(
        self, document: str, *, first: int = 0, limit: int = 1 << 40, allowed: FilterCondition = EVERYTHING
    ) -> list[Passage]:
        """The passages of a document that fit, in its order: those of at most `limit` places from `first` on."""
        ...

    def holding(self, chunks: Sequence[int], allowed: FilterCondition) -> list[Passage]:
        """The oldest passage that fits of each of these chunks, in the order of `chunks`."""
        ...

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """The numbers of those chunks that are known, by their ids."""
        ...

    def labels_of(self, ids: Sequence[str]) -> dict[str, list[Label]]:
        """The labels of these chunks in documents, each once; in staged versions too."""
        ...

    def texts(self, chunks: Sequence[int]) -> dict[int, str]: ...

    def chunk_ids(self, limit: int) -> list[str]:
        """The ids of the first chunks in their order, those of staged versions too."""
        ...


class DocumentsChange(Protocol):
    """The changes of documents, as part of one transaction."""

    def put(self, documents: Sequence[Document], *, collection: str) -> Removal:
        """Put documents in and make them serve. One that is there already, just so, is left alone."""
        ...

    def stage(self, document: Document, *, collection: str) -> int:
        """Keep a version that does not serve yet; returns its number."""
        ...

    def serve(self, version: int) -> Removal:
        """Make a staged version serve in the place of the one that did. Raises DocumentError where it is not there."""
        ...

    def drop(self, version: int) -> Removal:
        """Drop a version that never served. One that is not there counts as dropped."""
        ...

    def drop_orphans(self) -> Removal:
        """Drop versions that were staged for no live upload: whoever wanted to serve them was killed."""
        ...

    def patch(self, document: str, *, metadata: Json) -> DocumentRow | None:
        """Lay metadata over a document's; null takes a field away. None where there is no such document."""
        ...

    def delete(self, documents: Sequence[str]) -> Removal:
        """Delete every version of these documents; their live uploads, in whatever collection, end as deleted.

        So do those that come out of files which are live now, when they are expanded.
        """
        ...
