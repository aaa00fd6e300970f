"""The time to the first token of prompts of stored chunks, through the engine that serves. Knows no options."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

from blend.engine.engine import EngineRequest
from blend.fuse.fuse import BlendOrder
from service.answers.pipeline import FETCHES
from service.app.operating_point import FULL, OperatingPoint
from service.errors import Unavailable
from service.lab.bench.scratch_store import ScratchStore
from service.lab.time_ratio import TimeRatio, time_ratio
from service.model.capture_context import ChunkIds
from service.model.prompt_builder import PromptPassage, PromptTokens, question_turns
from service.model.served_model import ServedModel
from service.model.timed import ONE, Timed, timed
from store.record_source import BlobSource

QUESTION = "What do the documents say?"


@dataclass(frozen=True, slots=True)
class TimingRow:
    """One policy on one prompt: medians of times, and `against_full`, how they compare with full prefill's, by rounds.

    `reused` and `recomputed` as the engine reports them; the rest of the prompt is fresh in any case. `nbytes` were
    read of blobs, from `tiers`; where that alone takes as long as full prefill, the store reads `needed_bytes_per_s`.
    """

    chunks: int
    prompt_tokens: int
    policy: str
    ratio: float
    first_token_s: float
    against_full: TimeRatio
    reused: int
    recomputed: int
    nbytes: int
    needed_bytes_per_s: float
    tiers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Asked:
    timed: Timed
    nbytes: int
    tiers: tuple[str, ...]


class FirstTokenTimer:
    """Sends prompts of chunks, one at a time. `items`: those that must be stored before."""

    def __init__(self, model: ServedModel, part: ScratchStore, *, chunks: Sequence[PromptPassage]) -> None:
        self.items = part.items(model, ids_of(model, chunks))
        self._model = model
        self._part = part
        self._fingerprint = model.fingerprint.behind(model.prefix({}))
        self._chunks = chunks
        self._opening = ThreadPoolExecutor(FETCHES, "kvweave-bench")

    def close(self) -> None:
        self._opening.shutdown()

    def rows(
        self,
        chunks: int,
        points: Sequence[OperatingPoint],
        *,
        repeats: int,
        on_progress: Callable[[OperatingPoint], None],
    ) -> list[TimingRow]:
        """Sends one prompt of so many chunks, every way in turn, round by round; one round before them warms up.

        Full prefill is among the ways. `on_progress` is called before each prompt, with the way that it goes.
        """
        prompt_tokens = lay(self._model, self._chunks[:chunks])
        found: dict[OperatingPoint, list[_Asked]] = {point: [] for point in points}
        for number in range(repeats + 1):
            turn = number % len(points)  # none is always the first
            for point in (*points[turn:], *points[:turn]):
                on_progress(point)
                asked = self._ask(prompt_tokens, point, chunks=chunks)
                if number:
                    found[point].append(asked)
            self._part.settle()
        return [
            _row(point, found[point], full=found[FULL], prompt_tokens=prompt_tokens, chunks=chunks) for point in points
        ]

    def _ask(self, prompt_tokens: PromptTokens, point: OperatingPoint, *, chunks: int) -> _Asked:
        """Asks one prompt. The clock starts before the blobs are opened, as it does for a client."""
        start = time.perf_counter()
        readers = list(self._opening.map(self._part.open, () if point == FULL else self.items[:chunks]))
        sources = [BlobSource(reader, self._fingerprint) for reader in readers]
        request = EngineRequest(
            prompt_tokens.prompt(dict(enumerate(sources))), ONE, BlendOrder(point.policy, point.ratio)
        )
        found = timed(self._model.engine, request, since=start)
        missed = next((reason for _, reason in found.report.misses), None) if sources else None
        if missed:
            raise Unavailable(f"a chunk that was stored could not be used ({missed}): look at it with kvweave verify")
        tiers = tuple(sorted({reader.source for reader in readers}))
        return _Asked(found, sum(each.read for each in sources), tiers)


def ids_of(model: ServedModel, chunks: Sequence[PromptPassage]) -> list[ChunkIds]:
    prefix = model.prefix({})
    found = [model.titled(each.text, each.title, prefix=prefix) for each in chunks]
    assert all(found), "chunks that cannot be said were left out"
    return [each for each in found if each]


def lay(model: ServedModel, chunks: Sequence[PromptPassage]) -> PromptTokens:
    return model.prompt_builder.lay(question_turns(chunks, question=QUESTION))


def _row(
    point: OperatingPoint, found: Sequence[_Asked], *, full: Sequence[_Asked], prompt_tokens: PromptTokens, chunks: int
) -> TimingRow:
    last = found[-1]
    seconds, full_seconds = [each.timed.seconds for each in found], [each.timed.seconds for each in full]
    return TimingRow(
        chunks=chunks,
        prompt_tokens=prompt_tokens.tokens,
        policy=point.policy,
        ratio=point.ratio,
        first_token_s=median(seconds),
        against_full=time_ratio(full_seconds, seconds),
        reused=last.timed.report.reused,
        recomputed=last.timed.report.recomputed,
        nbytes=last.nbytes,
        needed_bytes_per_s=last.nbytes / median(full_seconds),
        tiers=last.tiers,
    )
