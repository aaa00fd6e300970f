"""A store that does not answer, damaged blobs, full disks: an answer may come late, and is never another one."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from retriever.catalog.sqlite import SqliteCatalog
from service.documents import ordered_calls
from store.errors import StoreFull, StoreUnavailable
from store.key import CacheKey, Scope
from store.scrub import verify
from tests.servers.faults import Fault as HttpFault
from tests.servers.faulty import FaultyProxy, faulty_proxy
from tests.servers.s3 import S3Server
from tests.service import serving
from tests.service.demo_served import AS_TEXT, BLENDED, HYBRID, NEW, REUSED, Demo, demo, several_frames
from tests.service.faulty import Fault, Gate, damage
from tests.service.serving import Json, finished, good, wait_for

UNAVAILABLE = "computed: unavailable"
GONE = StoreUnavailable("the store does not answer: look after it")
FULL = StoreFull("the disk is full: free some space")


@pytest.fixture(scope="module")
def lmdb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with demo(tmp_path_factory.mktemp("lmdb")) as running:
        yield running


@pytest.fixture(scope="module")
def ram(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with demo(tmp_path_factory.mktemp("ram"), store="mem://") as running:
        yield running


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    folder = tmp_path_factory.mktemp("tiered")
    with demo(folder, store=f"tiered:mem://|lmdb://{folder}/store") as running:
        yield running


@pytest.fixture(params=["lmdb", "ram", "tiered"])
def stored(request: pytest.FixtureRequest) -> Demo:
    """Each kind of store that may be damaged."""
    return cast(Demo, request.getfixturevalue(request.param))


def raising(error: Exception, *names: str) -> Fault:
    """In these methods, or in all."""

    def fault(name: str, what: object) -> None:
        if not names or name in names:
            raise error

    return fault


def of(name: str, what: object) -> CacheKey | None:
    """The key that a read is about."""
    return (
        cast(CacheKey, what) if name == "open" else cast("tuple[CacheKey, int]", what)[0] if name == "frame" else None
    )


def last_frame(name: str, what: object) -> None:
    if name == "frame" and cast("tuple[CacheKey, int]", what)[1] > 0:
        raise GONE


class TestAStoreOutOfReach:
    @pytest.mark.parametrize(
        "fault",
        [raising(GONE), raising(GONE, "open"), raising(GONE, "frame"), last_frame],
        ids=["everything", "before a blob is opened", "between its opening and its frames", "behind its first frame"],
    )
    def test_a_question_is_answered_from_the_text(self, lmdb: Demo, fault: Fault) -> None:
        with lmdb.store.failing(fault):
            asked, heard = lmdb.ask(REUSED), lmdb.hear(REUSED)
            assert asked.text == heard.text == lmdb.ask(BLENDED).text == lmdb.ask(HYBRID).text == lmdb.wanted
            assert [each for each in (*asked.chunks, *heard.chunks) if not each.startswith(UNAVAILABLE)] == []
            assert not lmdb.core.ingest.waiting_fills
            metrics = serving.sampled(lmdb.client)
        assert lmdb.stored() == len(lmdb.chunks)
        assert metrics['kvweave_chunk_misses_total{reason="unavailable",tenant="default"}'] > 0
        assert not any("chunk_misses" in name and '"other"' in name for name in metrics)

    @pytest.mark.parametrize("when", ["open", "frame"])
    @pytest.mark.parametrize("blend", [REUSED, HYBRID], ids=["reuse", "hybrid"])
    def test_only_the_chunks_out_of_reach_are_computed(self, lmdb: Demo, when: str, blend: Json) -> None:
        lost = set(lmdb.chunks[1::2])

        def fault(name: str, what: object) -> None:
            key = of(name, what)
            if name == when and key and key.chunk in lost:
                raise GONE

        with lmdb.store.failing(fault):
            asked, blended = lmdb.ask(blend), lmdb.ask(BLENDED)
        assert (asked.text, blended.text) == (lmdb.without(lost, blend), lmdb.wanted)
        told = [UNAVAILABLE if each.startswith(UNAVAILABLE) else each for each in asked.chunks]
        assert told == [UNAVAILABLE if chunk in lost else "lmdb" for chunk in lmdb.chunks]

    def test_all_blobs_are_waited_for_at_once(self, lmdb: Demo) -> None:
        all_there = threading.Barrier(len(lmdb.chunks))

        def fault(name: str, what: object) -> None:
            if name == "open":
                all_there.wait(serving.WAIT_S)

        with lmdb.store.failing(fault):
            assert {*lmdb.ask(REUSED).chunks} == {"lmdb"}
        assert not all_there.broken

    def test_blobs_that_are_near_are_opened_by_one_thread(self, lmdb: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ordered_calls, "HELD_UP_S", serving.WAIT_S)  # however slow the machine is
        threads = set[int]()

        def note(name: str, what: object) -> None:
            if name == "open":
                threads.add(threading.get_ident())

        with lmdb.store.failing(note):
            assert {*lmdb.ask(REUSED).chunks} == {"lmdb"}
        assert len(threads) == 1

    def test_every_endpoint_says_so_or_does_without(self, lmdb: Demo) -> None:
        lookup = {"chunk_ids": lmdb.chunks}
        with lmdb.store.failing(raising(GONE)):
            assert lmdb.client.get("/readyz").status_code == 503
            assert lmdb.client.get("/healthz").status_code == lmdb.client.get("/metrics").status_code == 200
            for name in ("lookup", "prefetch", "pin", "unpin", "evict"):
                answer = lmdb.client.post(f"/v1/cache/{name}", json=lookup)
                assert (answer.status_code, answer.json()["title"]) == (503, "The store does not answer")
                assert "Retry-After" in answer.headers
            assert lmdb.client.get("/v1/stats").status_code in (200, 503)
            assert lmdb.client.get("/v1/documents/d0/chunks").status_code in (200, 503)
            assert good(lmdb.client.post("/v1/search", json={"query": "Halio"}))["hits"]
        assert lmdb.client.get("/readyz").status_code == 200

    @pytest.mark.parametrize("name", ["open", "epoch", "put", "flush"])
    def test_an_ingest_waits_and_goes_on(self, lmdb: Demo, name: str) -> None:
        with lmdb.store.failing(raising(GONE, name)):
            job = lmdb.upload("new", f"{NEW} It was {name}.")
            assert lmdb.detail(job) == str(GONE)
            assert lmdb.ask(AS_TEXT).text == lmdb.wanted
        lmdb.check_ready(job, "new")
        lmdb.forget("new")

    def test_what_was_deleted_meanwhile_goes_when_it_is_back(self, lmdb: Demo) -> None:
        lmdb.check_ready(lmdb.upload("short", NEW), "short")
        [chunk] = lmdb.chunks_of("short")
        with lmdb.store.failing(raising(GONE)):
            assert not good(lmdb.client.delete("/v1/documents/short"))["done"]
            assert lmdb.client.get("/v1/documents/short").status_code == 404
        wait_for(lambda: not list(lmdb.store.inner.entries(Scope("default", chunk))), "its blob is gone")


class TestADamagedBlob:
    @pytest.mark.parametrize(
        ("kind", "place", "at"),
        [
            *(("lmdb", place, at) for place in ("head", "first frame", "last frame") for at in (0, 2)),
            *(("ram", "head", 0), ("ram", "last frame", 2), ("tiered", "head", 2), ("tiered", "last frame", 0)),
        ],
    )
    def test_it_is_computed_and_mended(self, request: pytest.FixtureRequest, kind: str, place: str, at: int) -> None:
        stored = cast(Demo, request.getfixturevalue(kind))
        key = stored.key_of(stored.chunks[at])
        wanted = stored.without([key.chunk], REUSED)
        last = several_frames(stored.store.inner, key) - 1
        damage(stored.store.inner, key, frame={"head": None, "first frame": 0}.get(place, last))
        asked = stored.ask(REUSED) if at else stored.hear(REUSED)
        assert asked.text == wanted
        assert {number: each for number, each in enumerate(asked.chunks) if ":" in each} == {at: "computed: corrupt"}
        assert stored.ask(BLENDED).text == stored.wanted
        stored.wait_filled()
        assert stored.ask(BLENDED).text == stored.wanted

    def test_a_last_frame_is_missed_by_every_policy(self, lmdb: Demo) -> None:
        key = lmdb.key_of(lmdb.chunks[1])
        wanted = lmdb.without([key.chunk], HYBRID)
        damage(lmdb.store.inner, key, frame=several_frames(lmdb.store.inner, key) - 1)
        asked = lmdb.ask(HYBRID)
        assert (asked.text, asked.chunks[1]) == (wanted, "computed: corrupt")
        lmdb.wait_filled()

    def test_all_damaged_at_once_are_as_full_text(self, stored: Demo) -> None:
        for at, chunk in enumerate(stored.chunks):
            damage(stored.store.inner, stored.key_of(chunk), frame=at)
        asked = stored.ask(REUSED)
        assert (asked.text, set(asked.chunks)) == (stored.wanted, {"computed: corrupt"})
        stored.wait_filled()

    def test_damage_behind_a_near_tier_is_mended_when_it_shows(self, tiered: Demo) -> None:
        near, far = tiered.store.inner.tiers
        key = tiered.key_of(tiered.chunks[0])
        tiered.ask(REUSED)
        tiered.store.flush()
        damage(far, key, frame=1)
        assert tiered.ask(BLENDED).text == tiered.wanted
        near.discard(key)
        assert tiered.ask(BLENDED).text == tiered.wanted
        tiered.wait_filled()

    def test_what_was_mended_stays_precomputed(self, lmdb: Demo) -> None:
        """A fill may be evicted; what a job stored may not, nor what was put in its place."""
        key = lmdb.key_of(lmdb.chunks[1])
        damage(lmdb.store.inner, key, frame=0)
        lmdb.ask(BLENDED)
        lmdb.wait_filled()
        found = list(verify(lmdb.store.inner))
        assert (found[-1][1].bad, found[-1][1].strays) == ([], [])

    def test_a_document_that_is_put_in_again_finds_its_damaged_blob(self, stored: Demo) -> None:
        stored.check_ready(stored.upload("again", NEW), "again")
        [chunk] = stored.chunks_of("again")
        damage(stored.store.inner, stored.key_of(chunk), frame=None)
        assert finished(stored.client, stored.upload("copy", NEW))["status"] == "done"
        asked = stored.ask(BLENDED, [chunk])
        assert asked.text == stored.ask(AS_TEXT, [chunk]).text
        wait_for(lambda: not stored.ask(BLENDED, [chunk]).chunks[0].startswith("computed"), "it is mended")
        stored.forget("again")
        stored.forget("copy")


@contextmanager
def full_catalog(running: Demo) -> Generator[None]:
    """No page can be added to the tenant's catalog until the block ends."""
    catalog = cast(SqliteCatalog, running.core.tenants.open("default").catalog)
    make = catalog._open
    full = list(catalog._free)

    def limit(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # never below what there is

    def limited() -> sqlite3.Connection:
        connection = make()
        limit(connection)
        full.append(connection)
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "_open", limited)
        for connection in list(full):
            limit(connection)
        yield
    for connection in full:  # those too that somebody holds just now
        connection.execute("PRAGMA max_page_count = 4294967294")


