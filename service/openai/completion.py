"""Renders events as what OpenAI's clients read: one answer, or chunks of it as server-sent events. Knows no request."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from blend.engine.engine import ChoiceEnded, Finish, MessagePiece
from service.answers.events import Delta, Event, Finished, Piece, Retrieved, Source, TopToken, Usage, WholeAnswer
from service.api.rendering import rendered, rendered_source
from service.errors import Unavailable
from service.openai.answer_bodies import (
    AnsweredCall,
    AnsweredFunction,
    AnswerMessage,
    CachedTokens,
    ChatCompletion,
    ChatCompletionChunk,
    Choice,
    ChunkChoice,
    CompletionUsage,
    Extra,
    Logprobs,
    MessageDelta,
    TokenLogprob,
    TopLogprob,
)
from service.openai.errors import error_body

END: Final = b"data: [DONE]\n\n"
LEAST: Final = -9999.0  # JSON has no infinity

Reason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every part of an answer says."""

    id: str
    created: int
    model: str
    system_fingerprint: str


def completion(answer: WholeAnswer, envelope: Envelope) -> ChatCompletion:
    """The whole answer."""
    ends = [*(each for each in answer.pieces if isinstance(each, ChoiceEnded)), answer.end]
    return rendered(
        ChatCompletion,
        envelope,
        choices=[_choice(each, answer.pieces) for each in sorted(ends, key=lambda end: end.choice)],
        usage=usage_of(answer.end.usage),
        kvweave=extra_of(answer.end, answer.sources),
    )


class Chunks:
    """The chunks of one request's answers, of which there are `choices`."""

    def __init__(self, envelope: Envelope, *, choices: int, with_usage: bool) -> None:
        self._envelope = envelope
        self._choices = choices
        self._with_usage = with_usage
        self._sources: tuple[Source, ...] = ()

    def opening(self) -> Iterator[bytes]:
        """The first chunk of each answer, which says who speaks."""
        for choice in range(self._choices):
            yield _line(self._chunk(choice, MessageDelta(role="assistant", content="")))

    def of(self, event: Event) -> Iterator[bytes]:
        """The chunks that an event adds, often none."""
        for chunk in self._added(event):
            yield _line(chunk)

    def ending(self) -> Iterator[bytes]:
        """What tells that no chunk follows."""
        yield END

    def failing(self, error: Exception) -> bytes:
        """What takes the place of the end."""
        return f"data: {error_body(error).model_dump_json()}\n\n".encode()

    def _added(self, event: Event) -> Iterator[ChatCompletionChunk]:
        match event:
            case Retrieved():
                self._sources = event.sources
            case Delta():
                if event.text or event.token:
                    yield self._chunk(event.choice, MessageDelta(content=event.text), logprobs=logprobs_of([event]))
            case MessagePiece():
                yield self._chunk(event.choice, MessageDelta.model_validate(event.delta))
            case ChoiceEnded():
                yield from self._last(event)
            case Finished():
                yield from self._ending(event)
            case _:
                pass

    def _ending(self, finished: Finished) -> Iterator[ChatCompletionChunk]:
        *others, last = self._last(finished)
        yield from others
        if self._with_usage:
            yield last
            last = self._bare([])
            last.usage = usage_of(finished.usage)
        last.kvweave = extra_of(finished, self._sources)
        yield last

    def _last(self, ended: ChoiceEnded | Finished) -> Iterator[ChatCompletionChunk]:
        """What is left of an answer, and why it ended."""
        reason = reason_of(ended.reason)
        if ended.text:
            yield self._chunk(ended.choice, MessageDelta(content=ended.text))
        yield self._chunk(ended.choice, MessageDelta(), reason=reason)

    def _chunk(
        self, choice: int, delta: MessageDelta, *, logprobs: Logprobs | None = None, reason: Reason | None = None
    ) -> ChatCompletionChunk:
        return self._bare([ChunkChoice(index=choice, delta=delta, logprobs=logprobs, finish_reason=reason)])

    def _bare(self, choices: list[ChunkChoice]) -> ChatCompletionChunk:
        chunk = rendered(ChatCompletionChunk, self._envelope, object="chat.completion.chunk", choices=choices)
        if self._with_usage:
            chunk.usage = None  # said, and not left out
        return chunk


def usage_of(usage: Usage) -> CompletionUsage:
    """What an answer took, as OpenAI counts."""
    return CompletionUsage(
        prompt_tokens=usage.prompt,
        completion_tokens=usage.completion,
        total_tokens=usage.prompt + usage.completion,
        prompt_tokens_details=CachedTokens(cached_tokens=usage.reused),
    )


def _choice(ended: ChoiceEnded | Finished, pieces: Sequence[Piece]) -> Choice:
    own = [each for each in pieces if isinstance(each, Delta) and each.choice == ended.choice]
    added = [each for each in pieces if isinstance(each, MessagePiece) and each.choice == ended.choice]
    text = "".join(delta.text for delta in own) + ended.text
    return Choice(
        index=ended.choice,
        message=_message(added) if added else AnswerMessage(content=text),
        logprobs=logprobs_of(own),
        finish_reason=reason_of(ended.reason),
    )


def _message(added: Sequence[MessagePiece]) -> AnswerMessage:
    """A message out of its pieces, with its calls by their numbers."""
    deltas = [MessageDelta.model_validate(each.delta) for each in added]
    calls: dict[int, AnsweredCall] = {}
    for delta in (call for each in deltas for call in each.tool_calls or ()):
        called = calls.setdefault(delta.index, AnsweredCall(id="", function=AnsweredFunction(name="", arguments="")))
        called.id += delta.id or ""
        if delta.function:
            called.function.name = (called.function.name or "") + (delta.function.name or "")
            called.function.arguments = (called.function.arguments or "") + (delta.function.arguments or "")
    text = "".join(each.content or "" for each in deltas)
    return AnswerMessage(content=text or None, tool_calls=[calls[at] for at in sorted(calls)] or None)


def extra_of(finished: Finished, sources: tuple[Source, ...]) -> Extra:
    return Extra(
        report=finished.report,
        sources=[rendered_source(each) for each in sources],
        recomputed_tokens=finished.usage.recomputed,
    )


def reason_of(reason: Finish) -> Reason:
    """Why an answer ended, as OpenAI says it. Raises Unavailable for one that was cut off."""
    if reason == "cancelled":
        raise Unavailable("the answer was cut off, the service is stopping: ask again")
    return reason


def logprobs_of(deltas: Sequence[Delta]) -> Logprobs | None:
    """The log probabilities of tokens; None where nobody asked for them."""
    content = [
        TokenLogprob(**_top(delta.token).model_dump(), top_logprobs=[_top(each) for each in delta.top])
        for delta in deltas
        if delta.token
    ]
    return Logprobs(content=content, refusal=None) if content else None


def _top(token: TopToken) -> TopLogprob:
    return TopLogprob(token=token.text, logprob=max(token.logprob, LEAST), bytes=list(token.raw))


def _line(chunk: ChatCompletionChunk) -> bytes:
    return f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n".encode()
