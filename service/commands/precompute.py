"""The command `kvweave precompute`: options in; a bar, lines or JSON events out. Works on nothing itself."""

import json
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from service.access.identity import DEFAULT_TENANT
from service.access.spelling import check_tenant
from service.ingest.rules import CollectionRules
from service.precompute.corpus import CorpusFile, files
from service.precompute.tally import Tally
from service.settings import load_settings

if TYPE_CHECKING:
    from service.precompute.forecast import Forecast

LINE_S = 5.0  # between two lines where there is no terminal

Paths = Annotated[list[str], typer.Argument(help="Files, folders, or patterns in quotes.")]
Into = Annotated[str, typer.Option(help="The collection that they go into.")]
Whose = Annotated[str, typer.Option(help="Whose documents they are.")]
Tokens = Annotated[int, typer.Option(help="Tokens of a chunk; KVWEAVE_CHUNK_TOKENS by default.", show_default=False)]
Prune = Annotated[bool, typer.Option("--prune", help="Delete documents whose files are gone from the corpus.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it would do and cost, from a sample; store nothing.")]
Price = Annotated[float, typer.Option(help="What a TB costs a month, for --dry-run.", min=0)]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object a line for machines.")]


def precompute(
    paths: Paths,
    *,
    collection: Into = "default",
    tenant: Whose = DEFAULT_TENANT,
    chunk_tokens: Tokens = 0,
    prune: Prune = False,
    dry_run: DryRun = False,
    price_per_tb: Price = 23.0,
    as_json: AsJson = False,
) -> None:
    """Turn a corpus into a ready store; run again, it does what is missing or changed. Exits with 1 if files failed.

    Example: kvweave precompute ./handbook 'notes/*.md' --collection handbook --prune
    """
    from service.precompute.forecast import forecast
    from service.precompute.opened import opened
    from service.precompute.work import Precompute

    settings = load_settings()
    check_tenant(tenant)
    found = list(files(paths))
    start = time.perf_counter()
    rules = CollectionRules(chunk_tokens or settings.chunk_tokens)
    with opened(settings, tenant, collection=collection, rules=rules) as bench:
        work = Precompute(bench)
        if dry_run:
            _foretell(forecast(work, found, price_per_tb=price_per_tb), as_json=as_json)
            return
        with _progress(len(found), as_json=as_json) as told:
            tally = work.run(found, told=told)
        if prune:
            work.prune(each.name for each in found if isinstance(each, CorpusFile))
    _show(tally, seconds=time.perf_counter() - start, as_json=as_json)
    raise typer.Exit(1 if tally.problems else 0)


@contextmanager
def _progress(total: int, *, as_json: bool) -> Generator[Callable[[Tally], None]]:
    """A bar on a terminal, a line now and then elsewhere, on standard error; events on standard output for machines."""
    console = Console(stderr=True)
    last = time.monotonic()

    def line(tally: Tally) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_S:
            last = time.monotonic()
            told = {"event": "progress", **_told(tally), "of_files": total}
            typer.echo(json.dumps(told) if as_json else _sentence(tally, total), err=not as_json)

    if as_json or not console.is_terminal:
        yield line
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("", total=total)
        yield lambda tally: bar.update(task, completed=tally.files, description=_short(tally))


def _foretell(told: "Forecast", *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"event": "forecast", **asdict(told)}))
        return
    for each in told.problems:
        typer.echo(f"cannot be read: {each.place}: {each.reason}", err=True)
    typer.echo(
        f"{told.files:,} files ({told.unchanged:,} unchanged), {told.documents:,} documents to put in; "
        f"{told.chunks:,} chunks: {told.present:,} are there, {told.unsupported:,} can be text only."
    )
    typer.echo(
        f"{told.tokens:,} tokens to compute at {told.tokens_per_s:,.0f} a second: {told.seconds:,.0f} s. They take "
        f"{told.nbytes / 1e6:,.1f} MB, {told.bytes_per_token:,.0f} bytes a token, {told.month_cost:,.2f} a month."
    )
    typer.echo(f"Reuse pays where the store reads {told.pays_from / 1e6:,.1f} MB a second or more.")


def _rate(tally: Tally) -> float:
    return tally.tokens / max(tally.seconds.get("compute and store", 0.0), 1e-9)


def _short(tally: Tally) -> str:
    ratio = tally.raw_bytes / tally.nbytes if tally.nbytes else 0.0
    return f"{tally.stored:,} chunks, {_rate(tally):,.0f} tokens/s, {tally.nbytes / 1e6:,.1f} MB, {ratio:.1f}x smaller"


def _sentence(tally: Tally, total: int) -> str:
    return f"{tally.files:,} of {total:,} files: {_short(tally)}"


def _told(tally: Tally) -> dict[str, object]:
    return {**asdict(tally), "problems": [asdict(each) for each in tally.problems]}


def _show(tally: Tally, *, seconds: float, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"event": "done", **_told(tally), "wall_s": seconds}))
        return
    for each in tally.problems:
        typer.echo(f"not read: {each.place}: {each.reason}", err=True)
    typer.echo(
        f"{tally.files:,} files ({tally.unchanged:,} unchanged), {tally.documents:,} documents put in, "
        f"{tally.removed:,} removed; {tally.chunks:,} chunks: {tally.present:,} were there, {tally.stored:,} computed, "
        f"{tally.unsupported:,} as text only."
    )
    if tally.over_budget:
        all_stored = tally.present + tally.stored
        typer.echo(f"{all_stored:,} of {all_stored + tally.over_budget:,} stored: the store's budget is used up.")
    stages = ", ".join(f"{stage} {spent:.1f} s" for stage, spent in tally.seconds.items())
    typer.echo(f"{_short(tally)}; {seconds:.1f} s in all: {stages} (files are read while others are computed).")
