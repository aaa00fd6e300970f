"""Whether vLLM serves the model that is served here, and what prompts take there, found out by asking both."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

from blend.engine.engine import Engine, EngineRequest, Token
from blend.engine.sampling import Picked, Sampling
from blend.fuse.fuse import BlendOrder
from blend.fuse.prompt import Prompt
from service.model.prompt_builder import TurnPart, TurnParts
from service.model.served_model import ServedModel, made_up_ids
from service.model.speeds import ModelSpeeds, PromptSizes
from service.model.timed import events_of
from service.settings import GeneratorAddress
from service.vllm.handoff_receiver import HandoffReceiver, handed_params
from service.vllm.handoffs import HandoffReaders, Handoffs
from service.vllm.vllm_client import Completion, GeneratorAway, VllmClient

TEXT = "Who lives in K7, Zoë? 12,50 € – 東京\n\n(A title)"
TOKENS = 48  # of the prompt whose likeliest next tokens are compared
TOP = 10
COMMON = 6  # of these at least are among the likeliest on both sides; others may nearly be
TOLERANCE = {"float32": 0.01}  # of a log probability; others round more
COARSE = 0.25
SHORT, LONG = 64, 1024  # tokens of the prompts that are timed
ROUNDS = 2
ORDER = BlendOrder("full", 0.0)


@dataclass(frozen=True, slots=True)
class LinearTime:
    """Seconds that grow with a prompt's tokens."""

    base_s: float
    token_s: float

    @classmethod
    def through(cls, few: tuple[int, float], many: tuple[int, float]) -> "LinearTime":
        """The line through two measurements of tokens and seconds; it never falls."""
        token_s = max(0.0, (many[1] - few[1]) / max(1, many[0] - few[0]))
        return cls(max(0.0, few[1] - token_s * few[0]), token_s)

    def seconds(self, tokens: int) -> float:
        return self.base_s + self.token_s * tokens


@dataclass(slots=True)
class GeneratorTimes:
    """What was measured of vLLM, once it was there: the whole of a prompt until its first token, either way."""

    prefill: LinearTime | None = None
    handed: LinearTime | None = None


@dataclass(frozen=True, slots=True)
class HandedSpeeds(ModelSpeeds):
    """Our own speeds for the fuse, and vLLM's: it reads a prompt itself, or takes over what was fused here."""

    times: GeneratorTimes = field(default_factory=GeneratorTimes)

    @classmethod
    def over(cls, own: ModelSpeeds, times: GeneratorTimes) -> "HandedSpeeds":
        """Our own speeds with those of vLLM, which may come later."""
        return cls(**{each.name: getattr(own, each.name) for each in fields(ModelSpeeds)}, times=times)

    def full_s(self, sizes: PromptSizes) -> float:
        """What vLLM takes to read a prompt."""
        prefill = self.times.prefill
        return prefill.seconds(sizes.tokens) if prefill else ModelSpeeds.full_s(self, sizes)

    def prefix_s(self, sizes: PromptSizes) -> float:
        """What a prompt takes behind an exact beginning, with its way to vLLM."""
        return ModelSpeeds.prefix_s(self, sizes) + self._handed_s(sizes.tokens)

    def blend_s(self, sizes: PromptSizes, *, ratio: float = 0.0) -> float:
        """What a prompt takes by the operating point, with its way to vLLM."""
        return ModelSpeeds.blend_s(self, sizes, ratio=ratio) + self._handed_s(sizes.tokens)

    def _handed_s(self, tokens: int) -> float:
        return self.times.handed.seconds(tokens) if self.times.handed else 0.0


