"""The race of `kvweave demo` on a screen: a bar for each way, which grows while it is gone. Keeps no times."""

import time
from typing import TYPE_CHECKING

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table

from service.commands.console import console

if TYPE_CHECKING:
    from service.app.operating_point import OperatingPoint
    from service.lab.bench.first_token import TimingRow
    from service.lab.demo.race import RaceTrack

SAME = 0.05  # smaller differences are chance
BAR = 30  # columns
OFTEN = 10  # times a second that a bar grows


def sooner(ratio: float) -> str:
    """A comparison, whichever way it came out."""
    if abs(ratio - 1) < SAME:
        return "as soon as"
    return f"{ratio:.1f} times sooner than" if ratio > 1 else f"{100 * (1 / ratio - 1):.0f} % later than"


def show_race(track: "RaceTrack") -> "list[TimingRow]":
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
    screen.print(f"\n{_sentence(rows)}\n")
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


def _sentence(rows: "list[TimingRow]") -> str:
    from service.settings import Settings

    start = {name: Settings.model_fields[name].default for name in ("policy", "ratio")}
    _, reuse, blended = rows
    by_reuse, by_policy = (sooner(each.against_full.times) for each in (reuse, blended))
    return (
        f"With its chunks stored, the first token came {by_policy} with full prefill by {blended.policy}, "
        f"ratio {blended.ratio:g} of the cached tokens, and {by_reuse} with it by reuse, which recomputes "
        f"none: random weights show the time and no answers, which follow now. A model of your own starts with "
        f"{start['policy']} at {start['ratio']:g}, which takes longer, until kvweave eval --fit finds what suits it."
    )
