"""What follows from the figures: where reuse pays, and one sentence. Measures nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from blend.fuse.policy import SELECTIVE
from service.app.operating_point import FULL
from service.lab.bench.first_token import TimingRow
from service.lab.bench.scratch_store import TierSpeed

MB = 1e6
UNSURE = "More --repeats tell chance from loss."


@dataclass(frozen=True, slots=True)
class Worth:
    """What one policy is worth. `prefill_tokens_per_s`: of the longest prompt that was tried.

    `needed_bytes_per_s`: a store that reads less brings a chunk later than that prefill computes it.
    `pays_from`: tokens of the shortest prompt from which on all that were tried gain; None where the longest does not.
    """

    policy: str
    prefill_tokens_per_s: float
    bytes_per_token: float
    needed_bytes_per_s: float
    pays_from: int | None
    sentence: str


def worth(rows: Sequence[TimingRow], policy: str, *, bytes_per_token: float, tiers: Sequence[TierSpeed]) -> Worth:
    """The worth of a policy that is among the rows, which are in order of length."""
    own = [row for row in rows if row.policy == policy]
    full = [row for row in rows if row.policy == FULL.policy]
    prefill = full[-1].prompt_tokens / full[-1].first_token_s
    needed = bytes_per_token * prefill
    pays_from = _pays_from(own)
    slow = min(tiers, key=lambda tier: tier.bytes_per_s, default=None)
    slow = slow if slow and slow.bytes_per_s < needed else None
    if pays_from is None:
        remedy = UNSURE if any(row.against_full.is_sooner for row in own) else _why_not(slow, needed=needed)
        sentence = f"{_loses(own, full[-1])} {_instead(rows, own[-1]) or remedy}"
    else:
        gain = _pays(own[-1], full[-1], shortest=own[0].prompt_tokens, pays_from=pays_from)
        sentence = gain + _but(slow, needed=needed)
    return Worth(policy, prefill, bytes_per_token, needed, pays_from, sentence)


def _pays_from(own: Sequence[TimingRow]) -> int | None:
    gaining = [*takewhile(lambda row: row.against_full.is_sooner, reversed(own))]
    return gaining[-1].prompt_tokens if gaining else None


def _named(row: TimingRow) -> str:
    return f"{row.policy} at ratio {row.ratio:g}" if row.policy in SELECTIVE else row.policy


def _ms(row: TimingRow) -> str:
    return f"{1000 * row.first_token_s:,.0f} ms"


def _pays(own: TimingRow, full: TimingRow, *, shortest: int, pays_from: int) -> str:
    doubt = ", the shortest that were tried" if pays_from == shortest else ""
    return (
        f"Reuse pays here from prompts of {pays_from:,} tokens on{doubt}: with {_named(own)} the first token of "
        f"{own.prompt_tokens:,} tokens comes {own.against_full.words} ({_ms(own)} instead of {_ms(full)}); "
        f"kvweave eval tells what that costs in quality."
    )


def _loses(own: Sequence[TimingRow], full: TimingRow) -> str:
    last = own[-1]
    gains = ", ".join(f"{row.prompt_tokens:,}" for row in own if row.against_full.is_sooner)
    where = f"Reuse pays here at {gains} tokens, but not at more" if gains else "Reuse does not pay here"
    return (
        f"{where}: with {_named(last)} the first token of {last.prompt_tokens:,} tokens, the longest prompt that was "
        f"tried, takes {_ms(last)}, by full prefill {_ms(full)}: {last.against_full.words}."
    )


def _instead(rows: Sequence[TimingRow], own: TimingRow) -> str:
    """Another policy that gains on the longest prompt."""
    gaining = [row for row in rows if row.chunks == own.chunks and row.against_full.is_sooner]
    if not gaining:
        return ""
    best = max(gaining, key=lambda row: row.against_full.times)
    return (
        f"With {_named(best)} it comes {best.against_full.words} than that: "
        f"kvweave eval tells whether its answers are good enough."
    )


def _why_not(slow: TierSpeed | None, *, needed: float) -> str:
    if slow:
        return f"{_reads(slow, needed)}: put a nearer tier before it, or pack smaller."
    return "The model is too small, or its prompts too short: set KVWEAVE_POLICY=full, or try longer ones by --chunks."


def _but(slow: TierSpeed | None, *, needed: float) -> str:
    return f" {_reads(slow, needed)}: keep a nearer tier before it for what is asked often." if slow else ""


def _reads(slow: TierSpeed, needed: float) -> str:
    return f"The tier {slow.tier} reads {slow.bytes_per_s / MB:,.0f} MB/s where {needed / MB:,.0f} MB/s are needed"
