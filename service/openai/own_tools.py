"""Turns the tools of OpenAI's body into what our own engine is asked. Knows no template and no answer."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import cast

from blend.text.template import MadeCall
from retriever.documents import Json
from service.answers.answer_request import OwnTools, Turn
from service.errors import Invalid
from service.model.call_offer import CallOffer, arguments_schema
from service.openai.request import ChatRequest, Message
from service.openai.tools import NamedTool, Tool


def own_turn(message: Message, number: int) -> Turn:
    """A message with its calls. Raises Invalid where their arguments are no JSON object."""
    calls = tuple(
        MadeCall(
            call.id, call.function.name, _arguments(call.function.arguments, f"messages[{number}].tool_calls[{at}]")
        )
        for at, call in enumerate(message.tool_calls or ())
    )
    role = "system" if message.role == "developer" else message.role
    return Turn(role, message.text, calls, message.tool_call_id or "")


def own_tools(request: ChatRequest) -> OwnTools | None:
    """The tools that are offered, and the calls that the answer may make. Raises Invalid for one that is not there."""
    if not request.tools:
        return None
    offered = tuple(tool.model_dump(exclude_unset=True, exclude_none=True) for tool in request.tools)
    callable_now = _callable(request.tools, request.tool_choice)
    if not callable_now:
        return OwnTools(offered, None)
    is_needed, is_several = request.tool_choice not in (None, "auto"), request.parallel_tool_calls is not False
    return OwnTools(offered, CallOffer(callable_now, is_needed=is_needed, is_several=is_several))


def _callable(tools: list[Tool], choice: object) -> dict[str, Json]:
    """The functions that may be called, by name, with the schemas of their arguments."""
    if choice == "none":
        return {}
    each = {tool.function.name: tool.function.parameters for tool in tools}
    if len(each) < len(tools):
        twice = next(name for name, times in Counter(tool.function.name for tool in tools).items() if times > 1)
        raise Invalid(f"two tools have the name {twice!r}: give each its own", field="tools")
    if isinstance(choice, NamedTool):
        name = choice.function.name
        if name not in each:
            raise Invalid(f"there is no tool {name!r} to call: there are {', '.join(each)}", field="tool_choice")
        each = {name: each[name]}
    return {name: arguments_schema(name, parameters) for name, parameters in each.items()}


def _arguments(text: str, field: str) -> Mapping[str, object]:
    try:
        found = cast(object, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise Invalid(
            f"the arguments are no JSON ({error}): {text[:80]!r}", field=f"{field}.function.arguments"
        ) from None
    if not isinstance(found, dict):
        raise Invalid(f"the arguments are a JSON object, got {text[:80]!r}", field=f"{field}.function.arguments")
    return cast(Mapping[str, object], found)
