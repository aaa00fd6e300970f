"""What a run over a corpus says while it works and at its end, for people and for machines. Works on nothing itself."""

import json
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from retriever.readers.files import SUFFIXES, why_skipped
from retriever.readers.reading import ReadingProblem
from service.commands.console import console, many, size, tell

if TYPE_CHECKING:
    from service.documents.corpus_listing import CorpusFile
    from service.documents.file_group import RunProgress

LINE_S = 5.0  # between two lines where there is no terminal
COMPUTING = ("compute", "pack", "store", "index")  # stages that follow each other
BESIDE = "read and cut"
NAMED = 3  # of what was skipped for one reason


@contextmanager
def shown_progress(
    found: "Sequence[CorpusFile | ReadingProblem]", *, as_json: bool
) -> Generator[Callable[["RunProgress"], None]]:
    """A bar on a terminal, a line now and then elsewhere, on standard error; events on standard output for machines."""
    screen = console(stderr=True)
    total = sum(0 if isinstance(each, ReadingProblem) else each.nbytes for each in found)
    last = time.monotonic()

    def line(progress: "RunProgress") -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_S:
            last = time.monotonic()
            event = {"event": "progress", **_fields(progress), "of_files": len(found), "of_bytes": total}
            typer.echo(json.dumps(event) if as_json else _sentence(progress, total), err=not as_json)

    if as_json or not screen.is_terminal:
        yield line
        return
    columns = (
        BarColumn(bar_width=None),
        DownloadColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    bar = Progress(*columns, console=screen, expand=True)
    task = bar.add_task("", total=total)
    with Live(bar, console=screen, refresh_per_second=4) as live:

        def show(progress: "RunProgress") -> None:
            bar.update(task, completed=progress.worked_bytes)
            live.update(Group(bar, Text(_short(progress))))

        yield show


def tell_skipped(skipped: Iterable[Path]) -> None:
    """Names what is left out of folders, by the reason."""
    reasons: dict[str, list[str]] = {}
    for path in skipped:
        reasons.setdefault(why_skipped(path), []).append(str(path))
    for reason, paths in reasons.items():
        more = f" and {len(paths) - NAMED:,} more" if len(paths) > NAMED else ""
        tell(f"skipped, {reason}: {', '.join(paths[:NAMED])}{more}", err=True)
    if any("suffix" in reason for reason in reasons):
        tell(f"read are the suffixes {', '.join(SUFFIXES)}", err=True)


def tell_unread(skipped: Iterable[Path], problems: Iterable[ReadingProblem]) -> None:
    """Names what is left out of folders, and what could not be read."""
    tell_skipped(skipped)
    for problem in problems:
        tell(f"not read: {problem.place}: {problem.reason}", err=True)


def _short(progress: "RunProgress") -> str:
    if progress.vectors_of:
        return f"vectors of {progress.vectors:,} of {many(progress.vectors_of, 'chunk')}"
    return f"{many(progress.stored, 'chunk')}, {_speed(progress)}" if progress.stored else "nothing computed yet"


def _speed(progress: "RunProgress") -> str:
    spent = sum(progress.seconds.get(stage, 0.0) for stage in COMPUTING)
    ratio = progress.raw_bytes / progress.nbytes if progress.nbytes else 0.0
    rate = progress.tokens / spent if spent else 0.0
    return f"{rate:,.0f} tokens/s, {size(progress.nbytes)}, {ratio:.1f}x smaller"


def _sentence(progress: "RunProgress", total: int) -> str:
    return f"{size(progress.worked_bytes)} of {size(total)}: {_short(progress)}"


def _fields(progress: "RunProgress") -> dict[str, object]:
    return {**asdict(progress), "problems": [asdict(each) for each in progress.problems]}


def show_run(progress: "RunProgress", *, seconds: float, load_s: float, as_json: bool) -> None:
    """Tells what a run did. `load_s`: of all its seconds, those until the model and the stores were there."""
    if as_json:
        typer.echo(json.dumps({"event": "done", **_fields(progress), "wall_s": seconds, "load_s": load_s}))
        return
    for each in progress.problems:
        tell(f"failed: {each.place}: {each.reason}", err=True)
    tell(f"{many(progress.files, 'file')}, {progress.unchanged:,} of them unchanged")
    tell(f"{many(progress.documents, 'document')} put in, {progress.removed:,} removed")
    others = {
        "were there": progress.present,
        "as text only": progress.unsupported,
        "over budget": progress.over_budget,
    }
    beside = "".join(f", {count:,} {what}" for what, count in others.items() if count)
    tell(f"{many(progress.chunks, 'chunk')}: {progress.stored:,} computed{beside}")
    if progress.dropped:
        tell(f"{many(progress.dropped, 'stored chunk')} that fewer questions need made room")
    if progress.stored:
        tell(_speed(progress))
    apart = {"load": load_s} | {stage: spent for stage, spent in progress.seconds.items() if stage != BESIDE}
    stages = ", ".join(f"{stage} {spent:.1f} s" for stage, spent in apart.items())
    tell(f"{seconds:.1f} s in all: {stages}; beside it, {BESIDE} {progress.seconds.get(BESIDE, 0.0):.1f} s")
    if progress.problems:
        tell(f"{len(progress.problems):,} failed, as told above: mend them and run again", err=True)
