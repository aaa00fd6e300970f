"""All that an answer's events tell, gathered for those who want it whole. Knows no interface."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from service.answers.events import ChoiceFinished, Delta, Event, Finished, MessageAdded, Retrieved, Source

Piece = Delta | MessageAdded | ChoiceFinished


@dataclass(slots=True)
class WholeAnswer:
    """What was told so far: all of it once the last event was added."""

    sources: tuple[Source, ...] = ()
    pieces: list[Piece] = field(default_factory=list[Piece])
    _end: Finished | None = None

    def add(self, event: Event) -> None:
        match event:
            case Retrieved():
                self.sources = event.sources
            case Delta() | MessageAdded() | ChoiceFinished():
                self.pieces.append(event)
            case Finished():
                self._end = event
            case _:
                pass

    @property
    def end(self) -> Finished:
        assert self._end is not None, "the events ended without the last of them"
        return self._end

    @property
    def text(self) -> str:
        """The text of an answer that is the only one, and calls no tools."""
        return "".join(each.text for each in self.pieces if isinstance(each, Delta)) + self.end.text


async def whole_answer(events: AsyncGenerator[Event]) -> WholeAnswer:
    whole = WholeAnswer()
    async with aclosing(events):
        async for event in events:
            whole.add(event)
    return whole
