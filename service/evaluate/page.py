"""A result as one HTML page that needs nothing beside itself. Knows no models, and measures and decides nothing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from xml.etree.ElementTree import Element, tostring

from service.evaluate import plot
from service.evaluate.grid import Result, Row, different
from service.evaluate.plot import Curve, Legend, Mark, Plot, Ticker, decade_ticks, draw, element, nice_ticks
from service.evaluate.probe import LOSSLESS

LEAST_KL = 1e-6  # what is below, 0 included, is drawn here
ABSENT = "–"
SECURITY = "default-src 'none'; style-src 'unsafe-inline'"
WORDS = {"noise": "within noise"}  # other verdicts are words already
NOTE = (
    "Small print under a number: where it lies with 95 % confidence. Loss: how much less is right than with full "
    "prefill or, where no answers are known, how often the answer is another; the verdict says whether that is more "
    "than noise. KL is from full prefill, in nats per answer token; codec KL and codec top-1 are from the same policy "
    "on lossless records. Top-1: how often both prefer the same token. Times are medians, all else are means."
)
STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1d1d1f;--quiet:#6e6e73;--faint:#e6e6ea;--bad:#b3261e;--good:#0a6b3d}
@media(prefers-color-scheme:dark){:root{--paper:#161618;--ink:#ececf0;--quiet:#9a9aa2;--faint:#2f2f34;--bad:#ff8a80;
--good:#6fdc9f}}
body{margin:0 auto;padding:24px;max-width:1480px;background:var(--paper);color:var(--ink);
font:15px/1.45 system-ui,sans-serif}
h1{font-size:24px;margin:0 0 16px}h2{font-size:18px;margin:32px 0 8px}p{max-width:85ch}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 20px;margin:0}
dt{color:var(--quiet)}dd{margin:0;overflow-wrap:anywhere;white-space:pre-wrap}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,500px),1fr));gap:28px;margin-top:28px}
figure{margin:0}figcaption{font-weight:600;margin-bottom:6px}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:12.5px;font-variant-numeric:tabular-nums}
th,td{padding:4px 7px;text-align:right;vertical-align:top;border-bottom:1px solid var(--faint);white-space:nowrap}
th{vertical-align:bottom;white-space:normal;font-weight:600}.word{text-align:left}
small{display:block;color:var(--quiet);font-size:11px}
.equal,.noise{color:var(--quiet)}.worse{color:var(--bad);font-weight:600}.better{color:var(--good);font-weight:600}
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A number of a row in the table: how it is written, and the name of its interval, if it has one."""

    head: str
    get: Callable[[Row], float | None]
    form: str
    interval: str = ""


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a row on an axis, in decades its exponent, and the name of the interval that its error bar shows."""

    name: str
    get: Callable[[Row], float | None]
    interval: str = ""
    ticks: Ticker = nice_ticks


COLUMNS = (
    Column("Ratio", lambda row: row.ratio, "g"),
    Column("n", lambda row: row.n, ",.0f"),
    Column("Exact match", lambda row: row.exact_match, "z.3f", "exact_match"),
    Column("EM, one chunk", lambda row: row.exact_match_one_chunk, "z.3f"),
    Column("EM, two chunks", lambda row: row.exact_match_two_chunk, "z.3f"),
    Column("F1", lambda row: row.f1, "z.3f"),
    Column("Agreement", lambda row: row.agreement, "z.3f", "agreement"),
    Column("Loss", lambda row: row.loss, "z.3f", "loss"),
    Column("KL", lambda row: row.kl, ".2g", "kl"),
    Column("Top‑1", lambda row: row.top1, "z.3f"),
    Column("Codec KL", lambda row: row.kl_codec, ".2g"),
    Column("Codec top‑1", lambda row: row.top1_codec, "z.3f"),
    Column("TTFT, ms", lambda row: row.ttft_ms, ",.1f"),
    Column("Speed-up", lambda row: row.ttft_speedup, ",.2f"),
    Column("Prompt tokens", lambda row: row.prompt_tokens, ",.0f"),
    Column("Reused", lambda row: row.reused_tokens, ",.0f"),
    Column("Recomputed", lambda row: row.recomputed_tokens, ",.0f"),
    Column("Bytes per token", lambda row: row.bytes_per_token, ",.0f"),
    Column("Bits per value", lambda row: row.bits_per_value, ".2f"),
)
TOLD = ("Ratio", "Exact match", "Agreement", "KL", "TTFT, ms", "Bits per value")  # when a point is pointed at
EXACT_MATCH = Measure("Exact match", lambda row: row.exact_match, "exact_match")
TWO_CHUNK = Measure("Exact match where two chunks are needed", lambda row: row.exact_match_two_chunk)
AGREEMENT = Measure("Agreement with full prefill", lambda row: row.agreement, "agreement")
KL = Measure("KL, nats per token, 10⁻⁶ or more", lambda row: math.log10(max(row.kl, LEAST_KL)), ticks=decade_ticks)
TIME = Measure("Time to first token, ms", lambda row: row.ttft_ms)
BITS = Measure("Bits per value", lambda row: row.bits_per_value)
RATIO = Measure("Ratio", lambda row: row.ratio)


def page(result: Result, *, title: str, facts: dict[str, str]) -> str:
    """The whole page: facts, plots and every row."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=SECURITY),
        element("meta", name="viewport", content="width=device-width,initial-scale=1"),
        element("title", title),
        element("style", STYLE + plot.STYLE),
    )
    asked = f"{result.cases:,} questions at each point. {result.dropped:,} passages did not fit the model’s window."
    body = element(
        "body",
        element("h1", title),
        element("dl", *(part for name, text in facts.items() for part in (element("dt", name), element("dd", text)))),
        element("div", *_figures([row for row in result.rows if not row.suite]), class_="plots"),
        element("h2", "All points"),
        element("p", asked),
        element("div", _table(result.rows), class_="wide"),
        element("p", NOTE),
    )
    return "<!doctype html>\n" + tostring(element("html", head, body, lang="en"), encoding="unicode", method="html")


