"""What vLLM's scheduler and its workers tell each other of a prompt. Knows no HTTP and no tensors."""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LoadJob:
    """The tokens `start` to `stop`, the end exclusive, of a prompt, and their `blocks`: a list for each cache group."""

    request: str
    handle: str
    digest: str
    start: int
    stop: int
    blocks: tuple[list[int], ...]
    timeout_s: float


@dataclass(slots=True)
class StepJobs:
    """What one step of the scheduler asks of the workers: what to load, and whose load is wanted no more."""

    jobs: list[LoadJob] = field(default_factory=list[LoadJob])
    cancelled: list[str] = field(default_factory=list[str])


def digest_of(ids: Sequence[int]) -> str:
    """The digest of a prompt's token ids: SHA-256 of them as 32-bit numbers, the lowest byte first."""
    return hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()
