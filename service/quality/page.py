"""A result as one HTML page that needs nothing beside itself. Knows no models, and measures and decides nothing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment

from service.quality.grid import GridResult, ResultRow, different

TEMPLATE = Path(__file__).with_name("page.html")
ABSENT = "–"
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
AGREEMENT = Column("Agreement", lambda row: row.agreement, "z.3f", "agreement")
COLUMNS = (
    Column("Ratio", lambda row: row.ratio, "g"),
    Column("n", lambda row: row.n, ",.0f"),
    EXACT_MATCH,
    Column("EM, one chunk", lambda row: row.exact_match_one_chunk, "z.3f"),
    Column("EM, two chunks", lambda row: row.exact_match_two_chunk, "z.3f"),
    Column("F1", lambda row: row.f1, "z.3f"),
    AGREEMENT,
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


@dataclass(frozen=True, slots=True)
class Dot:
    """A row in the picture, at shares of its width and height."""

    row: ResultRow
    x: float
    y: float


def page(result: GridResult, *, title: str, facts: dict[str, str]) -> str:
    """The whole page: facts, a picture, and every row but those that compute the same as one before."""
    rows = different(result.rows)
    quality = EXACT_MATCH if any(row.exact_match is not None for row in rows) else AGREEMENT
    slowest = max((row.ttft_ms for row in rows if math.isfinite(row.ttft_ms)), default=math.nan)
    policies = list(dict.fromkeys(row.policy for row in rows))
    template = Environment(autoescape=True).from_string(TEMPLATE.read_text("utf-8"))
    return template.render(
        title=title,
        facts=facts,
        result=result,
        rows=rows,
        columns=COLUMNS,
        words=WORDS,
        quality=quality.head,
        slowest=_number(slowest, ",.0f"),
        dots=_dots([row for row in rows if not row.suite], quality, slowest=slowest),
        hues={policy: 360 * at // len(policies) for at, policy in enumerate(policies)},
    )


def _dots(rows: Sequence[ResultRow], quality: Column, *, slowest: float) -> list[Dot]:
    """Quality over time; a row that lacks one of them has no place."""
    heights = ((row, quality.get(row)) for row in rows)
    return [
        Dot(row, row.ttft_ms / slowest, 1 - height)
        for row, height in heights
        if height is not None and math.isfinite(height) and math.isfinite(row.ttft_ms)
    ]


def _number(value: float | None, form: str) -> str:
    return ABSENT if value is None or not math.isfinite(value) else format(value, form)
