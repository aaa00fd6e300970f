"""Failures in OpenAI's form: 422 as 400, type, param, code, OpenAI's sentences; routes whose failures have it."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, cast

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from service.access.principal import Role
from service.api.guards import Handler, Reads
from service.api.problems import KNOWN, Failure, FieldError, failure_of, request_id_of
from service.errors import TABLE, Invalid
from service.openai.answer_bodies import ErrorBody, ErrorDetail

FORESEEN: Final[tuple[type[Exception], ...]] = (*KNOWN, RequestValidationError)

_TYPES: Final = {403: "permission_error", 429: "rate_limit_error"}
_UNREADABLE = re.compile("[\ud800-\udfff\x00]")
_BRANCH = re.compile(r"(constrained-)?str|constrained-float|(list|type)\[.*\]")  # of a union, which pydantic tried


class OpenAIRoute(Reads):
    """A route whose failures have OpenAI's form, wherever they are raised."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def rendered(request: Request) -> Response:
            try:
                return await handle(request)
            except FORESEEN as error:
                return as_openai(_foreseen(error), request_id_of(request.scope))
            except HTTPException as error:
                if not isinstance(error.__cause__, FORESEEN):
                    raise
                # What reading the body raised, the framework has put another error around.
                return as_openai(_foreseen(error.__cause__), request_id_of(request.scope))

        return rendered


class OpenAIWrites(OpenAIRoute):
    """Such a route for keys that may change what the tenant has."""

    role = Role.WRITE
    changes = True


class OpenAIUploads(OpenAIWrites):
    """Such a route that takes a file."""

    media = ("multipart/form-data",)


def as_openai(failure: Failure, request_id: str) -> Response:
    """The response to a failure, outside of these routes too: unknown paths, too much at once, what nobody foresaw."""
    headers = {**failure.headers, **({"x-request-id": request_id} if request_id else {})}
    return JSONResponse(_body(failure).model_dump(), _status(failure), headers=headers)


def error_body(error: Exception) -> ErrorBody:
    """The body that tells of what goes wrong in the middle of a stream."""
    return _body(_foreseen(error))


def _foreseen(error: Exception) -> Failure:
    """What one of the exceptions of `FORESEEN` becomes."""
    if isinstance(error, RequestValidationError):
        return _first(cast(Sequence[Mapping[str, object]], error.errors()))
    return failure_of(error)


def _body(failure: Failure) -> ErrorBody:
    status = _status(failure)
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    param = failure.errors[0].field if failure.errors else None
    return ErrorBody(error=ErrorDetail(message=failure.detail, type=kind, param=param, code=failure.code))


def _status(failure: Failure) -> int:
    return 400 if failure.status == 422 else failure.status


def _first(errors: Sequence[Mapping[str, object]]) -> Failure:
    """What pydantic found, an unknown parameter before all else: what follows from it is no news.

    A value that may be of several types gets what is wrong with it, and not which types it does not have.
    """
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    param = _param(first)
    same = [each for each in errors if _param(each) == param]
    found = next((each for each in same if not str(each["type"]).endswith("_type")), first)
    named = f"'{param}'" if param else "the body"
    match found["type"]:
        case "extra_forbidden":
            message, code = f"Unrecognized request argument supplied: {param}", "unknown_parameter"
        case "missing":
            message, code = f"Missing required parameter: {named}", "missing_required_parameter"
        case "json_invalid":
            message, code = f"We could not parse the JSON body of your request: {found['msg']}", None
        case _:
            sentence = str(found["msg"]).removeprefix("Value error, ")
            message, code = f"Invalid value for {named}: {sentence}", "invalid_value"
    fields = (FieldError(field=param, message=message),) if param else ()
    return Failure(422, TABLE[Invalid].title, message, code, errors=fields)


def _param(error: Mapping[str, object]) -> str:
    """The place of an error as OpenAI writes it: `messages[0].content`."""
    written = ""
    for before, part in pairwise(cast(Sequence[object], error["loc"])):
        if isinstance(part, int):
            written += f"[{part}]"
        elif before not in ("response_format", "format") and not _BRANCH.fullmatch(str(part)):
            written += "." + _UNREADABLE.sub("\ufffd", str(part))[:64]
    return written.removeprefix(".")
