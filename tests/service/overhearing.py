"""What the pipeline asks of the engine, token by token, and what a log line says of its decision."""

from collections.abc import Callable

import pytest

from blend.engine.engine import EngineRequest, Event, Ticket
from blend.fuse.fuse import BlendOrder
from blend.fuse.prompt import ChunkSegment, TextSegment
from service.answers.blend_decision import TRIED, BlendInputs, Expected
from service.app.core import Core
from service.telemetry.logs import FIELDS


class Overheard:
    """What the engine was asked."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.requests: list[EngineRequest] = []
        self._submit = core.model.engine.submit
        core.model.engine.submit = self.submit

    def submit(self, request: EngineRequest, listen: Callable[[Event], None]) -> Ticket:
        self.requests.append(request)
        return self._submit(request, listen)

    def ids(self) -> list[int]:
        """Of the last prompt."""
        prompt = self.requests[-1].prompt
        return [*prompt.prefix, *(token for each in prompt.segments for token in each.ids), *prompt.suffix]

    def control(self) -> list[int]:
        """The control tokens of the last prompt, in order."""
        return [token for token in self.ids() if token in self.core.model.prompt_builder.tokenizer.control]

    def segments(self, kind: type[ChunkSegment] | type[TextSegment]) -> list[str]:
        """The texts of the last prompt's segments."""
        decode = self.core.model.prompt_builder.tokenizer.decode
        return [decode(each.ids) for each in self.requests[-1].prompt.segments if isinstance(each, kind)]


def decisions_in(caplog: pytest.LogCaptureFixture) -> list[BlendInputs]:
    """The inputs of each decision that was logged, in order."""
    lines = [getattr(each, FIELDS, {}) for each in caplog.records]
    return [inputs_in(each["blend"]) for each in lines if "blend" in each]


def inputs_in(text: str) -> BlendInputs:
    """The inputs in a log line."""
    policy, ratio, switch, *more = text.split()
    told = dict(each.split("=", 1) for each in (ratio, *more))
    expected = Expected(*map(float, told["expected_s"].split("/"))) if "expected_s" in told else None
    order, tried = BlendOrder(policy, float(told["ratio"])), float(told.get("tried", TRIED))
    rest = expected, tried, float(told.get("hidden", 0.0))
    return BlendInputs(order, switch == "on", float(told["share"]), float(told["draw"]), *rest)
