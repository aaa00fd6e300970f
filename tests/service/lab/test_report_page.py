"""The page as a browser and a reader take it: parsed again, and every point looked for in the frame of its picture."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.lab.eval.exact_match import Interval
from service.lab.eval.grid import GridResult
from service.lab.eval.report_page import report_page
from service.lab.eval.result_row import ResultRow, YardstickRow

NAN = math.nan
ROW = ResultRow(
    suite="",
    policy="hybrid",
    ratio=0.15,
    codec="lossless",
    n=20,
    exact_match=0.6,
    exact_match_one_chunk=0.7,
    exact_match_two_chunk=0.5,
    f1=0.65,
    holds=0.7,
    agreement=0.8,
    kl=0.01,
    yardsticks=0.5,
    top1=0.95,
    kl_codec=None,
    top1_codec=None,
    nats=1.5,
    kept=None,
    margin=None,
    prefers=None,
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
YARDSTICK = YardstickRow("", 20, 60, 0.0224, 0.92, 0.017, 0.0155, 1.5, 3.1, 0.4, 2.0, 10.8, 0.0, None, {})
UNMEASURED = YardstickRow("<one>", 20, 0, None, None, None, None, None, None, None, 0.0, math.inf, None, None, {})
NOWHERE = {name: Interval(NAN, NAN) for name in ROW.intervals}
UNANSWERED = replace(
    ROW,
    exact_match=None,
    exact_match_one_chunk=None,
    exact_match_two_chunk=None,
    f1=None,
    holds=None,
    nats=None,
    intervals={"agreement": Interval(0.7, 0.9)},
)
MANY = [
    replace(ROW, policy=policy, ratio=ratio, codec=codec, bits_per_value=bits, ttft_ms=90 + 900 * ratio, kl=ratio**5)
    for policy in ("full", "reuse", "heads", "deviation", "hybrid", "ask")
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


def made(rows: Sequence[ResultRow], title: str = "Title", **facts: str) -> str:
    return report_page(GridResult(tuple(rows), (YARDSTICK, UNMEASURED), cases=20, dropped=3), title=title, facts=facts)


def picture(text: str) -> Element:
    [found] = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    return ElementTree.fromstring(found)


def dots(text: str) -> list[tuple[float, float]]:
    return [(float(each.get("cx", "")), float(each.get("cy", ""))) for each in picture(text).iter("circle")]


def outside(text: str) -> list[tuple[float, float]]:
    [frame] = picture(text).iter("rect")
    width, height = (float(frame.get(name, "")) for name in ("width", "height"))
    return [(x, y) for x, y in dots(text) if not (0 <= x <= width and 0 <= y <= height)]


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_every_page_is_well_formed_and_every_point_is_in_its_frame(rows: list[ResultRow]) -> None:
    text = made(rows, fact="value")
    assert Reader(text).open == []
    assert outside(text) == []


BROKEN = st.sampled_from([NAN, math.inf, -math.inf])
numbers = st.floats(-1e6, 1e6).map(lambda value: round(value, 9)) | BROKEN
shares = st.floats(0, 1) | BROKEN
odd = st.builds(
    replace,
    st.just(ROW),
    policy=st.sampled_from("abcdefghijkl"),
    ratio=st.sampled_from([0.0, 0.1, 1.0]),
    codec=st.sampled_from(["q2", "q4"]),
    exact_match=shares | st.none(),
    exact_match_two_chunk=shares | st.none(),
    agreement=shares,
    kl=numbers,
    ttft_ms=st.floats(1e-3, 1e6) | BROKEN,
    bits_per_value=numbers,
    intervals=st.fixed_dictionaries({"exact_match": st.builds(Interval, numbers, numbers)}),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(odd, max_size=6))
def test_odd_numbers_break_nothing(rows: list[ResultRow]) -> None:
    text = made(rows)
    assert Reader(text).open == []
    assert outside(text) == []
    assert "nan" not in text and ">inf" not in text


def test_a_point_without_a_place_is_left_out_of_the_picture() -> None:
    rows = [ROW, replace(ROW, ratio=0.1, ttft_ms=NAN), replace(ROW, ratio=0.2, kl=NAN), replace(ROW, codec="q4")]
    assert len(dots(made(rows))) == 3
    assert len(dots(made([replace(UNANSWERED, agreement=NAN), replace(UNANSWERED, codec="q4")]))) == 1


def test_better_is_higher_and_later_is_further_right() -> None:
    [(x, y), (other_x, other_y)] = dots(made([ROW, replace(ROW, ratio=0.5, exact_match=0.8, ttft_ms=240)]))
    assert other_y < y and other_x > x


def test_the_picture_is_of_the_first_measure_that_a_suite_has() -> None:
    told = replace(ROW, kept=1.01)
    unknown = replace(UNANSWERED, agreement=None)
    cases = ((ROW, "Exact match", 0.4), (UNANSWERED, "Agreement", 0.2), (told, "Kept", 0.0), (unknown, "Top‑1", 0.05))
    for row, words, height in ((row, f"{name} and time", height) for row, name, height in cases):
        text = made([row])
        assert words in text
        assert dots(text)[0][1] == pytest.approx(300 * height)


def test_a_policy_has_one_color_and_the_legend_names_it() -> None:
    drawn = picture(made(MANY))
    colors = {((dot.findtext("title") or "").strip().split(",")[0], dot.get("fill")) for dot in drawn.iter("circle")}
    assert len(colors) == len({color for _, color in colors}) == 6
    assert colors <= {(each.text, each.get("fill")) for each in drawn.iter("text")}


def test_every_row_is_in_the_table_but_for_those_that_computed_the_same() -> None:
    rows = [replace(row, verdict=("equal", "noise", "worse", "better")[at % 4]) for at, row in enumerate(MANY)]
    head, *lines = Reader(made(rows)).lines
    assert {len(line) for line in lines} == {len(head)} == {29}
    told: dict[object, ResultRow] = {}
    for row in rows:
        codec = "" if row.policy == "full" else row.codec
        told.setdefault(
            (row.policy, codec, row.ratio if row.policy in ("heads", "deviation", "hybrid", "ask") else 0), row
        )
    prompt_builder = {"equal": "equal", "noise": "within noise", "worse": "worse", "better": "better"}
    assert len(told) < len(rows)
    assert [tuple(line[1:5]) for line in lines] == [
        (row.policy, row.codec, prompt_builder[row.verdict], f"{row.ratio:g}") for row in told.values()
    ]
    assert {line[3] for line in lines} == {*prompt_builder.values()}


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
    assert "script" not in seen.tags
    for tag in ("title", "h1", "dt", "dd", "td", "text"):
        assert evil in "".join(seen.all(tag))
