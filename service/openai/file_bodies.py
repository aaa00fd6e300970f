"""What OpenAI's clients send and read of files, in vector stores and outside of them. Types alone."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from service.api.fields import OneOf, Strict, check_metadata
from service.openai.list_pages import ListBody
from service.openai.vector_store_bodies import (
    MOST_FILES,
    AttributeName,
    Chunking,
    ChunkSizes,
    FileCounts,
    FileId,
    Scalar,
    Told,
)

Purpose = Literal["assistants", "user_data"]
FileStatus = Literal["in_progress", "completed", "cancelled", "failed"]


Attributes = Annotated[
    dict[AttributeName, Scalar],
    AfterValidator(check_metadata),
    Field(
        max_length=64,
        description="Metadata of the document",
        examples=[{"year": 1911}],
        json_schema_extra={"additionalProperties": False},
    ),
]


class FileObject(BaseModel):
    """A file. `bytes`: of its text. `filename`: its document's title, or its id."""

    id: str = Field(examples=["file-report-7"])
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: None = None
    filename: str
    purpose: Purpose
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileList(ListBody):
    """A page of files."""

    data: list[FileObject]


class FileDeleted(BaseModel):
    """A file that was deleted, from all its vector stores too."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class AttachedFile(Strict):
    """A file to put into a vector store."""

    file_id: FileId
    attributes: Attributes | None = None
    chunking_strategy: Chunking | None = None


class AttributeChange(Strict):
    """The attributes that take the place of those that are there; null for none."""

    attributes: Attributes | None


class FileBatch(OneOf):
    """Files to put into a vector store together: by their ids, or each with attributes of its own."""

    choices = ("file_ids", "files")
    remedy = "give either file_ids or files"

    file_ids: list[FileId] = Field(default_factory=list[str], min_length=1, max_length=MOST_FILES)
    files: list[AttachedFile] = Field(default_factory=list[AttachedFile], min_length=1, max_length=MOST_FILES)
    attributes: Attributes | None = Field(None, description="Of those that bring none")
    chunking_strategy: Chunking | None = None

    @property
    def wanted(self) -> list[AttachedFile]:
        shared = {"attributes": self.attributes, "chunking_strategy": self.chunking_strategy}
        given = self.files or [AttachedFile.model_validate({"file_id": each}) for each in self.file_ids]
        return [
            each.model_copy(update={name: getattr(each, name) or value for name, value in shared.items()})
            for each in given
        ]


class LastError(BaseModel):
    """Why a file could not be put in."""

    code: Literal["server_error"] = "server_error"
    message: str


class StaticCut(BaseModel):
    """How a file is cut."""

    type: Literal["static"] = "static"
    static: ChunkSizes


class VectorStoreFile(BaseModel):
    """A file in a vector store. `usage_bytes`: of its text."""

    id: str
    object: Literal["vector_store.file"] = "vector_store.file"
    created_at: int
    usage_bytes: int
    vector_store_id: str
    status: FileStatus
    last_error: LastError | None
    chunking_strategy: StaticCut
    attributes: dict[str, Told]


class VectorStoreFileList(ListBody):
    """A page of the files of a vector store."""

    data: list[VectorStoreFile]


class VectorStoreFileDeleted(BaseModel):
    """A file that was taken out of a vector store, and is there still."""

    id: str
    object: Literal["vector_store.file.deleted"] = "vector_store.file.deleted"
    deleted: Literal[True] = True


class VectorStoreFileBatch(BaseModel):
    """Files that were put into a vector store together: a job."""

    id: str
    object: Literal["vector_store.files_batch"] = "vector_store.files_batch"
    created_at: int
    vector_store_id: str
    status: Literal["in_progress", "completed", "cancelled", "failed"]
    file_counts: FileCounts
