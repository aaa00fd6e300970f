"""Reads calls of tools out of an answer's tokens, by the frame of the model's template. Knows no HTTP and no grammar.

What it tells are pieces of a message in OpenAI's form, as vLLM's parsers do.
"""

import re
import secrets
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from itertools import count
from string import ascii_letters, digits

from blend.engine.engine import Done, Event, MessagePiece, Token
from blend.text.call_frame import CallFrame, FrameText, Slot
from blend.text.tokenizer import Detokenizer, Tokenizer
from retriever.documents import Json
from service.model.call_offer import CallStart

_BEHIND_WORD = re.compile("[^A-Za-z0-9_-]")  # what follows a name, or an id


class CallReader:
    """One answer, event by event. `is_needed`: it calls from its first token on; else where it begins to."""

    def __init__(self, frame: CallFrame, tokenizer: Tokenizer, *, is_needed: bool) -> None:
        self._start = CallStart(frame, tokenizer)
        self._start.begun = 0 if is_needed else None
        self._text = Detokenizer(tokenizer, hidden=tokenizer.special)
        self._called = Detokenizer(tokenizer, hidden=frozenset())
        self._calls = _CallText(frame if is_needed else frame.behind_text)
        self._ids: list[int] = []
        self._read = 0  # ids that calls were read from
        self._said = ""  # the text before calls,
        self._passed = 0  # how much of it passed the stop strings,
        self._told = 0  # and how much was told: white space waits for what follows it

    def read(self, event: Event) -> Iterator[Event]:
        """What is told in an event's place."""
        match event:
            case Token():
                yield from self._token(event)
            case Done():
                yield from self._end(event)
            case _:
                yield event

    def _token(self, token: Token) -> Iterator[Event]:
        self._ids.append(token.id)
        self._start.read([token.id])
        begun = self._start.begun
        if begun is None:
            self._said += self._text.push(token.id)
            self._passed += len(token.text)
            if not self._start.awaited:
                yield from self._say(self._said[self._told : self._passed].rstrip())
            return
        if not self._read and begun:
            yield from self._say(self._said[self._told :].rstrip())
        fresh = self._ids[max(self._read, begun) :]
        self._read = len(self._ids)
        for delta in self._calls.push("".join(map(self._called.push, fresh))):
            yield MessagePiece({"tool_calls": [delta]})

    def _say(self, text: str) -> Iterator[Event]:
        self._told += len(text)
        if text:
            yield MessagePiece({"content": text})

    def _end(self, done: Done) -> Iterator[Event]:
        if self._start.begun is None:
            yield from self._say(self._said[self._told : self._passed] + done.text)
        whole = self._calls.is_whole and done.reason == "stop"
        yield replace(done, text="", reason="tool_calls" if whole else done.reason)


class _CallText:
    """The text of an answer's calls, as it comes."""

    def __init__(self, frame: CallFrame) -> None:
        self._frame = frame
        self._held = ""  # text that is yet to be read
        self._deltas: list[Json] = []
        self._ids: set[str] = set()
        self._is_behind = False  # all places of a call are read
        self._steps = self._read()
        next(self._steps)

    @property
    def is_whole(self) -> bool:
        """Whether the answer may end here."""
        return self._is_behind and self._held == self._frame.closing.text

    def push(self, text: str) -> list[Json]:
        """What becomes certain with this text: additions to calls, in OpenAI's form."""
        self._held += text
        next(self._steps)
        deltas, self._deltas = self._deltas, []
        return deltas

    def _read(self) -> Generator[None]:
        """Yields where more text is needed."""
        glue = self._frame.glue
        yield from self._literal(self._frame.opening)
        for index in count():
            yield from self._call(index)
            self._is_behind = True
            while glue is None or not self._held.startswith(glue.text):
                yield
            self._is_behind = False
            self._held = self._held.removeprefix(glue.text)

    def _call(self, index: int) -> Generator[None]:
        """Told as soon as its name is known, and its id where the frame has one."""
        awaited = {Slot.NAME, Slot.ID} & {*self._frame.inner}
        words, waiting = dict[Slot, str](), ""
        for part in self._frame.inner:
            if isinstance(part, FrameText):
                yield from self._literal(part)
            elif part != Slot.ARGUMENTS:
                words[part] = yield from self._word()
                if words.keys() == awaited:
                    self._deltas.append(self._head(index, words))
                    self._add(index, waiting)
            else:
                for piece in self._object():
                    if words.keys() == awaited:
                        self._add(index, piece)
                    else:
                        waiting += piece
                    if not piece:
                        yield

    def _head(self, index: int, words: Mapping[Slot, str]) -> Json:
        id = words.get(Slot.ID, "")
        if not id or id in self._ids:
            id = "".join(secrets.choice(ascii_letters + digits) for _ in range(9))  # some templates take no others
        self._ids.add(id)
        called = {"name": words[Slot.NAME], "arguments": ""}
        return {"index": index, "id": id, "type": "function", "function": called}

    def _add(self, index: int, arguments: str) -> None:
        if arguments:
            self._deltas.append({"index": index, "function": {"arguments": arguments}})

    def _literal(self, text: FrameText) -> Generator[None]:
        while len(self._held) < len(text.text):
            yield
        self._held = self._held.removeprefix(text.text)

    def _word(self) -> Generator[None, None, str]:
        while (end := _BEHIND_WORD.search(self._held)) is None:
            yield
        word, self._held = self._held[: end.start()], self._held[end.start() :]
        return word

    def _object(self) -> Generator[str]:
        """The pieces of a JSON object up to its end; an empty one where more text is needed."""
        depth, is_string, is_escaped = 0, False, False
        while True:
            for at, letter in enumerate(self._held, start=1):
                if is_string:
                    is_string = is_escaped or letter != '"'
                    is_escaped = letter == "\\" and not is_escaped
                elif letter == '"':
                    is_string = True
                else:
                    depth += {"{": 1, "}": -1}.get(letter, 0)
                if depth == 0:
                    piece, self._held = self._held[:at], self._held[at:]
                    yield piece
                    return
            piece, self._held = self._held, ""
            yield from (piece, "") if piece else ("",)
