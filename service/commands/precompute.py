"""The command `kvweave precompute`: options and which exclude others, --prune, --dry-run; a bar, lines or JSON out."""

import json
import signal
import time
from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, replace
from enum import StrEnum
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

from retriever.readers.reading import ReadingProblem
from service.access.principal import DEFAULT_TENANT
from service.commands.console import lasting, many, size, status, tell
from service.commands.options import settings_with
from service.commands.shown_progress import show_run, shown_progress, tell_skipped

if TYPE_CHECKING:
    from service.documents.corpus_listing import CorpusArgument, CorpusFile, RemoteFiles
    from service.documents.file_group import RunProgress, Target
    from service.documents.forecast import Forecast
    from service.documents.precompute import Capture, CapturePlan
    from service.settings import Settings

P = ParamSpec("P")

CENT = 0.01
OBJECTS = ("s3://", "gs://", "az://")
PAGES = ("http://", "https://")


class Executor(StrEnum):
    """Where chunks are computed."""

    LOCAL = "local"
    RAY = "ray"


corpus_option = partial(typer.Option, rich_help_panel="What is put in")
cost_option = partial(typer.Option, rich_help_panel="Limits and cost")
place_option = partial(typer.Option, rich_help_panel="Where and for what it is computed")

Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH", help="Files, folders, patterns in quotes, pages, sitemaps, s3://bucket/folder."),
]
Private = Annotated[bool, corpus_option("--allow-private", help="Let pages be at addresses that are not public.")]
Into = Annotated[str, corpus_option(metavar="NAME", help="The collection that they go into.")]
Whose = Annotated[str, corpus_option(metavar="NAME", help="Whose documents they are.")]
Tokens = Annotated[
    int, corpus_option(metavar="N", help="Tokens of a chunk, for a new collection.", show_default=False, min=0)
]
Model = Annotated[
    str,
    place_option(metavar="NAME", help="Compute for this model, beside what others have stored.", show_default=False),
]
Prune = Annotated[bool, corpus_option("--prune", help="Delete documents whose files are gone from where PATH says.")]
Empty = Annotated[bool, corpus_option("--empty", help="Let --prune delete all that PATH held, also the last.")]
Most = Annotated[
    str, cost_option(metavar="SIZE", help="Bytes that its caches may take, such as 500GB.", show_default=False)
]
Log = Annotated[
    Path | None,
    cost_option(metavar="FILE", help="A JSONL log of questions: what they need most is computed first, for --budget."),
]
Part = Annotated[
    str, place_option(metavar="I/N", help="Compute one share, such as 0/4, and make no catalog.", show_default=False)
]
Where = Annotated[Executor, place_option(help="Here, or on a Ray cluster that runs: RAY_ADDRESS, or this machine's.")]
Actors = Annotated[int, place_option(metavar="N", help="For ray: how many; 0 for one a GPU, or one a node.", min=0)]
Renew = Annotated[
    bool, place_option("--renew", help="Compute what an earlier release captured again: its records serve until then.")
]
DryRun = Annotated[bool, cost_option("--dry-run", help="Say what it would do and cost, from a sample; store nothing.")]
Price = Annotated[float, cost_option(metavar="PRICE", help="US dollars that a TB costs a month, for --dry-run.", min=0)]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object a line for machines.")]


def _resumable(command: Callable[P, None]) -> Callable[P, None]:
    """Ctrl-C is no failure: it says how to go on."""

    @wraps(command)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt:
            typer.echo("kvweave: stopped; what is stored is kept: run it again to go on", err=True)
            raise typer.Exit(128 + signal.SIGINT) from None

    return run


