"""How LangChain's objects reach a service. Knows no endpoint."""

from typing import TypeVar

from langchain_core.load.serializable import Serializable
from langchain_core.utils import from_env, secret_from_env
from pydantic import ConfigDict, Field, SecretStr

from kvweave_client import BASE_URL, Access, AsyncClient, Client
from kvweave_client.plans import Plan

T = TypeVar("T")


class Connected(Serializable):
    """What all classes here are told of a service; it stands last among their bases.

    `client` and `async_client` are used instead where they are given.

    `timeout`: seconds of a whole call; of a stream, how long it may stand still.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    base_url: str = Field(default_factory=from_env("KVWEAVE_BASE_URL", default=BASE_URL))
    api_key: SecretStr | None = Field(default_factory=secret_from_env("KVWEAVE_API_KEY", default=None))
    timeout: float | None = Field(default=None, gt=0)
    max_retries: int | None = Field(default=None, ge=0)
    client: Client | None = Field(default=None, exclude=True, repr=False)
    async_client: AsyncClient | None = Field(default=None, exclude=True, repr=False)

    @property
    def lc_secrets(self) -> dict[str, str]:
        """The fields that are not written down with the rest."""
        return {"api_key": "KVWEAVE_API_KEY"}

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """True: it is."""
        return True

    def asked(self) -> Client:
        """The client for calls that block, in any thread."""
        return self.client or self._access.client()

    async def aasked(self) -> AsyncClient:
        """The client for calls of the loop that runs."""
        return self.async_client or await self._access.async_client()

    def followed(self, plan: Plan[T]) -> T:
        """What a plan comes to."""
        return self.asked().follow(plan)

    async def afollowed(self, plan: Plan[T]) -> T:
        """What a plan comes to."""
        return await (await self.aasked()).follow(plan)

    @property
    def _access(self) -> Access:
        key = self.api_key.get_secret_value() if self.api_key else None
        return Access.within(self.timeout, self.base_url, api_key=key, max_retries=self.max_retries)
