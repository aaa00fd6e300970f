"""What `kvweave bench --url` does with its options: endpoints under requests, as a table, JSON or a page."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.table import Column, Table

from service.commands.console import console, lasting, many, plain_table, tell
from service.commands.options import check_folders, listed

if TYPE_CHECKING:
    from service.traffic.measurement import LatencySpread, TrafficMeasurement, TrafficRow
    from service.traffic.traffic import TrafficPlan, Way
    from service.traffic.workload import Workload

KEY_VARIABLE = "KVWEAVE_API_KEY"  # of the first endpoint: another one must not learn its key
RATES = "1,2,4"
CHUNKS = "2,5,10"
NOTHING = "-"
STOPPED = 130

Progress = Callable[[int], AbstractContextManager[Callable[[str], None]]]


@dataclass(frozen=True, slots=True)
class TrafficOptions:
    """The options of the command line; lists are texts with commas."""

    urls: tuple[str, ...]
    key_variables: tuple[str, ...]
    model: str
    policies: tuple[str, ...]
    rates: str
    requests: int
    chunks: str
    chunk_tokens: int | None
    repeated: float
    answer_tokens: int
    trace: Path | None
    put: bool
    repeats: int
    seed: int
    timeout_s: float


def measure_endpoints(options: TrafficOptions, *, html: Path | None, as_json: bool, progress: Progress) -> NoReturn:
    """Measures, and prints. Exits with 1 where requests failed, and with 130 where it was stopped."""
    from service.traffic.measurement import measured
    from service.traffic.traffic import send

    check_folders(html)
    plan = _plan(options)
    rates = ", ".join(f"{rate:g}" for rate in plan.rates)
    tell(
        f"{many(plan.rounds, 'round')} at {rates} requests/s, {many(len(plan.ways), 'way')} in turn: "
        f"about {lasting(plan.seconds)}, and what the endpoints need to warm up and to end",
        err=True,
    )
    with progress(plan.steps) as on_progress:
        sent = send(plan, on_progress=on_progress)
    found = measured(plan, sent)
    if html:
        from service.traffic.page import page

        html.write_text(page(found), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2, allow_nan=False))
    else:
        _show(found)
    if not found.is_whole:
        raise typer.Exit(STOPPED)
    raise typer.Exit(int(any(row.failures for row in found.rows)))


def _plan(options: TrafficOptions) -> "TrafficPlan":
    from service.traffic.traffic import TrafficPlan

    workload, own_rate = _workload(options)
    rates = tuple(_rate(each) for each in listed(options.rates)) or ((own_rate,) if own_rate else _default_rates())
    return TrafficPlan(_ways(options), workload, rates, options.repeats, options.timeout_s, options.put)


def _default_rates() -> tuple[float, ...]:
    return tuple(float(each) for each in listed(RATES))


def _workload(options: TrafficOptions) -> "tuple[Workload, float]":
    """What is asked, and the rate that it comes at of itself; 0 where it has none."""
    from service.errors import Invalid
    from service.settings import load_settings
    from service.traffic.trace import read_trace
    from service.traffic.workload import MadeUp, Replayed, own_rate

    if options.trace:
        if options.chunks:
            raise Invalid("--chunks: a trace says how many blocks its prompts have: leave one of both out")
        trace = read_trace(options.trace, most=options.requests)
        tokens = options.chunk_tokens or trace.block_tokens
        return Replayed(trace.entries, tokens, options.answer_tokens), own_rate(trace.entries)
    chunks = tuple(_count(each) for each in listed(options.chunks or CHUNKS))
    if not chunks:
        raise Invalid("--chunks: name how many chunks the prompts have, such as 2,5,10")
    tokens = options.chunk_tokens or load_settings().chunk_tokens
    made = MadeUp(options.requests, chunks, tokens, options.repeated, options.answer_tokens, options.seed)
    return made, 0.0


def _ways(options: TrafficOptions) -> "tuple[Way, ...]":
    """Every endpoint under every policy that is named; each has its own key alone."""
    from service.errors import Invalid
    from service.settings import secret_in
    from service.traffic.traffic import Way

    variables = options.key_variables or (KEY_VARIABLE,)
    if len(variables) > len(options.urls):
        raise Invalid(f"--key-env: {len(variables)} variables for {many(len(options.urls), 'address')}: one for each")
    keys = [secret_in(each) if each != NOTHING else "" for each in variables]
    missing = [name for name in options.key_variables if name != NOTHING and not secret_in(name)]
    if missing:
        raise Invalid(f"--key-env {missing[0]}: there is no such variable, or it is empty: put the key into it")
    ways = [
        Way(url, key or "", options.model, policy)
        for url, key in zip_longest(options.urls, keys)
        for policy in ("", *options.policies)
    ]
    if len(set(ways)) < len(ways):
        raise Invalid("--url, --policies: the same is there twice: name each once")
    return tuple(ways)


def _rate(text: str) -> float:
    from service.errors import Invalid

    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e6:
        raise Invalid(f"--rates: requests a second are wanted, got {text!r}: write for example {RATES}")
    return rate


def _count(text: str) -> int:
    from service.errors import Invalid

    if not text.isdecimal() or not 0 < int(text) <= 10_000:
        raise Invalid(f"--chunks: a number of chunks is wanted, got {text!r}: write for example {CHUNKS}")
    return int(text)


def _show(found: "TrafficMeasurement") -> None:
    screen = console()
    for way in found.ways:
        screen.print(f"{way.name}: {way.url}, model {way.model or 'not known'}")
    screen.print()
    screen.print(_table(found))
    screen.print()
    if not found.is_whole:
        tell("Stopped: this is what was measured until then.")
    for note in found.notes:
        tell(note)
    for sentence in found.sentences:
        tell(sentence, style="bold")


def _table(found: "TrafficMeasurement") -> Table:
    figures = ("/s", "answered", "failed", "p50 ms", "p95", "p99", "whole ms", "tokens", "cached")
    compared = len(found.ways) > 1
    table = plain_table(
        Column("way", no_wrap=True),
        *(Column(each, justify="right") for each in figures),
        *([Column("first token")] if compared else []),
        title="Time to the first token, from when a request was to be sent",
        title_justify="left",
        caption="cached: of the prompts' tokens, as the endpoint tells; whole: the answer's end, p50",
        caption_justify="left",
    )
    for row in found.rows:
        table.add_row(*_cells(row, first=found.ways[0].name)[: None if compared else -1])
    return table


def _cells(row: "TrafficRow", *, first: str) -> tuple[str, ...]:
    from service.traffic.measurement import comparison

    spread = row.first_s
    return (
        row.way,
        f"{row.rate:g}",
        f"{row.answered:,}",
        f"{sum(row.failures.values()):,}" if row.failures else "",
        *_times(spread),
        _times(row.whole_s)[0],
        "" if row.prompt_tokens is None else f"{row.prompt_tokens:,.0f}",
        "" if row.cached_share is None else f"{row.cached_share:.0%}",
        "" if row.way == first else comparison(row),
    )


def _times(spread: "LatencySpread | None") -> tuple[str, str, str]:
    def shown(seconds: float | None) -> str:
        return "" if seconds is None else f"{1000 * seconds:,.0f}"

    return (shown(spread.p50), shown(spread.p95), shown(spread.p99)) if spread else ("", "", "")
