"""Names of blobs (tenant/chunk/fingerprint/codec) and scopes of them: how parts are spelled, and what is refused.

After an @ the fingerprint may name a context: what the chunk was computed behind, besides the common prefix. After a
dot it may name a domain: requests that see no document of it share none of its blobs.
"""

import re
from dataclasses import dataclass, field
from typing import Self

from store.errors import KeyFormatError

MAX_TEXT_BYTES = 480  # LMDB takes 511, and a frame's number needs some of them

_PLAIN = re.compile(r"[a-z0-9_@-][a-z0-9_.@-]*")
_PART = re.compile(r"(?:[a-z0-9_.@-]|=[0-9A-F]{2})+")


def quote(part: str) -> str:
    """Spell any text with letters that every medium keeps apart, upper case and '/' included."""
    if _PLAIN.fullmatch(part):
        return part
    try:
        raw = part.encode()
    except UnicodeEncodeError:
        raise KeyFormatError(f"key part {part!r} is not valid Unicode: it holds a lone surrogate") from None
    safe = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_.@-")
    spelled = "".join(chr(b) if b in safe else f"={b:02X}" for b in raw)
    return f"=2E{spelled[1:]}" if spelled.startswith(".") else spelled


def unquote(text: str) -> str:
    """Undo `quote`, and refuse any spelling that `quote` would not have chosen."""
    if not _PART.fullmatch(text):
        raise KeyFormatError(f"{text!r} is not a key part that this store wrote")
    raw = re.sub(r"=([0-9A-F]{2})", lambda m: chr(int(m[1], 16)), text).encode("latin-1")
    try:
        part = raw.decode()
    except UnicodeDecodeError:
        raise KeyFormatError(f"{text!r} is not a key part that this store wrote") from None
    if quote(part) != text:
        raise KeyFormatError(f"{text!r} is not a key part that this store wrote: {quote(part)!r} would be")
    return part


def _join(parts: tuple[str, ...]) -> str:
    for part in parts:
        if not part:
            raise KeyFormatError(f"a key part must not be empty: {parts!r}")
    text = "/".join(quote(part) for part in parts)
    if len(text) > MAX_TEXT_BYTES:
        raise KeyFormatError(
            f"key {text[:60]!r}… takes {len(text)} bytes, more than {MAX_TEXT_BYTES}: shorten its parts"
        )
    return text


@dataclass(frozen=True, slots=True, order=True)
class CacheKey:
    """What one blob is: this chunk, for this tenant and model fingerprint, in this codec."""

    tenant: str
    chunk: str
    fingerprint: str
    codec: str
    text: str = field(init=False, repr=False, compare=False)  # the spelling that media use: the parts joined by '/'

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _join((self.tenant, self.chunk, self.fingerprint, self.codec)))

    @property
    def origin(self) -> str:
        """The fingerprint without context and domain: what computed the blob."""
        return self.fingerprint.partition(".")[0].partition("@")[0]

    @property
    def context(self) -> str:
        """The context that the chunk was computed in; empty for none."""
        return context_of(self.fingerprint)

    @property
    def domain(self) -> str:
        """The domain that the blob is kept for; empty where the whole tenant shares it."""
        return self.fingerprint.partition(".")[2]

    @property
    def scopes(self) -> tuple[str, ...]:
        """The texts of all scopes that contain this key, widest first."""
        parts = self.text.split("/")
        return tuple("/".join(parts[:count]) + "/" for count in (1, 2, 3))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `text` wrote; anything else is refused."""
        parts = text.split("/")
        if len(parts) != 4:
            raise KeyFormatError(f"{text!r} is not tenant/chunk/fingerprint/codec")
        return cls(*(unquote(part) for part in parts))


def fingerprint_in(domain: str, digest: str, *, context: str = "") -> str:
    """The fingerprint of a domain's blobs, out of those of what computed them and of what they were computed in."""
    computed = f"{digest}@{context}" if context else digest
    return f"{computed}.{domain}" if domain else computed


def context_of(fingerprint: str) -> str:
    """The context that a blob's fingerprint names; empty for none."""
    return fingerprint.partition(".")[0].partition("@")[2]


@dataclass(frozen=True, slots=True)
class Scope:
    """All keys of a tenant, of a chunk of it, or of a chunk's fingerprint."""

    tenant: str
    chunk: str | None = None
    fingerprint: str | None = None
    text: str = field(init=False, repr=False, compare=False)  # the spelling of the given parts, each followed by '/'

    def __post_init__(self) -> None:
        parts = (self.tenant, self.chunk, self.fingerprint)
        known = [part for part in parts if part is not None]
        if list(parts[: len(known)]) != known:
            raise KeyFormatError(f"a scope names its parts from the left without a gap: {self!r}")
        object.__setattr__(self, "text", _join(tuple(known)) + "/")

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that are given, from the left."""
        return tuple(p for p in (self.tenant, self.chunk, self.fingerprint) if p is not None)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `text` wrote; anything else is refused."""
        *parts, rest = text.split("/")
        if len(parts) not in (1, 2, 3) or rest:
            raise KeyFormatError(f"{text!r} is not a scope that this store wrote")
        return cls(*(unquote(part) for part in parts))

    def __contains__(self, key: CacheKey) -> bool:
        return (key.tenant, key.chunk, key.fingerprint)[: len(self.parts)] == self.parts
