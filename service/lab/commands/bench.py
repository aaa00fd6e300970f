"""The command `kvweave bench`: options in, tables or JSON out. Measures nothing itself."""

import json
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from service.commands.console import console, many
from service.commands.options import AsJson, listed, settings_with, whole_numbers
from service.commands.options import codecs as complete_codecs
from service.commands.options import policies as complete_policies
from service.commands.shown_progress import tell_unread

if TYPE_CHECKING:
    from service.lab.bench.bench import BenchFacts, BenchMeasurement
    from service.lab.bench.first_token import TimingRow
    from service.lab.bench.packing import Packed

Row = TypeVar("Row")

MB = 1e6
NAMES = ("codec", "policy")  # columns of words, which are not cut
WIDE = 80  # columns, from which on tables have air

prompts_option = partial(typer.Option, rich_help_panel="Prompts")
medium_option = partial(typer.Option, rich_help_panel="Model and store")

Named = Annotated[
    str,
    medium_option("--model", metavar="NAME", help="Hub name or folder; KVWEAVE_MODEL by default.", show_default=False),
]
Chunks = Annotated[str, prompts_option(metavar="LIST", help="How many chunks the prompts have, with commas.")]
Tokens = Annotated[
    int | None,
    prompts_option(
        metavar="N", help="Tokens of a chunk; by default as in the settings.", min=16, max=4096, show_default=False
    ),
]
Policies = Annotated[
    str,
    prompts_option(
        metavar="LIST",
        help="Policies besides full and the settings' own, with commas.",
        show_default=False,
        autocompletion=complete_policies,
    ),
]
Codecs = Annotated[
    str,
    medium_option(
        metavar="LIST",
        help="Codecs besides the settings' own, with commas; by default lossless, q8, q6, q4, q3 and q2.",
        show_default=False,
        autocompletion=complete_codecs,
    ),
]
Repeats = Annotated[int, prompts_option(metavar="N", help="Rounds that count; figures are medians.", min=1)]
Corpus = Annotated[
    str,
    prompts_option(
        metavar="PATH",
        help="A file, folder or pattern to take chunks from; made-up texts by default.",
        show_default=False,
    ),
]
StoreUrl = Annotated[
    str,
    medium_option(
        "--store",
        metavar="URL",
        help="The store to measure; by default a new LMDB, gone afterwards.",
        show_default=False,
    ),
]


def bench(
    *,
    model: Named = "",
    chunks: Chunks = "2,5,10,20",
    chunk_tokens: Tokens = None,
    policies: Policies = "",
    codecs: Codecs = "lossless,q8,q6,q4,q3,q2",
    repeats: Repeats = 5,
    corpus: Corpus = "",
    store: StoreUrl = "",
    as_json: AsJson = False,
) -> None:
    """Measure what reuse is worth with your model on this machine: speeds, sizes, and when the first token comes.

    What is written into a store that is named goes again, also when this is interrupted.

    Examples:
      kvweave bench --chunks 2,5 --repeats 3
      kvweave bench --model ./my-model --policies reuse,heads
      kvweave bench --store s3://bucket/prefix --json
    """
    from service.lab.bench.bench import BenchPlan, measure

    settings, counts = settings_with(model), whole_numbers("--chunks", chunks)
    tried = tuple(listed(policies)), tuple(listed(codecs))
    plan = BenchPlan(tuple(counts), chunk_tokens or settings.chunk_tokens, repeats, *tried, corpus, store)
    typer.echo(f"loading {settings.model}", err=True)
    with _progress(plan.steps) as on_progress:
        found = measure(settings, plan, on_progress=on_progress)
    tell_unread(map(Path, found.skipped), found.problems)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2, allow_nan=False))
    else:
        _show(found, repeats=repeats)


@contextmanager
def _progress(steps: int) -> Generator[Callable[[str], None]]:
    """A bar on a terminal, a line for each new stage elsewhere; on standard error, so that the output stays clean."""
    screen = console(stderr=True)
    last = ""

    def line(stage: str) -> None:
        nonlocal last
        if stage != last:
            last = stage
            typer.echo(stage, err=True)

    if not screen.is_terminal:
        yield line
        return
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    bar = Progress(*columns, console=screen, transient=True)
    task = bar.add_task("", total=steps)

    def advance(stage: str) -> None:
        bar.start()  # not before there is something to show
        bar.update(task, advance=1, description=stage)

    try:
        yield advance
    finally:
        bar.stop()


