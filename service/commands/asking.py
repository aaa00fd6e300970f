"""The commands `kvweave ask` and `kvweave search`: a running service asked over HTTP, as any other client would."""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Annotated, cast

import httpx
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from service.access.moving import ADMIN_KEY
from service.errors import ServiceError, Unauthorized, Unavailable
from service.settings import Settings, load_settings

Json = dict[str, object]

SHOWN = 100  # letters of a passage in a table

Question = Annotated[str, typer.Argument(help="In plain words.")]
Url = Annotated[str, typer.Option(help="Where the service is; by default as in the settings.", show_default=False)]
Key = Annotated[str, typer.Option(help="An API key; by default the one in the data folder.", show_default=False)]
Within = Annotated[str, typer.Option(help="One collection; all by default.", show_default=False)]
Where = Annotated[str, typer.Option("--filter", help="A filter on metadata, as JSON.", show_default=False)]
TopK = Annotated[int, typer.Option(help="How many chunks; the service's own number by default.", show_default=False)]
Policy = Annotated[str, typer.Option(help="How chunks are reused, such as full.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def ask(
    question: Question,
    *,
    collection: Within = "",
    where: Where = "",
    top_k: TopK = -1,
    policy: Policy = "",
    url: Url = "",
    key: Key = "",
    as_json: AsJson = False,
) -> None:
    """Ask a running service, and show the answer as it comes, with its sources.

    Example: kvweave ask "Which animal does Halio keep?" --filter '{"lang": "en"}'
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
            for name, event in _events(response.iter_lines()):
                _tell(name, event)


def search(
    question: Question,
    *,
    collection: Within = "",
    where: Where = "",
    top_k: TopK = -1,
    url: Url = "",
    key: Key = "",
    as_json: AsJson = False,
) -> None:
    """Show the chunks of a running service that fit best.

    Example: kvweave search "badger" --collection letters --top-k 3
    """
    body: Json = {"query": question, **_narrowed(collection, where, top_k=top_k)}
    with _client(url, key) as client:
        found = _good(client.post("/v1/search", json=body))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    _sources(cast("list[Json]", found["hits"]))


def _narrowed(collection: str, where: str, *, top_k: int) -> Json:
    try:
        condition = json.loads(where) if where else None
    except ValueError as error:
        raise typer.BadParameter(f'--filter takes JSON such as \'{{"lang": "en"}}\': {error}') from None
    wanted: Json = {"collection": collection or None, "filter": condition, "top_k": None if top_k < 0 else top_k}
    return {name: value for name, value in wanted.items() if value is not None}


@contextmanager
def _client(url: str, key: str) -> Generator[httpx.Client]:
    settings = load_settings()
    url, key = url or f"http://{settings.host}:{settings.port}", key or _key(settings)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=600) as client:
            yield client
    except httpx.TransportError as error:
        raise Unavailable(f"no service answers at {url} ({error}): run kvweave serve, or name its --url") from None


def _key(settings: Settings) -> str:
    try:
        return (settings.data / ADMIN_KEY).read_text("ascii").strip()
    except OSError:
        return ""


def _good(response: httpx.Response) -> Json:
    """The body of what succeeded; what the service says of what did not."""
    if response.is_success:
        return cast(Json, response.json())
    try:
        problem = cast(Json, response.json())
    except ValueError:
        problem = {}
    said = str(problem.get("detail") or f"the service answered {response.status_code}")
    raise (Unauthorized if response.status_code == 401 else ServiceError)(said)


def _events(lines: Iterator[str]) -> Iterator[tuple[str, Json]]:
    name = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, cast(Json, json.loads(value))


def _tell(name: str, event: Json) -> None:
    match name:
        case "token":
            typer.echo(event["text"], nl=False)
        case "error":
            typer.echo()
            raise ServiceError(str(event.get("detail", "the answer ended early")))
        case "done":
            typer.echo()
            _sources(cast("list[Json]", event["sources"]))
            _account(event)
        case _:
            pass


def _sources(found: list[Json]) -> None:
    if not found:
        typer.echo("Nothing was found.", err=True)
        return
    table = Table("score", "document", "title", "text", box=SIMPLE_HEAD, pad_edge=False)
    for each in found:
        text = " ".join(str(each["text"]).split())
        shown = text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
        table.add_row(f"{float(str(each['score'])):.2f}", str(each["document_id"]), str(each["title"]), shown)
    Console().print(table)


def _account(event: Json) -> None:
    usage = cast("dict[str, int]", event["usage"])
    timings = cast("dict[str, float]", cast(Json, event["report"])["timings_ms"])
    typer.echo(
        f"{usage['prompt_tokens']:,} prompt tokens, {usage['reused_tokens']:,} reused, "
        f"{usage['recomputed_tokens']:,} recomputed; first token {timings.get('first_token', 0):.0f} ms",
        err=True,
    )
