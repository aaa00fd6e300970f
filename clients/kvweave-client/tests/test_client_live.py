"""Every operation of both clients against a service that runs. What one does, the other does: it is written once."""

import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

import kvweave_client as kv
from kvweave_client import operations
from kvweave_client.options import NewDocument

Connect = Callable[..., Any]

QUESTION = "Which animal does Halio keep?"
LETTER = "Halio lives in K7. Halio keeps a badger. Norworks was founded by the captain."
DOCUMENTS: list[dict[str, Any]] = [
    {"id": "letter/40", "title": "Letter 40", "text": LETTER, "metadata": {"year": 1840}},
    {"id": "ledger 33", "text": "Norworks makes lamps. It is led by Rosen.", "metadata": {"year": 1833}},
]
ASKED = [{"role": "user", "content": f"{LETTER}\n\nQuestion: {QUESTION}"}]
WAIT_S = 60


@dataclass(frozen=True, slots=True)
class World:
    """A client, and a collection with `DOCUMENTS` that no test changes; `chunk` is the first one's.

    What tests put in goes into another one, `own`.
    """

    caller: Any
    collection: str
    chunk: str

    @property
    def own(self) -> str:
        return f"{self.collection}-own"

    def do(self, name: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        return self.caller.do(name, *arguments, **options)

    def named(self, name: str) -> str:
        """An id that no other client has: ids are those of the tenant."""
        return f"{self.collection}/{name}"

    def put(self, name: str) -> kv.Job:
        """A document with a text of its own; returns when it serves."""
        new: NewDocument = {"id": self.named(name), "text": f"{self.collection}: {name}.", "metadata": {"n": 1}}
        accepted = self.do("put_documents", [new], collection=self.own)
        assert accepted.documents == (self.named(name),)
        return self.do("wait", accepted.job_id, timeout_s=WAIT_S)


@pytest.fixture(scope="module")
def world(service: Any, kind: str, connect_once: Connect) -> Iterator[World]:  # noqa: ANN401
    caller = connect_once(service.base_url, api_key=service.key)
    world = World(caller, f"live-{kind}-{os.getpid()}", "")
    documents = [{**each, "id": world.named(each["id"])} for each in DOCUMENTS]
    caller.do("wait", caller.do("put_documents", documents, collection=world.collection).job_id, timeout_s=WAIT_S)
    [chunk] = caller.do("chunks", documents[0]["id"])
    yield replace(world, chunk=chunk.chunk_id)
    for name in (world.collection, world.own):
        caller.do("delete_collection", name)


def health(world: World) -> None:
    assert world.do("health").status == "ok"


def ready(world: World) -> None:
    assert world.do("ready").status == "ready"


def stats(world: World) -> None:
    found = world.do("stats")
    assert found.documents >= len(DOCUMENTS)
    assert found.served is not None
    assert found.store[0].bytes > 0


def models(world: World) -> None:
    [model] = world.do("models")
    assert model.max_model_len > 0


def search(world: World) -> None:
    hits = world.do("search", QUESTION, collection=world.collection, top_k=2)
    first, *_ = hits
    assert hits.relevance.found and hits.relevance.best >= hits.relevance.floor and hits.note == ""
    assert (first.chunk_id, first.title, first.text) == (world.chunk, "Letter 40", LETTER)
    assert world.do("search", QUESTION, collection=world.collection, filter={"year": {"$gt": 1900}}) == ()


def rerank(world: World) -> None:
    with pytest.raises(kv.BadRequest, match="no reranker is configured"):  # `test_client.py` has what one says
        world.do("rerank", QUESTION, documents=["Nothing of the kind.", "Halio keeps a badger."], top_n=1)


def query(world: World) -> None:
    answer = world.do("query", QUESTION, collection=world.collection, blend={"policy": "reuse"})
    assert answer.answer == "badger"
    assert answer.sources[0].document_id == world.named("letter/40")
    assert answer.usage.reused_tokens > 0
    assert {each.source for each in answer.report.chunks} != {"computed"}


def stream_query(world: World) -> None:
    chat = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Yes?"}]
    chat.append({"role": "user", "content": QUESTION})
    retrieved, *events, answer = world.do("stream_query", chat, collection=world.collection)
    assert isinstance(retrieved, kv.Retrieved)
    assert retrieved.sources == answer.sources
    assert "".join(each.text for each in events if isinstance(each, kv.Token)) == answer.answer == "badger"


def chat(world: World) -> None:
    answer = world.do("chat", ASKED, temperature=0, blend={"policy": "reuse"})
    assert answer.text == "badger"
    assert answer.usage.reused_tokens > 0  # recognised in the message
    short = [{"role": "user", "content": f"Question: {QUESTION}"}]
    by_id = world.do("chat", short, temperature=0, chunk_ids=[world.chunk], logprobs=True, top_logprobs=2)
    assert by_id.text == "badger"
    assert "".join(each.token for each in by_id.logprobs) == "badger"
    assert len(by_id.logprobs[0].top_logprobs) == 2


def stream_chat(world: World) -> None:
    *deltas, answer = world.do("stream_chat", ASKED, temperature=0)
    assert "".join(each.text for each in deltas) == answer.text == "badger"
    assert answer.usage.prompt_tokens > answer.usage.reused_tokens > 0


def put_documents(world: World) -> None:
    new: NewDocument = {"id": world.named("cut"), "chunks": [{"id": "n", "text": "Mira keeps a cat."}]}
    accepted = world.do("put_documents", [new], collection=world.own)
    world.do("wait", accepted.job_id, timeout_s=WAIT_S)
    assert [(each.name, each.text) for each in world.do("chunks", world.named("cut"))] == [("n", "Mira keeps a cat.")]


def upload_files(world: World) -> None:
    told: list[tuple[int, int]] = []
    name = f'{world.collection} "ö \\ 🦡".md'
    accepted = world.do(
        "upload_files",
        [kv.File(b"# Cats\n\nMira keeps a cat.", name)],
        collection=world.own,
        progress=lambda sent, total: told.append((sent, total)),
    )
    assert accepted.files == (name,)
    assert told[-1][0] == told[-1][1]
    world.do("wait", accepted.job_id, timeout_s=WAIT_S)
    assert [each.text for each in world.do("chunks", name)] == ["# Cats\n\nMira keeps a cat."]


def documents(world: World) -> None:
    ids = [world.named("ledger 33"), world.named("letter/40")]
    assert [each.id for each in world.do("documents", collection=world.collection)] == ids
    found = world.do("documents", collection=world.collection, filter={"year": 1833})
    assert [each.id for each in found] == ids[:1]


def document(world: World) -> None:
    found = world.do("document", world.named("letter/40"))
    assert (found.title, found.collection, found.metadata, found.chunks) == (
        "Letter 40",
        world.collection,
        {"year": 1840},
        1,
    )
    with pytest.raises(kv.NotFound, match="there is no document"):
        world.do("document", world.named("nope"))


def put_document(world: World) -> None:
    world.put("replaced")
    accepted = world.do("put_document", world.named("replaced"), text="Mira keeps an otter.", metadata={"n": 2})
    world.do("wait", accepted.job_id, timeout_s=WAIT_S)
    assert [each.text for each in world.do("chunks", world.named("replaced"))] == ["Mira keeps an otter."]
    assert world.do("document", world.named("replaced")).collection == world.own


def patch_document(world: World) -> None:
    world.put("patched")
    found = world.do("patch_document", world.named("patched"), {"n": None, "place": "Belford"})
    assert found.metadata == {"place": "Belford"}


def delete_document(world: World) -> None:
    world.put("gone")
    [chunk] = world.do("chunks", world.named("gone"))
    gone = world.do("delete_document", world.named("gone"))
    assert (gone.chunks_removed, gone.done) == ((chunk.chunk_id,), True)
    with pytest.raises(kv.NotFound) as again:
        world.do("delete_document", world.named("gone"))
    assert not hasattr(again.value, "__notes__")


def chunks(world: World) -> None:
    [chunk] = world.do("chunks", world.named("letter/40"))
    assert (chunk.place, chunk.text, chunk.start, chunk.end, chunk.state) == (0, LETTER, 0, len(LETTER), "stored")


def collections(world: World) -> None:
    assert world.collection in [each.name for each in world.do("collections")]


def collection(world: World) -> None:
    found = world.do("collection", world.collection)
    assert (found.name, found.documents) == (world.collection, 2)


def put_collection(world: World) -> None:
    name = f"{world.collection}-ruled"
    found = world.do("put_collection", name, chunk_tokens=64, system="Be brief.")
    assert (found.chunk_tokens, found.system, found.documents) == (64, "Be brief.", 0)
    world.do("delete_collection", name)


def delete_collection(world: World) -> None:
    name = f"{world.collection}-gone"
    world.do("put_collection", name)
    assert world.do("delete_collection", name).done
    with pytest.raises(kv.NotFound, match="there is no collection"):
        world.do("delete_collection", name)


def jobs(world: World) -> None:
    assert world.put("listed").id in [each.id for each in world.do("jobs")]


def job(world: World) -> None:
    found = world.do("job", world.put("looked at").id)
    assert (found.status, found.is_over, found.stored) == ("done", True, 1)


def job_items(world: World) -> None:
    [item] = world.do("job_items", world.put("itemised").id)
    assert (item.document, item.collection, item.state) == (world.named("itemised"), world.own, "ready")


def follow_job(world: World) -> None:
    accepted = world.do("put_documents", [{"text": "Mira keeps a cat."}], collection=world.own)
    followed = world.do("follow_job", accepted.job_id)
    assert followed[-1].status == "done"
    assert {each.id for each in followed} == {accepted.job_id}


def cancel_job(world: World) -> None:
    assert world.do("cancel_job", world.put("over").id).status == "done"  # what is over stays as it is
    many: list[NewDocument] = [{"text": f"Mira keeps {number} cats."} for number in range(200)]
    accepted = world.do("put_documents", many, collection=world.own)
    assert world.do("cancel_job", accepted.job_id).status == "cancelled"
    with pytest.raises(kv.JobFailed, match="was cancelled"):
        world.do("wait", accepted.job_id, timeout_s=WAIT_S)


def lookup(world: World) -> None:
    states = world.do("lookup", collection=world.collection)
    assert [each.state for each in states] == ["stored", "stored"]
    assert world.do("lookup", chunk_ids=["0" * 32]) == []


def prefetch(world: World) -> None:
    assert world.do("prefetch", chunk_ids=[world.chunk]).chunks == 1


def pin(world: World) -> None:
    assert world.do("pin", document_ids=[world.named("letter/40")]).blobs == 1
    assert world.do("unpin", document_ids=[world.named("letter/40")]).blobs == 1


unpin = pin


def evict(world: World) -> None:
    world.put("evicted")
    [chunk] = world.do("chunks", world.named("evicted"))
    touched = world.do("evict", chunk_ids=[chunk.chunk_id, "0" * 32])
    assert (touched.blobs, touched.unknown) == (1, ("0" * 32,))
    [state] = world.do("lookup", chunk_ids=[chunk.chunk_id])
    assert state.state != "stored"


def end_session(world: World) -> None:
    told = [world.do("chat", ASKED, temperature=0, session="a/b", session_keep_s=60) for _ in range(2)]
    assert [each.text for each in told] == ["badger"] * 2
    assert world.do("end_session", "a/b") is None
    assert world.do("end_session", "a/b") is None, "what has ended may be ended again"


def blend_switch(world: World) -> None:
    before = world.do("blend_switch")
    try:
        assert world.do("put_blend_switch", enabled=True, share=0.5).share == 0.5
        assert world.do("blend_switch").share == 0.5
    finally:
        assert world.do("put_blend_switch", enabled=before.enabled, share=before.share) == before


put_blend_switch = blend_switch

OPERATIONS = sorted(
    name
    for name, build in inspect.getmembers(operations, inspect.isfunction)
    if build.__module__ == operations.__name__ and not name.startswith("_")
)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_does_what_it_says(world: World, operation: str) -> None:
    globals()[operation](world)


def test_a_key_that_is_none_is_refused(service: Any, connect: Connect) -> None:  # noqa: ANN401
    with pytest.raises(kv.Unauthorized, match="401: the key is not known"):
        connect(service.base_url, api_key="kvw_nobody_nothing").do("stats")


def test_what_is_wrong_with_a_request_is_told_by_its_field(service: Any, connect: Connect) -> None:  # noqa: ANN401
    caller = connect(service.base_url, api_key=service.key)
    with pytest.raises(kv.BadRequest) as refused:
        caller.do("search", "x", top_k=0)
    assert [each.field for each in refused.value.problem.errors] == ["top_k"]
    with pytest.raises(kv.BadRequest) as refused:
        caller.do("chat", ASKED, top_p=7)
    assert [each.field for each in refused.value.problem.errors] == ["top_p"]


def test_documents_that_are_put_in_twice_are_there_once(world: World, collection: str) -> None:
    """So that a lost answer may be asked for again."""
    again: list[NewDocument] = [{"text": "Mira keeps a cat."}]
    first = world.do("put_documents", again, collection=collection)
    second = world.do("put_documents", again, collection=collection)
    for accepted in (first, second):
        world.do("wait", accepted.job_id, timeout_s=WAIT_S)
    assert first.documents == second.documents
    assert [each.id for each in world.do("documents", collection=collection)] == [*first.documents]
