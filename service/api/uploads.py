"""How documents come in: as JSON or as files, checked against limits and filters, then handed to the ingest."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final, TypeVar, cast

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError, field_validator
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

from retriever.documents import DocumentPart, Draft, Json
from retriever.filter_condition import scope
from retriever.readers.files import SUFFIXES, read
from retriever.readers.reading import MAX_TITLE, Reading
from retriever.upload_types import NewUpload
from service.api.caller import By, Caller
from service.api.fields import (
    CollectionName,
    DocumentId,
    LongText,
    Metadata,
    Name,
    OneOf,
    Strict,
    Text,
    Title,
    check_metadata,
)
from service.api.guards import SMALL, core_of, one_by_one, parse
from service.documents.collection_rules import DEFAULT_COLLECTION, CollectionRules, check_collection
from service.documents.drafts import document_id, named, told, upload_of
from service.errors import Invalid, TooLarge

M = TypeVar("M", bound=BaseModel)
_NOTHING: Final[Mapping[str, int]] = {}


class ChunkIn(Strict):
    """A chunk that is kept verbatim. Its metadata is laid over the document's."""

    id: Name = Field("", description="What you call it; it comes back as `name`")
    text: Text = Field(examples=["Water boils at 100 °C at sea level."])
    metadata: Metadata = Field(default_factory=dict[str, object])


class DocumentIn(OneOf):
    """A document: a text that is cut here, or chunks that you cut."""

    choices = ("text", "chunks")
    remedy = "a document has either text or chunks: give exactly one of them"

    text: LongText = Field("", examples=["Water boils at 100 °C at sea level."])
    chunks: list[ChunkIn] = Field(default_factory=list[ChunkIn], min_length=1, max_length=100_000)
    title: Title = ""
    metadata: Metadata = Field(default_factory=dict[str, object])


class NewDocument(DocumentIn):
    """A document; without an id it gets one that is a digest of its content."""

    id: DocumentId | None = None


class OneDocument(NewDocument):
    """One document to put in, and where to."""

    collection: CollectionName = DEFAULT_COLLECTION


class Upload(Strict):
    """Documents to put in. One that is there already, just so, is left alone; another of its id is replaced."""

    documents: list[NewDocument] = Field(min_length=1, max_length=100_000)
    collection: CollectionName = DEFAULT_COLLECTION

    @field_validator("documents")
    @classmethod
    def _has_each_once(cls, documents: list[NewDocument]) -> list[NewDocument]:
        seen: set[str] = set()
        for document in documents:
            if document.id is not None and document.id in seen:
                raise ValueError(f"the id {document.id[:80]!r} is there twice: a request has each document once")
            seen.add(document.id or "")
        return documents


class FileUpload(Strict):
    """Files to put in. The suffix of a name says what it is: text, a page, a PDF, an office file, a table, code."""

    files: list[bytes] = Field(min_length=1, max_length=1000, description="Each with its name")
    collection: CollectionName = DEFAULT_COLLECTION
    metadata: Metadata = Field(default_factory=dict[str, object], description="Laid over what the files say")


class Accepted(BaseModel):
    """What was put in is safe, and is computed in this job. `files`: those whose documents are not known yet.

    `refused`: files that were left out, each with the reason, and what of others could not be read here.
    """

    job_id: str = Field(examples=["a1b2c3-5f1d0c2ab7"])
    documents: list[str] = Field(examples=[["report/7"]])
    files: list[str] = Field(examples=[[]])
    refused: list[str] = Field(default_factory=list[str], examples=[["'a.txt' is empty: leave it out"]])


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """A file as it was sent, in this field of a form."""

    name: str
    content: bytes
    field: str


def accept(
    by: Caller,
    drafts: Sequence[Draft],
    *,
    collection: str,
    replaced: Mapping[str, int] = _NOTHING,
    copied: Mapping[str, int] = _NOTHING,
) -> tuple[str, list[str]]:
    """Checks documents and hands them to the ingest. Returns the id of their job, and the ids of the documents.

    Without a collection they wait for one. `replaced`: by a document's id, the upload whose content it has; `copied`:
    the version of another document.
    """
    most = by.core.settings.max_documents
    if len(drafts) > most:
        raise TooLarge(f"a request has at most {most:,} documents, got {len(drafts):,}: send several requests")
    stamped = [by.stamped(draft) for draft in drafts]
    named = [(document_id(draft, collection), draft) for draft in stamped]
    for name, draft in named:
        _check_own(by, name, collection=collection, draft=draft)
    with by.tenant.catalog.view() as view:
        kept = [replace(draft, id=by.writable(view, name, after=draft.metadata)) for name, draft in named]
    uploads = [
        replace(upload_of(draft, collection), replaces=replaced.get(name), copies=copied.get(name))
        for draft, (name, _) in zip(kept, named, strict=True)
    ]
    job = _handed_over(by, uploads, collection=collection)
    return job, [name for name, _ in named]


