"""Chunks are captured behind passages of their own kind: which these are, and what becomes of records with them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retriever.documents import Document, DocumentPart, chunk_id
from retriever.filter_condition import EVERYTHING
from service.access.principal import Role
from service.documents.chunk_capture import CaptureItem, ChunkCapture, Purpose
from service.documents.chunk_contexts import ContextKey
from service.documents.tenants import Tenant
from service.model.capture_context import CaptureContext, ChunkIds, excerpt
from service.model.prompt_builder import PromptPassage
from service.model.served_model import Ids, ServedModel
from store.blob_store import Put
from store.codec.decode import decode
from store.key import CacheKey, Scope
from store.reader import BlobReader
from tests.service.checkpoints import small
from tests.service.serving import Inside, Json, good, in_process, put_in, settings_in, wait_for

TENANT = "default"


def chunk(document: int, number: int) -> str:
    return (
        f"Page {number} of book {document} tells how Selark {document} sold {number} lamps to Dalware in the harbour."
    )


def book(document: int, *, chunks: int = 3) -> Json:
    parts = [{"text": chunk(document, number)} for number in range(chunks)]
    return {"id": f"book-{document}", "title": f"Book {document}", "chunks": parts}


def settled(inside: Inside, name: str = TENANT) -> Tenant:
    """The tenant, when nothing of it waits to be computed in another context."""
    tenant = inside.core.tenants.open(name)

    def is_settled() -> bool:
        with tenant.catalog.view() as view:
            return not (view.moved(1, swept=False) or view.moved(1, swept=True))

    wait_for(is_settled, "all chunks are captured in their contexts")
    return tenant


def stored(tenant: Tenant) -> dict[CacheKey, int]:
    return {entry.key: entry.nbytes for entry in tenant.store.entries(Scope(TENANT))}


def wanted(tenant: Tenant) -> set[CacheKey]:
    """The keys of all passages that serve."""
    with tenant.catalog.view() as view:
        names = [entry.id for entry in view.documents(EVERYTHING)]
        passages = [passage for name in names for passage in view.passages(name)]
    return {keys.best for keys in tenant.captures.keys(passages)}


def filler(tenant: Tenant, domain: str = "") -> list[tuple[str, str]]:
    with tenant.catalog.view() as view:
        return [(each.document, each.excerpt) for each in view.fillers("default").get(domain, ())]


def emptied(inside: Inside) -> None:
    """Nothing is left of what was put in before."""
    tenant = inside.core.tenants.open(TENANT)
    with inside.client() as client:
        good(client.put("/v1/collections/default", json={}))
        for each in good(client.get("/v1/documents"))["documents"]:
            assert good(client.delete(f"/v1/documents/{each['id']}"))["done"]
    assert not stored(tenant)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with in_process(settings_in(tmp_path_factory.mktemp("one"), codec="lossless", model=small())) as inside:
        yield inside


@pytest.fixture
def inside(running: Inside) -> Inside:
    emptied(running)
    return running


def test_a_record_is_what_is_computed_behind_the_passages_that_its_key_names(inside: Inside) -> None:
    with inside.client() as client:
        put_in(client, [book(number) for number in range(6)])
    tenant = settled(inside)
    assert set(stored(tenant)) == wanted(tenant)

    chosen = filler(tenant)
    assert len({document for document, _ in chosen}) == 4
    for document, number in ((5, 0), (5, 2), (0, 1)):
        text, title = chunk(document, number), f"Book {document}"
        passages = tuple(
            PromptPassage(excerpt(text), f"Book {name[5:]}") for name, text in chosen if text != chunk(document, number)
        )
        before = PromptPassage(chunk(document, number - 1), title) if number else None
        context = CaptureContext(passages, before)
        [key] = [key for key in stored(tenant) if key.chunk == chunk_id(text)]
        assert key.context == context.digest
        prefix = tenant.captures.prefixes(["default"])["default"].prefix
        ids = tenant.model.titled(text, title, context=context, prefix=prefix)
        assert ids and len(ids.shared) > len(prefix) and bool(ids.before) == bool(number)
        found = tenant.store.open(key)
        assert isinstance(found, BlobReader)
        [computed] = tenant.model.engine.capture((*ids.shared, *ids.before), [ids.all]).result()
        for one, other in zip(decode(found).layers, computed.layers, strict=True):
            assert (one is None) == (other is None), "a layer that keeps a state has no keys"
            if one is None or other is None:
                continue
            for ours, theirs in ((one.keys, other.keys), (one.values, other.values)):
                assert np.abs(ours - theirs).max() < 1e-4 * np.abs(theirs).max()


def test_ids_which_take_more_memory_than_texts_are_laid_out_when_a_chunk_is_due(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    with inside.client() as client:
        put_in(client, [book(0)])
    tenant, laid, titled = settled(inside), list[str](), ServedModel.titled

    def note(model: ServedModel, text: str, title: str, *, prefix: Ids, context: CaptureContext) -> ChunkIds | None:
        laid.append(text)
        return titled(model, text, title, prefix=prefix, context=context)

    monkeypatch.setattr(ServedModel, "titled", note)
    parts = tuple(DocumentPart(chunk(1, number)) for number in range(3))
    planned = tenant.captures.planned_with([Document("book-1", parts, "Book 1")], "default")
    assert (len(planned), laid) == (3, [])
    first = next(iter(planned.values())).item()
    assert first and first.chunk.ids and laid == [parts[0].text]


def test_what_came_for_an_old_context_while_that_went_is_computed_anew(inside: Inside) -> None:
    """The store is asked before it comes, and deletes it: nobody else would know that anything lacks."""
    with inside.client() as client:
        put_in(client, [book(0, chunks=1)])
    tenant = settled(inside)
    [best] = wanted(tenant)
    old = replace(best, fingerprint=best.fingerprint[:-1] + ("1" if best.fingerprint.endswith("0") else "0"))
    with inside.core.ingest.resting():
        tenant.store.delete_all([Scope(TENANT, best.chunk)])
        assert tenant.caches.moved([best.chunk]) == ([Scope(TENANT, best.chunk)], {}), (
            "of what was not there none lacks"
        )
        with tenant.caches.computing([old]):
            assert tenant.caches.moved([best.chunk]) == ([Scope(TENANT, best.chunk)], {best.chunk: 0})


def test_the_same_corpus_has_the_same_filler_and_keys_one_by_one_and_together(inside: Inside, tmp_path: Path) -> None:
    with inside.client() as client:
        for number in range(6):
            put_in(client, [book(number)])
    one_by_one = settled(inside)
    with (
        in_process(settings_in(tmp_path / "other", codec="lossless", model=small())) as other,
        other.client() as client,
    ):
        put_in(client, [book(number) for number in range(6)])
        together = settled(other)
        assert filler(together) == filler(one_by_one)
        assert set(stored(together)) == set(stored(one_by_one)) == wanted(together)


def test_a_filler_is_of_several_documents_and_a_later_upload_changes_none(inside: Inside) -> None:
    with inside.client() as client:
        put_in(client, [book(0)])
        assert filler(settled(inside)) == []
        put_in(client, [book(number) for number in range(1, 4)])
        before = filler(settled(inside))
        put_in(client, [book(number) for number in range(4, 9)])
        assert filler(settled(inside)) == before != []


def test_with_a_deleted_filler_all_that_was_captured_behind_it_is_gone_when_the_delete_is(inside: Inside) -> None:
    with inside.client() as client:
        put_in(client, [book(number) for number in range(7)])
        tenant = settled(inside)
        before, gone = set(stored(tenant)), filler(tenant)[0][0]
        assert good(client.delete(f"/v1/documents/{gone}"))["done"]
        assert not before & set(stored(tenant)), "its text is in them"
        tenant = settled(inside)
        assert gone not in {document for document, _ in filler(tenant)}
        assert set(stored(tenant)) == wanted(tenant)


def test_what_stood_behind_a_deleted_chunk_is_captured_anew_and_nothing_else(inside: Inside) -> None:
    """A document is replaced by one that lacks its second chunk: the third stands behind the first then."""
    with inside.client() as client:
        put_in(client, [*(book(number) for number in range(5)), book(9, chunks=12)])
        tenant = settled(inside)
        before = set(stored(tenant))
        edited = book(9, chunks=12)
        edited["chunks"][5] = {"text": "Another sentence stands here now, about tin and about rope."}
        put_in(client, [edited])
        tenant = settled(inside)
    after = set(stored(tenant))
    assert after == wanted(tenant)
    gone, fresh = before - after, after - before
    assert {key.chunk for key in gone} == {chunk_id(chunk(9, 5)), chunk_id(chunk(9, 6))}
    assert len(fresh) == 2


def test_a_text_in_several_documents_is_captured_where_the_first_of_these_has_it(inside: Inside) -> None:
    shared = {"text": "The same words stand in several books, and mean the same wherever they are read."}
    with inside.client() as client:
        put_in(client, [{**book(number), "chunks": [*book(number)["chunks"], shared]} for number in (3, 1, 2, 5, 4)])
        tenant = settled(inside)

        def behind() -> list[str]:
            keys = [key for key in stored(tenant) if key.chunk == chunk_id(shared["text"])]
            own = ContextKey(chunk_id(shared["text"]), "default", "")
            assert [key.context for key in keys] == [tenant.captures.contexts.named([own])[own].digest]
            return [tenant.captures.contexts.named([own])[own].before]

        assert behind() == [chunk_id(chunk(1, 2))]
        good(client.delete("/v1/documents/book-1"))
        settled(inside)
        assert behind() == [chunk_id(chunk(2, 2))]


def test_no_context_holds_what_a_key_of_the_domain_does_not_see(inside: Inside) -> None:
    """A filter divides a collection: fillers are chosen within, and of the chunks of one document as well."""
    with inside.client() as client:
        put_in(client, [{**book(number), "metadata": {"team": "ab"[number % 2]}} for number in range(10)])
        mixed = book(20)
        mixed["metadata"] = {"team": "a"}
        mixed["chunks"][1]["metadata"] = {"team": "b"}
        put_in(client, [mixed])
        settled(inside)
        inside.core.control.create_key(TENANT, Role.READ, bound={"team": "a"})
        tenant = inside.core.tenants.open(TENANT)
        while tenant.renew(1000) is not None:
            pass
        domains = {team: tenant.captures.chunk("", {"team": team}).domain for team in "ab"}
        for team, domain in domains.items():
            documents = {int(document[5:]) for document, _ in filler(tenant, domain)}
            assert len(documents) == 4 and {each % 2 for each in documents} == {"ab".index(team)}
        assert filler(tenant) == []
        own = [ContextKey(chunk_id(chunk(20, number)), "default", domains["aba"[number]]) for number in range(3)]
        assert [tenant.captures.contexts.named(own)[each].before for each in own] == ["", "", ""]


def test_what_an_earlier_release_captured_serves_until_it_is_replaced(inside: Inside) -> None:
    with inside.client() as client:
        put_in(client, [book(number) for number in range(5)])
        tenant = settled(inside)
        with tenant.catalog.view() as view:
            passage = view.passages("book-4")[1]
        [keys] = tenant.captures.keys([passage])
        alone = tenant.model.titled(passage.text, passage.title, prefix=keys.behind.prefix)
        assert alone and keys.lesser[-1].fingerprint == keys.behind.digest
        tenant.store.delete(Scope(TENANT, passage.id))
        capturing = ChunkCapture(tenant.model, tenant.store, purpose=Purpose.JOB)
        assert [each.put for each in capturing.run([CaptureItem(keys.lesser[-1], alone)])] == [Put.STORED]

        found = tenant.caches.stored(keys)
        assert isinstance(found, BlobReader) and found.head.key == keys.lesser[-1]
        put_in(client, [book(5)])
        settled(inside)
        assert isinstance(tenant.caches.stored(keys), BlobReader), "nothing of it is anybody's but its own"
        [item] = tenant.caches.lacking([passage.id])
        assert [each.put for each in capturing.run([item])] == [Put.STORED]
        tenant.caches.supersede(item.key)
    assert {key for key in stored(tenant) if key.chunk == passage.id} == {keys.best}


def test_a_filler_is_shown_and_changed(inside: Inside) -> None:
    with inside.client() as client:
        put_in(client, [book(number) for number in range(5)])
        tenant = settled(inside)
        shown = good(client.get("/v1/collections/default"))["filler"]
        assert [each["document_id"] for each in shown] == [document for document, _ in filler(tenant)]
        named = [chunk_id(chunk(4, 2)), chunk_id(chunk(1, 0))]
        changed = good(client.put("/v1/collections/default", json={"filler": named}))
        assert [each["chunk_id"] for each in changed["filler"]] == named
        settled(inside)
        assert set(stored(tenant)) == wanted(tenant)
        refused = client.put("/v1/collections/default", json={"filler": ["0" * 32]})
        assert refused.status_code == 409 and "0" * 32 in refused.text
        assert good(client.put("/v1/collections/default", json={"filler": []}))["filler"] == shown
