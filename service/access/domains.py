"""Visibility domains, within which caches are shared: a digest of the metadata that filters of a tenant's keys name.

Two documents of one domain are seen by the same keys. So a cache that is kept by domain tells nobody, by the time that
its absence takes, of a document that they do not see.
"""

from collections.abc import Set
from typing import NamedTuple, Self

from blake3 import blake3

from retriever.documents import Json
from retriever.filter_condition import facets
from store.key import CacheKey

_DIGEST_BYTES = 12


class DomainChunk(NamedTuple):
    """A chunk as documents of one domain share it."""

    id: str
    domain: str

    @classmethod
    def of(cls, key: CacheKey) -> Self:
        """The chunk whose blob has this key."""
        return cls(key.chunk, key.domain)


def domain_of(metadata: Json, fields: Set[str]) -> str:
    """The domain of what has this metadata, by the fields that filters name; empty where it has none of them."""
    told = sorted({repr(facet) for facet in facets(metadata) if facet[0] in fields}) if fields else []
    return blake3("\0".join(told).encode()).hexdigest(_DIGEST_BYTES) if told else ""
