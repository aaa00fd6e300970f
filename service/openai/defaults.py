"""Turns a chat's body into what the pipeline is asked, by defaults; refuses what does not go together."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Self, cast

from blend.engine.sampling import Sampling
from blend.fuse.fuse import BlendOrder
from blend.text.template import MadeCall
from retriever.documents import Json
from service.access.principal import Principal
from service.answers.answer_request import AnswerRequest, Lookup, OwnTools, RequestDocument, ToolUse, Turn
from service.api.questions import BlendIn, ObjectFormat, SchemaFormat
from service.errors import Invalid
from service.model.call_offer import CallOffer, arguments_schema
from service.model.logit_processors import GeneratorRule, chained
from service.model.schema_grammar import ANY_OBJECT
from service.openai.request import MOST_TOKENS, ChatRequest, Message
from service.openai.tools import NamedTool, Tool

if TYPE_CHECKING:
    from service.app.core import Core

EXACT: Final = BlendOrder("full", 0.0)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where a request says nothing."""

    order: BlendOrder
    top_k: int
    has_generator: bool = False
    usual: Sampling = field(default_factory=lambda: Sampling(temperature=1.0))

    @classmethod
    def of(cls, core: "Core") -> Self:
        has_generator = core.settings.generator is not None
        return cls(core.model.order, core.settings.top_k, has_generator=has_generator, usual=core.model.usual)


def to_answer_request(request: ChatRequest, principal: Principal, *, id: str, defaults: Defaults) -> AnswerRequest:
    """What the request wants. Raises `Invalid` for what does not go together."""
    _check_generator(request, defaults)
    is_generated = request.has_tools and defaults.has_generator
    return AnswerRequest(
        principal=principal,
        turns=tuple(_own_turn(message, number) for number, message in enumerate(request.messages)),
        lookup=_lookup(request, top_k=defaults.top_k),
        chunk_ids=tuple(request.chunk_ids or ()),
        documents=tuple(RequestDocument(each.text, each.title, each.id) for each in request.documents or ()),
        order=EXACT if is_generated else order_of(request.blend, default=defaults.order),
        sampling=_sampling(request, defaults.usual),
        grammar=None if is_generated or _choices(request) > 1 else _schema(request),
        asks=False,
        inline=True,
        template=request.chat_template_kwargs or {},
        session=request.session or "",
        session_keep_s=request.session_keep_s,
        tools=_tools(request) if is_generated else None,
        own_tools=None if is_generated else _own_tools(request),
        id=id,
    )


def _check_generator(request: ChatRequest, defaults: Defaults) -> None:
    """Raises Invalid for what only a generator does, where there is none."""
    if request.structured_outputs and _is_formatted(request):
        raise Invalid("give either response_format or structured_outputs", field="structured_outputs")
    if request.has_tools and request.logprobs:
        raise Invalid("with tools there are no logprobs: leave one of both out", field="logprobs")
    if request.tool_choice not in (None, "none") and not request.tools:
        raise Invalid("there are no tools to choose of: give some, or leave it out", field="tool_choice")
    if defaults.has_generator:
        return
    if request.tools and request.tool_choice != "none" and _is_formatted(request):
        raise Invalid("give either tools or a response_format: without vLLM there is no both", field="response_format")
    if _choices(request) > 1:
        raise Invalid("kvweave gives one answer for a request: ask again for another", field="n")
    if request.structured_outputs:
        reason = "only vLLM obeys these, and none is set as the generator: give a JSON schema as response_format"
        raise Invalid(reason, field="structured_outputs")


def _choices(request: ChatRequest) -> int:
    return request.n or 1


def _is_formatted(request: ChatRequest) -> bool:
    return isinstance(request.response_format, ObjectFormat | SchemaFormat)


def _lookup(request: ChatRequest, *, top_k: int) -> Lookup | None:
    asks = [each for each in request.messages if each.role == "user"]
    is_asked = bool(asks) and (request.has_tools or request.messages[-1].role == "user")
    if (request.collection or request.chunk_ids or request.documents) and not is_asked:
        last = request.messages[-1].role
        raise Invalid(f"the last message is the user's, where documents are read; got {last!r}", field="messages")
    if request.collection is None:
        return None
    return Lookup(asks[-1].text, collections=(request.collection,), top_k=top_k)


def order_of(wanted: BlendIn | None, *, default: BlendOrder) -> BlendOrder | None:
    """The blending that a body asks for; None where it leaves that to the service."""
    if wanted is None or (wanted.policy is None and wanted.ratio is None):
        return None
    return wanted.over(default)


def _sampling(request: ChatRequest, usual: Sampling) -> Sampling:
    """What the request says; where it says nothing, what the model's authors do."""
    sampling = request.over(usual)
    return replace(
        sampling,
        choices=_choices(request),
        max_tokens=request.max_completion_tokens or request.max_tokens or MOST_TOKENS,
        logprobs=_logprobs(request),
        processor=chained(sampling.processor, _generator_rule(request)),
    )


def _logprobs(request: ChatRequest) -> int | None:
    if request.top_logprobs and not request.logprobs:
        raise Invalid("top_logprobs needs logprobs: true", field="top_logprobs")
    return request.top_logprobs or 0 if request.logprobs else None


def _generator_rule(request: ChatRequest) -> GeneratorRule | None:
    """What the generator has to obey; a format too, where it gives several answers."""
    if request.structured_outputs:
        said = request.structured_outputs.model_dump(by_alias=True, exclude_unset=True)
        return GeneratorRule({"structured_outputs": said})
    if (_choices(request) > 1 or request.has_tools) and _is_formatted(request):
        return GeneratorRule({"structured_outputs": {"json": _schema(request) or ANY_OBJECT}})
    return None


def _tools(request: ChatRequest) -> ToolUse | None:
    if not request.has_tools:
        return None
    said = request.model_dump(include={"tools", "tool_choice", "parallel_tool_calls"}, exclude_unset=True)
    fields = {name: each for name, each in said.items() if each is not None}
    return ToolUse(fields, tuple(each.calls for each in request.messages))


def _schema(request: ChatRequest) -> Json | None:
    wanted = request.response_format
    if isinstance(wanted, SchemaFormat):
        return wanted.json_schema.schema_
    return {} if isinstance(wanted, ObjectFormat) else None


def _own_turn(message: Message, number: int) -> Turn:
    """A message with its calls. Raises Invalid where their arguments are no JSON object."""
    calls = tuple(
        MadeCall(
            call.id, call.function.name, _arguments(call.function.arguments, f"messages[{number}].tool_calls[{at}]")
        )
        for at, call in enumerate(message.tool_calls or ())
    )
    role = "system" if message.role == "developer" else message.role
    return Turn(role, message.text, calls, message.tool_call_id or "")


def _own_tools(request: ChatRequest) -> OwnTools | None:
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
