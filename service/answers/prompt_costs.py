"""Estimates what a prompt costs each way and how long its blobs are waited for; learns from what each prompt took."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from threading import Lock
from time import perf_counter

from blend.fuse.fuse import FuseReport
from service.answers.blend_decision import EXACT, GAIN, NEAR, Expected
from service.model.prompt_builder import PromptTokens
from service.model.speeds import ModelSpeeds, PromptSizes
from store.errors import Miss, MissReason
from store.record_source import BlobSource

NEWS = 1 / 3  # the weight of the last prompt in a correction
FADED = 0.98  # a slowness decays by this each time it kept blobs from being read, so that they are tried again
IN_A_ROW, TRIED_AGAIN = 3, 4  # after three prompts whose records came too late, one in three or four is tried
FURTHEST_OPEN = 2.0  # multiples of its patience that a late prompt counts at most: one hiccup is no slow store
FURTHEST = 4.0  # how far, as a ratio, one prompt may pull a correction

LATE = Miss(MissReason.SOONER)

Opening = Future[BlobSource | Miss]


@dataclass(frozen=True, slots=True)
class PromptCost:
    """The expected cost of a prompt, corrected, and `plain`, without corrections, which are kept by `size` and `tier`.

    `unused`: passages whose records come too late, or are too short, to save time. `hidden`: the ratio by which
    blending computes no longer than it reads, where that is more than the operating point's.
    """

    expected: Expected
    plain: Expected
    unused: frozenset[int]
    size: int
    tier: str
    hidden: float = 0.0


@dataclass(frozen=True, slots=True)
class _StoredChunk:
    """One record of a prompt: its size, how much later than from memory it arrives, and in how many parts."""

    passage: int
    tokens: int
    late_s: float
    parts: int
    tier: str


@dataclass(frozen=True, slots=True)
class BegunBlobs:
    """Blobs of a prompt's passages that are being opened, and how many seconds to wait for them; None: no limit."""

    opening: Sequence[Opening]
    patience_s: float | None = None

    async def opened(self) -> dict[int, BlobSource | Miss]:
        """The blobs opened in time. Later ones go on being opened, and may be nearer the next time."""
        if self.opening:
            await asyncio.wait([asyncio.wrap_future(_all(self.opening))], timeout=self.patience_s)
        return {at: each.result() if each.done() else LATE for at, each in enumerate(self.opening)}


