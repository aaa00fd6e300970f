"""The model: chats of LlamaIndex answered by kvweave. Knows neither retrieval nor how prompts are written.

LlamaIndex tells who listens of a call by decorators that have no types: `chats` and `completes` are these with types.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Self, TypeVar, cast

from llama_index.core.base.llms.generic_utils import get_from_param_or_env
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.bridge.pydantic import Field, PrivateAttr, SecretStr, field_validator
from llama_index.core.constants import DEFAULT_TEMPERATURE
from llama_index.core.llms.callbacks import (
    llm_chat_callback,  # pyright: ignore[reportUnknownVariableType] (it returns a bare Callable)
    llm_completion_callback,  # pyright: ignore[reportUnknownVariableType] (it returns a bare Callable)
)
from llama_index.core.prompts import BasePromptTemplate

from kvweave_client import BASE_URL, Access, AsyncClient, ChatEvent, Client, Connection
from kvweave_client import Model as Served
from kvweave_client.chat_requests import ChatRequest
from kvweave_client.options import ChatOptions, Json
from llama_index.llms.kvweave.answers import acompletions, aparts, completion, parts, whole
from llama_index.llms.kvweave.errors import Unanswered, told
from llama_index.llms.kvweave.structured import SchemaLLM
from llama_index.llms.kvweave.turns import asked

MODEL = "default"  # of the service, whatever its name

F = TypeVar("F", bound=Callable[..., object])


def chats(call: F) -> F:
    """Tells who listens that a chat begins and ends."""
    return cast(F, llm_chat_callback()(call))


def completes(call: F) -> F:
    """Tells who listens that a completion begins and ends."""
    return cast(F, llm_completion_callback()(call))


class KVWeave(SchemaLLM):
    """The model of a kvweave service. Text of known chunks in its prompts is recognised, and their caches are reused.

    Every call takes further options of a chat: `nodes` are read before the last message, by chunk id where kvweave's
    retriever found them; `chunk_ids`, `documents`, `collection`, `response_format`, `logprobs` and others as
    kvweave_client has them. `raw` of a response tells usage, sources and where each chunk's cache came from.
    `base_url` and `api_key` are taken from KVWEAVE_BASE_URL and KVWEAVE_API_KEY where they are not given.
    """

    model: str = Field(default=MODEL, description="The service's own, whatever its name")
    temperature: float | None = Field(default=DEFAULT_TEMPERATURE, ge=0, le=2)
    max_tokens: int | None = Field(default=None, gt=0, description="Of an answer")
    top_p: float | None = Field(default=None, ge=0, le=1)
    stop: list[str] | None = Field(default=None, description="Texts that end an answer")
    seed: int | None = None
    blend: dict[str, object] | None = Field(default=None, description="How caches are reused: policy and ratio")
    context_window: int | None = Field(default=None, gt=0, description="In tokens; the service is asked by default")
    additional_kwargs: dict[str, object] = Field(default_factory=dict, description="Further options of each chat")
    base_url: str = Field(default="", validate_default=True, description="Of the service")
    api_key: str | SecretStr = Field(default="", validate_default=True, exclude=True, repr=False)
    timeout: float = Field(default=300.0, gt=0, description="Seconds: of an answer, or of a stream's silence")
    max_retries: int = Field(default=4, ge=0, description="Of a request that was refused or not sent")

    _connection: Connection = PrivateAttr()
    _served: Served | None = PrivateAttr(None)

    @field_validator("base_url", mode="before")
    @classmethod
    def _find_url(cls, given: str) -> str:
        return get_from_param_or_env("base_url", given or None, "KVWEAVE_BASE_URL", BASE_URL)

    @field_validator("api_key", mode="before")
    @classmethod
    def _find_key(cls, given: str | SecretStr) -> SecretStr:
        key = given.get_secret_value() if isinstance(given, SecretStr) else given
        return SecretStr(get_from_param_or_env("api_key", key or None, "KVWEAVE_API_KEY", ""))

    def model_post_init(self, context: object, /) -> None:
        """Makes the connection; nothing is sent yet."""
        key = self.api_key if isinstance(self.api_key, str) else self.api_key.get_secret_value()
        access = Access.within(self.timeout, self.base_url, api_key=key, max_retries=self.max_retries)
        self._connection = Connection(access)

    @property
    def client(self) -> Client:
        """The client that it asks, for what LlamaIndex has no word for."""
        return self._connection.client

    def using(self, client: Client | None = None, aclient: AsyncClient | None = None) -> Self:
        """The model with clients of yours, which have proxies or certificates; you close them."""
        self._connection.use(client, aclient)
        return self

    @classmethod
    def class_name(cls) -> str:
        """The name that it is serialized by."""
        return "KVWeave"

    @property
    def metadata(self) -> LLMMetadata:
        """The model's metadata. Its window is the service's model's, asked once unless `context_window` says it."""
        if self.context_window is not None:
            return self._metadata(self.model, self.context_window)
        if self._served is None:
            with told():
                served = self._connection.client.models()
            if not served:
                raise Unanswered(f"{self.base_url} names no model: give its context_window")
            self._served = served[0]
        return self._metadata(self._served.id, self._served.max_model_len)

    def to_payload(self) -> Json:
        """What events tell of the model; the service is not asked for it."""
        known = self._metadata(self._served.id if self._served else self.model, self.context_window or 0)
        return {"class_name": self.class_name(), **known.model_dump(exclude={"context_window"})}

    def messages_for(self, prompt: BasePromptTemplate, **prompt_args: object) -> list[ChatMessage]:
        """What a prompt says to this model, behind its system prompt."""
        return self._get_messages(prompt, **prompt_args)

    @chats
    def chat(self, messages: Sequence[ChatMessage], **kwargs: object) -> ChatResponse:
        """The answer to a chat."""
        return self._chat(messages, kwargs)

    @chats
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: object) -> ChatResponseGen:
        """The answer as it comes about; the last part tells its usage."""
        return parts(self._events(messages, kwargs))

    @chats
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: object) -> ChatResponse:
        """The answer to a chat."""
        return await self._achat(messages, kwargs)

    @chats
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: object) -> ChatResponseAsyncGen:
        """The answer as it comes about; the last part tells its usage."""
        return aparts(self._aevents(messages, kwargs))

    @completes
    def complete(self, prompt: str, formatted: bool = False, **kwargs: object) -> CompletionResponse:  # noqa: FBT001, FBT002
        """The answer to a prompt, as the only message of a chat."""
        return completion(self._chat(self._alone(prompt, formatted=formatted), kwargs))

    @completes
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: object) -> CompletionResponseGen:  # noqa: FBT001, FBT002
        """The answer to `complete` while it comes about."""
        said = parts(self._events(self._alone(prompt, formatted=formatted), kwargs))
        return (completion(each) for each in said)

    @completes
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: object) -> CompletionResponse:  # noqa: FBT001, FBT002
        """The asynchronous `complete`."""
        return completion(await self._achat(self._alone(prompt, formatted=formatted), kwargs))

    @completes
    async def astream_complete(
        self,
        prompt: str,
        formatted: bool = False,  # noqa: FBT001, FBT002
        **kwargs: object,
    ) -> CompletionResponseAsyncGen:
        """The asynchronous `stream_complete`."""
        return acompletions(aparts(self._aevents(self._alone(prompt, formatted=formatted), kwargs)))

    def _alone(self, prompt: str, *, formatted: bool) -> list[ChatMessage]:
        shape = self.completion_to_prompt
        return [ChatMessage(role=MessageRole.USER, content=prompt if formatted or not shape else shape(prompt))]

    def _metadata(self, name: str, window: int) -> LLMMetadata:
        most = self.max_tokens or -1
        return LLMMetadata(model_name=name, context_window=window, num_output=most, is_chat_model=True)

    def _asked(self, messages: Sequence[ChatMessage], given: Mapping[str, object]) -> ChatRequest:
        """The request of a call. What the call says goes before what the model is set to."""
        fields = type(self).model_fields
        own = {name: getattr(self, name) for name in ChatOptions.__annotations__ if name in fields}
        return asked(messages, {**own, **self.additional_kwargs, **given})

    def _chat(self, messages: Sequence[ChatMessage], given: Mapping[str, object]) -> ChatResponse:
        with told():
            return whole(self._connection.client.follow(self._asked(messages, given).answered()))

    async def _achat(self, messages: Sequence[ChatMessage], given: Mapping[str, object]) -> ChatResponse:
        with told():
            client = await self._connection.asynchronous()
            return whole(await client.follow(self._asked(messages, given).answered()))

    def _events(self, messages: Sequence[ChatMessage], given: Mapping[str, object]) -> Iterator[ChatEvent]:
        with told():
            yield from self._asked(messages, given).events(self._connection.client)

    async def _aevents(self, messages: Sequence[ChatMessage], given: Mapping[str, object]) -> AsyncIterator[ChatEvent]:
        with told():
            wanted = self._asked(messages, given)
            async with aclosing(wanted.aevents(await self._connection.asynchronous())) as events:
                async for event in events:
                    yield event
