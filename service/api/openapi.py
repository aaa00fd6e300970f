"""The OpenAPI document: what routes cannot say of themselves, such as filters, streams, uploads and links."""

from collections.abc import Mapping
from typing import Final, cast

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from retriever.filter_condition import BROADEST, MOST
from service.api.handoffs import FuseAnswer
from service.api.jobs import JobOut
from service.api.problems import MEDIA, Problem
from service.api.query import FusedEvent, LoadedEvent, QueryAnswer, RetrievedEvent, TokenEvent
from service.api.streams import MEDIA as STREAM
from service.api.uploads import FileUpload, OneDocument, Upload

Schema = dict[str, object]

UNNAMED = (
    Upload,
    OneDocument,
    FileUpload,
    JobOut,
    Problem,
    QueryAnswer,
    FuseAnswer,
    RetrievedEvent,
    LoadedEvent,
    FusedEvent,
    TokenEvent,
)

NUMBERS: Final = "application/octet-stream"

_REF: Final = "#/components/schemas/"
_SCALAR: Final[Schema] = {"type": ["string", "number", "boolean", "null"]}
_ORDERED: Final[Schema] = {"type": ["string", "number"]}
_SCALARS: Final[Schema] = {"type": "array", "items": _SCALAR, "maxItems": MOST - 1}
_FILTERS: Final[Schema] = {"type": "array", "items": {"$ref": f"{_REF}Filter"}, "minItems": 1, "maxItems": BROADEST}

FILTER: Final[Schema] = {
    "title": "Filter",
    "type": "object",
    "description": "Fields of metadata and what they must be; several must all hold. Dots name fields of objects.",
    "properties": {"$and": _FILTERS, "$or": _FILTERS, "$not": {"$ref": f"{_REF}Filter"}},
    "patternProperties": {"^([^$]|$)": {"anyOf": [_SCALAR, {"$ref": f"{_REF}Comparison"}]}},
    "additionalProperties": False,
    "examples": [{"lang": "en", "year": {"$gte": 2020}, "$or": [{"team": "a"}, {"tags": {"$in": ["x", "y"]}}]}],
}
COMPARISON: Final[Schema] = {
    "title": "Comparison",
    "type": "object",
    "minProperties": 1,
    "properties": {
        **dict.fromkeys(["$eq", "$ne"], _SCALAR),
        **dict.fromkeys(["$gt", "$gte", "$lt", "$lte"], _ORDERED),
        **dict.fromkeys(["$in", "$nin"], _SCALARS),
        "$exists": {"type": "boolean"},
    },
    "additionalProperties": False,
}


def _stream(*names: str) -> Schema:
    """The schema of one event: before version 3.2, documents have no other place to say it."""
    properties: Schema = {
        "event": {"enum": list(names)},
        "data": {"type": "string", "contentMediaType": "application/json"},
    }
    return {"schema": {"type": "object", "properties": properties, "required": ["data"]}}


# The data of an event is JSON: of `done` a JobOut or a QueryAnswer, of `error` a Problem, of others what is so named.
PROGRESS: Final[dict[str, Schema]] = {STREAM: _stream("progress", "done")}
ANSWER: Final[dict[str, Schema]] = {
    "application/json": {"schema": {"$ref": f"{_REF}QueryAnswer"}},
    STREAM: _stream("retrieved", "loaded", "fused", "token", "done", "error"),
}


def _link(operation: str, **parameters: str) -> Schema:
    return {"operationId": operation, "parameters": parameters}


# What can be done with what an answer tells, or its request did.
TO_JOB: Final[dict[str, Schema]] = {
    "job": _link("get_job", job_id="$response.body#/job_id"),
    "events": _link("job_events", job_id="$response.body#/job_id"),
    "cancel": _link("cancel_job", job_id="$response.body#/job_id"),
}
TO_DOCUMENT: Final[dict[str, Schema]] = {
    **TO_JOB,
    "delete": _link("delete_document", document_id="$request.path.document_id"),
}
TO_COLLECTION: Final[dict[str, Schema]] = {
    "get": _link("get_collection", name="$request.path.name"),
    "delete": _link("delete_collection", name="$request.path.name"),
}
FUSED: Final[dict[str, Schema]] = {"application/json": {"schema": {"$ref": f"{_REF}FuseAnswer"}}}
LAYER: Final[dict[str, Schema]] = {NUMBERS: {"schema": {"type": "string", "format": "binary"}}}
SCRAPE: Final[dict[str, Schema]] = {"text/plain": {"schema": {"type": "string"}}}


def describe_openapi(app: FastAPI) -> Schema:
    """The whole OpenAPI document, made once."""
    if app.openapi_schema is None:
        found = cast(
            Schema,
            get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes),
        )
        schemas = _inner(_inner(found, "components"), "schemas")
        schemas.update(Filter=FILTER, Comparison=COMPARISON)
        for model in UNNAMED:
            made = cast(Schema, model.model_json_schema(ref_template=f"{_REF}{{model}}"))
            for name, schema in cast(Mapping[str, object], made.pop("$defs", {})).items():
                schemas.setdefault(name, schema)
            schemas.setdefault(model.__name__, made)
        for path in cast(Mapping[str, Mapping[str, Schema]], found["paths"]).values():
            for operation in path.values():
                _mend(operation)
        app.openapi_schema = found
    return app.openapi_schema


def upload_body() -> Schema:
    """The request body of the route that takes JSON and files."""
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"anyOf": [{"$ref": f"{_REF}{name}"} for name in ("Upload", "OneDocument")]}
                },
                "multipart/form-data": {
                    "schema": {"$ref": f"{_REF}FileUpload"},
                    "encoding": {
                        "metadata": {"contentType": "application/json"},
                        "files": {"contentType": "text/plain"},
                    },
                },
            },
        }
    }


def _mend(operation: Schema) -> None:
    for response in cast(Mapping[str, Schema], operation["responses"]).values():
        content = cast(dict[str, Schema], response.get("content", {}))
        json = content.get("application/json", {})
        if _inner(json, "schema").get("$ref") == f"{_REF}Problem":
            content[MEDIA] = content.pop("application/json")
    for parameter in cast(list[Schema], operation.get("parameters", [])):
        if parameter["name"] == "filter" and "JSON" in str(parameter.get("description")):
            parameter.pop("schema", None)
            parameter["content"] = {"application/json": {"schema": {"$ref": f"{_REF}Filter"}}}


def _inner(schema: Schema, name: str) -> Schema:
    return cast(Schema, schema.setdefault(name, {}))
