"""One question at each operating point: divergence from full prefill, first token, sizes, and its yardstick."""

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from blend.adopt.load import LoadedModel
from blend.capture.capture import CaptureHooks, capture
from blend.errors import PromptError
from blend.fuse.fuse import BlendOrder, FusedPrompt, FuseReport, fuse
from blend.fuse.prompt import lay_out
from blend.fuse.record_loader import Readers
from blend.run.context import Context, Segment, numbers, span
from blend.run.prefixes import Prefixes
from service.app.operating_point import FULL, LOSSLESS, OperatingPoint
from service.documents.chunk_capture import tailed
from service.lab.eval.followed_answer import Divergence, FollowedAnswer, divergence, entropy
from service.lab.questions.cases import Case
from service.lab.questions.variants import Variants
from service.model.capture_context import ALONE, ChunkIds, in_context
from service.model.prompt_builder import SYSTEM, PromptBuilder, PromptPassage, PromptTokens, question_turns
from store.blob import Blob, Terms
from store.codec.encode import encode
from store.key import CacheKey
from store.reader import read
from store.record import Record
from store.record_source import BlobSource

FILLERS = 1 << 28  # bytes of what chunks are captured behind, which is the same for many prompts


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """What one point made of one question. `codec`: divergence from the same policy on lossless records.

    `nats` of each token of the known answer that is scored, and by how many it is likelier than any foil where they
    part; None where neither is known. `answer` is the model's own, and `agrees` where it is full prefill's; None where
    there is nothing to compare it with.
    """

    answer: str | None
    agrees: bool | None
    divergence: Divergence
    codec: Divergence | None
    nats: float | None
    margin: float | None
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
class Yardstick:
    """How far full prefill goes from itself where its prompt changes: passages that do not matter `reordered`, one of
    them `replaced` or `left_out`. `unaided` is without any passage, with `nats` of the known answer then. `entropy`:
    how unsure full prefill is of a token, and `chance` how unsure a guess is.
    """

    reordered: tuple[Divergence, ...]
    replaced: Divergence | None
    left_out: Divergence | None
    unaided: Divergence
    nats: float | None
    entropy: float
    chance: float


@dataclass(frozen=True, slots=True)
class CaseMeasurement:
    """One question at all points, and at full prefill. `dropped`: passages that the model's window had no room for."""

    outcomes: dict[OperatingPoint, CaseOutcome]
    sizes: dict[str, Sizes]
    dropped: int
    yardstick: Yardstick | None = None


