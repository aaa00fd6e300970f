"""Who calls, and what of the tenant's documents lies open to them: all, or what their key's filter lets through."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from retriever.contract.catalog import CatalogView
from retriever.contract.documents import DocumentsView
from retriever.contract.types import DocumentRow
from retriever.documents import Json
from retriever.filter_condition import FilterCondition, fits
from retriever.search import scope
from service.access.principal import Principal
from service.api.core_of import core_of
from service.api.guards import principal
from service.corpus.tenants import Tenant
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
        return scope(collection=collection or "", where=where, bound=self.who.bound)

    def fits(self, collection: str, metadata: Json) -> bool:
        """Does a document with this metadata lie within the key's filter?"""
        return not self.is_bound or fits(self.allowed(), collection=collection, metadata=metadata)

    def seen(self, view: DocumentsView, document: str) -> DocumentRow | None:
        """The document, if it is there for this key."""
        entry = view.document(document)
        return entry if entry and self.fits(entry.collection, entry.metadata) else None

    def sees_all_of(self, view: DocumentsView, entry: DocumentRow) -> bool:
        """Does the key see every chunk, too? They have metadata of their own; nothing hidden must be written over."""
        if not self.is_bound:
            return True
        return len(view.passages(entry.id, allowed=self.allowed())) == entry.parts

    def check_writable(self, view: CatalogView, document: str) -> None:
        """Raise Forbidden where a document of this id is there, or on its way, but not for this key to change."""
        if not self.is_bound:
            return
        entry = view.document(document)
        if entry and not (self.fits(entry.collection, entry.metadata) and self.sees_all_of(view, entry)):
            raise unfitting(document)
        waiting = view.upload_of(document)
        if waiting and waiting.state.is_live and not self.owns(waiting.job):
            raise unfitting(document)

    def check_fits(self, document: str, collection: str, *, metadata: Json) -> None:
        """Raise Forbidden for metadata outside the key's filter."""
        if not self.fits(collection, metadata):
            raise unfitting(document)

    def owns(self, job: str) -> bool:
        """May this key see the job? One with a filter sees those that it began: a job's id has its owner's in it."""
        return not self.is_bound or job.rpartition("-")[0] == f"job-{self.who.key_id}"

    def check_unbound(self) -> None:
        """Raise Forbidden for a key with a filter."""
        if self.is_bound:
            raise Forbidden("a key with a filter may not change a whole collection: use one without")


def unfitting(document: str) -> Forbidden:
    """The refusal of a document: the same words for a taken id as for unfit metadata; neither tells of the other."""
    return Forbidden(
        f"document {document[:80]!r} is not within this key's filter: give it metadata that fit, or another id"
    )


def unknown(kind: str, name: str) -> NotFound:
    """The error for what is not there and for what is not for this key: both get the same words."""
    return NotFound(f"there is no {kind} {name[:80]!r}")


def caller(request: Request) -> Caller:
    """The caller of this request."""
    return Caller(core_of(request.app), principal(request))


By = Annotated[Caller, Depends(caller)]
