"""The commands `kvweave ask` and `search`: a service asked over HTTP; its address, key and timeout; what is printed."""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.markup import escape
from rich.padding import Padding
from rich.table import Column
from rich.text import Text

from service.commands.console import LOOPBACK, address, console, plain_table, tell
from service.commands.options import AsJson, a_policy
from service.event_parser import EventParser

if TYPE_CHECKING:
    import httpx

    from service.settings import Settings

Json = dict[str, object]

SHOWN = 100  # letters of a passage in a table
WIDE = 100  # columns, from which on sources are a table
WAIT_S = 600  # for an answer; a queue may be long

place_option = partial(typer.Option, rich_help_panel="Where the service is")

Question = Annotated[str, typer.Argument(help="In plain words.", metavar="QUESTION")]
Url = Annotated[
    str,
    place_option(metavar="URL", help="By default as in the settings.", envvar="KVWEAVE_BASE_URL", show_default=False),
]
Key = Annotated[
    str,
    place_option(
        metavar="KEY",
        help="An API key; for this machine by default that of admin.key in the data folder.",
        envvar="KVWEAVE_API_KEY",
        show_default=False,
    ),
]
Within = Annotated[str, typer.Option(metavar="NAME", help="One collection; all by default.", show_default=False)]
Where = Annotated[str, typer.Option("--filter", metavar="JSON", help="A filter on metadata.", show_default=False)]
TopK = Annotated[
    int | None,
    typer.Option(metavar="N", help="How many chunks; by default as the service is set.", min=0, show_default=False),
]
Policy = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="How chunks are reused; full computes all anew.",
        show_default=False,
        autocompletion=a_policy,
    ),
]


def ask(
    question: Question,
    *,
    collection: Within = "",
    where: Where = "",
    top_k: TopK = None,
    policy: Policy = "",
    url: Url = "",
    key: Key = "",
    as_json: AsJson = False,
) -> None:
    """Ask a running service, and show the answer as it comes, with its sources.

    The answer and its sources go to standard output, what it took to standard error.

    Examples:
      kvweave ask "Which animal does Halio keep?"
      kvweave ask "Who lives in K7?" --filter '{"lang": "en"}'
      kvweave ask "Who lives in K7?" --policy full --json
    """
    body: Json = {"question": question, **_narrowed(collection, where, top_k=top_k)}
    body |= {"blend": {"policy": policy}} if policy else {}
    with _client(url, key) as client:
        if as_json:
            typer.echo(json.dumps(_good(client.post("/v1/query", json=body)), indent=2))
            return
        with client.stream("POST", "/v1/query", json={**body, "stream": True}) as response:
            if not response.is_success:
                response.read()
                _good(response)
            _tell_all(_events(response))


def search(
    question: Question,
    *,
    collection: Within = "",
    where: Where = "",
    top_k: TopK = None,
    url: Url = "",
    key: Key = "",
    as_json: AsJson = False,
) -> None:
    """Show the chunks of a running service that fit best.

    Examples:
      kvweave search "badger"
      kvweave search "badger" --collection letters --top-k 3
    """
    body: Json = {"query": question, **_narrowed(collection, where, top_k=top_k)}
    with _client(url, key) as client:
        found = _good(client.post("/v1/search", json=body))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    _sources(cast("list[Json]", found["hits"]))
    if note := found.get("note"):
        tell(f"\n{note}", err=True, style="yellow")


def _narrowed(collection: str, where: str, *, top_k: int | None) -> Json:
    from service.errors import Invalid

    try:
        condition = json.loads(where) if where else None
    except (ValueError, RecursionError) as error:
        raise Invalid(f'--filter takes JSON such as \'{{"lang": "en"}}\', got {where[:60]!r}: {error}') from None
    wanted: Json = {"collection": collection or None, "filter": condition, "top_k": top_k}
    return {name: value for name, value in wanted.items() if value is not None}


@contextmanager
def _client(url: str, key: str) -> Generator["httpx.Client"]:
    import httpx

    from service.errors import Invalid, Unavailable
    from service.settings import load_settings

    settings = load_settings()
    named = url.strip().rstrip("/").removesuffix("/v1")  # as clients of OpenAI's name it
    url, key = named or address(settings.host, settings.port), key.strip() or _key(settings, named)
    if not (key.isascii() and key.isprintable()):
        raise Invalid("--key holds letters that no key has: copy it again, in KVWEAVE_API_KEY too")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with _http(url, headers) as client:
            yield client
    except (httpx.UnsupportedProtocol, httpx.InvalidURL, UnicodeError) as error:
        if isinstance(error, UnicodeError) and "idna" not in str(error):  # of the question, and no host's name
            raise
        raise Invalid(
            f"--url {url!r} is no address: write it as http://127.0.0.1:8000, in KVWEAVE_BASE_URL too"
        ) from None
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise Unavailable(f"no service answers at {url} ({error}): run kvweave serve, or name its --url") from None
    except httpx.TimeoutException:
        raise Unavailable(f"{url} did not answer within {WAIT_S} s: its log says what it does; ask again") from None
    except httpx.TransportError as error:
        raise Unavailable(f"{url} broke off ({error}): see the service's log, and ask again") from None


