"""Bodies of vector stores and of searches in them: filters turned into ours, attributes, chunking, what is refused."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from retriever.documents import Json
from retriever.filter_condition import condition
from retriever.upload_types import UploadState
from service.api.fields import WHOLE, CollectionName, Strict, Whole
from service.openai.list_pages import LONGEST_ID, ListBody
from service.openai.request import Refused, not_served

MOST_FILES = 500

# What begins with `$` would be an operator of ours.
AttributeName = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^$\x00][^\x00]*$")]
Ordered = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")] | int | float
Scalar = Ordered | bool
Told = str | int | float | bool  # in answers: what came in as metadata may hold a NUL

FileId = Annotated[str, Field(min_length=1, max_length=LONGEST_ID, examples=["file-report-7"])]
NoExpiry = Annotated[Refused, not_served("nothing expires here: delete it when it is not needed any more")]
NoMetadata = Annotated[Refused, not_served("a vector store keeps no metadata here: give its files attributes")]
NoDescription = Annotated[Refused, not_served("a vector store keeps no description here: leave it out")]


class EqualityFilter(Strict):
    """An attribute, and what it must be. One that is absent is unequal to everything."""

    key: AttributeName
    type: Literal["eq", "ne"]
    value: Scalar

    def to_filter(self) -> Json:
        return {self.key: {f"${self.type}": self.value}}


class OrderFilter(Strict):
    """An attribute, and what it must be more or less than. Numbers are compared with numbers, texts with texts."""

    key: AttributeName
    type: Literal["gt", "gte", "lt", "lte"]
    value: Ordered

    def to_filter(self) -> Json:
        return {self.key: {f"${self.type}": self.value}}


class MembershipFilter(Strict):
    """An attribute, and the values of which it must be one, or none."""

    key: AttributeName
    type: Literal["in", "nin"]
    value: list[Scalar] = Field(max_length=1000)

    def to_filter(self) -> Json:
        return {self.key: {f"${self.type}": self.value}}


class CompoundFilter(Strict):
    """Filters of which all must hold, or one."""

    type: Literal["and", "or"]
    filters: list["AttributeFilter"] = Field(min_length=1, max_length=200)

    def to_filter(self) -> Json:
        return {f"${self.type}": [each.to_filter() for each in self.filters]}


AttributeFilter = Annotated[
    EqualityFilter | OrderFilter | MembershipFilter | CompoundFilter, Field(discriminator="type")
]
CompoundFilter.model_rebuild()


class AutoChunking(Strict):
    """The cut of the vector store."""

    type: Literal["auto"]


class ChunkSizes(Strict):
    """How long chunks are at most. There is no overlap here."""

    max_chunk_size_tokens: Whole = Field(ge=16, le=4096)
    chunk_overlap_tokens: Whole = Field(ge=0, le=2048, json_schema_extra={"maximum": 0})


class StaticChunking(Strict):
    """A cut to chunks of one size."""

    type: Literal["static"]
    static: ChunkSizes


Chunking = Annotated[AutoChunking | StaticChunking, Field(discriminator="type")]


class NewVectorStore(Strict):
    """A vector store to make, which is a collection."""

    name: CollectionName | None = None
    file_ids: list[FileId] = Field(default_factory=list[str], max_length=MOST_FILES)
    chunking_strategy: Chunking | None = Field(None, description="Static: the cut of all files of this vector store")
    expires_after: NoExpiry = None
    metadata: NoMetadata = None
    description: NoDescription = None


class VectorStoreChange(Strict):
    """What is to change of a vector store: nothing can, but what is so already may be said."""

    name: CollectionName | None = None
    expires_after: NoExpiry = None
    metadata: NoMetadata = None


class FileCounts(BaseModel):
    """How many files a vector store has, by how far they are."""

    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    total: int = 0

    @classmethod
    def of(cls, states: Mapping[UploadState, int]) -> Self:
        """The files by how far they are, of so many in each state."""
        live = sum(count for state, count in states.items() if state.is_live)
        failed, completed = (states.get(each, 0) for each in (UploadState.FAILED, UploadState.READY))
        total = sum(states.values())
        ended = {"completed": completed, "failed": failed, "cancelled": total - live - failed - completed}
        return cls(in_progress=live, **ended, total=total)


class VectorStore(BaseModel):
    """A collection. `usage_bytes`: of the texts of its files."""

    id: str = Field(examples=["vs_handbook"])
    object: Literal["vector_store"] = "vector_store"
    created_at: int
    name: str
    usage_bytes: int
    file_counts: FileCounts
    status: Literal["in_progress", "completed"]
    expires_after: None = None
    expires_at: None = None
    last_active_at: int | None = None
    metadata: dict[str, str] = Field(default_factory=dict[str, str])


class VectorStoreList(ListBody):
    """A page of vector stores."""

    data: list[VectorStore]


class VectorStoreDeleted(BaseModel):
    """A vector store that was deleted, with its files."""

    id: str
    object: Literal["vector_store.deleted"] = "vector_store.deleted"
    deleted: Literal[True] = True


class RankingOptions(Strict):
    """How what is found is ordered, and what is too little. A score is what `/v1/search` tells."""

    ranker: Literal["none", "auto", "default-2024-11-15", "default_2024_08_21"] | None = None
    score_threshold: float | None = Field(None, ge=0)
    hybrid_search: Annotated[Refused, not_served("words and vectors weigh here as in every search: leave it out")] = (
        None
    )


def _understood(filters: AttributeFilter) -> AttributeFilter:
    condition(filters.to_filter())
    return filters


Filters = Annotated[AttributeFilter, AfterValidator(_understood)]


class VectorStoreQuery(Strict):
    """What to look for. Of several queries a passage has its best score."""

    query: (
        Annotated[str, Field(min_length=1, max_length=1_000_000)]
        | Annotated[list[Annotated[str, Field(min_length=1, max_length=1_000_000)]], Field(min_length=1, max_length=8)]
    ) = Field(examples=["At what temperature does water boil?"])
    max_num_results: Annotated[int, Field(ge=1, le=50), WHOLE] = 10
    filters: Filters | None = None
    ranking_options: RankingOptions | None = None
    rewrite_query: Annotated[Refused, not_served("kvweave searches what is asked: leave it out")] = None


class TextContent(BaseModel):
    """A text of a file."""

    type: Literal["text"] = "text"
    text: str


class TextPage(BaseModel):
    """The texts of a file."""

    object: Literal["vector_store.file_content.page"] = "vector_store.file_content.page"
    data: list[TextContent]
    has_more: Literal[False] = False
    next_page: None = None


class FoundFile(BaseModel):
    """What was found, but for its text. `filename`: its document's title, or its id."""

    file_id: str
    filename: str
    score: float
    attributes: dict[str, Told]


class FoundPassage(FoundFile):
    """A passage that was found. `filename`: its document's title, or its id."""

    content: list[TextContent]


class FoundPage(BaseModel):
    """All that was found, best first."""

    object: Literal["vector_store.search_results.page"] = "vector_store.search_results.page"
    search_query: list[str]
    data: list[FoundPassage]
    has_more: Literal[False] = False
    next_page: None = None
