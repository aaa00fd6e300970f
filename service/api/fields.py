"""Types of fields that several requests share, with their limits: ids, names, texts, metadata, filters, sampling."""

import json
from typing import Annotated, ClassVar, Self, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic_core import CoreSchema

from retriever.documents import Json
from retriever.filter_condition import condition, facets
from retriever.readers.jsonl import MAX_DEPTH, MAX_METADATA_BYTES
from retriever.readers.reading import MAX_TITLE

MOST_LISTED = 1000  # entries of one page

# Clients take "." and ".." out of a path before they send it, so that nothing of such a name could be reached.
NAME_PATTERN = r"^(?:[^.\x00][^\x00]*|\.[^.\x00][^\x00]*|\.\.[^\x00]+)$"
_NO_NUL = r"^[^\x00]*$"
_SOME_TEXT = r"^[^\x00]*[^\s\x00\x1c-\x1f][^\x00]*$"  # more than white space, as Python understands it

M = TypeVar("M", bound=Json)


class Strict(BaseModel):
    """A request: what it does not know it refuses, and a text is no number."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        """The first of a list's faults is told: to gather those of very many items holds the event loop for seconds."""
        schema = handler(source)
        inside: list[object] = [schema]
        while inside:
            each = inside.pop()
            if isinstance(each, dict):
                found = cast(dict[str, object], each)
                if found.get("type") == "list":
                    found["fail_fast"] = True
                inside += found.values()
            elif isinstance(each, list):
                inside += cast(list[object], each)
        return schema


def _say_choices(schema: JsonDict, kind: "type[OneOf]") -> None:
    """None of them has a default: one is given."""
    schema["oneOf"] = [{"required": [name]} for name in kind.choices]
    properties = cast(dict[str, JsonDict], schema["properties"])
    for name in kind.choices:
        properties[name].pop("default", None)


class OneOf(Strict):
    """A request with exactly one of the fields `choices`. `remedy`: what it is told otherwise."""

    model_config = ConfigDict(json_schema_extra=_say_choices)
    choices: ClassVar[tuple[str, ...]]
    remedy: ClassVar[str]

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        given = {type(self).model_fields[name].alias or name for name in self.model_fields_set}
        if len(given.intersection(self.choices)) != 1:
            raise ValueError(self.remedy)
        return self


def _some_text(text: str) -> str:
    """Looks for `_SOME_TEXT` without a pattern, which would hold up all others where the text is large."""
    if not text or text.isspace() or "\0" in text:
        raise ValueError("this has nothing to read, or a NUL: say something, without NUL")
    return text


def check_metadata(metadata: M) -> M:
    """The metadata as they are. Raises ValueError for what cannot be kept, or not be compared with."""
    level: list[object] = [metadata]
    for _ in range(MAX_DEPTH + 1):
        level = [each for value in level for each in _inner(value)]
    if level:
        raise ValueError(f"metadata is nested deeper than {MAX_DEPTH}: flatten it")
    for _ in facets(metadata):
        pass
    nbytes = len(json.dumps(metadata, ensure_ascii=False, allow_nan=False).encode())
    if nbytes > MAX_METADATA_BYTES:
        raise ValueError(f"metadata has {nbytes:,} bytes, at most {MAX_METADATA_BYTES:,}: shorten it")
    return metadata


def _inner(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(cast(dict[str, object], value).values())
    return cast(list[object], value) if isinstance(value, list) else []


def _whole(value: object) -> object:
    """JSON has one kind of numbers: 5.0 is 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _understood(where: dict[str, object]) -> dict[str, object]:
    condition(where)
    return where


DocumentId = Annotated[
    str,
    StringConstraints(min_length=1, max_length=1024, pattern=NAME_PATTERN),
    Field(description="Any text but `.` and `..`; in a path it is one percent-encoded segment", examples=["report/7"]),
]
CollectionName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=128, pattern=NAME_PATTERN),
    Field(description="Any text but `.` and `..`", examples=["handbook"]),
]
ChunkId = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9a-f]{32}$"),
    Field(description="The digest that a chunk's text has", examples=["0f343b0931126a20f133d67c2b018a3b"]),
]
JobId = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_-]+$")]
Title = Annotated[str, StringConstraints(max_length=MAX_TITLE, pattern=_NO_NUL)]
Name = Annotated[str, StringConstraints(max_length=1024, pattern=_NO_NUL)]
Text = Annotated[str, StringConstraints(min_length=1, pattern=_SOME_TEXT)]
LongText = Annotated[str, AfterValidator(_some_text), Field(json_schema_extra={"minLength": 1, "pattern": _SOME_TEXT})]
Metadata = Annotated[
    dict[str, object],
    AfterValidator(check_metadata),
    Field(description="What filters compare", examples=[{"lang": "en", "year": 2024, "tags": ["a", "b"]}]),
]
Filter = Annotated[
    dict[str, object],
    AfterValidator(_understood),
    WithJsonSchema({"$ref": "#/components/schemas/Filter"}),
]
WHOLE = BeforeValidator(_whole)  # stands behind limits, or the schema loses them
Whole = Annotated[int, WHOLE]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63), WHOLE]
TokensDrawn = Annotated[int, Field(ge=0, lt=2**31, description="The likeliest tokens that are drawn of; 0: all"), WHOLE]
MinP = Annotated[
    float, Field(ge=0, le=1, description="Of the likeliest token's probability, what a token has to have; 0 is off")
]
RepetitionPenalty = Annotated[
    float, Field(ge=0.1, le=10, description="Above 1, what stands in the prompt or answer becomes less likely")
]
Stop = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Stops = Stop | Annotated[list[Stop], Field(max_length=16)]
Limit = Annotated[int, Field(ge=1, le=MOST_LISTED, description="Entries of one page")]


def stop_strings(given: str | list[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())
