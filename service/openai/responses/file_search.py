"""The tool that searches vector stores for an answer, as OpenAI's clients give it. Searches nothing."""

from typing import Annotated, Final, Literal

from pydantic import Field

from service.api.fields import WHOLE, Strict
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
