"""One drawn prompt at a time through the product's own capture, codec and fuse, and how far each row is from prefill.

The known answer is followed, not written: behind a computed prompt its tokens are one pass, which gives the logits of
all its places. What a policy recomputes is chosen before, by the prompt alone.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from blend.adopt.load import LoadedModel
from blend.capture.capture import CaptureHooks, capture
from blend.fuse.fuse import BlendOrder, FusedPrompt, fuse
from blend.fuse.prompt import lay_out
from blend.fuse.record_loader import Readers
from blend.run.context import Context, Segment, numbers, span
from blend.run.prefixes import Prefixes
from service.documents.chunk_capture import tailed
from service.lab.questions.cases import Case
from service.model.capture_context import ALONE, ChunkIds, in_context
from service.model.prompt_builder import (
    ASK,
    PromptBuilder,
    PromptPassage,
    PromptTokens,
    TurnPart,
    TurnParts,
    question_turns,
)
from store.blob import Blob, Terms
from store.codec.encode import encode
from store.codec.spec import LOSSLESS
from store.key import CacheKey
from store.reader import read
from store.record import Record
from store.record_source import BlobSource
from tests.bench.real.results import Judged
from tests.bench.real.rows import IN_CONTEXT, ISOLATED, Row

FILLERS = 1 << 28  # bytes of what chunks are captured behind, which is the same for many prompts
FULL = BlendOrder("full", 1.0)
FIRST, REPLY = "What are these texts about? Name the most important things.", 32  # what is asked first; tokens

Blobs = dict[int, Blob]  # by the passages' numbers


@dataclass(frozen=True, slots=True)
class Answer:
    """The known answer's tokens. The first `skip` are not judged; of `candidates` the right one is the first."""

    ids: tuple[int, ...]
    skip: int
    candidates: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Said:
    """Log probabilities (tokens, V) at each place of the answer, and how the prompt was computed."""

    logprobs: Tensor
    first_s: float
    work_s: float
    reused: int
    recomputed: int


Packing = Callable[[Record], tuple[Record, str, float]]  # what is left, a codec that keeps it, and bits; 0: the blob's


class Packed(NamedTuple):
    """Bits for each number, and the divergence from lossless records in nats."""

    bits: float
    kl: float


@dataclass(frozen=True, slots=True)
class AskedPrompt:
    """A prompt as token ids, its answer, and what full prefill says."""

    case: Case
    laid: PromptTokens
    answer: Answer
    full: Said

    def judged(self, said: Said) -> Judged:
        """How far it is from full prefill, and what it says of the answer."""
        answer = self.answer
        wanted, got = self.full.logprobs[answer.skip :], said.logprobs[answer.skip :]
        told = torch.tensor(answer.ids[answer.skip :], device=got.device)
        right = None
        if answer.candidates:
            first = got[0, list(answer.candidates)]
            right = int(first.argmax()) == 0
        return Judged(
            kl=float((wanted.exp() * (wanted - got)).nan_to_num().sum(-1).mean()),
            top1=float((wanted.argmax(-1) == got.argmax(-1)).float().mean()),
            nats=float(-got.gather(1, told[:, None]).mean()),
            right=right,
            first=said.first_s / self.full.first_s,
            work=said.work_s / self.full.work_s,
            reused=said.reused,
            recomputed=said.recomputed,
        )


