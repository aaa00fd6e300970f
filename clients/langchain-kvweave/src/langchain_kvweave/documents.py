"""Passages of the service as documents of LangChain, and documents as what a chat is given to read. Sends nothing."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from langchain_core.documents import Document

from kvweave_client import ChunkState, Source, passages
from kvweave_client.chat_requests import Reading
from kvweave_client.options import LooseDocument
from kvweave_client.plain import plain_text

START: Final = f"{passages.PREFIX}start"
END: Final = f"{passages.PREFIX}end"


def document_of(source: Source, *, state: str | None = None) -> Document:
    """A passage that a search found. Its id is that of the chunk."""
    told = {START: source.start, END: source.end, passages.CACHE: state}
    known = {name: value for name, value in told.items() if value is not None}
    metadata = {**passages.own_metadata(source.metadata), **passages.notes_of(source), **known}
    return Document(source.text, id=source.chunk_id, metadata=metadata)


def documents_of(hits: Sequence[Source], states: Mapping[str, ChunkState]) -> list[Document]:
    """The hits as documents with the states of their caches, by chunk id."""
    known = {chunk_id: each.state for chunk_id, each in states.items()}
    return [document_of(hit, state=known.get(hit.chunk_id)) for hit in hits]


def reading(documents: Iterable[object]) -> Reading:
    """What is to be read: each text once, in the order of the documents.

    The service reads chunks by id before loose documents, so ids are used up to the first document that has none.
    From there on the text goes over, in which the service recognises its chunks.
    """
    each = _distinct(documents)
    ids = [passages.chunk_id_of(document.metadata, document.page_content) for document in each]
    leading = ids.index("") if "" in ids else len(ids)
    texts = tuple(_loose(document) for document in each)
    return Reading(tuple(ids[:leading]), texts[leading:], texts)


def joined(documents: Iterable[Document]) -> str:
    """The documents as the text of a prompt: verbatim, so that it is recognised."""
    return "\n\n".join(document.page_content for document in documents)


def _distinct(documents: Iterable[object]) -> list[Document]:
    """The documents that say something, the first of those that say the same."""
    found: dict[str, Document] = {}
    for document in documents:
        if not isinstance(document, Document):
            raise TypeError(f"documents are langchain_core.documents.Document, got {type(document).__name__}")
        text = plain_text(document.page_content).strip()
        if text:
            found.setdefault(text, document)
    return list(found.values())


def _loose(document: Document) -> LooseDocument:
    told: Mapping[str, object] = document.metadata
    title = told.get(passages.TITLE) or told.get("title")
    loose = LooseDocument(text=plain_text(document.page_content))
    if isinstance(title, str) and title:
        loose["title"] = plain_text(title)[: passages.LONGEST_TITLE]
    if document.id and len(document.id) <= passages.LONGEST_ID:
        loose["id"] = plain_text(document.id)
    return loose
