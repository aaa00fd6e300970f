"""Tables of what was measured, in Markdown: means with their 95 % intervals by bootstrap over prompts, all paired."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.lab.eval.exact_match import ratio_interval
from store.codec.spec import LOSSLESS
from tests.bench.real.results import REORDERED, Judged, MeasuredPrompt
from tests.bench.real.rows import IN_CONTEXT, Row

MARKS = {
    0.0: 1.5,
    0.05: 1.25,
    0.15: 0.9,
}  # yardsticks that lossless records captured in context may differ by, by ratio
CODEC_MARK = 0.8  # yardsticks that packing adds at most
KEPT_MARK = 0.99
COLUMNS = 10

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its interval."""

    mean: float
    low: float
    high: float

    def text(self, digits: int) -> str:
        """The number, and the interval in brackets."""
        return f"{self.mean:.{digits}f} [{self.low:.{digits}f} {self.high:.{digits}f}]"


def mean_of(values: Numbers) -> Figure:
    """The mean."""
    return ratio_of(values, np.ones_like(values))


def ratio_of(values: Numbers, whole: Numbers) -> Figure:
    """The sum of the one in parts of the other's."""
    found = ratio_interval(values, whole)
    return Figure(float(values.sum() / whole.sum()), found.low, found.high)


def table(cell: str, measured: Sequence[MeasuredPrompt]) -> str:
    """The table of one cell."""
    return "\n".join([*_head(cell, measured), *_yardsticks(measured), *_rows(measured), ""])


def _head(cell: str, measured: Sequence[MeasuredPrompt]) -> Iterator[str]:
    tokens = np.mean([each.tokens for each in measured])
    nats = [np.mean([of.nats for of in some]) for some in _both(measured)]
    first = np.median([each.first_s for each in measured])
    yield f"### {cell}"
    yield ""
    yield (
        f"{len(measured)} prompts of {tokens:,.0f} tokens. Nats of the known answer: {nats[0]:.3f} by full prefill, "
        f"{nats[1]:.3f} without passages. First token by full prefill: {first:.2f} s."
    )
    if measured[0].full.right is not None:
        full, none = map(_rights, _both(measured))
        yield f"Right: {mean_of(full).text(3)} by full prefill, {none.mean():.3f} without passages."
    yield ""
    yield "| | n | divergence | of the yardstick | agreement | kept | first token | CPU time | right | marks |"
    yield "|---|---|---|---|---|---|---|---|---|---|"


def _both(measured: Sequence[MeasuredPrompt]) -> tuple[list[Judged], list[Judged]]:
    return [each.full for each in measured], [each.none for each in measured]


def _yardsticks(measured: Sequence[MeasuredPrompt]) -> Iterator[str]:
    names = dict.fromkeys(name for each in measured for name in each.yardstick if not name.startswith(REORDERED))
    draws = [name for name in measured[0].yardstick if name.startswith(REORDERED)]
    top1 = np.array([np.mean([each.yardstick[name].top1 for name in draws]) for each in measured], np.float64)
    yardstick = _of_yardstick(measured)
    cells = [mean_of(yardstick).text(4), "1", mean_of(top1).text(3)]
    yield _line([f"full prefill, {REORDERED}", str(len(measured)), *cells])
    for name in names:
        some = [each for each in measured if name in each.yardstick]
        values, tops = (np.array([getattr(each.yardstick[name], field) for each in some]) for field in ("kl", "top1"))
        ratio = ratio_of(values, _of_yardstick(some))
        cells = [mean_of(values).text(4), ratio.text(2), mean_of(tops).text(3)]
        yield _line([f"full prefill, {name}", str(len(some)), *cells])


def _rows(measured: Sequence[MeasuredPrompt]) -> Iterator[str]:
    for name in dict.fromkeys(name for each in measured for name in each.rows):
        some = [each for each in measured if name in each.rows]
        yield _line(_row(Row.parse(name), [each.rows[name] for each in some], measured=some))


def _row(row: Row, judged: Sequence[Judged], *, measured: Sequence[MeasuredPrompt]) -> list[str]:
    divergence, yardstick = np.array([each.kl for each in judged]), _of_yardstick(measured)
    full, none, own = (np.array([of.nats for of in some]) for some in (*_both(measured), judged))
    ratio, kept = ratio_of(divergence, yardstick), _kept(none - own, none - full)
    right, marks = "", [_mark("divergence", ratio, MARKS[row.ratio])] if _is_marked(row) else []
    if judged[0].right is not None:
        lost = mean_of(_rights(judged) - _rights(_both(measured)[0]))
        right = f"{_rights(judged).mean():.3f}, {lost.text(3)}"
        if row.capture == IN_CONTEXT:
            marks.append(_right_mark(lost))
    twins = [each.rows.get(str(row.lossless)) for each in measured]
    if row.codec != LOSSLESS and None not in twins:
        plain = np.array([each.kl for each in twins if each])
        marks.append(_mark("packing", ratio_of(divergence - plain, yardstick), CODEC_MARK))
    if kept and row.capture == IN_CONTEXT:
        marks.append(_mark("kept", kept, KEPT_MARK))
    return [
        str(row),
        str(len(judged)),
        mean_of(divergence).text(4),
        ratio.text(2),
        mean_of(np.array([each.top1 for each in judged])).text(3),
        kept.text(3) if kept else "",
        *(f"{np.median(times):.3f}" for times in ([each.first for each in judged], [each.work for each in judged])),
        right,
        ", ".join(marks),
    ]


def _of_yardstick(measured: Sequence[MeasuredPrompt]) -> Numbers:
    return np.array([each.yardstick_kl for each in measured], np.float64)


def _rights(judged: Sequence[Judged]) -> Numbers:
    return np.array([bool(each.right) for each in judged], np.float64)


def _is_marked(row: Row) -> bool:
    return row.capture == IN_CONTEXT and row.codec == LOSSLESS and row.ratio in MARKS


def _kept(own: Numbers, full: Numbers) -> Figure | None:
    """What a row keeps of what passages tell; none where they tell nothing."""
    return ratio_of(own, full) if full.sum() > 0 else None


def _mark(name: str, found: Figure, limit: float) -> str:
    """Whether the mean meets it, and whether the worse end of the interval does."""
    is_floor = name == "kept"
    worse = found.low if is_floor else found.high
    met, surely = (each >= limit if is_floor else each <= limit for each in (found.mean, worse))
    said = "met" if surely else f"met, the interval's end {worse:.2f} not" if met else "not met"
    return f"{name} {found.mean:.2f} {'≥' if is_floor else '≤'} {limit:g} {said}"


def _right_mark(found: Figure) -> str:
    """Whether answers are right as often as full prefill's, by the difference."""
    said = "met" if found.mean >= 0 else "met within the interval" if found.high >= 0 else "not met"
    return f"right {said}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join([*cells, *[''] * (COLUMNS - len(cells))])} |"
