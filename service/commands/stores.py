"""The commands `kvweave stats`, `verify` (catalogs too) and `gc`: a store counted, checked, tidied. Need no model."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column

from service.commands.console import console, many, plain_table, size, status, tell
from service.commands.options import AsJson, StoreUrl

if TYPE_CHECKING:
    from store.blob_store import BlobStore
    from store.scrub import GcReport, ScrubReport

GRACE_HOURS = 24.0  # as `store.scrub` has it
EVERY = 100  # blobs between two looks at the screen


def stats(
    *,
    store: StoreUrl = "",
    models: Annotated[
        bool,
        typer.Option(
            "--models", help="Tell apart by tenant, model fingerprint, codec and its format; reads every head."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what the store holds, tier by tier: blobs, their bytes on the medium, and the budget.

    Examples:
      kvweave stats
      kvweave stats --models
      kvweave stats --store lmdb:///var/lib/kvweave --json
    """
    with _opened(store) as opened:
        if models:
            _show_models(opened, as_json=as_json)
            return
        rows = opened.usage()
    if as_json:
        _print_json([asdict(row) for row in rows])
        return
    columns = (Column(name, justify="right", no_wrap=True) for name in ("blobs", "size", "bytes", "budget"))
    table = plain_table(Column("tier", no_wrap=True), *columns)
    for row in rows:
        budget = "none" if row.budget is None else size(row.budget)
        table.add_row(row.tier, f"{row.blobs:,}", size(row.nbytes), f"{row.nbytes:,}", budget)
    console().print(table)


def _blobs_by_kind(store: "BlobStore") -> dict[tuple[str, ...], tuple[int, int]]:
    """How many blobs there are of each tier, tenant, fingerprint, codec and format, and their bytes."""
    from store.reader import BlobReader

    held: dict[tuple[str, ...], tuple[int, int]] = {}
    for tier in store.tiers:
        for entry in tier.entries():
            key, found = entry.key, tier.open(entry.key)
            version = str(found.head.format) if isinstance(found, BlobReader) else found.reason
            kind = (tier.name, key.tenant, key.origin, key.codec, version)
            blobs, nbytes = held.get(kind, (0, 0))
            held[kind] = blobs + 1, nbytes + entry.nbytes
    return held


def _show_models(store: "BlobStore", *, as_json: bool) -> None:
    held = _blobs_by_kind(store)
    names = ("tier", "tenant", "fingerprint", "codec", "format")
    if as_json:
        rows = ({**dict(zip(names, kind, strict=True)), "blobs": n, "nbytes": b} for kind, (n, b) in held.items())
        _print_json(list(rows))
        return
    numbers = (Column(name, justify="right", no_wrap=True) for name in ("blobs", "size"))
    table = plain_table(*(Column(name, overflow="fold") for name in names), *numbers)
    for kind, (blobs, nbytes) in sorted(held.items()):
        table.add_row(*kind, f"{blobs:,}", size(nbytes))
    console().print(table)


def verify(*, store: StoreUrl = "", as_json: AsJson = False) -> None:
    """Check every frame of every blob, and all catalogs; put bad blobs into quarantine. Exits with 1 if any was bad.

    A chunk whose blob was bad is computed again when it is needed. `kvweave gc` empties the quarantine after a day.
    Documents that are damaged must be put in again; where other rows of a catalog are wrong, a backup restored.

    Examples:
      kvweave verify
      kvweave verify --store s3://bucket/prefix --json
    """
    from store.scrub import ScrubReport
    from store.scrub import verify as scrub

    report, catalogs = ScrubReport(), dict(_catalogs())
    with _opened(store) as opened, status("checking") as show:
        for done, report in scrub(opened):
            if done % EVERY == 0:
                show(f"{many(done, 'blob')} checked, {len(report.bad):,} bad")
    if as_json:
        bad = [{"tier": b.tier, "key": b.key.text, "reason": b.reason, "detail": b.detail} for b in report.bad]
        _print_json(
            {
                "checked": report.checked,
                "bytes": report.nbytes,
                "bad": bad,
                "strays": report.strays,
                "catalogs": catalogs,
            }
        )
    else:
        for sentence in (*_checked(report), *(line for lines in catalogs.values() for line in lines)):
            tell(sentence)
    raise typer.Exit(1 if report.bad or any(catalogs.values()) else 0)


def _catalogs() -> Iterator[tuple[str, list[str]]]:
    """What is wrong in each tenant's catalog."""
    from retriever.errors import CatalogError
    from service.app.compose_truth import compose_truth
    from service.settings import load_settings

    with closing(compose_truth(load_settings())) as truth:
        for name in truth.tenants():
            try:
                report = truth.check(name)
            except CatalogError as error:
                yield name, [f"bad: {error}"]
                continue
            bad = [f"bad: document {each!r} of tenant {name!r} is damaged: put it in again" for each in report.damaged]
            remedy = "restore a backup, or put all documents into an empty place"
            yield name, [*bad, *(f"bad: {each} of tenant {name!r} are not right: {remedy}" for each in report.wrong)]


def gc(
    *,
    store: StoreUrl = "",
    fingerprint: Annotated[
        str,
        typer.Option(metavar="ID", help="Also remove all blobs of this model fingerprint.", show_default=False),
    ] = "",
    grace_hours: Annotated[
        float, typer.Option(metavar="HOURS", help="Keep quarantined blobs for so long.", min=0)
    ] = GRACE_HOURS,
    compact: Annotated[bool, typer.Option("--compact", help="Give free space back; stop the service first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Empty the quarantine and remove what killed deletes left behind; a model's blobs only when it is named.

    `kvweave stats --models` shows the fingerprints.

    Examples:
      kvweave gc
      kvweave gc --compact
      kvweave gc --fingerprint 3fa9c1
    """
    from store.scrub import collect

    with _opened(store) as opened:
        report = collect(opened, fingerprint or None, grace_s=grace_hours * 3600)
        freed = opened.compact() if compact else None
    if as_json:
        _print_json({**asdict(report), "compacted": freed or 0})
        return
    for sentence in _collected(report, freed):
        tell(sentence)


def _checked(report: "ScrubReport") -> Iterator[str]:
    for row in report.bad:
        yield f"bad: {row.tier} {row.key.text}: {row.detail}"
    for name in report.strays:
        yield f"not written by kvweave, left alone: {name}"
    held = f"{many(report.checked, 'blob')} checked, {size(report.nbytes)}"
    bad = f"{len(report.bad):,} bad: what they held is computed again when it is needed"
    yield f"{held}: {bad if report.bad else 'all are sound'}."


def _collected(report: "GcReport", freed: int | None) -> Iterator[str]:
    parts = {
        "of the named fingerprint": report.fingerprint,
        "out of quarantine": report.quarantined,
    }
    removed = sum(parts.values())
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in parts.items() if count)
    yield (
        f"Removed {many(removed, 'blob')} ({kinds}), {size(report.nbytes)}."
        if removed
        else "Nothing was to be removed."
    )
    if report.deletions:
        yield f"Forgot {many(report.deletions, 'old deletion')}."
    if freed is not None:
        yield f"Gave {size(freed)} back to the disk."


def _opened(url: str) -> "BlobStore":
    from service.settings import load_settings
    from store.url import open_store

    settings = load_settings()
    return open_store(url or settings.store)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))