def located(accepted: Accepted, response: Response) -> Accepted:
    """Adds the header `Location` to the response, which says where to look after the job."""
    response.headers["Location"] = f"/v1/jobs/{accepted.job_id}"
    return accepted


def draft_of_file(file: UploadedFile) -> Draft:
    """What can be read of a file as one document, under its name. Raises Invalid where that is nothing."""
    _check_file(file)
    drafts, title = _read(file).drafts, file.name[:MAX_TITLE]
    if len(drafts) == 1:
        return replace(drafts[0], title=title)
    texts = (each.text or "\n\n".join(part.text for part in each.parts) for each in drafts)
    return Draft("\n\n".join(texts), title=title)


def draft_of(document: DocumentIn, name: str) -> Draft:
    parts = tuple(DocumentPart(chunk.text, chunk.id, metadata=chunk.metadata) for chunk in document.chunks)
    return Draft(document.text, parts, name, document.title, document.metadata)


async def post_documents(request: Request, response: Response, *, by: By) -> Accepted:
    """Put documents in: as JSON, or as files. They are safe when this answers, and serve when the job is done."""
    if not request.headers["content-type"].lower().startswith("multipart/"):
        body = await request.body()
        documents, collection = await (one_by_one if len(body) > SMALL else run_in_threadpool)(_read_json, body)
        return located(await run_in_threadpool(_accept_json, by, documents, collection=collection), response)
    form = await form_of(request, files=1000, fields=1000)
    files = [_file(each) for name, each in form if name == "files"]
    others = [(name, value) for name, value in form if name != "files"]
    return located(await run_in_threadpool(_accept_files, by, files, fields=others), response)


async def form_of(request: Request, *, files: int, fields: int) -> list[tuple[str, UploadedFile | str]]:
    """The parts of a form, each with its field. Raises HTTPException for one that is not whole, or has too many."""
    most = core_of(request.app).settings.max_body_bytes
    try:
        form = await _WholeForm(request, max_files=files, max_fields=fields, max_part_size=most).parse()
    except MultiPartException as error:
        raise HTTPException(400, error.message) from error
    try:
        return [
            (name, each if isinstance(each, str) else await _read_whole(each, name))
            for name, each in form.multi_items()
        ]
    finally:
        await form.close()


class _WholeForm(MultiPartParser):
    """Reads a form to its last boundary. Of a body that ends before it the framework takes what there is."""

    def __init__(self, request: Request, **most: int) -> None:
        super().__init__(request.headers, self._whole(request), **most)
        self._is_whole = False

    def on_end(self) -> None:
        self._is_whole = True

    async def _whole(self, request: Request) -> AsyncGenerator[bytes, None]:
        async for piece in request.stream():
            yield piece
        if not self._is_whole:
            raise MultiPartException("the body ended before the last boundary of its form: send all of it")


async def _read_whole(sent: UploadFile, field: str) -> UploadedFile:
    return UploadedFile(PurePath(sent.filename or "").name, await sent.read(), field)


def _file(sent: UploadedFile | str) -> UploadedFile:
    if isinstance(sent, str):
        raise Invalid("send each file with its name, whose suffix tells what it is", field="files")
    return sent


def _read_json(body: bytes) -> tuple[Sequence[NewDocument], str]:
    found = parse(body)
    names = _names(found)
    if "documents" not in names and not names.isdisjoint(DocumentIn.choices):
        one = _valid(OneDocument, found)
        return [one], one.collection
    upload = _valid(Upload, found)
    return upload.documents, upload.collection


def _accept_json(by: Caller, documents: Sequence[NewDocument], *, collection: str) -> Accepted:
    job, ids = accept(by, [draft_of(each, each.id or "") for each in documents], collection=collection)
    return Accepted(job_id=job, documents=ids, files=[])


def _names(found: object) -> set[str]:
    """The names of an object's fields; none for what is no object."""
    return set(cast(Json, found)) if isinstance(found, dict) else set()


