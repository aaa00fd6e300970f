"""Who calls: which documents and jobs their key's filter lets them see and write, and the ids these are kept under."""

import json
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from retriever.catalog.view import CatalogView
from retriever.documents import Draft, Json
from retriever.filter_condition import (
    EVERYTHING,
    FilterCondition,
    Value,
    exact_values,
    facets,
    fields_of,
    fits,
    scope,
)
from retriever.types import DocumentRow
from service.access.principal import Principal
from service.api.changes import MustSee, wait_until_seen
from service.api.guards import core_of, principal
from service.documents.tenants import Tenant
from service.errors import Forbidden, NotFound

if TYPE_CHECKING:
    from service.app.core import Core


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever sent a request. A key without a filter sees and may write everything of its tenant."""

    core: "Core"
    who: Principal

    @property
    def tenant(self) -> Tenant:
        return self.core.tenant(self.who)

    @property
    def is_bound(self) -> bool:
        """Does the key carry a filter?"""
        return self.who.bound is not None

    def allowed(self, *, collection: str | None = None, where: Json | None = None) -> FilterCondition:
        """What this request may see: a condition on documents and chunks."""
        return scope(*([collection] if collection else ()), where=where, bound=self.who.bound)

    def fits(self, collection: str, metadata: Json) -> bool:
        """Does a document with this metadata lie within the key's filter?"""
        return not self.is_bound or fits(self.allowed(), collection=collection, metadata=metadata)

    def seen(self, view: CatalogView, document: str) -> DocumentRow | None:
        """The document, if it is there for this key: one that keys of its filter put in goes before one of others."""
        rows = (*self._own(view, document), view.document(document))
        return next((each for each in rows if each and self.fits(each.collection, each.metadata)), None)

    def _own(self, view: CatalogView, document: str) -> list[DocumentRow]:
        """What keys of this filter put in under this id: several where an operator moved some out of the filter."""
        if not self.is_bound:
            return []
        name = f"{document}{self.who.id_suffix}"
        moved = view.documents(EVERYTHING, after=f"{name}.", limit=1000)
        first = view.document(name)
        return [*([first] if first else []), *(each for each in moved if self.who.shown_id(each.id) == document)]

    def is_own(self, collection: str, metadata: Json) -> bool:
        """Is this within the key's filter alone? A field that the filter names has one value at most."""
        confined = self.confined(metadata)
        return self.fits(collection, metadata) and len(confined) == len({field for field, _ in confined})

    def confined(self, metadata: Json) -> set[tuple[str, Value]]:
        """What the metadata say in the fields that the key's filter names, which it may not change."""
        fields = fields_of(self.who.bound or {})
        return {(field, value) for field, value in facets(metadata) if field in fields}

    def stamped(self, draft: Draft) -> Draft:
        """The draft with the values that the key's filter demands, where it says nothing of these fields."""
        if self.who.bound is None:
            return draft
        given = {field for field, _ in facets(draft.metadata)}
        missing = {field: value for field, value in exact_values(self.who.bound).items() if field not in given}
        return replace(draft, metadata={**missing, **draft.metadata})

    def name_of(self, view: CatalogView, document: str) -> str:
        """The id under which a document is kept that is not there for this key: nobody else's, whoever has that id."""
        name, taken = f"{document}{self.who.id_suffix}", {each.id for each in self._own(view, document)}
        names = (f"{name}.{number}" if number else name for number in count())
        return next(each for each in names if each not in taken)

    def writable(self, view: CatalogView, document: str, *, after: Json | None = None) -> str:
        """The id under which the document is kept. Raises Forbidden for one that is not, or not alone, this key's.

        `after` is the metadata that takes the place of what is there.
        """
        row = self.seen(view, document)
        if row and after is not None:
            self.check_unmoved(document, row.metadata, after=after)
        if row and not self._owns_all_of(view, row):
            raise unfitting(document)
        name = row.id if row else self.name_of(view, document)
        waiting = view.upload_of(name)
        if waiting and waiting.state.is_live and not self.owns(waiting.job):
            raise unfitting(document)
        return name

    def _owns_all_of(self, view: CatalogView, row: DocumentRow) -> bool:
        """Is every chunk the key's own, too? They have metadata of their own; what others see is not its to change."""
        if not self.is_bound:
            return True
        every = [row.metadata, *(each.metadata for each in view.passages(row.id))]
        return all(self.is_own(row.collection, each) for each in {json.dumps(each): each for each in every}.values())

    def check_own(self, document: str, collection: str, *, metadata: Json) -> None:
        """Raise Forbidden for metadata outside the key's filter, and for such that other keys' filters share."""
        if self.is_bound and not self.is_own(collection, metadata):
            raise unfitting(document)

    def check_unmoved(self, document: str, before: Json, *, after: Json) -> None:
        """Raise Forbidden for a change of what the key's filter names."""
        changed = {field for field, _ in self.confined(before) ^ self.confined(after)}
        if changed:
            raise Forbidden(
                f"document {document[:80]!r} must keep its {', '.join(sorted(changed))[:80]}, which this key's filter "
                "names: change it with a key without a filter"
            )

    def owns(self, job: str) -> bool:
        """May this key see the job? One with a filter sees those that it began: a job's id has its owner's in it."""
        return not self.is_bound or job.rpartition("-")[0] == f"job-{self.who.key_id}"

    def check_unbound(self, what: str) -> None:
        """Raise Forbidden for a key with a filter, which may not do this."""
        if self.is_bound:
            raise Forbidden(f"a key with a filter may not {what}: use one without")


def unfitting(document: str) -> Forbidden:
    """The refusal of a document that is outside of a key's filter, or inside of others too."""
    return Forbidden(
        f"document {document[:80]!r} is not within this key's filter alone: give each field that the filter names the "
        "one value that fits, or take another id"
    )


def unknown(kind: str, name: str) -> NotFound:
    """The error for what is not there and for what is not for this key: both get the same words."""
    return NotFound(f"there is no {kind} {name[:80]!r}")


async def caller(request: Request) -> Caller:
    return Caller(core_of(request.app), await principal(request))


By = Annotated[Caller, Depends(caller)]


async def must_see(request: Request, change: MustSee = None) -> None:
    """Returns when this process sees the change that the request names, if it does."""
    if change is not None:
        await wait_until_seen((await caller(request)).tenant.catalog, change)
