"""One drawn prompt in each way of a table's row, by the lab's own probe, and how far each is from full prefill.

What a policy recomputes is chosen before the known answer is followed, by the prompt alone.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from blend.adopt.load import LoadedModel
from blend.fuse.fuse import BlendOrder, FuseReport
from blend.run.context import Context
from service.lab.eval.case_probe import CapturedPassage, CaseProbe
from service.lab.eval.followed_answer import FollowedAnswer, divergence
from service.lab.questions.cases import Case
from service.model.prompt_builder import ASK, PromptTokens, TurnPart, TurnParts
from store.blob import Blob
from store.codec.spec import LOSSLESS
from store.record import Record
from tests.bench.real.results import Judged
from tests.bench.real.rows import IN_CONTEXT, ISOLATED, Row

FULL = BlendOrder("full", 1.0)
FIRST, REPLY = "What are these texts about? Name the most important things.", 32  # what is asked first; tokens

Packing = Callable[[Record], tuple[Record, str, float]]  # what is left, a codec that keeps it, and bits; 0: the blob's


class Packed(NamedTuple):
    """Bits for each number, and the divergence from lossless records in nats."""

    bits: float
    kl: float


@dataclass(frozen=True, slots=True)
class Said:
    """Log probabilities (tokens, V) at each place of the answer, and how the prompt was computed."""

    logprobs: Tensor
    first_s: float
    work_s: float
    report: FuseReport


@dataclass(frozen=True, slots=True)
class AskedPrompt:
    """A prompt as token ids, its answer, and what full prefill says."""

    case: Case
    laid: PromptTokens
    answer: FollowedAnswer
    full: Said

    def judged(self, said: Said) -> Judged:
        """How far it is from full prefill, and what it says of the answer."""
        answer = self.answer
        found = divergence(answer.scored(self.full.logprobs), answer.scored(said.logprobs))
        nats, margin = answer.nats(said.logprobs), answer.margin(said.logprobs)
        assert nats is not None, "the answer is known"
        return Judged(
            kl=found.kl,
            top1=found.top1,
            nats=nats,
            right=None if margin is None else margin >= 0,
            first=said.first_s / self.full.first_s,
            work=said.work_s / self.full.work_s,
            reused=said.report.reused,
            recomputed=said.report.recomputed,
        )


class PromptProbe:
    """Asks one model. Each prompt is computed as if nothing had been asked before."""

    def __init__(self, model: LoadedModel) -> None:
        self._cases = CaseProbe(model, answer_tokens=REPLY)
        self._builder = self._cases.prompt_builder
        self._decoder = model.decoder
        self._tokenizer = model.tokenizer

    def close(self) -> None:
        """Stop the threads that read."""
        self._cases.close()

    def count(self, text: str) -> int:
        """How many tokens a text has."""
        return len(self._tokenizer.encode_text(text))

    def asked(self, case: Case) -> AskedPrompt:
        """The prompt by full prefill, which all else is compared with."""
        laid, answer = self._builder.lay(case.turns), self._answer(case)
        return AskedPrompt(case, laid, answer, self._said(laid, FULL, answer=answer))

    def other(self, asked: AskedPrompt, case: Case) -> Judged:
        """Full prefill of another prompt, over the same answer."""
        return asked.judged(self._said(self._builder.lay(case.turns), FULL, answer=asked.answer))

    def rows(self, asked: AskedPrompt, rows: Sequence[Row]) -> dict[Row, Judged]:
        """Each row. A chunk is captured once in each way and packed once by each codec."""
        found: dict[Row, Judged] = {}
        for kind in dict.fromkeys(row.capture for row in rows):
            captures = self._captured(asked, kind)
            for codec in dict.fromkeys(row.codec for row in rows if row.capture == kind):
                blobs = _packed(captures, codec)
                for row in rows:
                    if (row.capture, row.codec) == (kind, codec):
                        said = self._said(asked.laid, row.order, answer=asked.answer, blobs=blobs)
                        found[row] = asked.judged(said)
        return found

    def lossy(self, asked: AskedPrompt, packed: Mapping[str, Packing]) -> dict[str, Packed]:
        """Plain reuse in context of what each way of packing leaves of the records: how far from what lossless says."""
        captures, reuse = self._captured(asked, IN_CONTEXT), BlendOrder("reuse", 0.0)
        layers = [layer for each in captures.values() for layer in each.record.layers if layer]
        numbers = sum(layer.keys.size + layer.values.size for layer in layers)

        def said(packing: Packing) -> tuple[float, Said]:
            every = {number: packing(each.record) for number, each in captures.items()}
            blobs = {
                number: replace(captures[number], record=left).packed(codec)
                for number, (left, codec, _) in every.items()
            }
            found = self._said(asked.laid, reuse, answer=asked.answer, blobs=blobs)
            return sum(bits or 8 * blobs[number].nbytes for number, (*_, bits) in every.items()) / numbers, found

        plain = replace(asked, full=said(lambda record: (record, LOSSLESS, 0.0))[1])
        every = {name: said(packing) for name, packing in packed.items()}
        return {name: Packed(bits, plain.judged(found).kl) for name, (bits, found) in every.items()}

    def turns(self, case: Case, orders: Sequence[BlendOrder], *, codec: str) -> dict[str, Judged]:
        """A second question about the same passages, behind a first one and its answer: by each order anew, and by each
        where the first turn's context, by the first of them, goes on.
        """
        first = replace(case, question=FIRST)
        asked = self.asked(first)
        reply = self._tokenizer.decode(self._reply(asked.laid))
        said = [
            *first.turns,
            TurnParts("assistant", (TurnPart(reply),)),
            TurnParts("user", (TurnPart(ASK + case.question),)),
        ]
        laid, answer = self._builder.lay(said), self._answer(case)
        second = AskedPrompt(case, laid, answer, self._said(laid, FULL, answer=answer))
        blobs = _packed(self._captured(asked, IN_CONTEXT), codec)
        found = dict[str, Judged]()
        for order in orders:
            found[f"{order.policy} {order.ratio:g} anew"] = second.judged(
                self._said(laid, order, answer=answer, blobs=blobs)
            )
            context = self._decoder.context(laid.tokens + len(answer.tokens))
            self._cases.fused(asked.laid, orders[0], context=context, blobs=blobs)
            assert _common([_ids(laid), _ids(asked.laid)]) == asked.laid.tokens
            context.placed = asked.laid.tokens
            going_on = self._said(laid, order, answer=answer, blobs=blobs, begun=context)
            found[f"{order.policy} {order.ratio:g} going on"] = second.judged(going_on)
        return found

    def _reply(self, laid: PromptTokens) -> list[int]:
        """What full prefill answers, the first tokens."""
        fused = self._cases.fused(laid, FULL, context=self._decoder.context(laid.tokens + REPLY), blobs={})
        first = self._cases.followed(fused, laid, answer=FollowedAnswer(()))
        written = self._cases.written(fused, laid, logprobs=first, most=REPLY)
        return [each for each in written.argmax(-1).tolist() if each not in self._tokenizer.stop_ids]

    def _answer(self, case: Case) -> FollowedAnswer:
        """The known answer; of one with foils, up to where it parts from them."""
        given, ids = (self._builder.ids(text) for text in (case.skip, case.answers[0]))
        if not case.foils:
            return FollowedAnswer(ids, _common([given, ids]), known=True)
        foils = tuple(self._builder.ids(each) for each in case.foils)
        skip = _common([ids, *foils])
        return FollowedAnswer(ids[: skip + 1], skip, known=True, foils=foils)

    def _captured(self, asked: AskedPrompt, kind: str) -> dict[int, CapturedPassage]:
        """The passages, captured behind the prefix alone or in context."""
        return self._cases.captured(replace(asked.case, contexts=()) if kind == ISOLATED else asked.case, asked.laid)

    def _said(
        self,
        laid: PromptTokens,
        order: BlendOrder,
        *,
        answer: FollowedAnswer,
        blobs: Mapping[int, Blob] | None = None,
        begun: Context | None = None,
    ) -> Said:
        """The answer behind the prompt. `begun`: the context of a prompt before it."""
        context = begun or self._decoder.context(laid.tokens + len(answer.tokens))
        start, worked = time.perf_counter(), time.process_time()
        fused = self._cases.fused(laid, order, context=context, blobs=blobs or {})
        seconds, work = time.perf_counter() - start, time.process_time() - worked
        assert not blobs or not fused.report.misses, fused.report.misses
        return Said(self._cases.followed(fused, laid, answer=answer), seconds, work, fused.report)


def _packed(captures: Mapping[int, CapturedPassage], codec: str) -> dict[int, Blob]:
    return {number: each.packed(codec) for number, each in captures.items()}


def _ids(laid: PromptTokens) -> tuple[int, ...]:
    return laid.prompt({}).ids


def _common(sequences: Sequence[Sequence[int]]) -> int:
    """How many ids all begin with."""
    count = 0
    for each in zip(*sequences, strict=False):
        if len(set(each)) > 1:
            break
        count += 1
    return count
