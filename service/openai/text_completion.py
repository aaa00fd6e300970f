"""The body of /v1/completions and its answers: raw texts gone on with, echo, older logprobs, what is refused."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Annotated, Final, Literal, cast

from pydantic import BaseModel, BeforeValidator, Field

from blend.engine.engine import ChoiceEnded
from service.access.principal import Principal
from service.answers.answer_request import AnswerRequest, Turn
from service.answers.events import Delta, Event, Finished, Retrieved, Source
from service.api.fields import WHOLE
from service.api.questions import BlendIn, Conversation
from service.api.rendering import rendered
from service.errors import Invalid
from service.openai.answer_bodies import CachedTokens, ChatCompletion, Choice, CompletionUsage, Extra, Logprobs
from service.openai.completion import END, Envelope, extra_of, logprobs_of, reason_of, usage_of
from service.openai.defaults import Defaults, order_of
from service.openai.errors import error_body
from service.openai.request import MOST_CHOICES, Most, Refused, SamplingFields, StreamOptions, Unused, not_served

FEW_TOKENS: Final = 16  # of an answer whose request does not say, as OpenAI has it
MOST_PROMPTS: Final = 16


def _texts(given: object) -> object:
    """Checks as pydantic would, but that token ids get a sentence of their own."""
    texts = cast(list[object], given) if isinstance(given, list) else []
    if any(isinstance(each, int | list) for each in texts):
        raise ValueError("a prompt is a text: send texts, not token ids")
    return cast(object, given)


Prompt = Annotated[str, Field(min_length=1)]
Prompts = Annotated[list[Prompt], Field(min_length=1, max_length=MOST_PROMPTS)]


class TextRequest(SamplingFields, Conversation):
    """Texts to go on with, each by itself."""

    model: str = Field(examples=["default"])
    prompt: Annotated[Prompt | Prompts, BeforeValidator(_texts)] = Field(examples=["Mira lives in"])
    max_tokens: Most | None = FEW_TOKENS
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES), WHOLE] | None = Field(
        None, description="Answers to each prompt; more than one with a generator alone"
    )
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5), WHOLE] | None = None
    stream: bool | None = Field(None, description="Of one prompt")
    stream_options: StreamOptions | None = None
    blend: BlendIn | None = None
    best_of: Literal[1] | None = None
    suffix: Annotated[Refused, not_served("kvweave writes no middle of a text: leave it out")] = None
    user: Unused = None

    @property
    def prompts(self) -> Sequence[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    def asked(self, principal: Principal, *, id: str, defaults: Defaults) -> list[AnswerRequest]:
        """What is wanted, prompt by prompt. Raises `Invalid` for what does not go together."""
        choices = self.n or 1
        if choices > 1 and not defaults.has_generator:
            raise Invalid("kvweave gives one answer for a prompt: ask again for another", field="n")
        if self.stream and len(self.prompts) > 1:
            raise Invalid("a stream is of one prompt: ask for each by itself", field="prompt")
        if self.echo and self.logprobs is not None:
            raise Invalid("there are no logprobs of a prompt: leave one of both out", field="echo")
        most = self.max_tokens or FEW_TOKENS
        usual = replace(defaults.usual, choices=choices, max_tokens=most, logprobs=self.logprobs)
        return [
            AnswerRequest(
                principal=principal,
                turns=(Turn("user", each),),
                order=order_of(self.blend, default=defaults.order),
                sampling=self.over(usual),  # of its own: penalties count what was said
                is_raw=True,
                inline=True,
                session=self.session or "",
                session_keep_s=self.session_keep_s,
                id=id if number == 0 else f"{id}-{number}",
            )
            for number, each in enumerate(self.prompts)
        ]


class TextLogprobs(BaseModel):
    """The log probabilities of each token; `text_offset`: where it begins in the text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class TextChoice(BaseModel):
    """How a text goes on."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    kvweave: Extra | None = None


class TextCompletion(BaseModel):
    """The texts, or a part of one in a stream."""

    id: str = Field(examples=["cmpl-5f1d0c2ab7e94d0e"])
    object: Literal["text_completion"] = "text_completion"
    created: int = Field(examples=[1_760_000_000])
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: CompletionUsage | None = None


def text_completion(body: TextRequest, answers: Sequence[ChatCompletion], *, envelope: Envelope) -> TextCompletion:
    """The whole answer, of one for each prompt."""
    choices = list[TextChoice]()
    for prompt, answer in zip(body.prompts, answers, strict=True):
        own = [_choice(each, index=len(choices) + each.index) for each in answer.choices]
        for each in own if body.echo else ():
            each.text = prompt + each.text
        own[0].kvweave = answer.kvweave
        choices += own
    return _enveloped(envelope, choices, usage=_sum([answer.usage for answer in answers]))


class TextChunks:
    """The chunks of one prompt's texts. See `StreamForm`."""

    def __init__(self, body: TextRequest, envelope: Envelope) -> None:
        self._body = body
        self._envelope = envelope
        self._with_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._offsets: dict[int, int] = {}
        self._sources: tuple[Source, ...] = ()

    def opening(self) -> Iterator[bytes]:
        """The prompts, where they are echoed."""
        if self._body.echo:
            for choice in range(self._body.n or 1):
                yield self._line(TextChoice(index=choice, text=self._body.prompts[0]))

    def of(self, event: Event) -> Iterator[bytes]:
        """The chunks that an event adds, often none."""
        match event:
            case Retrieved():
                self._sources = event.sources
            case Delta() if event.text or event.token:
                offset = self._offsets.get(event.choice, 0)
                logprobs = _logprobs(logprobs_of([event]), offset=offset)
                self._offsets[event.choice] = offset + (len(event.token.text) if event.token else 0)
                yield self._line(TextChoice(index=event.choice, text=event.text, logprobs=logprobs))
            case ChoiceEnded() | Finished():
                last = TextChoice(index=event.choice, text=event.text, finish_reason=_ended(reason_of(event.reason)))
                if isinstance(event, Finished):
                    last.kvweave = extra_of(event, self._sources)
                yield self._line(last)
                if isinstance(event, Finished) and self._with_usage:
                    yield _data(_enveloped(self._envelope, [], usage=usage_of(event.usage)))
            case _:
                pass

    def ending(self) -> Iterator[bytes]:
        """What tells that no chunk follows."""
        yield END

    def failing(self, error: Exception) -> bytes:
        """What takes the place of the end."""
        return _data(error_body(error))

    def _line(self, choice: TextChoice) -> bytes:
        return _data(_enveloped(self._envelope, [choice]))


