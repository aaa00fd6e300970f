"""Documents of LangChain as documents of kvweave, as they are put in. Sends nothing.

Each is a document of its own with one verbatim chunk, so that it is replaced and deleted by its id alone.
"""

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from langchain_core.documents import Document

from kvweave_client import RequestError
from kvweave_client.following import name_of
from kvweave_client.options import NewDocument
from kvweave_client.passages import LONGEST_TITLE, own_metadata
from kvweave_client.plain import plain_metadata, plain_text

_IDS: Final = uuid.UUID("9d2cbd5a-6f6b-4b0e-9d0c-6d2b1f6f4f10")  # the namespace of ids that are made here


@dataclass(frozen=True, slots=True)
class Entries:
    """`ids` in the order of the documents. `blank`: ids of those without text, of which there is nothing to keep."""

    ids: tuple[str, ...]
    documents: tuple[NewDocument, ...]
    blank: tuple[str, ...]


def entries(items: Sequence[Document], *, collection: str) -> Entries:
    """The documents as entries; of one id the last counts. One without an id gets a digest of what it says."""
    ids = tuple(_id(item) for item in items)
    last = dict(zip(ids, items, strict=True))
    blank = tuple(name for name, item in last.items() if not plain_text(item.page_content).strip())
    documents = tuple(
        _entry(name, item, collection=collection) for name, item in last.items() if name not in set(blank)
    )
    return Entries(ids, documents, blank)


def names_of(ids: Iterable[str], collection: str) -> dict[str, str]:
    """The ids that kvweave has, by those of the index. What kvweave cannot take is left out."""
    names = {each: name_of(each, collection) for each in ids}
    return {each: name for each, name in names.items() if name is not None}


def _entry(document_id: str, item: Document, *, collection: str) -> NewDocument:
    metadata = plain_metadata(own_metadata(item.metadata))
    name, text = name_of(document_id, collection), plain_text(item.page_content)
    if name is None:
        raise RequestError(f"kvweave cannot take the id {document_id[:80]!r}: use one of up to 800 usual characters")
    entry = NewDocument(id=name, chunks=[{"id": document_id, "text": text}], metadata=metadata)
    title = metadata.get("title")
    return {**entry, "title": title[:LONGEST_TITLE]} if isinstance(title, str) else entry


def _id(item: Document) -> str:
    if item.id:
        return item.id
    told = [plain_text(item.page_content), plain_metadata(own_metadata(item.metadata))]
    return str(uuid.uuid5(_IDS, json.dumps(told, sort_keys=True)))
