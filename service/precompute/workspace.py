"""All that a run over a corpus needs, open while it runs. Starts no service."""

import fcntl
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from retriever.contract.catalog import Catalog
from service.access.control import Control
from service.access.errors import AccessError
from service.access.move import CONTROL
from service.access.private import private_file, private_folder, write_for_owner_only
from service.access.spelling import check_spelling
from service.app.composition import compose_store, compose_tenants
from service.corpus.collection_rules import CollectionRules
from service.corpus.tenants import TENANTS
from service.errors import Invalid
from service.precompute.file_group import Target
from service.settings import Settings


@contextmanager
def open_workspace(
    settings: Settings, name: str, *, collection: str = "default", chunk_tokens: int = 0, shard: bool = False
) -> Generator[Target]:
    """All that a run needs. A service may run on the same folder; a second run on the same tenant may not.

    Shards may run beside each other. `chunk_tokens` is for a new collection; 0 for what the settings say.
    """
    check_spelling(name)
    with ExitStack() as stack:
        write_for_owner_only()
        folder = settings.data / TENANTS / name
        private_folder(settings.data)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = folder / "precompute.lock"
        private_file(lock)
        held = stack.enter_context(lock.open("rb"))
        try:
            fcntl.flock(held, (fcntl.LOCK_SH if shard else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AccessError(f"another precompute works for tenant {name!r}: wait for its end") from None
        control = Control(settings.data / CONTROL)
        stack.callback(control.close)
        store = stack.enter_context(compose_store(settings))
        tenants = compose_tenants(settings, store, control=control)
        stack.callback(tenants.close)
        tenant = tenants.open(name)
        rules = _rules(tenant.catalog, collection, wanted=chunk_tokens, usual=settings.chunk_tokens)
        yield Target(tenant, collection, rules, settings.store)
        if not shard:
            tenant.library.maintain()


def _rules(catalog: Catalog, collection: str, *, wanted: int, usual: int) -> CollectionRules:
    """The rules of the collection, if it is there: all its documents are cut alike, whoever puts them in."""
    with catalog.view() as view:
        found = view.collection(collection)
    if found is None:
        return CollectionRules(wanted or usual)
    rules = CollectionRules.from_json(found.rules)
    if wanted not in (0, rules.chunk_tokens):
        raise Invalid(
            f"--chunk-tokens: the collection {collection!r} is cut to {rules.chunk_tokens} tokens, not {wanted}: "
            f"leave it out, or change the collection by PUT /v1/collections/{collection}"
        )
    return rules