def _choice(choice: Choice, *, index: int) -> TextChoice:
    text, reason = choice.message.content or "", _ended(choice.finish_reason)
    return TextChoice(index=index, text=text, logprobs=_logprobs(choice.logprobs), finish_reason=reason)


def _ended(reason: str) -> Literal["stop", "length"]:
    return "length" if reason == "length" else "stop"


def _logprobs(given: Logprobs | None, *, offset: int = 0) -> TextLogprobs | None:
    """The log probabilities in the older form; the first token begins at `offset`."""
    content = (given.content if given else None) or ()
    if not content:
        return None
    ends = accumulate((len(each.token) for each in content), initial=offset)
    tops = [{top.token: top.logprob for top in each.top_logprobs} for each in content]
    return TextLogprobs(
        tokens=[each.token for each in content],
        token_logprobs=[each.logprob for each in content],
        top_logprobs=tops if any(tops) else None,
        text_offset=[at for at, _ in zip(ends, content, strict=False)],
    )


def _sum(usages: Sequence[CompletionUsage]) -> CompletionUsage:
    cached = sum(each.prompt_tokens_details.cached_tokens for each in usages)
    return CompletionUsage(
        prompt_tokens=sum(each.prompt_tokens for each in usages),
        completion_tokens=sum(each.completion_tokens for each in usages),
        total_tokens=sum(each.total_tokens for each in usages),
        prompt_tokens_details=CachedTokens(cached_tokens=cached),
    )


def _enveloped(
    envelope: Envelope, choices: list[TextChoice], *, usage: CompletionUsage | None = None
) -> TextCompletion:
    return rendered(TextCompletion, envelope, choices=choices, usage=usage)


def _data(body: BaseModel) -> bytes:
    return f"data: {body.model_dump_json(exclude_none=True)}\n\n".encode()
