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
