"""Server-sent events out of the bytes of a response. Knows no connection, and not what an event means."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """One event of a stream. `name` is empty where it has none; `data`: its lines, joined."""

    name: str
    data: bytes


class EventParser:
    """Takes bytes as they come, cut anywhere. Line feeds alone end lines: JSON may hold all others that Unicode has."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[bytes] = []

    def feed(self, part: bytes) -> Iterator[ReceivedEvent]:
        """The events that these bytes complete. Comments and other fields are passed over."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            whole = line.removesuffix(b"\r")
            field, _, value = whole.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            elif field == b"event":
                self._name = value.removeprefix(b" ").decode("utf-8", "replace")
            elif not whole:
                name, data, self._name, self._data = self._name, self._data, "", []
                if data:
                    yield ReceivedEvent(name, b"\n".join(data))

    def end(self) -> Iterator[ReceivedEvent]:
        """The last event, where the stream ends without the empty line behind it."""
        yield from self.feed(b"\n\n")


async def events_in(parts: AsyncIterator[bytes]) -> AsyncIterator[ReceivedEvent]:
    """All events of a stream, the last one even where its end is missing."""
    parser = EventParser()
    async for part in parts:
        for event in parser.feed(part):
            yield event
    for event in parser.end():
        yield event
