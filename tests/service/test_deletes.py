"""A deleted document is gone from every place, also when the delete came between a compute and its write."""

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.app import composition
from service.app.core import Core
from service.documents import chunk_capture, ingest, ingestion
from store.blob_store import BlobStore
from store.key import Scope
from tests.retriever.fakes import WordEmbedder
from tests.servers.s3 import S3Server
from tests.service.checkpoints import small
from tests.service.faulty import Gate
from tests.service.serving import WAIT_S, Inside, Json, ask, finished, good, in_process, put_in, settings_in, wait_for

SECRET = "Quaxilor"
QUESTION = f"Which animal does {SECRET} keep?"
TEXT = f"{SECRET} lives in K7. {SECRET} keeps a badger."
OTHERS = [f"{SECRET} sells lamps in shop {number}. The ink is still easy to read." for number in range(3)]
HARMLESS = {"id": "harmless", "text": "Norworks makes lamps. The next page is about Selark."}
TENANT = "default"


class FirstHeld(Gate):
    """A gate that whoever comes first waits at, before or behind what they came for."""

    def wait(self) -> None:
        if not self.reached.is_set():
            self.pass_through()

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def gated(*args: object, **named: object) -> object:
            self.wait()
            return call(*args, **named)

        return gated

    def behind(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def gated(*args: object, **named: object) -> object:
            answer = call(*args, **named)
            self.wait()
            return answer

        return gated


@dataclass(frozen=True, slots=True)
class Place:
    """Where the work on a chunk is held: a method of the store or of the engine."""

    owner: str
    method: str
    holds: str = "before"

    @contextmanager
    def gated(self, core: Core) -> Iterator[FirstHeld]:
        owner = core.store if self.owner == "store" else core.model.engine
        gate = FirstHeld()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, self.method, getattr(gate, self.holds)(getattr(owner, self.method)))
            try:
                yield gate
            finally:
                gate.opened.set()


# In the order in which the work on a chunk comes by. Between the second and the fourth a computing is on its way.
IN_JOBS = {
    "before it begins": Place("store", "epoch"),
    "as it begins": Place("store", "epoch", "behind"),
    "before it is computed": Place("engine", "capture"),
    "before it is written": Place("store", "put_all"),
    "when it is written": Place("store", "put_all", "behind"),
}
BETWEEN = {"as it begins": IN_JOBS["as it begins"], "before it is written": IN_JOBS["before it is written"]}
IN_FILLS = {when: Place(p.owner, p.method.replace("put_all", "replace"), p.holds) for when, p in IN_JOBS.items()}


@pytest.fixture(scope="module", params=["near", pytest.param("s3", marks=pytest.mark.long)])
def running(
    request: pytest.FixtureRequest, server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Inside]:
    folder = tmp_path_factory.mktemp("deletes")
    store = f"tiered:mem://|lmdb://{folder}/store"
    if request.param == "s3":
        store += f"|{server.url(f'deletes-{folder.name}')}"
    with in_process(settings_in(folder, store=store, model=small())) as inside:
        yield inside


