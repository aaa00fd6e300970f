"""What of a result stands where on a page. Knows no models, and measures and decides nothing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.quality.grid import GridResult, different
from service.quality.report_page import Picture, PictureDot, ReportPage, TableCell, rendered
from service.quality.result_row import ResultRow, YardstickRow

ABSENT = "–"
LEGEND = """Small print under a number: where it lies with 95 % confidence; under F1, held, nats, margin and
prefers: how far that is from full prefill’s. KL is from full prefill, in nats per token of the answer; yardsticks:
how many times what full prefill differs from itself where passages change places. Top-1: how often both prefer the
same token. Kept: of the nats that passages save on the known answer, so many. Held: how often the known answer stands
in the model’s. Margin: by how many nats it is likelier than a wrong one; prefers: how often it is. Loss: how much
less is right than with full prefill or, where no answers are known, how often the answer is another; the verdict says
whether what is lost is more than noise. Codec KL and codec top-1 are from the same policy on lossless records. Times
are medians, all else are means."""
WORDS = {"noise": "within noise"}  # other verdicts are words already


@dataclass(frozen=True, slots=True)
class Column:
    """A number of a row in the table: how it is written, and the name of its interval, if it has one."""

    head: str
    get: Callable[[ResultRow], float | None]
    form: str
    interval: str = ""

    def number(self, row: ResultRow) -> str:
        """The row's number as readers see it."""
        return _number(self.get(row), self.form)

    def span(self, row: ResultRow) -> str:
        """The interval of the number; empty where that is not known."""
        found = row.intervals.get(self.interval)
        if not found or not (math.isfinite(found.low) and math.isfinite(found.high)):
            return ""
        return f"{_number(found.low, self.form)}…{_number(found.high, self.form)}"


EXACT_MATCH = Column("Exact match", lambda row: row.exact_match, "z.3f", "exact_match")
TOP = Column("Top‑1", lambda row: row.top1, "z.3f")
KEPT = Column("Kept", lambda row: row.kept, "z.3f", "kept")
AGREEMENT = Column("Agreement", lambda row: row.agreement, "z.3f", "agreement")
COLUMNS = (
    Column("Ratio", lambda row: row.ratio, "g"),
    Column("n", lambda row: row.n, ",.0f"),
    EXACT_MATCH,
    Column("EM, one chunk", lambda row: row.exact_match_one_chunk, "z.3f"),
    Column("EM, two chunks", lambda row: row.exact_match_two_chunk, "z.3f"),
    Column("F1", lambda row: row.f1, "z.3f", "f1"),
    Column("Held", lambda row: row.holds, "z.3f", "holds"),
    AGREEMENT,
    Column("Loss", lambda row: row.loss, "z.3f", "loss"),
    Column("KL", lambda row: row.kl, ".2g", "kl"),
    Column("Yardsticks", lambda row: row.yardsticks, ".2f", "yardsticks"),
    TOP,
    Column("Nats", lambda row: row.nats, ".3f", "nats"),
    KEPT,
    Column("Margin", lambda row: row.margin, ".2f", "margin"),
    Column("Prefers", lambda row: row.prefers, "z.3f", "prefers"),
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


WORD_COLUMNS = ("Suite", "Policy", "Codec", "Verdict")


def page(result: GridResult, *, title: str, facts: dict[str, str]) -> str:
    """The whole page: facts, a picture, and every row but those that compute the same as one before."""
    rows = different(result.rows)
    return rendered(
        ReportPage(
            title=title,
            facts=facts,
            picture=_picture(rows),
            heading="All points",
            lead=f"{result.cases:,} questions at each point. "
            f"{result.dropped:,} passages did not fit the model’s window. {' '.join(map(_full, result.yardsticks))}",
            head=(
                *(TableCell(each, style="word") for each in WORD_COLUMNS),
                *(TableCell(each.head) for each in COLUMNS),
            ),
            rows=[_cells(row) for row in rows],
            legend=LEGEND,
        )
    )


def _full(row: YardstickRow) -> str:
    """What full prefill itself does, in words."""
    numbers = {
        "passages change places": row.kl,
        "one is another": row.replaced,
        "one is left out": row.left_out,
        "all are left out": row.unaided,
    }
    told = ", ".join(f"{_number(value, '.2g')} where {words}" for words, value in numbers.items() if value is not None)
    saved = "" if row.told is None else f"; passages save {_number(row.told, '.3f')} nats a token of the known answer"
    return f"Full prefill ({row.suite or 'all'}) differs from itself in nats a token: {told or ABSENT}{saved}."


def _picture(rows: Sequence[ResultRow]) -> Picture:
    """Quality over time, by the first measure that the suite has; a row that lacks one of them has no place."""
    measures = (KEPT, EXACT_MATCH, AGREEMENT, TOP)
    quality = next((each for each in measures if any(each.get(row) is not None for row in rows)), TOP)
    slowest = max((row.ttft_ms for row in rows if math.isfinite(row.ttft_ms)), default=math.nan)
    heights = ((row, quality.get(row)) for row in rows if not row.suite and math.isfinite(row.ttft_ms))
    return Picture(
        caption=f"{quality.head} and time to first token: better is higher, sooner is further left",
        ends=("1", "0", "0", f"{_number(slowest, ',.0f')} ms"),
        series=tuple(dict.fromkeys(row.policy for row in rows)),
        dots=tuple(
            PictureDot(row.policy, row.ttft_ms / slowest, 1 - min(1, max(0, height)), _told(row))
            for row, height in heights
            if height is not None and math.isfinite(height)
        ),
    )


def _told(row: ResultRow) -> str:
    numbers = (f"{each.head}: {each.number(row)}" for each in COLUMNS)
    return "\n".join([f"{row.policy}, {row.codec}", *numbers])


def _cells(row: ResultRow) -> list[TableCell]:
    verdict = TableCell(WORDS.get(row.verdict, row.verdict), style=f"word {row.verdict}")
    words = (TableCell(each, style="word") for each in (row.suite or "all", row.policy, row.codec))
    return [*words, verdict, *(TableCell(each.number(row), each.span(row)) for each in COLUMNS)]


def _number(value: float | None, form: str) -> str:
    return ABSENT if value is None or not math.isfinite(value) else format(value, form)
