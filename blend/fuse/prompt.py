"""Lays a prompt out: refuses one too long or with unknown ids; says which records do not fit, and which are exact."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, takewhile

import numpy as np

from blend.errors import PromptError
from store.errors import Miss, MissReason
from store.fingerprint import Fingerprint, digest_ids, packed_ids
from store.record_source import RecordSource


@dataclass(frozen=True, slots=True)
class TextSegment:
    """Tokens that are always computed: titles, separators, documents without a record."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChunkSegment:
    """A document's tokens, with their record if there is one."""

    ids: tuple[int, ...]
    source: RecordSource | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """Prefix, then chunks and text between them, then the suffix with the question.

    `question`: how many of the last tokens are the last user turn's and what follows it, if the suffix holds more.
    """

    prefix: tuple[int, ...]
    segments: tuple[TextSegment | ChunkSegment, ...]
    suffix: tuple[int, ...]
    question: int = 0

    @property
    def ids(self) -> tuple[int, ...]:
        """All tokens in order."""
        return (*self.prefix, *chain.from_iterable([segment.ids for segment in self.segments]), *self.suffix)

    @property
    def before_chunks(self) -> int | None:
        """How many tokens stand before the first chunk; None where there is none."""
        sizes = [len(each.ids) for each in takewhile(lambda each: isinstance(each, TextSegment), self.segments)]
        return None if len(sizes) == len(self.segments) else len(self.prefix) + sum(sizes)


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """Where a chunk with a usable record stands, and what the record covers of what follows it.

    `exact`: it stands right after the prefix it was captured with. `recorded`: the tokens of the record, those of the
    chunk and of the text that followed it, even where something else follows here.
    """

    chunk: int  # its number among the prompt's chunks
    start: int
    stop: int
    source: RecordSource
    exact: bool
    recorded: int


@dataclass(frozen=True, slots=True)
class PromptLayout:
    """A prompt's tokens with the records that may replace some. `misses`: why a chunk's record may not.

    `question`: how many of the last tokens are the question's, all of them behind the last chunk and computed anew.
    """

    ids: tuple[int, ...]
    spans: tuple[ChunkSpan, ...]
    misses: tuple[tuple[int, Miss], ...]
    question: int = 1

    def only(self, spans: Sequence[ChunkSpan]) -> "PromptLayout":
        """The layout with these records alone."""
        return replace(self, spans=tuple(spans))

    def inexact(self) -> "PromptLayout":
        """The layout with no record taken for what full prefill would compute."""
        return replace(self, spans=tuple(replace(span, exact=False) for span in self.spans))

    def without(self, chunk: int, miss: Miss) -> "PromptLayout":
        """The layout with one chunk as text, for this reason."""
        spans = tuple(span for span in self.spans if span.chunk != chunk)
        return replace(self, spans=spans, misses=(*self.misses, (chunk, miss)))

    def as_text(self, miss: Miss) -> "PromptLayout":
        """The layout with all chunks as text, for this reason."""
        misses = tuple((span.chunk, miss) for span in self.spans)
        return replace(self, spans=(), misses=(*self.misses, *misses))

    @property
    def blended(self) -> tuple[ChunkSpan, ...]:
        """The spans whose keys are not exact in this prompt."""
        return tuple(span for span in self.spans if not span.exact)


def check_ids(ids: Sequence[int], *, vocabulary: int) -> None:
    """Raise PromptError for an id that the model has no row for; on an accelerator it would end the process."""
    try:
        numbers = np.frombuffer(packed_ids(ids), "<i8")
        bounds = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    except struct.error:  # numbers beyond 64 bits
        bounds = min(ids), max(ids)
    strange = next((each for each in bounds if not 0 <= each < vocabulary), None)
    if strange is not None:
        raise PromptError(
            f"token id {strange} is not in the model's vocabulary of {vocabulary}: another tokenizer made it"
        )


def lay_out(prompt: Prompt, *, fingerprint: Fingerprint, window: int, vocabulary: int) -> PromptLayout:
    """Check the prompt and place its segments. `fingerprint` is the model's; its prefix does not matter."""
    ids = prompt.ids
    check_ids(ids, vocabulary=vocabulary)
    if not prompt.suffix:
        raise PromptError("the question is empty: a prompt needs at least one token behind its documents")
    if len(ids) > window:
        rest = len(ids) - sum(len(each.ids) for each in prompt.segments if isinstance(each, ChunkSegment))
        remedy = "shorten the question or the turns before it" if rest >= window else "leave out chunks"
        raise PromptError(f"the prompt has {len(ids)} tokens, the model's window {window}: {remedy}")
    spans: list[ChunkSpan] = []
    misses: list[tuple[int, Miss]] = []
    place, number = len(prompt.prefix), 0
    for index, segment in enumerate(prompt.segments):
        stop = place + len(segment.ids)
        if isinstance(segment, ChunkSegment) and segment.ids:
            reason = _why_not(segment, fingerprint)
            if reason is None and segment.source is not None:
                source = segment.source
                exact = index == 0 and source.is_exact and source.fingerprint.prefix == digest_ids(prompt.prefix)
                end, recorded = stop + _tail(prompt, index, source=source), source.tokens + source.tail.tokens
                spans.append(ChunkSpan(number, place, end, source, exact, recorded))
            elif reason is not None:
                misses.append((number, Miss(reason)))
        number += isinstance(segment, ChunkSegment)
        place = stop
    begin = max([len(ids) - (prompt.question or len(prompt.suffix)), place, *(span.stop for span in spans)])
    return PromptLayout(ids, tuple(spans), tuple(misses), len(ids) - begin)


def _tail(prompt: Prompt, index: int, *, source: RecordSource) -> int:
    """How many tokens after the chunk at segment `index` its record covers: all of its tail, or none."""
    following = prompt.segments[index + 1] if index + 1 < len(prompt.segments) else TextSegment(prompt.suffix[:-1])
    if not source.tail.tokens or isinstance(following, ChunkSegment):
        return 0
    behind = following.ids[: source.tail.tokens]
    return len(behind) if source.tail.digest == digest_ids(behind) else 0


def _why_not(chunk: ChunkSegment, fingerprint: Fingerprint) -> MissReason | None:
    if chunk.source is None:
        return MissReason.ABSENT
    differing = _differing(chunk.source.fingerprint, fingerprint)
    if differing is not None:
        return MissReason(differing)
    same = chunk.source.tokens == len(chunk.ids) and chunk.source.ids_digest in ("", digest_ids(chunk.ids))
    return None if same else MissReason.TOKENS


@lru_cache
def _differing(theirs: Fingerprint, ours: Fingerprint) -> str | None:
    """The first field that differs, the prefix aside. A prompt's chunks mostly have one fingerprint."""
    return replace(theirs, prefix=ours.prefix).differs(ours)
