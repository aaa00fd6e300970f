"""Which operating point to take: the soonest within bounds; how many questions --save needs, and what it writes."""

import math
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.app.operating_point import FULL, OperatingPoint
from service.lab.eval.exact_match import Interval
from service.lab.eval.result_row import ResultRow, YardstickRow
from service.lab.questions.cases import SuiteError
from service.lab.time_ratio import TIE

LEAST = 30  # questions of a choice that is kept, whatever the bound
MOST = 100  # as many are enough for any bound


@dataclass(frozen=True, slots=True)
class PolicyBounds:
    """What a point may lose against full prefill. `loss`: a share, of right answers and of what passages tell.

    `yardsticks`: its divergence, in times of what full prefill differs by itself where passages change places.
    """

    loss: float = 0.01
    yardsticks: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.loss <= 1:
            raise SuiteError(f"the bound of the loss lies in [0, 1], got {self.loss}")


@dataclass(frozen=True, slots=True)
class Judgement:
    """One thing that a point is judged by: its value, the worse end of its interval, and the most that both may be."""

    words: str
    value: float
    worst: float
    most: float


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The point to take, and the `sentence` that says it to people. `certain`: the intervals of all that it is judged
    by lie within the bounds, and not their middles alone.
    """

    row: ResultRow
    bounds: PolicyBounds
    certain: bool
    sentence: str


def choose(rows: Sequence[ResultRow], yardstick: YardstickRow, *, bounds: PolicyBounds) -> PolicyChoice:
    """The soonest point within the bounds; of those that are equally soon, the smallest. Else full prefill.

    Nothing is taken where full prefill itself says nothing that a point could keep. Rows of single suites are left out.
    """
    rows = [row for row in rows if row.suite == yardstick.suite]
    judged = [(row, [*_judgements(row, yardstick, bounds=bounds)]) for row in rows if row.policy != FULL.policy]
    within = [(row, each) for row, each in judged if all(one.value <= one.most for one in each)]
    fitting = [(row, each) for row, each in within if row.ttft_speedup > 1]
    if yardstick.guesses or yardstick.is_idle or not fitting:
        full = next(row for row in rows if row.policy == FULL.policy)
        return PolicyChoice(full, bounds, True, f"{_nothing(yardstick, bounds, late=bool(within))}: reuse nothing.")
    soonest = max(row.ttft_speedup for row, _ in fitting)
    equal = [(row, each) for row, each in fitting if row.ttft_speedup * TIE >= soonest]
    best, found = min(equal, key=lambda one: (one[0].bytes_per_token, one[0].recomputed_tokens))
    certain = all(one.worst <= one.most for one in found)
    doubt = "" if certain else f" More than {best.n} questions are needed to be sure of the bounds."
    return PolicyChoice(best, bounds, certain, _taken(best, found, yardstick=yardstick) + doubt)


def _judgements(row: ResultRow, yardstick: YardstickRow, *, bounds: PolicyBounds) -> Iterator[Judgement]:
    """Yields what a suite can tell of a point. Where it is nothing else, answers must be full prefill's.

    A divergence is too much where it is so beyond doubt: few questions tell little of a sure model's yardstick.
    """
    spans = row.intervals
    if row.yardsticks is not None:
        words = f"differs {row.yardsticks:.2f} times as much as full prefill does where passages change places"
        yield Judgement(
            f"{words} ({_span(spans['yardsticks'], '.2f')})",
            spans["yardsticks"].low,
            spans["yardsticks"].high,
            bounds.yardsticks,
        )
    if row.kept is not None:
        words = f"keeps {row.kept:.1%} of what passages tell ({_span(spans['kept'], '.1%')})"
        yield Judgement(words, 1 - row.kept, 1 - spans["kept"].low, bounds.loss)
    if yardstick.prefers is not None and row.prefers is not None:
        words = (
            f"prefers known answers to wrong ones {row.prefers:.1%} of the time, full prefill {yardstick.prefers:.1%}"
        )
        yield Judgement(words, yardstick.prefers - row.prefers, -spans["prefers"].low, bounds.loss)
    if yardstick.answers and row.loss is not None:
        words = f"gives {row.loss:.2%} fewer right answers ({_span(spans['loss'], '.2%')})"
        yield Judgement(words, row.loss, spans["loss"].high, bounds.loss)
    if row.yardsticks is None and row.kept is None and not yardstick.answers:
        other = math.inf if row.agreement is None else 1 - row.agreement
        worst = 1 - spans["agreement"].low if "agreement" in spans else math.inf
        yield Judgement(f"answers otherwise {other:.1%} of the time", other, worst, bounds.loss)


def _span(found: Interval, form: str) -> str:
    return f"{found.low:{form}} to {found.high:{form}}"


def _taken(row: ResultRow, judged: Sequence[Judgement], *, yardstick: YardstickRow) -> str:
    """The point, what it was judged by, and what decided nothing."""
    *words, last = [each.words for each in judged]
    listed = f"{', '.join(words)} and {last}" if words else last
    told = (
        f"Take {row.policy} at ratio {row.ratio:g} with {row.codec}: first token {row.ttft_speedup:.1f}x sooner, "
        f"{row.bytes_per_token:,.0f} bytes a token. It {listed}."
    )
    if yardstick.right is not None and not yardstick.answers:
        told += f" Exact match decided nothing: full prefill itself has {yardstick.right:.1%}."
    if yardstick.told is not None and not yardstick.tells:
        told += " Known answers decided nothing: passages make them no likelier to full prefill."
    return told


def _nothing(yardstick: YardstickRow, bounds: PolicyBounds, *, late: bool) -> str:
    if yardstick.guesses:
        nats = f"{yardstick.entropy:.1f} of {yardstick.chance:.1f} nats a token"
        return f"Full prefill is no surer of what comes next than a guess is ({nats}), so nothing can be judged"
    if yardstick.is_idle:
        return (
            f"Passages change what full prefill says by {yardstick.unaided:.4f} nats a token, so nothing can be judged"
        )
    words = f"within {bounds.yardsticks:g} yardsticks of full prefill and a loss of {bounds.loss:.1%}"
    return f"What stays {words} is no sooner than it" if late else f"Nothing on this grid stays {words}"


def check_evidence(questions: int, bound: float) -> None:
    """Raises SuiteError for so few questions that one answer alone is more than the bound."""
    needed = min(MOST, max(LEAST, math.ceil(1 / bound))) if bound else MOST
    if questions < needed:
        raise SuiteError(
            f"--save keeps what {needed} questions or more say for a bound of {bound:.1%}, got {questions}: "
            f"ask more, raise --bound, or leave --save out"
        )


def save(choice: PolicyChoice, path: Path, *, current: OperatingPoint) -> dict[str, str | float]:
    """Writes policy, ratio and codec into a settings file, and returns what it wrote; all else there stays as it is.

    Full prefill looks at no ratio and no codec: both stay as the file has them, or as they are in force.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    kept = _parsed(text, path)
    wanted: dict[str, str | float] = {
        "policy": choice.row.policy,
        "ratio": choice.row.ratio,
        "codec": choice.row.codec,
    }
    if choice.row.policy == FULL.policy:
        wanted |= {"ratio": current.ratio, "codec": current.codec}
        wanted = {name: value for name, value in wanted.items() if name == "policy" or name not in kept}
    for name, value in wanted.items():
        text = _with_line(text, name, line=f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value:g}")
    if _parsed(text, path) != kept | wanted:
        raise SuiteError(f"{path} is written in a way that cannot be changed line by line: set {wanted} there by hand")
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
    return wanted


def _parsed(text: str, path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SuiteError(f"{path} is not valid TOML, and stays as it is: {error}") from error


def _with_line(text: str, name: str, *, line: str) -> str:
    """The text with the line in the place of the setting's old one, or before the first table."""
    old = re.compile(rf"^{name}[ \t]*=.*$", re.MULTILINE)
    if old.search(text):
        return old.sub(line, text, count=1)
    table = re.search(r"^\[", text, re.MULTILINE)
    at = table.start() if table else len(text)
    before = text[:at] if not text[:at] or text[:at].endswith("\n") else text[:at] + "\n"
    return f"{before}{line}\n{text[at:]}"
