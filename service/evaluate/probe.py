"""One question at one operating point after another, and how each differs from full prefill. Knows no suites."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blend.capture import capture
from blend.context import Context, span
from blend.errors import PromptError
from blend.fuse import FuseReport, Order, fuse
from blend.load import Model
from blend.prompt import lay_out
from blend.step import Segment
from service.evaluate.cases import Case
from service.prompts import Laid, Titled, Wording, question_turns
from service.stored import Stored
from store.blob import Blob, Terms
from store.codec.encode import encode
from store.key import CacheKey
from store.reader import read
from store.record import Record

LOSSLESS = "lossless"


@dataclass(frozen=True, slots=True)
class Point:
    """An operating point."""

    policy: str
    ratio: float
    codec: str


FULL = Point("full", 1.0, LOSSLESS)


@dataclass(frozen=True, slots=True)
class Divergence:
    """Over the reference's own answer tokens: mean KL from it, in nats, and the share where both prefer the same."""

    kl: float
    top1: float


@dataclass(frozen=True, slots=True)
class Outcome:
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
class Measured:
    """One question at all points. `dropped`: passages left out because the model's window is too small."""

    outcomes: dict[Point, Outcome]
    sizes: dict[str, Sizes]
    dropped: int


@dataclass(frozen=True, slots=True)
class _Fused:
    """A prompt in place. `logits` (V,) choose the first token of the answer."""

    context: Context
    tokens: int
    logits: Tensor
    report: FuseReport
    seconds: float


