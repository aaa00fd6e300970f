"""The result of an evaluation as one HTML page that needs nothing beside itself. Knows no models; decides nothing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment

from service.lab.eval.grid import GridResult, different
from service.lab.eval.result_row import ResultRow, YardstickRow

TEMPLATE = Path(__file__).with_name("report_page.html")
ABSENT = "–"


@dataclass(frozen=True, slots=True)
class PictureDot:
    """A row in the picture, at shares of its width and height from its upper left corner; `told`: when pointed at."""

    policy: str
    x: float
    y: float
    told: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Quality over time. `slowest`: the time at its right end."""

    caption: str
    slowest: str
    dots: tuple[PictureDot, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A number of a row in the table: how it is written, and the name of its interval, if it has one."""

    head: str
    get: Callable[[ResultRow], float | None]
    form: str
    interval: str = ""

    def number(self, row: ResultRow) -> str:
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


def report_page(result: GridResult, *, title: str, facts: dict[str, str]) -> str:
    """The whole page: facts, a picture, and every row but those that compute the same as one before."""
    rows = different(result.rows)
    policies = list(dict.fromkeys(row.policy for row in rows))
    template = Environment(autoescape=True).from_string(TEMPLATE.read_text("utf-8"))
    return template.render(
        title=title,
        facts=facts,
        picture=_picture(rows),
        hues={policy: 360 * at // len(policies) for at, policy in enumerate(policies)},
        lead=f"{result.cases:,} questions at each point. "
        f"{result.dropped:,} passages did not fit the model’s window. {' '.join(map(_full, result.yardsticks))}",
        columns=COLUMNS,
        rows=rows,
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
        slowest=f"{_number(slowest, ',.0f')} ms",
        dots=tuple(
            PictureDot(row.policy, row.ttft_ms / slowest, 1 - min(1, max(0, height)), _told(row))
            for row, height in heights
            if height is not None and math.isfinite(height)
        ),
    )


def _told(row: ResultRow) -> str:
    numbers = (f"{each.head}: {each.number(row)}" for each in COLUMNS)
    return "\n".join([f"{row.policy}, {row.codec}", *numbers])


def _number(value: float | None, form: str) -> str:
    return ABSENT if value is None or not math.isfinite(value) else format(value, form)
