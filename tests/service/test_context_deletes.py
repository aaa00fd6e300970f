"""What was computed behind a text is gone when that text is: whatever is deleted, and whoever computes meanwhile."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blend.text.tokenizer import Tokenizer
from retriever.documents import chunk_id
from retriever.filter_condition import EVERYTHING
from retriever.types import Passage
from service.access.principal import Role
from service.documents import chunk_capture, ingest
from service.documents.chunk_capture import CaptureItem
from service.documents.tenants import Tenant
from store.blob import Blob
from store.blob_store import Put
from store.errors import StoreUnavailable
from store.key import CacheKey, Scope
from store.reader import BlobReader
from tests.service.checkpoints import small
from tests.service.serving import Inside, Json, ask, good, in_process, put_in, settings_in, wait_for
from tests.service.test_chunk_contexts import TENANT, emptied, filler, settled, stored, wanted
from tests.service.test_deletes import IN_FILLS, IN_JOBS, passed

MARK = re.compile(r"\d{4}mark")


def text(number: int) -> str:
    """A chunk's text, whose mark stands at both ends: what is before a chunk is cut, and so is a filler's passage."""
    return f"{number:04}mark tells how Selark sold {number} lamps to Dalware in the harbour, and wrote {number:04}mark"


TEXTS = [text(number) for number in range(12)]


@dataclass
class Computed:
    """The marks of all texts that each record was computed of and behind, by what the model was given."""

    tokenizer: Tokenizer
    marks: dict[CacheKey, set[str]] = field(default_factory=dict[CacheKey, "set[str]"])

    def note(self, item: CaptureItem) -> None:
        chunk = item.chunk
        given = self.tokenizer.decode((*chunk.shared, *chunk.before)), self.tokenizer.decode(chunk.all)
        self.marks[item.key] = {*MARK.findall(" ".join(given))}


@contextmanager
def computing(inside: Inside) -> Iterator[Computed]:
    """Notes what is captured while the block runs."""
    computed, packed = Computed(inside.core.model.prompt_builder.tokenizer), chunk_capture._packed

    def noted(item: CaptureItem, *others: object, **named: object) -> object:
        computed.note(item)
        return packed(item, *others, **named)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_capture, "_packed", noted)
        yield computed


def passages(tenant: Tenant) -> list[Passage]:
    """All that serve."""
    with tenant.catalog.view() as view:
        return [passage for each in view.documents(EVERYTHING) for passage in view.passages(each.id)]


COMING = {f"{number:04}mark" for book in (8, 9) for number in range(100 * book, 100 * book + 3)}


def strange(tenant: Tenant, keys: Sequence[CacheKey], *, computed: Computed) -> list[CacheKey]:
    """Those of these records that hold a text which no document of one collection and their own domain has, but for
    what is COMING."""
    living: dict[str, dict[str, set[str]]] = {}
    for each in passages(tenant):
        domain = tenant.captures.chunk(each.id, each.metadata).domain
        living.setdefault(domain, {}).setdefault(each.collection, set()).update(MARK.findall(each.text))
    return [
        key
        for key in keys
        if not any(computed.marks[key] - COMING <= marks for marks in living.get(key.domain, {}).values())
    ]


def served(tenant: Tenant) -> list[CacheKey]:
    """The records that a question would get, of all passages."""
    found = [tenant.caches.stored(keys) for keys in tenant.captures.keys(passages(tenant))]
    return [each.head.key for each in found if isinstance(each, BlobReader)]


@contextmanager
def looked_at(tenant: Tenant, look: Callable[[], None]) -> Iterator[None]:
    """Looks between the commit of each change and what is deleted then."""
    sweep = tenant.sweep

    def swept(*told: float, **kept: Sequence[str]) -> bool:
        look()
        return sweep(*told, **kept)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tenant, "sweep", swept)
        yield


# Steps: documents are put in, each with chunks (number, team or none), a team, a collection and a title; or deleted.
chunks = st.lists(st.tuples(st.integers(0, len(TEXTS) - 1), st.sampled_from(["", "", "", "b"])), min_size=1, max_size=4)
document = st.tuples(chunks, st.sampled_from("aab"), st.sampled_from(["default", "default", "shelf"]), st.booleans())
step = st.dictionaries(st.integers(0, 6), st.one_of(document, document, st.none()), min_size=1, max_size=5)


def as_document(number: int, told: tuple[list[tuple[int, str]], str, str, bool]) -> Json:
    parts, team, _, is_titled = told
    own: list[Json] = [{"text": TEXTS[at], **({"metadata": {"team": other}} if other else {})} for at, other in parts]
    title = f"Book {number}" if is_titled else ""
    return {"id": f"d{number}", "title": title, "chunks": own, "metadata": {"team": team}}


def play(inside: Inside, steps: Sequence[Mapping[int, tuple[list[tuple[int, str]], str, str, bool] | None]]) -> None:
    tenant = inside.core.tenants.open(TENANT)
    with computing(inside) as computed, inside.client() as client:
        emptied(inside)

        def check() -> None:
            assert not strange(tenant, served(tenant), computed=computed)

        with looked_at(tenant, check):
            first = {number: ([(number, ""), (number + 1, "")], "a", "default", True) for number in range(5)}
            for each in (first, *steps):
                for collection in ("default", "shelf"):
                    new = [as_document(n, told) for n, told in each.items() if told and told[2] == collection]
                    if new:
                        assert put_in(client, new, collection=collection)["status"] == "done"
                settled(inside)
                with inside.core.ingest.resting():  # nothing is computed anew
                    for number in [number for number, told in each.items() if told is None]:
                        answer = client.delete(f"/v1/documents/d{number}")
                        assert answer.status_code == 404 or answer.json()["done"]
                        assert not strange(tenant, list(stored(tenant)), computed=computed)
                inside.core.ingest.wake(TENANT)
                settled(inside)
                inside.core.store.flush()
                assert wanted(tenant) <= {*stored(tenant)}
                assert not strange(tenant, list(stored(tenant)), computed=computed)
                assert not wanted(tenant) - computed.marks.keys()


@pytest.fixture(scope="module", params=[False, True], ids=["one domain", "domains"])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """A service without filters, and one whose documents are divided by one."""
    with in_process(settings_in(tmp_path_factory.mktemp("contexts"), model=small())) as inside:
        if request.param:
            inside.core.control.create_key(TENANT, Role.READ, bound={"team": "a"})
        yield inside


QUICKLY = settings(
    deadline=None, max_examples=4, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


@given(steps=st.lists(step, min_size=2, max_size=4))
@QUICKLY
def test_no_record_holds_a_text_that_is_gone(either: Inside, steps: list[Mapping[int, None]]) -> None:
    play(either, steps)


@pytest.mark.long
@given(steps=st.lists(step, min_size=3, max_size=10))
@settings(QUICKLY, max_examples=100)
def test_no_record_holds_a_text_that_is_gone_after_many_changes(
    either: Inside, steps: list[Mapping[int, None]]
) -> None:
    play(either, steps)


@contextmanager
def stored_late(inside: Inside, computed: Computed) -> Iterator[list[CacheKey]]:
    """The records that came into the store when a text in them was gone already."""
    store, tenant, late = inside.core.store, inside.core.tenants.open(TENANT), list[CacheKey]()

    def looked(put: Callable[..., object]) -> Callable[..., object]:
        def putting(blobs: Blob | Sequence[Blob]) -> object:
            puts = put(blobs)
            told = zip(blobs, cast(list[Put], puts), strict=True) if isinstance(blobs, Sequence) else [(blobs, puts)]
            late.extend(strange(tenant, [b.head.key for b, put in told if put is Put.STORED], computed=computed))
            return puts

        return putting

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "put_all", looked(store.put_all))
        patch.setattr(store, "replace", looked(store.replace))
        yield late


def marked_book(number: int, *, chunks: int = 3) -> Json:
    """Of texts that no other book has."""
    parts = [{"text": text(100 * number + at)} for at in range(chunks)]
    return {"id": f"book-{number}", "title": f"Book {number}", "chunks": parts}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with in_process(settings_in(tmp_path_factory.mktemp("deletes"), model=small())) as inside:
        yield inside


@pytest.fixture
def inside(running: Inside) -> Inside:
    """Six books, all captured; nothing is left of the test before."""
    emptied(running)
    with running.client() as client:
        put_in(client, [marked_book(number) for number in range(6)])
    settled(running)
    return running


def delete(inside: Inside, *names: str) -> None:
    with inside.client() as client:
        for name in names:
            assert good(client.delete(f"/v1/documents/{name}"))["done"]


def check_settled(inside: Inside, computed: Computed) -> None:
    """All is captured anew, and holds what is there."""
    wait_for(lambda: inside.core.ingest.waiting_fills == 0, "nothing waits to be filled")
    tenant = settled(inside)
    assert {*stored(tenant)} == wanted(tenant)
    assert not strange(tenant, [key for key in stored(tenant) if key in computed.marks], computed=computed)


def put_book(inside: Inside, number: int = 8) -> None:
    with inside.client() as client:
        good(client.post("/v1/documents", json={"documents": [marked_book(number)]}))


def fill(inside: Inside) -> None:
    tenant = inside.core.tenants.open(TENANT)
    with tenant.catalog.view() as view:
        passages = view.passages("book-5")
    tenant.caches.evict(passages)
    inside.core.ingest.fill(tenant, passages)


def move(inside: Inside) -> None:
    delete(inside, filler(inside.core.tenants.open(TENANT))[0][0])


WAYS = {"a job": (put_book, IN_JOBS), "a fill": (fill, IN_FILLS), "a capture anew": (move, IN_JOBS)}


@pytest.mark.parametrize("when", list(IN_JOBS)[1:4])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_computed_while_its_filler_goes_is_not_kept(inside: Inside, way: str, when: str) -> None:
    """Neither what was begun before, nor what is begun again since it was dropped."""
    begin, places = WAYS[way]
    tenant = inside.core.tenants.open(TENANT)
    with computing(inside) as computed, places[when].gated(inside.core) as gate:
        begin(inside)
        passed(gate)
        with stored_late(inside, computed) as late:
            delete(inside, filler(tenant)[0][0])
            assert not strange(tenant, [key for key in stored(tenant) if key in computed.marks], computed=computed)
            gate.opened.set()
            wait_for(lambda: inside.core.ingest.waiting_fills == 0, "nothing waits to be filled")
            put_book(inside, 9)
            last = {"book-9"} | ({"book-8"} if begin is put_book else set[str]())
            wait_for(lambda: last <= {each.document for each in passages(tenant)}, "all serve")
            if begin is fill:  # it promises nothing: the next question asks again
                fill(inside)
            check_settled(inside, computed)
        assert not late


@pytest.mark.parametrize("when", list(IN_JOBS)[1:4])
def test_what_is_computed_for_a_place_that_goes_is_not_kept(inside: Inside, when: str) -> None:
    """Nor where the chunk has a record of another place, which stays."""
    tenant, shared = inside.core.tenants.open(TENANT), marked_book(5)["chunks"][1]
    with computing(inside) as computed, IN_JOBS[when].gated(inside.core) as gate, inside.client() as client:
        documents = [{"id": "a", "chunks": [{"text": text(800)}, shared]}]  # the first of the places of what is shared
        good(client.post("/v1/documents", json={"documents": documents}))
        passed(gate)
        kept = {*stored(tenant)}
        delete(inside, "a")
        gate.opened.set()
        put_in(client, [marked_book(9)])
        delete(inside, "book-9")
        check_settled(inside, computed)
        assert kept >= {*stored(tenant)}


def test_a_sweep_that_is_broken_off_forgets_no_chunk(inside: Inside) -> None:
    """What went before it broke is captured anew as well."""
    tenant = inside.core.tenants.open(TENANT)
    deleted, deletes = list[Scope](), tenant.store.delete_all

    def breaking(scopes: Sequence[Scope]) -> list[int]:
        deleted.extend(scopes)
        if len(deleted) >= 8:
            raise StoreUnavailable("the medium is away")
        return deletes(scopes)

    with computing(inside) as computed, inside.client() as client:
        with inside.core.ingest.resting(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(tenant.store, "delete_all", breaking)
            assert not good(client.delete(f"/v1/documents/{filler(tenant)[0][0]}"))["done"]
        inside.core.ingest.wake(TENANT)
        check_settled(inside, computed)


def test_with_a_collection_goes_what_was_computed_behind_its_texts(inside: Inside) -> None:
    """The chunks stay where another collection has them, in a document that reads the same."""
    tenant = inside.core.tenants.open(TENANT)
    with computing(inside) as computed, inside.client() as client:
        copies = [{**marked_book(number), "id": f"copy-{number}"} for number in range(3)]
        put_in(client, [*copies, marked_book(50), marked_book(51)], collection="shelf")
        settled(inside)
        before = {*stored(tenant)}
        assert good(client.delete("/v1/collections/shelf"))["done"]
        assert {*stored(tenant)} == wanted(tenant) < before
        check_settled(inside, computed)


def test_where_contexts_are_no_longer_wanted_a_delete_takes_the_old_ones_along(inside: Inside) -> None:
    tenant = inside.core.tenants.open(TENANT)
    with inside.client() as client:
        before, gone = {*stored(tenant)}, [document for document, _ in filler(tenant)]
        good(client.put("/v1/collections/default", json={"in_context": False}))
        delete(inside, gone[0])
        assert not before & {*stored(tenant)} and not filler(tenant)
    tenant = settled(inside)
    assert {*stored(tenant)} == wanted(tenant) and {key.context for key in stored(tenant)} == {""}


def test_what_is_used_most_is_captured_anew_first(inside: Inside) -> None:
    tenant = inside.core.tenants.open(TENANT)
    used = [chunk_id(text(502)), chunk_id(text(401)), chunk_id(text(302))]
    with computing(inside) as computed, inside.client() as client, inside.core.ingest.resting():
        for times, chunk in enumerate(used):
            for _ in range(3 - times):
                ask(client, "Who sold lamps?", chunk_ids=[chunk], sampling={"max_tokens": 1})
        delete(inside, filler(tenant)[0][0])
        for chunk in used:
            assert tenant.recapture(1)
            assert [key.chunk for key in computed.marks] == [chunk]
            computed.marks.clear()


def test_a_restart_after_filler_and_neighbour_are_gone_serves_and_keeps_nothing_of_them(tmp_path: Path) -> None:
    """It was killed between the deletes and what they do to the store."""
    shared = {"text": text(9999)}
    twice = [{**marked_book(n), "chunks": [*marked_book(n)["chunks"], shared]} for n in (6, 7)]
    with (
        in_process(settings_in(tmp_path, model=small())) as inside,
        computing(inside) as computed,
        inside.client() as client,
    ):
        put_in(client, [*(marked_book(number) for number in range(6)), *twice])
        tenant = settled(inside)
        gone = [filler(tenant)[0][0], "book-6"]
        with inside.core.ingest.resting(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(tenant, "sweep", lambda *told, **kept: False)
            for name in gone:
                assert not good(client.delete(f"/v1/documents/{name}"))["done"]
            assert strange(tenant, [*stored(tenant)], computed=computed)
            inside.core.ingest._lines.closing = True  # it goes on with nothing
    with computing(inside) as again, in_process(settings_in(tmp_path, model=small())) as inside:
        tenant = inside.core.tenants.open(TENANT)
        again.marks |= computed.marks
        assert not strange(tenant, served(tenant), computed=again)
        check_settled(inside, again)
        assert {key.chunk for key in stored(tenant)} >= {chunk_id(shared["text"])}


def test_what_has_moved_is_computed_as_soon_as_small_uploads_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for no tidying."""
    monkeypatch.setattr(ingest, "IDLE_S", 1e6)
    with in_process(settings_in(tmp_path, model=small())) as inside, inside.client() as client:
        put_in(client, [marked_book(number) for number in range(6)])
        delete(inside, filler(settled(inside))[0][0])
        assert {*stored(settled(inside))} == wanted(inside.core.tenants.open(TENANT))
