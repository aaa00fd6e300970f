"""The commands `kvweave keys`: options in, a table or JSON out. Works on the file, whether a service runs or not."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, cast

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from retriever.documents import Json
from service.access.control import Control, KeyEntry, Quota
from service.access.errors import AccessError
from service.access.identity import DEFAULT_TENANT, Role
from service.access.moving import CONTROL
from service.settings import load_settings

keys = typer.Typer(
    name="keys", help="Make, list and revoke API keys, and set what a tenant may keep.", no_args_is_help=True
)  # fmt: skip

WIDTH = 112  # of the table

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Named = Annotated[str, typer.Option(help="Whose key it is.")]
Filter = Annotated[
    str, typer.Option("--filter", help="A filter on metadata that the key's holder cannot widen.", show_default=False)
]
PerMinute = Annotated[int, typer.Option(help="Requests a minute; 0 for no limit.", min=0)]
Documents = Annotated[int, typer.Option(help="How many documents it may keep; 0 lifts the limit.", show_default=False)]
Chunks = Annotated[int, typer.Option(help="How many chunks it may keep; 0 lifts the limit.", show_default=False)]


@keys.command()
def create(
    *,
    tenant: Named = DEFAULT_TENANT,
    role: Annotated[str, typer.Option(help="read, write or admin; each may do what the one before may.")] = "read",
    where: Filter = "",
    per_minute: PerMinute = 0,
    note: Annotated[str, typer.Option(help="What listings show beside it.", show_default=False)] = "",
    as_json: AsJson = False,
) -> None:
    """Make a key and print it. It is kept as a digest only, so it cannot be shown again.

    Example: kvweave keys create --tenant acme --role write --filter '{"team": "law"}' --per-minute 60
    """
    bound = _filter(where) if where else None
    with _control() as control:
        entry, key = control.create_key(
            tenant, _role(role), bound=bound, per_minute=per_minute or None, note=note
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps({**_shown(entry), "key": key}, indent=2))
    else:
        typer.echo(key)
        typer.echo(f"key {entry.id} of {tenant}, role {entry.role.label}: it is shown only now", err=True)


@keys.command("list")
def list_keys(
    *,
    tenant: Annotated[str, typer.Option(help="Only the keys of this one.", show_default=False)] = "",
    as_json: AsJson = False,
) -> None:
    """Show all keys, the revoked ones too; none of them can be used with what is shown."""
    with _control() as control:
        found = control.keys(tenant or None)
    if as_json:
        typer.echo(json.dumps([_shown(entry) for entry in found], indent=2))
        return
    columns = ("tenant", "role", "filter", "a minute", "note", "created", "revoked")
    table = Table(Column("id", no_wrap=True), *columns, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for entry in found:
        table.add_row(*(escape(cell) for cell in _cells(entry)))
    console = Console()
    console.width = max(console.width, WIDTH)
    console.print(table)


@keys.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As `keys list` shows it.")], *, as_json: AsJson = False
) -> None:
    """Let a key in no more, from now on and in every running service."""
    with _control() as control:
        if not control.revoke_key(key_id):
            raise AccessError(f"there is no key {key_id!r} in force: `kvweave keys list` shows the ids")
    typer.echo(json.dumps({"id": key_id, "revoked": True}) if as_json else f"revoked {key_id}")


@keys.command()
def quota(
    tenant: Annotated[str, typer.Argument(help="Whose limits.")],
    *,
    documents: Documents = -1,
    chunks: Chunks = -1,
    as_json: AsJson = False,
) -> None:
    """Show or set how much a tenant may keep.

    Example: kvweave keys quota acme --documents 10000 --chunks 0
    """
    with _control() as control:
        found = control.quota(tenant)
        if documents >= 0 or chunks >= 0:
            found = Quota(_limit(documents, found.documents), _limit(chunks, found.chunks))
            control.set_quota(tenant, found)
    if as_json:
        typer.echo(json.dumps({"tenant": tenant, "documents": found.documents, "chunks": found.chunks}))
    else:
        typer.echo(f"{tenant}: documents {_number(found.documents)}, chunks {_number(found.chunks)}")


@contextmanager
def _control() -> Generator[Control]:
    control = Control(load_settings().data / CONTROL)
    try:
        yield control
    finally:
        control.close()


def _role(name: str) -> Role:
    try:
        return Role.parse(name)
    except ValueError as error:
        raise AccessError(str(error)) from None


def _filter(text: str) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AccessError(f'--filter takes JSON such as \'{{"team": "law"}}\', got {text[:60]!r}: {error}') from None
    if not isinstance(found, dict):
        raise AccessError(f"--filter takes a JSON object, got {text[:60]!r}")
    return cast(Json, found)


def _limit(wanted: int, found: int | None) -> int | None:
    """What was not asked for stays."""
    return found if wanted < 0 else wanted or None


def _shown(entry: KeyEntry) -> dict[str, object]:
    return {
        "id": entry.id,
        "tenant": entry.tenant,
        "role": entry.role.label,
        "filter": entry.bound,
        "per_minute": entry.per_minute,
        "note": entry.note,
        "created": entry.created,
        "revoked": entry.revoked,
    }


def _cells(entry: KeyEntry) -> tuple[str, ...]:
    return (
        entry.id,
        entry.tenant,
        entry.role.label,
        "" if entry.bound is None else json.dumps(entry.bound, ensure_ascii=False),
        _number(entry.per_minute),
        entry.note,
        _time(entry.created),
        "" if entry.revoked is None else _time(entry.revoked),
    )


def _number(limit: int | None) -> str:
    return "no limit" if limit is None else f"{limit:,}"


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
