"""Requests to an engine, and what came back."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event as Flag

from torch import Tensor

from blend.adopt.load import LoadedModel
from blend.engine.engine import Done, EngineLimits, EngineRequest, Event, Failed, Ready, Ticket, Token
from blend.engine.local_engine import LocalEngine
from blend.errors import BlendError

PATIENCE_S = 60


@contextmanager
def engine(model: LoadedModel, limits: EngineLimits | None = None) -> Iterator[LocalEngine]:
    made = LocalEngine(model.decoder, model.tokenizer, fingerprint=model.fingerprint, limits=limits)
    try:
        yield made
    finally:
        made.close()


class Asked:
    """A submitted request; its events in order."""

    def __init__(self, to: LocalEngine, request: EngineRequest) -> None:
        self.events: list[Event] = []
        self._coming: SimpleQueue[Event] = SimpleQueue()
        self.ticket: Ticket = to.submit(request, self._coming.put)

    def next(self) -> Event:
        self.events.append(self._coming.get(timeout=PATIENCE_S))
        return self.events[-1]

    def wait(self) -> "Asked":
        while not self.events or not isinstance(self.events[-1], Done | Failed):
            self.next()
        assert self._coming.empty()
        return self

    @property
    def ids(self) -> list[int]:
        return [event.id for event in self.events if isinstance(event, Token)]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Token | Done))

    @property
    def ready(self) -> Ready:
        return next(event for event in self.events if isinstance(event, Ready))

    @property
    def done(self) -> Done:
        assert isinstance(self.events[-1], Done), self.events[-1]
        return self.events[-1]

    @property
    def error(self) -> Exception:
        assert isinstance(self.events[-1], Failed)
        return self.events[-1].error


class Held:
    """A logits processor that stops the engine at its first token until released."""

    def __init__(self) -> None:
        self.reached = Flag()
        self.release = Flag()

    def __call__(self, ids: Sequence[int], logits: Tensor) -> Tensor:
        self.reached.set()
        assert self.release.wait(PATIENCE_S)
        return logits


class Broken:
    """A logits processor with a fault."""

    def __call__(self, ids: Sequence[int], logits: Tensor) -> Tensor:
        raise BlendError("this grammar cannot be")
