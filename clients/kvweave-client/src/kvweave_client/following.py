"""How kvweave follows another index, whose entries are documents of a collection of its own. Sends nothing."""

import json
from collections.abc import Iterable, Iterator

from kvweave_client import operations
from kvweave_client.errors import NotFound
from kvweave_client.options import NewDocument
from kvweave_client.passages import LONGEST_ID
from kvweave_client.plans import Plan, ask

MOST = 200  # documents of one request
LARGEST = 4_000_000  # characters of one request, about


def name_of(entry_id: str, collection: str) -> str | None:
    """The id that kvweave has for an entry, as it has one id over all collections. None for what it cannot take."""
    name = f"{collection}/{entry_id}"
    return name if entry_id and len(name) <= LONGEST_ID and is_text(name) else None


def is_text(text: str) -> bool:
    """Whether there is no half character and no NUL in the text: no request can hold these."""
    return "\0" not in text and text == text.encode("utf-8", "replace").decode()


def collection_made(name: str, *, search: bool) -> Plan[None]:
    """Makes the collection, where there is none. The rules of one that is there are not touched."""
    try:
        yield from ask(operations.collection(name))
    except NotFound:
        yield from ask(operations.put_collection(name, search=search))


def batches(documents: Iterable[NewDocument]) -> Iterator[list[NewDocument]]:
    """All documents in their order, as lists that are each for one `put_documents`."""
    batch: list[NewDocument] = []
    size = 0
    for document in documents:
        more = len(json.dumps(document))
        if batch and (len(batch) == MOST or size + more > LARGEST):
            yield batch
            batch, size = [], 0
        batch.append(document)
        size += more
    if batch:
        yield batch
