"""Ends a stream of text at the first of some strings. Knows characters only, nothing of tokens or models."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PassedText:
    """The text that may leave now, and whether a stop string has ended it."""

    text: str
    stopped: bool


class StopStrings:
    """What leaves is the text up to the earliest place where a stop string begins, however the text arrives.

    A piece is held back only while it may still become a stop string. Where a longer one that began earlier is still
    possible, a complete one waits for it: so the result does not depend on where the text was cut.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        assert all(stops), "an empty string ends any text"
        self._stops = stops
        self._held = ""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string was reached, at the last in `finish`."""
        return self._stopped

    def push(self, text: str) -> PassedText:
        """Take the next piece of text. Behind a stop string everything is dropped."""
        if self._stopped:
            return PassedText("", stopped=True)
        self._held += text
        found, possible = self._found(), min(self._possible(), default=len(self._held))
        if found is not None and found <= possible:
            return PassedText(self._stop_at(found), stopped=True)
        passed, self._held = self._held[:possible], self._held[possible:]
        return PassedText(passed, stopped=False)

    def finish(self) -> str:
        """End the text; returns what was held back and holds no stop string."""
        found = self._found()
        if found is not None:
            return self._stop_at(found)
        passed, self._held = self._held, ""
        return passed

    def _stop_at(self, place: int) -> str:
        passed, self._held, self._stopped = self._held[:place], "", True
        return passed

    def _found(self) -> int | None:
        """Where the first complete stop string begins."""
        places = [self._held.find(stop) for stop in self._stops]
        return min((place for place in places if place >= 0), default=None)

    def _possible(self) -> Iterator[int]:
        """The places from which all the text may be the beginning of a stop string: the first one for each."""
        for stop in self._stops:
            place = self._held.find(stop[0], max(0, len(self._held) - len(stop) + 1))
            while place >= 0:
                if stop.startswith(self._held[place:]):
                    yield place
                    break
                place = self._held.find(stop[0], place + 1)
