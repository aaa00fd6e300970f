"""Opens catalog, store and model for a run over a corpus; refuses another chunk size than the collection's."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from service.access.principal import check_spelling
from service.access.private import write_for_owner_only
from service.app.compose_truth import compose_truth
from service.app.composition import compose_store, compose_tenants
from service.documents.collection_rules import CollectionRules
from service.documents.file_group import Target
from service.documents.tenants import Tenant
from service.errors import Invalid
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
        truth = compose_truth(settings)
        stack.callback(truth.close)
        stack.enter_context(truth.precompute(name, shared=shard))
        control = truth.control()
        stack.callback(control.close)
        store = stack.enter_context(compose_store(settings))
        tenants = compose_tenants(settings, store, control=control, truth=truth)
        stack.callback(tenants.close)
        lacks = "" if shard else tenants.libraries.load_now(tenants.serving)
        tenant = tenants.open(name)
        rules = _rules(tenant, collection, wanted=chunk_tokens, usual=settings.chunk_tokens)
        yield Target(tenant, collection, rules, settings.store, lacks)
        if not shard:
            tenant.library.maintain()


def _rules(tenant: Tenant, collection: str, *, wanted: int, usual: int) -> CollectionRules:
    """The rules of the collection, if it is there: all its documents are cut alike, whoever puts them in."""
    with tenant.catalog.view() as view:
        found = view.collection(collection)
    if found is None:
        return CollectionRules(wanted or usual, tenant.model.system)
    rules = CollectionRules.from_json(found.rules)
    if wanted not in (0, rules.chunk_tokens):
        raise Invalid(
            f"--chunk-tokens: the collection {collection!r} is cut to {rules.chunk_tokens} tokens, not {wanted}: "
            f"leave it out, or change the collection by PUT /v1/collections/{collection}"
        )
    return rules