@pytest.fixture
def client(running: Inside, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """Nothing is left of the test before. Jobs look after their end as seldom as they may, and compute one by one."""
    monkeypatch.setattr(ingestion, "PROGRESS_S", 1e9)
    monkeypatch.setattr(chunk_capture, "BATCH_CHUNKS", 1)
    with running.client() as client:
        for each in good(client.get("/v1/documents"))["documents"]:
            assert good(client.delete(f"/v1/documents/{each['id']}"))["done"]
        yield client


def draft(name: str, *texts: str) -> Json:
    """A document of chunks."""
    return {"id": name, "chunks": [{"text": text} for text in texts]}


def accepted(client: httpx.Client, *documents: Json) -> str:
    return good(client.post("/v1/documents", json={"documents": documents}))["job_id"]


def passed(gate: FirstHeld) -> None:
    assert gate.reached.wait(WAIT_S), "nobody came by the gate"


def deleted(client: httpx.Client, *names: str) -> None:
    for name in names:
        assert good(client.delete(f"/v1/documents/{name}"))["done"]


def settled(client: httpx.Client, core: Core) -> None:
    """What was begun before is at its end: the worker works on one thing at a time."""
    wait_for(lambda: core.ingest.waiting_fills == 0, "no fill waits")
    put_in(client, [HARMLESS])
    deleted(client, "harmless")
    core.store.flush()


def blobs(store: BlobStore) -> list[str]:
    """Of any tier."""
    return [entry.key.text for tier in store.tiers for entry in tier.entries(Scope(TENANT))]


def check_gone(client: httpx.Client, core: Core, chunks: Sequence[str]) -> None:
    """No place knows anything of it."""
    settled(client, core)
    assert good(client.post("/v1/search", json={"query": TEXT}))["hits"] == []
    assert good(client.get("/v1/documents"))["documents"] == []
    with core.tenants.open(TENANT).catalog.view() as view:
        assert view.counts().chunks == 0 and view.rows_of(chunks) == {} and view.unswept(10) == []
    assert blobs(core.store) == []
    if chunks:
        assert good(client.post("/v1/cache/lookup", json={"chunk_ids": chunks}))["unknown"] == list(chunks)
        assert client.post("/v1/query", json={"question": QUESTION, "chunk_ids": chunks}).status_code == 404
    pasted = {"model": "default", "messages": [{"role": "user", "content": TEXT}], "max_tokens": 1}
    assert good(client.post("/v1/chat/completions", json=pasted))["kvweave"]["report"]["chunks"] == []
    assert "no documents" in client.post("/v1/query", json={"question": QUESTION}).json()["detail"]


def chunk_ids(client: httpx.Client, name: str) -> list[str]:
    return [each["chunk_id"] for each in good(client.get(f"/v1/documents/{name}/chunks"))["chunks"]]


@pytest.mark.parametrize("place", IN_JOBS.values(), ids=IN_JOBS)
def test_a_document_deleted_while_its_job_computes_leaves_nothing(
    running: Inside, client: httpx.Client, place: Place
) -> None:
    with place.gated(running.core) as gate:
        job = accepted(client, draft("a", TEXT, *OTHERS))
        passed(gate)
        deleted(client, "a")
    assert finished(client, job)["items"][0]["state"] == "deleted"
    check_gone(client, running.core, [])


@pytest.mark.parametrize("place", BETWEEN.values(), ids=BETWEEN)
def test_a_job_cancelled_while_it_computes_leaves_nothing(running: Inside, client: httpx.Client, place: Place) -> None:
    with place.gated(running.core) as gate:
        job = accepted(client, draft("a", TEXT, *OTHERS))
        passed(gate)
        assert good(client.delete(f"/v1/jobs/{job}"))["status"] == "cancelled"
    check_gone(client, running.core, [])


@pytest.mark.parametrize("place", BETWEEN.values(), ids=BETWEEN)
def test_of_two_documents_with_one_chunk_the_one_that_stays_keeps_it(
    running: Inside, client: httpx.Client, place: Place
) -> None:
    with place.gated(running.core) as gate:
        job = accepted(client, draft("a", TEXT, *OTHERS), draft("b", TEXT))
        passed(gate)
        deleted(client, "a")
    assert [each["state"] for each in finished(client, job)["items"]] == ["deleted", "ready"]
    settled(client, running.core)
    chunks = chunk_ids(client, "b")
    assert {text.split("/")[1] for text in blobs(running.core.store)} == set(chunks)
    assert [each["source"] for each in ask(client, QUESTION)["report"]["chunks"]] != ["computed"]
    deleted(client, "b")
    check_gone(client, running.core, chunks)


@pytest.mark.parametrize("place", BETWEEN.values(), ids=BETWEEN)
def test_a_version_that_is_replaced_while_it_computes_leaves_nothing(
    running: Inside, client: httpx.Client, place: Place
) -> None:
    with place.gated(running.core) as gate:
        first = accepted(client, draft("a", TEXT, *OTHERS))
        passed(gate)
        second = accepted(client, draft("a", OTHERS[0]))
    assert finished(client, first)["items"][0]["state"] == "superseded"
    assert finished(client, second)["status"] == "done"
    settled(client, running.core)
    chunks = chunk_ids(client, "a")
    assert {text.split("/")[1] for text in blobs(running.core.store)} == set(chunks)
    deleted(client, "a")
    check_gone(client, running.core, chunks)


@pytest.mark.parametrize("sharing", ["both go", "one stays"])
@pytest.mark.parametrize("place", IN_FILLS.values(), ids=IN_FILLS)
def test_a_document_deleted_while_a_query_fills_its_chunk_leaves_nothing(
    running: Inside, client: httpx.Client, place: Place, sharing: str
) -> None:
    put_in(client, [draft("a", TEXT), draft("b", TEXT)])
    chunks = chunk_ids(client, "a")
    assert good(client.post("/v1/cache/evict", json={"chunk_ids": chunks}))["blobs"] == 1
    with place.gated(running.core) as gate:
        assert [each["miss_reason"] for each in ask(client, QUESTION)["report"]["chunks"]] == ["evicted"]
        passed(gate)
        deleted(client, *(["a"] if sharing == "one stays" else ["a", "b"]))
    if sharing == "one stays":
        settled(client, running.core)
        assert {text.split("/")[1] for text in blobs(running.core.store)} == set(chunks)
        deleted(client, "b")
    check_gone(client, running.core, chunks)


def test_a_collection_deleted_while_it_is_computed_leaves_nothing(running: Inside, client: httpx.Client) -> None:
    with IN_JOBS["before it is written"].gated(running.core) as gate:
        body = {"documents": [draft("a", TEXT), draft("b", *OTHERS)], "collection": "shelf"}
        job = good(client.post("/v1/documents", json=body))["job_id"]
        passed(gate)
        assert good(client.delete("/v1/collections/shelf"))["done"]
    assert finished(client, job)["uploads"] == {"deleted": 2}
    check_gone(client, running.core, [])


@pytest.mark.parametrize("kind", ["letter.txt", "letters.jsonl"])
def test_a_delete_outlives_an_older_file_with_the_same_document(
    running: Inside, client: httpx.Client, kind: str
) -> None:
    name = "letter.txt"
    put_in(client, [draft(name, TEXT)])
    content = TEXT.encode() if kind == name else b'{"id": "letter.txt", "text": "%s"}' % TEXT.encode()
    with IN_JOBS["before it is written"].gated(running.core) as gate:
        first = accepted(client, HARMLESS)
        passed(gate)
        second = good(client.post("/v1/documents", files={"files": (kind, content)}))["job_id"]
        deleted(client, name)
    finished(client, first)
    finished(client, second)
    check_gone(client, running.core, [])


def test_no_byte_of_a_deleted_document_is_left_in_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the data folder and of the store, the index of vectors among them, spools, and the log."""
    embedder = WordEmbedder()
    monkeypatch.setattr(composition, "compose_embedder", lambda settings: embedder)
    monkeypatch.setattr(ingest, "IDLE_S", 0.05)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (
        logged(tmp_path / "service.log"),
        in_process(settings_in(tmp_path, model=small())) as inside,
        inside.client() as client,
    ):
        put_in(client, [draft("kept", *OTHERS[:1]), HARMLESS])
        put_in(client, [{**draft("a", TEXT), "title": "Zorbulax", "metadata": {"by": "Pimwick"}}])
        [halves] = embedder.passages([TEXT]).astype("<f2")
        vector = halves.astype("<f4").tobytes()
        wait_for(lambda: vector in _indexed(tmp_path), "the index is written")
        marks = [b"lives in K7", b"Zorbulax", b"Pimwick", b"badger", vector, halves.tobytes()]
        put_in(client, [{"id": "a", "text": "Trundel keeps it."}])
        marks += [b"Trundel", b"trundel", b"zorbulax"]
        for name, text in FILES.items():
            content = text.encode() + 30_000 * b" \n"
            finished(client, good(client.post("/v1/documents", files={"files": (name, content)}))["job_id"])
        marks += [b"Oxbrille", b"oxbrille", b"Wimbolt", b"wimbolt"]
        marks += [b"Quendrik", b"quendrik", b"Velmar", b"velmar"]
        waiting, put, gone = (_file(client, f"{name}.txt") for name in ("Velmar", "Velmar put", "Velmar gone"))
        for file in (put, gone):
            good(client.post("/v1/vector_stores/vs_default/files", json={"file_id": file}))
            wait_for(lambda file=file: _is_in(client, file), "the file serves")
        good(client.delete(f"/v1/vector_stores/vs_default/files/{put}"))
        for file in (waiting, put, gone):
            good(client.delete(f"/v1/files/{file}"))
        ask(client, "Who keeps Oxbrille?", stream=False)
        pasted = {"model": "default", "messages": [{"role": "user", "content": TEXT}], "max_tokens": 1}
        good(client.post("/v1/chat/completions", json=pasted))
        [*listed] = (each["id"] for each in good(client.get("/v1/documents"))["documents"])
        deleted(client, *(each for each in listed if each not in ("kept", "harmless")))
        wait_for(lambda: not _found(tmp_path, marks), "no file holds a word of it")
        assert ask(client, "Which lamps?")["sources"]
        [kept] = embedder.passages(OTHERS[:1]).astype("<f2").astype("<f4")
        assert kept.tobytes() in _indexed(tmp_path)
    assert not _found(tmp_path, marks)
    assert not [str(place) for place in tmp_path.rglob("*") if place.stat().st_mode & 0o077]


def _file(client: httpx.Client, name: str) -> str:
    """An uploaded file that is in no vector store yet."""
    sent = {"file": (name, f"Quendrik writes {name} to nobody.".encode())}
    return good(client.post("/v1/files", files=sent, data={"purpose": "assistants"}))["id"]


def _is_in(client: httpx.Client, file: str) -> bool:
    return good(client.get(f"/v1/vector_stores/vs_default/files/{file}"))["status"] == "completed"


FILES = {
    "letter.txt": "Oxbrille stays with Wimbolt.",
    "letter.md": "# Wimbolt\n\nOxbrille is a badger.",
    "letters.jsonl": '{"id": "line", "text": "Wimbolt keeps Oxbrille."}',
}


@contextmanager
def logged(file: Path) -> Iterator[None]:
    """Writes what the service logs at the level INFO into the file."""
    file.touch(mode=0o600)
    handler = logging.FileHandler(file)
    root = logging.getLogger()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(root, "handlers", [*root.handlers, handler])
        patch.setattr(root, "level", logging.INFO)
        try:
            yield
        finally:
            handler.close()


def _indexed(folder: Path) -> bytes:
    """What the file of the index holds."""
    return b"".join(content for name, content in _contents(folder).items() if name.endswith(".faiss"))


def _contents(folder: Path) -> dict[str, bytes]:
    """All files, but those that went while they were looked at."""
    found: dict[str, bytes] = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError, IsADirectoryError):
            found[str(path)] = path.read_bytes()
    return found


def _found(folder: Path, marks: Sequence[bytes]) -> list[tuple[str, bytes]]:
    return [(name, mark) for name, content in _contents(folder).items() for mark in marks if mark in content]
