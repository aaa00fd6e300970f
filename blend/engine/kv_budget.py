"""What fits into the memory for keys and values: refuses what never does; the most that a tenant gets beside others."""

import time
from collections.abc import Sequence

from blend.engine.answer_builder import QueuedRequest
from blend.errors import PromptError

MOST = 7 / 8  # of memory and places for one payer, for as long as others were here lately
LATELY_S = 300.0


class KvBudget:
    """Counts what all contexts take, in tokens. One payer leaves room where others were here lately."""

    def __init__(self, tokens: int, *, places: int, each: int = 0) -> None:
        """`places`: how many answers run at a time. `each`: what one of them takes besides, however short it is."""
        self._tokens = tokens
        self._each = each
        self._places = places
        self._captured = 0
        self._seen: dict[str, float] = {}  # when a payer asked last

    def see(self, payer: str) -> None:
        """Note that a payer asks now."""
        now = time.monotonic()
        self._seen = {each: at for each, at in self._seen.items() if now - at < LATELY_S} | {payer: now}

    def hold(self, tokens: int) -> None:
        """Keep room for a capture of so many tokens from now on, and no longer for what was held before."""
        self._captured = tokens

    def holds(self, running: Sequence[QueuedRequest]) -> bool:
        """Whether these fit beside the capture at hand."""
        return self._taken(running) <= self._tokens - self._captured

    def check(self, capacity: int, *, prompt: int, token_bytes: int) -> None:
        """Raise PromptError for a request that does not fit where nothing else runs."""
        if (needed := capacity + self._each) > self._tokens:
            raise PromptError(
                f"{prompt} prompt tokens and up to {capacity - prompt} new ones need {needed * token_bytes} bytes "
                f"of KV, the budget is {self._tokens * token_bytes}: shorten the prompt, lower max_tokens or raise the "
                "budget"
            )

    def can_admit(self, queued: QueuedRequest, *, running: Sequence[QueuedRequest]) -> bool:
        """Whether a request fits beside those that run."""
        return len(running) < self._places and self.holds([*running, queued])

    def has_share(self, queued: QueuedRequest, *, running: Sequence[QueuedRequest]) -> bool:
        """Whether its payer leaves room for others with it; where it does not, it waits for its own answers alone."""
        own = [each for each in running if each.payer == queued.payer]
        if not own or len(self._seen) < 2:
            return True
        most = MOST * (self._tokens - self._captured)
        return len(own) + 1 <= MOST * self._places and self._taken([*own, queued]) <= most

    def _taken(self, running: Sequence[QueuedRequest]) -> int:
        return sum(each.capacity + self._each for each in running)
