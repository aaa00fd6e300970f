"""The routes of vector stores and files, with OpenAI's form of errors. Handles no request."""

from collections.abc import Callable
from typing import Final

from fastapi import APIRouter, Depends, Response
from fastapi.responses import JSONResponse

from service.api.caller import must_see
from service.api.guards import BEARER
from service.openai import files, vector_store_files, vector_stores
from service.openai.errors import OpenAIRoute, OpenAIUploads, OpenAIWrites
from service.openai.routes import FAILURES

_STORES: Final = "/v1/vector_stores"
_STORE: Final = f"{_STORES}/{{vector_store_id:name}}"

_FILES: Final = "/v1/files"
_FILE: Final = f"{_FILES}/{{file_id:name}}"
_STORED: Final = f"{_STORE}/files"
_STORED_FILE: Final = f"{_STORED}/{{file_id:name}}"
_BATCHES: Final = f"{_STORE}/file_batches"

_Row = tuple[str, str, Callable[..., object], type[OpenAIRoute]]

_ROUTES: Final[tuple[_Row, ...]] = (
    ("POST", _STORES, vector_stores.create_vector_store, OpenAIWrites),
    ("GET", _STORES, vector_stores.list_vector_stores, OpenAIRoute),
    ("GET", _STORE, vector_stores.get_vector_store, OpenAIRoute),
    ("POST", _STORE, vector_stores.change_vector_store, OpenAIWrites),
    ("DELETE", _STORE, vector_stores.delete_vector_store, OpenAIWrites),
    ("POST", f"{_STORE}/search", vector_stores.search_vector_store, OpenAIRoute),
    ("POST", _STORED, vector_store_files.attach_file, OpenAIWrites),
    ("GET", _STORED, vector_store_files.list_vector_store_files, OpenAIRoute),
    ("GET", _STORED_FILE, vector_store_files.get_vector_store_file, OpenAIRoute),
    ("POST", _STORED_FILE, vector_store_files.change_vector_store_file, OpenAIWrites),
    ("DELETE", _STORED_FILE, vector_store_files.detach_file, OpenAIWrites),
    ("GET", f"{_STORED_FILE}/content", vector_store_files.get_vector_store_file_content, OpenAIRoute),
    ("POST", _BATCHES, vector_store_files.create_file_batch, OpenAIWrites),
    ("GET", f"{_BATCHES}/{{batch_id}}", vector_store_files.get_file_batch, OpenAIRoute),
    ("POST", _FILES, files.create_file, OpenAIUploads),
    ("GET", _FILES, files.list_files, OpenAIRoute),
    ("GET", _FILE, files.get_file, OpenAIRoute),
    ("DELETE", _FILE, files.delete_file, OpenAIWrites),
    ("GET", f"{_FILE}/content", files.get_file_content, OpenAIRoute),
)


_TEXT: Final[dict[int | str, dict[str, object]]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


def file_search_router() -> APIRouter:
    """The routes, over the core that the application has when a request comes."""
    routes = APIRouter(
        dependencies=[Depends(BEARER), Depends(must_see)], responses=FAILURES, tags=["OpenAI-compatible"]
    )
    for method, path, handler, kind in _ROUTES:
        is_text = handler is files.get_file_content
        routes.add_api_route(
            path,
            handler,
            methods=[method],
            operation_id=handler.__name__,
            summary=(handler.__doc__ or "").split(".")[0],
            openapi_extra=files.FILE_FORM if kind is OpenAIUploads else None,
            responses=_TEXT if is_text else None,
            response_class=Response if is_text else JSONResponse,
            route_class_override=kind,
        )
    return routes
