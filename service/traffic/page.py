"""What of a measurement of endpoints stands where on a page. Measures and judges nothing."""

from service.quality.report_page import Picture, PictureDot, PictureLine, ReportPage, TableCell, rendered
from service.traffic.measurement import LatencySpread, TrafficMeasurement, TrafficRow, comparison

HEADS = (
    *("Way", "Requests/s", "Against the first", "Answered", "Failed", "First token, ms", "p95", "p99"),
    *("Whole, ms", "p95", "p99", "Prompt tokens", "Cached", "Answered/s", "Queue"),
)
LEGEND = """Times are medians, and percentiles where there were requests enough, all counted from when a request was to
be sent, whether those before were answered or not. Cached: of the prompts' tokens, as the endpoint tells. Against the
first way at this rate, by the medians beside it; “about the same” where the rounds do not agree or differ by chance.
Answered/s: until the last answer came."""


def page(found: TrafficMeasurement) -> str:
    """The whole page."""
    facts = {way.name: f"{way.url}, model {way.model}" for way in found.ways}
    told = {"stopped": "not all that was planned was measured"} if not found.is_whole else {}
    return rendered(
        ReportPage(
            title="Time to the first token by request rate",
            facts={**facts, **told, "result": "\n".join(found.sentences)},
            picture=_picture(found),
            heading="All rates",
            lead=" ".join(found.notes),
            head=tuple(TableCell(each, style="word" if at in (0, 2) else "") for at, each in enumerate(HEADS)),
            rows=[_cells(row, first=found.ways[0].name) for row in found.rows],
            legend=LEGEND,
        )
    )


def _picture(found: TrafficMeasurement) -> Picture:
    """First tokens over rates: medians with dots, p95 where it is known."""
    timed = [(row, row.first_s) for row in found.rows if row.first_s]
    most_s = max((spread.p95 or spread.p50 for _, spread in timed), default=1.0)
    most_rate = max((row.rate for row in found.rows), default=1.0)
    names = tuple(way.name for way in found.ways)
    lines: list[PictureLine] = []
    for name in names:
        own = sorted(((row.rate, spread) for row, spread in timed if row.way == name), key=lambda each: each[0])
        middle = tuple((rate / most_rate, 1 - spread.p50 / most_s) for rate, spread in own)
        high = tuple((rate / most_rate, 1 - spread.p95 / most_s) for rate, spread in own if spread.p95 is not None)
        lines += [PictureLine(name, middle), PictureLine(name, high, faint=True)]
    return Picture(
        caption="Time to the first token over requests a second: the median, and in dashes p95; sooner is lower",
        ends=(f"{1000 * most_s:,.0f} ms", "0", "0", f"{most_rate:g} requests/s"),
        series=names,
        dots=tuple(
            PictureDot(row.way, row.rate / most_rate, 1 - spread.p50 / most_s, _told(row, spread))
            for row, spread in timed
        ),
        lines=tuple(each for each in lines if len(each.points) > 1),
    )


def _told(row: TrafficRow, spread: LatencySpread) -> str:
    return f"{row.way}, {row.rate:g} requests/s: {1000 * spread.p50:,.0f} ms"


def _cells(row: TrafficRow, *, first: str) -> list[TableCell]:
    failed = "\n".join(f"{count:,} {kind}" for kind, count in row.failures.items())
    return [
        TableCell(row.way, style="word"),
        TableCell(f"{row.rate:g}"),
        TableCell("" if row.way == first else comparison(row), style="word"),
        TableCell(f"{row.answered:,}"),
        TableCell(f"{sum(row.failures.values()):,}", failed),
        *_times(row.first_s),
        *_times(row.whole_s),
        TableCell("–" if row.prompt_tokens is None else f"{row.prompt_tokens:,.0f}"),
        TableCell("–" if row.cached_share is None else f"{row.cached_share:.0%}"),
        TableCell(f"{row.answered_per_s:.2f}"),
        TableCell("grows" if row.queue_grows else ""),
    ]


def _times(spread: LatencySpread | None) -> list[TableCell]:
    seconds = (spread.p50, spread.p95, spread.p99) if spread else (None, None, None)
    return [TableCell("–" if each is None else f"{1000 * each:,.0f}") for each in seconds]
