"""Policies by which cached tokens are recomputed (ask, heads, deviation, hybrid, replay): how many, in which layers,
refused for which model. A new one is listed below, in `service/console/policies.js` and `kvweave_client/options.py`.

The budget is `ceil(ratio * blended tokens)`, for `ask` a few tokens at least. Tokens that stand where they were
captured are exact and never chosen.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest

from blend.errors import PromptError
from blend.fuse.prompt import ChunkSpan, PromptLayout

HEADS = 8  # one token in eight is taken from a chunk's beginning: the capture prefix holds the attention sink already
FIRST_SIGHT = 1  # the first layer whose keys and values know other chunks
REFERENCES = 2  # the first whose keys and values know what a name from another chunk refers to: that takes two layers
DEEP = 12  # layers that keep keys, from which on narrowing takes several steps
ASKED = (0.6, 0.8)  # the depths of the layers whose attention is read, where none are named
LAST = {"all": 1, "half": 1 / 2, "third": 1 / 3}  # the share of the layers whose attention is read, the last ones
QUESTION = 128  # the most rows of the question that are used, the last ones
STRETCH = 8  # adjacent tokens of a chunk: where a name is attended to, what is said about it counts more
NARROWING = ((0, 1.3), (1, 1.15), (3, None))  # (layers behind the check, share of the budget); None: what is left
LEAST = 4  # tokens that `ask` recomputes, however short the prompt: one name has as many in some tokenizers
SHORT = 48  # tokens of a chunk that says so little by itself that what stands around it says what it means
SHORTS = 256  # tokens of all short chunks of a prompt: prompts that are no longer are read as soon as blended
SECOND_LOOK = 2  # with fewer layers, this multiple of the budget runs one more layer, which shows changes better


@dataclass(frozen=True, slots=True)
class DeviationFilter:
    """How many tokens to keep at this layer: those that deviate most."""

    layer: int
    keep: int


@dataclass(frozen=True, slots=True)
class QuestionProbe:
    """How many cached tokens to keep: those that the prompt's last `rows` attend to most in these layers.

    They attend to the tokens as cached: the fresh rows run over the caches first, up to these layers. The mean over a
    token's `stretch`, which is that many adjacent tokens of its chunk, is added to its own weight.
    """

    layers: tuple[int, ...]
    keep: int
    rows: int = 1
    stretch: int = 1


@dataclass(frozen=True, slots=True)
class Selection:
    """`layout` has the records in use, `forced` slots are always computed, `filters` choose further ones.

    The filters choose among all slots, or among those that the `probe` leaves. `replayed` slots are in use as cached,
    and run as they were captured through the layers that keep a state.
    """

    layout: PromptLayout
    forced: tuple[int, ...] = ()
    filters: tuple[DeviationFilter, ...] = ()
    probe: QuestionProbe | None = None
    replayed: tuple[int, ...] = ()

    def wanted(self, layer: int) -> Sequence[ChunkSpan]:
        """The spans that a layer reads: exact ones alone below a first filter up to which all else is computed."""
        if self.filters and self.probe is None and layer < self.filters[0].layer:
            return [span for span in self.layout.spans if span.exact]
        return self.layout.spans

    @property
    def replaying(self) -> Sequence[ChunkSpan]:
        """The spans of which some slots are replayed."""
        first = min(self.replayed, default=len(self.layout.ids))
        return [span for span in self.layout.spans if span.stop > first]


@dataclass(frozen=True, slots=True)
class AskRule:
    """How `ask` chooses: the attention of `rows`, all of the question's or the prompt's last, picks the tokens.

    With a `check` it picks `times` as many, and deviation at that layer chooses among them. Layers are counted among
    those that keep keys; `third`: the last third; none named: two of the last half. The `stretch` of tokens around a
    token counts as well. Chunks of up to `short` tokens are computed whole, all of them or none. Written after the
    policy's name: `ask/rows=question/layers=third/check=none/stretch=8/short=48` is what `ask` means; by the last row
    alone, each token by itself: `ask/layers=14+19/check=2/times=3`.
    """

    layers: tuple[int, ...] | str = "third"
    check: int | None = None
    times: float = 1.0
    rows: str = "question"
    stretch: int = STRETCH
    short: int = SHORT

    @classmethod
    def parse(cls, text: str) -> "AskRule":
        """Parses the text after the policy's name. Raises PromptError for what is no rule."""
        try:
            given = dict(part.split("=") for part in text.split("/") if part and not any(map(str.isspace, part)))
            rows = given.pop("rows", "last" if text else "question")
            layers = given.pop("layers", "" if rows == "last" else "third")
            check = given.pop("check", str(REFERENCES) if rows == "last" else "none")
            rule = cls(
                layers if layers in LAST else tuple(sorted({_whole(each) for each in layers.split("+") if each})),
                None if check == "none" else _whole(check),
                float(given.pop("times", "1" if check == "none" else "3")),
                rows,
                _whole(given.pop("stretch", "1" if text else str(STRETCH))),
                _whole(given.pop("short", "0" if text else str(SHORT))),
            )
        except ValueError:
            rule, given = None, {}
        if rule is None or given or not rule._is_one():
            raise PromptError(f"no rule of ask: {text!r}; write for example ask/layers=14+19/check=2/times=3")
        return rule

    def _is_one(self) -> bool:
        known = self.rows == "last" or (self.rows == "question" and self.layers != ())
        timed = 1 <= self.times < math.inf and (self.check is not None or self.times == 1)
        return known and timed and self.stretch > 0

    def __str__(self) -> str:
        parts = {
            "rows": "" if self.rows == "last" else self.rows,
            "layers": self.layers if isinstance(self.layers, str) else "+".join(map(str, self.layers)),
            "check": "none" if self.check is None else str(self.check),
            "times": "" if self.check is None else f"{self.times:g}",
            "stretch": "" if self.stretch == 1 else str(self.stretch),
            "short": str(self.short or ""),
        }
        return "/".join(["ask", *(f"{name}={value}" for name, value in parts.items() if value)])


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