def _accept_files(by: Caller, files: Sequence[UploadedFile], *, fields: Sequence[tuple[str, object]]) -> Accepted:
    """Hands files on as they are, for the job to read. They are read here where a check needs their documents."""
    given = _given(files, fields)
    is_read = bool(given.metadata) or by.is_bound
    drafts: list[Draft] = []
    uploads: list[NewUpload] = []
    refused: list[Invalid] = []
    unread: list[str] = []
    names: set[str] = set()
    for file in files:
        try:
            _check_file(file)
            if file.name in names:
                raise Invalid(f"{file.name[:80]!r} is there twice: give each a name of its own", field=file.field)
            names.add(file.name)
            if is_read:
                reading = _read(file)
                drafts += [with_metadata(draft, given.metadata) for draft in named(reading.drafts, file.name)]
                unread += [told(reading.problems)] if reading.problems else []
            else:
                uploads.append(NewUpload("", given.collection, file.name, file.content))
        except Invalid as error:  # which is no fault of the others
            refused.append(error)
    if len(refused) == len(files):
        raise RequestValidationError([{"type": "file", "loc": (e.field,), "msg": str(e)} for e in refused])
    reasons = [*(str(error) for error in refused), *unread]
    if is_read:
        job, ids = accept(by, drafts, collection=given.collection)
        return Accepted(job_id=job, documents=ids, files=[], refused=reasons)
    job = _handed_over(by, uploads, collection=given.collection)
    return Accepted(job_id=job, documents=[], files=[upload.name for upload in uploads], refused=reasons)


def _given(files: Sequence[UploadedFile], fields: Sequence[tuple[str, object]]) -> FileUpload:
    sent: dict[str, object] = {"files": [file.content for file in files]}
    for name, value in fields:
        if name in sent:
            raise Invalid("it is there twice: send it once", field=name[:64])
        sent[name] = parse(value.encode(), field=name) if name == "metadata" and isinstance(value, str) else value
    return _valid(FileUpload, sent)


def _check_file(file: UploadedFile) -> None:
    if PurePath(file.name).suffix.lower() not in SUFFIXES or "\0" in file.name:
        raise Invalid(
            f"{file.name[:80]!r} is of no known kind: its name must end in {', '.join(SUFFIXES)}", field=file.field
        )
    if not file.content.strip():
        raise Invalid(f"{file.name[:80]!r} is empty: leave it out", field=file.field)


def _read(file: UploadedFile) -> Reading:
    """What the file has. Raises Invalid where nothing of it can be read."""
    reading = read(file.name, file.content)
    if reading.problems and not reading.drafts:
        first = reading.problems[0]
        raise Invalid(f"{first.place[:80]} cannot be read: {first.reason}", field=file.field)
    return reading


def with_metadata(draft: Draft, metadata: Json) -> Draft:
    """The draft with more metadata laid over its own. Raises Invalid for what cannot be kept."""
    merged = {**draft.metadata, **metadata}
    try:
        check_metadata(merged)
    except ValueError as error:
        raise Invalid(str(error), field="metadata") from error
    return replace(draft, metadata=merged)


def _valid(model: type[M], found: object) -> M:
    try:
        return model.model_validate(found)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False, include_input=False)) from error


def _check_own(by: Caller, name: str, *, collection: str, draft: Draft) -> None:
    by.check_own(name, collection, metadata=draft.metadata)
    for part in draft.parts:
        if part.metadata:
            by.check_own(name, collection, metadata={**draft.metadata, **part.metadata})


def _handed_over(by: Caller, uploads: Sequence[NewUpload], *, collection: str) -> str:
    """Hands uploads to the ingest and returns the id of their job. A collection that is not there is made."""
    tenant, ingest = by.tenant, by.core.ingest
    if not collection:
        return ingest.accept(tenant, uploads, owner=by.who.key_id)
    with tenant.catalog.view() as view:
        is_there = view.collection(collection) is not None
        is_empty = is_there and view.count(scope(collection)) == 0
        if by.is_bound and not is_empty:  # it makes none, and is not told of those in which it sees nothing
            check_collection(view, collection, bound=by.who.bound)
    if not is_there:
        fresh = CollectionRules(by.core.settings.chunk_tokens, tenant.model.system)
        ingest.put_collection(tenant, collection, rules=fresh, only_new=True)
    return ingest.accept(tenant, uploads, owner=by.who.key_id)
