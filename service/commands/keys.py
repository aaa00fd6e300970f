"""The commands `kvweave keys`: create, list, revoke, quota; a table or JSON out, whether a service runs or not."""

import json
from collections.abc import Generator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.markup import escape
from rich.padding import Padding
from rich.table import Column
from rich.text import Text

from service.access.principal import DEFAULT_TENANT
from service.commands import pages
from service.commands.console import console, plain_table, tell
from service.commands.options import AsJson, a_role

if TYPE_CHECKING:
    from retriever.documents import Json
    from service.access.principal import Role
    from service.truth.control import Control, KeyEntry

WIDE = 100  # columns, from which on keys are a table

END = """
Examples:
  kvweave keys create --role write --note "for Anna"
  kvweave keys list
"""

keys = typer.Typer(
    name="keys",
    cls=pages.Contents,
    help="Make, list and revoke API keys, and set what a tenant may keep.",
    no_args_is_help=True,
    epilog=END,
)

Named = Annotated[str, typer.Option(metavar="NAME", help="Whose key it is.")]
Filter = Annotated[
    str,
    typer.Option(
        "--filter", metavar="JSON", help="A filter on metadata that the key's holder cannot widen.", show_default=False
    ),
]
PerMinute = Annotated[int, typer.Option(metavar="N", help="Requests a minute; 0 for no limit.", min=0)]
Documents = Annotated[
    int | None,
    typer.Option(metavar="N", help="How many documents it may keep; 0 lifts the limit.", min=0, show_default=False),
]
Chunks = Annotated[
    int | None,
    typer.Option(metavar="N", help="How many chunks it may keep; 0 lifts the limit.", min=0, show_default=False),
]


@pages.command(keys)
def create(
    *,
    tenant: Named = DEFAULT_TENANT,
    role: Annotated[
        str,
        typer.Option(
            metavar="ROLE",
            help="fetch (for a vLLM), read, write or admin; each may do what the one before may.",
            autocompletion=a_role,
        ),
    ] = "read",
    where: Filter = "",
    per_minute: PerMinute = 0,
    note: Annotated[str, typer.Option(metavar="TEXT", help="What listings show beside it.", show_default=False)] = "",
    as_json: AsJson = False,
) -> None:
    """Make a key and print it. It is kept as a digest only, so it cannot be shown again.

    The key alone goes to standard output. A service that runs knows it at once.

    Examples:
      kvweave keys create --role write --note "for Anna"
      kvweave keys create --filter '{"team": "law"}' --json
      kvweave keys create --tenant acme --per-minute 60
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
        tell(f"key {entry.id} of {tenant}, role {entry.role.label}: it is shown only now", err=True)


@pages.command(keys, "list")
def list_keys(
    *,
    tenant: Annotated[str, typer.Option(metavar="NAME", help="Only the keys of this one.", show_default=False)] = "",
    as_json: AsJson = False,
) -> None:
    """Show all keys, the revoked ones too; none of them can be used with what is shown.

    Examples:
      kvweave keys list
      kvweave keys list --tenant acme --json
    """
    with _control() as control:
        found = control.keys(tenant or None)
    if as_json:
        typer.echo(json.dumps([_shown(entry) for entry in found], indent=2))
        return
    if not found:
        tell("There is no key yet: kvweave keys create makes one, and so does the first kvweave serve.", err=True)
        return
    screen = console()
    rows = [_cells(entry) for entry in found]
    if screen.width < WIDE:
        for row in rows:
            _paragraph(row)
        return
    used = [name for name in rows[0] if any(row[name] for row in rows)]
    whole = (Column(name, no_wrap=name in ("id", "role", "created", "revoked")) for name in used)
    table = plain_table(*whole, collapse_padding=True)
    for row in rows:
        table.add_row(*(escape(row[name]) for name in used))
    screen.print(table)


def _paragraph(row: dict[str, str]) -> None:
    """Prints a key in lines, for narrow terminals."""
    tell(f"{row['id']}  {row['role']} of {row['tenant']}, {row['created']}", style="bold")
    for name in ("revoked", "filter", "a minute", "note"):
        if row[name]:
            console().print(Padding(Text(f"{name}: {row[name]}"), (0, 0, 0, 2), expand=False))


@pages.command(keys)
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As `keys list` shows it.")], *, as_json: AsJson = False
) -> None:
    """Let a key in no more, from now on and in every running service.

    Examples:
      kvweave keys list
      kvweave keys revoke KEY_ID
    """
    from service.errors import AccessError

    with _control() as control:
        if not control.revoke_key(key_id):
            raise AccessError(f"there is no key {key_id!r} in force: `kvweave keys list` shows the ids")
    typer.echo(json.dumps({"id": key_id, "revoked": True}) if as_json else f"revoked {key_id}")


@pages.command(keys)
def quota(
    tenant: Annotated[str, typer.Argument(help="Whose limits.")],
    *,
    documents: Documents = None,
    chunks: Chunks = None,
    as_json: AsJson = False,
) -> None:
    """Show or set how much a tenant may keep. What is over a new limit stays; nothing more is taken.

    Examples:
      kvweave keys quota acme
      kvweave keys quota acme --documents 10000 --chunks 0
    """
    from service.truth.control import Quota

    with _control() as control:
        found = control.quota(tenant)
        if documents is not None or chunks is not None:
            found = Quota(_limit(documents, found.documents), _limit(chunks, found.chunks))
            control.set_quota(tenant, found)
    if as_json:
        typer.echo(json.dumps({"tenant": tenant, "documents": found.documents, "chunks": found.chunks}))
    else:
        typer.echo(f"{tenant}: documents {_number(found.documents)}, chunks {_number(found.chunks)}")


@contextmanager
def _control() -> Generator["Control"]:
    from service.app.compose_truth import compose_truth
    from service.settings import load_settings

    with closing(compose_truth(load_settings())) as truth, closing(truth.control()) as control:
        yield control


def _role(name: str) -> "Role":
    from service.access.principal import Role
    from service.errors import AccessError

    try:
        return Role.parse(name)
    except ValueError as error:
        raise AccessError(str(error)) from None


def _filter(text: str) -> "Json":
    from service.errors import AccessError

    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AccessError(f'--filter takes JSON such as \'{{"team": "law"}}\', got {text[:60]!r}: {error}') from None
    if not isinstance(found, dict):
        raise AccessError(f"--filter takes a JSON object, got {text[:60]!r}")
    return cast("Json", found)


def _limit(wanted: int | None, found: int | None) -> int | None:
    """The new limit: what was not asked for stays, 0 is none."""
    return found if wanted is None else wanted or None


def _shown(entry: "KeyEntry") -> dict[str, object]:
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


def _cells(entry: "KeyEntry") -> dict[str, str]:
    return {
        "id": entry.id,
        "tenant": entry.tenant,
        "role": entry.role.label,
        "filter": "" if entry.bound is None else json.dumps(entry.bound, ensure_ascii=False),
        "a minute": "" if entry.per_minute is None else f"{entry.per_minute:,}",
        "note": entry.note,
        "created": _time(entry.created),
        "revoked": "" if entry.revoked is None else _time(entry.revoked),
    }


def _number(limit: int | None) -> str:
    return "no limit" if limit is None else f"{limit:,}"


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"