def jobs_of(running: Demo) -> list[Json]:
    """The jobs, without the number of the change at which they are so."""
    return [{**each, "change": ""} for each in good(running.client.get("/v1/jobs"))["jobs"]]


class TestAFullDisk:
    def test_an_ingest_waits_for_room_in_the_store(self, lmdb: Demo) -> None:
        with lmdb.store.failing(raising(FULL, "put")):
            job = lmdb.upload("new", NEW)
            assert lmdb.detail(job) == str(FULL)
            assert lmdb.ask(BLENDED).text == lmdb.wanted
        lmdb.check_ready(job, "new")
        lmdb.forget("new")

    def test_a_fill_that_finds_no_room_is_made_up_for_later(self, lmdb: Demo) -> None:
        wanted = lmdb.without(lmdb.chunks[:1], REUSED)
        damage(lmdb.store.inner, lmdb.key_of(lmdb.chunks[0]), frame=0)
        tried = Gate()

        def fault(name: str, what: object) -> None:
            if name == "replace":
                tried.reached.set()
                raise FULL

        with lmdb.store.failing(fault):
            assert lmdb.ask(REUSED).text == wanted
            assert tried.reached.wait(serving.WAIT_S)
        lmdb.wait_filled()

    def test_an_upload_that_cannot_be_kept_is_refused_whole(self, lmdb: Demo) -> None:
        large = {"documents": [{"id": f"large {at}", "text": f"{at} {NEW} " * 2000} for at in range(3)]}
        before = good(lmdb.client.get("/v1/stats"))["documents"], jobs_of(lmdb)
        with full_catalog(lmdb):
            answer = lmdb.client.post("/v1/documents", json=large)
            assert (answer.status_code, "free some space" in answer.json()["detail"]) == (503, True)
            assert "Retry-After" in answer.headers
            assert lmdb.ask(BLENDED).text == lmdb.wanted
        after = good(lmdb.client.get("/v1/stats"))["documents"], jobs_of(lmdb)
        assert after == before
        assert lmdb.client.get("/v1/documents/large 0").status_code == 404
        lmdb.check_ready(lmdb.upload("new", NEW), "new")
        lmdb.forget("new")

    def test_an_ingest_waits_for_room_in_the_catalog(self, lmdb: Demo, caplog: pytest.LogCaptureFixture) -> None:
        held = Gate()

        def fault(name: str, what: object) -> None:
            if name == "flush":
                held.pass_through()

        text = "".join(f"{at} {NEW}\n\n" for at in range(300))
        with lmdb.store.failing(fault):
            first = lmdb.upload("first", NEW)
            assert held.reached.wait(serving.WAIT_S)
            job = lmdb.upload("large", text)
            with full_catalog(lmdb):
                held.opened.set()
                wait_for(lambda: "the catalog of default" in str([vars(each) for each in caplog.records]), "it waits")
                assert good(lmdb.client.get(f"/v1/jobs/{job}"))["status"] == "running"
                assert lmdb.ask(BLENDED).text == lmdb.wanted
        assert finished(lmdb.client, first)["status"] == "done"
        assert finished(lmdb.client, job)["status"] == "done"
        assert good(lmdb.client.get("/v1/documents/large"))
        for name in ("first", "large"):
            lmdb.forget(name)


