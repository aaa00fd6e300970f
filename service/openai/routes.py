"""All routes of OpenAI's interface, as one table, with its form of errors. Handles no request."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Depends, Response
from fastapi.datastructures import Default
from fastapi.responses import JSONResponse

from service.api.caller import must_see
from service.api.guards import BEARER
from service.api.routes import NAME
from service.openai import files, vector_store_files, vector_stores
from service.openai.answer_bodies import ChatCompletion, ErrorBody
from service.openai.complete import complete, go_on
from service.openai.embeddings import EmbeddingList, embeddings
from service.openai.errors import OpenAIRoute, OpenAIUploads, OpenAIWrites
from service.openai.models import model_named, models
from service.openai.responses.respond import forget, given, kept, respond
from service.openai.responses.response_bodies import ResponseBody
from service.openai.text_completion import TextCompletion

# Where failures have OpenAI's form: what is answered here, and what its clients ask for that is not.
PREFIXES: Final = tuple(
    f"/v1/{each}"
    for each in (
        *("chat/", "models", "completions", "responses", "embeddings", "files", "uploads", "images", "audio", "videos"),
        *("moderations", "batches", "fine_tuning", "assistants", "threads", "vector_stores", "realtime", "evals"),
    )
)

Answers = dict[int | str, dict[str, object]]


def _stream(description: str, *fields: str) -> Answers:
    properties = {name: {"type": "string"} for name in fields}
    event = {"type": "object", "description": description, "properties": properties, "required": [*fields]}
    return {200: {"content": {"text/event-stream": {"schema": event}}}}


_CHUNKS: Final = _stream("An event. Its data are a chat.completion.chunk, or an error; the last is [DONE]", "data")
_EVENTS: Final = _stream("An event. Its data are one of OpenAI's events of responses", "event", "data")
_TEXT: Final[Answers] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
_FAILURES: Final[Answers] = {
    "4XX": {"model": ErrorBody, "description": "The request is refused"},
    "5XX": {"model": ErrorBody, "description": "The service failed"},
}

_RESPONSE: Final = "/v1/responses/{response_id}"
_STORES: Final = "/v1/vector_stores"
_STORE: Final = f"{_STORES}/{{vector_store_id{NAME}}}"
_STORED: Final = f"{_STORE}/files"
_STORED_FILE: Final = f"{_STORED}/{{file_id{NAME}}}"
_BATCHES: Final = f"{_STORE}/file_batches"
_FILES: Final = "/v1/files"
_FILE: Final = f"{_FILES}/{{file_id{NAME}}}"


@dataclass(frozen=True, slots=True)
class _Row:
    """A route and its handler. `summary`: where that is not the first sentence of the handler.

    `body`: what it answers with, where its handler renders that itself; `answers`: in which forms besides.
    """

    method: str
    path: str
    handler: Callable[..., object]
    summary: str = ""
    kind: type[OpenAIRoute] = OpenAIRoute
    body: type | None = None
    answers: Answers | None = None

    def add_to(self, routes: APIRouter) -> None:
        """Adds it, over the core that the application has when a request comes."""
        routes.add_api_route(
            self.path,
            self.handler,
            response_model=self.body or Default(None),
            methods=[self.method],
            operation_id=None if self.summary else self.handler.__name__,
            summary=self.summary or (self.handler.__doc__ or "").split(".")[0],
            openapi_extra=files.FILE_FORM if self.kind is OpenAIUploads else None,
            responses=self.answers,
            response_class=Response if self.answers is _TEXT else JSONResponse,
            route_class_override=self.kind,
        )


_ENDPOINTS: Final = (
    _Row(
        "POST",
        "/v1/chat/completions",
        complete,
        "Answer a chat, as OpenAI's API does",
        body=ChatCompletion,
        answers=_CHUNKS,
    ),
    _Row("POST", "/v1/completions", go_on, "Go on with texts as they are", body=TextCompletion, answers=_CHUNKS),
    _Row("POST", "/v1/embeddings", embeddings, "Vectors of texts, as search has them", body=EmbeddingList),
    _Row("GET", "/v1/models", models, "The model that answers"),
    _Row("GET", "/v1/models/{model:path}", model_named, "The model that answers, by its name"),
    _Row(
        "POST",
        "/v1/responses",
        respond,
        "Answer turns, as OpenAI's API of responses does",
        body=ResponseBody,
        answers=_EVENTS,
    ),
    _Row("GET", _RESPONSE, kept, "A response that is kept", body=ResponseBody),
    _Row("GET", f"{_RESPONSE}/input_items", given, "What a kept response answers, with what was said before it"),
    _Row("DELETE", _RESPONSE, forget, "Keep a response no more"),
    _Row("POST", _STORES, vector_stores.create_vector_store, kind=OpenAIWrites),
    _Row("GET", _STORES, vector_stores.list_vector_stores),
    _Row("GET", _STORE, vector_stores.get_vector_store),
    _Row("POST", _STORE, vector_stores.change_vector_store, kind=OpenAIWrites),
    _Row("DELETE", _STORE, vector_stores.delete_vector_store, kind=OpenAIWrites),
    _Row("POST", f"{_STORE}/search", vector_stores.search_vector_store),
    _Row("POST", _STORED, vector_store_files.attach_file, kind=OpenAIWrites),
    _Row("GET", _STORED, vector_store_files.list_vector_store_files),
    _Row("GET", _STORED_FILE, vector_store_files.get_vector_store_file),
    _Row("POST", _STORED_FILE, vector_store_files.change_vector_store_file, kind=OpenAIWrites),
    _Row("DELETE", _STORED_FILE, vector_store_files.detach_file, kind=OpenAIWrites),
    _Row("GET", f"{_STORED_FILE}/content", vector_store_files.get_vector_store_file_content),
    _Row("POST", _BATCHES, vector_store_files.create_file_batch, kind=OpenAIWrites),
    _Row("GET", f"{_BATCHES}/{{batch_id}}", vector_store_files.get_file_batch),
    _Row("POST", _FILES, files.create_file, kind=OpenAIUploads),
    _Row("GET", _FILES, files.list_files),
    _Row("GET", _FILE, files.get_file),
    _Row("DELETE", _FILE, files.delete_file, kind=OpenAIWrites),
    _Row("GET", f"{_FILE}/content", files.get_file_content, answers=_TEXT),
)


def router() -> APIRouter:
    routes = APIRouter(
        dependencies=[Depends(BEARER), Depends(must_see)], responses=_FAILURES, tags=["OpenAI-compatible"]
    )
    for each in _ENDPOINTS:
        each.add_to(routes)
    return routes
