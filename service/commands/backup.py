"""The commands `kvweave backup` and `kvweave restore`: options in, a sentence or JSON out."""

import json
from collections.abc import Sized
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from service.settings import load_settings

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
File = Annotated[Path, typer.Argument(help="The archive.")]


def backup(
    file: File,
    *,
    blobs: Annotated[bool, typer.Option("--blobs", help="With the keys and values; else they are recomputed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write keys, quotas and all catalogs into one file, also while a service runs. It holds all texts: keep it safe.

    Example: kvweave backup /var/backups/kvweave.tar.zst
    """
    from service.access.backup import back_up
    from service.composition import compose_store

    settings = load_settings()
    with ExitStack() as stack:
        store = stack.enter_context(compose_store(settings)) if blobs else None
        report = back_up(file, settings.data, store=store)
    if as_json:
        typer.echo(json.dumps({**asdict(report), "file": str(report.file)}, indent=2))
        return
    left = f", {report.left_out:,} blobs left out" if report.left_out else ""
    typer.echo(f"{file}: {_catalogs(report.tenants)}, {report.blobs:,} blobs, {report.nbytes:,} bytes{left}")


def restore(
    file: File,
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace the keys and catalogs that are there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put a backup in the place of what is there. The service must be stopped. What came later than it is lost.

    Example: kvweave restore /var/backups/kvweave.tar.zst --force
    """
    from service.access.restore import restore as put_back
    from service.composition import compose_store

    settings = load_settings()
    report = put_back(file, settings.data, force=force, open_store=lambda: compose_store(settings))
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
        return
    outcomes = ", ".join(f"{count:,} {name}" for name, count in report.blobs.items()) or "none"
    typer.echo(f"restored {_catalogs(report.tenants)} and all keys into {settings.data}; blobs: {outcomes}")
    if report.untouched:
        typer.echo(f"left alone, for the backup does not know them: {', '.join(report.untouched)}", err=True)


def _catalogs(tenants: Sized) -> str:
    return "1 catalog" if len(tenants) == 1 else f"{len(tenants):,} catalogs"
