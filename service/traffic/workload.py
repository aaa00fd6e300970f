"""What is asked, and when: requests as names of chunks with their lengths. Knows no texts and no endpoint."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Protocol

from service.errors import Invalid
from service.traffic.trace import TraceEntry

POOL = 4  # times the chunks of the longest prompt: as many come again


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """A chunk of a prompt. Equal names are equal texts."""

    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class RequestShape:
    """A request that is sent `at_s` after its stretch begins, whatever became of those before it."""

    at_s: float
    chunks: tuple[ChunkShape, ...]
    answer_tokens: int


class Workload(Protocol):
    """Draws what a stretch of requests asks. The same arguments give the same stretch."""

    def warm_up(self) -> Sequence[Sequence[ChunkShape]]:
        """Prompts that are sent before anything is timed."""
        ...

    def stretch(self, rate: float, *, mark: str) -> Sequence[RequestShape]:
        """Requests at so many a second. What is new in them is new under each mark."""
        ...

    def recurring(self, requests: Sequence[RequestShape]) -> Sequence[ChunkShape]:
        """The chunks of these requests that a corpus would hold: those that come more than once."""
        ...


@dataclass(frozen=True, slots=True)
class MadeUp:
    """Prompts of chunks in any order. `repeated`: the share of them that is drawn from a pool, and so comes again."""

    requests: int
    chunks: tuple[int, ...]
    chunk_tokens: int
    repeated: float
    answer_tokens: int
    seed: int

    def warm_up(self) -> list[list[ChunkShape]]:
        """The pool, in prompts of the longest kind: from then on whatever is drawn from it comes again."""
        pool, most = self._pool(), max(self.chunks)
        return [pool[start : start + most] for start in range(0, len(pool) if self.repeated else 0, most)]

    def stretch(self, rate: float, *, mark: str) -> list[RequestShape]:
        """Requests that come as by chance, at this rate on average (Poisson); each draws its number of chunks."""
        random = Random(f"{self.seed} {rate} {mark}")
        pool = self._pool()
        arrivals = accumulate(random.expovariate(rate) for _ in range(self.requests))
        return [
            RequestShape(at_s, self._chunks(random, pool, name=f"{mark} {number}"), self.answer_tokens)
            for number, at_s in enumerate(arrivals)
        ]

    def recurring(self, requests: Sequence[RequestShape]) -> list[ChunkShape]:
        """The pool, whatever was drawn from it."""
        del requests
        return self._pool() if self.repeated else []

    def _pool(self) -> list[ChunkShape]:
        return [ChunkShape(f"pool {number}", self.chunk_tokens) for number in range(POOL * max(self.chunks))]

    def _chunks(self, random: Random, pool: Sequence[ChunkShape], *, name: str) -> tuple[ChunkShape, ...]:
        """Chunks of the pool, each once, in an order of their own, with new ones between."""
        count = random.choice(self.chunks)
        drawn = random.sample(pool, count)
        return tuple(
            drawn[place] if random.random() < self.repeated else ChunkShape(f"{name} {place}", self.chunk_tokens)
            for place in range(count)
        )


@dataclass(frozen=True, slots=True)
class Replayed:
    """The requests of a trace with their own spacing, stretched to a rate. Each stretch begins with no block known."""

    entries: tuple[TraceEntry, ...]
    block_tokens: int
    answer_tokens: int

    def warm_up(self) -> list[list[ChunkShape]]:
        """Nothing: what a trace meets for the first time is a part of it."""
        return []

    def stretch(self, rate: float, *, mark: str) -> list[RequestShape]:
        """All requests, as far apart as in the trace, in proportion."""
        pace = own_rate(self.entries) / rate
        return [
            RequestShape(
                pace * (entry.at_s - self.entries[0].at_s),
                tuple(self._chunk(entry, place, mark=mark) for place in range(len(entry.blocks))),
                min(entry.answer_tokens, self.answer_tokens),
            )
            for entry in self.entries
        ]

    def recurring(self, requests: Sequence[RequestShape]) -> list[ChunkShape]:
        """The blocks that come more than once."""
        counts = Counter(chunk for request in requests for chunk in request.chunks)
        return [chunk for chunk, count in counts.items() if count > 1]

    def _chunk(self, entry: TraceEntry, place: int, *, mark: str) -> ChunkShape:
        """A block; the last one of a prompt may be shorter than others."""
        share = entry.last_share if place + 1 == len(entry.blocks) else 1.0
        return ChunkShape(f"{mark} block {entry.blocks[place]}", max(1, round(self.block_tokens * share)))


def own_rate(entries: Sequence[TraceEntry]) -> float:
    """The requests a second of a trace. Raises Invalid where all come at once, so that there is none."""
    seconds = entries[-1].at_s - entries[0].at_s
    if seconds <= 0:
        raise Invalid("the trace's requests all come at one time: name --rates such as 1,2,4, or take more --requests")
    return (len(entries) - 1) / seconds