class Probe:
    """Asks one model. `answer_tokens`: of the longest answer, and of what divergence looks at."""

    def __init__(self, model: Model, *, answer_tokens: int) -> None:
        self._decoder = model.decoder
        self._tokenizer = model.tokenizer
        self._wording = Wording(model.tokenizer)
        self._prefix = self._wording.lay(question_turns([Titled("")], question="")).prefix
        self._fingerprint = model.fingerprint
        self._behind = model.fingerprint.behind(self._prefix)
        self._answer_tokens = answer_tokens
        self._readers = ThreadPoolExecutor(2, "kvweave-eval")

    def close(self) -> None:
        """Stop the threads."""
        self._readers.shutdown()

    @torch.inference_mode()
    def measure(self, case: Case, points: Sequence[Point]) -> Measured:
        """Every point, in the order given; all are compared with full prefill of the same tokens."""
        laid, dropped = self._fitted(case)
        chunks = {run.passage: run.ids for run in laid.runs if run.passage is not None}
        records = dict(zip(chunks, capture(self._decoder, self._prefix, chunks=list(chunks.values())), strict=True))
        blobs = {codec: _encoded(records, codec) for codec in dict.fromkeys(point.codec for point in points)}
        first = self._fuse(laid, FULL, blobs={})
        tokens, wanted = self._continue(first, (), logprobs=self._follow(first, (0,)))
        outcomes: dict[Point, Outcome] = {}
        found: dict[Point, Tensor] = {}
        for point in points:
            fused = first if point == FULL else self._fuse(laid, point, blobs=blobs[point.codec])
            found[point] = wanted if point == FULL else self._follow(fused, tokens)
            outcomes[point] = self._outcome(fused, found[point], tokens=tokens, wanted=wanted)
        for point in points:
            plain = found.get(replace(point, codec=LOSSLESS))
            if plain is not None:
                outcomes[point] = replace(outcomes[point], codec=divergence(plain, found[point]))
        sizes = {codec: _sizes(list(records.values()), list(each.values())) for codec, each in blobs.items()}
        return Measured(outcomes, sizes, dropped)

    def _fitted(self, case: Case) -> tuple[Laid, int]:
        """The prompt with as many of the first passages as the window holds, and how many were left out."""
        shown, dropped = tuple(passage for passage in case.passages if passage.text), 0
        while True:
            laid = self._wording.lay(replace(case, passages=shown).turns)
            if laid.tokens + self._answer_tokens <= self._decoder.window:
                return laid, dropped
            if not shown:
                raise PromptError(
                    f"the question alone has {laid.tokens} tokens, the model's window is {self._decoder.window}"
                )
            shown, dropped = shown[:-1], dropped + 1

    def _fuse(self, laid: Laid, point: Point, *, blobs: Mapping[int, Blob]) -> _Fused:
        """The time to the first token begins with the blobs in memory: unpacking them is a part of it."""
        start = time.perf_counter()
        prompt = laid.prompt({passage: Stored(read(blob), self._behind) for passage, blob in blobs.items()})
        window, vocabulary = self._decoder.window, self._decoder.vocabulary
        layout = lay_out(prompt, fingerprint=self._fingerprint, window=window, vocabulary=vocabulary)
        context = self._decoder.context(len(layout.ids) + self._answer_tokens)
        order = Order(point.policy, point.ratio)
        fused = fuse(self._decoder, layout, context=context, order=order, readers=self._readers)
        fused.logits.argmax().item()  # the first token is there
        return _Fused(context, len(layout.ids), fused.logits, fused.report, time.perf_counter() - start)

    def _continue(self, fused: _Fused, begun: Sequence[int], *, logprobs: Tensor) -> tuple[list[int], Tensor]:
        """The greedy answer, its stop token included, and the log probabilities (tokens, V) that chose each.

        `logprobs` are those of the tokens begun with, and of the next one.
        """
        tokens, chosen = [*begun], [*logprobs]
        while True:
            tokens.append(int(chosen[-1].argmax()))
            if tokens[-1] in self._tokenizer.stop_ids or len(tokens) >= self._answer_tokens:
                return tokens, torch.stack(chosen)
            chosen += self._after(fused, tokens[-1:], place=len(tokens) - 1)

    def _follow(self, fused: _Fused, tokens: Sequence[int]) -> Tensor:
        """What this context says at every place of an answer that is given: log probabilities (tokens, V)."""
        first = fused.logits.float().log_softmax(-1)[None]
        return torch.cat([first, self._after(fused, tokens[:-1], place=0)]) if len(tokens) > 1 else first

    def _after(self, fused: _Fused, tokens: Sequence[int], *, place: int) -> Tensor:
        start = fused.tokens + place
        slots = span(start, start + len(tokens), device=self._decoder.device)
        logits = self._decoder.advance(
            [Segment(fused.context, slots, 0)], torch.tensor(tokens, device=self._decoder.device)
        )
        assert logits is not None
        return logits.float().log_softmax(-1)

    def _outcome(self, fused: _Fused, logprobs: Tensor, *, tokens: list[int], wanted: Tensor) -> Outcome:
        same = _best(logprobs) == tokens
        own = tokens if same else self._own(fused, logprobs, tokens=tokens)
        return Outcome(
            answer=self._tokenizer.decode(token for token in own if token not in self._tokenizer.stop_ids).strip(),
            agrees=same,
            divergence=divergence(wanted, logprobs),
            codec=None,
            ttft_s=fused.seconds,
            reused=fused.report.reused,
            recomputed=fused.report.recomputed,
            prompt=fused.tokens,
        )

    def _own(self, fused: _Fused, logprobs: Tensor, *, tokens: list[int]) -> list[int]:
        """The answer of a context that at some place prefers another token than the reference."""
        agreed = next(i for i, token in enumerate(_best(logprobs)) if token != tokens[i])
        return self._continue(fused, tokens[:agreed], logprobs=logprobs[: agreed + 1])[0]


def _best(logprobs: Tensor) -> list[int]:
    return [int(token) for token in logprobs.argmax(-1)]


def divergence(wanted: Tensor, got: Tensor) -> Divergence:
    """Of log probabilities (tokens, V) from others at the same places."""
    kl = (wanted.exp() * (wanted - got)).nan_to_num().sum(-1).mean()
    return Divergence(float(kl), float((wanted.argmax(-1) == got.argmax(-1)).float().mean()))


def _encoded(records: Mapping[int, Record], codec: str) -> dict[int, Blob]:
    key, terms = CacheKey("eval", "chunk", "model", codec), Terms(0, precomputed=True)
    return {passage: encode(record, key, terms=terms) for passage, record in records.items()}


def _sizes(records: Sequence[Record], blobs: Sequence[Blob]) -> Sizes:
    layers = [layer for record in records for layer in record.layers if layer is not None]
    values = sum(layer.keys.size + layer.values.size for layer in layers)
    return Sizes(sum(record.tokens for record in records), sum(blob.nbytes for blob in blobs), values)
