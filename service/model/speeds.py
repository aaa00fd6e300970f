"""The cost of a prompt on this machine in seconds, from a few measured numbers. Measures nothing itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptSizes:
    """The tokens of a prompt, those that come from records, and how many records these are."""

    tokens: int
    cached: int = 0
    chunks: int = 0


@dataclass(frozen=True, slots=True)
class ModelSpeeds:
    """Seconds of one thread of requests, with nothing else to do.

    Full prefill takes `prefill_s`, `row_s` for each row, `pair_s` for each row and token of the prompt. The operating
    point takes `fuse_s`, `chunk_s` for each record, `cached_s` for each of its tokens, and `fresh` times what full
    prefill takes for rows that no record has; `recomputed` is its share of the cached tokens. A byte of a record takes
    `byte_s` until it is verified and unpacked, out of memory.
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

    def full_s(self, tokens: int) -> float:
        return self.prefill_s + self._rows_s(tokens, tokens)

    def prefix_s(self, sizes: PromptSizes) -> float:
        """The seconds of a prompt whose cached tokens are an exact prefix."""
        records = self.chunk_s * sizes.chunks + self.cached_s * sizes.cached
        return self.prefill_s + records + self._rows_s(sizes.tokens - sizes.cached, sizes.tokens)

    def blend_s(self, sizes: PromptSizes) -> float:
        """The seconds of a prompt at the operating point, its records in memory."""
        records = self.chunk_s * sizes.chunks + self.cached_s * sizes.cached
        pairs = self.pair_s * self.recomputed * sizes.cached * sizes.tokens
        return self.fuse_s + records + pairs + self.fresh * self._rows_s(sizes.tokens - sizes.cached, sizes.tokens)

    def pays(self, tokens: int, *, prompt: int, late_s: float) -> bool:
        """Whether a record of `tokens` that arrives `late_s` late saves more than it costs."""
        return self.chunk_s + self.cached_s * tokens + late_s < self.fresh * self._rows_s(tokens, prompt)

    def _rows_s(self, rows: int, tokens: int) -> float:
        return rows * (self.row_s + self.pair_s * tokens)
