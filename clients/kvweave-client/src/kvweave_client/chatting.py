"""Chat completions as OpenAI's API has them, with what kvweave tells besides. Sends nothing."""

from collections.abc import Sequence

import msgspec

from kvweave_client.answers import ChatAnswer, ChatDelta, ChatEvent, Report, Source, TokenLogprob, Usage
from kvweave_client.errors import OpenAIError, Problem, UnexpectedAnswer, error_of
from kvweave_client.events import ServerEvent
from kvweave_client.options import ChatOptions, Json, Message
from kvweave_client.requests import EVENTS, JSON, Request, encoded, of, path

MODEL = "default"  # of the service, whatever its name
_END = "[DONE]"


def request(messages: Sequence[Message], options: ChatOptions, *, stream: bool = False) -> Request:
    """The request of a chat. Random answers would differ: none is asked for again where one may have been served."""
    body: Json = {"model": MODEL, "messages": list(messages), **options}
    body |= {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    address = path("chat", "completions")
    return Request("POST", address, encoded(body), repeats=False, accepts=EVENTS if stream else JSON)


def answer(raw: bytes) -> ChatAnswer:
    """The answer that a whole completion holds."""
    said = of(Completion)(raw)
    if len(said.choices) != 1:
        raise UnexpectedAnswer(f"the answer has {len(said.choices)} choices, not one")
    [choice] = said.choices
    return _answer(said, choice.message.content or "", reason=choice.finish_reason, logprobs=_listed(choice.logprobs))


def ends(event: ServerEvent) -> bool:
    """Whether this is the last event of a stream."""
    return event.data == _END


class Reader:
    """Reads one stream: its parts as they come, and at its end all of them."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._reason = ""
        self._last: _Chunk | None = None

    def hear(self, event: ServerEvent) -> ChatEvent | None:
        """What an event says, often nothing. Raises what the service reports."""
        if ends(event):
            return self._whole()
        chunk = of(_Chunk)(event.data.encode())
        if chunk.error is not None:
            raise error_of(Problem(chunk.error.status, detail=chunk.error.message, type=chunk.error.type))
        if chunk.kvweave is not None:
            self._last = chunk
        for choice in chunk.choices:
            self._reason = choice.finish_reason or self._reason
            logprobs = _listed(choice.logprobs)
            text = choice.delta.content or ""
            if text or logprobs:
                self._text.append(text)
                self._logprobs += logprobs
                return ChatDelta(text, logprobs)
        return None

    def _whole(self) -> ChatAnswer:
        last = self._last
        if last is None or last.usage is None or last.kvweave is None or not self._reason:
            raise UnexpectedAnswer("the stream ended without its usage: is the base URL that of a kvweave service?")
        whole = Completion(last.id, last.model, (), last.usage, last.kvweave)
        return _answer(whole, "".join(self._text), reason=self._reason, logprobs=tuple(self._logprobs))


def _answer(said: "Completion", text: str, *, reason: str, logprobs: tuple[TokenLogprob, ...]) -> ChatAnswer:
    extra = said.kvweave
    usage = said.usage.counted(extra.recomputed_tokens)
    return ChatAnswer(said.id, said.model, text, reason, usage, extra.sources, extra.report, logprobs)


class _Cached(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Cached = _Cached()

    def counted(self, recomputed: int) -> Usage:
        return Usage(self.prompt_tokens, self.completion_tokens, self.prompt_tokens_details.cached_tokens, recomputed)


class _Extra(msgspec.Struct, frozen=True):
    report: Report
    sources: tuple[Source, ...]
    recomputed_tokens: int


class _Logprobs(msgspec.Struct, frozen=True):
    content: tuple[TokenLogprob, ...] | None = None


def _listed(logprobs: _Logprobs | None) -> tuple[TokenLogprob, ...]:
    return (logprobs.content if logprobs else None) or ()


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Message
    finish_reason: str
    logprobs: _Logprobs | None = None


class Completion(msgspec.Struct, frozen=True):
    """A whole answer as it comes over the wire."""

    id: str
    model: str
    choices: tuple[_Choice, ...]
    usage: _Usage
    kvweave: _Extra


class _ChunkChoice(msgspec.Struct, frozen=True):
    delta: _Message
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Chunk(msgspec.Struct, frozen=True):
    id: str = ""
    model: str = ""
    choices: tuple[_ChunkChoice, ...] = ()
    usage: _Usage | None = None
    kvweave: _Extra | None = None
    error: OpenAIError | None = None
