"""Which operating point to take: the cheapest whose loss against full prefill stays within a bound."""

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from service.app.operating_point import FULL, OperatingPoint
from service.quality.cases import SuiteError
from service.quality.grid import ResultRow
from service.quality.time_ratio import TIE

LEAST = 30  # questions of a choice that is kept, whatever the bound
MOST = 100  # as many are enough for any bound


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """The point to take. `certain`: the whole interval of the loss lies within the bound, and not its middle alone.

    `late`: something else than full prefill stays within the bound, but comes no sooner.
    """

    row: ResultRow
    bound: float
    certain: bool
    late: bool = False

    @property
    def sentence(self) -> str:
        """The choice in words for people."""
        row = self.row
        if row.policy == "full":
            if self.late:
                return f"What loses at most {self.bound:.1%} against full prefill is no sooner than it: reuse nothing."
            return f"Nothing on this grid loses at most {self.bound:.1%} against full prefill: reuse nothing."
        low, high = row.intervals["loss"].low, row.intervals["loss"].high
        doubt = "" if self.certain else f" More than {row.n} questions are needed to be sure of the bound."
        return (
            f"Take {row.policy} at ratio {row.ratio:g} with {row.codec}: first token {row.ttft_speedup:.1f}x sooner, "
            f"{row.bytes_per_token:,.0f} bytes a token, loss {row.loss:.2%} ({low:.2%} to {high:.2%}), "
            f"bound {self.bound:.1%}.{doubt}"
        )


def choose(rows: Sequence[ResultRow], *, bound: float) -> PolicyChoice:
    """The soonest point within the bound; of those that are equally soon, the smallest. Else full prefill."""
    if not 0 <= bound <= 1:
        raise SuiteError(f"the bound of the loss lies in [0, 1], got {bound}")
    within = [row for row in rows if row.policy != "full" and row.loss <= bound]
    fitting = [row for row in within if row.ttft_speedup > 1]
    if not fitting:
        full = next((row for row in rows if row.policy == "full"), None)
        if full is None:
            raise SuiteError(
                "no point of the grid stays within the bound: add full to the policies, or raise the bound"
            )
        return PolicyChoice(full, bound, certain=True, late=bool(within))
    soonest = max(row.ttft_speedup for row in fitting)
    equal = [row for row in fitting if row.ttft_speedup * TIE >= soonest]
    best = min(equal, key=lambda row: (row.bytes_per_token, row.recomputed_tokens))
    high = best.intervals["loss"].high
    return PolicyChoice(best, bound, certain=not math.isnan(high) and high <= bound)


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
        text = _with(text, name, line=f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value:g}")
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


def _with(text: str, name: str, *, line: str) -> str:
    """The text with the line in the place of the setting's old one, or before the first table."""
    old = re.compile(rf"^{name}[ \t]*=.*$", re.MULTILINE)
    if old.search(text):
        return old.sub(line, text, count=1)
    table = re.search(r"^\[", text, re.MULTILINE)
    at = table.start() if table else len(text)
    before = text[:at] if not text[:at] or text[:at].endswith("\n") else text[:at] + "\n"
    return f"{before}{line}\n{text[at:]}"
