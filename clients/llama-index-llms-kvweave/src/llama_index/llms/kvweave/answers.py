"""Answers of kvweave as LlamaIndex's responses. Sends nothing."""

from collections.abc import AsyncIterator, Iterator
from typing import cast

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    LogProb,
    MessageRole,
)

from kvweave_client import ChatAnswer, ChatEvent, TokenLogprob
from kvweave_client.answers import as_json
from kvweave_client.options import Json


def whole(answer: ChatAnswer, *, delta: str | None = None) -> ChatResponse:
    """The answer to a chat, with what it cost."""
    return ChatResponse(
        message=ChatMessage(role=MessageRole.ASSISTANT, content=answer.text),
        delta=delta,
        raw=_raw(answer),
        logprobs=_logprobs(answer.logprobs) if delta is None else None,
        additional_kwargs=_counts(answer),
    )


def parts(events: Iterator[ChatEvent]) -> ChatResponseGen:
    """Each part with the text until then; the last one adds none and tells what the answer cost."""
    text = ""
    for event in events:
        text += "" if isinstance(event, ChatAnswer) else event.text
        yield _part(event, text)


async def aparts(events: AsyncIterator[ChatEvent]) -> ChatResponseAsyncGen:
    """The asynchronous `parts`."""
    text = ""
    async for event in events:
        text += "" if isinstance(event, ChatAnswer) else event.text
        yield _part(event, text)


def completion(said: ChatResponse) -> CompletionResponse:
    """The answer to a prompt that was one message, as a completion."""
    return CompletionResponse(
        text=said.message.content or "",
        delta=said.delta,
        raw=said.raw,
        logprobs=said.logprobs,
        additional_kwargs=cast(Json, said.additional_kwargs),  # pyright: ignore[reportUnknownMemberType] (a bare dict)
    )


async def acompletions(said: ChatResponseAsyncGen) -> CompletionResponseAsyncGen:
    """The `completion` of each part of an answer."""
    async for each in said:
        yield completion(each)


def _part(event: ChatEvent, text: str) -> ChatResponse:
    if isinstance(event, ChatAnswer):
        return whole(event, delta="")
    message = ChatMessage(role=MessageRole.ASSISTANT, content=text)
    return ChatResponse(message=message, delta=event.text, logprobs=_logprobs(event.logprobs))


def _raw(answer: ChatAnswer) -> Json:
    """The answer as JSON, with the usage as OpenAI has it, so that whoever counts tokens finds them."""
    cached = {"prompt_tokens_details": {"cached_tokens": answer.usage.reused_tokens}}
    return {
        "id": answer.id,
        "model": answer.model,
        "finish_reason": answer.finish_reason,
        "usage": _counts(answer) | cached,
        "report": as_json(answer.report),
        "sources": as_json(answer.sources),
    }


def _counts(answer: ChatAnswer) -> Json:
    usage = answer.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "reused_tokens": usage.reused_tokens,
        "recomputed_tokens": usage.recomputed_tokens,
    }


def _logprobs(tokens: tuple[TokenLogprob, ...]) -> list[list[LogProb]] | None:
    """The likeliest tokens in the place of each token, or the token alone where no others were asked for."""
    return [
        [
            LogProb(token=each.token, logprob=each.logprob, bytes=[*each.token.encode()])
            for each in token.top_logprobs or (token,)
        ]
        for token in tokens
    ] or None
