"""Small documents that are worked on together: what becomes of each is what becomes of it alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blend.errors import TokenizerError
from retriever.catalog.view import CatalogView
from retriever.embedders.embedding import Vectors
from retriever.errors import EmbeddingError
from retriever.upload_types import QueuedUpload, UploadState
from service.access.principal import Role
from service.app import composition
from service.documents import chunk_capture, ingest, ingestion
from service.documents.ingestion import Ingestion
from service.model.served_model import Ids, ServedModel
from store.errors import StoreUnavailable
from store.key import Scope
from tests.retriever.fakes import WordEmbedder
from tests.service.checkpoints import small
from tests.service.demo_served import NEW, demo
from tests.service.serving import Inside, Json, finished, good, in_process, put_in, settings_in, wait_for
from tests.service.test_deletes import IN_JOBS, Place, passed

TEXTS = [f"{who} keeps a {what} in K{at}." for at, (who, what) in enumerate(zip("ABCDEF", "abcdef", strict=True))]
FEW = settings(max_examples=3, deadline=None, derandomize=True)  # each takes a tenant or two
MANY = settings(max_examples=60, deadline=None)
LENGTHS = pytest.mark.parametrize("length", [FEW, pytest.param(MANY, marks=pytest.mark.long)], ids=["few", "many"])
LAST = "Nothing else was noted."
FAULTS = ["uncut", "cursed", "strange", "poison", "unsaid"]


class Poisoned(WordEmbedder):
    """Refuses some texts for good."""

    def passages(self, texts: Sequence[str]) -> Vectors:
        if any("poison" in text for text in texts):
            raise EmbeddingError("the text is poison", temporary=False)
        return super().passages(texts)


def faulty(patch: pytest.MonkeyPatch) -> None:
    """A service that fails, each time in another step, at texts that name the fault."""
    counted, ids = ServedModel.counted, ServedModel.ids

    def counting(model: ServedModel, texts: Iterable[str]) -> list[int]:
        texts = [*texts]
        if any("uncut" in text for text in texts):
            raise TokenizerError("it cannot be cut")
        return counted(model, texts)

    def saying(model: ServedModel, text: str) -> Ids | None:
        if "cursed" in text:
            raise TokenizerError("it cannot be said")
        if "strange" in text:
            raise ZeroDivisionError
        return None if "unsaid" in text else ids(model, text)

    patch.setattr(ServedModel, "counted", counting)
    patch.setattr(ServedModel, "ids", saying)
    patch.setattr(composition, "compose_embedder", lambda settings: Poisoned())  # pyright: ignore[reportUnknownLambdaType]


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """Its batches are small, so that a group has several."""
    with pytest.MonkeyPatch.context() as patch:
        faulty(patch)
        patch.setattr(chunk_capture, "BATCH_CHUNKS", 3)
        patch.setattr(ingest, "PAUSE_S", 0.02)
        with in_process(settings_in(tmp_path_factory.mktemp("together"), model=small())) as inside:
            yield inside


_numbers = count()


class Tenanted:
    """A tenant that nobody had before, with a client of its own."""

    def __init__(self, inside: Inside) -> None:
        self.inside = inside
        self.name = f"t{next(_numbers)}"
        self.client = inside.client(inside.core.control.create_key(self.name, Role.ADMIN)[1])

    def __enter__(self) -> Tenanted:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()

    def post(self, documents: Sequence[Json]) -> str:
        return good(self.client.post("/v1/documents", json={"documents": documents}))["job_id"]

    def items(self, job: str) -> list[Json]:
        """What became of each upload."""
        found = finished(self.client, job)["items"]
        told = ("document", "state", "chunks", "stored", "over_budget", "unsupported", "detail")
        return [{name: each[name] for name in told} for each in found]

    def documents(self) -> dict[str, list[str]]:
        """Their texts."""
        found = good(self.client.get("/v1/documents", params={"limit": 1000}))["documents"]
        pages = {each["id"]: good(self.client.get(f"/v1/documents/{each['id']}/chunks"))["chunks"] for each in found}
        return {name: [chunk["text"] for chunk in chunks] for name, chunks in pages.items()}

    def blobs(self) -> set[str]:
        """The chunks that have one."""
        return {entry.key.chunk for entry in self.inside.core.store.entries(Scope(self.name))}

    def chunks(self) -> set[str]:
        """Those that the catalog knows."""
        with self.inside.core.tenants.open(self.name).catalog.view() as view:
            return set(view.chunk_ids(10_000))


texts = st.sampled_from([*TEXTS, *TEXTS, *FAULTS])
made = st.builds(
    lambda parts, is_cut: {"text": " ".join(parts)} if is_cut else {"chunks": [{"text": part} for part in parts]},
    st.lists(texts, min_size=1, max_size=3),
    st.booleans(),
)


@LENGTHS
def test_each_comes_to_the_end_that_it_comes_to_alone(inside: Inside, length: settings) -> None:
    @length
    @given(st.lists(made, min_size=2, max_size=9))
    def check(several: list[Json]) -> None:
        documents = [{"id": f"d{at}", **each} for at, each in enumerate(several)]
        ends: list[object] = []
        for limit in (1, ingestion.TOGETHER):
            with pytest.MonkeyPatch.context() as patch, Tenanted(inside) as tenant:
                patch.setattr(ingestion, "TOGETHER", limit)
                items = tenant.items(tenant.post(documents))
                ends.append((items, tenant.documents(), tenant.blobs()))
                assert tenant.blobs() <= tenant.chunks()
                assert {each["state"] for each in items} <= {"ready", "failed"}
        assert ends[0] == ends[1]

    check()


# --- while they are worked on


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """What somebody does: puts a document in again, deletes it, or cancels the job that brought it."""

    what: str
    document: int
    text: str


meanwhiles = st.lists(
    st.builds(Meanwhile, st.sampled_from(["put", "delete", "cancel"]), st.integers(0, 7), st.sampled_from(TEXTS)),
    min_size=1,
    max_size=5,
)
HELD = ["before it begins", "as it begins", "before it is written", "when it is written"]


@LENGTHS
def test_what_ends_one_of_them_meanwhile_ends_that_alone(inside: Inside, length: settings) -> None:
    @length
    @given(held=st.sampled_from(HELD), shared=st.booleans(), steps=meanwhiles)
    def check(held: str, *, shared: bool, steps: list[Meanwhile]) -> None:
        wanted = {f"d{at}": [TEXTS[at % 3]] if shared else [f"{TEXTS[0]} {at}"] for at in range(8)}
        body = [{"id": name, "chunks": [{"text": text} for text in told]} for name, told in wanted.items()]
        with Tenanted(inside) as tenant:
            with IN_JOBS[held].gated(inside.core) as gate:
                jobs = [tenant.post(body[:4]), tenant.post(body[4:])]
                passed(gate)
                of = {name: jobs[at // 4] for at, name in enumerate(wanted)}
                for step in steps:
                    name = f"d{step.document}"
                    if step.what == "put":
                        of[name] = tenant.post([{"id": name, "text": step.text}])
                        wanted[name] = [step.text]
                        jobs.append(of[name])
                    elif step.what == "delete":
                        tenant.client.delete(f"/v1/documents/{name}")
                        wanted.pop(name, None)
                    else:
                        good(tenant.client.delete(f"/v1/jobs/{of[name]}"))
                        wanted = {each: told for each, told in wanted.items() if of[each] != of[name]}
            for job in jobs:
                finished(tenant.client, job)
            put_in(tenant.client, [{"id": "last", "text": LAST}])  # what comes after it sweeps
            assert tenant.documents() == {**wanted, "last": [LAST]}
            wait_for(lambda: tenant.blobs() == tenant.chunks(), "what went with a filler is captured anew")

    check()


def test_a_store_that_does_not_answer_makes_all_of_them_wait(tmp_path: Path) -> None:
    def fault(name: str, what: object) -> None:
        if name == "put":
            raise StoreUnavailable("it does not answer: look after it")

    with demo(tmp_path) as running:
        body = {"documents": [{"id": f"n{at}", "text": f"{NEW} {at}"} for at in range(3)]}
        with running.store.failing(fault):
            job = good(running.client.post("/v1/documents", json=body))["job_id"]
            assert "it does not answer" in running.detail(job)
            items = good(running.client.get(f"/v1/jobs/{job}"))["items"]
            assert [each["state"] for each in items] == ["computing"] * 3
        running.check_ready(job, "n2")


def test_of_a_budget_that_is_used_up_each_is_told_what_is_stored_of_it(tmp_path: Path) -> None:
    chunks = [f"{text} It was noted on day {day}." for day in range(4) for text in TEXTS]
    documents = [
        {"id": f"d{at}", "chunks": [{"text": each} for each in chunks[at : at + 1 + at % 3]]} for at in range(16)
    ]
    with in_process(settings_in(tmp_path, store="mem://?budget=36KB")) as inside, Tenanted(inside) as tenant:
        items = tenant.items(tenant.post(documents))
        assert {each["state"] for each in items} == {"ready"}
        for item, document in zip(items, documents, strict=True):
            assert item["chunks"] == len(document["chunks"]) == item["stored"] + item["over_budget"]
            states = [
                each["state"] for each in good(tenant.client.get(f"/v1/documents/{item['document']}/chunks"))["chunks"]
            ]
            assert states.count("stored") == item["stored"], (item, states)
            assert ("budget" in item["detail"]) == (item["over_budget"] > 0)
        assert sum(each["over_budget"] for each in items) > 0 < len(tenant.blobs())


# --- which go together


@dataclass(slots=True)
class Queue:
    """As much of a view as is looked at."""

    contents: dict[int, bytes] = field(default_factory=dict)
    uploads: list[QueuedUpload] = field(default_factory=list)

    def add(self, collection: str, *, name: str, nbytes: int) -> None:
        number = len(self.contents) + 1
        told = (number, "job", "" if name else f"d{number}", collection, name, UploadState.WAITING)
        self.uploads.append(QueuedUpload(*told, None, 0, 0, 0, 0, "", 0.0, 0.0))
        self.contents[number] = bytes(nbytes)

    def live(self, limit: int, *, but: Sequence[int] = (), least: int = 0, most: int = 1 << 40) -> list[QueuedUpload]:
        live = [each for each in self.uploads if each.number not in but]
        return [each for each in live if least <= len(self.contents[each.number]) <= most][:limit]

    def content(self, number: int) -> bytes:
        return self.contents[number]


waiting = st.tuples(
    st.sampled_from(["a", "b"]), st.sampled_from(["", "", "", "file.md"]), st.sampled_from([9, 900, 20_000, 90_000])
)


@settings(max_examples=100, deadline=None)
@given(given=st.lists(waiting, max_size=150), apart=st.sets(st.integers(1, 150), max_size=5))
def test_the_oldest_goes_with_small_ones_of_its_collection_until_none_is_left(
    given: list[tuple[str, str, int]], apart: set[int]
) -> None:
    queue = Queue()
    for collection, name, nbytes in given:
        queue.add(collection, name=name, nbytes=nbytes)
    large = [each for each in queue.uploads if len(queue.contents[each.number]) > ingestion.TOGETHER_BYTES]
    for each in large:
        assert ingestion.next_large(cast(CatalogView, queue)) == [each]
        queue.uploads.remove(each)
    assert ingestion.next_large(cast(CatalogView, queue)) == []
    while queue.uploads:
        group = ingestion.next_small(cast(CatalogView, queue), alone=apart)
        assert group[0] is queue.uploads[0] and len(group) <= ingestion.TOGETHER
        assert [each.number for each in group] == sorted({each.number for each in group})
        if len(group) > 1:
            assert {(each.collection, each.name) for each in group} == {(group[0].collection, "")}
            assert sum(len(queue.contents[each.number]) for each in group) <= ingestion.TOGETHER_BYTES
            assert apart.isdisjoint(each.number for each in group)
        queue.uploads = [each for each in queue.uploads if each not in group]
    assert ingestion.next_small(cast(CatalogView, queue)) == []


def test_one_tenant_with_many_holds_up_no_other(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[tuple[str, int]] = []

    class Noted(Ingestion):
        def run(self) -> None:
            turns.append((self._tenant.name, len(self._live)))
            super().run()

    monkeypatch.setattr(ingest, "Ingestion", Noted)
    monkeypatch.setattr(ingestion, "TOGETHER", 12)
    monkeypatch.setattr(ingestion, "TOGETHER_BYTES", 4000)
    small = [{"id": f"d{at}", "text": f"{TEXTS[at % 6]} {at}"} for at in range(36)]
    large: Json = {"id": "large", "chunks": [{"text": f"{'word ' * 90}{at}"} for at in range(10)]}
    with Tenanted(inside) as many, Tenanted(inside) as one:
        with Place("store", "epoch").gated(inside.core) as gate:
            first = many.post([*small[:16], large, *small[16:]])
            passed(gate)
            second = one.post([{"id": "mine", "text": TEXTS[0]}])
        assert finished(one.client, second)["status"] == finished(many.client, first)["status"] == "done"
    assert [turn for turn in turns if turn != (many.name, 1)][:2] == [(many.name, 12), (one.name, 1)]
    assert [size for name, size in turns if name == many.name and size > 1] == [12, 12, 12]
    assert turns.count((many.name, 1)) == 1
