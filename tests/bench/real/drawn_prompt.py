"""A prompt that was drawn: its passages, what stands before each in its document, and the known answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from service.model.prompt_builder import PromptPassage


@dataclass(frozen=True, slots=True)
class DrawnPassage:
    """A passage and the one before it in its document. `is_own`: it belongs to what is asked, others do not."""

    passage: PromptPassage
    before: PromptPassage | None = None
    is_own: bool = False


@dataclass(frozen=True, slots=True)
class DrawnPrompt:
    """A question with its known answer. `given`: the answer's beginning, which is not judged.

    `candidates`: what may stand where the judged part begins, the right one first; none where that is any text.
    `filler`: passages of the same kind, of documents that no prompt has. `spare`: a passage that may replace a foreign
    one.
    """

    passages: tuple[DrawnPassage, ...]
    question: str
    given: str
    answer: str
    spare: DrawnPassage
    filler: tuple[PromptPassage, ...]
    candidates: tuple[str, ...] = ()

    @property
    def without_passages(self) -> "DrawnPrompt":
        """The question alone."""
        return replace(self, passages=())

    def reordered(self, seed: str) -> "DrawnPrompt":
        """The same with foreign passages in another order; all, where fewer than two are foreign."""
        places = [place for place, each in enumerate(self.passages) if not each.is_own]
        return self._permuted(places if len(places) > 1 else range(len(self.passages)), Random(seed))

    def own_shuffled(self, seed: str) -> "DrawnPrompt":
        """The same with own passages in another order."""
        return self._permuted([place for place, each in enumerate(self.passages) if each.is_own], Random(seed))

    def replaced(self, seed: str) -> "DrawnPrompt":
        """The same with the spare passage instead of a foreign one."""
        place = self._foreign(seed)
        return replace(self, passages=(*self.passages[:place], self.spare, *self.passages[place + 1 :]))

    def left_out(self, seed: str) -> "DrawnPrompt":
        """The same without a foreign passage."""
        place = self._foreign(seed)
        return replace(self, passages=(*self.passages[:place], *self.passages[place + 1 :]))

    def _foreign(self, seed: str) -> int:
        return Random(seed).choice([place for place, each in enumerate(self.passages) if not each.is_own])

    def _permuted(self, places: Sequence[int], random: Random) -> "DrawnPrompt":
        """Never the order that it was, if there is another."""
        shuffled = [*places]
        while shuffled == [*places] and len(places) > 1:
            random.shuffle(shuffled)
        moved = [*self.passages]
        for place, other in zip(places, shuffled, strict=True):
            moved[place] = self.passages[other]
        return replace(self, passages=tuple(moved))
