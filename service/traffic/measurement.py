"""What follows from the requests that were sent: a row for each way and rate, how ways compare, and sentences."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from urllib.parse import urlsplit

import numpy as np

from service.quality.time_ratio import TimeRatio, time_ratio
from service.traffic.traffic import Sent, Stretch, TrafficPlan, Way

LEAST = {95: 20, 99: 100}  # answers that a percentile needs, so that it is not the slowest one alone
WAITED = 0.25  # of the time in which requests came, and
ALONE = 3  # times what the quickest answer took: whoever is busy for longer when no more come has a queue that grows
LATE = 0.1  # of the time to the first token: sent later than that, a request says little


@dataclass(frozen=True, slots=True)
class LatencySpread:
    """Times of many requests, in seconds; None where they are too few for a percentile."""

    p50: float
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class TrafficRow:
    """One way at one rate, over all rounds. `failures` by kind. Times count from when a request was to be sent.

    `cached_share`: of the prompts' tokens; None where the endpoint does not tell. `sent_late_s`: how late this machine
    sent 95 % of them, at worst. `queue_grows`: the endpoint does not keep up. `against_first`: how the first token
    compares with the first way's at this rate; None of the first way, and where requests failed.
    """

    way: str
    rate: float
    requests: int
    answered: int
    failures: dict[str, int]
    answered_per_s: float
    first_s: LatencySpread | None
    whole_s: LatencySpread | None
    prompt_tokens: float | None
    cached_share: float | None
    sent_late_s: float
    queue_grows: bool
    against_first: TimeRatio | None


@dataclass(frozen=True, slots=True)
class WayFacts:
    """What was asked: a name for it in rows, and all that it is."""

    name: str
    url: str
    model: str
    policy: str


@dataclass(frozen=True, slots=True)
class TrafficMeasurement:
    """A whole measurement, or what there is of one that was stopped."""

    ways: tuple[WayFacts, ...]
    rows: tuple[TrafficRow, ...]
    sentences: tuple[str, ...]
    notes: tuple[str, ...]
    is_whole: bool


def measured(plan: TrafficPlan, sent: Sent) -> TrafficMeasurement:
    """The figures of what was sent."""
    names = _names(plan.ways)
    rows: list[TrafficRow] = []
    for rate in plan.rates:
        used = _whole_rounds([each for each in sent.stretches if each.rate == rate], sent)
        stretches = {way: [each for each in used if each.way == way] for way in names}
        first = stretches[plan.ways[0]]
        for way, own in stretches.items():
            if any(each.answers or each.failures for each in own):
                against = None if way == plan.ways[0] else _compared(first, own)
                rows.append(_row(names[way], rate, stretches=own, against=against))
    facts = tuple(WayFacts(name, way.url, sent.models.get(way, ""), way.policy) for way, name in names.items())
    notes = (*sent.notes, *_notes(rows, sent))
    return TrafficMeasurement(facts, tuple(rows), tuple(_sentences(facts, rows)), notes, sent.is_whole)


def _whole_rounds(stretches: Sequence[Stretch], sent: Sent) -> Sequence[Stretch]:
    """Those of one rate, but for a round that a stop kept from some ways: what is compared was asked as often."""
    counts = Counter(each.number for each in stretches)
    last = max(counts, default=0)
    if sent.is_whole or counts[last] >= counts[last - 1]:
        return stretches
    return [each for each in stretches if each.number < last]


def _names(ways: Sequence[Way]) -> dict[Way, str]:
    """Short names that tell the ways apart."""
    hosts = {way: urlsplit(way.url).netloc or way.url for way in ways}
    return {way: f"{host} {way.policy}".strip() for way, host in hosts.items()}


def _row(name: str, rate: float, *, stretches: Sequence[Stretch], against: TimeRatio | None) -> TrafficRow:
    answers = [answer for each in stretches for answer in each.answers]
    failures = Counter(failure.kind for each in stretches for failure in each.failures)
    prompts = [each.prompt_tokens for each in answers if each.prompt_tokens is not None]
    cached = [(each.cached_tokens, each.prompt_tokens) for each in answers]
    told = [(some, of) for some, of in cached if some is not None and of]
    return TrafficRow(
        way=name,
        rate=rate,
        requests=len(answers) + failures.total(),
        answered=len(answers),
        failures=dict(failures.most_common()),
        answered_per_s=len(answers) / sum(each.seconds for each in stretches),
        first_s=_spread([each.first_s for each in answers]),
        whole_s=_spread([each.whole_s for each in answers]),
        prompt_tokens=sum(prompts) / len(prompts) if prompts else None,
        cached_share=sum(some for some, _ in told) / sum(of for _, of in told) if told else None,
        sent_late_s=float(np.percentile([late for each in stretches for late in each.late_s], 95)),
        queue_grows=_queue_grows(stretches),
        against_first=against,
    )


def _spread(seconds: Sequence[float]) -> LatencySpread | None:
    if not seconds:
        return None
    tails = [float(np.percentile(seconds, at)) if len(seconds) >= least else None for at, least in LEAST.items()]
    return LatencySpread(median(seconds), *tails)


def _queue_grows(stretches: Sequence[Stretch]) -> bool:
    """Whether most rounds left an endpoint busy for long after the last request came."""
    quickest = min((answer.whole_s for each in stretches for answer in each.answers), default=0.0)
    waits = [each.seconds - each.arrivals_s > max(WAITED * each.arrivals_s, ALONE * quickest) for each in stretches]
    return 2 * sum(waits) > len(waits)


def _compared(first: Sequence[Stretch], own: Sequence[Stretch]) -> TimeRatio | None:
    """How a way compares with the first one; None where requests failed in one, or they were not asked as often."""
    if any(each.failures for each in (*first, *own)):
        return None
    if not first or not own or [each.number for each in first] != [each.number for each in own]:
        return None
    if not all(each.answers for each in (*first, *own)):
        return None
    return time_ratio([_firsts(each) for each in first], [_firsts(each) for each in own])


def _firsts(stretch: Stretch) -> list[float]:
    return [each.first_s for each in stretch.answers]


def comparison(row: TrafficRow) -> str:
    """How a row's first token compares with the first way's: the words of the table and of the sentences."""
    return row.against_first.words if row.against_first else "not compared"


def _sentences(ways: Sequence[WayFacts], rows: Sequence[TrafficRow]) -> Iterator[str]:
    """One sentence for each way."""
    for number, way in enumerate(ways):
        own = [row for row in rows if row.way == way.name]
        if number:
            said = [(comparison(row), row.rate) for row in own]
            parts = [
                f"{words} at {', '.join(f'{rate:g}' for _, rate in same)}/s"
                for words, same in groupby(said, key=lambda each: each[0])
            ]
            yield f"Against {ways[0].name}, the first token of {way.name} is {'; '.join(parts) or 'not known'}."
            continue
        timed = [row for row in own if row.first_s]
        parts = [f"{1000 * row.first_s.p50:,.0f} ms at {row.rate:g}/s" for row in timed if row.first_s]
        yield f"{way.name}: the first token comes after {', '.join(parts) or 'nothing was answered'} (medians)."


def _notes(rows: Sequence[TrafficRow], sent: Sent) -> Iterator[str]:
    """What a reader of the rows must know besides."""
    for kind in dict.fromkeys(kind for row in rows for kind in row.failures):
        example = next(each for some in sent.stretches for each in some.failures if each.kind == kind)
        count = sum(row.failures.get(kind, 0) for row in rows)
        yield f"{count:,} failed, {kind}: {example.detail}"
    for row in rows:
        if row.queue_grows:
            yield (
                f"{row.way} does not keep up with {row.rate:g} requests a second: its queue grows, and times are the "
                "longer the longer it is asked."
            )
    late = [row for row in rows if row.first_s and row.sent_late_s > LATE * row.first_s.p50]
    if late:
        most = max(row.sent_late_s for row in late)
        yield f"This machine itself sent requests up to {1000 * most:,.0f} ms late: give it less to do."
    silent = dict.fromkeys(row.way for row in rows if row.answered and row.cached_share is None)
    for way in silent:
        yield f"{way} does not tell cached tokens; vLLM does with --enable-prompt-tokens-details."
