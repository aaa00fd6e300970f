"""A service over the demo's documents, and one question that it answers the same way whatever becomes of its store."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import httpx
import pytest

from blend.engine.local_engine import LocalEngine
from service.app.core import Core
from service.documents import ingest
from store.blob_store import BlobStore
from store.codec import encode
from store.key import CacheKey, Scope
from tests.service.faulty import ENDLESS, FaultyStore, Steps, around, is_sound
from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import Inside, Json, events_of, finished, good, in_process, put_in, settings_in, wait_for

DOCUMENTS = [{"id": f"d{at}", "title": each.title, "text": each.text} for at, each in enumerate(PASSAGES)]
QUESTION = QUESTIONS[2]  # needs two of the documents
NEW = "Sunel lives in B4. Sunel keeps a heron. The captain is Orrin."  # of no document yet
BLENDED: Json = {"policy": "hybrid", "ratio": 1.0}  # equals full, whatever is stored; reads the first chunk alone
REUSED: Json = {"policy": "reuse"}  # reads all of every chunk
HYBRID: Json = {"policy": "hybrid", "ratio": 0.3}  # reads the upper layers of every chunk
AS_TEXT: Json = {"policy": "full"}


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer, and where its chunks came from in the order of the prompt: `lmdb`, or `computed: ` and why."""

    text: str
    chunks: tuple[str, ...]


class Demo:
    """One chunk for each document. `wanted` is the answer from the text alone, and some tokens behind its end."""

    def __init__(self, inside: Inside, client: httpx.Client, *, steps: Steps) -> None:
        self.inside, self.client, self.steps = inside, client, steps
        assert put_in(client, DOCUMENTS)["stored"] == len(DOCUMENTS)
        self.chunks = [chunk for each in DOCUMENTS for chunk in self.chunks_of(str(each["id"]))]
        answer = good(client.post("/v1/query", json=self.body(AS_TEXT)))
        self.wanted, self.prompt_tokens = answer["answer"], answer["usage"]["prompt_tokens"]
        assert self.wanted
        assert self.stored() == len(self.chunks)

    @property
    def core(self) -> Core:
        return self.inside.core

    @property
    def store(self) -> FaultyStore:
        return cast(FaultyStore, self.core.store)

    @property
    def engine(self) -> LocalEngine:
        return cast(LocalEngine, self.core.model.engine)

    def chunks_of(self, document: str) -> list[str]:
        return [each["chunk_id"] for each in good(self.client.get(f"/v1/documents/{document}/chunks"))["chunks"]]

    def key_of(self, chunk: str) -> CacheKey:
        """Of its one blob."""
        [entry] = self.store.inner.entries(Scope("default", chunk))
        return entry.key

    def body(self, blend: Json, chunks: Sequence[str] = (), **more: object) -> Json:
        ids = list(chunks) or self.chunks
        return {"question": QUESTION, "chunk_ids": ids, "blend": blend, "sampling": {"max_tokens": ENDLESS}, **more}

    def ask(self, blend: Json, chunks: Sequence[str] = ()) -> Asked:
        return _asked(good(self.client.post("/v1/query", json=self.body(blend, chunks))))

    def hear(self, blend: Json) -> Asked:
        """The same as a stream."""
        with self.client.stream("POST", "/v1/query", json=self.body(blend, stream=True)) as response:
            events = list(events_of(response))
        name, last = events[-1]
        assert name == "done", last
        assert "".join(event["text"] for name, event in events if name == "token") == last["answer"]
        return _asked(last)

    def without(self, lost: Iterable[str], blend: Json) -> str:
        """The answer as it is where these chunks were never stored."""
        self.store.hidden = frozenset(lost)
        try:
            return self.ask(blend).text
        finally:
            self.store.hidden = frozenset()

    def stored(self) -> int:
        """How many chunks came out of the store."""
        return sum(not each.startswith("computed") for each in self.ask(REUSED).chunks)

    def wait_filled(self) -> None:
        """Until every chunk comes out of the store, and is whole in every tier."""
        wait_for(lambda: self.stored() == len(self.chunks), "all chunks are stored again")
        for chunk in self.chunks:
            wait_for(lambda chunk=chunk: is_sound(self.store.inner, self.key_of(chunk)), "a chunk is mended")
        wait_for(lambda: not self.core.ingest.waiting_fills, "nothing is mended twice")

    def upload(self, document: str, text: str) -> str:
        """The job."""
        body = {"documents": [{"id": document, "text": text}]}
        return good(self.client.post("/v1/documents", json=body))["job_id"]

    def detail(self, job: str) -> str:
        """What a job that runs says of what it waits for; it is waited for."""
        found: list[str] = []

        def told() -> list[str]:
            state = good(self.client.get(f"/v1/jobs/{job}"))
            assert state["status"] == "running", state
            found[:] = [item["detail"] for item in state["items"] if item["detail"]]
            return found

        wait_for(told, "the job says what it waits for")
        return found[0]

    def check_ready(self, job: str, document: str) -> None:
        """It ends well, its chunks are stored whole, and its document is told as it is."""
        ended = finished(self.client, job)
        assert (ended["status"], ended["stored"]) == ("done", ended["chunks"]), ended
        assert not [item["detail"] for item in ended["items"] if item["detail"]]
        chunks = self.chunks_of(document)
        assert all(is_sound(self.store.inner, self.key_of(chunk)) for chunk in chunks)
        assert self.ask(BLENDED, chunks).text == self.ask(AS_TEXT, chunks).text

    def forget(self, document: str) -> None:
        assert good(self.client.delete(f"/v1/documents/{document}"))["done"]


@contextmanager
def demo(folder: Path, **settings: object) -> Generator[Demo]:
    """In this process. Whatever waits there waits no time, and a chunk is several frames."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest, "PAUSE_S", 0.02)
        patch.setattr(ingest, "IDLE_S", 0.1)
        patch.setattr(encode, "FRAME_BYTES", 4 << 10)
        made: list[Steps] = []
        with (
            in_process(
                settings_in(folder, dtype="float32", device="cpu", codec="lossless", **settings),
                wrap=around,
                reach=lambda core: made.append(Steps(cast(LocalEngine, core.model.engine))),
            ) as inside,
            inside.client() as client,
        ):
            yield Demo(inside, client, steps=made[0])


def several_frames(store: BlobStore, key: CacheKey) -> int:
    """How many a blob has; a test of its last one needs more than one."""
    found = store.open(key)
    frames = len(found.head.frames)  # type: ignore[union-attr]
    assert frames > 1
    return frames


def _asked(answer: Json) -> Asked:
    chunks = answer["report"]["chunks"]
    told = (f"{each['source']}: {each['miss_reason']}" if each["miss_reason"] else each["source"] for each in chunks)
    return Asked(answer["answer"], tuple(told))
