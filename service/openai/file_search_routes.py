"""The routes of vector stores and files, with OpenAI's form of errors. Handles no request."""

from collections.abc import Callable
from typing import Final

from fastapi import APIRouter, Depends

from service.api.caller import must_see
from service.api.guards import BEARER
from service.openai import vector_stores
from service.openai.errors import OpenAIRoute, OpenAIWrites
from service.openai.routes import FAILURES

_STORES: Final = "/v1/vector_stores"
_STORE: Final = f"{_STORES}/{{vector_store_id:name}}"

_Row = tuple[str, str, Callable[..., object], type[OpenAIRoute]]

_ROUTES: Final[tuple[_Row, ...]] = (
    ("POST", _STORES, vector_stores.create_vector_store, OpenAIWrites),
    ("GET", _STORES, vector_stores.list_vector_stores, OpenAIRoute),
    ("GET", _STORE, vector_stores.get_vector_store, OpenAIRoute),
    ("POST", _STORE, vector_stores.change_vector_store, OpenAIWrites),
    ("DELETE", _STORE, vector_stores.delete_vector_store, OpenAIWrites),
    ("POST", f"{_STORE}/search", vector_stores.search_vector_store, OpenAIRoute),
)


def file_search_router() -> APIRouter:
    """The routes, over the core that the application has when a request comes."""
    routes = APIRouter(
        dependencies=[Depends(BEARER), Depends(must_see)], responses=FAILURES, tags=["OpenAI-compatible"]
    )
    for method, path, handler, kind in _ROUTES:
        routes.add_api_route(
            path,
            handler,
            methods=[method],
            operation_id=handler.__name__,
            summary=(handler.__doc__ or "").split(".")[0],
            route_class_override=kind,
        )
    return routes
