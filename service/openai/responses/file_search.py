"""The tool that searches a vector store for an answer, as OpenAI's clients give it. Searches nothing."""

from typing import Annotated, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field

from service.api.fields import WHOLE, Strict
from service.openai.request import Unused
from service.openai.vector_store_bodies import Filters


def _one_store(given: object) -> object:
    count = len(cast(list[object], given)) if isinstance(given, list) else 1
    if count > 1:
        raise ValueError(f"kvweave searches one vector store for an answer, got {count:,}: give one")
    return cast(object, given)


def _unscored(given: float | None) -> float | None:
    if given:
        raise ValueError("kvweave leaves out no passage of an answer by its score: leave it out")
    return given


def _served(given: object) -> object:
    """The tools, where they are file_search alone. Other kinds get a sentence of their own."""
    if not isinstance(given, list):
        return given
    tools = cast(list[object], given)
    for each in tools:
        kind = cast(dict[str, object], each).get("type") if isinstance(each, dict) else each
        if kind != "file_search":
            raise ValueError(
                "kvweave serves file_search here, and calls functions in chats alone, got a tool of the type "
                f"{str(kind)[:40]!r}: leave it out"
            )
    if len(tools) > 1:
        raise ValueError(f"kvweave searches once for an answer, got {len(tools):,} of file_search: give one")
    return tools


class AnswerRanking(Strict):
    """How what is found is ordered, which is as in every search."""

    ranker: Unused = None
    score_threshold: Annotated[float | None, AfterValidator(_unscored)] = Field(
        None, ge=0, json_schema_extra={"maximum": 0}
    )


class FileSearch(Strict):
    """Search a vector store with the last message."""

    type: Literal["file_search"]
    vector_store_ids: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=4000)]],
        Field(min_length=1, max_length=1, examples=[["vs_handbook"]]),
        BeforeValidator(_one_store),
    ]
    max_num_results: Annotated[int, Field(ge=1, le=50), WHOLE] | None = Field(
        None, description="Without it as many as every answer has"
    )
    filters: Filters | None = None
    ranking_options: AnswerRanking | None = None


class ChosenSearch(Strict):
    """The tool by its kind."""

    type: Literal["file_search"]


Tools = Annotated[list[FileSearch], Field(max_length=1), BeforeValidator(_served)]
Choice = Literal["none", "auto", "required"] | ChosenSearch
