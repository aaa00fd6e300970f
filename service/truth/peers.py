"""The replicas that have one truth together: leases, claims on uploads, deletions passed on. Knows no database."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, NamedTuple

BEHIND: Final = "this replica was cut off from the others and catches up with what they did: ask again"


class Passed(NamedTuple):
    """A tenant of which something was deleted, or one of its sessions that has ended."""

    tenant: str
    session: str = ""


@dataclass(frozen=True, slots=True)
class Follower:
    """What a service does where others have done something. `learn` raises StoreError."""

    learn: Callable[[Collection[Passed] | None], None]  # forget what was deleted of these, or of all tenants
    wake: Callable[[str], None]  # look whether there is work for a tenant
    resting: Callable[[], AbstractContextManager[None]]  # work on nothing while the block runs
    forget: Callable[[], None]  # let go of what was made of the truth, which may be another one


class Peers:
    """The other services of a truth, of which there are none where it is a folder. Safe for threads."""

    def lease(self) -> int | None:
        """The lease under which this service answers: another one each time that the others had to go on without it.
        None while they do, and until it has caught up.
        """
        return 0

    def passed(self, what: Passed) -> bool:
        """Tells that something was deleted, or ended, and waits; returns whether no service has any of it left."""
        return True

    def taken(self, tenant: str) -> Sequence[int]:
        """The uploads that others work on."""
        return ()

    def claim(self, tenant: str, uploads: Sequence[int]) -> Collection[int]:
        """Takes uploads to work on; returns those that no other has. It keeps them until it lets go, or is given up."""
        return uploads

    def let_go(self, tenant: str, uploads: Sequence[int]) -> None:
        """Gives back what was claimed."""

    def follow(self, follower: Follower) -> None:
        """Begins to tell this service what the others do."""