@_resumable
def precompute(
    paths: Paths,
    *,
    collection: Into = "default",
    tenant: Whose = DEFAULT_TENANT,
    chunk_tokens: Tokens = 0,
    model: Model = "",
    prune: Prune = False,
    empty: Empty = False,
    allow_private: Private = False,
    budget: Most = "",
    queries: Log = None,
    shard: Part = "",
    executor: Where = Executor.LOCAL,
    actors: Actors = 0,
    renew: Renew = False,
    dry_run: DryRun = False,
    price_per_tb: Price = 23.0,
    as_json: AsJson = False,
) -> None:
    """Turn a corpus of files into a ready store: read, cut, index, compute, store. Exits with 1 if files failed.

    Run again, it does what is missing or changed; stopped at any moment, it goes on where it was. A service may run
    meanwhile. Reads text, code and JSON; with the extra `readers` HTML, PDF, office files, tables, mails and books.

    Examples:
      kvweave precompute ./docs 'notes/*.md' --dry-run
      kvweave precompute https://x.example/map.xml --prune
      kvweave precompute docs --budget 9GB --queries log.jsonl
    """
    from service.app.workspace import open_workspace

    settings = settings_with(model)
    _refuse_mixed(budget=budget, queries=queries, shard=shard, prune=prune, executor=executor)
    wanted = replace(_plan(budget, queries, shard=shard), top_k=settings.top_k, renew=renew)
    if executor is Executor.RAY and not dry_run:
        wanted = replace(wanted, capture=_remote(settings, actors))
    start = time.perf_counter()
    opening = open_workspace(settings, tenant, collection=collection, chunk_tokens=chunk_tokens, shard=bool(shard))
    with ExitStack() as stack:
        named = _named(paths, stack, allow_private=allow_private)  # before what takes seconds to load
        target = _entered(stack, opening, settings=settings)
        load_s = time.perf_counter() - start
        found, gone = _listed(target, named, prune=prune, empty=empty, as_json=as_json)
        if dry_run:
            raise typer.Exit(_foretell(target, found, price_per_tb=price_per_tb, as_json=as_json))
        progress = _run(target, wanted, found=found, gone=gone, as_json=as_json)
        _warn_if_foreign(target, settings)
    show_run(progress, seconds=time.perf_counter() - start, load_s=load_s, as_json=as_json)
    raise typer.Exit(1 if progress.problems else 0)


def _entered(stack: ExitStack, opening: "AbstractContextManager[Target]", *, settings: "Settings") -> "Target":
    """What the run works in. Says where no answer would read what it makes."""
    with status(f"loading {settings.model}"):
        target = stack.enter_context(opening)
    if target.tenant.model.order.policy == "full" or not settings.share:
        tell("reuse is off (policy full, or share 0), so no answer reads these caches: change it first", err=True)
    if target.lacks:
        tell(f"search is by words until the embedder comes, and a service makes vectors then: {target.lacks}", err=True)
    return target


def _warn_if_foreign(target: "Target", settings: "Settings") -> None:
    from service.answers.foreign_documents import ForeignDocuments
    from service.settings import BUILTIN

    if settings.model == BUILTIN and (note := ForeignDocuments(target.tenant.model).note(target.tenant.catalog)):
        tell(note, err=True)


def _listed(
    target: "Target", named: "list[CorpusArgument]", *, prune: bool, empty: bool, as_json: bool
) -> "tuple[list[CorpusFile | ReadingProblem], Set[str]]":
    """What there is, and what is to be pruned: nothing where a folder cannot be read, as nobody knows what is gone."""
    from service.documents.corpus_listing import CorpusListing

    with target.tenant.catalog.view() as view:
        known = view.sources(target.collection)
    listing = CorpusListing(named, known)
    found = list(listing.walk())
    if not as_json:
        tell_skipped(listing.skipped)
    elif listing.skipped:
        typer.echo(json.dumps({"event": "skipped", "paths": [str(path) for path in listing.skipped]}))
    for old, root in listing.moved.items():
        tell(f"{root} is gone from {old}: taken as moved, so its documents keep their ids", err=True)
    if not prune:
        return found, set()
    if any(isinstance(each, ReadingProblem) for each in found):
        tell("nothing is pruned, as not all files could be listed: mend what is told and run again", err=True)
        return found, set()
    gone = listing.gone(known, empty=empty)
    if as_json:
        typer.echo(json.dumps({"event": "prune", "gone": [*gone]}))
    else:
        for name, source in gone.items():
            tell(f"gone, to be deleted: {name}, {many(len(source.documents), 'document')}")
    return found, gone.keys()


def _run(
    target: "Target",
    wanted: "CapturePlan",
    *,
    found: "Sequence[CorpusFile | ReadingProblem]",
    gone: Set[str],
    as_json: bool,
) -> "RunProgress":
    from service.documents.forecast import unit_cost
    from service.documents.precompute import Precompute

    if not (wanted.budget or wanted.shard or wanted.capture) and (cost := unit_cost(target, found)):
        words = (
            f"1 MB of text like the first is {cost.tokens:,.0f} tokens, which take {size(cost.nbytes)} with this model"
        )
        if target.tenant.model.has_states and target.tenant.model.order.policy == "prefix":
            words += "; `prefix`, which answers of it come by, reads none: kvweave eval --save auto finds what may"
        typer.echo(json.dumps({"event": "cost", **asdict(cost)})) if as_json else tell(words, err=True)
    work = Precompute(target, wanted)
    with shown_progress(found, as_json=as_json) as on_progress:
        return work.run(found, on_progress=on_progress, gone=gone)


