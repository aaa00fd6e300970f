"""How tenants and keys are spelled. Knows no database.

A key is `kvw_<id>_<secret>`. Its id is no secret: listings show it. The secret has 256 random bits, so a fast digest
is enough to keep.
"""

import re
import secrets

from blake3 import blake3

from service.errors import AccessError

_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_KEY = re.compile(r"kvw_([0-9a-f]{16})_[A-Za-z0-9_-]{32,64}")


def is_tenant(name: str) -> bool:
    """May a tenant, and its folder, be called so?"""
    return bool(_TENANT.fullmatch(name))


def check_spelling(name: str) -> str:
    """The name itself; raises AccessError."""
    if not is_tenant(name):
        raise AccessError(
            f"a tenant is named with up to 63 of a-z, 0-9, _ and -, a letter or digit first, got {name!r}"
        )
    return name


def new_key() -> tuple[str, str]:
    key_id = secrets.token_hex(8)
    return key_id, f"kvw_{key_id}_{secrets.token_urlsafe(32)}"


def id_of(key: str) -> str | None:
    """The id inside a key; None for what no key looks like."""
    found = _KEY.fullmatch(key)
    return found[1] if found else None


def digest(key: str) -> bytes:
    """What is kept of a key."""
    return blake3(key.encode()).digest()
