"""The time to the first token of prompts of stored chunks, through the engine that serves. Knows no options."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Queue
from statistics import median

from blend.engine import Done, Event, Failed, Ready, Request, Token
from blend.fingerprint import Fingerprint
from blend.fuse import FuseReport, Order
from blend.sampling import Sampling
from service.errors import Unavailable
from service.evaluate.probe import FULL, Point
from service.ingest.capturing import Item
from service.measure.borrowed import Borrowed
from service.pipeline.answer import FETCHES
from service.press import Press
from service.prompts import Laid, Titled, question_turns
from service.stored import Stored
from store.reader import BlobReader
from store.record import LayerKV, PackedLayer

QUESTION = "What do the documents say?"
ONE = Sampling(max_tokens=1, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One policy on one prompt: medians of times, `sooner` of how many times sooner than full prefill in its round.

    `reused` and `recomputed` as the engine reports them; the rest of the prompt is fresh in any case. `nbytes` were
    read of blobs, from `tiers`; where that alone takes as long as full prefill, the store reads `needed_bytes_per_s`.
    """

    chunks: int
    prompt_tokens: int
    policy: str
    ratio: float
    first_token_s: float
    sooner: float
    reused: int
    recomputed: int
    nbytes: int
    needed_bytes_per_s: float
    tiers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Asked:
    seconds: float
    report: FuseReport
    nbytes: int
    tiers: tuple[str, ...]


class Counted:
    """A stored blob as a source that knows how much of it was read."""

    def __init__(self, reader: BlobReader, fingerprint: Fingerprint) -> None:
        self.fingerprint = fingerprint
        self.tier = reader.source
        self._head_bytes, self._head = len(reader.raw_head), reader.head
        self._stored = Stored(reader, fingerprint)
        self._asked: set[int] = set()

    @property
    def tokens(self) -> int:
        """Of the record."""
        return self._stored.tokens

    def layer(self, index: int) -> LayerKV | PackedLayer:
        """See `Source`."""
        self._asked.add(index)
        return self._stored.layer(index)

    @property
    def nbytes(self) -> int:
        """The head, and all frames of a group of which a layer was asked for."""
        groups = [[self._head.frames[number] for number in numbers] for numbers in self._head.groups]
        return self._head_bytes + sum(
            frame.nbytes
            for group in groups
            if self._asked.intersection(range(group[0].layer, group[0].layer + group[0].layers))
            for frame in group
        )


class Asker:
    """Sends prompts of chunks that are stored, one at a time."""

    def __init__(
        self, press: Press, part: Borrowed, *, fingerprint: Fingerprint, chunks: Sequence[Titled], items: Sequence[Item]
    ) -> None:
        self._press = press
        self._part = part
        self._fingerprint = fingerprint
        self._chunks = chunks
        self._items = items
        self._opening = ThreadPoolExecutor(FETCHES, "kvweave-bench")

    def close(self) -> None:
        """Stop the threads."""
        self._opening.shutdown()

    def rows(self, chunks: int, points: Sequence[Point], *, repeats: int, told: Callable[[], None]) -> list[Row]:
        """One prompt of so many chunks, every way in turn, round by round; one round before them warms up.

        Full prefill is among the ways. `told` is called before each round.
        """
        laid = lay(self._press, self._chunks[:chunks])
        found: dict[Point, list[_Asked]] = {point: [] for point in points}
        for number in range(repeats + 1):
            told()
            turn = number % len(points)  # none is always the first
            asked = {point: self._ask(laid, point, chunks=chunks) for point in (*points[turn:], *points[:turn])}
            for point in points if number else ():
                found[point].append(asked[point])
            self._part.settle()
        return [_row(point, found[point], full=found[FULL], laid=laid, chunks=chunks) for point in points]

    def _ask(self, laid: Laid, point: Point, *, chunks: int) -> _Asked:
        """The clock starts before the blobs are opened, as it does for whoever waits."""
        events: Queue[tuple[float, Event]] = Queue()
        start = time.perf_counter()
        items = () if point == FULL else self._items[:chunks]
        sources = [Counted(reader, self._fingerprint) for reader in self._opening.map(self._part.open, items)]
        request = Request(laid.prompt(dict(enumerate(sources))), ONE, Order(point.policy, point.ratio))
        self._press.engine.submit(request, lambda event: events.put((time.perf_counter() - start, event)))
        seconds, report = _first(events)
        missed = next((reason for _, reason in report.misses), None) if sources else None
        if missed:
            raise Unavailable(f"a chunk that was stored could not be used ({missed}): look at it with kvweave verify")
        tiers = tuple(sorted({each.tier for each in sources if point.policy != FULL.policy}))
        return _Asked(seconds, report, sum(each.nbytes for each in sources), tiers)


def lay(press: Press, chunks: Sequence[Titled]) -> Laid:
    """The prompt of these chunks."""
    return press.wording.lay(question_turns(chunks, question=QUESTION))


def _first(events: "Queue[tuple[float, Event]]") -> tuple[float, FuseReport]:
    """Seconds to the first token, and what the fuse did; returns when the answer is over."""
    first, report = 0.0, None
    while True:
        seconds, event = events.get()
        match event:
            case Ready(report=found):
                report = found
            case Token():
                first = first or seconds
            case Done():
                assert report is not None and first
                return first, report
            case Failed(error=error):
                raise error


def _row(point: Point, found: Sequence[_Asked], *, full: Sequence[_Asked], laid: Laid, chunks: int) -> Row:
    last = found[-1]
    return Row(
        chunks=chunks,
        prompt_tokens=laid.tokens,
        policy=point.policy,
        ratio=point.ratio,
        first_token_s=median(each.seconds for each in found),
        sooner=median(a.seconds / b.seconds for a, b in zip(full, found, strict=True)),
        reused=last.report.reused,
        recomputed=last.report.recomputed,
        nbytes=last.nbytes,
        needed_bytes_per_s=last.nbytes / median(each.seconds for each in full),
        tiers=last.tiers,
    )
