"""A JSON schema as a grammar, and whether that may be compiled here, by its size and its cost. Knows no model."""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from subprocess import CalledProcessError
from typing import Final, cast
from urllib.parse import unquote

from llguidance import LLMatcher

from retriever.documents import Json
from retriever.readers.serve import ParserRequest
from retriever.readers.worker import ask_within
from service.errors import Invalid, Unavailable
from service.model.grammar_bytes import GRAMMAR_BYTES

FIELD: Final = "response_format"
ANY_OBJECT: Final[Json] = {"type": "object"}
MOST_CHARACTERS: Final = 100_000
MOST_OBJECTS: Final = 1000  # each property is one, and each alternative
DEEPEST: Final = 100
MOST_CERTAIN: Final = 10_000  # characters that follow without a choice: each step looks ahead at all of them
COMPILATION: Final = ParserRequest(memory_bytes=256 << 20, cpu_s=1, text_characters=20, wall_s=30.0)
LEAST_BYTES: Final = 1 << 20  # that a grammar is taken for: it grows while it is followed


@dataclass(frozen=True, slots=True)
class CheckedGrammar:
    """A grammar in llguidance's form that can be compiled within the limits, and the memory that it takes."""

    grammar: str
    nbytes: int = LEAST_BYTES


def checked_grammar(schema: Json) -> CheckedGrammar:
    """The grammar of a schema; {} is any JSON object.

    A process of its own compiles it first. Takes as long as that; raises `Invalid` with what is too large.
    """
    if not schema:
        return CheckedGrammar(json_grammar(ANY_OBJECT))
    check_size(schema)
    grammar = json_grammar(schema)
    return CheckedGrammar(grammar, bytes_of(grammar))


def check_size(schema: Json) -> None:
    """Raises `Invalid` where the schema has too many parts."""
    level: list[object] = [schema]
    objects = characters = depth = 0
    while level:
        depth += 1
        objects += sum(isinstance(each, dict) for each in level)
        characters += sum(map(_length, level))
        for count, most, what in (
            (depth, DEEPEST, "levels"),
            (objects, MOST_OBJECTS, "objects (properties, alternatives)"),
            (characters, MOST_CHARACTERS, "characters"),
        ):
            if count > most:
                reason = f"the JSON schema has {count:,} {what}, at most {most:,} are taken: ask for less in one answer"
                raise Invalid(reason, field=FIELD)
        level = [inner for each in level for _, inner in _parts(each)]


def _length(value: object) -> int:
    """Estimates the characters that the value takes, without those inside it."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(name) for name in cast(dict[str, object], value))
    return value.bit_length() // 3 if isinstance(value, int) else 1


def _parts(value: object) -> list[tuple[str, object]]:
    """What is inside it, with its names where it has any."""
    if isinstance(value, dict):
        return [*cast(dict[str, object], value).items()]
    return [("", each) for each in cast(list[object], value)] if isinstance(value, list) else []


def json_grammar(schema: Json) -> str:
    """The grammar of a schema in llguidance's form.

    White space is not free: a model unsure of what follows would write it without end.
    """
    try:
        return LLMatcher.grammar_from_lark(f"{look_ahead([schema])}start: {spaced(schema, item=', ', key=': ')}")
    except ValueError as error:
        raise Invalid(f"the JSON schema cannot be followed: {error}", field=FIELD) from None


def spaced(schema: Json, *, item: str, key: str) -> str:
    """A schema as part of a grammar, with this white space and no other."""
    space = {"whitespace_flexible": False, "item_separator": item, "key_separator": key}
    return f"%json {json.dumps({**schema, 'x-guidance': space})}"


def look_ahead(schemas: Iterable[Json]) -> str:
    """How a grammar with these schemas begins: it writes what is certain in the tokenizer's tokens, or does not look.

    llguidance takes a hundred bytes for each character that is certain, and a few words may ask for any number.
    """
    certain = sum(_Certain(schema).characters for schema in schemas)
    return "" if certain <= MOST_CERTAIN else '%llguidance {"no_forcing": true}\n'


class _Certain:
    """The characters that a schema may make certain at most: all of its parts, as often as any of them is repeated."""

    def __init__(self, schema: Json) -> None:
        self._schema: object = schema
        self._known: dict[int, float] = {}
        self._repeated = 1.0
        self.characters = self._of(schema, 0) * self._repeated

    def _of(self, part: object, depth: int) -> float:
        """Those of a part alone: endless where it has itself inside, or is too deep to tell."""
        place, known = id(part), self._known
        if place not in known:
            known[place] = math.inf
            if depth <= DEEPEST:
                inner = sum(self._named(*each, depth=depth + 1) for each in _parts(part))
                known[place] = 2 + _length(part) + inner
        return known[place]

    def _named(self, name: str, value: object, *, depth: int) -> float:
        match name, value:
            case "minItems", int() | float():
                self._repeated *= max(1.0, min(value, 1e9))
                return 0
            case "minLength", int() | float():
                return max(0.0, min(value, 1e9))
            case "pattern", str():
                return len(value) * math.prod(max(1.0, float(each)) for each in re.findall("[0-9]+", value))
            case "patternProperties", dict():
                named = cast(dict[str, object], value)
                return self._of(named, depth) + sum(self._named("pattern", each, depth=depth) for each in named)
            case "$ref", str():
                return self._of(self._referred(value), depth)
            case _:
                return self._of(value, depth)

    def _referred(self, pointer: str) -> object:
        """The part that it names; the whole schema, which has everything inside, where that is not told simply."""
        part = self._schema
        for step in unquote(pointer).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if not pointer.startswith("#/") or not isinstance(part, dict) or name not in part:
                return self._schema
            part = cast(dict[str, object], part)[name]
        return part


def bytes_of(grammar: str) -> int:
    """The memory that a grammar takes: a process of its own compiles it. Raises `Invalid` where that takes too much."""
    try:
        found = ask_within(COMPILATION, "service.model.grammar_bytes", content=grammar.encode())
    except CalledProcessError:
        limits = f"{COMPILATION.cpu_s} s of processor time or {GRAMMAR_BYTES >> 20} MiB of memory"
        reason = f"the JSON schema takes more than {limits} to compile: use shorter patterns, smaller numbers in"
        raise Invalid(f"{reason} multipleOf, fewer properties and alternatives", field=FIELD) from None
    except OSError as error:
        raise Unavailable(f"no process could be started to compile the JSON schema ({error}): try again") from error
    if found.problems:
        raise Unavailable(f"the JSON schema could not be compiled ({found.problems[0]}): try again")
    return max(LEAST_BYTES, int(found.pages[0]))
