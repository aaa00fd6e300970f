"""The synthesizer: answers from nodes, which are handed over as nodes instead of being written into a prompt."""

from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Final, cast

from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.instrumentation import get_dispatcher  # pyright: ignore[reportPrivateImportUsage] (meant for us)
from llama_index.core.instrumentation.events.synthesis import GetResponseEndEvent, GetResponseStartEvent
from llama_index.core.llms.llm import LLM
from llama_index.core.llms.structured_llm import StructuredLLM
from llama_index.core.prompts import BasePromptTemplate, ChatPromptTemplate, PromptTemplate
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.response_synthesizers.base import BaseSynthesizer
from llama_index.core.schema import NodeWithScore, QueryType, TextNode
from llama_index.core.settings import Settings
from llama_index.core.types import RESPONSE_TEXT_TYPE

from kvweave_client.options import Json
from llama_index.llms.kvweave.base import KVWeave

SYSTEM: Final = "Answer the question from the documents."  # as kvweave has it, so that the first chunk is an exact hit
QUESTION: Final = ChatPromptTemplate.from_messages([("system", SYSTEM), ("user", "Question: {query_str}")])
TOLD: Final = "kvweave"  # the name under which a response's metadata tell usage and report
_KEPT: Final = ("usage", "report", "finish_reason")

_dispatcher = get_dispatcher(__name__)


class KVWeaveSynthesizer(BaseSynthesizer):
    """One answer of a kvweave model from all nodes, whose caches it reuses.

    Nodes of kvweave's retriever go by chunk id, all others as documents in which kvweave recognises what it knows.
    `question_template` writes the question alone, from `query_str`. The response's metadata tell the usage under
    `kvweave`; of a streamed one when its stream has ended.
    """

    def __init__(
        self,
        llm: LLM | None = None,
        *,
        question_template: BasePromptTemplate | None = None,
        streaming: bool = False,
        output_cls: type[BaseModel] | None = None,
        empty_response: str | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        llm = llm or Settings.llm
        model = llm.llm if isinstance(llm, StructuredLLM) else llm
        if not isinstance(model, KVWeave):
            raise TypeError(
                f"KVWeaveSynthesizer hands nodes to a KVWeave model, got {type(model).__name__}: give it one"
            )
        self._question = question_template or QUESTION
        super().__init__(
            llm=llm,
            callback_manager=callback_manager,
            streaming=streaming,
            output_cls=output_cls,
            empty_response=empty_response,
        )

    def synthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: object,
    ) -> RESPONSE_TYPE:
        """The answer to a query from these nodes."""
        told: Json = {}
        asked = {**response_kwargs, "passages": nodes, "told": told}
        return _with(super().synthesize(query, nodes, additional_source_nodes, **asked), told)

    async def asynthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: object,
    ) -> RESPONSE_TYPE:
        """The answer to a query from these nodes."""
        told: Json = {}
        asked = {**response_kwargs, "passages": nodes, "told": told}
        return _with(await super().asynthesize(query, nodes, additional_source_nodes, **asked), told)

    def get_response(self, query_str: str, text_chunks: Sequence[str], **response_kwargs: object) -> RESPONSE_TEXT_TYPE:
        """The answer from `passages`, which are nodes, or else from the texts."""
        _dispatcher.event(GetResponseStartEvent(query_str=query_str, text_chunks=[*text_chunks]))
        nodes, told = _given(text_chunks, response_kwargs)
        if self._output_cls is not None:
            prompt = cast(PromptTemplate, self._question)
            said = self._llm.structured_predict(self._output_cls, prompt, {"nodes": nodes}, query_str=query_str)
        elif self._streaming:
            said = _stream(self._llm.stream_chat(self._messages(query_str), nodes=nodes), told)
        else:
            said = _text(self._llm.chat(self._messages(query_str), nodes=nodes), told)
        _dispatcher.event(GetResponseEndEvent())
        return said

    async def aget_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: object
    ) -> RESPONSE_TEXT_TYPE:
        """The asynchronous `get_response`."""
        _dispatcher.event(GetResponseStartEvent(query_str=query_str, text_chunks=[*text_chunks]))
        nodes, told = _given(text_chunks, response_kwargs)
        if self._output_cls is not None:
            prompt = cast(PromptTemplate, self._question)
            said = await self._llm.astructured_predict(self._output_cls, prompt, {"nodes": nodes}, query_str=query_str)
        elif self._streaming:
            said = _astream(await self._llm.astream_chat(self._messages(query_str), nodes=nodes), told)
        else:
            said = _text(await self._llm.achat(self._messages(query_str), nodes=nodes), told)
        _dispatcher.event(GetResponseEndEvent())
        return said

    def _messages(self, query: str) -> list[ChatMessage]:
        """The question as messages. A model that makes objects adds its system prompt itself."""
        if isinstance(self._llm, KVWeave):
            return self._llm.messages_for(self._question, query_str=query)
        return self._question.format_messages(llm=self._llm, query_str=query)

    def _get_prompts(self) -> PromptDictType:
        return {"question_template": self._question}

    def _update_prompts(self, prompts_dict: PromptDictType) -> None:
        self._question = prompts_dict.get("question_template", self._question)


def _given(texts: Sequence[str], options: dict[str, object]) -> tuple[Sequence[NodeWithScore], Json]:
    """The nodes to read, and the object that the usage is written into."""
    nodes = cast(Sequence[NodeWithScore] | None, options.get("passages"))
    if nodes is None:
        nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
    return nodes, cast(Json, options.get("told", {}))


def _text(said: ChatResponse, told: Json) -> str:
    told.update(_kept(said))
    return said.message.content or ""


def _stream(parts: Generator[ChatResponse, None, None], told: Json) -> Generator[str, None, None]:
    for part in parts:
        told.update(_kept(part))
        if part.delta:
            yield part.delta


async def _astream(parts: AsyncGenerator[ChatResponse, None], told: Json) -> AsyncGenerator[str, None]:
    async for part in parts:
        told.update(_kept(part))
        if part.delta:
            yield part.delta


def _kept(said: ChatResponse) -> Json:
    """What an answer tells of its usage; a model that makes objects tells none."""
    raw = cast(object, said.raw)
    return {name: value for name, value in cast(Json, raw).items() if name in _KEPT} if isinstance(raw, dict) else {}


def _with(response: RESPONSE_TYPE, told: Json) -> RESPONSE_TYPE:
    if response.metadata is not None:
        response.metadata[TOLD] = told
    return response