def _figures(rows: Sequence[Row]) -> list[Element]:
    legend = Legend(tuple(dict.fromkeys(row.policy for row in rows)), tuple(dict.fromkeys(row.codec for row in rows)))
    codec = LOSSLESS if LOSSLESS in legend.shapes else "".join(legend.shapes[:1])
    quality = EXACT_MATCH if any(row.exact_match is not None for row in rows) else AGREEMENT
    harder = TWO_CHUNK if any(row.exact_match_two_chunk is not None for row in rows) else quality
    plain, harder = replace(quality, interval=""), replace(harder, interval="")  # many bars at one x hide each other
    single = [row for row in rows if row.codec == codec]
    plots = [
        _plot("Quality and time, a line along the ratio", rows, x=TIME, y=quality, apart=lambda row: row.codec),
        _plot("Quality and size, a line for each ratio", rows, x=BITS, y=plain, apart=lambda row: row.ratio),
        _plot("Divergence and size, a line for each ratio", rows, x=BITS, y=KL, apart=lambda row: row.ratio),
        _plot(f"Quality and ratio, {codec}", single, x=RATIO, y=harder, apart=lambda row: row.codec),
    ]
    return [element("figure", element("figcaption", each.title), draw(each, legend)) for each in plots]


def _plot(title: str, rows: Sequence[Row], *, x: Measure, y: Measure, apart: Callable[[Row], str | float]) -> Plot:
    """A color for each policy, and in it a curve for each value of `apart`."""
    curves: dict[tuple[str, str | float], list[Mark]] = {}
    for row in sorted(rows, key=lambda row: (row.ratio, row.bits_per_value)):
        curves.setdefault((row.policy, apart(row)), []).append(_mark(row, x, y=y))
    found = tuple(Curve(policy, tuple(marks)) for (policy, _), marks in curves.items())
    return Plot(title, x.name, y.name, y.ticks, found)


def _mark(row: Row, x: Measure, *, y: Measure) -> Mark:
    at, height = (math.nan if value is None else value for value in (x.get(row), y.get(row)))
    span = row.intervals.get(y.interval)
    return Mark(at, height, row.codec, _tip(row), span and span.low, span and span.high)


def _tip(row: Row) -> str:
    shown = [column for column in COLUMNS if column.head in TOLD]
    return f"{row.policy}, {row.codec}" + "".join(
        f"\n{each.head}: {_number(each.get(row), each.form)}" for each in shown
    )


def _table(rows: Sequence[Row]) -> Element:
    heads = [element("th", head, class_="word", scope="col") for head in ("Suite", "Policy", "Codec", "Verdict")]
    heads += [element("th", column.head, scope="col") for column in COLUMNS]
    return element("table", element("thead", element("tr", *heads)), element("tbody", *map(_line, different(rows))))


def _line(row: Row) -> Element:
    return element(
        "tr",
        element("td", row.suite or "all", class_="word"),
        element("td", row.policy, class_="word"),
        element("td", row.codec, class_="word"),
        element("td", WORDS.get(row.verdict, row.verdict), class_=f"word {row.verdict}"),
        *(_cell(row, column) for column in COLUMNS),
    )


def _cell(row: Row, column: Column) -> Element:
    cell = element("td", _number(column.get(row), column.form))
    span = row.intervals.get(column.interval)
    if span and math.isfinite(span.low) and math.isfinite(span.high):
        cell.append(element("small", f"{_number(span.low, column.form)}…{_number(span.high, column.form)}"))
    return cell


def _number(value: float | None, form: str) -> str:
    return ABSENT if value is None or not math.isfinite(value) else format(value, form)