@dataclass(frozen=True, slots=True)
class CapturedPassage:
    """A passage's record, and the fingerprint that says whether it was computed in a context."""

    record: Record
    fingerprint: str

    def packed(self, codec: str) -> Blob:
        """The record as it is stored. One that was captured in context is never taken for an exact one."""
        return encode(self.record, CacheKey("eval", "chunk", self.fingerprint, codec), terms=Terms(0, precomputed=True))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A prompt that was answered, and the time to its first token. `logprobs` (tokens, V) at each place of the answer;
    `own`: what the model itself answers, if that is known.
    """

    seconds: float
    report: FuseReport
    logprobs: Tensor
    own: list[int] | None


class CaseProbe:
    """Asks one model behind one system prompt. `answer_tokens`: of the longest answer, and of what divergence looks at.

    Each prompt is computed as if nothing had been asked before. A known answer is followed, not written: behind a
    computed prompt its tokens are one pass, which gives the logits of all its places.
    """

    def __init__(self, model: LoadedModel, *, answer_tokens: int, system: str = SYSTEM) -> None:
        self.prompt_builder = PromptBuilder(model.tokenizer)
        self._tokenizer = model.tokenizer
        self._prefix = self.prompt_builder.lay(question_turns([PromptPassage("")], question="", system=system)).prefix
        self._behind = model.fingerprint.behind(self._prefix)
        self._answer_tokens = answer_tokens
        self._decoder = model.decoder
        self._window = model.decoder.window
        self._hooks = CaptureHooks(prefixes=Prefixes(FILLERS))
        self._readers = Readers()

    def close(self) -> None:
        """Stop the threads that read."""
        self._readers.shutdown()

    def measure(
        self, case: Case, points: Sequence[OperatingPoint], *, variants: Variants | None = None
    ) -> CaseMeasurement:
        """Asks at every point, in the order given; all are compared with full prefill along the same answer.

        That is the first known one, else what full prefill says, also where it finds that less likely than a guess
        would. The yardstick is measured with `variants` alone.
        """
        shown, prompt_tokens, answer = self._fitted(case)
        captures = self.captured(shown, prompt_tokens) if {*points} - {FULL} else {}
        blobs = {
            codec: {number: each.packed(codec) for number, each in captures.items()}
            for codec in dict.fromkeys(point.codec for point in points)
        }
        first = self._ask(prompt_tokens, FULL, blobs={}, answer=answer)
        nats = answer.nats(first.logprobs)
        if nats is not None and nats > math.log(first.logprobs.shape[-1]) and answer.asks:
            answer = FollowedAnswer((), asks=True)
            first = self._ask(prompt_tokens, FULL, blobs={}, answer=answer)
        if not answer.known:
            answer = replace(answer, tokens=tuple(first.own or ()))
        asked = {FULL: first} | {
            point: self._ask(prompt_tokens, point, blobs=blobs[point.codec], answer=answer)
            for point in points
            if point != FULL
        }
        outcomes: dict[OperatingPoint, CaseOutcome] = {}
        for point, found in asked.items():
            plain = asked.get(replace(point, codec=LOSSLESS))
            outcomes[point] = CaseOutcome(
                answer=None if found.own is None else self._text(found.own),
                agrees=None if found.own is None else found.own == first.own,
                divergence=_between(first, found, answer=answer),
                codec=plain and _between(plain, found, answer=answer),
                nats=answer.nats(found.logprobs),
                margin=answer.margin(found.logprobs),
                ttft_s=found.seconds,
                reused=found.report.reused,
                recomputed=found.report.recomputed,
                prompt=prompt_tokens.tokens,
            )
        records = [capture.record for capture in captures.values()]
        sizes = {codec: _sizes(records, list(each.values())) for codec, each in blobs.items()}
        dropped = sum(bool(passage.text) for passage in case.passages) - len(shown.passages)
        yardstick = variants and self._yardstick(shown, variants, first=first, answer=answer)
        return CaseMeasurement(outcomes, sizes, dropped, yardstick)

    def captured(self, case: Case, prompt_tokens: PromptTokens) -> dict[int, CapturedPassage]:
        """The passages' records, each computed in its context, by the passages' numbers."""
        texts = {part.passage: part.text for turn in case.turns for part in turn.parts}
        groups: defaultdict[tuple[int, ...], dict[int, ChunkIds]] = defaultdict(dict)
        for number in [run.passage for run in prompt_tokens.runs if run.passage is not None]:
            passage = replace(case.passages[number], text=texts[number])
            context = case.contexts[number] if case.contexts else ALONE
            found = in_context(self.prompt_builder, passage, context=context, prefix=self._prefix, window=self._window)
            groups[found.shared][number] = found
        captures: dict[int, CapturedPassage] = {}
        for shared, chunks in groups.items():
            ids, before = [each.all for each in chunks.values()], [each.before for each in chunks.values()]
            records = capture(self._decoder, shared, chunks=ids, before=before, hooks=self._hooks)
            for (number, each), record in zip(chunks.items(), records, strict=True):
                alone = shared == self._prefix and not each.before
                captures[number] = CapturedPassage(tailed(record, each), "model" if alone else "model@context")
        return captures

    @torch.inference_mode()
    def fused(
        self, prompt_tokens: PromptTokens, order: BlendOrder, *, context: Context, blobs: Mapping[int, Blob]
    ) -> FusedPrompt:
        """The computed prompt. Its time begins with the blobs in memory: unpacking them is a part of it."""
        decoder = self._decoder
        prompt = prompt_tokens.prompt({number: BlobSource(read(blob), self._behind) for number, blob in blobs.items()})
        layout = lay_out(prompt, fingerprint=self._behind, window=decoder.window, vocabulary=decoder.vocabulary)
        return fuse(decoder, layout, context=context, order=order, readers=self._readers)

    @torch.inference_mode()
    def followed(self, fused: FusedPrompt, prompt_tokens: PromptTokens, *, answer: FollowedAnswer) -> Tensor:
        """The log probabilities (tokens, V) at each place of an answer; of one without tokens, at its first."""
        logits = [fused.logits[None]]
        if len(answer.tokens) > 1:
            device, begin = self._decoder.device, prompt_tokens.tokens
            places = Segment(fused.context, span(begin, begin + len(answer.tokens) - 1, device=device), 0)
            following = self._decoder.advance([places], numbers(answer.tokens[:-1], device=device))
            assert following is not None
            logits.append(following)
        return torch.cat(logits).float().log_softmax(-1)

    @torch.inference_mode()
    def written(self, fused: FusedPrompt, prompt_tokens: PromptTokens, *, logprobs: Tensor, most: int) -> Tensor:
        """The log probabilities, and those of what the model itself writes behind their places, up to its end."""
        found = list(logprobs)
        while len(found) < most and (token := int(found[-1].argmax())) not in self._tokenizer.stop_ids:
            [logits] = self._decoder.decode([(fused.context, prompt_tokens.tokens + len(found) - 1, token)])
            found.append(logits.float().log_softmax(-1))
        return torch.stack(found)

    def _known(self, case: Case) -> FollowedAnswer:
        """The known answer as far as it is followed; nothing where there is none, and full prefill's own is."""
        ids = self._encoded_answer(case.answers[0]) if case.answers else ()
        skipped = self._encoded_answer(case.skip) if case.skip else ()
        skip = next((at for at, (a, b) in enumerate(zip(ids, skipped, strict=False)) if a != b), len(skipped))
        tokens = ids[: skip + self._answer_tokens]
        if len(tokens) <= skip:
            return FollowedAnswer((), asks=True)
        foils = tuple(self._encoded_answer(each) for each in case.foils)
        return FollowedAnswer(tokens, skip, asks=bool(case.wanted), known=True, foils=foils)

    def _yardstick(self, case: Case, variants: Variants, *, first: _Asked, answer: FollowedAnswer) -> Yardstick:
        """What full prefill says along the same answer in other prompts. One too long for the window is left out."""
        followed = replace(answer, asks=False)

        def asked(changed: Case | None) -> _Asked | None:
            prompt_tokens = changed and self.prompt_builder.lay(changed.turns)
            if prompt_tokens is None or prompt_tokens.tokens + self._most(answer) > self._window:
                return None
            return self._ask(prompt_tokens, FULL, blobs={}, answer=followed)

        def moved(found: _Asked | None) -> Divergence | None:
            return found and _between(first, found, answer=answer)

        reordered = [moved(asked(each)) for each in variants.reordered(case)]
        unaided = asked(case.arranged([]))
        assert unaided is not None, "a prompt without passages is shorter"
        return Yardstick(
            reordered=tuple([each for each in reordered if each]),
            replaced=moved(asked(variants.replaced(case))),
            left_out=moved(asked(variants.left_out(case))),
            unaided=_between(first, unaided, answer=answer),
            nats=answer.nats(unaided.logprobs),
            entropy=entropy(answer.scored(first.logprobs)),
            chance=math.log(first.logprobs.shape[-1]),
        )

    def _most(self, answer: FollowedAnswer) -> int:
        return answer.skip + self._answer_tokens

    def _fitted(self, case: Case) -> tuple[Case, PromptTokens, FollowedAnswer]:
        """The case with as many of the first passages as the window holds, its prompt, and the answer to follow."""
        answer = self._known(case)
        kept = [number for number, passage in enumerate(case.passages) if passage.text]
        while True:
            shown = case.arranged(kept)
            prompt_tokens = self.prompt_builder.lay(shown.turns)
            if prompt_tokens.tokens + self._most(answer) <= self._window:
                return shown, prompt_tokens, answer
            if not kept:
                raise PromptError(
                    f"the question alone has {prompt_tokens.tokens} tokens, the model's window is {self._window}"
                )
            kept.pop()

    def _ask(
        self, prompt_tokens: PromptTokens, point: OperatingPoint, *, blobs: Mapping[int, Blob], answer: FollowedAnswer
    ) -> _Asked:
        """Follows the answer. The model's own, if it is asked for, goes on behind what is followed where the model
        prefers all of that, and is written by another request elsewhere.
        """
        most = self._most(answer) if answer.asks else len(answer.tokens)
        context = self._decoder.context(prompt_tokens.tokens + most)
        start = time.perf_counter()
        fused = self.fused(prompt_tokens, BlendOrder(point.policy, point.ratio), context=context, blobs=blobs)
        seconds = time.perf_counter() - start
        logprobs, own = self.followed(fused, prompt_tokens, answer=answer), None
        if answer.asks and tuple(int(each) for each in logprobs.argmax(-1))[: len(answer.tokens)] == answer.tokens:
            logprobs = self.written(fused, prompt_tokens, logprobs=logprobs, most=most)
            own = [int(each) for each in logprobs.argmax(-1)]
        elif answer.asks:
            own = self._ask(prompt_tokens, point, blobs=blobs, answer=replace(answer, tokens=())).own
        return _Asked(seconds, fused.report, logprobs, own)

    def _encoded_answer(self, text: str) -> tuple[int, ...]:
        """The ids of an answer; where no template stands before it, a space does."""
        lead = "" if cast(object, self._tokenizer.source.chat_template) else " "  # pyright: ignore[reportUnknownMemberType]
        return tuple(self._tokenizer.encode_text(lead + text))

    def _text(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(token for token in tokens if token not in self._tokenizer.stop_ids).strip()


def _between(wanted: _Asked, got: _Asked, *, answer: FollowedAnswer) -> Divergence:
    return divergence(answer.scored(wanted.logprobs), answer.scored(got.logprobs))


def _sizes(records: Sequence[Record], blobs: Sequence[Blob]) -> Sizes:
    layers = [layer for record in records for layer in record.layers if layer is not None]
    values = sum(layer.keys.size + layer.values.size for layer in layers)
    return Sizes(sum(record.tokens for record in records), sum(blob.nbytes for blob in blobs), values)
