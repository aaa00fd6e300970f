"""The way to one service: clients that are given, or else those that the process shares. Knows no endpoint."""

from llama_index.core.base.llms.generic_utils import get_from_param_or_env
from llama_index.core.bridge.pydantic import SecretStr

from kvweave_client import BASE_URL, Access, AsyncClient, Client, Retries, Timeouts

URL, KEY = "KVWEAVE_BASE_URL", "KVWEAVE_API_KEY"


def url_of(given: str | None) -> str:
    """What is given, else what the environment says, else that of a service on this machine."""
    return get_from_param_or_env("base_url", given or None, URL, BASE_URL)


def key_of(given: str | SecretStr | None) -> SecretStr:
    """What is given, else what the environment says, else none."""
    if isinstance(given, SecretStr):
        return given
    return SecretStr(get_from_param_or_env("api_key", given, KEY, ""))


def access_of(base_url: str, api_key: SecretStr, *, timeout_s: float, max_retries: int) -> Access:
    """What one `timeout` bounds: a call, and the silence of a stream."""
    timeouts = Timeouts(call_s=timeout_s, silence_s=timeout_s)
    return Access(base_url, api_key.get_secret_value(), timeouts, Retries(most=max_retries))


class Connection:
    """The clients of one service. A copy, in another process too, has none that were given."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._client: Client | None = None
        self._aclient: AsyncClient | None = None

    def use(self, client: Client | None, aclient: AsyncClient | None) -> None:
        """Take these; who gives them closes them."""
        self._client = client or self._client
        self._aclient = aclient or self._aclient

    @property
    def client(self) -> Client:
        """For any thread."""
        return self._client or self._access.client()

    async def asynchronous(self) -> AsyncClient:
        """For the event loop that runs."""
        return self._aclient or await self._access.async_client()

    def __reduce__(self) -> tuple[type["Connection"], tuple[Access]]:
        return Connection, (self._access,)
