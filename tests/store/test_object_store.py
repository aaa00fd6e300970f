"""Blobs in object storage, S3 and a folder: what a read costs in requests, and what damaged or strange objects do."""

import os
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from store import scrub
from store.blob import Blob, Head, write_head
from store.blob_store import Put
from store.errors import BadBlob, MissReason, StoreClosed, StoreDenied, StoreError, StoreUnavailable
from store.key import CacheKey, Scope
from store.objects import object_client
from store.url import open_store
from tests.servers.faults import Answer, Fault
from tests.servers.faulty import FaultyProxy
from tests.servers.s3 import VARIABLE, S3Server
from tests.store.contract import opened
from tests.store.media import Medium, is_blob, read, s3_medium, sized
from tests.store.samples import blob, key

MB = 1_000_000


@pytest.fixture
def impatient(server: S3Server, proxy: FaultyProxy) -> Iterator[Medium]:
    with s3_medium(server, proxy, timeout_s=0.3) as medium:
        yield medium


@pytest.fixture(params=["s3", "folder"])
def medium(request: pytest.FixtureRequest) -> Medium:
    return request.getfixturevalue(request.param)


class TestReading:
    @pytest.mark.parametrize(
        ("frame_bytes", "requests"),
        [
            pytest.param([5_000] * 2, 1, id="10 kB"),
            pytest.param([500_000] * 6, 3, id="3 MB"),
            pytest.param([MB] * 20, 4, id="20 MB"),
            pytest.param([100] * 40_000, 4, id="a head above the first range"),
        ],
    )
    def test_a_blob_is_read_in_at_most_four_requests(
        self, s3: Medium, proxy: FaultyProxy, frame_bytes: list[int], requests: int
    ) -> None:
        store, written = s3.open(), sized(frame_bytes)
        store.put(written)
        proxy.clear()
        assert read(store, written.head.key) == written
        assert [request.method for request in proxy.requests] == ["GET"] * requests

    def test_an_opened_blob_whose_frames_nobody_wants_is_one_request(self, s3: Medium, proxy: FaultyProxy) -> None:
        store, written = s3.open(), sized([MB] * 5)
        store.put(written)
        proxy.clear()
        opened(store, written.head.key)
        assert len(proxy.requests) == 1

    def test_frames_do_not_wait_for_later_ranges(self, s3: Medium, proxy: FaultyProxy) -> None:
        store, written = s3.open(), sized([MB] * 20)
        store.put(written)
        go_on, gave_up = Event(), Event()

        def hold(answer: Answer) -> Answer:
            if not go_on.wait(60):
                gave_up.set()
            return answer

        proxy.always(Fault(hold), where=lambda request: int((request.range or "=0-")[6:].split("-")[0]) > 12 * MB)
        reader = opened(store, written.head.key)
        for number in range(8):
            with reader.frame(number) as data:
                assert data == written.frames[number]
        assert not gave_up.is_set()
        go_on.set()
        assert reader.blob() == written

    def test_a_blob_that_goes_away_between_its_ranges_is_absent(self, medium: Medium) -> None:
        store, written = medium.open(), sized([MB] * 3)
        store.put(written)
        reader = opened(store, written.head.key)
        store.discard(written.head.key)
        with pytest.raises(BadBlob) as caught:
            reader.blob()
        assert caught.value.reason is MissReason.ABSENT

    def test_a_frame_of_a_closed_store_is_a_typed_error(self, medium: Medium) -> None:
        store, written = medium.open(), sized([MB] * 3)
        store.put(written)
        reader = opened(store, written.head.key)
        store.close()
        with pytest.raises(StoreClosed):
            reader.blob()

    @pytest.mark.parametrize(("blobs", "pages"), [(1001, 2), pytest.param(2500, 3, marks=pytest.mark.long)])
    def test_a_listing_asks_for_pages_and_for_no_blob(
        self, s3: Medium, proxy: FaultyProxy, blobs: int, pages: int
    ) -> None:
        keys = [key(f"{number:04}") for number in range(blobs)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: s3.overwrite(f"blobs/{key.text}", b"any"), keys))
        s3.overwrite(f"blobs/{key(0, tenant='acme2').text}", b"a neighbour's")
        proxy.clear()
        assert [entry.key for entry in s3.open().entries(Scope("acme"))] == keys
        assert [(request.method, is_blob(request)) for request in proxy.requests] == [("GET", False)] * pages


