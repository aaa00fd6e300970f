"""The engine's interface: requests, events, limits with their defaults, cancelling. Knows no thread and no model."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from blend.engine.sampling import Sampling
from blend.fuse.fuse import BlendOrder, FuseReport
from blend.fuse.prompt import Prompt
from blend.run.context import Context
from blend.run.prefixes import Session
from store.fingerprint import Fingerprint
from store.record import Record

T = TypeVar("T")

Finish = Literal["stop", "length", "tool_calls", "cancelled"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlacedPrompt:
    """A prompt that is computed: its ids, and the context in which the keys and values of all of them come to stand."""

    ids: tuple[int, ...]
    context: Context


class PromptReceiver(Protocol):
    """Whoever goes on with a prompt instead of the engine. Called from the engine's thread; must return at once."""

    def begin(self, prompt: PlacedPrompt) -> None:
        """The prompt's turn has come, or its fuse begins anew: then what was final before is not. May raise what the
        request is to fail with.
        """
        ...

    def final(self, layer: int) -> None:
        """A layer's keys and values of all tokens but the last stand for good. Layers come in order."""
        ...


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One question to the model. How caches are reused for it is its own. One by `full` begins where another did only
    if it `goes_on`.

    `owner`: a prefix that is kept for one owner is used for no other, who could tell by the time it takes.
    `payer`: whose share of the engine's time it takes. `within_s`: seconds until the answer has to be whole. `as_of`:
    when its texts were looked up, on the monotonic clock.
    `session`: what is kept of its prompt and answer serves the next of the same name alone, where it is blended that of
    the same policy and `wanted_ratio`; empty for none. `keep_s`: as a session's.
    `receiver`: whoever goes on with the prompt; the request is then over behind Ready, with nothing generated.
    """

    prompt: Prompt
    sampling: Sampling = field(default_factory=Sampling)
    order: BlendOrder = field(default_factory=BlendOrder)
    owner: str = ""
    payer: str = ""
    within_s: float | None = None
    session: str = ""
    wanted_ratio: float = 0.0
    keep_s: float | None = None
    as_of: float = field(default_factory=time.monotonic, compare=False)
    receiver: PromptReceiver | None = None
    goes_on: bool = False

    @property
    def of_session(self) -> Session | None:
        """Whose rows it may go on with here; None for nobody's."""
        may = bool(self.session) and (self.order.policy != "full" or self.goes_on)
        order = alike(self.order.policy, self.wanted_ratio)
        return Session(self.payer, self.session, order, self.keep_s, self.as_of) if may else None

    @property
    def most_tokens(self) -> int:
        """How many tokens are generated here at most."""
        return 0 if self.receiver else self.sampling.max_tokens


def alike(policy: str, wanted_ratio: float) -> str:
    """How prompts of a session are blended that go on with each other's rows."""
    return f"{policy} {wanted_ratio}"


@dataclass(frozen=True, slots=True)
class Ready:
    """The prompt is in place; the first token follows. `queued_s`: how long it waited for its turn."""

    report: FuseReport
    queued_s: float


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token. `text` is what became certain with it: often its own, sometimes none or that of several."""

    id: int
    text: str
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    choice: int = 0


@dataclass(frozen=True, slots=True)
class MessagePiece:
    """What an answer's message gets, in OpenAI's form, where whoever generates makes more than text of it."""

    delta: Mapping[str, object]
    choice: int = 0


@dataclass(frozen=True, slots=True)
class ChoiceEnded:
    """The end of one of several answers, while others go on. `text` is what was still held back of it."""

    choice: int
    reason: Finish
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """The end of an answer, or of the last of several. `text` is what was still held back of it."""

    reason: Finish
    text: str
    generated: int  # of all answers
    seconds: float  # since the request was handed in
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The end by an error that concerns this request alone or the model."""

    error: Exception


