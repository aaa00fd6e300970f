"""Compiles the JSON schema or tools that an answer obeys, so many of a tenant at once; reads calls of tools."""

from collections.abc import Callable, Iterable
from functools import partial

from blend.engine.engine import Event
from blend.errors import TokenizerError
from blend.text.call_frame import CallFrame
from service.answers.answer_request import AnswerRequest
from service.answers.call_reader import CallReader
from service.answers.fair_turns import FairTurns
from service.errors import Invalid
from service.model.constraint import CallBan, Constraint, Grammars, LateConstraint
from service.model.served_model import ServedModel

COMPILERS = 2  # threads that compile JSON schemas
SCHEMAS = 16  # uncompiled schemas of one tenant


class AnswerRules:
    """The rules of one service's answers. Its methods are called in one event loop."""

    def __init__(self, model: ServedModel) -> None:
        self._builder = model.prompt_builder
        self._grammars = Grammars(self._builder.tokenizer, model.vocabulary)
        self._turns = FairTurns(COMPILERS, longest=SCHEMAS, waiting="JSON schemas of this tenant wait to be compiled")

    def close(self) -> None:
        self._turns.close()

    async def compiled(self, ask: AnswerRequest) -> Constraint | LateConstraint | CallBan | None:
        """The processor of a request that has to call tools, or may, or whose answer obeys a schema."""
        schema, tools = ask.grammar, ask.own_tools
        if tools is not None and tools.calls is not None:
            work = partial(self._grammars.calls, tools.calls, self._frame)
        elif schema is not None:
            work = partial(self._grammars.processor, schema)
        else:
            return CallBan(self._frame) if tools else None
        return await self._turns.run(ask.principal.tenant, work)

    @property
    def _frame(self) -> CallFrame:
        try:
            return self._builder.call_frame
        except TokenizerError as error:
            raise Invalid(str(error), field="tools") from error

    def reading(self, ask: AnswerRequest) -> Callable[[Event], Iterable[Event]]:
        """What is told in the place of an event of the engine, where an answer may call tools."""
        calls = ask.own_tools.calls if ask.own_tools else None
        if calls is None:
            return lambda event: (event,)
        return CallReader(self._builder.call_frame, self._builder.tokenizer, is_needed=calls.is_needed).read