@pytest.fixture(scope="module")
def proxy(server: S3Server) -> Iterator[FaultyProxy]:
    with faulty_proxy(server.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def s3(server: S3Server, proxy: FaultyProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    url = server.url("faults", through=proxy.endpoint, timeout_s=0.5)
    with demo(tmp_path_factory.mktemp("s3"), store=url) as running:
        yield running


class TestS3:
    @pytest.mark.parametrize("fault", [HttpFault.status(503), HttpFault.cut_body(10)])
    def test_a_question_is_answered_while_the_server_fails(
        self, s3: Demo, proxy: FaultyProxy, fault: HttpFault
    ) -> None:
        proxy.always(fault)
        asked = s3.ask(BLENDED)
        assert asked.text == s3.wanted
        assert all(each.startswith(UNAVAILABLE) for each in asked.chunks)
        proxy.clear()
        s3.wait_filled()

    def test_flipped_bytes_are_no_answer(self, s3: Demo, proxy: FaultyProxy) -> None:
        proxy.always(HttpFault.flip_byte(300), where=lambda request: "/blobs/" in request.path)
        asked = s3.ask(BLENDED)
        assert asked.text == s3.wanted
        proxy.clear()
        s3.wait_filled()

    def test_an_ingest_waits_and_goes_on(self, s3: Demo, proxy: FaultyProxy) -> None:
        proxy.always(HttpFault.status(503), where=lambda request: request.method == "PUT")
        job = s3.upload("new", NEW)
        assert s3.detail(job)
        proxy.clear()
        s3.check_ready(job, "new")
