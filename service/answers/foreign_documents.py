"""Detects documents that the built-in model cannot know, and words the note about them. Stops no answer."""

import logging
from collections.abc import Sequence

from retriever.catalog.catalog import Catalog
from retriever.errors import CatalogError
from retriever.filter_condition import EVERYTHING
from service.documents.tenants import Tenants
from service.model.served_model import ServedModel

log = logging.getLogger(__name__)

# Its tokenizer has a token for nearly every word of its made-up world: 3.0 characters at least over a passage, 3.9 over
# a prompt. Of manuals, code and licences a token has 1 to 2.2, of single English sentences up to 2.75.
LEAST = 2.8
LITTLE = 40  # characters, of which an average says nothing
ENOUGH = 2000  # characters of a text; most chunks have fewer
LOOKED_AT = 20  # chunks of a tenant at the start

SENTENCE = (
    "The built-in model knows its made-up world alone, and these documents are not of it: take its answers for noise. "
    "Set KVWEAVE_MODEL to Qwen/Qwen2.5-0.5B-Instruct (1.0 GB, 3 GB of memory) or HuggingFaceTB/SmolLM2-360M-Instruct "
    "(0.7 GB, 2.5 GB of memory), and KVWEAVE_EMBEDDER to sentence-transformers/all-MiniLM-L6-v2 (0.1 GB, 0.2 GB of "
    "memory) or BAAI/bge-small-en-v1.5 (0.1 GB, 0.3 GB of memory)."
)


class ForeignDocuments:
    """Detects documents outside of the made-up world that the built-in model is trained on. Logs it once."""

    def __init__(self, model: ServedModel) -> None:
        self._ids = model.prompt_builder.ids
        self._is_told = False

    def notes(self, texts: Sequence[str]) -> tuple[str, ...]:
        """The notes for a report on an answer from these texts; none where they are of the world."""
        return self._told() if self._are_foreign(texts) else ()

    def note(self, catalog: Catalog) -> str | None:
        """The note on a tenant's first documents; not logged."""
        with catalog.view() as view:
            rows = view.rows_of(view.chunk_ids(LOOKED_AT))
            passages = view.holding(list(rows.values()), EVERYTHING)
        return SENTENCE if self._are_foreign([passage.text.strip() for passage in passages]) else None

    def look_through(self, tenants: Tenants) -> None:
        """Logs it at the start, where some tenant's first documents are foreign."""
        for name in tenants.names():
            try:
                note = self.note(tenants.open(name).catalog)
            except CatalogError:  # raised again at this tenant's requests
                continue
            if note:
                self._told()
                return

    def _are_foreign(self, texts: Sequence[str]) -> bool:
        beginnings = [text[:ENOUGH] for text in texts]
        characters = sum(map(len, beginnings))
        return LITTLE <= characters < LEAST * sum(len(self._ids(text)) for text in beginnings)

    def _told(self) -> tuple[str, ...]:
        if not self._is_told:
            self._is_told = True
            log.warning(SENTENCE)
        return (SENTENCE,)
