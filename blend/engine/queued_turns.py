"""A capture, or other work, cut into turns between requests: how many passes one turn has. Computes nothing."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class PassPace:
    """What a pass of some kind of work takes, lately."""

    pass_s: float = math.inf


@dataclass(slots=True)
class QueuedTurns(Generic[T]):
    """Work from its submission to its end. `left`: the passes that are not computed yet, by the numbers of its parts.

    `compute` returns what becomes of these parts, in their order.
    """

    payer: str
    left: list[tuple[int, ...]]
    compute: Callable[[Sequence[int]], Sequence[T]]
    pace: PassPace
    parts: dict[int, T] = field(default_factory=dict[int, T])
    result: Future[list[T]] = field(default_factory=Future[list[T]])

    @property
    def is_wanted(self) -> bool:
        """Whether nobody cancelled it, which may happen between its turns too."""
        return not self.result.cancelled()

    def fail(self, error: Exception) -> None:
        """Ends it with an error."""
        self.left.clear()
        if self.result.set_running_or_notify_cancel():
            self.result.set_exception(error)

    def run(self, turn_s: float) -> int:
        """Computes so many passes as the time has room for, one at least; returns how many. Raises what they raise."""
        turn = self.left[: max(1, int(turn_s / self.pace.pass_s))]
        numbers = [number for each in turn for number in each]
        self.parts |= zip(numbers, self.compute(numbers), strict=True)
        del self.left[: len(turn)]
        if not self.left and self.result.set_running_or_notify_cancel():
            self.result.set_result([self.parts[each] for each in range(len(self.parts))])
        return len(turn)


Turns: TypeAlias = QueuedTurns[Any]  # whatever comes of them


def one_by_one(parts: Sequence[Callable[[], T]], between: Callable[[], None]) -> Callable[[Sequence[int]], list[T]]:
    """What computes those of the parts that have these numbers, and calls `between` from one to the next."""

    def compute(numbers: Sequence[int]) -> list[T]:
        found: list[T] = []
        for number in numbers:
            if found:
                between()
            found.append(parts[number]())
        return found

    return compute
