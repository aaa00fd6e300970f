"""Looks after stores: verifies every blob, collects what has expired or belongs to nobody. Knows only the contract."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from store.base import BlobAccess, BlobStore
from store.errors import BadBlob, Miss, MissReason
from store.key import CacheKey
from store.upkeep import Entry

GRACE_S = 24 * 3600.0  # younger than this a blob may belong to a document that is just being put in
LOG_S = 7 * 24 * 3600.0  # no computing takes longer, so no put can be older than that
_THREADS = 8

Known = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class BadEntry:
    """A blob that must not be used, and why."""

    tier: str
    key: CacheKey
    reason: MissReason
    detail: str


@dataclass(slots=True)
class ScrubReport:
    """What a scrub saw."""

    checked: int = 0
    nbytes: int = 0
    bad: list[BadEntry] = field(default_factory=list[BadEntry])
    strays: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class GcReport:
    """What a collection took away."""

    expired: int = 0
    fingerprint: int = 0
    orphans: int = 0
    nbytes: int = 0
    quarantined: int = 0
    deletions: int = 0


@dataclass(frozen=True, slots=True)
class GcRules:
    """What to collect besides the expired: one fingerprint by name, and chunks that `known(tenant, chunk)` denies."""

    fingerprint: str | None = None
    known: Known | None = None
    grace_s: float = GRACE_S


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
            for bad, entry in zip(pool.map(partial(_confirm, tier), entries), entries, strict=True):
                report.checked += 1
                report.nbytes += entry.nbytes
                if bad is not None and bad.reason not in (MissReason.ABSENT, MissReason.EXPIRED):
                    report.bad.append(bad)
                    if bad.reason in (MissReason.CORRUPT, MissReason.FOREIGN):
                        tier.quarantine(entry.key)
                yield report.checked, report


def _confirm(tier: BlobAccess, entry: Entry) -> BadEntry | None:
    """A blob that was replaced while it was read looks corrupt, once."""
    return _check(tier, entry) and _check(tier, entry)


def _check(tier: BlobAccess, entry: Entry) -> BadEntry | None:
    key = entry.key
    reader = tier.open(key)
    if isinstance(reader, Miss):
        return BadEntry(tier.name, key, reader.reason, reader.detail)
    try:
        for number in range(len(reader.head.frames)):
            with reader.frame(number):
                pass
    except BadBlob as bad:
        return BadEntry(tier.name, key, bad.reason, str(bad))
    return None


def collect(store: BlobStore, rules: GcRules | None = None, *, now: float | None = None) -> GcReport:
    """Take away what has expired, what the rules name, old quarantine, and what killed deletes left behind."""
    rules = rules or GcRules()
    now = time.time() if now is None else now
    report = GcReport()
    for tier in reversed(store.tiers):  # the lowest first, so that a read copies nothing upwards that goes
        tier.finish_deletes()
        for entry in tier.entries():
            if _collect_entry(tier, entry, rules=rules, now=now, report=report):
                tier.discard(entry.key)
                report.nbytes += entry.nbytes
        report.quarantined += tier.forget_quarantined(now - rules.grace_s)
        report.deletions += sum(tier.trim(tenant, now - LOG_S) for tenant in tier.tenants())
    return report


def _collect_entry(tier: BlobStore, entry: Entry, *, rules: GcRules, now: float, report: GcReport) -> bool:
    key = entry.key
    if rules.fingerprint is not None and key.fingerprint == rules.fingerprint:
        report.fingerprint += 1
        return True
    is_old = entry.stored_at < now - rules.grace_s
    if rules.known is not None and is_old and not rules.known(key.tenant, key.chunk):
        report.orphans += 1
        return True
    reader = tier.open(key)
    if isinstance(reader, Miss) and reader.reason is MissReason.EXPIRED:
        report.expired += 1
        return True
    return False
