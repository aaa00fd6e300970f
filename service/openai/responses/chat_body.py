"""A response's body as a chat's, so that both become the same request. Knows no pipeline."""

from collections.abc import Iterable, Sequence
from typing import Final

from retriever.documents import Json
from service.api.questions import ObjectFormat, SchemaFormat, TextFormat
from service.errors import Invalid
from service.openai.request import ChatRequest, Extras, SamplingFields
from service.openai.responses.input_items import MOST_ITEMS, FunctionCall, FunctionOutput, Item
from service.openai.responses.request import FlatSchema, ResponseRequest
from service.openai.responses.response_bodies import CalledItem, OutputMessage
from service.openai.responses.tools import ChosenFunction, ChosenSearch
from service.openai.tools import MOST_TOOLS, Function

SAME: Final = frozenset({*Extras.model_fields, *SamplingFields.model_fields, "model"})  # in both bodies
_OWN: Final = {"messages": "input", "response_format": "text.format", "logprobs": "top_logprobs"}


def messages_of(items: Iterable[Item | OutputMessage | CalledItem]) -> list[Json]:
    """The messages of a chat that items stand for: calls are part of the assistant's message before them."""
    found: list[Json] = []
    calls: list[Json] = []  # of the last message, if it is the assistant's
    for each in items:
        if isinstance(each, FunctionOutput):
            found.append({"role": "tool", "tool_call_id": each.call_id, "content": each.text})
        elif isinstance(each, FunctionCall | CalledItem):
            if not found or found[-1]["role"] != "assistant" or len(calls) == MOST_TOOLS:
                calls = []
                found.append({"role": "assistant", "content": ""})
            called = {"name": each.name, "arguments": each.arguments}
            calls.append({"id": each.call_id, "type": "function", "function": called})
            found[-1] = {**found[-1], "tool_calls": calls}
        else:
            calls = []
            found.append({"role": each.role, "content": each.text})
    return found


def chat_body(request: ResponseRequest, before: Sequence[Json] = (), *, searched: Sequence[str] = ()) -> ChatRequest:
    """The chat that the request stands for, behind messages of before. `searched`: the collections that its tool names,
    of which a chat has the first.

    Raises Invalid for more than a chat may have.
    """
    _check_tools(request)
    said = [{"role": "system", "content": request.instructions}] if request.instructions else []
    messages = [*said, *before, *messages_of(request.input)]
    if len(messages) > MOST_ITEMS:
        raise Invalid(
            f"there are {len(messages):,} turns, with those of before, at most {MOST_ITEMS:,} are taken: send fewer",
            field="input",
        )
    fields = {name: getattr(request, name) for name in SAME & request.model_fields_set}
    if searched:
        fields["collection"] = searched[0]
    return ChatRequest.model_validate(
        {
            **fields,
            **_tools(request),
            "messages": messages,
            "max_completion_tokens": request.max_output_tokens,
            "response_format": _format(request),
            "logprobs": request.wants_logprobs,
            "top_logprobs": request.top_logprobs,
        }
    )


def in_own_fields(error: Invalid) -> Invalid:
    """What was refused of the chat, told of the response's field."""
    return Invalid(str(error), field=_OWN.get(error.field.partition("[")[0], error.field))


def _check_tools(request: ResponseRequest) -> None:
    choice = request.tool_choice
    choosable: object = request.functions if isinstance(choice, ChosenFunction) else request.tools
    if isinstance(choice, ChosenSearch):
        choosable = request.file_search
    if choice not in (None, "none", "auto") and not choosable:
        raise Invalid("there are no tools to choose of: give some, or leave it out", field="tool_choice")
    if request.search and request.collection:
        raise Invalid("file_search names what is searched already: leave one of both out", field="collection")


def _tools(request: ResponseRequest) -> Json:
    """The functions as a chat has them. Where the search is chosen they are offered, and none is called."""
    if not request.functions:
        return {}
    choice: object = request.tool_choice
    if isinstance(choice, ChosenSearch):
        choice = "none"
    elif isinstance(choice, ChosenFunction):
        choice = {"type": "function", "function": {"name": choice.name}}
    said = [each.model_dump(include={*Function.model_fields}, exclude_unset=True) for each in request.functions]
    return {
        "tools": [{"type": "function", "function": each} for each in said],
        "tool_choice": choice,
        "parallel_tool_calls": request.parallel_tool_calls,
    }


def _format(request: ResponseRequest) -> TextFormat | ObjectFormat | SchemaFormat | None:
    wanted = request.text.format if request.text else None
    return SchemaFormat(type="json_schema", json_schema=wanted) if isinstance(wanted, FlatSchema) else wanted
