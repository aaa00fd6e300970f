"""Answers that are objects: the service is held to their schema, so that what comes fits. Knows no request."""

from collections.abc import AsyncGenerator, Generator
from typing import TypeVar, cast

from llama_index.core.base.llms.types import ChatResponse
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.instrumentation import get_dispatcher  # pyright: ignore[reportPrivateImportUsage] (meant for us)
from llama_index.core.instrumentation.events.llm import (
    LLMStructuredPredictEndEvent,
    LLMStructuredPredictStartEvent,
)
from llama_index.core.llms.llm import LLM
from llama_index.core.program.streaming_utils import process_streaming_content_incremental
from llama_index.core.program.utils import FlexibleModel
from llama_index.core.prompts import PromptTemplate
from llama_index.core.types import PydanticProgramMode

from kvweave_client.options import Json
from llama_index.llms.kvweave.errors import Unanswered
from llama_index.llms.kvweave.turns import schema_format

Output = TypeVar("Output", bound=BaseModel)
Partial = Output | list[Output] | FlexibleModel | list[FlexibleModel]

_dispatcher = get_dispatcher(__name__)


class SchemaLLM(LLM):
    """A model whose chats take a `response_format`. Another program mode than the default is LlamaIndex's business."""

    def structured_predict(
        self,
        output_cls: type[Output],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, object] | None = None,
        **prompt_args: object,
    ) -> Output:
        """The answer to a prompt as an object."""
        if not self._is_held:
            return super().structured_predict(output_cls, prompt, llm_kwargs, **prompt_args)
        _begin(output_cls, prompt, given=prompt_args)
        said = self.chat(self._get_messages(prompt, **prompt_args), **_held(output_cls, llm_kwargs))
        return _end(output_cls, said)

    async def astructured_predict(
        self,
        output_cls: type[Output],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, object] | None = None,
        **prompt_args: object,
    ) -> Output:
        """The answer to a prompt as an object."""
        if not self._is_held:
            return await super().astructured_predict(output_cls, prompt, llm_kwargs, **prompt_args)
        _begin(output_cls, prompt, given=prompt_args)
        said = await self.achat(self._get_messages(prompt, **prompt_args), **_held(output_cls, llm_kwargs))
        return _end(output_cls, said)

    def _structured_stream_call(
        self,
        output_cls: type[Output],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, object] | None = None,
        **prompt_args: object,
    ) -> Generator[Partial[Output], None, None]:
        if not self._is_held:
            yield from super()._structured_stream_call(output_cls, prompt, llm_kwargs, **prompt_args)
            return
        known: Output | FlexibleModel | None = None
        for said in self.stream_chat(self._get_messages(prompt, **prompt_args), **_held(output_cls, llm_kwargs)):
            known = process_streaming_content_incremental(said, output_cls, known)
            yield known

    async def _structured_astream_call(
        self,
        output_cls: type[Output],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, object] | None = None,
        **prompt_args: object,
    ) -> AsyncGenerator[Partial[Output], None]:
        if not self._is_held:
            return await super()._structured_astream_call(output_cls, prompt, llm_kwargs, **prompt_args)

        async def grow() -> AsyncGenerator[Partial[Output], None]:
            known: Output | FlexibleModel | None = None
            messages = self._get_messages(prompt, **prompt_args)
            async for said in await self.astream_chat(messages, **_held(output_cls, llm_kwargs)):
                known = process_streaming_content_incremental(said, output_cls, known)
                yield known

        return grow()

    @property
    def _is_held(self) -> bool:
        return self.pydantic_program_mode == PydanticProgramMode.DEFAULT


def _held(output_cls: type[BaseModel], options: dict[str, object] | None) -> Json:
    return {**(options or {}), "response_format": schema_format(output_cls)}


def _begin(output_cls: type[BaseModel], prompt: PromptTemplate, *, given: dict[str, object]) -> None:
    event = LLMStructuredPredictStartEvent(output_cls=output_cls, template=prompt, template_args=given)
    _dispatcher.event(event)


def _end(output_cls: type[Output], said: ChatResponse) -> Output:
    raw = cast(object, said.raw)
    if isinstance(raw, dict) and cast(Json, raw).get("finish_reason") == "length":
        raise Unanswered(f"the {output_cls.__name__} was cut off at the length of an answer: allow more max_tokens")
    output = output_cls.model_validate_json(said.message.content or "")
    _dispatcher.event(LLMStructuredPredictEndEvent(output=output))
    return output
