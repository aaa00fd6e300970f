"""One question at one operating point after another, and how each differs from full prefill. Knows no suites."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blend.engine.engine import EngineRequest
from blend.engine.local_engine import EngineLimits, LocalEngine
from blend.engine.sampling import Sampling
from blend.errors import PromptError
from blend.fuse.fuse import BlendOrder
from blend.load import LoadedModel
from service.app.operating_point import FULL, LOSSLESS, OperatingPoint
from service.corpus.chunk_capture import tailed
from service.model.blob_source import BlobSource
from service.model.capture_context import ChunkIds
from service.model.prompt_builder import PromptBuilder, PromptPassage, PromptTokens, question_turns
from service.model.timed import Timed, timed
from service.quality.cases import Case
from store.blob import Blob, Terms
from store.codec.encode import encode
from store.key import CacheKey
from store.reader import read
from store.record import Record


@dataclass(frozen=True, slots=True)
class Divergence:
    """The distance from a reference over its own answer tokens. `kl`: mean KL from it, in nats.

    `top1`: the share where both prefer the same token.
    """

    kl: float
    top1: float


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """What one point made of one question. `codec`: divergence from the same policy on lossless records."""

    answer: str
    agrees: bool
    divergence: Divergence
    codec: Divergence | None
    ttft_s: float
    reused: int
    recomputed: int
    prompt: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the passages' records take under one codec."""

    tokens: int
    nbytes: int
    values: int


@dataclass(frozen=True, slots=True)
class CaseMeasurement:
    """One question at all points. `dropped`: passages left out because the model's window is too small."""

    outcomes: dict[OperatingPoint, CaseOutcome]
    sizes: dict[str, Sizes]
    dropped: int


