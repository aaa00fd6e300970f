"""The proxy that other tests stand on, met through obstore: what each fault does, and which requests it strikes.

`tests/store/test_object_store_faults.py` has what a store makes of them; that they strike at all is proved here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
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
from tests.servers.s3 import S3Server

if TYPE_CHECKING:
    from obstore.store import RetryConfig

BODY = bytes(range(256)) * 40
QUICK: RetryConfig = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=5), "base": 2},
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
    """The same objects as `direct`, through the proxy. No whole answer within a second counts as a hang."""
    return server.connect(prefix, through=proxy.endpoint, retry=QUICK, client={"timeout": "1s"})


def statuses(proxy: FaultyProxy) -> list[int | None]:
    return [request.status for request in proxy.requests]


class TestFaults:
    def test_a_hang_ends_with_the_clients_timeout(self, proxied: S3Store, proxy: FaultyProxy) -> None:
        proxy.script([Fault.hang()])
        assert obstore.head(proxied, "blob")["size"] == len(BODY)
        assert statuses(proxy) == [None, 200]

    def test_a_create_whose_answer_is_lost_has_happened(
        self, direct: S3Store, proxied: S3Store, proxy: FaultyProxy
    ) -> None:
        proxy.script([Fault.reset().after_apply(), Fault.status(503).after_apply()])
        with pytest.raises(GenericError):
            obstore.put(proxied, "new", b"x", mode="create")
        assert obstore.head(direct, "new")["size"] == 1
        with pytest.raises(AlreadyExistsError):
            obstore.put(proxied, "newer", b"x", mode="create")
        assert statuses(proxy) == [None, 503, 412]

    @pytest.mark.parametrize("fault", [Fault.cut_body(1000), Fault.stall_body(1000)], ids=["cut", "stall"])
    def test_a_broken_body_is_resumed_where_it_broke(self, proxied: S3Store, proxy: FaultyProxy, fault: Fault) -> None:
        proxy.script([fault])
        assert bytes(obstore.get(proxied, "blob").bytes()) == BODY
        assert [request.range for request in proxy.requests] == [None, f"bytes=1000-{len(BODY) - 1}"]

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

    def test_a_used_up_script_gives_way_to_the_latest_standing_fault_until_all_is_cleared(
        self, proxied: S3Store, proxy: FaultyProxy
    ) -> None:
        proxy.always(Fault.status(500))
        proxy.always(Fault.status(403))
        proxy.script([Fault.none()])
        obstore.head(proxied, "blob")
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


def _expect_error(store: S3Store) -> None:
    with pytest.raises(GenericError):
        obstore.head(store, "blob")
