"""The commands `kvweave backup`, `restore` and `migrate`: a sentence or JSON out. No backups of PostgreSQL."""

import json
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from service.commands.console import many, size, status, tell
from service.commands.options import AsJson

if TYPE_CHECKING:
    from service.settings import Settings
    from service.truth.truth import Truth

File = Annotated[Path, typer.Argument(metavar="FILE", help="The archive.")]
Place = Annotated[str, typer.Argument(metavar="TO", help="An empty folder, or the URL of an empty database.")]


def backup(
    file: File,
    *,
    blobs: Annotated[bool, typer.Option("--blobs", help="With the keys and values; else they are recomputed.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write keys, quotas and all catalogs into one file, also while a service runs. It holds all texts: keep it safe.

    Examples:
      kvweave backup kvweave.tar.zst
      kvweave backup kvweave.tar.zst --blobs --force
    """
    from service.settings import load_settings
    from service.truth.backup import back_up
    from store.url import open_store

    settings = load_settings()
    _check_files(settings)
    with ExitStack() as stack:
        store = stack.enter_context(open_store(settings.store)) if blobs else None
        report = back_up(file, settings.data, store=store, force=force)
    if as_json:
        typer.echo(json.dumps({**asdict(report), "file": str(report.file)}, indent=2))
        return
    left = f"; {many(report.left_out, 'blob')} left out that could not be read" if report.left_out else ""
    catalogs, held = many(len(report.tenants), "catalog"), many(report.blobs, "blob")
    tell(f"{file}: {catalogs}, {held}, {size(report.nbytes)}{left}")


def restore(
    file: File,
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace the keys and catalogs that are there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put a backup in the place of what is there. The service must be stopped. What came later than it is lost.

    Every digest is checked before anything changes. Blobs that are not in it are computed again when they are needed.

    Examples:
      kvweave restore kvweave.tar.zst
      kvweave restore kvweave.tar.zst --force
    """
    from service.settings import load_settings
    from service.truth.restore import restore as put_back
    from store.url import open_store

    settings = load_settings()
    _check_files(settings)
    report = put_back(file, settings.data, force=force, open_store=lambda: open_store(settings.store))
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
        return
    outcomes = ", ".join(f"{count:,} {name}" for name, count in report.blobs.items()) or "none"
    tell(f"restored {many(len(report.tenants), 'catalog')} and all keys into {settings.data}; blobs: {outcomes}")
    if report.untouched:
        tell(f"left alone, for the backup does not know them: {', '.join(report.untouched)}", err=True)


def _check_files(settings: "Settings") -> None:
    """Raises SettingsError where PostgreSQL has what is to be backed up."""
    from service.settings import SettingsError

    if settings.database:
        raise SettingsError("data is in PostgreSQL, which has backups of its own: use pg_dump and pg_restore")


def migrate(to: Place, *, as_json: AsJson = False) -> None:
    """Move keys and all catalogs from where KVWEAVE_DATA says into PostgreSQL, or back into a folder. Neither may be
    served meanwhile. All is compared. What is there stays; the store of caches is left where it is.

    Examples:
      kvweave migrate postgresql://kvweave@db.internal/kvweave
      kvweave migrate /var/lib/kvweave
    """
    from service.settings import SettingsError, load_settings
    from service.truth.migrate import migrate as move

    source, target = load_settings(), load_settings(data=to)
    if not source.database and not source.data.is_dir():
        raise SettingsError(f"there is no folder {source.data}: is KVWEAVE_DATA right?")
    with (
        TemporaryDirectory() as scratch,
        closing(_opened(source, Path(scratch, "source"))) as given,
        closing(_opened(target, Path(scratch, "target"))) as taken,
        status("migrating") as show,
    ):
        report = move(given, taken, show=lambda doing: show(f"migrating: {doing}"))
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
        return
    held = f"{many(len(report.tenants), 'catalog')} with {many(report.documents, 'document')}, and all keys"
    tell(f"Moved {held}: {many(report.rows, 'row')}, all the same in both. Let KVWEAVE_DATA name the new place.")


def _opened(settings: "Settings", scratch: Path) -> "Truth":
    """Where the settings keep keys and catalogs. Of a database's machine nothing is moved, so its folder is free."""
    from service.app.compose_truth import compose_truth

    return compose_truth(settings.model_copy(update={"data": scratch}) if settings.database else settings)
