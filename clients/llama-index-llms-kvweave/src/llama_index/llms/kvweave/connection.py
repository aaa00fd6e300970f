"""Where a service is, as arguments or the environment say. Knows no endpoint."""

from llama_index.core.base.llms.generic_utils import get_from_param_or_env
from llama_index.core.bridge.pydantic import SecretStr

from kvweave_client import BASE_URL

URL, KEY = "KVWEAVE_BASE_URL", "KVWEAVE_API_KEY"


def url_of(given: str | None) -> str:
    """The URL that is given, else what the environment says, else that of a service on this machine."""
    return get_from_param_or_env("base_url", given or None, URL, BASE_URL)


def key_of(given: str | SecretStr | None) -> SecretStr:
    """The key that is given, else what the environment says, else none."""
    if isinstance(given, SecretStr):
        return given
    return SecretStr(get_from_param_or_env("api_key", given, KEY, ""))
