"""The cost of a prompt on this machine in seconds, from a few measured numbers. Measures nothing itself."""

from dataclasses import dataclass

HIDDEN = 0.5  # the largest ratio that loading is used for: two passes over more take as long as full prefill


@dataclass(frozen=True, slots=True)
class PromptSizes:
    """The tokens of a prompt, those that come from records, how many records these are, and the tokens that are `kept`
    of a prompt that began alike.
    """

    tokens: int
    cached: int = 0
    chunks: int = 0
    kept: int = 0

    @property
    def fresh(self) -> int:
        """Tokens that are computed in any case."""
        return self.tokens - self.cached - self.kept


@dataclass(frozen=True, slots=True)
class ModelSpeeds:
    """Seconds of one thread of requests, with nothing else to do.

    Full prefill takes `prefill_s`, `row_s` for each row, `pair_s` for each row and token of the prompt. The operating
    point takes `fuse_s`, `chunk_s` for each record, `cached_s` for each of its tokens, and `fresh` times what full
    prefill takes for rows that no record has; `recomputed` is its share of the cached tokens, and all of them would
    take `again_s` each besides the pairs. A byte of a record takes `byte_s` until it is verified and unpacked, out of
    memory.
    """

    prefill_s: float
    row_s: float
    pair_s: float
    fuse_s: float
    chunk_s: float
    cached_s: float
    fresh: float
    recomputed: float
    byte_s: float
    again_s: float

    def full_s(self, sizes: PromptSizes) -> float:
        """The seconds of a prompt of which no record is used."""
        return self.prefill_s + self._rows_s(sizes.tokens - sizes.kept, sizes.tokens)

    def prefix_s(self, sizes: PromptSizes) -> float:
        """The seconds of a prompt whose cached tokens are an exact prefix."""
        records = self.chunk_s * sizes.chunks + self.cached_s * sizes.cached
        return self.prefill_s + records + self._rows_s(sizes.fresh, sizes.tokens)

    def blend_s(self, sizes: PromptSizes, *, ratio: float = 0.0) -> float:
        """The seconds of a prompt at the operating point, or by a larger ratio, its records in memory."""
        ratio = max(ratio, self.recomputed)
        more_s = (ratio - self.recomputed) * self.again_s
        records = self.chunk_s * sizes.chunks + (self.cached_s + more_s) * sizes.cached
        pairs = self.pair_s * ratio * sizes.cached * sizes.tokens
        return self.fuse_s + records + pairs + self.fresh * self._rows_s(sizes.fresh, sizes.tokens)

    def hidden_ratio(self, sizes: PromptSizes, *, reading_s: float) -> float:
        """The largest ratio whose computing takes no longer than reading; 0 where not even the operating point's."""
        spare_s = reading_s - self.blend_s(sizes)
        whole_s = sizes.cached * (self.again_s + self.pair_s * sizes.tokens)
        return min(HIDDEN, self.recomputed + spare_s / whole_s) if self.again_s and spare_s > 0 else 0.0

    def pays(self, tokens: int, *, prompt: int, late_s: float) -> bool:
        """Whether a record of `tokens` that arrives `late_s` late saves more than it costs."""
        return self.chunk_s + self.cached_s * tokens + late_s < self.fresh * self._rows_s(tokens, prompt)

    def _rows_s(self, rows: int, tokens: int) -> float:
        return rows * (self.row_s + self.pair_s * tokens)
