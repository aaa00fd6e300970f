"""Fits passages into the model's window, lowest scores left out: the engine's plan, its records, an answer's report."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from blend.fuse.fuse import BlendOrder, FuseReport
from blend.fuse.prompt import Prompt
from retriever.documents import Json
from retriever.types import Passage
from service.answers.blend_decision import BlendDecision, BlendInputs, decide
from service.answers.gather import Gathered, GatheredPassage
from service.answers.prompt_costs import PromptCost
from service.answers.tool_prompt import ToolPrompt
from service.documents.chunk_caches import mends
from service.model.prompt_builder import PromptBuilder, PromptTokens
from service.reports import ChunkReport, Report, Usage
from store.errors import Miss, MissReason
from store.record_source import BlobSource

COMPUTED = "computed"
HIDDEN = "{:.0%} of the cached tokens are computed anew, for {:.0%}: hidden by loading"
ANSWER = 0.5  # the most of the window that is kept free for the answer


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """A request to the engine. `dropped`: numbers of passages that did not fit; `opened`: blobs by passages' numbers;
    `notes` go into the report; `cost` where the time decided; `is_read`: in full, as its session was before.
    """

    gathered: Gathered
    prompt_tokens: PromptTokens
    inputs: BlendInputs
    dropped: frozenset[int] = frozenset()
    opened: Mapping[int, BlobSource | Miss] = field(default_factory=dict[int, BlobSource | Miss])
    notes: tuple[str, ...] = ()
    cost: PromptCost | None = None
    is_read: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether it may begin where another prompt did although it is computed in full: nobody asked for that."""
        return self.cost is not None or self.is_read

    def read(self) -> "EnginePlan":
        """The plan with all of it computed, behind what is kept."""
        return replace(self, inputs=replace(self.inputs, wanted=BlendOrder("full", 0.0)), is_read=True)

    @property
    def decision(self) -> BlendDecision:
        return decide(self.inputs)

    @property
    def shown(self) -> list[tuple[int, GatheredPassage]]:
        """The passages of the prompt, in its order."""
        every = self.gathered.all
        return [(run.passage, every[run.passage]) for run in self.prompt_tokens.runs if run.passage is not None]

    @property
    def prompt(self) -> Prompt:
        return self.prompt_tokens.prompt(self.sources)

    @property
    def sources(self) -> dict[int, BlobSource]:
        """The opened records by their passages' numbers."""
        return {number: each for number, each in self.opened.items() if isinstance(each, BlobSource)}

    @property
    def has_choice(self) -> bool:
        """Whether there are records, or may be: otherwise all of the prompt is computed."""
        reasons = {each.reason for each in self.opened.values() if isinstance(each, Miss)}
        return not self.opened or bool(self.sources) or MissReason.SOONER in reasons

    def by_time(self, cost: PromptCost) -> "EnginePlan":
        """The plan by its expected cost, without the records that would take longer than computing their text."""
        inputs = replace(self.inputs, expected=cost.expected, hidden=round(cost.hidden, 3))
        decision, unused = decide(inputs), cost.unused
        is_more = decision.order.ratio > self.inputs.wanted.ratio
        notes = (*self.notes, HIDDEN.format(decision.order.ratio, self.inputs.wanted.ratio)) if is_more else self.notes
        late = Miss(decision.reason or MissReason.SOONER)
        if decision.reason is not None:
            first = next((number for number, _ in self.shown), None)
            unused = frozenset(self.opened) - ({first} if decision.order.policy == "prefix" else set())
        opened = {at: late if at in unused and at in self.sources else each for at, each in self.opened.items()}
        return replace(self, inputs=inputs, opened=opened, cost=cost, notes=notes)

    @property
    def generator_fields(self) -> Json | None:
        """The chat in vLLM's form, where tools are offered."""
        tools = self.gathered.ask.tools
        return ToolPrompt(self.gathered, tools).fields(self.dropped) if tools else None

    def begin(self) -> None:
        """Begins to fetch the records while the prompt waits for its turn."""
        for source in self.sources.values():
            source.begin()

    def let_go(self) -> None:
        """Releases the records' memory: they are in the context."""
        for source in self.sources.values():
            source.let_go()

    def loaded(self) -> tuple[ChunkReport, ...]:
        """The report of each chunk before anything is fused."""
        return tuple(self._report(number, each, tokens=0) for number, each in self.shown)

    def report(self, fused: FuseReport | None, timings_ms: Mapping[str, float]) -> Report:
        """The report on how the answer came about; None for one that was cancelled before its turn."""
        order, reason = self.decision.order, self.decision.reason
        expected_ms = self.cost.expected.ms if self.cost else {}
        why, relevance = Miss(reason) if reason else None, self.gathered.relevance
        if fused is None:
            return Report(order.policy, order.ratio, (), (), {}, expected_ms, why, self.notes, relevance)
        dropped = tuple(self.gathered.passages[number].passage.id for number in sorted(self.dropped))
        ms = {stage: round(value, 3) for stage, value in timings_ms.items()}
        chunks = self._chunks(fused)
        return Report(order.policy, order.ratio, chunks, dropped, ms, expected_ms, why, self.notes, relevance)

    def _chunks(self, report: FuseReport) -> tuple[ChunkReport, ...]:
        misses = dict(report.misses)
        slots, every = report.stages[-1], self.gathered.all
        found: list[ChunkReport] = []
        place, at = len(self.prompt_tokens.prefix), 0
        for run in self.prompt_tokens.runs:
            stop = place + len(run.ids)
            if run.passage is not None:
                again = bisect_left(slots, stop) - bisect_left(slots, place)
                miss = misses.get(at)
                found.append(self._report(run.passage, every[run.passage], tokens=len(run.ids), again=again, miss=miss))
                at += 1
            place = stop
        return tuple(found)

    def _report(
        self, number: int, shown: GatheredPassage, *, tokens: int, again: int = 0, miss: Miss | None = None
    ) -> ChunkReport:
        chunk, opened = shown.passage.id, self.opened.get(number)
        if isinstance(opened, BlobSource) and miss is None:
            return ChunkReport(chunk, opened.tier, None, tokens, again, opened.nbytes)
        match opened:
            case None:  # not requested
                why = Miss(self.decision.reason) if self.decision.reason else None
            case Miss():
                why = opened
            case BlobSource():
                why = Miss(opened.failure) if opened.failure else miss
        return ChunkReport(chunk, COMPUTED, why, tokens, 0, 0)

    def to_mend(self, report: FuseReport) -> tuple[list[Passage], list[Passage]]:
        """Passages whose records are missing, and those whose records turned out to be damaged."""
        every = [each.passage for each in self.gathered.all]
        missing = [every[number] for number, each in self.opened.items() if isinstance(each, Miss) and mends(each)]
        numbers = [number for number, _ in self.shown]
        damaged = [
            every[numbers[at]]
            for at, _ in report.misses
            if isinstance(each := self.opened.get(numbers[at]), BlobSource) and each.failure is MissReason.CORRUPT
        ]
        return missing, damaged


