"""Embeds texts of a request in batches, each tenant's in turn; refuses where no embedder is there. Stores nothing."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from blend.text.tokenizer import Tokenizer
from retriever.embedders.embedding import Embedder, Embedders, Vectors, batches
from service.answers.fair_turns import FairTurns
from service.documents.libraries import CHARACTERS, TEXTS
from service.errors import Invalid, Unavailable

EMBEDDING = 2  # threads that wait for vectors
LONGEST = 256  # parts of one tenant that wait


@dataclass(frozen=True, slots=True)
class EmbeddedPart:
    """The vectors of some consecutive texts, and how many tokens the embedder reads of these; those of the served model
    where the embedder cannot tell."""

    vectors: Vectors
    tokens: int


class TextVectors:
    """What embeds for all tenants, part by part and in turn, so that a large batch holds nobody up for long."""

    def __init__(self, embedders: Embedders, tokenizer: Tokenizer) -> None:
        self._embedders = embedders
        self._tokenizer = tokenizer
        self._turns = FairTurns(EMBEDDING, longest=LONGEST, waiting="requests for vectors of this tenant wait")

    def close(self) -> None:
        self._turns.close()

    @property
    def embedder(self) -> Embedder:
        """The embedder. Raises Unavailable while it is awaited, and Invalid where search is by words alone."""
        found = self._embedders
        if found.wanted is not None:
            return found.wanted
        if found.is_awaited:
            raise Unavailable(f"the embedder is not there yet, ask again later: {found.lacks}")
        raise Invalid(f"search is by words alone here, so nothing makes vectors: {found.lacks} (KVWEAVE_EMBEDDER)")

    async def parts(self, tenant: str, texts: Sequence[str]) -> AsyncGenerator[EmbeddedPart]:
        """The vectors that the texts have as passages, in their order. Called in one event loop."""
        embedder = self.embedder
        for place in batches(texts, count=TEXTS, characters=CHARACTERS):
            some = texts[place.start : place.stop]
            yield await self._turns.run(tenant, lambda some=some: self._embedded(embedder, some))

    def _embedded(self, embedder: Embedder, texts: Sequence[str]) -> EmbeddedPart:
        vectors, tokens = embedder.passages(texts), embedder.tokens(texts)
        if tokens is None:
            tokens = sum(len(self._tokenizer.encode_text(each)) for each in texts)
        return EmbeddedPart(vectors, tokens)