Event = Ready | Token | MessagePiece | ChoiceEnded | Done | Failed


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """`kv_bytes` holds the contexts of all running requests and of a capture; prefixes are kept besides, as many bytes
    on the disk of `spill` as contexts have in memory.

    `capture_share`: of the engine's time that captures have where requests never end. `weights`: how much of what
    requests have a payer gets, where one has 1. `piece_rows`: as in `BlendOrder`.
    """

    kv_bytes: int = 4 << 30
    prefix_bytes: int = 256 << 20
    spill: Path | None = None
    waiting: int = 64
    running: int = 64
    piece_rows: int = 0
    capture_share: float = 0.4
    weights: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class PayerLoad:
    """What one payer has in the engine, and the seconds of its time that it had since the start."""

    waiting: int
    running: int
    seconds: float


class Ticket(Protocol):
    """The ticket of a request under way."""

    def cancel(self) -> None:
        """Free the request's place at the next step. It ends in Done with "cancelled"; harmless when it is over."""
        ...


class Engine(Protocol):
    """Computes prompts and answers. All methods may be called from any thread."""

    def submit(self, request: EngineRequest, listen: Callable[[Event], None]) -> Ticket:
        """Queue a request. `listen` is called from the engine's thread and must return at once.

        Each request ends in exactly one Done or Failed. Raises PromptError for a prompt that can never be served, Busy
        when the queue is full, and Late where the time it has will be over before its turn: then nothing was taken.
        """
        ...

    def refuse_late(self, payer: str, left_s: float) -> None:
        """Raise Late where a request of this payer with so many seconds left would wait longer for its turn now."""
        ...

    def waits_s(self, payer: str) -> float:
        """How long a request of this payer would wait for its turn now."""
        ...

    def kept(self, ids: Sequence[int], *, owner: str, session: Session | None = None) -> int:
        """How many of a prompt's first tokens are not computed again for this owner, as one before it began alike, or
        was the session's last.
        """
        ...

    def end_sessions(self, payer: str, name: str = "") -> None:
        """Keep nothing of the payer's session of this name; without one, nothing that any has of documents that were
        looked up so far: something of the payer's is deleted.
        """
        ...

    def capture(
        self,
        prefix: Sequence[int],
        chunks: Sequence[Sequence[int]],
        *,
        before: Sequence[Sequence[int]] = (),
        payer: str = "",
    ) -> Future[list[Record]]:
        """Compute records of chunks, when no request wants to be served, and for a share of the time at least.

        `before`: the ids between the prefix and each chunk; without it there are none. Those of several payers take
        turns, by weight as requests do. What comes back may be cancelled: the turn at hand is the last one then.
        """
        ...

    def compute(self, parts: Sequence[Callable[[], T]], *, payer: str = "") -> Future[list[T]]:
        """Compute what is no pass of the model in turns with captures, by the same rules. A request waits for no more
        than one of the parts. Raises Busy where the engine is closing.
        """
        ...

    def identify(self, fingerprint: Fingerprint) -> None:
        """Set the fingerprint: from the next request on, records of another are misses. Its prefix does not matter."""
        ...

    def load(self) -> Mapping[str, PayerLoad]:
        """The load by payer."""
        ...

    @property
    def takes(self) -> bool:
        """Whether it takes requests, now or with a shorter queue: not behind its end, or an error that ended it."""
        ...

    def close(self) -> None:
        """Take no more requests, finish what runs, and return."""
        ...


class PendingRequest:
    """What was asked and who listens. Ends once. One thread alone calls all but `cancel`."""

    def __init__(self, request: EngineRequest, listen: Callable[[Event], None]) -> None:
        self.request = request
        self.cancelled = False
        self.over = False
        self._listen = listen
        self.born = time.perf_counter()

    @property
    def age_s(self) -> float:
        """Seconds since the request was handed in."""
        return time.perf_counter() - self.born

    @property
    def left_s(self) -> float:
        """Seconds that are left of those it was given."""
        within = self.request.within_s
        return math.inf if within is None else within - self.age_s

    def cancel(self) -> None:
        """Asks that the request end. May be called from any thread."""
        self.cancelled = True

    def tell(self, event: Event) -> None:
        """Hands an event on. Who fails to listen is taken for gone."""
        if self.over:
            return
        self.over = isinstance(event, Done | Failed)
        try:
            self._listen(event)
        except Exception as error:
            log.warning("a listener failed: its request ends", exc_info=error)
            self.cancelled = self.over = True
