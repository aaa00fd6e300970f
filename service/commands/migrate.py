"""The command `kvweave migrate`: where to, and a sentence or JSON out."""

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from service.commands.console import many, status, tell
from service.commands.options import AsJson

if TYPE_CHECKING:
    from service.settings import Settings
    from service.truth.truth import Truth

Place = Annotated[str, typer.Argument(metavar="TO", help="An empty folder, or the URL of an empty database.")]


def migrate(to: Place, *, as_json: AsJson = False) -> None:
    """Move keys and all catalogs from where KVWEAVE_DATA says into PostgreSQL, or back into a folder. Neither may be
    served meanwhile. All is compared. What is there stays; the store of caches is left where it is.

    Examples:
      kvweave migrate postgresql://kvweave@db.internal/kvweave
      kvweave migrate /var/lib/kvweave
    """
    from service.settings import Settings, SettingsError, load_settings
    from service.truth.migrate import migrate as move

    source, target = load_settings(), Settings.model_validate({"data": to})
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
