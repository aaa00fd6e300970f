"""Answers of a given form: what the service is told of it, and how they are read. Knows no connection."""

from collections.abc import AsyncIterator, Iterator
from operator import itemgetter
from typing import Any, Literal, cast

from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.runnables import Runnable, RunnableGenerator, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import BaseModel

from kvweave_client.options import Json
from kvweave_client.schemas import closed

Schema = Json | type
Method = Literal["json_schema", "function_calling", "json_mode"]
Read = dict[str, Any] | BaseModel
Reader = Runnable[AIMessage, Read]

LONGEST_NAME = 64  # letters of a schema's


def response_format(schema: Schema, *, method: Method, strict: bool | None) -> Json:
    """The form of an answer as OpenAI's API says it."""
    if method == "json_mode":
        return {"type": "json_object"}
    if method not in ("json_schema", "function_calling"):
        raise ValueError(f"the method is json_schema, function_calling or json_mode, got {method!r}")
    obeyed = convert_to_json_schema(schema)
    name = str(obeyed.get("title") or "answer")[:LONGEST_NAME]
    return {
        "type": "json_schema",
        "json_schema": {"name": name, "schema": obeyed if strict is False else closed(obeyed)},
    }


def parsed(
    llm: Runnable[LanguageModelInput, AIMessage], schema: Schema, *, include_raw: bool
) -> Runnable[LanguageModelInput, Read]:
    """The answer read by its schema; with `include_raw` a failure is told and not raised."""
    read = RunnableGenerator(_whole, _awhole) | _reader(schema)
    if not include_raw:
        return llm | read
    tried = RunnablePassthrough.assign(parsed=itemgetter("raw") | read, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=llm) | tried.with_fallbacks([failed], exception_key="parsing_error")


def _reader(schema: Schema) -> Reader:
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        return cast(Reader, PydanticOutputParser[BaseModel](pydantic_object=schema))
    return JsonOutputParser()


def _whole(messages: Iterator[AIMessage]) -> Iterator[AIMessage]:
    """Yields messages and raises where one was cut off: readers complete it, as if all had been said."""
    for message in messages:
        yield message
        _check(message)


async def _awhole(messages: AsyncIterator[AIMessage]) -> AsyncIterator[AIMessage]:
    async for message in messages:
        yield message
        _check(message)


def _check(message: AIMessage) -> None:
    if message.response_metadata.get("finish_reason") == "length":
        raise OutputParserException(
            "the answer was cut off before its JSON ended: allow it more max_tokens", llm_output=message.text
        )
