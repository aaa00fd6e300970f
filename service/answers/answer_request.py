"""A request for an answer, in one form for all interfaces: turns, search, sampling, tools, session, deadline."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from blend.engine.engine import PromptReceiver
from blend.engine.sampling import Sampling
from blend.fuse.fuse import BlendOrder
from blend.text.template import MadeCall, Option
from retriever.documents import Json
from retriever.search import Mode
from service.access.principal import Principal
from service.model.call_offer import CallOffer


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a chat. `calls`: those that it makes; `answers`: the id of the call that it is the result of."""

    role: str
    text: str
    calls: tuple[MadeCall, ...] = ()
    answers: str = ""


@dataclass(frozen=True, slots=True)
class RequestDocument:
    """A document that came with the request. It is read for this answer and kept nowhere."""

    text: str
    title: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class Lookup:
    """What to search for. `collections`: those that are searched together; all where none is named.

    `neighbors`: so many chunks before and behind each hit come along. `least`: what scores less is left out.
    """

    query: str
    collections: tuple[str, ...] = ()
    where: Json | None = None
    top_k: int = 5
    neighbors: int = 0
    mode: Mode | None = None
    rerank: bool = False
    least: float | None = None


@dataclass(frozen=True, slots=True)
class OwnTools:
    """Tools as the model's own template gets them, in OpenAI's form, and the calls that the answer may make of them."""

    offered: tuple[Json, ...]
    calls: CallOffer | None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that an answer may call, for vLLM. `fields` say so in OpenAI's form; `calls`: what each turn has of
    them.
    """

    fields: Json
    calls: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """One request for an answer. The last turn is the user's, or a tool's.

    `asks`: the last turn is a question about the passages and is framed as one; else it stands as it is written.
    `is_raw`: the text of the turns is the prompt, without a template.
    `inline`: chunks are recognised wherever their text stands in the turns, as they always are in `documents`.
    `within_s`: the answer is worth nothing later than so many seconds after it was asked for.
    `tools`: those that the answer may call; vLLM then renders and computes the prompt. `own_tools`: those that it may
    call where our own engine answers.
    `session`: the conversation that it is part of, as its key names it; what it leaves is kept for `session_keep_s`, or
    as long as is usual. `receiver`: whoever goes on with the prompt; nothing is generated then. `as_of`: when it was
    asked, on the monotonic clock.
    """

    principal: Principal
    turns: tuple[Turn, ...]
    lookup: Lookup | None = None
    chunk_ids: tuple[str, ...] = ()
    documents: tuple[RequestDocument, ...] = ()
    order: BlendOrder | None = None
    sampling: Sampling = field(default_factory=Sampling)
    grammar: Json | None = None  # a JSON schema that the answer obeys; {} is any JSON object
    asks: bool = False
    is_raw: bool = False
    inline: bool = False
    template: Mapping[str, Option] = field(default_factory=dict[str, Option])
    within_s: float | None = None
    id: str = ""
    session: str = ""
    session_keep_s: float | None = None
    receiver: PromptReceiver | None = None
    tools: ToolUse | None = None
    own_tools: OwnTools | None = None
    as_of: float = field(default_factory=time.monotonic, compare=False)

    @property
    def tool_texts(self) -> list[str]:
        """What our own engine's prompt has of tools and calls, about as long as it is there."""
        offered = self.own_tools.offered if self.own_tools else ()
        return [
            json.dumps(each) for each in (*offered, *(call.arguments for turn in self.turns for call in turn.calls))
        ]

    @property
    def question(self) -> int:
        """The turn that passages belong to: the user's last one, or the last one where there is none."""
        return max((at for at, turn in enumerate(self.turns) if turn.role == "user"), default=len(self.turns) - 1)

    @property
    def session_name(self) -> str:
        """The session's, apart for each key; empty for none."""
        return session_name(self.principal, self.session) if self.session else ""

    def wanted_ratio(self, usual: BlendOrder) -> float:
        """The ratio that is wanted at least."""
        return (self.order or usual).ratio


def session_name(principal: Principal, name: str) -> str:
    """How a session is called that this key names so."""
    return repr((principal.tenant, principal.key_id, name))
