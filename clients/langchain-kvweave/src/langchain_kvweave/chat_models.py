"""kvweave's chat as a model of LangChain. Says what is sent; how, the client of the service knows."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from importlib.metadata import version
from math import ceil
from typing import Final, Self, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput, ModelProfile
from langchain_core.language_models.base import LangSmithParams
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from pydantic import Field, model_validator

from kvweave_client.chat_requests import ChatRequest
from kvweave_client.options import ChatOptions, Json
from langchain_kvweave.connection import Connected
from langchain_kvweave.documents import reading
from langchain_kvweave.messages import NO_TOOLS, PROVIDER, chunk, result, to_messages
from langchain_kvweave.structured import Method, Read, Schema, parsed, response_format

DISTRIBUTION: Final = "langchain-kvweave"
LETTERS_OF_A_TOKEN: Final = 4
_LOCAL: Final = ("documents", "stop", "stream")  # what a call may bring that is not sent as it is

Tool = Json | type | Callable[..., object] | BaseTool


class ChatKVWeave(BaseChatModel, Connected):
    """Answers chats over kvweave, which reuses the KV of texts that it knows, wherever they stand in the messages.

    `documents`, given with a call or by `bind(documents=...)`, are read before the last message: those that a
    KVWeaveRetriever brought go over by their chunk ids, others by their text. With them the prompt needs no
    `{context}`; where it has one too, the model reads the passages twice.

    `usage_metadata["input_token_details"]["cache_read"]` counts the tokens that were reused, and
    `response_metadata["kvweave"]` says how the answer came about, and what it rests on.

    `collection`: the service itself searches it with the last message. `blend`: how caches are reused, such as
    `{"policy": "reuse"}`. What a call gives besides goes over as it is: the service refuses what it does not know.
    """

    model: str = "default"
    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    stop: list[str] | None = None
    seed: int | None = None
    collection: str | None = None
    blend: dict[str, object] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, object] | None = None
    streaming: bool = False
    model_kwargs: dict[str, object] = Field(default_factory=dict[str, object])

    @model_validator(mode="after")
    def _set_kvweave_version(self) -> Self:
        self._add_version(DISTRIBUTION, version(DISTRIBUTION))
        return self

    @property
    def _llm_type(self) -> str:
        return PROVIDER

    @property
    def _identifying_params(self) -> Mapping[str, object]:
        return {"base_url": self.base_url, **self._options(None, {})}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: object) -> LangSmithParams:
        return super()._get_ls_params(stop=stop or self.stop, **kwargs)

    def _resolve_model_profile(self) -> ModelProfile:
        return ModelProfile(
            text_inputs=True,
            image_inputs=False,
            audio_inputs=False,
            video_inputs=False,
            text_outputs=True,
            tool_calling=False,
            structured_output=True,
        )

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: object,
    ) -> ChatResult:
        return result(self.followed(self._request(messages, stop, given=kwargs).answered()))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: object,
    ) -> ChatResult:
        return result(await self.afollowed(self._request(messages, stop, given=kwargs).answered()))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: object,
    ) -> Iterator[ChatGenerationChunk]:
        """Streams the answer. Left early, it ends its connection, and the service stops."""
        request = self._request(messages, stop, given=kwargs)
        with closing(request.events(self.asked())) as events:
            yield from map(chunk, events)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: object,
    ) -> AsyncIterator[ChatGenerationChunk]:
        request = self._request(messages, stop, given=kwargs)
        async with aclosing(request.aevents(await self.aasked())) as events:
            async for said in events:
                yield chunk(said)

    def _request(
        self, messages: list[BaseMessage], stop: list[str] | None, *, given: Mapping[str, object]
    ) -> ChatRequest:
        read = reading(cast(Iterable[object], given.get("documents") or ()))
        return ChatRequest.about(to_messages(messages), self._options(stop, given), read=read)

    def _options(self, stop: list[str] | None, given: Mapping[str, object]) -> Json:
        """The options of this call over those of the model."""
        if given.get("tools") or given.get("functions"):
            raise NotImplementedError(f"{NO_TOOLS}: leave them out")
        options = {name: getattr(self, name) for name in ChatOptions.__annotations__ if name in type(self).model_fields}
        options |= {"stop": stop or self.stop or None, **self.model_kwargs}
        options |= {name: value for name, value in given.items() if name not in _LOCAL}
        return {name: value for name, value in options.items() if value is not None}

    def bind_tools(
        self, tools: Sequence[Tool], *, tool_choice: str | None = None, **kwargs: object
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Refuses: there are no tools. Structured output needs none either, see `with_structured_output`."""
        raise NotImplementedError(f"{NO_TOOLS}: for answers of a given form there is with_structured_output")

    def with_structured_output(
        self,
        schema: Schema,
        *,
        include_raw: bool = False,
        method: Method = "json_schema",
        strict: bool | None = None,
        **kwargs: object,
    ) -> Runnable[LanguageModelInput, Read]:
        """Answers that obey a schema, as the service chooses tokens by its grammar.

        Objects have no fields but those that are named; with `strict=False` the schema alone decides that. `method`:
        "json_schema", and "function_calling", which is the same here; "json_mode" allows any JSON object, and leaves it
        to the prompt to name its fields.
        """
        if kwargs:
            raise ValueError(f"with_structured_output has no option {sorted(kwargs)[0]!r}")
        llm = self.bind(
            response_format=response_format(schema, method=method, strict=strict),
            ls_structured_output_format={"kwargs": {"method": method}, "schema": schema},
        )
        return parsed(llm, schema, include_raw=include_raw)

    def get_num_tokens(self, text: str) -> int:
        """A rough count: the service only tells the tokens of its answers. `custom_get_token_ids` counts exactly."""
        if self.custom_get_token_ids is not None:
            return len(self.custom_get_token_ids(text))
        return ceil(len(text) / LETTERS_OF_A_TOKEN)

    def get_num_tokens_from_messages(self, messages: Sequence[BaseMessage], tools: Sequence[Tool] | None = None) -> int:
        """A rough count, as in `get_num_tokens`."""
        if self.custom_get_token_ids is not None:
            return sum(self.get_num_tokens(message.text) for message in messages)
        return count_tokens_approximately(messages)

    def get_token_ids(self, text: str) -> list[int]:
        """The ids that `custom_get_token_ids` tells; the service tells none."""
        if self.custom_get_token_ids is None:
            raise NotImplementedError(
                "kvweave tells no token ids: give custom_get_token_ids, as its model's tokenizer has"
            )
        return self.custom_get_token_ids(text)
