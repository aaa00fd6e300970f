"""The S3 server and the proxy that other tests stand on, met through obstore: what works, and what each fault does.

The retry rules seen here are obstore's own; code that stores blobs relies on them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from threading import Event, Thread
from typing import TYPE_CHECKING
from uuid import uuid4

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError
from obstore.store import S3Store

from tests.servers.faults import Fault
from tests.servers.faulty import FaultyProxy, Request, faulty_proxy
from tests.servers.s3 import S3Server, parse_server

if TYPE_CHECKING:
    from obstore.store import RetryConfig

BODY = bytes(range(256)) * 40
QUICK: RetryConfig = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {
        "init_backoff": timedelta(milliseconds=1),
        "max_backoff": timedelta(milliseconds=5),
        "base": 2,
    },
}


@pytest.fixture
def prefix() -> str:
    return uuid4().hex


@pytest.fixture
def direct(server: S3Server, prefix: str) -> S3Store:
    store = server.connect(prefix)
    obstore.put(store, "blob", BODY)
    return store


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultyProxy]:
    with faulty_proxy(server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def proxied(server: S3Server, proxy: FaultyProxy, prefix: str, direct: S3Store) -> S3Store:
    """The same objects as `direct`, through the proxy."""
    return server.connect(prefix, through=proxy.endpoint, retry=QUICK)


@pytest.fixture
def impatient(server: S3Server, proxy: FaultyProxy, prefix: str, direct: S3Store) -> S3Store:
    """As `proxied`, and no whole answer within a second counts as a hang."""
    return server.connect(prefix, through=proxy.endpoint, retry=QUICK, client={"timeout": "1s"})


@pytest.fixture(params=["direct", "proxied"])
def store(request: pytest.FixtureRequest) -> S3Store:
    return request.getfixturevalue(request.param)


def statuses(proxy: FaultyProxy) -> list[int | None]:
    return [request.status for request in proxy.requests]


class TestServer:
    def test_an_object_comes_back_whole_and_with_its_size(self, store: S3Store) -> None:
        result = obstore.get(store, "blob")
        assert bytes(result.bytes()) == BODY
        assert result.meta["size"] == len(BODY)

    def test_a_range_comes_with_the_size_of_the_whole(self, store: S3Store) -> None:
        result = obstore.get(store, "blob", options={"range": (10, 74)})
        assert result.range == (10, 74)
        assert result.meta["size"] == len(BODY)
        assert bytes(result.bytes()) == BODY[10:74]

    def test_a_range_past_the_end_is_clipped(self, store: S3Store) -> None:
        clipped = obstore.get_range(store, "blob", start=len(BODY) - 5, end=len(BODY) + 5)
        assert bytes(clipped) == BODY[-5:]

    @pytest.mark.parametrize("name", ["blob", "empty"])
    def test_a_range_outside_the_object_is_an_error(self, store: S3Store, name: str) -> None:
        obstore.put(store, "empty", b"")
        with pytest.raises(GenericError, match="416"):
            obstore.get_range(store, name, start=len(BODY), end=len(BODY) + 5)

    def test_an_empty_object_can_be_read_whole(self, store: S3Store) -> None:
        obstore.put(store, "empty", b"")
        assert bytes(obstore.get(store, "empty").bytes()) == b""

    def test_a_missing_object_is_a_missing_file(self, store: S3Store) -> None:
        with pytest.raises(FileNotFoundError):
            obstore.get(store, "absent")

    def test_create_keeps_the_first_of_two(self, store: S3Store) -> None:
        obstore.put(store, "once", b"first", mode="create")
        with pytest.raises(AlreadyExistsError):
            obstore.put(store, "once", b"second", mode="create")
        assert bytes(obstore.get(store, "once").bytes()) == b"first"

    def test_listing_is_sorted_and_starts_after_an_offset(self, store: S3Store) -> None:
        for name in ("list/c", "list/a", "list/b"):
            obstore.put(store, name, b"x")
        after_a = obstore.list(store, "list", offset="list/a").collect()
        assert [meta["path"] for meta in after_a] == ["list/b", "list/c"]

    def test_deleting_many_takes_one_request_and_forgives_absence(self, proxied: S3Store, proxy: FaultyProxy) -> None:
        obstore.delete(proxied, ["blob", "absent"])
        assert [(request.method, request.query) for request in proxy.requests] == [("POST", "delete")]
        assert obstore.list(proxied).collect() == []

    def test_a_copy_equals_its_source(self, store: S3Store) -> None:
        obstore.copy(store, "blob", "copy")
        assert bytes(obstore.get(store, "copy").bytes()) == BODY

    def test_a_body_above_the_chunk_size_goes_up_in_parts(self, proxied: S3Store, proxy: FaultyProxy) -> None:
        large = bytes(5 * 1024 * 1024 + 1)
        obstore.put(proxied, "large", large)
        assert sorted(request.method for request in proxy.requests) == ["POST", "POST", "PUT", "PUT"]
        assert obstore.head(proxied, "large")["size"] == len(large)

    def test_create_never_goes_up_in_parts(self, proxied: S3Store, proxy: FaultyProxy) -> None:
        obstore.put(proxied, "large", bytes(5 * 1024 * 1024 + 1), mode="create")
        assert [request.method for request in proxy.requests] == ["PUT"]

    def test_two_stores_of_one_bucket_see_the_same_objects(self, direct: S3Store, proxied: S3Store) -> None:
        obstore.put(proxied, "shared", b"x")
        assert obstore.head(direct, "shared")["size"] == 1


class TestServerUrl:
    def test_a_url_names_everything(self) -> None:
        url = "s3://bucket/some/prefix?endpoint=http://127.0.0.1:7480&access_key=a&secret_key=b&region=eu-west-1"
        expected = S3Server("http://127.0.0.1:7480", "bucket", "a", "b", "eu-west-1", "some/prefix")
        assert parse_server(url) == expected

    def test_a_store_url_is_read_back_as_the_server_that_wrote_it(self, server: S3Server) -> None:
        url = server.url("below").replace("&timeout=10.0", "")
        assert parse_server(url) == replace(server, prefix=f"{server.prefix}/below".lstrip("/"))

    @pytest.mark.parametrize(
        "url",
        [
            "http://127.0.0.1:7480",
            "s3://bucket?endpoint=http://127.0.0.1:7480",
            "s3://bucket?endpoint=e&access_key=a&secret_key=b&regoin=c",
        ],
    )
    def test_an_incomplete_or_misspelt_url_is_an_error(self, url: str) -> None:
        with pytest.raises(ValueError, match="TEST_S3_URL"):
            parse_server(url)


class TestFaults:
    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_a_busy_server_is_asked_again(self, proxied: S3Store, proxy: FaultyProxy, status: int) -> None:
        proxy.script([Fault.status(status), Fault.status(status)])
        obstore.put(proxied, "new", b"x", mode="create")
        assert statuses(proxy) == [status, status, 200]

    def test_a_server_that_stays_busy_is_an_error_after_the_retries(self, proxied: S3Store, proxy: FaultyProxy) -> None:
        proxy.always(Fault.status(503))
        with pytest.raises(GenericError, match="503"):
            obstore.get(proxied, "blob")
        assert statuses(proxy) == [503, 503, 503]

    def test_a_refusal_is_final(self, proxied: S3Store, proxy: FaultyProxy) -> None:
        proxy.always(Fault.status(403))
        with pytest.raises(PermissionDeniedError):
            obstore.get(proxied, "blob")
        assert statuses(proxy) == [403]

    def test_a_hang_ends_with_the_clients_timeout(self, impatient: S3Store, proxy: FaultyProxy) -> None:
        proxy.script([Fault.hang()])
        assert obstore.head(impatient, "blob")["size"] == len(BODY)
        assert statuses(proxy) == [None, 200]

    def test_a_delay_past_the_clients_timeout_is_a_hang(self, impatient: S3Store, proxy: FaultyProxy) -> None:
        proxy.script([Fault.delay(60).then(Fault.status(403))])
        assert obstore.head(impatient, "blob")["size"] == len(BODY)

    def test_a_short_delay_passes_unseen(self, proxied: S3Store, proxy: FaultyProxy) -> None:
        proxy.script([Fault.delay(0.01)])
        assert obstore.head(proxied, "blob")["size"] == len(BODY)
        assert statuses(proxy) == [200]

    def test_a_reset_is_retried_but_for_create_and_delete(self, proxied: S3Store, proxy: FaultyProxy) -> None:
        proxy.script([Fault.reset()])
        obstore.put(proxied, "new", b"x")
        assert statuses(proxy) == [None, 200]
        proxy.script([Fault.reset(), Fault.reset()])
        with pytest.raises(GenericError):
            obstore.put(proxied, "newer", b"x", mode="create")
        with pytest.raises(GenericError):
            obstore.delete(proxied, "new")
        assert statuses(proxy) == [None, 200, None, None]

    def test_a_create_whose_answer_is_lost_has_happened(
        self, direct: S3Store, proxied: S3Store, proxy: FaultyProxy
    ) -> None:
        proxy.script([Fault.reset().after_apply()])
        with pytest.raises(GenericError):
            obstore.put(proxied, "new", b"x", mode="create")
        assert obstore.head(direct, "new")["size"] == 1

    def test_a_create_retried_after_it_happened_says_it_exists(self, proxied: S3Store, proxy: FaultyProxy) -> None:
        proxy.script([Fault.status(503).after_apply()])
        with pytest.raises(AlreadyExistsError):
            obstore.put(proxied, "new", b"x", mode="create")
        assert statuses(proxy) == [503, 412]

    @pytest.mark.parametrize("fault", [Fault.cut_body(1000), Fault.stall_body(1000)], ids=["cut", "stall"])
    def test_a_broken_body_is_resumed_where_it_broke(
        self, impatient: S3Store, proxy: FaultyProxy, fault: Fault
    ) -> None:
        proxy.script([fault])
        assert bytes(obstore.get(impatient, "blob").bytes()) == BODY
        assert [request.range for request in proxy.requests] == [None, f"bytes=1000-{len(BODY) - 1}"]

    def test_a_body_replaced_while_it_breaks_is_an_error(
        self, direct: S3Store, proxied: S3Store, proxy: FaultyProxy
    ) -> None:
        proxy.script([Fault.cut_body(1000)])
        result = obstore.get(proxied, "blob")
        obstore.put(direct, "blob", BODY[::-1])
        with pytest.raises(GenericError):
            result.bytes()

    def test_a_body_that_breaks_each_time_is_an_error(self, proxied: S3Store, proxy: FaultyProxy) -> None:
        proxy.always(Fault.cut_body(1000))
        with pytest.raises(GenericError):
            obstore.get(proxied, "blob").bytes()

    def test_a_broken_body_without_etag_is_an_error_at_once(self, proxied: S3Store, proxy: FaultyProxy) -> None:
        proxy.script([Fault.drop_etag().then(Fault.cut_body(1000))])
        with pytest.raises(GenericError):
            obstore.get(proxied, "blob").bytes()
        assert statuses(proxy) == [200]

    def test_a_body_cut_in_agreement_with_its_length_passes_unseen(self, proxied: S3Store, proxy: FaultyProxy) -> None:
        proxy.always(Fault.shorten_body(1000))
        assert bytes(obstore.get(proxied, "blob").bytes()) == BODY[:1000]
        assert bytes(obstore.get_range(proxied, "blob", start=0, end=2000)) == BODY[:1000]
        assert obstore.head(proxied, "blob")["size"] == len(BODY)

    def test_a_flipped_byte_passes_unseen(self, proxied: S3Store, proxy: FaultyProxy) -> None:
        proxy.script([Fault.flip_byte(7)])
        received = bytes(obstore.get(proxied, "blob").bytes())
        assert [at for at in range(len(BODY)) if received[at] != BODY[at]] == [7]

    def test_without_etag_reads_succeed_and_writes_fail(self, proxied: S3Store, proxy: FaultyProxy) -> None:
        proxy.always(Fault.drop_etag())
        assert obstore.get(proxied, "blob").meta["e_tag"] is None
        with pytest.raises(GenericError, match="ETag"):
            obstore.put(proxied, "new", b"x")


class TestProxy:
    def test_a_script_strikes_matching_requests_alone(self, proxied: S3Store, proxy: FaultyProxy) -> None:
        proxy.script([Fault.status(403)], where=lambda request: request.method == "PUT")
        obstore.head(proxied, "blob")
        with pytest.raises(PermissionDeniedError):
            obstore.put(proxied, "new", b"x")
        obstore.put(proxied, "new", b"x")

    def test_a_used_up_script_gives_way_to_the_latest_standing_fault(
        self, proxied: S3Store, proxy: FaultyProxy
    ) -> None:
        proxy.always(Fault.status(500))
        proxy.always(Fault.status(403))
        proxy.script([Fault.none()])
        obstore.head(proxied, "blob")
        with pytest.raises(PermissionDeniedError):
            obstore.head(proxied, "blob")

    def test_clear_forgets_faults_and_requests(self, proxied: S3Store, proxy: FaultyProxy) -> None:
        proxy.always(Fault.status(403))
        with pytest.raises(PermissionDeniedError):
            obstore.head(proxied, "blob")
        proxy.clear()
        obstore.head(proxied, "blob")
        assert statuses(proxy) == [200]

    def test_requests_are_told_by_method_path_query_and_range(
        self, server: S3Server, prefix: str, proxied: S3Store, proxy: FaultyProxy
    ) -> None:
        obstore.get_range(proxied, "blob", start=1, end=3)
        (request,) = proxy.requests
        path = "/".join(part for part in (server.bucket, server.prefix, prefix, "blob") if part)
        assert request == Request("GET", f"/{path}", "", "bytes=1-2", 206)

    def test_closing_ends_a_hang_and_all_threads(self, server: S3Server, direct: S3Store, prefix: str) -> None:
        before = threading.active_count()
        with faulty_proxy(server.endpoint) as proxy:
            hanging = Event()
            proxy.always(Fault.hang(), where=lambda _: hanging.set() is None)
            store = server.connect(prefix, through=proxy.endpoint, retry={"max_retries": 0})
            reader = Thread(target=_expect_error, args=(store,))
            reader.start()
            hanging.wait()
        reader.join()
        assert threading.active_count() == before

    def test_a_server_that_is_gone_is_a_bad_gateway(self, server: S3Server) -> None:
        with faulty_proxy("http://127.0.0.1:9") as proxy:
            store = server.connect("", through=proxy.endpoint, retry={"max_retries": 0})
            with pytest.raises(GenericError, match="502"):
                obstore.head(store, "blob")


def _expect_error(store: S3Store) -> None:
    with pytest.raises(GenericError):
        obstore.head(store, "blob")
