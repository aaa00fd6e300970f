"""Compares a stored record of each tenant with what the model computes; where they differ, retires the fingerprint.

A fingerprint names what should decide a record. Here one record is computed again and compared, before any is used.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from blend.errors import BlendError
from retriever.catalog.catalog import Catalog
from retriever.errors import CatalogError
from retriever.filter_condition import EVERYTHING
from retriever.library import Library
from service.documents.chunk_capture import CaptureItem
from service.documents.chunk_captures import ChunkCaptures
from service.model.served_model import ServedModel
from service.telemetry.logs import fields
from service.truth.control import Control
from store.blob import Terms
from store.blob_store import BlobStore
from store.codec.decode import decode
from store.codec.encode import encode
from store.errors import StoreError
from store.fingerprint import Fingerprint
from store.key import CacheKey
from store.reader import BlobReader, read
from store.record import Record, widen

log = logging.getLogger(__name__)

LOOKED_AT = 20  # chunks of a tenant, to find one that is stored
ROUNDING = 0.02  # of the numbers' size: what another device, or another order of adding, may make of them
MOST = 100  # fingerprints that were retired


def checked_model(
    model: ServedModel,
    names: Sequence[str],
    *,
    library: Callable[[str], Library],
    store: BlobStore,
    control: Control,
) -> ServedModel:
    """The model, with another fingerprint where what one of these tenants has stored is not what it computes."""
    for name in names:
        try:
            with closing(library(name).catalog) as catalog:
                found = _trusted(model, _StoredTenant(name, catalog, store, control))
        except CatalogError as error:  # the others serve, and whoever asks for this one is told
            log.error("the catalog of a tenant cannot be used", extra=fields(tenant=name, reason=str(error)))
            continue
        model = replace(model, fingerprint=found)
    model.engine.identify(model.fingerprint)
    return model


@dataclass(frozen=True, slots=True)
class _StoredTenant:
    """What a tenant has."""

    name: str
    catalog: Catalog
    store: BlobStore
    control: Control


def _trusted(model: ServedModel, tenant: _StoredTenant) -> Fingerprint:
    """The model's fingerprint, or one that nothing is stored under yet, where a stored record is not the model's."""
    first = tried = model.fingerprint
    for number in range(1, MOST):
        if _agrees(replace(model, fingerprint=tried), tenant):
            break
        log.error(
            "a stored record is not what the model computes: its fingerprint is retired, all is computed again",
            extra=fields(tenant=tenant.name, fingerprint=tried.digest),
        )
        tried = retired(first, number)
    return tried


def retired(first: Fingerprint, number: int) -> Fingerprint:
    """What takes the place of a model's own fingerprint when so many before it are not to be used any more."""
    return replace(first, capture=f"{first.capture}.{number}")


def _agrees(model: ServedModel, tenant: _StoredTenant) -> bool:
    """Is what is stored the model's? Where nothing is stored, or nothing can be compared, nothing is wrong."""
    try:
        for item in _some(model, tenant):
            found = tenant.store.open(item.key)
            if isinstance(found, BlobReader):
                chunk = replace(item.chunk, tail=())
                [record] = model.captured([chunk]).result()
                return _close(found, record, key=item.key)
    except (BlendError, StoreError) as error:
        log.warning("no stored record could be compared", extra=fields(tenant=tenant.name, reason=type(error).__name__))
    return True


def _some(model: ServedModel, tenant: _StoredTenant) -> Iterator[CaptureItem]:
    """Chunks of collections that the model has captured: behind their contexts, and alone as earlier releases did."""
    with tenant.catalog.view() as view:
        rows = view.rows_of(view.chunk_ids(LOOKED_AT))
        passages = view.holding(list(rows.values()), EVERYTHING)
        known = {each.collection for each in passages if view.prefix(each.collection, model=model.fingerprint.digest)}
    passages = [each for each in passages if each.collection in known]
    captures = ChunkCaptures(tenant.name, tenant.catalog, model=model, control=tenant.control)
    for passage, planned in zip(passages, captures.planned(passages), strict=True):
        if item := planned.item():
            yield item
            if not planned.keys.lesser:
                continue
            alone = model.titled(passage.text, passage.title, prefix=planned.keys.behind.prefix)
            assert alone is not None, "it has a context, so it can be said"
            yield CaptureItem(planned.keys.lesser[-1], alone)


def _close(stored: BlobReader, record: Record, *, key: CacheKey) -> bool:
    """Is the stored record as near as its codec keeps records: within twice what packing costs, and rounding?"""
    blob = encode(record, key, terms=Terms(0, precomputed=False))
    packed = decode(read(blob))
    kept = decode(stored)
    if kept.tokens - kept.tail.tokens != record.tokens:
        return False
    return _distance(kept, packed) <= 2 * _distance(packed, record) + ROUNDING


def _distance(one: Record, other: Record) -> float:
    """The difference as a root mean square, relative to the size of the numbers; the worst of the layers.

    `one` may have a tail that `other` has not.
    """
    worst = 0.0
    for a, b in zip(one.layers, other.layers, strict=True):
        if a is None or b is None:
            continue
        for x, y in ((a.keys, b.keys), (a.values, b.values)):
            wide, reference = (
                widen(x[:, : y.shape[1]], one.dtype).astype(np.float64),
                widen(y, other.dtype).astype(np.float64),
            )
            size = float(np.square(reference).mean()) or 1.0
            worst = max(worst, float(np.square(wide - reference).mean() / size) ** 0.5)
    return worst