def _show(found: "BenchMeasurement", *, repeats: int) -> None:
    screen = console()
    padding = 1 if screen.width >= WIDE else 0
    needed = found.worth.needed_bytes_per_s
    screen.print(_model_table(found.facts, prefill=found.worth.prefill_tokens_per_s))
    screen.print()
    screen.print(_codec_table(found.codecs, prefill=found.worth.prefill_tokens_per_s, padding=padding))
    screen.print()
    screen.print(_prompt_table(found.rows, repeats=repeats, padding=padding))
    screen.print()
    for note in found.notes:
        screen.print(note)
    reads = ", ".join(f"{each.tier} {each.bytes_per_s / MB:,.0f} MB/s" for each in found.tiers)
    screen.print(
        f"The store reads, on one thread and right after writing: {reads}. Reuse cannot pay below "
        f"{needed / MB:,.1f} MB/s ({found.worth.bytes_per_token:,.0f} bytes a token x "
        f"{found.worth.prefill_tokens_per_s:,.0f} tokens/s).",
    )
    screen.print(found.worth.sentence, style="bold")


def _table(
    rows: Sequence[Row], columns: dict[str, Callable[[Row], str]], *, title: str, caption: str, padding: int
) -> Table:
    """A table of figures. On a narrow terminal a figure goes on in the next line, and is never cut."""
    names, figures = partial(Column, no_wrap=True), partial(Column, justify="right", overflow="fold")
    table = Table(
        *(names(name) if name in NAMES else figures(name) for name in columns),
        box=SIMPLE_HEAD,
        title=title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
        padding=(0, padding),
        pad_edge=False,
        collapse_padding=True,
    )
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    return table


def _model_table(facts: "BenchFacts", *, prefill: float) -> Table:
    table = Table.grid(padding=(0, 2))
    own = "" if facts.own_layers == facts.layers else f", {facts.own_layers} with keys and values of their own"
    rows = {
        "model": f"{facts.model} ({facts.dtype}, {facts.device}, {many(facts.threads, 'thread')})",
        "layers": f"{facts.layers}{own}",
        "window": f"{facts.window:,} tokens",
        "KV": f"{facts.bytes_per_token:,.0f} bytes a token before packing",
        "prefill": f"{prefill:,.0f} tokens/s, the longest prompt",
        "capture": f"{facts.capture_tokens_per_s:,.0f} tokens/s, chunks of {facts.chunk_tokens:,.0f} tokens",
        "precompute": f"{facts.store_tokens_per_s:,.0f} tokens/s, packed and stored",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _codec_table(codecs: "tuple[Packed, ...]", *, prefill: float, padding: int) -> Table:
    columns: dict[str, Callable[[Packed], str]] = {
        "codec": lambda each: each.codec,
        "B/token": lambda each: f"{each.bytes_per_token:,.0f}",
        "ratio": lambda each: f"{each.ratio:.2f}",
        "rms error": lambda each: f"{each.rms_error:.3f}",
        "pack tok/s": lambda each: f"{each.pack_tokens_per_s:,.0f}",
        "unpack tok/s": lambda each: f"{each.unpack_tokens_per_s:,.0f}",
        "needs MB/s": lambda each: f"{each.bytes_per_token * prefill / MB:,.1f}",
    }
    title = "Codecs on this model's own records"
    caption = f"{codecs[0].codec} is in use; needs: B/token x prefill tok/s"
    return _table(codecs, columns, title=title, caption=caption, padding=padding)


def _prompt_table(rows: "tuple[TimingRow, ...]", *, repeats: int, padding: int) -> Table:
    columns: dict[str, Callable[[TimingRow], str]] = {
        "chunks": lambda row: f"{row.chunks:,}" if row.policy == "full" else "",
        "tokens": lambda row: f"{row.prompt_tokens:,}" if row.policy == "full" else "",
        "policy": lambda row: row.policy,
        "first ms": lambda row: _milliseconds(row.first_token_s),
        "against full": lambda row: "" if row.policy == "full" else row.against_full.words,
        "reused": lambda row: "" if row.policy == "full" else f"{row.reused:,}",
        "again": lambda row: "" if row.policy == "full" else f"{row.recomputed:,}",
        "MB read": lambda row: "" if row.policy == "full" else f"{row.nbytes / MB:,.2f}",
    }
    sources = ", ".join(dict.fromkeys(tier for row in rows for tier in row.tiers))
    meaning = "again: recomputed tokens; what is left of the prompt is always computed"
    caption = f"medians of {many(repeats, 'round')}; chunks came from {sources}; {meaning}"
    table = _table(rows, columns, title="Time to the first token", caption=caption, padding=padding)
    for shown, row, after in zip(table.rows, rows, (*rows[1:], None), strict=True):
        shown.end_section = after is None or after.chunks != row.chunks
    return table


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.0f}" if seconds >= 0.1 else f"{1000 * seconds:.1f}"
