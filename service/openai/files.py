"""Files as OpenAI's clients upload, list, read and delete them: our documents, and what waits to become one."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, get_args

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse

from retriever.catalog.view import CatalogView
from service.api.caller import By, Caller
from service.api.documents import delete_document
from service.api.rendering import rendered
from service.api.uploads import UploadedFile, accept, draft_of_file, form_of
from service.errors import Invalid
from service.openai.file_bodies import FileDeleted, FileList, FileObject, Purpose
from service.openai.list_pages import AtFile, page_of
from service.openai.stored_files import FILES, LOST, StoredFile, draft_in, files_of, find_file, places_of, texts_of

_PURPOSES: Final[tuple[Purpose, ...]] = get_args(Purpose)
FILE_FORM: Final[dict[str, object]] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "file": {"type": "string", "format": "binary", "description": "With its name"},
                        "purpose": {"enum": [*_PURPOSES]},
                    },
                    "required": ["file", "purpose"],
                    "additionalProperties": False,
                }
            }
        },
    }
}


async def create_file(by: By, request: Request) -> FileObject:
    """Upload a file. It is read at once, and waits for a vector store: no search finds it before."""
    form = dict(await form_of(request, files=1, fields=9))
    return await run_in_threadpool(_kept, by, form.pop("file", ""), others=form)


def list_files(by: By, at: AtFile, *, purpose: Purpose | None = None) -> FileList:
    """List the files: those in vector stores, and those that wait for one."""
    with by.tenant.catalog.view() as view:
        told = files_of(by, view)
        listed = [
            (created, each)
            for each, (created, state) in told.items()
            if state not in LOST and purpose in (None, _purpose(each))
        ]
        page = page_of(listed, at)
        shown = [_shown(by, view, file=find_file(by, view, file_id=each)) for each in page.ids]
    return rendered(FileList, page, data=shown)


def get_file(by: By, file_id: str) -> FileObject:
    """Show a file."""
    with by.tenant.catalog.view() as view:
        return _shown(by, view, file=find_file(by, view, file_id=file_id))


def get_file_content(by: By, file_id: str) -> PlainTextResponse:
    """The text that was read of a file."""
    with by.tenant.catalog.view() as view:
        draft = draft_in(by, view, file=find_file(by, view, file_id=file_id))
    return PlainTextResponse("\n\n".join(texts_of(draft)))


def delete_file(by: By, file_id: str) -> FileDeleted:
    """Delete a file, from all its vector stores too."""
    with by.tenant.catalog.view() as view:
        draft_in(by, view, file=find_file(by, view, file_id=file_id))
    while documents := _there(by, file_id):  # again, as one may have been copied before it went
        for each in documents:
            delete_document(by, each)
    return FileDeleted(id=file_id)


def _there(by: Caller, file_id: str) -> list[str]:
    with by.tenant.catalog.view() as view:
        return [each.document for each in places_of(by, view, file_id=file_id) if each.state not in LOST]


def _kept(by: Caller, file: UploadedFile | str, *, others: Mapping[str, object]) -> FileObject:
    purpose = next((each for each in _PURPOSES if each == others.get("purpose")), None)
    if isinstance(file, str):
        raise Invalid("send the file as a part of its own, with its name", field="file")
    if purpose is None:
        raise Invalid(f"it is one of {', '.join(_PURPOSES)}, got {str(others.get('purpose'))[:40]!r}", field="purpose")
    if unknown := others.keys() - {"purpose"}:
        raise Invalid(
            "a file is kept until it is deleted, and nothing else is known of it: leave it out", field=min(unknown)
        )
    draft = replace(draft_of_file(file), id=f"{purpose}-{secrets.token_hex(12)}")
    accept(by, [draft], collection="")
    with by.tenant.catalog.view() as view:
        return _shown(by, view, file=find_file(by, view, file_id=FILES.id_of(draft.id)))


def _purpose(file_id: str) -> Purpose:
    """What a file is for, which is the beginning of its id; of a document that came otherwise the first of all."""
    return "user_data" if file_id.startswith(FILES.id_of("user_data-")) else "assistants"


def _shown(by: Caller, view: CatalogView, *, file: StoredFile) -> FileObject:
    draft = draft_in(by, view, file=file)
    return FileObject(
        id=file.id,
        bytes=sum(len(each.encode()) for each in texts_of(draft)),
        created_at=int(file.created),
        filename=draft.title or draft.id,
        purpose=_purpose(file.id),
    )
