"""A report as one HTML page that needs nothing beside itself. Knows no numbers: only where they stand."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment

TEMPLATE = Path(__file__).with_name("report_page.html")


@dataclass(frozen=True, slots=True)
class PictureDot:
    """A point of a picture, at shares of its width and height from its upper left corner; `told`: when pointed at."""

    series: str
    x: float
    y: float
    told: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A frame with dots. `ends`: what stands at both ends of its height, upper first, and of its width."""

    caption: str
    ends: tuple[str, str, str, str]
    series: tuple[str, ...]
    dots: tuple[PictureDot, ...]


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell of the table, with what stands below in small print. `style`: words of the page's own style sheet."""

    text: str
    small: str = ""
    style: str = ""


@dataclass(frozen=True, slots=True)
class ReportPage:
    """All that a page shows, from above. `lead` stands before the table and `legend` behind it."""

    title: str
    facts: dict[str, str]
    picture: Picture
    heading: str
    lead: str
    head: tuple[TableCell, ...]
    rows: Sequence[Sequence[TableCell]]
    legend: str


def rendered(page: ReportPage) -> str:
    """The page as HTML."""
    series = page.picture.series
    hues = {name: 360 * at // len(series) for at, name in enumerate(series)}
    template = Environment(autoescape=True).from_string(TEMPLATE.read_text("utf-8"))
    return template.render(page=page, picture=page.picture, hues=hues)
