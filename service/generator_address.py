"""Where the generator is, as the setting spells it. Asks nobody."""

from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

OWN = {"fallback": ["own"]}


@dataclass(frozen=True, slots=True)
class GeneratorAddress:
    """An OpenAI interface of vLLM, and the key for it. `model`: its name there, empty for the only one.

    `has_fallback`: whether our own engine answers where vLLM does not.
    """

    url: str
    key: str = field(default="", repr=False)
    model: str = ""
    has_fallback: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """The address in `http://key:KEY@host:port/v1?fallback=own#MODEL`. Raises ValueError with what would do."""
        parts = urlsplit(text)
        is_whole = parts.scheme in ("http", "https") and parts.hostname and parts.username in (None, "key")
        asked = parse_qs(parts.query, keep_blank_values=True)
        if not is_whole or not parts.path.rstrip("/").endswith("/v1") or asked not in ({}, OWN):
            raise ValueError(
                "a generator's address is http://host:port/v1, with ?fallback=own where kvweave's own engine is to "
                "answer while it does not, with #NAME where it has several models, and with key:KEY@ before the host "
                "for its key"
            )
        host = parts.netloc.rpartition("@")[2]
        url = parts._replace(netloc=host, query="", fragment="").geturl().rstrip("/")
        return cls(url, unquote(parts.password or ""), parts.fragment, bool(asked))
