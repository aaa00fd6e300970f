"""Maintains stores: verifies blobs, quarantines bad ones, removes a model's blobs, forgets old deletions."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from store.blob_store import BlobStore, StoredBlob
from store.errors import BadBlob, Miss, MissReason
from store.key import CacheKey

GRACE_S = 24 * 3600.0  # how long quarantined blobs are kept for inspection
LOG_S = 7 * 24 * 3600.0  # no computation takes longer, so no put can be older
_THREADS = 8


@dataclass(frozen=True, slots=True)
class BadEntry:
    """A blob that must not be used, and why."""

    tier: str
    key: CacheKey
    reason: MissReason
    detail: str


@dataclass(slots=True)
class ScrubReport:
    """The findings of a scrub."""

    checked: int = 0
    nbytes: int = 0
    bad: list[BadEntry] = field(default_factory=list[BadEntry])
    strays: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class GcReport:
    """What a garbage collection removed."""

    fingerprint: int = 0
    nbytes: int = 0
    quarantined: int = 0
    deletions: int = 0


def verify(store: BlobStore) -> Iterator[tuple[int, ScrubReport]]:
    """Check every frame of every blob of every tier; yields the number done and the report so far.

    A corrupt or foreign blob goes into quarantine, so that the next put can replace it. A blob of a newer format
    or of an unknown codec is reported and left: another release may read it.
    """
    report = ScrubReport()
    for tier in store.tiers:
        report.strays += tier.strays()
        with ThreadPoolExecutor(_THREADS) as pool:
            entries = list(tier.entries())
            for bad, blob in zip(pool.map(partial(_confirm, tier), entries), entries, strict=True):
                report.checked += 1
                report.nbytes += blob.nbytes
                if bad is not None and bad.reason is not MissReason.ABSENT:
                    report.bad.append(bad)
                    if bad.reason in (MissReason.CORRUPT, MissReason.FOREIGN):
                        tier.quarantine(blob.key)
                yield report.checked, report


def _confirm(tier: BlobStore, blob: StoredBlob) -> BadEntry | None:
    """Checks a blob, and a bad one twice: one that was replaced while it was read looks corrupt once."""
    return _check(tier, blob) and _check(tier, blob)


def _check(tier: BlobStore, blob: StoredBlob) -> BadEntry | None:
    key = blob.key
    reader = tier.open(key)
    if isinstance(reader, Miss):
        return BadEntry(tier.name, key, reader.reason, reader.detail)
    frames = range(len(reader.head.frames) if reader.unpacked is None else 0)  # memory verified them before
    try:
        for number in frames:
            with reader.frame(number):
                pass
    except BadBlob as bad:
        return BadEntry(tier.name, key, bad.reason, str(bad))
    return None


def collect(store: BlobStore, fingerprint: str | None = None, *, grace_s: float = GRACE_S) -> GcReport:
    """Remove a fingerprint's blobs where one is named, old quarantine, and what killed deletes left behind."""
    now = time.time()
    report = GcReport()
    for tier in reversed(store.tiers):  # the lowest first, so that reads copy no removed blob upwards
        tier.finish_deletes()
        for blob in tier.entries() if fingerprint is not None else ():
            if blob.key.origin == fingerprint:
                tier.discard(blob.key)
                report.fingerprint += 1
                report.nbytes += blob.nbytes
        report.quarantined += tier.forget_quarantined(now - grace_s)
        report.deletions += sum(tier.trim(tenant, now - LOG_S) for tenant in tier.tenants())
    return report