class Disagreement(GeneratorAway):
    """vLLM serves something else than is served here; the text names the field."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """A vLLM that agrees: its model's name, its window, and the bytes that a token takes until it is fetched."""

    model: str
    window: int
    token_bytes: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both sides: our model and its own engine, and vLLM. `times` is filled in where they agree."""

    served: ServedModel
    local: Engine
    handoffs: Handoffs
    client: VllmClient
    address: GeneratorAddress
    times: GeneratorTimes

    async def agree(self) -> Agreement:
        """Returns where vLLM agrees in all. Raises Disagreement, and GeneratorAway where it does not answer."""
        model, window = await self._model()
        await self._check_tokens(model)
        ids = made_up_ids(min(TOKENS, self.served.window - 1), vocabulary=self.served.vocabulary)
        own = await asyncio.to_thread(_first_token, self.local, ids)
        plain = await self.client.whole(self._asked(model, ids), most_tokens=1)
        self._check_close(own, plain.picked, field="dtype or weights")
        handed, token_bytes, _ = await self._handed(model, ids)
        self._check_close(own, handed, field="keys and values that were handed over")
        await self._measure(model, min(LONG, self.served.window // 2, window // 2))
        return Agreement(model, window, token_bytes)

    async def _model(self) -> tuple[str, int]:
        found = await self.client.models()
        name = self.address.model or next(iter(found), "")
        if name not in found or (len(found) > 1 and not self.address.model):
            raise Disagreement(f"model: it has {', '.join(sorted(found)) or 'none'}: name one behind # in the address")
        return name, found[name] or self.served.window

    async def _check_tokens(self, model: str) -> None:
        builder = self.served.prompt_builder
        theirs = await self.client.token_ids({"model": model, "prompt": TEXT, "add_special_tokens": False})
        if theirs != list(builder.tokenizer.encode_text(TEXT, opens=True)):
            raise Disagreement("tokenizer: it makes other ids of a text")
        turns = [{"role": "user", "content": TEXT}]
        theirs = await self.client.token_ids({"model": model, "messages": turns, "add_generation_prompt": True})
        laid = builder.lay([TurnParts("user", (TurnPart(TEXT),))])
        if theirs != [*laid.prefix, *(token for run in laid.runs for token in run.ids), *laid.suffix]:
            raise Disagreement("template: it renders a chat otherwise")

    def _asked(self, model: str, ids: Sequence[int]) -> Completion:
        sampling = Sampling(max_tokens=1, logprobs=TOP, ignore_eos=True)
        return Completion(model, ids, sampling, (), secrets.token_urlsafe(32))

    async def _handed(self, model: str, ids: Sequence[int]) -> tuple[tuple[Picked, ...], float, float]:
        """A prompt that is computed here and goes on there: its next token, bytes of a token, and vLLM's seconds."""
        readers = HandoffReaders("", time.monotonic(), is_internal=True)
        receiver = HandoffReceiver(self.handoffs, readers)
        request = EngineRequest(Prompt((), (), tuple(ids)), order=ORDER, receiver=receiver)
        try:
            await asyncio.to_thread(list, events_of(self.local, request))
            lease = receiver.lease
            begun = time.perf_counter()
            found = await self.client.whole(
                replace(self._asked(model, ids), params=handed_params(lease)), most_tokens=1
            )
            took_s = time.perf_counter() - begun
        finally:
            receiver.close()
        if found.loaded is None:
            raise Disagreement("connector: it was started without vllm-kvweave")
        if found.loaded != len(ids) - 1:
            raise Disagreement("connector: it could not fetch a prompt from here; its log says why")
        return found.picked, lease.handoff.nbytes / len(ids), took_s

    def _check_close(self, own: Token, theirs: tuple[Picked, ...], *, field: str) -> None:
        """Raises Disagreement where the likeliest tokens have other probabilities."""
        tolerance = TOLERANCE.get(self.served.fingerprint.dtype.rpartition(".")[2], COARSE)
        found = dict(theirs[0].top) if theirs else {}
        off = [abs(found[token] - logprob) for token, logprob in own.top if token in found]
        if len(off) < COMMON or max(off) > tolerance:
            raise Disagreement(
                f"{field}: the same tokens have other probabilities there: give both one model and dtype"
            )

    async def _measure(self, model: str, longest: int) -> None:
        points: dict[int, tuple[float, float]] = {}
        for tokens in {min(SHORT, longest), longest}:
            ids = made_up_ids(tokens, vocabulary=self.served.vocabulary)
            plain_s = handed_s = float("inf")
            for _ in range(ROUNDS):
                begun = time.perf_counter()
                await self.client.whole(self._asked(model, ids), most_tokens=1)
                plain_s = min(plain_s, time.perf_counter() - begun)
                handed_s = min(handed_s, (await self._handed(model, ids))[2])
            points[tokens] = (plain_s, handed_s)
        (few, at_few), (many, at_many) = min(points.items()), max(points.items())
        self.times.prefill = LinearTime.through((few, at_few[0]), (many, at_many[0]))
        self.times.handed = LinearTime.through((few, at_few[1]), (many, at_many[1]))


def _first_token(engine: Engine, ids: Sequence[int]) -> Token:
    sampling = Sampling(max_tokens=1, logprobs=TOP, ignore_eos=True)
    request = EngineRequest(Prompt((), (), tuple(ids)), sampling, ORDER)
    return next(event for _, event in list(events_of(engine, request)) if isinstance(event, Token))
