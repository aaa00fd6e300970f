"""The page as a browser and a reader take it: parsed again, and every point looked for in its frame."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.evaluate.grid import Result, Row
from service.evaluate.page import COLUMNS, page
from service.evaluate.plot import decade_ticks, nice_ticks
from service.evaluate.score import Interval

NAN = math.nan
ROW = Row(
    suite="",
    policy="hybrid",
    ratio=0.15,
    codec="lossless",
    n=20,
    exact_match=0.6,
    exact_match_one_chunk=0.7,
    exact_match_two_chunk=0.5,
    f1=0.65,
    agreement=0.8,
    kl=0.01,
    top1=0.95,
    kl_codec=None,
    top1_codec=None,
    loss=0.05,
    verdict="noise",
    ttft_ms=120.0,
    ttft_speedup=4.0,
    prompt_tokens=900,
    reused_tokens=700,
    recomputed_tokens=100,
    bytes_per_token=12_000,
    bits_per_value=11.2,
    intervals={"exact_match": Interval(0.5, 0.7), "agreement": Interval(0.7, 0.9), "loss": Interval(-0.01, 0.1)},
)
NOWHERE = {name: Interval(NAN, NAN) for name in ROW.intervals}
UNANSWERED = replace(
    ROW,
    exact_match=None,
    exact_match_one_chunk=None,
    exact_match_two_chunk=None,
    f1=None,
    intervals={"agreement": Interval(0.7, 0.9)},
)
MANY = [
    replace(ROW, policy=policy, ratio=ratio, codec=codec, bits_per_value=bits, ttft_ms=90 + 900 * ratio, kl=ratio**5)
    for policy in ("full", "reuse", "heads", "deviation", "hybrid")
    for ratio in (0.0, 0.05, 0.15, 0.5)
    for codec, bits in (("lossless", 11.2), ("q8", 8.3), ("q4", 4.4))
]
ROWS = {
    "one": [ROW],
    "the same twice": [ROW, ROW],
    "many": MANY,
    "unanswered": [UNANSWERED, replace(UNANSWERED, ratio=0.3, agreement=0.9)],
    "intervals of nothing": [replace(ROW, intervals=NOWHERE)],
    "no number at all": [replace(ROW, kl=NAN, ttft_ms=NAN, bits_per_value=NAN, exact_match=NAN)],
    "some unknown": [ROW, replace(ROW, exact_match=None, exact_match_two_chunk=None, kl=NAN)],
    "all right, all equal": [replace(ROW, exact_match=1.0, kl=0.0, loss=-0.0), replace(ROW, exact_match=1.0, kl=0.0)],
    "nothing right": [replace(ROW, exact_match=0.0, ratio=0.0, intervals={})],
    "none": [],
}


class Reader(HTMLParser):
    """Keeps the open tags, the text of each kind of element, and the cells of each row of a table."""

    VOID = ("meta",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.texts: list[tuple[str, str]] = []
        self.lines: list[list[str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.lines.append([])
        if tag in ("td", "th"):
            self.lines[-1].append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.append((self.open[-1], data))
        if self.open and self.open[-1] in ("td", "th"):
            self.lines[-1][-1] += data

    def all(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]


def made(rows: Sequence[Row], title: str = "Title", **facts: str) -> str:
    return page(Result(tuple(rows), cases=20, dropped=3), title=title, facts=facts)


def plots(text: str) -> list[Element]:
    found = [ElementTree.fromstring(each) for each in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    assert len(found) == 4
    return found


def having(plot: Element, name: str) -> list[Element]:
    return [each for each in plot.iter() if name in each.get("class", "").split()]


def points(plot: Element) -> list[tuple[float, float]]:
    moves = [each.get("transform") or "" for each in having(plot, "mark") if each.find("title") is not None]
    return [(float(x), float(y)) for x, y in (move[len("translate(") : -1].split() for move in moves)]


def ends(plot: Element) -> list[tuple[float, float]]:
    """Of curves and error bars."""
    corners = [pair.split(",") for each in having(plot, "curve") for pair in each.get("points", "").split()]
    bars = having(plot, "whisker")
    corners += [[each.get("x1", ""), each.get(name, "")] for each in bars for name in ("y1", "y2")]
    return [(float(x), float(y)) for x, y in corners]


def outside(plot: Element) -> list[tuple[float, float]]:
    [frame] = having(plot, "frame")
    x, y, width, height = (float(frame.get(name) or "") for name in ("x", "y", "width", "height"))
    near = 0.06  # coordinates are rounded
    return [
        (at, up)
        for at, up in points(plot) + ends(plot)
        if not (x - near <= at <= x + width + near and y - near <= up <= y + height + near)
    ]


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_every_page_is_well_formed_and_every_point_is_in_its_frame(rows: list[Row]) -> None:
    text = made(rows, fact="value")
    assert Reader(text).open == []
    assert [outside(plot) for plot in plots(text)] == [[]] * 4


numbers = st.floats(-1e6, 1e6).map(lambda value: round(value, 9)) | st.sampled_from([NAN, math.inf, -math.inf, 0.0])
odd = st.builds(
    replace,
    st.just(ROW),
    policy=st.sampled_from("abcdefghijkl"),
    ratio=st.sampled_from([0.0, 0.1, 1.0]),
    codec=st.sampled_from(["q2", "q4"]),
    exact_match=numbers | st.none(),
    exact_match_two_chunk=numbers | st.none(),
    agreement=numbers,
    kl=numbers,
    ttft_ms=numbers,
    bits_per_value=numbers,
    intervals=st.fixed_dictionaries({"exact_match": st.builds(Interval, numbers, numbers)}),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(odd, max_size=6))
def test_odd_numbers_break_nothing(rows: list[Row]) -> None:
    text = made(rows)
    assert Reader(text).open == []
    assert [outside(plot) for plot in plots(text)] == [[]] * 4
    assert "nan" not in text and ">inf" not in text


def test_a_point_without_a_number_is_left_out_of_the_plots_that_need_it() -> None:
    found = plots(made([ROW, replace(ROW, ttft_ms=NAN), replace(ROW, kl=NAN), replace(ROW, codec="q4")]))
    assert [len(points(plot)) for plot in found] == [3, 4, 3, 3]


def test_better_is_higher_and_later_is_further_right() -> None:
    rows = [ROW, replace(ROW, exact_match=0.8, exact_match_two_chunk=0.9, ttft_ms=240, ratio=0.5, kl=0.1)]
    for number, plot in enumerate(plots(made(rows))):
        [(x, y), (other_x, other_y)] = points(plot)
        assert other_y < y
        assert other_x > x if number in (0, 3) else other_x == x


def test_error_bars_are_of_what_is_drawn() -> None:
    assert [len(having(plot, "whisker")) for plot in plots(made([ROW]))] == [1, 0, 0, 0]
    assert [len(having(plot, "whisker")) for plot in plots(made([replace(ROW, intervals=NOWHERE)]))] == [0] * 4
    answered, unanswered = plots(made([ROW]))[0], plots(made([UNANSWERED]))[0]
    assert "Exact match" in list(answered.itertext())
    assert "Agreement with full prefill" in list(unanswered.itertext()) and having(unanswered, "whisker")


def test_the_ratio_is_plotted_against_what_needs_two_chunks_where_a_suite_has_that() -> None:
    def label(row: Row) -> str:
        return "".join(plots(made([row]))[3].itertext())

    assert "two chunks" in label(ROW)
    assert "two chunks" not in label(replace(ROW, exact_match_two_chunk=None))


def test_curves_join_what_belongs_together() -> None:
    along_ratio, over_bits, _, over_ratio = plots(made(MANY))
    assert [len(having(plot, "curve")) for plot in (along_ratio, over_bits, over_ratio)] == [5 * 3, 5 * 4, 5]


def test_a_policy_has_one_color_in_all_plots() -> None:
    for plot in plots(made(MANY)):
        colors = {
            ((mark.findtext("title") or "").split(",")[0], mark.get("class"))
            for mark in having(plot, "mark")
            if mark.find("title") is not None
        }
        assert len(colors) == len({color for _, color in colors}) == 5
        assert colors == {(policy, f"mark c{at}") for at, policy in enumerate(dict.fromkeys(r.policy for r in MANY))}
        assert {policy for policy, _ in colors} <= {text.text for text in plot.iter("text")}  # the legend


def test_every_row_is_in_the_table_but_for_those_that_computed_the_same() -> None:
    rows = [replace(row, verdict=("equal", "noise", "worse", "better")[at % 4]) for at, row in enumerate(MANY)]
    head, *lines = Reader(made(rows)).lines
    assert {len(line) for line in lines} == {len(head)} == {len(COLUMNS) + 4}
    told: dict[object, Row] = {}
    for row in rows:
        codec = "" if row.policy == "full" else row.codec
        told.setdefault((row.policy, codec, row.ratio if row.policy in ("heads", "deviation", "hybrid") else 0), row)
    wording = {"equal": "equal", "noise": "within noise", "worse": "worse", "better": "better"}
    assert len(told) < len(rows)
    assert [tuple(line[1:5]) for line in lines] == [
        (row.policy, row.codec, wording[row.verdict], f"{row.ratio:g}") for row in told.values()
    ]
    assert {line[3] for line in lines} == {*wording.values()}


def test_numbers_are_written_for_readers() -> None:
    row = replace(ROW, loss=-0.0, ttft_ms=1234.56, kl=0.000012345, f1=None, recomputed_tokens=NAN)
    head, line = Reader(made([row])).lines
    cells = dict(zip(head, line, strict=True))
    assert [cells[name] for name in ("Loss", "TTFT, ms", "KL", "F1", "Recomputed")] == [
        "0.000",
        "1,234.6",
        "1.2e-05",
        "–",
        "–",
    ]
    assert Reader(made([row])).all("small") == ["0.500…0.700", "0.700…0.900", "-0.010…0.100"]


def test_the_page_needs_nothing_and_runs_nothing() -> None:
    text = made(MANY, command="kvweave eval")
    assert not re.search(r"://|@import|url\(|\ssrc=|\shref=|\son\w+=", text)
    assert not Reader(text).tags & {"script", "link", "img", "iframe", "object", "base", "form"}


def test_given_text_is_text() -> None:
    evil = "</title></dd><script>alert('\"&amp;')</script>"
    row = replace(ROW, policy=evil, codec=evil, verdict='"><script>')
    text = made([row, replace(row, codec="q4")], title=evil, **{evil: evil})
    seen = Reader(text)
    assert "script" not in seen.tags and len(plots(text)) == 4
    for tag in ("title", "h1", "dt", "dd", "td", "text"):
        assert evil in "".join(seen.all(tag))


@given(st.lists(st.floats(-1e6, 1e6).map(lambda value: round(value, 9))))
def test_ticks_are_nice_and_enclose_all_values(values: list[float]) -> None:
    ticks = nice_ticks(values)
    places = [value for value, _ in ticks]
    step = places[1] - places[0]
    near = step * 1e-3
    assert all(places[0] - near <= value <= places[-1] + near for value in values)
    assert 2 <= len(places) <= 8 and all(abs(b - a - step) < near for a, b in pairwise(places))
    assert f"{step:.0e}"[0] in "125"
    assert len({label for _, label in ticks}) == len(ticks)


def test_tick_labels_say_what_they_stand_for() -> None:
    assert [label for _, label in nice_ticks([0.42, 0.61])] == ["0.40", "0.45", "0.50", "0.55", "0.60", "0.65"]
    assert [label for _, label in nice_ticks([130, 1400])] == ["0", "500", "1,000", "1,500"]
    assert nice_ticks([]) == nice_ticks([0.0, 1.0])
    assert decade_ticks([-2.5, -1.0]) == ((-3.0, "10⁻³"), (-2.0, "10⁻²"), (-1.0, "10⁻¹"))
    assert decade_ticks([0.0]) == ((0.0, "10⁰"), (1.0, "10¹"))
