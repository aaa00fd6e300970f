"""The command `kvweave`: thin renderings of what the other modules do."""

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from blend.errors import BlendError
from retriever.errors import RetrieverError
from service.commands.asking import ask, search
from service.commands.backup import backup, restore
from service.commands.keys import keys
from service.commands.precompute import precompute
from service.commands.serve import serve
from service.composition import compose_store
from service.demo import PASSAGES, POLICIES, Outcome, show_answers, show_codecs
from service.errors import ServiceError
from service.evaluate.cases import SuiteError
from service.evaluate.command import evaluate
from service.settings import Settings, SettingsError, load_settings
from store.errors import StoreError
from store.scrub import GRACE_S, GcRules, ScrubReport, collect
from store.scrub import verify as scrub

app = typer.Typer(
    name="kvweave", help="A RAG chunk-cache service.", no_args_is_help=True, pretty_exceptions_enable=False
)  # fmt: skip

app.command("eval")(evaluate)
app.command()(serve)
app.command()(ask)
app.command()(search)
app.command()(precompute)
app.command()(backup)
app.command()(restore)
app.add_typer(keys)

StoreUrl = Annotated[
    str, typer.Option("--store", help="URL of the store; KVWEAVE_STORE by default.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


@app.callback()
def root() -> None:
    """Keeps the caches of document chunks, compressed and verified.

    Example: kvweave stats --store lmdb:///var/lib/kvweave
    """


@app.command()
def stats(*, store: StoreUrl = "", as_json: Json = False) -> None:
    """Show what the store holds, tier by tier."""
    with compose_store(_settings(store)) as opened:
        rows = opened.usage()
    if as_json:
        _print_json([asdict(row) for row in rows])
        return
    table = Table("tier", "blobs", "bytes", "budget")
    for row in rows:
        table.add_row(
            row.tier, f"{row.blobs:,}", f"{row.nbytes:,}", "none" if row.budget is None else f"{row.budget:,}"
        )
    Console().print(table)


@app.command()
def verify(*, store: StoreUrl = "", as_json: Json = False) -> None:
    """Check every blob; the bad ones go into quarantine. Exits with 1 if there were any."""
    report = ScrubReport()
    with compose_store(_settings(store)) as opened:
        for done, report in scrub(opened):
            if done % 1000 == 0 and not as_json:
                Console(stderr=True).print(f"{done:,} blobs checked, {len(report.bad)} bad")
    if as_json:
        bad = [{"tier": b.tier, "key": b.key.text, "reason": b.reason, "detail": b.detail} for b in report.bad]
        _print_json({"checked": report.checked, "bytes": report.nbytes, "bad": bad, "strays": report.strays})
    else:
        for row in report.bad:
            typer.echo(f"{row.tier} {row.key.text}: {row.detail}")
        for name in report.strays:
            typer.echo(f"not written by kvweave, left alone: {name}")
        typer.echo(f"{report.checked:,} blobs, {report.nbytes:,} bytes checked; {len(report.bad)} bad")
    raise typer.Exit(1 if report.bad else 0)


@app.command()
def gc(
    *,
    store: StoreUrl = "",
    fingerprint: Annotated[
        str, typer.Option(help="Also remove all blobs of this model fingerprint.", show_default=False)
    ] = "",
    grace_hours: Annotated[float, typer.Option(help="Keep quarantined blobs for so long.", min=0)] = GRACE_S / 3600,
    compact: Annotated[bool, typer.Option("--compact", help="Give free space back; stop the service first.")] = False,
    as_json: Json = False,
) -> None:
    """Remove what has expired and what killed deletes left behind; a model's blobs only when it is named.

    Example: kvweave gc --fingerprint 3fa9c1 --compact
    """
    rules = GcRules(fingerprint=fingerprint or None, grace_s=grace_hours * 3600)
    with compose_store(_settings(store)) as opened:
        report = collect(opened, rules)
        freed = opened.compact() if compact else 0
    result = {**asdict(report), "compacted": freed}
    if as_json:
        _print_json(result)
    else:
        typer.echo(", ".join(f"{name} {value:,}" for name, value in result.items()))


@app.command()
def demo(*, as_json: Json = False) -> None:
    """Ask the built-in model from stored chunks, and show what each codec makes of a chunk's cache."""
    if as_json:
        answers = [asdict(row) for row in show_answers()]
        _print_json({"answers": answers, "codecs": [asdict(row) for row in show_codecs()]})
        return
    for passage in PASSAGES:
        typer.echo(f"{passage.title}: {passage.text}")
    question = Column("question", no_wrap=True)
    numbers = ("first ms", "reused", "again", "prompt")
    asked = Table(question, "policy", "answer", *numbers, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for row in show_answers():
        cells = (f"{row.first_token_ms:.1f}", str(row.reused), str(row.recomputed), str(row.prompt))
        asked.add_row(row.question, row.policy, row.answer, *cells, end_section=row.policy == POLICIES[-1])
    Console().print(asked)
    typer.echo("Every answer is the built-in model's own: full reads all text, the others reuse chunks stored as q4.\n")
    table = Table("codec", "bytes", "ratio", "bits per value", "rms error", "GB/s read")
    for row in show_codecs():
        table.add_row(*_cells(row))
    Console().print(table)
    typer.echo("GB/s counts 16-bit bytes: to plain arrays for lossless, to packed codes for the others, one core.")


def _cells(row: Outcome) -> list[str]:
    return [
        row.codec,
        f"{row.nbytes:,}",
        f"{row.ratio:.2f}",
        f"{row.bits:.2f}",
        f"{row.rms_error:.4f}",
        f"{row.read_gb_s:.2f}",
    ]


def _settings(store: str) -> Settings:
    settings = load_settings()
    return settings.model_copy(update={"store": store}) if store else settings


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))


def main() -> None:
    """Run the command; an expected error is one line with the remedy."""
    try:
        app()
    except (BlendError, RetrieverError, ServiceError, SettingsError, StoreError, SuiteError) as error:
        typer.echo(f"kvweave: {error}", err=True)
        sys.exit(2)
