"""The tools of a response as OpenAI's clients give them: functions, and one search. Calls and searches nothing."""

from typing import Annotated, Final, Literal, cast

from pydantic import BeforeValidator, Discriminator, Field, Tag

from service.api.fields import WHOLE, Strict
from service.openai.request import Unused
from service.openai.tools import MOST_TOOLS, WORD, ChoiceWord, Function, NamedFunction, choice_of, kind_tag
from service.openai.vector_store_bodies import Filters, RankingOptions

MOST_STORES: Final = 16


class FileSearch(Strict):
    """Search vector stores with the last message, all of them at once."""

    type: Literal["file_search"]
    vector_store_ids: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=4000)]],
        Field(min_length=1, max_length=MOST_STORES, examples=[["vs_handbook"]]),
    ]
    max_num_results: Annotated[int, Field(ge=1, le=50), WHOLE] | None = Field(
        None, description="Of all vector stores together; without it as many as every answer has"
    )
    filters: Filters | None = None
    ranking_options: RankingOptions | None = None


class FlatFunction(Function):
    """A function that an answer may call."""

    type: Literal["function"]
    allowed_callers: Unused = None
    defer_loading: Unused = None
    output_schema: Unused = None


class ChosenSearch(Strict):
    """The search by its kind."""

    type: Literal["file_search"]


class ChosenFunction(NamedFunction):
    """The function that the answer has to call."""

    type: Literal["function"]


def _served(given: object) -> object:
    """The tools, where they are of kinds that are served. Others get a sentence of their own."""
    if not isinstance(given, list):
        return given
    tools = cast(list[object], given)
    kinds = [cast(dict[str, object], each).get("type") if isinstance(each, dict) else each for each in tools]
    for kind in kinds:
        if kind not in ("function", "file_search"):
            raise ValueError(
                f"kvweave serves functions and file_search, got a tool of the type {str(kind)[:40]!r}: leave it out"
            )
    if kinds.count("file_search") > 1:
        raise ValueError(
            f"kvweave searches once for an answer, got {kinds.count('file_search'):,} of file_search: give one"
        )
    return tools


Tool = Annotated[
    Annotated[FileSearch, Tag("type[file_search]")] | Annotated[FlatFunction, Tag("type[function]")],
    Discriminator(kind_tag),
]
Tools = Annotated[
    list[Tool],
    Field(
        max_length=MOST_TOOLS,
        json_schema_extra={
            "contains": {"properties": {"type": {"const": "file_search"}}},
            "minContains": 0,
            "maxContains": 1,
        },
    ),
    BeforeValidator(_served),
]
Choice = Annotated[
    Annotated[ChoiceWord, WORD]
    | Annotated[ChosenSearch, Tag("type[file_search]")]
    | Annotated[ChosenFunction, Tag("type[function]")],
    Discriminator(kind_tag),
    choice_of("function", "file_search"),
]
