"""Which uploads are worked on together: small documents, for which a batch and four transactions each are too much."""

from collections.abc import Container, Iterator, Sequence

from retriever.catalog.view import CatalogView
from retriever.upload_types import QueuedUpload

TOGETHER = 64  # uploads at most: as many chunks go through the model at once
TOGETHER_BYTES = 32 << 10  # of their contents at most: whoever waits, waits as for one document of middling length


def grouped(view: CatalogView, *, apart: Container[int] = (), but: Sequence[int] = ()) -> list[QueuedUpload]:
    """The oldest live upload but these, and small ones of its collection. Files, and those in `apart`, go alone."""
    live = view.live(TOGETHER, but=but)
    if not live or live[0].name or live[0].number in apart:
        return live[:1]
    same = [each for each in live if each.collection == live[0].collection and not each.name]
    return list(_small(view, [each for each in same if each.number not in apart]))


def _small(view: CatalogView, uploads: Sequence[QueuedUpload]) -> Iterator[QueuedUpload]:
    """The first upload, and those behind it up to one that is too large: its turn comes next."""
    left = TOGETHER_BYTES
    for number, upload in enumerate(uploads):
        left -= len(view.content(upload.number) or b"")
        if number and left < 0:
            return
        yield upload
