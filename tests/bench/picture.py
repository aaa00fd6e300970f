"""Draws lines as a picture: an SVG file whose bytes follow from the figures alone. Measures nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.typing import RcKeyType

from tests.architecture import ROOT

FOLDER = ROOT / "docs" / "pictures"
STYLE: dict[RcKeyType, str | float] = {
    "svg.hashsalt": "kvweave",
    "svg.fonttype": "none",
    "font.size": 9.0,
    "font.family": "sans-serif",
}
MARKS = "osD^vP*X"
WIDE, HIGH = 5.2, 3.4  # inches of a panel


@dataclass(frozen=True, slots=True)
class Line:
    """A named line through points (x, y)."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over one pair of axes, whose labels name the units. `upright`: places that a dotted line marks."""

    x: str
    y: str
    lines: Sequence[Line]
    log: str = ""  # of "x", "y" and "xy"
    upright: Sequence[float] = ()


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Writes a file with the panels beside each other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDE * len(panels), HIGH), layout="constrained")
        for number, panel in enumerate(panels, 1):
            _fill(figure.add_subplot(1, len(panels), number), panel)
        figure.savefig(path, format="svg", metadata={"Date": None})
    tidied = (line.rstrip() for line in path.read_text("utf-8").splitlines())
    path.write_text("\n".join([*tidied, ""]), "utf-8")


def _fill(axes: Axes, panel: Panel) -> None:
    for number, line in zip(count(), panel.lines):
        axes.plot(*zip(*line.points, strict=True), marker=MARKS[number % len(MARKS)], markersize=4, label=line.name)
    for place in panel.upright:
        axes.axvline(place, color="0.6", linestyle=":", linewidth=1)
    axes.set_xscale("log" if "x" in panel.log else "linear")
    axes.set_yscale("log" if "y" in panel.log else "linear")
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    if "y" not in panel.log:
        axes.set_ylim(bottom=0)
    axes.grid(visible=True, color="0.9")
    axes.legend(frameon=False)
