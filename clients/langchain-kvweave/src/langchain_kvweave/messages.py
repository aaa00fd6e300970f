"""Messages of LangChain as the service takes them, and its answers as messages. Sends nothing."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, cast

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ChatMessage, HumanMessage, SystemMessage
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from kvweave_client import ChatAnswer, ChatDelta, TokenLogprob, Usage
from kvweave_client.answers import as_json
from kvweave_client.options import Json, Message
from kvweave_client.plain import plain_text

PROVIDER: Final = "kvweave"
NO_TOOLS: Final = "kvweave serves no tools"

Role = Literal["system", "developer", "user", "assistant"]
_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
}
_UNSAID: Final = (
    "reasoning",
    "thinking",
    "reasoning_content",
    "redacted_thinking",
)  # an answer's, not to be read again


def to_messages(messages: Sequence[BaseMessage]) -> list[Message]:
    """The messages for the service. Raises ValueError for what none of them reads: tools, pictures, sounds, files."""
    return [Message(role=_role(message), content=plain_text(_content(message))) for message in messages]


def result(answer: ChatAnswer) -> ChatResult:
    """The whole answer as a result of LangChain."""
    told = metadata(answer)
    if answer.logprobs:
        told["logprobs"] = _logprobs(answer.logprobs)
    message = AIMessage(answer.text, usage_metadata=usage(answer.usage), response_metadata=told)
    return ChatResult(generations=[ChatGeneration(message=message)])


def chunk(said: ChatDelta | ChatAnswer) -> ChatGenerationChunk:
    """A part of a streamed answer; the last one has no text, and says the rest."""
    if isinstance(said, ChatDelta):
        info = {"logprobs": _logprobs(said.logprobs)} if said.logprobs else None
        return ChatGenerationChunk(message=AIMessageChunk(content=said.text), generation_info=info)
    last = AIMessageChunk(
        content="", usage_metadata=usage(said.usage), response_metadata=metadata(said), chunk_position="last"
    )
    return ChatGenerationChunk(message=last)


def usage(counted: Usage) -> UsageMetadata:
    """The tokens of an answer. `cache_read`: those whose keys and values came from the cache, not computed again."""
    return UsageMetadata(
        input_tokens=counted.prompt_tokens,
        output_tokens=counted.completion_tokens,
        total_tokens=counted.prompt_tokens + counted.completion_tokens,
        input_token_details=InputTokenDetails(cache_read=counted.reused_tokens),
    )


def metadata(answer: ChatAnswer) -> Json:
    """The metadata of an answer. `kvweave`: its report, its sources, and how many cached tokens were recomputed."""
    return {
        "id": answer.id,
        "model_name": answer.model,
        "model_provider": PROVIDER,
        "finish_reason": answer.finish_reason,
        "kvweave": {
            **cast(Json, as_json(answer.report)),
            "recomputed_tokens": answer.usage.recomputed_tokens,
            "sources": as_json(answer.sources),
        },
    }


def _role(message: BaseMessage) -> Role:
    if isinstance(message, HumanMessage):
        return "user"
    if isinstance(message, SystemMessage):
        return "system"
    if isinstance(message, AIMessage):
        if message.tool_calls or message.invalid_tool_calls:
            raise ValueError(f"{NO_TOOLS}: leave out messages that call them")
        return "assistant"
    if isinstance(message, ChatMessage) and message.role in _ROLES:
        return _ROLES[message.role]
    said = message.role if isinstance(message, ChatMessage) else message.type
    why = f"{NO_TOOLS}: leave them out" if said in ("tool", "function") else "it reads system, user and assistant"
    raise ValueError(f"kvweave reads no messages of the role {said!r}; {why}")


def _content(message: BaseMessage) -> str:
    """The text of a message. Parts of an answer are one text; of all else each has its own line, as in OpenAI's API."""
    content = cast("str | list[str | Json]", message.content)
    if isinstance(content, str):
        return content
    parts = [text for text in map(_part, content) if text is not None]
    return ("" if isinstance(message, AIMessage) else "\n").join(parts)


def _part(part: str | Json) -> str | None:
    """The text of a part; None of what is not said to a model again."""
    if isinstance(part, str):
        return part
    kind = part.get("type")
    if kind in ("text", "text-plain") and isinstance(text := part.get("text"), str):
        return text
    if kind in _UNSAID:
        return None
    raise ValueError(f"kvweave reads text only, got a part of the type {str(kind)[:40]!r}: leave it out")


def _logprobs(tokens: tuple[TokenLogprob, ...]) -> Json:
    """The tokens' log probabilities in OpenAI's form."""
    return {"content": as_json(tokens)}
