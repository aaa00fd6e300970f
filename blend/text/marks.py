"""Stand-ins for users' texts while a template renders; refuses texts that it alters, and JSON that is nested too deep.

A mark has characters that JSON escapes: so what a template renders tells how it writes the text in its place.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, digits
from typing import Final, cast

from blend.errors import TokenizerError

# What templates ask tools for: JSON Schema's words and OpenAI's own. No control token is made of them.
_WORDS = """
type function name description parameters strict properties required items enum const default title
format additionalProperties anyOf oneOf allOf not $ref $defs definitions minimum maximum minLength
maxLength pattern minItems maxItems string number integer boolean array object null true false
"""
WORDS: Final = frozenset(_WORDS.split())
DEEPEST: Final = 100

_SHORT = re.compile(r"[A-Za-z0-9]{9}")
_END = '"\té.'


def _as_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _as_ascii(text: str) -> str:
    return json.dumps(text)[1:-1]


def _as_json_twice(text: str) -> str:
    return _as_json(_as_json(text))


_WAYS: dict[str, Callable[[str], str]] = {
    way(_END): way for way in (str, _as_json, _as_ascii, _as_json_twice)
}  # by how the end of a mark is then written


@dataclass(frozen=True, slots=True)
class WrittenText:
    """A stretch of what was rendered: the text of the mark with this number, as it is written there, or the template's
    own."""

    text: str
    mark: int | None = None


class Marks:
    """The marks of one prompt."""

    def __init__(self) -> None:
        self._nonce = secrets.token_hex(16)
        self._texts: list[str] = []
        self._numbers: dict[str, int] = {}  # of marks that do not tell them
        self._shared: dict[str, str] = {}

    def new(self, text: str) -> str:
        """A mark that stands for this text alone."""
        self._texts.append(text)
        return f"{self._nonce}n{len(self._texts) - 1}{_END}"

    def shared(self, text: str) -> str:
        """The mark of a text, the same wherever it stands, between the same white space; words of `WORDS` are left."""
        core = text.strip()
        if not core or core in WORDS:
            return text
        if core not in self._shared:
            self._shared[core] = self.new(core)
        return text.replace(core, self._shared[core], 1)

    def id(self, text: str) -> str:
        """The mark of a call's id. Some templates want nine letters and digits: an id of that form gets such a mark."""
        if not _SHORT.fullmatch(text):
            return self.shared(text)
        if text not in self._shared:
            mark = "".join(secrets.choice(ascii_lowercase + digits) for _ in text)
            self._texts.append(text)
            self._numbers[mark] = len(self._texts) - 1
            self._shared[text] = mark
        return self._shared[text]

    def within(self, value: object, *, depth: int = 0) -> object:
        """A JSON value with marks in the place of its texts. Raises TokenizerError where it is nested too deep."""
        if depth > DEEPEST:
            raise TokenizerError(f"tools and arguments are nested in at most {DEEPEST} levels: flatten them")
        if isinstance(value, str):
            return self.shared(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[str, object]", value).items()
            return {self.shared(name): self.within(each, depth=depth + 1) for name, each in items}
        if isinstance(value, list | tuple):
            return [self.within(each, depth=depth + 1) for each in cast("Sequence[object]", value)]
        return value

    def cut(self, rendered: str) -> Iterator[WrittenText]:
        """What was rendered, cut where marks stand in it."""
        ends = "|".join(map(re.escape, _WAYS))
        names = "|".join([f"{self._nonce}n([0-9]+)({ends})", *self._numbers])
        begin = 0
        for found in re.finditer(names, rendered):
            if found.start() > begin:
                yield WrittenText(rendered[begin : found.start()])
            begin = found.end()
            number = self._numbers[found[0]] if found[1] is None else int(found[1])
            write = str if found[2] is None else _WAYS[found[2]]
            yield WrittenText(write(self._texts[number]), number)
        if begin < len(rendered):
            yield WrittenText(rendered[begin:])

    def check_unaltered(self, text: str) -> None:
        """Raises TokenizerError where the template's own text has a mark that was changed."""
        found = re.search(f"{self._nonce}n?([0-9]*)", text, re.IGNORECASE)
        if found:
            shown = f" {self._texts[int(found[1])][:80]!r}" if found[1] else ""
            raise TokenizerError(
                f"the model's chat template alters the text{shown}: leave it out, or use another template"
            )

    def number(self, mark: str) -> int:
        """The number of a new mark."""
        return int(mark.removeprefix(f"{self._nonce}n").removesuffix(_END))
