"""Refuses changes of a tenant's catalog that make more of it than its quota allows. Knows no upload."""

from retriever.catalog.change import CatalogChange
from service.errors import Exhausted
from service.truth.control import Quota


class QuotaCheck:
    """What a change may come to: as much as the quota allows, or as there is before it."""

    def __init__(self, change: CatalogChange, quota: Quota, *, tenant: str) -> None:
        self._tenant = tenant
        self._limits = (("documents", quota.documents), ("chunks", quota.chunks)) if quota != Quota() else ()
        self._before = change.expected() if self._limits else ()

    def check(self, change: CatalogChange) -> None:
        """Raises Exhausted, which gives up the change, where there would be too much."""
        after = change.expected() if self._limits else ()
        for (what, most), was, now in zip(self._limits, self._before, after, strict=True):
            if most is not None and now > max(most, was):
                raise Exhausted(
                    f"the quota of tenant {self._tenant!r} is {most} {what}, this would be more: delete some, "
                    "or have the quota raised",  # how many there are is not for a key with a filter to know
                    retry_after_s=60,
                )
