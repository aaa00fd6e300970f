"""A response's body as a chat's, so that both become the same request. Knows no pipeline."""

from collections.abc import Sequence
from typing import Final

from retriever.documents import Json
from service.api.questions import ObjectFormat, SchemaFormat, TextFormat
from service.errors import Invalid
from service.openai.request import ChatRequest, Extras
from service.openai.responses.request import MOST_ITEMS, FlatSchema, ResponseRequest
from service.openai.sampling_fields import SamplingFields

SAME: Final = frozenset({*Extras.model_fields, *SamplingFields.model_fields, "model"})  # in both bodies
_OWN: Final = {"messages": "input", "response_format": "text.format", "logprobs": "top_logprobs"}


def messages_of(request: ResponseRequest) -> list[Json]:
    """The messages of a chat that the input stands for."""
    return [{"role": each.role, "content": each.text} for each in request.input]


def chat_body(request: ResponseRequest, before: Sequence[Json] = (), *, searched: str = "") -> ChatRequest:
    """The chat that the request stands for, behind messages of before. `searched`: the collection that its tool names.

    Raises Invalid for more than a chat may have.
    """
    _check_tools(request)
    said = [{"role": "system", "content": request.instructions}] if request.instructions else []
    messages = [*said, *before, *messages_of(request)]
    if len(messages) > MOST_ITEMS:
        raise Invalid(
            f"there are {len(messages):,} turns, with those of before, at most {MOST_ITEMS:,} are taken: send fewer",
            field="input",
        )
    fields = {name: getattr(request, name) for name in SAME & request.model_fields_set}
    if searched:
        fields["collection"] = searched
    return ChatRequest.model_validate(
        {
            **fields,
            "messages": messages,
            "max_completion_tokens": request.max_output_tokens,
            "response_format": _format(request),
            "logprobs": request.wants_logprobs,
            "top_logprobs": request.top_logprobs,
        }
    )


def in_own_fields(error: Invalid) -> Invalid:
    """What was refused of the chat, told of the response's field."""
    return Invalid(str(error), field=_OWN.get(error.field, error.field))


def _check_tools(request: ResponseRequest) -> None:
    if request.tool_choice not in (None, "none", "auto") and not request.tools:
        raise Invalid("there are no tools to choose of: give some, or leave it out", field="tool_choice")
    if request.file_search and request.collection:
        raise Invalid("file_search names what is searched already: leave one of both out", field="collection")


def _format(request: ResponseRequest) -> TextFormat | ObjectFormat | SchemaFormat | None:
    wanted = request.text.format if request.text else None
    return SchemaFormat(type="json_schema", json_schema=wanted) if isinstance(wanted, FlatSchema) else wanted
