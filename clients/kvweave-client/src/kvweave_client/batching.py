"""Many documents as requests that are not too large. Sends nothing."""

import json
from collections.abc import Iterable, Iterator

from kvweave_client.options import NewDocument

MOST = 200  # documents of one request
LARGEST = 4_000_000  # characters of one request, about


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
