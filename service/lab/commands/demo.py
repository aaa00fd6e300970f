"""The command `kvweave demo`: a race, then the sample corpus asked, shown as text or JSON. Computes nothing itself."""

import json
import logging
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path, PurePath
from statistics import median
from typing import TYPE_CHECKING

import typer
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from service.commands.console import address, console, plain_table, status
from service.commands.options import AsJson
from service.lab.commands.shown_race import show_race, sooner

if TYPE_CHECKING:
    from service.documents.file_group import RunProgress
    from service.lab.demo.demo_answers import Answered
    from service.settings import Settings

WIDE = 80  # columns, from which on tables have air
WAYS = ("full prefill", "blending")
FOREIGN = ("model", "embedder", "codec", "dtype", "auth")  # settings that must be the demo's where its data is served


def demo(*, as_json: AsJson = False) -> None:
    """Race to the first token, then ask a sample corpus three questions. Exits with 1 for a wrong answer.

    The race is run by a model of a real family's shape with random weights, the answers are the built-in model's.
    Needs no network and no settings, and touches none of your documents: all is in the folder `demo` of the data
    folder.

    Examples:
      kvweave demo
      kvweave demo --json
    """
    from service.settings import load_settings

    logging.getLogger().addHandler(logging.NullHandler())  # what goes wrong is told once, as the error
    settings, start = load_settings(), time.perf_counter()
    with ExitStack() as stack:
        with status("loading the built-in model") as show:
            from service.lab.demo.demo_answers import answers, demo_settings, ingest, running
            from service.lab.demo.race import race_track

            mine = demo_settings(settings)
            progress = ingest(
                mine, on_progress=lambda progress: show(f"computing the caches of its documents: {progress.stored}")
            )
            core = stack.enter_context(running(mine))
            racing = stack.enter_context(ExitStack())
            track = racing.enter_context(race_track(mine, on_stage=show))
        raced = track.run(on_turn=lambda _: None) if as_json else show_race(track)
        racing.close()  # the answers are to have the memory
        with status("asking"):
            found = list(answers(core))
    seconds = time.perf_counter() - start
    if as_json:
        race = {"shape": track.shape, "tokens": track.tokens, "policies": [asdict(row) for row in raced]}
        typer.echo(json.dumps({"race": race, **_machine(progress, found, data=mine.data, seconds=seconds)}, indent=2))
    else:
        _show(progress, found, seconds=seconds)
        _next(settings, mine)
    raise typer.Exit(0 if all(each.is_right for each in found) else 1)


def _machine(progress: "RunProgress", found: "list[Answered]", *, data: Path, seconds: float) -> dict[str, object]:
    corpus = {
        "documents": progress.files,
        "chunks": progress.chunks,
        "present": progress.present,
        "stored": progress.stored,
    }
    answers = [
        {
            **asdict(each.example),
            "is_right": each.is_right,
            "sources": [asdict(source) for source in each.sources],
            "policies": [asdict(row) for row in each.rows],
        }
        for each in found
    ]
    return {"data": str(data), "corpus": corpus, "answers": answers, "seconds": seconds}


def _show(progress: "RunProgress", found: "list[Answered]", *, seconds: float) -> None:
    screen = console()
    computed = (
        f"{progress.stored} computed and stored now" if progress.stored else "all were computed and stored before"
    )
    screen.print(f"{progress.files} documents, {progress.chunks} chunks: {computed}. {seconds:.1f} s in all.")
    for number, each in enumerate(found, start=1):
        screen.print(Text(f"\n{number}. {each.example.question}", style="bold"))
        screen.print(Text(f"   {each.rows[-1].answer}\n", style="bold green" if each.is_right else "bold red"))
        screen.print(Padding(_sources(each), (0, 0, 1, 3), expand=False))
        screen.print(Padding(_figures(each, air=1 if screen.width >= WIDE else 0), (0, 0, 0, 3), expand=False))
    screen.print(_verdict(found))


def _sources(answered: "Answered") -> Table:
    """A table of an answer's sources: those that hold the answer with what they say, the others by name."""
    table = Table.grid(Column(no_wrap=True), Column(), padding=(0, 2))
    for each in answered.sources:
        if each.sentence:
            table.add_row(each.title, f"{each.sentence}  [dim]{_file(each.document)}[/]")
    others = [_file(each.document) for each in answered.sources if not each.sentence]
    table.add_row("also read", ", ".join(others), style="dim")
    return table


def _file(document: str) -> str:
    return PurePath(document).name


def _figures(answered: "Answered", *, air: int) -> Table:
    first = Column(f"{answered.rows[0].prompt} tokens", no_wrap=True)
    names = ("first token", "reused", "recomputed", "read")
    numbers = (Column(name, justify="right", no_wrap=True) for name in names)
    table = plain_table(first, "answer", *numbers, padding=(0, air))
    for way, row in zip(WAYS, answered.rows, strict=True):
        style = "" if row.answer == answered.example.answer else "red"
        cells = (f"{row.first_token_ms:.0f} ms", f"{row.reused}", f"{row.recomputed}", f"{row.nbytes / 1e6:.1f} MB")
        table.add_row(way, Text(row.answer, style=style), *cells)
    return table


def _verdict(found: "list[Answered]") -> str:
    """What the times say, whichever way they came out."""
    ratio = median(each.rows[0].first_token_ms / each.rows[-1].first_token_ms for each in found)
    blending = f"{found[0].rows[-1].policy}, ratio {found[0].rows[-1].ratio:g}"
    return (
        f"\nWith blending ({blending}) the first token came {sooner(ratio)} with full prefill. The built-in model is "
        "small: larger ones gain more. Measure what yours gains:"
    )


def _next(settings: "Settings", mine: "Settings") -> None:
    """Prints what to do next. Sentences fit the width; what is to be copied stands in lines of its own, unbroken."""
    from service.settings import PREFIX
    from service.truth.databases import ADMIN_KEY

    screen, command = console(), _command()
    typer.echo(f"\n   {command} bench --model NAME\n")
    screen.print("Look at the same documents in the console page:")
    typer.echo(f"\n   {' '.join(_environment(settings, mine))} {command} serve\n")
    screen.print(f"Open {address(settings.host, settings.port)}/ and give it the key that stands in")
    typer.echo(f"\n   {mine.data / ADMIN_KEY}\n")
    screen.print("Your own documents, with your own model (a hub name or a folder):\n")
    for rest in ("precompute ./docs", "serve", 'ask "Your question?"'):
        typer.echo(f"   {PREFIX}MODEL=NAME {command} {rest}")


def _environment(settings: "Settings", mine: "Settings") -> Iterator[str]:
    """What a service over the demo's data needs besides the settings that are in force."""
    from service.settings import PREFIX

    names = ["data", *(name for name in FOREIGN if getattr(settings, name) != getattr(mine, name))]
    if "store" in settings.model_fields_set:
        names.append("store")
    for name in names:
        yield f"{PREFIX}{name.upper()}={shlex.quote(str(getattr(mine, name)))}"


def _command() -> str:
    """The command `kvweave` as it can be called from here."""
    called = Path(sys.argv[0])
    return "kvweave" if shutil.which("kvweave") or called.name != "kvweave" else shlex.quote(str(called))