class PromptProbe:
    """Asks one model. Each prompt is computed as if nothing had been asked before."""

    def __init__(self, model: LoadedModel) -> None:
        self._decoder = model.decoder
        self._tokenizer = model.tokenizer
        self._fingerprint = model.fingerprint
        self._builder = PromptBuilder(model.tokenizer)
        self._prefix = self._builder.lay(question_turns([PromptPassage("")], question="")).prefix
        self._fillers = Prefixes(FILLERS)
        self._readers = Readers()

    def close(self) -> None:
        """Stop the threads that read."""
        self._readers.shutdown()

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
            records = self._captured(asked, kind)
            for codec in dict.fromkeys(row.codec for row in rows if row.capture == kind):
                blobs = {number: self._packed(each, kind, codec=codec) for number, each in records.items()}
                for row in rows:
                    if (row.capture, row.codec) == (kind, codec):
                        said = self._said(asked.laid, row.order, answer=asked.answer, blobs=blobs)
                        found[row] = asked.judged(said)
        return found

    def lossy(self, asked: AskedPrompt, packed: Mapping[str, Packing]) -> dict[str, Packed]:
        """Plain reuse in context of what each way of packing leaves of the records: how far from what lossless says."""
        records, reuse = self._captured(asked, IN_CONTEXT), BlendOrder("reuse", 0.0)
        numbers = sum(each.keys.size + each.values.size for one in records.values() for each in one.layers if each)

        def said(packing: Packing) -> tuple[float, Said]:
            every = {number: packing(record) for number, record in records.items()}
            blobs = {number: self._packed(left, IN_CONTEXT, codec=codec) for number, (left, codec, _) in every.items()}
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
        blobs = {
            number: self._packed(each, IN_CONTEXT, codec=codec)
            for number, each in self._captured(asked, IN_CONTEXT).items()
        }
        found = dict[str, Judged]()
        for order in orders:
            found[f"{order.policy} {order.ratio:g} anew"] = second.judged(
                self._said(laid, order, answer=answer, blobs=blobs)
            )
            context = self._decoder.context(laid.tokens + len(answer.ids))
            self._fused(asked.laid, orders[0], context=context, blobs=blobs)
            assert _common([_ids(laid), _ids(asked.laid)]) == asked.laid.tokens
            context.placed = asked.laid.tokens
            going_on = self._said(laid, order, answer=answer, blobs=blobs, begun=context)
            found[f"{order.policy} {order.ratio:g} going on"] = second.judged(going_on)
        return found

    @torch.inference_mode()
    def _reply(self, laid: PromptTokens) -> list[int]:
        """What full prefill answers, the first tokens."""
        context = self._decoder.context(laid.tokens + REPLY)
        logits = self._fused(laid, FULL, context=context).logits
        ids = [int(logits.argmax())]
        while len(ids) < REPLY and ids[-1] not in self._tokenizer.stop_ids:
            [logits] = self._decoder.decode([(context, laid.tokens + len(ids) - 1, ids[-1])])
            ids.append(int(logits.argmax()))
        return [each for each in ids if each not in self._tokenizer.stop_ids]

    def _answer(self, case: Case) -> Answer:
        given, ids = (self._builder.ids(text) for text in (case.skip, case.answers[0]))
        if not case.foils:
            return Answer(ids, _common([given, ids]), ())
        possible = [ids, *(self._builder.ids(each) for each in case.foils)]
        skip = _common(possible)
        return Answer(ids[: skip + 1], skip, tuple(each[skip] for each in possible))

    def _captured(self, asked: AskedPrompt, kind: str) -> dict[int, Record]:
        """The records of the passages, behind the prefix alone or in context, by the passages' numbers."""
        chunks = {
            run.passage: self._chunk(asked.case, run.passage, kind)
            for run in asked.laid.runs
            if run.passage is not None
        }
        some = [*chunks.values()]
        found = capture(
            self._decoder,
            some[0].shared,
            chunks=[each.all for each in some],
            before=[each.before for each in some],
            hooks=CaptureHooks(prefixes=self._fillers),
        )
        return {number: tailed(record, chunk) for (number, chunk), record in zip(chunks.items(), found, strict=True)}

    def _chunk(self, case: Case, number: int, kind: str) -> ChunkIds:
        passage, context = case.passages[number], ALONE if kind == ISOLATED else case.contexts[number]
        return in_context(self._builder, passage, context=context, prefix=self._prefix, window=self._decoder.window)

    @staticmethod
    def _packed(record: Record, kind: str, *, codec: str) -> Blob:
        """A record that was captured in context says so in its key: it is never taken for an exact one."""
        fingerprint = "model" if kind == ISOLATED else f"model@{kind}"
        return encode(record, CacheKey("bench", "chunk", fingerprint, codec), terms=Terms(0, precomputed=True))

    @torch.inference_mode()
    def _fused(
        self, laid: PromptTokens, order: BlendOrder, *, context: Context, blobs: Mapping[int, Blob] | None = None
    ) -> FusedPrompt:
        decoder, behind = self._decoder, self._fingerprint.behind(self._prefix)
        prompt = laid.prompt({number: BlobSource(read(blob), behind) for number, blob in (blobs or {}).items()})
        layout = lay_out(prompt, fingerprint=behind, window=decoder.window, vocabulary=decoder.vocabulary)
        assert not blobs or not layout.misses, layout.misses
        return fuse(decoder, layout, context=context, order=order, readers=self._readers)

    @torch.inference_mode()
    def _said(
        self,
        laid: PromptTokens,
        order: BlendOrder,
        *,
        answer: Answer,
        blobs: Mapping[int, Blob] | None = None,
        begun: Context | None = None,
    ) -> Said:
        """The time to the first token begins with the blobs in memory: unpacking them is a part of it.

        `begun`: the context of a prompt before it.
        """
        decoder, context = self._decoder, begun or self._decoder.context(laid.tokens + len(answer.ids))
        start, worked = time.perf_counter(), time.process_time()
        fused = self._fused(laid, order, context=context, blobs=blobs)
        seconds, work = time.perf_counter() - start, time.process_time() - worked
        logits = [fused.logits[None]]
        if len(answer.ids) > 1:
            slots = span(laid.tokens, laid.tokens + len(answer.ids) - 1, device=decoder.device)
            following = decoder.advance([Segment(context, slots, 0)], numbers(answer.ids[:-1], device=decoder.device))
            assert following is not None
            logits.append(following)
        logprobs = torch.cat(logits).float().log_softmax(-1)
        return Said(logprobs, seconds, work, fused.report.reused, fused.report.recomputed)


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
