"""The clock of a machine that is set anew while programs run. For processes that are killed afterwards."""

import time
from random import Random

DAYS = (-3650, -8, -1, 0, 0, 1, 8, 30)


class JumpingClock:
    """Tells the time in place of `time.time`; at some calls it jumps by days, forth and back."""

    def __init__(self) -> None:
        self._true, self._chance, self._ahead = time.time, Random(), 0

    def __call__(self) -> float:
        if self._chance.random() < 0.02:
            self._ahead = self._chance.choice(DAYS)
        return self._true() + 86_400 * self._ahead


def let_clock_jump() -> None:
    """From now on, in this process."""
    time.time = JumpingClock()