class PromptCosts:
    """The costs of one service's prompts. Safe for threads."""

    def __init__(self, speeds: ModelSpeeds) -> None:
        self._speeds = speeds
        self._lock = Lock()
        self._byte_s = defaultdict[str, float](lambda: speeds.byte_s)  # of each tier; memory's for an unknown one
        self._late = 0  # prompts in a row whose records would have paid from memory, but came too late
        self._open_s = 0.0  # recent seconds until the last blob of a prompt was opened
        self._drifts: dict[tuple[str, int, str], float] = {}

    def begun(
        self, prompt: PromptTokens, begin: Callable[[], Sequence[Opening]], *, turn_s: float = 0.0, tried: bool = False
    ) -> "BegunBlobs":
        """Begins to open the blobs of a prompt's passages, to be waited for while it can pay: until it would be the
        prompt's turn, in `turn_s`, it costs nothing. Where not even the quickest blobs pay, or none came in time
        lately, none is opened, unless the slower way is `tried`.
        """
        patience_s, since = self._patience_s(prompt, turn_s, tried=tried), perf_counter()
        opening = begin() if patience_s > 0 else ()
        for last in opening[-1:]:
            last.add_done_callback(self._learn_opening(since, most_s=FURTHEST_OPEN * patience_s))
        return BegunBlobs(opening, patience_s)

    def cost(self, prompt: PromptTokens, opened: Mapping[int, BlobSource | Miss], *, kept: int = 0) -> PromptCost:
        """The cost of a prompt with these records, whose first `kept` tokens are not computed again."""
        speeds, tokens = self._speeds, prompt.tokens
        sizes_of = partial(_sizes, tokens, kept=kept)
        every = [self._chunk(run.passage, opened.get(run.passage)) for run in prompt.runs if run.passage is not None]
        chunks = [each for each in every if each]
        choices = [
            [each for each in chunks if speeds.pays(each.tokens, prompt=tokens, late_s=0.0)],
            [each for each in chunks if speeds.pays(each.tokens, prompt=tokens, late_s=each.late_s)],
        ]
        used = min(choices, key=lambda chosen: self._blend_s(sizes_of(chosen), chosen))
        exact = [each for each in every[:1] if each]  # prompts begin with a passage
        slowest = max(chunks, key=lambda each: each.late_s, default=None)
        size, tier = tokens.bit_length(), slowest.tier if slowest and slowest.late_s else ""
        with self._lock:
            reading_s = sum(each.late_s for each in used) / max(1.0, self._drift("full", size))
        hidden = speeds.hidden_ratio(sizes_of(used), reading_s=reading_s)
        seconds = {
            "full": speeds.full_s(sizes_of(())),
            "prefix": _beside_reading(speeds.prefix_s(sizes_of(exact)), exact),
            "blend": self._blend_s(sizes_of(used), used, ratio=hidden),
        }
        with self._lock:
            expected = {way: each * self._drift(way, size, tier=tier) for way, each in seconds.items()}
            worth_s = GAIN * expected["full"]
            if not chunks and LATE in opened.values():
                self._late += 1
            elif chunks and self._reused_s(sizes_of(chunks), sizes_of(exact), size=size) < worth_s:
                self._late = 0 if min(expected["blend"], expected["prefix"]) < worth_s else self._late + 1
        unused = {each.passage for each in chunks} - {each.passage for each in used}
        rounded = (round(each, 6) for each in expected.values())
        return PromptCost(Expected(*rounded), Expected(*seconds.values()), frozenset(unused), size, tier, hidden)

    def learn(
        self, cost: PromptCost, report: FuseReport, *, took_s: float, sources: Sequence[BlobSource], alone: bool = True
    ) -> None:
        """Learns from a prompt that was computed in `took_s`, other requests' time excluded.

        Beside others, not `alone`, computing takes longer whichever way it is done: only how records came is news then.
        """
        policy = report.order.policy
        taken = policy if policy in EXACT else "blend"
        expected_s = cost.plain.by_way[taken]
        found = took_s / expected_s if expected_s else 1.0
        busy_s, wall_s = sum(each.read_s for each in sources), report.seconds.get("read", 0.0)
        at_once = max(1.0, busy_s / wall_s) if wall_s else 1.0  # threads that read side by side
        with self._lock:
            if alone:
                drift = self._drift(taken, cost.size, tier=cost.tier)
                found = min(FURTHEST * drift, max(drift / FURTHEST, found))
                self._drifts[_kept(taken, cost.size, tier=cost.tier)] = drift + (found - drift) * NEWS
            for tier in {each.tier for each in sources}:
                read = [each for each in sources if each.tier == tier and each.read_s]
                byte_s = sum(each.read_s for each in read) / at_once / max(1, sum(each.read for each in read))
                before = self._byte_s[tier]
                self._byte_s[tier] = before + (byte_s - before) * NEWS if read else before * FADED

    def _drift(self, way: str, size: int, *, tier: str = "") -> float:
        """The ratio of actual to expected time; before blending has one of its own, full prefill's."""
        reading = self._drifts.get(_kept("full", size, tier=""), 1.0)
        return self._drifts.get(_kept(way, size, tier=tier), reading)

    def _reused_s(self, sizes: PromptSizes, exact: PromptSizes, *, size: int) -> float:
        """The time of the faster of blending and computing after an exact prefix, with records from memory."""
        blend_s = self._speeds.blend_s(sizes) * self._drift("blend", size)
        return min(blend_s, self._speeds.prefix_s(exact) * self._drift("prefix", size))

    def _chunk(self, passage: int, opened: BlobSource | Miss | None) -> _StoredChunk | None:
        if not isinstance(opened, BlobSource):
            return None
        with self._lock:
            byte_s = self._byte_s[opened.tier]
        late_s = max(0.0, byte_s - self._speeds.byte_s) * opened.nbytes
        parts = opened.parts if late_s else 1
        return _StoredChunk(passage, opened.tokens + opened.tail.tokens, late_s, parts, opened.tier)

    def _blend_s(self, sizes: PromptSizes, chunks: Sequence[_StoredChunk], *, ratio: float = 0.0) -> float:
        return _beside_reading(self._speeds.blend_s(sizes, ratio=ratio), chunks)

    def _patience_s(self, prompt: PromptTokens, turn_s: float, *, tried: bool) -> float:
        """How long opening blobs may take: what all of them would gain from memory, and the wait for the turn."""
        passages = [len(run.ids) for run in prompt.runs if run.passage is not None]
        full_s, size = self._speeds.full_s(PromptSizes(prompt.tokens)), prompt.tokens.bit_length()
        sizes = PromptSizes(prompt.tokens, min(sum(passages), prompt.tokens), len(passages))
        exact = PromptSizes(prompt.tokens, sum(passages[:1]), len(passages[:1]))  # prompts begin with a passage
        with self._lock:
            full_s *= self._drift("full", size)
            reused_s = self._reused_s(sizes, exact, size=size)
            gained_s = GAIN * full_s - reused_s
            if gained_s <= 0:
                return full_s + turn_s if tried and reused_s < NEAR * full_s else 0.0
            patience_s = gained_s + turn_s
            if self._late >= IN_A_ROW:
                self._late += 1
                return patience_s if self._late % TRIED_AGAIN == 0 else 0.0
            if self._open_s <= patience_s:
                return patience_s
            self._open_s *= FADED
        return 0.0

    def _learn_opening(self, since: float, *, most_s: float) -> Callable[[object], None]:
        def learn(_: object) -> None:
            with self._lock:
                taken_s = min(most_s, perf_counter() - since)
                self._open_s = min(taken_s, self._open_s + (taken_s - self._open_s) * NEWS)

        return learn


def _all(opening: Sequence[Opening]) -> Future[None]:
    """A future that is done when all are, so that the waiter is woken once."""
    every, left = Future[None](), [*range(len(opening))]

    def done(_: object) -> None:
        if left.pop() == 0:
            every.set_result(None)

    for each in opening:
        each.add_done_callback(done)
    return every


def _kept(way: str, size: int, *, tier: str) -> tuple[str, int, str]:
    """The key of a correction: full prefill has no tier."""
    return way, size, "" if way == "full" else tier


def _sizes(tokens: int, chunks: Sequence[_StoredChunk], *, kept: int = 0) -> PromptSizes:
    return PromptSizes(tokens, min(tokens - kept, sum(each.tokens for each in chunks)), len(chunks), kept)


def _beside_reading(computing_s: float, chunks: Sequence[_StoredChunk]) -> float:
    """The time of computing and reading in parallel: layers wait for their parts, the first for all first parts."""
    reading_s = sum(each.late_s for each in chunks)
    parts = min((each.parts for each in chunks if each.late_s), default=1)
    return max(computing_s, reading_s) + min(computing_s, reading_s) / parts
