"""The commands `kvweave stats`, `verify` and `gc`: what a store holds, checked and tidied. Need no model."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from service.settings import load_settings
from store.scrub import GRACE_S, GcRules, ScrubReport, collect
from store.scrub import verify as scrub

if TYPE_CHECKING:
    from store.base import BlobStore

StoreUrl = Annotated[
    str, typer.Option("--store", help="URL of the store; KVWEAVE_STORE by default.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def stats(*, store: StoreUrl = "", as_json: AsJson = False) -> None:
    """Show what the store holds, tier by tier."""
    with _opened(store) as opened:
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


def verify(*, store: StoreUrl = "", as_json: AsJson = False) -> None:
    """Check every blob; the bad ones go into quarantine. Exits with 1 if there were any."""
    report = ScrubReport()
    with _opened(store) as opened:
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


def gc(
    *,
    store: StoreUrl = "",
    fingerprint: Annotated[
        str, typer.Option(help="Also remove all blobs of this model fingerprint.", show_default=False)
    ] = "",
    grace_hours: Annotated[float, typer.Option(help="Keep quarantined blobs for so long.", min=0)] = GRACE_S / 3600,
    compact: Annotated[bool, typer.Option("--compact", help="Give free space back; stop the service first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what has expired and what killed deletes left behind; a model's blobs only when it is named.

    Example: kvweave gc --fingerprint 3fa9c1 --compact
    """
    rules = GcRules(fingerprint=fingerprint or None, grace_s=grace_hours * 3600)
    with _opened(store) as opened:
        report = collect(opened, rules)
        freed = opened.compact() if compact else 0
    result = {**asdict(report), "compacted": freed}
    if as_json:
        _print_json(result)
    else:
        typer.echo(", ".join(f"{name} {value:,}" for name, value in result.items()))


def _opened(url: str) -> "BlobStore":
    from service.composition import compose_store

    settings = load_settings()
    return compose_store(settings.model_copy(update={"store": url}) if url else settings)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))