class _Following:
    """Has the engine write an answer that is given, and then the likeliest tokens; keeps the logits of each place."""

    def __init__(self, given: Sequence[int]) -> None:
        self._given = given
        self._logits: list[Tensor] = []

    def __call__(self, ids: Sequence[int], logits: Tensor) -> Tensor:
        """See `LogitsProcessor`."""
        self._logits.append(logits)
        if len(ids) >= len(self._given):
            return logits
        forced = torch.full_like(logits, -torch.inf)
        forced[self._given[len(ids)]] = 0
        return forced

    @property
    def logprobs(self) -> Tensor:
        """(tokens, V): what the model says at each place of the answer, its end included."""
        return torch.stack(self._logits).log_softmax(-1)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that was answered. `logprobs` (tokens, V) at each place of the answer that was followed."""

    timed: Timed
    logprobs: Tensor


class CaseProbe:
    """Asks one model. `answer_tokens`: of the longest answer, and of what divergence looks at.

    Its engine keeps no prefixes: each prompt is computed as if nothing had been asked before.
    """

    def __init__(self, model: LoadedModel, *, answer_tokens: int) -> None:
        self._tokenizer = model.tokenizer
        self._prompt_builder = PromptBuilder(model.tokenizer)
        self._prefix = self._prompt_builder.lay(question_turns([PromptPassage("")], question="")).prefix
        self._behind = model.fingerprint.behind(self._prefix)
        self._answer_tokens = answer_tokens
        self._window = model.decoder.window
        limits = EngineLimits(kv_bytes=(self._window + 1) * model.decoder.token_bytes, prefix_bytes=0)
        self._engine = LocalEngine(model.decoder, model.tokenizer, fingerprint=model.fingerprint, limits=limits)

    def close(self) -> None:
        """Stop the engine."""
        self._engine.close()

    def measure(self, case: Case, points: Sequence[OperatingPoint]) -> CaseMeasurement:
        """Asks at every point, in the order given; all are compared with full prefill of the same tokens."""
        prompt_tokens, dropped = self._fitted(case)
        shown = [passage for passage in case.passages if passage.text]
        chunks = {
            run.passage: ChunkIds(run.ids, self._prompt_builder.gap_ids(shown[run.passage]))
            for run in prompt_tokens.runs
            if run.passage is not None
        }
        captured = self._engine.capture(self._prefix, [chunk.all for chunk in chunks.values()]).result()
        records = {number: tailed(record, chunks[number]) for number, record in zip(chunks, captured, strict=True)}
        blobs = {codec: _encoded(records, codec) for codec in dict.fromkeys(point.codec for point in points)}
        first = self._ask(prompt_tokens, FULL, blobs={})
        tokens = _best(first.logprobs)
        asked = {
            point: first if point == FULL else self._ask(prompt_tokens, point, blobs=blobs[point.codec], given=tokens)
            for point in points
        }
        outcomes: dict[OperatingPoint, CaseOutcome] = {}
        for point, found in asked.items():
            agrees = _best(found.logprobs) == tokens
            own = found if agrees else self._ask(prompt_tokens, point, blobs=blobs[point.codec])
            plain = asked.get(replace(point, codec=LOSSLESS))
            outcomes[point] = CaseOutcome(
                answer=self._text(_best(own.logprobs)),
                agrees=agrees,
                divergence=divergence(first.logprobs, found.logprobs),
                codec=plain and divergence(plain.logprobs, found.logprobs),
                ttft_s=found.timed.seconds,
                reused=found.timed.report.reused,
                recomputed=found.timed.report.recomputed,
                prompt=prompt_tokens.tokens,
            )
        sizes = {codec: _sizes(list(records.values()), list(each.values())) for codec, each in blobs.items()}
        return CaseMeasurement(outcomes, sizes, dropped)

    def _fitted(self, case: Case) -> tuple[PromptTokens, int]:
        """The prompt with as many of the first passages as the window holds, and how many were left out."""
        shown, dropped = tuple(passage for passage in case.passages if passage.text), 0
        while True:
            prompt_tokens = self._prompt_builder.lay(replace(case, passages=shown).turns)
            if prompt_tokens.tokens + self._answer_tokens <= self._window:
                return prompt_tokens, dropped
            if not shown:
                raise PromptError(
                    f"the question alone has {prompt_tokens.tokens} tokens, the model's window is {self._window}"
                )
            shown, dropped = shown[:-1], dropped + 1

    def _ask(
        self,
        prompt_tokens: PromptTokens,
        point: OperatingPoint,
        *,
        blobs: Mapping[int, Blob],
        given: Sequence[int] = (),
    ) -> _Asked:
        """Has the engine write the greedy answer, or the one that is given.

        The time to the first token begins with the blobs in memory: unpacking them is a part of it.
        """
        start = time.perf_counter()
        prompt = prompt_tokens.prompt(
            {passage: BlobSource(read(blob), self._behind) for passage, blob in blobs.items()}
        )
        following = _Following(given)
        sampling = Sampling(max_tokens=self._answer_tokens, processor=following)
        found = timed(self._engine, EngineRequest(prompt, sampling, BlendOrder(point.policy, point.ratio)), since=start)
        return _Asked(found, following.logprobs)

    def _text(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(token for token in tokens if token not in self._tokenizer.stop_ids).strip()


def _best(logprobs: Tensor) -> list[int]:
    return [int(token) for token in logprobs.argmax(-1)]


def divergence(wanted: Tensor, got: Tensor) -> Divergence:
    """The divergence of the log probabilities `got` (tokens, V) from those `wanted` at the same places."""
    kl = (wanted.exp() * (wanted - got)).nan_to_num().sum(-1).mean()
    return Divergence(float(kl), float((wanted.argmax(-1) == got.argmax(-1)).float().mean()))


def _encoded(records: Mapping[int, Record], codec: str) -> dict[int, Blob]:
    key, terms = CacheKey("eval", "chunk", "model", codec), Terms(0, precomputed=True)
    return {passage: encode(record, key, terms=terms) for passage, record in records.items()}


def _sizes(records: Sequence[Record], blobs: Sequence[Blob]) -> Sizes:
    layers = [layer for record in records for layer in record.layers if layer is not None]
    values = sum(layer.keys.size + layer.values.size for layer in layers)
    return Sizes(sum(record.tokens for record in records), sum(blob.nbytes for blob in blobs), values)