@dataclass(frozen=True, slots=True)
class RecomputeBudget:
    """The number of tokens to recompute, out of how many, and the layers that keep keys of their own."""

    tokens: int
    cached: int
    keeping: Sequence[int]
    rule: AskRule = AskRule()

    def without(self, tokens: int) -> "RecomputeBudget":
        """The budget that is left when `tokens` are chosen already."""
        return replace(self, tokens=self.tokens - tokens, cached=self.cached - tokens)


Policy = Callable[[PromptLayout, RecomputeBudget], Selection]


def _full(layout: PromptLayout, budget: RecomputeBudget) -> Selection:
    return Selection(layout.only(()))


def _prefix(layout: PromptLayout, budget: RecomputeBudget) -> Selection:
    return Selection(layout.only([span for span in layout.spans if span.exact]))


def _reuse(layout: PromptLayout, budget: RecomputeBudget) -> Selection:
    return Selection(layout)


def _heads(layout: PromptLayout, budget: RecomputeBudget) -> Selection:
    return Selection(layout, _first_tokens(layout.blended, budget.tokens))


def _replay(layout: PromptLayout, budget: RecomputeBudget) -> Selection:
    slots = [slot for span in layout.blended for slot in range(span.start, span.stop)]
    return Selection(layout, replayed=tuple(slots[len(slots) - budget.tokens :]))


def _deviation(layout: PromptLayout, budget: RecomputeBudget) -> Selection:
    return Selection(layout, (), _narrowing(budget, check=FIRST_SIGHT))