def _http(url: str, headers: dict[str, str]) -> "httpx.Client":
    import httpx

    from service.errors import Invalid

    try:
        return httpx.Client(base_url=url, headers=headers, timeout=WAIT_S)
    except (ImportError, ValueError) as error:
        raise Invalid(
            f"a proxy of the environment cannot be used ({error}): mend ALL_PROXY and its like, or set NO_PROXY='*'"
        ) from None


def _key(settings: "Settings", named: str) -> str:
    """The operator's key; none where another machine is named, which must not learn it."""
    import httpx

    from service.truth.databases import ADMIN_KEY

    try:
        if named and httpx.URL(named).host not in (*LOOPBACK, settings.host):
            return ""
        return (settings.data / ADMIN_KEY).read_text("ascii").strip()
    except (OSError, UnicodeError, httpx.InvalidURL):
        return ""


def _good(response: "httpx.Response") -> Json:
    """The body of an answer that succeeded. Raises ServiceError with what the service says of one that did not."""
    from service.errors import ServiceError, Unauthorized

    try:
        body: object = response.json()
    except ValueError:
        body = None
    found = cast(Json, body) if isinstance(body, dict) else {}
    if response.is_success:
        return found or _strange(response)
    detail = str(found.get("detail") or f"{response.url} answered {response.status_code}: is it a kvweave service?")
    if response.status_code == 401:
        raise Unauthorized(f"{detail}; name it by --key or KVWEAVE_API_KEY")
    raise ServiceError(detail)


def _strange(response: "httpx.Response") -> Json:
    from service.errors import ServiceError

    raise ServiceError(f"what answers at {response.url} is no kvweave service: name its --url")


def _events(response: "httpx.Response") -> Iterator[tuple[str, Json]]:
    if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
        _strange(response)
    parser = EventParser()
    for part in response.iter_bytes():
        for event in parser.feed(part):
            yield event.name, cast(Json, json.loads(event.data))


def _tell_all(events: Iterator[tuple[str, Json]]) -> None:
    from service.errors import ServiceError

    for name, event in events:
        match name:
            case "token":
                typer.echo(event["text"], nl=False)
            case "error":
                typer.echo()
                raise ServiceError(str(event.get("detail", "the answer ended early")))
            case "fused":
                for note in cast("list[str]", cast(Json, event["report"]).get("notes", [])):
                    tell(f"{note}\n", err=True, style="yellow")
            case "done":
                typer.echo("\n")
                _sources(sorted(cast("list[Json]", event["sources"]), key=lambda each: -float(str(each["score"]))))
                _account(event)
                return
            case _:
                pass
    typer.echo()
    raise ServiceError("the answer ended early: the service was stopped; ask again")


def _sources(found: list[Json]) -> None:
    if not found:
        tell("Nothing was found.", err=True)
        return
    screen = console()
    if screen.width < WIDE:
        for place, each in enumerate(found):
            _paragraph(each, above=int(place > 0))
        return
    table = plain_table(*(Column(name, no_wrap=True) for name in ("score", "document")), "title", "text")
    for each in found:
        table.add_row(
            _score(each), *(escape(str(each[name])) for name in ("document_id", "title")), escape(_shown(each))
        )
    screen.print(table)


def _paragraph(found: Json, *, above: int) -> None:
    """Prints a passage for narrow terminals: what tells it from the others in one line, its text below."""
    screen, title = console(), str(found["title"])
    name = str(found["document_id"])
    head = Text.assemble(_score(found), "  ", (name, "bold"), f"  {title}" if title not in ("", name) else "")
    screen.print(Padding(head, (above, 0, 0, 0), expand=False))
    screen.print(Padding(Text(_shown(found)), (0, 0, 0, 2), expand=False))


def _score(found: Json) -> str:
    return f"{float(str(found['score'])):.2f}"


def _shown(found: Json) -> str:
    text = " ".join(str(found["text"]).split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _account(event: Json) -> None:
    usage, report = cast("dict[str, int]", event["usage"]), cast(Json, event["report"])
    timings = cast("dict[str, float]", report["timings_ms"])
    why = f" ({report['reason']})" if report.get("reason") else ""
    tell(
        f"\n{usage['prompt_tokens']:,} prompt tokens, {usage['reused_tokens']:,} reused, "
        f"{usage['recomputed_tokens']:,} recomputed{why}; first token {timings.get('first_token', 0):.0f} ms",
        err=True,
    )
