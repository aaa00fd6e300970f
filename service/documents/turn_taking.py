"""An embedder that computes here, in turns with captures, so that no question waits for a long document's vectors."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from blend.engine.engine import Engine
from blend.errors import Busy
from retriever.embedders.embedding import Embedder, EmbedderAround, EmbeddingError, Vectors, batches

TEXTS, CHARACTERS = 8, 8192  # of a part at most: a tenth of a second of a small encoder, on one core


class TurnTaking(EmbedderAround):
    """Questions' vectors take no turn: whoever asks is before all captures anyway."""

    def __init__(self, embedder: Embedder, engine: Engine) -> None:
        super().__init__(embedder)
        self._engine = engine

    def passages(self, texts: Sequence[str]) -> Vectors:
        places = batches(texts, count=TEXTS, characters=CHARACTERS)
        parts = [partial(self._embedder.passages, texts[each.start : each.stop]) for each in places]
        if not parts:
            return np.empty((0, self.dim), np.float32)
        try:
            return np.concatenate(self._engine.compute(parts).result())
        except Busy as error:
            raise EmbeddingError(str(error), temporary=True) from error