def _hybrid(layout: PromptLayout, budget: RecomputeBudget) -> Selection:
    spans = layout.blended
    heads = _first_tokens(spans, budget.tokens // HEADS)
    return Selection(layout, heads, _narrowing(budget.without(len(heads)), check=REFERENCES))


def _ask(layout: PromptLayout, budget: RecomputeBudget) -> Selection:
    if budget.tokens == 0:
        return Selection(layout)
    rule, keeping, deepest = budget.rule, budget.keeping, len(budget.keeping) - 1
    short = _short(layout.blended, rule.short, most=max(budget.tokens, SHORTS))
    tokens = min(budget.cached, max(budget.tokens, len(short) + LEAST))
    if tokens == budget.cached or (short and 2 * tokens >= budget.cached):
        return _prefix(layout, budget)  # two passes over the larger part take longer than one over all
    budget = replace(budget, tokens=tokens).without(len(short))
    if isinstance(rule.layers, str):
        layers = tuple(keeping[-math.ceil(LAST[rule.layers] * len(keeping)) :])
    else:
        counted = rule.layers or [round(depth * len(keeping)) for depth in ASKED]
        layers = tuple(sorted({keeping[min(each, deepest)] for each in counted}))
    rows = min(layout.question, QUESTION) if rule.rows == "question" else 1
    named = min(budget.cached, math.ceil(rule.times * budget.tokens))
    probe = QuestionProbe(layers, named, rows, rule.stretch)
    if rule.check is None or named == budget.tokens:
        return Selection(layout, short, (), probe)
    return Selection(layout, short, (DeviationFilter(keeping[min(rule.check, deepest)], budget.tokens),), probe)


FIXED: dict[str, Policy] = {"full": _full, "prefix": _prefix, "reuse": _reuse}  # they know no ratio
REPLAY = "replay"
SELECTIVE: dict[str, Policy] = {
    "heads": _heads,
    "deviation": _deviation,
    "hybrid": _hybrid,
    "ask": _ask,
    REPLAY: _replay,
}
POLICIES = FIXED | SELECTIVE
SCATTERED = ("deviation", "hybrid", "ask")  # of these: they choose tokens that stand apart


def policy_name(policy: str) -> str:
    """A policy's name, without the rule that may stand behind it."""
    return policy.partition("/")[0]


def with_rule(policy: str, *, default: str) -> str:
    """The policy, by the default's rule if it names none and the default is the same policy with one."""
    return default if policy == policy_name(default) else policy


def check_policy(policy: str) -> AskRule:
    """The rule of a policy. Raises PromptError for a policy, or a rule, that does not exist."""
    name, _, rule = policy.partition("/")
    if name not in POLICIES or (rule and name != "ask"):
        raise PromptError(f"unknown policy {policy!r}: choose one of {', '.join(POLICIES)}")
    return AskRule.parse(rule)


def check_runs(policy: str, *, ratio: float, has_states: bool, replays: bool) -> None:
    """Raise PromptError for a policy that is no use with a model. `has_states`: some of its layers keep a state, to
    which tokens without those before them are of no use; `replays`: such layers can be run by themselves.
    """
    if has_states and policy_name(policy) in SCATTERED and 0 < ratio < 1:
        choose = "replay, heads, reuse, prefix or full" if replays else "heads, reuse, prefix or full"
        raise PromptError(
            f"{policy!r} computes tokens that stand apart, of which linear-attention layers make something else: "
            f"choose {choose} for this model"
        )
    if policy == REPLAY and not replays:
        reason = "which this model has not" if not has_states else "which in this model are those with keys, too"
        raise PromptError(f"'replay' runs layers that keep a state, {reason}: choose another policy")


def select(layout: PromptLayout, *, policy: str, ratio: float, keeping: Sequence[int]) -> Selection:
    """Choose what to reuse and what to recompute. `keeping`: the layers with keys of their own."""
    rule, name = check_policy(policy), policy_name(policy)
    if not 0 <= ratio <= 1:
        raise PromptError(f"ratio must be in [0, 1], got {ratio!r}")
    blended = sum(span.stop - span.start for span in layout.blended)
    tokens = math.ceil(ratio * blended)
    budget = RecomputeBudget(tokens, blended, keeping, rule)
    if name in SELECTIVE and budget.tokens == blended:
        return _prefix(layout, budget)  # everything is recomputed: no blended slot is left
    if tuple(keeping) == (0,):
        budget = replace(budget, tokens=0)  # its keys depend on the token alone, so cached ones are exact
    return POLICIES[name](layout, budget)


def _first_tokens(spans: Sequence[ChunkSpan], budget: int) -> tuple[int, ...]:
    """The same number of each chunk's first tokens, as many as the budget allows, the rest from the first chunks."""
    rounds = zip_longest(*(range(span.start, span.stop) for span in spans))
    return tuple(sorted(islice((slot for slot in chain.from_iterable(rounds) if slot is not None), budget)))


def _short(spans: Sequence[ChunkSpan], tokens: int, *, most: int) -> tuple[int, ...]:
    """All of the chunks of at most so many tokens, unless they are more than `most`: records alike among which some
    are fresh are told apart worse than where none is."""
    slots = [slot for span in spans if span.stop - span.start <= tokens for slot in range(span.start, span.stop)]
    return tuple(slots) if len(slots) <= most else ()


def _narrowing(budget: RecomputeBudget, *, check: int) -> tuple[DeviationFilter, ...]:
    """Filters that keep more at first, as early deviation is a rough guess, and fewer later: on average the budget.

    The check is at the `check`-th layer that keeps keys, or at the last.
    """
    if budget.tokens == 0:
        return ()
    behind = budget.keeping[min(check, len(budget.keeping) - 1) :]
    if len(behind) < 3:
        return (DeviationFilter(behind[0], budget.tokens),)
    if len(budget.keeping) < DEEP:
        first = min(SECOND_LOOK * budget.tokens, budget.cached)
        return (DeviationFilter(behind[0], first), DeviationFilter(behind[1], budget.tokens))
    filters: list[DeviationFilter] = []
    spent = 0.0
    for index, (place, wanted) in enumerate(NARROWING):
        following = NARROWING[index + 1][0] if index + 1 < len(NARROWING) else len(behind)
        share = (len(behind) - spent) / (len(behind) - place) if wanted is None else wanted
        share = min(share, budget.cached / budget.tokens)
        spent += share * (following - place)
        filters.append(DeviationFilter(behind[place], round(budget.tokens * share)))
    return tuple(filters)
