"""The texts of made-up chunks, and the bodies of requests. Knows no endpoint."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from service.quality.suites import multihop
from service.traffic.workload import ChunkShape, RequestShape

QUESTION = "Question: What do these passages say, in one sentence?"
WORDS_A_CASE = 40  # of a made-up case, at least
MANY = 1_000_000
CACHED = 2048  # texts of chunks: those of a pool come again and again


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """Texts by the names of chunks, other ones under each `mark`. `tokens_a_word`: as the endpoint counts."""

    mark: str
    tokens_a_word: float

    def text(self, chunk: ChunkShape) -> str:
        """The chunk's text: so many tokens, about."""
        return words(f"{self.mark} {chunk.name}", max(1, round(chunk.tokens / self.tokens_a_word)))


@lru_cache(CACHED)
def words(mark: str, count: int) -> str:
    """So many words about a made-up world, others for each mark. The first is a number, so that no two begin alike."""
    seed = Random(mark).getrandbits(48)
    cases = multihop(seed=seed, size=1 + count // WORDS_A_CASE)
    text = " ".join(passage.text for case in cases for passage in case.passages)
    return " ".join([f"{seed % MANY}.", *text.split()][:count])


def encoded(request: RequestShape, texts: PromptTexts, *, fields: Mapping[str, object]) -> bytes:
    """What is sent for a request."""
    prompt = "\n\n".join([*map(texts.text, request.chunks), QUESTION])
    message = {"role": "user", "content": prompt}
    return json.dumps({**fields, "messages": [message], "max_tokens": request.answer_tokens}).encode()
