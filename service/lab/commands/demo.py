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
from typing import TYPE_CHECKING

import typer
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from service.commands.console import address, console, plain_table, status
from service.commands.options import AsJson

if TYPE_CHECKING:
    from service.app.operating_point import OperatingPoint
    from service.documents.file_group import RunProgress
    from service.lab.bench.first_token import TimingRow
    from service.lab.demo.demo_answers import Answered
    from service.lab.demo.race import RaceTrack
    from service.settings import Settings

WIDE = 80  # columns, from which on tables have air
WAYS = ("full prefill", "blending")
BAR = 30  # columns
OFTEN = 10  # times a second that a bar grows
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
        raced = track.run(on_turn=lambda _: None) if as_json else _show_race(track)
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


def _show_race(track: "RaceTrack") -> "list[TimingRow]":
    """Runs the race, and shows it: live on a terminal, elsewhere its end."""
    screen = console()
    screen.print(
        f"A race to the first token: {track.tokens:,} tokens of text, read by a model of {track.shape} with random "
        f"weights; medians of {track.rounds} rounds.\n"
    )
    bars = _Bars()
    if screen.is_terminal:
        with Live(bars, console=screen, refresh_per_second=OFTEN, transient=True):
            rows = track.run(on_turn=bars.turn)
    else:
        rows = track.run(on_turn=bars.turn)
    screen.print(_bars({_name(row.policy): row.first_token_s for row in rows}))
    screen.print(f"\n{_race_sentence(rows)}\n")
    return rows


class _Bars:
    """The last time of each way, and of the one that is gone just now how long it is under way."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._now, self._since = "", 0.0

    def turn(self, point: "OperatingPoint") -> None:
        self._seconds = self._times()
        self._now, self._since = _name(point.policy), time.perf_counter()

    def _times(self) -> dict[str, float]:
        return {**self._seconds, **({self._now: time.perf_counter() - self._since} if self._now else {})}

    def __rich__(self) -> Table:
        return _bars(self._times())


def _bars(seconds: dict[str, float]) -> Table:
    table = Table.grid(Column(no_wrap=True), Column(width=BAR), Column(justify="right", no_wrap=True), padding=(0, 2))
    longest = max(seconds.values(), default=0.0)
    for name, each in seconds.items():
        table.add_row(f"  {name}", ProgressBar(longest, each, width=BAR), f"{each:.2f} s")
    return table


def _name(policy: str) -> str:
    name = policy.partition("/")[0]
    return "full prefill" if name == "full" else name


def _race_sentence(rows: "list[TimingRow]") -> str:
    from service.settings import Settings

    start = {name: Settings.model_fields[name].default for name in ("policy", "ratio")}
    _, reuse, blended = rows
    return (
        f"Compared with full prefill, with its chunks stored the first token came {blended.against_full.words} by "
        f"{blended.policy}, ratio {blended.ratio:g} of the cached tokens, and {reuse.against_full.words} by reuse, "
        "which recomputes none: random weights show the time and no answers, which follow now. A model of your own "
        f"starts with {start['policy']} at {start['ratio']:g}, which takes longer, until kvweave eval --fit finds what "
        "suits it."
    )


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
    from service.lab.time_ratio import time_ratio

    full, blended = ([each.rows[at].first_token_ms for each in found] for at in (0, -1))
    blending = f"{found[0].rows[-1].policy}, ratio {found[0].rows[-1].ratio:g}"
    return (
        f"\nCompared with full prefill, the first token came {time_ratio(full, blended).words} with blending "
        f"({blending}). The built-in model is small: larger ones gain more. Measure what yours gains:"
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
