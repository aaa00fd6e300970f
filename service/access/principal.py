"""Who asks: a key's tenant, role and filter, who is an operator; how keys and tenants are spelled, made, digested."""

import json
import re
import secrets
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from blake3 import blake3

from retriever.documents import Json
from service.errors import AccessError

DEFAULT_TENANT = "default"

_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_KEY = re.compile(r"kvw_([0-9a-f]{16})_[A-Za-z0-9_-]{32,64}")


class Role(IntEnum):
    """What a key may do; each may do all that a lower one may."""

    FETCH = 0  # prompts that were handed over, for a vLLM
    READ = 1
    WRITE = 2
    ADMIN = 3

    @classmethod
    def parse(cls, name: str) -> Self:
        """The role that is named `fetch`, `read`, `write` or `admin`. Raises ValueError for another name."""
        try:
            return cls[name.upper()]
        except KeyError:
            raise ValueError(f"a role is one of fetch, read, write, admin, got {name!r}") from None

    @property
    def label(self) -> str:
        """The role's name as people write it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Principal:
    """Whoever holds a key. `bound`: a filter on metadata that no request of it can widen; None for none.

    `per_minute`: requests; None for no limit.
    """

    tenant: str
    role: Role
    key_id: str
    bound: Json | None = None
    per_minute: int | None = None

    @property
    def id_suffix(self) -> str:
        """What the ids of documents end in that keys of this filter put in, which so meet no others; empty for none."""
        if self.bound is None:
            return ""
        return f"~{blake3(json.dumps(self.bound, sort_keys=True).encode()).hexdigest(6)}"

    def shown_id(self, document: str) -> str:
        """A document's id as its key gave it."""
        return document if self.bound is None else re.sub(rf"{self.id_suffix}(\.\d+)?\Z", "", document)

    @property
    def is_operator(self) -> bool:
        """May this key see and switch what concerns all tenants?"""
        return self.tenant == DEFAULT_TENANT and self.role == Role.ADMIN and self.bound is None

    @property
    def fetches_all(self) -> bool:
        """May this key fetch what was handed over for any tenant?"""
        is_fetching = self.tenant == DEFAULT_TENANT and self.role == Role.FETCH and self.bound is None
        return is_fetching or self.is_operator


OPEN = Principal(DEFAULT_TENANT, Role.ADMIN, "none")  # whoever asks a service that has its keys switched off


def is_tenant(name: str) -> bool:
    """May a tenant, and its folder, be called so?"""
    return bool(_TENANT.fullmatch(name))


def check_spelling(name: str) -> None:
    """Raises AccessError for what no tenant may be called."""
    if not is_tenant(name):
        raise AccessError(
            f"a tenant is named with up to 63 of a-z, 0-9, _ and -, a letter or digit first, got {name!r}"
        )


def new_key() -> tuple[str, str]:
    """The id of a new key, and the key `kvw_<id>_<secret>`. The id is no secret: listings show it.

    The secret has 256 random bits, so a fast digest is enough to keep.
    """
    key_id = secrets.token_hex(8)
    return key_id, f"kvw_{key_id}_{secrets.token_urlsafe(32)}"


def id_of(key: str) -> str | None:
    """The id inside a key; None for what no key looks like."""
    found = _KEY.fullmatch(key)
    return found[1] if found else None


def digest(key: str) -> bytes:
    """What is kept of a key."""
    return blake3(key.encode()).digest()