class TestWriting:
    @pytest.mark.parametrize("fault", [Fault.reset(), Fault.status(503), Fault.hang()], ids=["reset", "503", "hang"])
    def test_a_create_whose_answer_is_lost_ends_well(self, impatient: Medium, proxy: FaultyProxy, fault: Fault) -> None:
        store = impatient.open()
        proxy.script([fault.after_apply()], where=is_blob)
        assert store.put(blob()) in (Put.STORED, Put.PRESENT)
        assert read(store, key()) == blob()

    def test_a_large_blob_travels_in_parts(
        self, s3: Medium, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(object_client, "_PART_BYTES", 20 << 20)
        store, written = s3.open(), sized([MB] * 22)
        assert store.put(written) is Put.STORED
        assert [request.method for request in proxy.requests if is_blob(request)].count("PUT") == 5
        assert read(store, written.head.key) == written
        proxy.clear()
        assert store.put(written) is Put.PRESENT
        assert "PUT" not in [request.method for request in proxy.requests]

    @pytest.mark.parametrize(
        "odd",
        [
            CacheKey("Ä cme", "a/b", "x=y+z&", "q4"),
            CacheKey("%41", ".hidden", "..", "q8"),
            CacheKey("a#1", "?q=1", "~*'()!", "lossless"),
            CacheKey("UPPER", "日本", '\\:|<>"\n\t', "q3"),
        ],
        ids=lambda odd: odd.tenant,
    )
    def test_any_character_may_stand_in_a_key(self, medium: Medium, odd: CacheKey) -> None:
        store, plain = medium.open(), blob()
        head = replace_key(plain.head, odd)
        written = Blob(head, write_head(head), plain.frames)
        assert store.put(written) is Put.STORED
        assert read(store, odd) == written
        assert [entry.key for entry in store.entries()] == [odd]
        assert store.tenants() == [odd.tenant]
        store.delete(Scope(odd.tenant, odd.chunk))
        assert read(store, odd) is MissReason.ABSENT
        assert list(store.strays()) == []


def replace_key(head: Head, key: CacheKey) -> Head:
    return Head(
        key.tenant, key.chunk, key.fingerprint, key.codec, head.terms, head.dtype, head.tokens, head.shapes, head.frames
    )


class TestDamage:
    @pytest.mark.parametrize(
        ("damaged", "reason"),
        [
            pytest.param(b"", MissReason.CORRUPT, id="empty"),
            pytest.param(bytes(blob())[:20], MissReason.CORRUPT, id="cut in the preamble"),
            pytest.param(bytes(blob())[:-1], MissReason.CORRUPT, id="cut at the end"),
            pytest.param(bytes(blob()) + b"x", MissReason.CORRUPT, id="too long"),
            pytest.param(b"KVWB\xff\xff" + bytes(blob())[6:], MissReason.NEWER_FORMAT, id="a newer format"),
        ],
    )
    def test_a_damaged_object_is_a_miss_until_it_is_replaced(
        self, medium: Medium, damaged: bytes, reason: MissReason
    ) -> None:
        store = medium.open()
        store.put(blob())
        medium.overwrite(f"blobs/{key().text}", damaged)
        assert read(store, key()) is reason
        assert store.replace(blob()) is Put.STORED
        assert read(store, key()) == blob()

    @pytest.mark.parametrize("bytes_sent", [0, 10, 1000])
    def test_a_short_answer_is_no_damage(self, s3: Medium, proxy: FaultyProxy, bytes_sent: int) -> None:
        store = s3.open()
        store.put(blob())
        proxy.always(Fault.shorten_body(bytes_sent))
        with pytest.raises(StoreUnavailable, match=f"answered with {bytes_sent} of {blob().nbytes} bytes"):
            store.open(key())

    def test_a_scrub_moves_a_damaged_object_away_and_leaves_strays(self, medium: Medium) -> None:
        store, strays = medium.open(), ["README", "acme/a/b/c/d", "acme/x/UPPER/q4"]
        for name in strays:
            medium.overwrite(f"blobs/{name}", b"not ours")
        store.put(blob("good"))
        medium.overwrite(f"blobs/{key('bad').text}", b"damaged")
        *_, (_, report) = scrub.verify(store)
        assert sorted(report.strays) == [f"blobs/{name}" for name in strays]
        assert [bad.key for bad in report.bad] == [key("bad")]
        assert medium.paths("quarantine") == [key("bad").text]
        scrub.collect(store)
        assert [entry.key for entry in store.entries()] == [key("good")]
        assert medium.paths("blobs") == sorted([*strays, key("good").text])

    def test_what_is_quarantined_is_kept_for_a_while_however_old_it_is(self, folder: Medium, tmp_path: Path) -> None:
        store = folder.open()
        store.put(blob())
        os.utime(tmp_path / "blobs" / key().text, (0, 0))
        assert store.quarantine(key())
        assert scrub.collect(store).quarantined == 0
        assert store.forget_quarantined(before=2**40) == 1

    @pytest.mark.parametrize("name", ["README", "1.bak"])
    def test_a_stranger_among_the_deletions_is_named(self, medium: Medium, name: str) -> None:
        medium.overwrite(f"deletions/acme/{name}", b"hello")
        with pytest.raises(StoreUnavailable, match=f"deletions/acme/{name} is no deletion"):
            medium.open().epoch("acme")

    def test_a_deletion_whose_scope_is_damaged_is_no_narrower_deletion(self, medium: Medium) -> None:
        store = medium.open()
        store.delete(Scope("acme"))
        medium.overwrite(f"deletions/acme/{1:020d}", b"\xffacme/")
        with pytest.raises(StoreUnavailable, match="is no deletion"):
            store.put(blob())


class TestClient:
    def test_deleting_goes_on_past_what_is_absent(self, medium: Medium) -> None:
        for name in ("a", "z"):
            medium.overwrite(f"any/{name}", b"x")
        client = object_client.ObjectClient(medium.bucket, "label")
        client.delete(["any/a", *(f"any/absent-{number}" for number in range(50)), "any/z"])
        assert medium.paths("any") == []


class TestSecrets:
    @pytest.mark.skipif(VARIABLE not in os.environ, reason="moto checks no signature")
    def test_a_wrong_key_is_denied(self, server: S3Server) -> None:
        wrong = replace(server, secret_key="wrong").url("any")
        with open_store(wrong) as store:
            for ask in (lambda: store.open(key()), lambda: store.put(blob()), lambda: store.epoch("acme")):
                with pytest.raises(StoreDenied, match=r"s3://.* denies access"):
                    ask()

    def test_no_error_and_no_repr_shows_a_credential(self, server: S3Server, s3: Medium, proxy: FaultyProxy) -> None:
        token = "token-of-a-session"
        store = s3.open(f"session_token={token}")
        echo = f"<Error><Code>ExpiredToken</Code><Token-0>{token} {server.secret_key}</Token-0></Error>".encode()
        proxy.always(Fault(lambda _: Answer(400, (), echo, str(len(echo)))))
        for ask in (lambda: store.open(key()), lambda: store.put(blob()), lambda: store.epoch("acme")):
            with pytest.raises(StoreError, match="ExpiredToken") as caught:
                ask()
            shown = "".join(traceback.format_exception(caught.value))
            assert token not in shown and server.secret_key not in shown
        assert token not in repr(store) and server.secret_key not in repr(vars(store))
