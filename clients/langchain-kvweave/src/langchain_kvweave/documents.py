"""Passages of the service as documents of LangChain, and documents as what a chat is given to read. Sends nothing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from langchain_core.documents import Document

from kvweave_client import Source
from kvweave_client.options import LooseDocument
from langchain_kvweave.plain import plain_text

PREFIX: Final = "kvweave_"  # of all names that metadata gets here: they belong to this package
CHUNK_ID: Final = "kvweave_chunk_id"
DOCUMENT_ID: Final = "kvweave_document_id"
SCORE: Final = "kvweave_score"
TITLE: Final = "kvweave_title"
PAGE: Final = "kvweave_page"
START: Final = "kvweave_start"
END: Final = "kvweave_end"
CACHE: Final = "kvweave_cache"
DIGEST: Final = "kvweave_digest"  # of the text that the chunk id stands for

LONGEST_TITLE, LONGEST_ID = 1000, 1024  # characters that the service takes


@dataclass(frozen=True, slots=True)
class Reading:
    """What a chat is given to read, in its order: chunks by their ids, then others by their text."""

    chunk_ids: tuple[str, ...] = ()
    loose: tuple[LooseDocument, ...] = ()


def own_metadata(metadata: Mapping[str, object]) -> dict[str, object]:
    """The metadata that the user put there."""
    return {name: value for name, value in metadata.items() if not name.startswith(PREFIX)}


def document_of(source: Source, *, state: str | None = None) -> Document:
    """A passage that a search found. Its id is that of the chunk."""
    told = {
        CHUNK_ID: source.chunk_id,
        DOCUMENT_ID: source.document_id,
        SCORE: source.score,
        TITLE: source.title,
        PAGE: source.page,
        START: source.start,
        END: source.end,
        CACHE: state,
        DIGEST: _digest(source.text),
    }
    known = {name: value for name, value in told.items() if value is not None}
    return Document(source.text, id=source.chunk_id, metadata={**own_metadata(source.metadata), **known})


def documents_of(hits: Sequence[Source], states: Mapping[str, str]) -> list[Document]:
    """The hits as documents with the states of their caches, by chunk id."""
    return [document_of(hit, state=states.get(hit.chunk_id)) for hit in hits]


def reading(documents: Iterable[object]) -> Reading:
    """What is to be read: each text once, in the order of the documents.

    The service reads chunks by id before loose documents, so ids are used up to the first document that has none.
    From there on the text goes over, in which the service recognises its chunks.
    """
    each = _distinct(documents)
    ids = [_chunk_id(document) for document in each]
    leading = ids.index("") if "" in ids else len(ids)
    return Reading(tuple(ids[:leading]), tuple(_loose(document) for document in each[leading:]))


def as_texts(documents: Iterable[object]) -> Reading:
    """What to read, without ids: what the service may have deleted meanwhile is still read."""
    return Reading(loose=tuple(_loose(document) for document in _distinct(documents)))


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


def _chunk_id(document: Document) -> str:
    """The chunk's id. Empty where a document has none, or its text was changed since: an id would bring the old one."""
    told: Mapping[str, object] = document.metadata
    if told.get(DIGEST) != _digest(document.page_content):
        return ""
    return str(told.get(CHUNK_ID) or "")


def _loose(document: Document) -> LooseDocument:
    told: Mapping[str, object] = document.metadata
    title = told.get(TITLE) or told.get("title")
    loose = LooseDocument(text=plain_text(document.page_content))
    if isinstance(title, str) and title:
        loose["title"] = plain_text(title)[:LONGEST_TITLE]
    if document.id and len(document.id) <= LONGEST_ID:
        loose["id"] = plain_text(document.id)
    return loose


def _digest(text: str) -> str:
    return blake2b(plain_text(text).strip().encode(), digest_size=8).hexdigest()
