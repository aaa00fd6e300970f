"""Points over two axes as inline SVG, and the one way to make an element. Knows no policies, rows or pages."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from xml.etree.ElementTree import Element

Ticks = tuple[tuple[float, str], ...]  # value and label, at least two, rising
Ticker = Callable[[Iterable[float]], Ticks]

WIDTH, HEIGHT = 604, 360
LEFT, RIGHT, TOP, BOTTOM = 62, 490, 14, 308  # the frame; the legend is to its right
KEYS = RIGHT + 24
LINE = 19
TICKS = 5
LEAST_SPAN = 1e-9  # of the largest value: what differs less is equal

SHAPES = (
    "M-4.5 0A4.5 4.5 0 1 1 4.5 0A4.5 4.5 0 1 1-4.5 0Z",
    "M-4 -4H4V4H-4Z",
    "M0 -5.5L5 4H-5Z",
    "M0 -6L5.5 0L0 6L-5.5 0Z",
    "M0 5.5L5 -4H-5Z",
    "M-1.8 -5.5H1.8V-1.8H5.5V1.8H1.8V5.5H-1.8V1.8H-5.5V-1.8H-1.8Z",
    "M-6 -2.8H6V2.8H-6Z",
    "M-2.8 -6H2.8V6H-2.8Z",
)
LIGHT = ("#4d4d4d", "#0b6fc2", "#c8322b", "#0c8265", "#7d3fb5", "#c97800", "#7a4a2b", "#0f8a9c")
DARK = ("#c2c2c2", "#62b0f5", "#ff7b72", "#3fcba4", "#c79bff", "#ffb347", "#c9a184", "#5ed3e3")

STYLE = "".join(
    [
        f":root{{{''.join(f'--c{number}:{color};' for number, color in enumerate(LIGHT))}}}",
        f"@media(prefers-color-scheme:dark){{:root{{{''.join(f'--c{n}:{color};' for n, color in enumerate(DARK))}}}}}",
        *(f".c{number}{{color:var(--c{number})}}" for number in range(len(LIGHT))),
        "svg{display:block;width:100%;height:auto;font-size:13px}svg text{fill:var(--ink)}",
        ".frame{fill:none;stroke:var(--quiet)}.rule{stroke:var(--faint)}.end{text-anchor:end}.middle{text-anchor:middle}",
        ".curve{fill:none;stroke:currentColor;stroke-width:1.5;opacity:.55}.whisker{stroke:currentColor;opacity:.45}",
        ".mark{fill:currentColor;fill-opacity:.8;stroke:var(--paper)}.shape{fill:var(--quiet)}",
    ]
)


@dataclass(frozen=True, slots=True)
class Mark:
    """A measured point. `low` and `high` bound its error bar, if it has one; `tip` shows on hover."""

    x: float
    y: float
    shape: str
    tip: str
    low: float | None = None
    high: float | None = None

    @property
    def finite(self) -> bool:
        """Whether it has a place."""
        return math.isfinite(self.x) and math.isfinite(self.y)

    @property
    def reach(self) -> tuple[float, ...]:
        """All that must fit on the y axis."""
        return tuple(each for each in (self.y, self.low, self.high) if each is not None and math.isfinite(each))


@dataclass(frozen=True, slots=True)
class Curve:
    """Marks of one color, joined in this order."""

    color: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values to pixels: the first tick to `start`, the last to `stop`."""

    ticks: Ticks
    start: float
    stop: float

    def at(self, value: float) -> float:
        low, high = self.ticks[0][0], self.ticks[-1][0]
        return self.start + (value - low) / (high - low) * (self.stop - self.start)


@dataclass(frozen=True, slots=True)
class Legend:
    """Names of colors and shapes; one legend serves several plots, so that a name looks the same in all."""

    colors: tuple[str, ...]
    shapes: tuple[str, ...]

    def color(self, name: str) -> str:
        return f"c{self.colors.index(name) % len(LIGHT)}"

    def shape(self, name: str) -> str:
        return SHAPES[self.shapes.index(name) % len(SHAPES)]


@dataclass(frozen=True, slots=True)
class Plot:
    """`x` and `y` are the words at the axes; `ticks` chooses the y axis' ticks from all that must fit on it."""

    title: str
    x: str
    y: str
    ticks: Ticker
    curves: tuple[Curve, ...]


def element(tag: str, *content: str | Element, **attributes: str | float) -> Element:
    """Text in it is escaped when it is written. `class_` and `http_equiv` stand for class and http-equiv."""
    made = Element(tag, {name.rstrip("_").replace("_", "-"): _written(each) for name, each in attributes.items()})
    for each in content:
        if isinstance(each, Element):
            made.append(each)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + each
        else:
            made.text = (made.text or "") + each
    return made