def _refuse_mixed(*, budget: str, queries: Path | None, shard: str, prune: bool, executor: Executor) -> None:
    from service.errors import Invalid

    if queries and not budget:
        raise Invalid("--queries says what a budget is spent on first: name a --budget, such as 500GB")
    if budget and (shard or executor is Executor.RAY):
        raise Invalid("--budget is counted in one process: leave --shard and --executor ray out")
    if shard and (prune or executor is Executor.RAY):
        raise Invalid("--shard computes a share and changes no catalog: leave --prune and --executor ray out")


def _named(paths: Sequence[str], stack: ExitStack, *, allow_private: bool) -> "list[CorpusArgument]":
    """What the PATHs name, here or elsewhere. What is fetched goes with the stack."""
    from service.documents.corpus_listing import arguments

    def remote(path: str) -> "RemoteFiles | None":
        if path.startswith(OBJECTS):
            from service.documents.corpus_objects import CorpusObjects
            from store.url import open_folder

            return CorpusObjects(open_folder(path))
        return _pages(stack, path, allow_private=allow_private) if path.startswith(PAGES) else None

    return arguments(paths, remote)


def _pages(stack: ExitStack, path: str, *, allow_private: bool) -> "RemoteFiles":
    from service.errors import Invalid

    try:
        from service.documents.web_pages import WebPages
    except ImportError as error:
        raise Invalid(f"{path}: pages need `pip install 'kvweave[readers]'` ({error})") from None
    from service.documents.web_client import WebClient

    client = WebClient(allow_private=allow_private)
    stack.callback(client.close)
    return WebPages(path, client, folder=stack.enter_context(TemporaryDirectory(prefix="kvweave-pages-")))


def _plan(budget: str, queries: Path | None, *, shard: str) -> "CapturePlan":
    from service.documents.file_group import Shard
    from service.documents.need import CacheBudget, read_log
    from service.documents.precompute import CapturePlan
    from store.size import parse_size

    asked = read_log(queries) if queries else ()
    return CapturePlan(
        CacheBudget(parse_size(budget, "--budget"), asked) if budget else None,
        Shard.parse(shard) if shard else None,
    )


def _remote(settings: "Settings", actors: int) -> "Capture":
    from service.settings import SettingsError

    try:
        from service.app.ray_capture import ray_capture
    except ImportError as error:
        raise SettingsError(f"--executor ray: install the extra `kvweave[ray]` ({error})") from None
    return ray_capture(settings, actors)


def _foretell(
    target: "Target", found: "Sequence[CorpusFile | ReadingProblem]", *, price_per_tb: float, as_json: bool
) -> int:
    """Prints what a run would do and cost. Returns the exit code."""
    from service.documents.forecast import forecast

    estimate = forecast(target, found, price_per_tb=price_per_tb)
    if as_json:
        typer.echo(json.dumps({"event": "forecast", **asdict(estimate)}))
    else:
        _show_forecast(estimate, price_per_tb=price_per_tb)
    return 1 if estimate.problems else 0


def _show_forecast(estimate: "Forecast", *, price_per_tb: float) -> None:
    for each in estimate.problems:
        tell(f"cannot be read: {each.place}: {each.reason}", err=True)
    cost = f"less than ${CENT}" if 0 < estimate.month_cost < CENT else f"${estimate.month_cost:,.2f}"
    documents = many(estimate.documents, "document")
    tell(f"{many(estimate.files, 'file')}, {estimate.unchanged:,} of them unchanged; {documents} to put in.")
    texts = f", {estimate.unsupported:,} can be text only" if estimate.unsupported else ""
    tell(f"{many(estimate.chunks, 'chunk')}: {estimate.present:,} are there{texts}.")
    if not estimate.tokens:
        tell("Nothing is to be computed.")
        return
    rate, each = f"{estimate.tokens_per_s:,.0f} a second", f"{estimate.bytes_per_token:,.0f} bytes a token"
    tell(f"{many(estimate.tokens, 'token')} to compute, at {rate}: {lasting(estimate.seconds)}.")
    tell(f"They take {size(estimate.nbytes)}, {each}: {cost} a month at ${price_per_tb:g} a TB.")
    tell(f"Reuse pays where the store reads {size(estimate.pays_from)} a second or more.")
