"""The command `kvweave precompute`: options in; a bar, lines or JSON events out. Works on nothing itself."""

import json
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from service.access.identity import DEFAULT_TENANT
from service.access.spelling import check_tenant
from service.errors import Invalid
from service.precompute.corpus import CorpusFile, files
from service.precompute.tally import Tally
from service.settings import Settings, load_settings

if TYPE_CHECKING:
    from service.precompute.forecast import Forecast
    from service.precompute.work import Capture, Plan

LINE_S = 5.0  # between two lines where there is no terminal
COMPUTING = ("compute", "pack", "store", "index")  # stages that follow each other
BESIDE = "read and cut"


class Executor(StrEnum):
    """Where chunks are computed."""

    LOCAL = "local"
    RAY = "ray"


Paths = Annotated[list[str], typer.Argument(help="Files, folders, or patterns in quotes.")]
Into = Annotated[str, typer.Option(help="The collection that they go into.")]
Whose = Annotated[str, typer.Option(help="Whose documents they are.")]
Tokens = Annotated[int, typer.Option(help="Tokens of a chunk, for a new collection.", show_default=False, min=0)]
Model = Annotated[str, typer.Option(help="Compute for this model, beside what others have stored.", show_default=False)]
Prune = Annotated[bool, typer.Option("--prune", help="Delete documents whose files are gone from the corpus.")]
Most = Annotated[str, typer.Option(help="Bytes that its caches may take, such as 500GB.", show_default=False)]
Log = Annotated[
    Path | None, typer.Option(help="A JSONL log of questions: what they need most is computed first, for --budget.")
]
Part = Annotated[str, typer.Option(help="Compute one share, such as 0/4, and make no catalog.", show_default=False)]
Where = Annotated[Executor, typer.Option(help="Where chunks are computed.")]
Actors = Annotated[int, typer.Option(help="For ray: how many; one a GPU by default, or one a node.", min=0)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it would do and cost, from a sample; store nothing.")]
Price = Annotated[float, typer.Option(help="What a TB costs a month, for --dry-run.", min=0)]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object a line for machines.")]


def precompute(
    paths: Paths,
    *,
    collection: Into = "default",
    tenant: Whose = DEFAULT_TENANT,
    chunk_tokens: Tokens = 0,
    model: Model = "",
    prune: Prune = False,
    budget: Most = "",
    queries: Log = None,
    shard: Part = "",
    executor: Where = Executor.LOCAL,
    actors: Actors = 0,
    dry_run: DryRun = False,
    price_per_tb: Price = 23.0,
    as_json: AsJson = False,
) -> None:
    """Turn a corpus into a ready store; run again, it does what is missing or changed. Exits with 1 if files failed.

    Example: kvweave precompute ./handbook 'notes/*.md' --collection handbook --prune
    Example: kvweave precompute ./handbook --dry-run --price-per-tb 23
    Example: kvweave precompute ./handbook --budget 500GB --queries questions.jsonl
    Example: kvweave precompute ./handbook --model Qwen/Qwen3-8B
    """
    from service.precompute.forecast import forecast
    from service.precompute.opened import opened
    from service.precompute.work import Precompute

    settings = load_settings()
    settings = settings.model_copy(update={"model": model}) if model else settings
    check_tenant(tenant)
    _refuse_mixed(budget=budget, queries=queries, shard=shard, prune=prune, executor=executor)
    wanted = replace(_plan(budget, queries, shard=shard), top_k=settings.top_k)
    if executor is Executor.RAY and not dry_run:
        wanted = replace(wanted, capture=_remote(settings, actors))
    found = list(files(paths))
    start = time.perf_counter()
    with opened(settings, tenant, collection=collection, chunk_tokens=chunk_tokens, shard=bool(shard)) as bench:
        if dry_run:
            _foretell(forecast(bench, found, price_per_tb=price_per_tb), as_json=as_json)
            return
        work = Precompute(bench, wanted)
        with _progress(len(found), as_json=as_json) as told:
            tally = work.run(found, told=told)
        if prune:
            work.prune(each.name for each in found if isinstance(each, CorpusFile))
    _show(tally, seconds=time.perf_counter() - start, as_json=as_json)
    raise typer.Exit(1 if tally.problems else 0)


def _refuse_mixed(*, budget: str, queries: Path | None, shard: str, prune: bool, executor: Executor) -> None:
    if queries and not budget:
        raise Invalid("--queries says what a budget is spent on first: name a --budget, such as 500GB")
    if budget and (shard or executor is Executor.RAY):
        raise Invalid("--budget is counted in one process: leave --shard and --executor ray out")
    if shard and (prune or executor is Executor.RAY):
        raise Invalid("--shard computes a share and changes no catalog: leave --prune and --executor ray out")


def _plan(budget: str, queries: Path | None, *, shard: str) -> "Plan":
    from service.precompute.groups import Shard
    from service.precompute.need import Budget, read_log
    from service.precompute.work import Plan
    from store.size import parse_size

    asked = read_log(queries) if queries else ()
    return Plan(
        Budget(parse_size(budget, "--budget"), asked) if budget else None,
        Shard.parse(shard) if shard else None,
    )


def _remote(settings: Settings, actors: int) -> "Capture":
    from service.composition import compose_remote

    return compose_remote(settings, actors)


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
    columns = (
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("files,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    bar = Progress(*columns, console=console, expand=True)
    task = bar.add_task("", total=total)
    with Live(bar, console=console, refresh_per_second=4) as live:

        def show(tally: Tally) -> None:
            bar.update(task, completed=tally.files)
            live.update(Group(bar, Text(_short(tally))))

        yield show


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


def _short(tally: Tally) -> str:
    spent = sum(tally.seconds.get(stage, 0.0) for stage in COMPUTING)
    ratio = tally.raw_bytes / tally.nbytes if tally.nbytes else 0.0
    rate = tally.tokens / spent if spent else 0.0
    return f"{tally.stored:,} chunks, {rate:,.0f} tokens/s, {_bytes(tally.nbytes)}, {ratio:.1f}x smaller"


def _bytes(nbytes: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9)):
        if nbytes >= size:
            return f"{nbytes / size:,.2f} {unit}"
    return f"{nbytes / 1e6:,.1f} MB"


def _sentence(tally: Tally, total: int) -> str:
    return f"{tally.files:,} of {total:,} files: {_short(tally)}"


def _told(tally: Tally) -> dict[str, object]:
    return {**asdict(tally), "problems": [asdict(each) for each in tally.problems]}


def _show(tally: Tally, *, seconds: float, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"event": "done", **_told(tally), "wall_s": seconds}))
        return
    for each in tally.problems:
        typer.echo(f"failed: {each.place}: {each.reason}", err=True)
    typer.echo(f"{tally.files:,} files, {tally.unchanged:,} of them unchanged")
    typer.echo(f"{tally.documents:,} documents put in, {tally.removed:,} removed")
    typer.echo(
        f"{tally.chunks:,} chunks: {tally.stored:,} computed, {tally.present:,} were there, "
        f"{tally.unsupported:,} as text only, {tally.over_budget:,} over budget"
    )
    if tally.dropped:
        typer.echo(f"{tally.dropped:,} stored chunks that fewer questions need made room")
    typer.echo(_short(tally))
    apart = {stage: spent for stage, spent in tally.seconds.items() if stage != BESIDE}
    stages = ", ".join(f"{stage} {spent:.1f} s" for stage, spent in apart.items())
    beside = f"; beside it, {BESIDE} {tally.seconds.get(BESIDE, 0.0):.1f} s"
    typer.echo(f"{seconds:.1f} s in all: {stages}{beside}")
    if tally.problems:
        typer.echo(f"{len(tally.problems):,} failed, as told above: mend them and run again", err=True)