def draw(plot: Plot, legend: Legend) -> Element:
    """The plot as an `svg` element. Marks without a place are left out."""
    curves = [Curve(each.color, tuple(mark for mark in each.marks if mark.finite)) for each in plot.curves]
    marks = [mark for curve in curves for mark in curve.marks]
    heights = [value for mark in marks for value in mark.reach]
    x = Axis(nice_ticks([mark.x for mark in marks]), LEFT, RIGHT)
    y = Axis(plot.ticks(heights), BOTTOM, TOP)
    return element(
        "svg",
        *_scaffold(plot, x, y=y),
        *(part for curve in curves for part in _curve(curve, legend.color(curve.color), x=x, y=y)),
        *(_mark(mark, curve.color, legend=legend, x=x, y=y) for curve in curves for mark in curve.marks),
        *_keys(legend, colors={curve.color for curve in curves}, shapes={mark.shape for mark in marks}),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
    )


def nice_ticks(values: Iterable[float]) -> Ticks:
    """About five steps of 1, 2 or 5 times a power of ten that enclose all values; from 0 where all are equal."""
    low, high = _bounds(values)
    if high - low <= LEAST_SPAN * max(abs(low), abs(high)):
        low, high = (min(low, 0.0), max(high, 0.0)) if low else (0.0, 1.0)
    power = 10.0 ** math.floor(math.log10((high - low) / TICKS))
    step = next(each * power for each in (1, 2, 5, 10) if each * power * TICKS >= (high - low) * (1 - 1e-6))
    digits = max(0, -math.floor(math.log10(step) + 1e-6))
    steps = range(math.floor(low / step + 1e-6), math.ceil(high / step - 1e-6) + 1)
    return tuple((each * step, f"{each * step:z,.{digits}f}") for each in steps)


def decade_ticks(exponents: Iterable[float]) -> Ticks:
    """The powers of ten that enclose all exponents."""
    low, high = _bounds(exponents)
    steps = range(math.floor(low), max(math.ceil(high), math.floor(low) + 1) + 1)
    raised = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return tuple((float(each), f"10{str(each).translate(raised)}") for each in steps)


def _bounds(values: Iterable[float]) -> tuple[float, float]:
    found = list(values) or [0.0]
    return min(found), max(found)


def _written(value: str | float) -> str:
    return value if isinstance(value, str) else f"{round(value, 2):g}"


def _scaffold(plot: Plot, x: Axis, *, y: Axis) -> list[Element]:
    middle = (TOP + BOTTOM) / 2
    parts: list[Element] = []
    for value, label in x.ticks:
        parts.append(element("line", class_="rule", x1=x.at(value), x2=x.at(value), y1=TOP, y2=BOTTOM))
        parts.append(element("text", label, class_="middle", x=x.at(value), y=BOTTOM + 18))
    for value, label in y.ticks:
        parts.append(element("line", class_="rule", x1=LEFT, x2=RIGHT, y1=y.at(value), y2=y.at(value)))
        parts.append(element("text", label, class_="end", x=LEFT - 7, y=y.at(value) + 4))
    parts.append(element("rect", class_="frame", x=LEFT, y=TOP, width=RIGHT - LEFT, height=BOTTOM - TOP))
    parts.append(element("text", plot.x, class_="middle", x=(LEFT + RIGHT) / 2, y=BOTTOM + 42))
    turned = f"translate(15 {middle:g}) rotate(-90)"
    parts.append(element("text", plot.y, class_="middle", transform=turned))
    return parts


def _curve(curve: Curve, color: str, *, x: Axis, y: Axis) -> list[Element]:
    """Its line and error bars; the marks come later, on top of every line."""
    places = " ".join(f"{x.at(mark.x):.1f},{y.at(mark.y):.1f}" for mark in curve.marks)
    parts = [element("polyline", class_=f"curve {color}", points=places)] if len(curve.marks) > 1 else []
    for mark in curve.marks:
        if len(mark.reach) == 3:
            low, high = y.at(min(mark.reach)), y.at(max(mark.reach))
            at = x.at(mark.x)
            parts.append(element("line", class_=f"whisker {color}", x1=at, x2=at, y1=low, y2=high))
    return parts


def _mark(mark: Mark, color: str, *, legend: Legend, x: Axis, y: Axis) -> Element:
    return element(
        "path",
        element("title", mark.tip),
        class_=f"mark {legend.color(color)}",
        d=legend.shape(mark.shape),
        transform=f"translate({x.at(mark.x):.1f} {y.at(mark.y):.1f})",
    )


def _keys(legend: Legend, *, colors: set[str], shapes: set[str]) -> list[Element]:
    """What is seen in this plot, colors first; shapes only where they tell something apart."""
    parts: list[Element] = []
    seen = [name for name in legend.shapes if name in shapes]
    line = TOP + 8
    for name in (name for name in legend.colors if name in colors):
        parts.append(element("circle", class_=f"key mark {legend.color(name)}", cx=KEYS, cy=line, r=5))
        parts.append(element("text", name, x=KEYS + 14, y=line + 4))
        line += LINE
    for name in seen if len(seen) > 1 else ():
        place = f"translate({KEYS} {line + LINE / 2:g})"
        parts.append(element("path", class_="key shape", d=legend.shape(name), transform=place))
        parts.append(element("text", name, x=KEYS + 14, y=line + LINE / 2 + 4))
        line += LINE
    return parts
