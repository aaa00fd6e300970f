"""Server-sent events out of bytes, as the HTML standard has them. Knows no connection and no event's meaning."""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass

LONGEST = 256 * 1024 * 1024  # letters of one event: beyond it is no stream of events

_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event of a stream. `data`: its lines, joined."""

    name: str
    data: str


class EventReader:
    """Takes bytes as they come, cut anywhere."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._pieces: list[str] = []  # of a line that has not ended
        self._after_return = False
        self._name = ""
        self._data: list[str] = []
        self._size = 0  # of the pieces and the data

    def feed(self, received: bytes) -> Iterator[ServerEvent]:
        """Yields the events that these bytes complete. Raises OverflowError where one grows beyond all bounds."""
        text = self._decoder.decode(received)
        if self._after_return and text:  # a line end may have been cut in two
            text = text.removeprefix("\n")
            self._after_return = False
        if text.endswith("\r"):
            self._after_return = True
        *lines, rest = _LINE_END.split(text)
        for line in lines:
            self._hold(line)
            whole, self._pieces = "".join(self._pieces), []
            self._size -= len(whole)
            event = self._line(whole)
            if event is not None:
                yield event
        self._hold(rest)

    def _hold(self, piece: str) -> None:
        self._size += len(piece)
        if self._size > LONGEST:
            raise OverflowError(f"an event is longer than {LONGEST:,} letters")
        if piece:
            self._pieces.append(piece)

    def _line(self, line: str) -> ServerEvent | None:
        if not line:
            data, name = self._data, self._name
            self._data, self._name, self._size = [], "", 0
            return ServerEvent(name or "message", "\n".join(data)) if data else None
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._size += len(value) + 1
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None