def fit(gathered: Gathered, inputs: BlendInputs, *, prompt_builder: PromptBuilder, window: int) -> EnginePlan:
    """The plan, without any records: drops what a search found, the lowest score first, until the prompt and its answer
    fit the model's window.

    With tools, vLLM lays it out, and says where it is too long.
    """
    ask = gathered.ask
    if ask.tools is not None:
        out = ToolPrompt(gathered, ask.tools).controlled(prompt_builder.tokenizer)
        return EnginePlan(gathered, prompt_builder.lay_plain(gathered.turns(without=out)), inputs, out)
    if ask.is_raw:
        return EnginePlan(gathered, prompt_builder.lay_raw(gathered.turns()), inputs)
    tools = ask.own_tools.offered if ask.own_tools else ()
    prompt_tokens = prompt_builder.lay(gathered.turns(), options=ask.template, tools=tools)
    over = prompt_tokens.tokens - window + min(ask.sampling.max_tokens, int(ANSWER * window))
    if over <= 0:
        return EnginePlan(gathered, prompt_tokens, inputs)
    found = [number for number, each in enumerate(gathered.passages) if each.found]
    dropped: set[int] = set()
    for number in sorted(found, key=lambda number: (gathered.passages[number].score, -number)):
        if over <= 0:
            break
        titled = gathered.passages[number].titled
        over -= len(prompt_builder.ids(titled.text)) + len(prompt_builder.tokenizer.encode_text(titled.gap))
        dropped.add(number)
    out = frozenset(dropped)
    prompt_tokens = prompt_builder.lay(gathered.turns(without=out), options=ask.template, tools=tools)
    return EnginePlan(gathered, prompt_tokens, inputs, out)


def usage_of(report: FuseReport, completion: int = 0) -> Usage:
    """What an answer took, in tokens."""
    prompt = report.reused + report.recomputed + report.fresh
    return Usage(prompt, completion, report.reused, report.recomputed)
