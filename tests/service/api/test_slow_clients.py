"""Clients that send or read slowly, over real connections: each is cut in time, and takes nobody else's place."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from service.access.places import FOLLOWERS_OF_KEY
from service.api.app import create_app
from service.api.connections import Patience
from service.api.limits import Pace
from service.commands.serve import server_over
from service.settings import Settings
from tests.service.api.conftest import KEYS
from tests.service.api.fakes import FakeCore, as_core
from tests.service.lent import application_over
from tests.service.serving import WAIT_S, wait_for

CROWD = 130
PLACES = 16
LARGE = "/docs/swagger-ui-bundle.js"
WEDGED = Pace(piece_s=0.2)
DRIPPING = Pace(spare_s=0.3, bytes_per_s=1000)


@dataclass(frozen=True, slots=True)
class Served:
    """A server in this process, and what tests need of its clients."""

    core: FakeCore
    port: int
    clients: ExitStack

    def sent(self, head: str, *, key: str = "", body: bytes = b"", length: int = 0) -> socket.socket:
        """A connection on which this was sent, and nothing was read."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(WAIT_S)
        client.connect(("127.0.0.1", self.port))
        self.clients.callback(hang_up, client)
        client.sendall(written(head, key=key, length=length or len(body)) + body)
        return client

    def status(self, path: str, key: str = "") -> int:
        """The answer to somebody else."""
        other = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            other.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
            return other.getresponse().status
        finally:
            other.close()

    def assert_others_are_answered(self) -> None:
        """Another key, an operator, and whoever watches."""
        assert self.status("/v1/documents", "read") == 200
        assert self.status("/v1/documents", "operator") == 200
        assert self.status("/metrics", "operator") == 200
        assert (self.status("/healthz"), self.status("/readyz")) == (200, 200)

    def refusals(self, limit: str) -> float:
        """How often this limit turned somebody away."""
        lines = self.core.metrics.render()[0].decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if f'refusals_total{{limit="{limit}"}}' in line)


def written(head: str, *, key: str = "", length: int = 0) -> bytes:
    lines = [f"{head} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", "Content-Type: application/json"]
    return "\r\n".join([*lines, *([f"Authorization: Bearer {key}"] if key else []), "", ""]).encode()


def answer(client: socket.socket) -> http.client.HTTPResponse:
    """The next response on a connection."""
    response = http.client.HTTPResponse(client)
    response.begin()
    return response


def hang_up(client: socket.socket) -> None:
    with suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)  # a response may hold it open
    client.close()


def is_cut(client: socket.socket) -> bool:
    """Waits until the server ends the connection."""
    try:
        while client.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


@contextmanager
def serving(folder: Path, *, patience: Patience | None = None, pace: Pace | None = None) -> Iterator[Served]:
    core = FakeCore(folder, Settings(store="ram://", data=folder, max_requests=PLACES))
    core.control.keys = dict(KEYS)
    make = create_app if pace is None else partial(create_app, pace=pace)
    with (
        application_over(as_core(core), make) as app,
        socket.create_server(("127.0.0.1", 0), backlog=1000) as listening,
        ExitStack() as clients,
    ):
        server = server_over(
            app, tell=core.metrics.refused, stop_s=core.settings.stop_s, patience=patience or Patience()
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        port = listening.getsockname()[1]
        thread.start()
        try:
            wait_for(lambda: server.started, "it serves")
            yield Served(core, port, clients)
        finally:
            clients.close()
            server.should_exit = True
            thread.join(WAIT_S)


def test_a_request_of_two_lengths_is_the_last_on_its_connection(tmp_path: Path) -> None:
    """What follows it may be a request of somebody else's, as a proxy before the service sees it."""
    with serving(tmp_path) as served:
        for extra, is_last in (("", False), ("Transfer-Encoding: chunked\r\n", True)):
            body = "0\r\n\r\n"
            head = f"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
            client = served.sent("GET /healthz")
            assert answer(client).read()
            client.sendall((head + body).encode())
            first = answer(client)
            assert first.read() and first.status == 401 and (first.headers["Connection"] == "close") is is_last
            if is_last:
                assert is_cut(client)
            else:
                client.sendall(written("GET /healthz"))
                assert answer(client).status == 200


class TestBodies:
    def test_unfinished_ones_of_a_key_take_its_share_alone(self, tmp_path: Path) -> None:
        with serving(tmp_path) as served:
            assert served.status("/v1/documents", "read") == 200  # the service is not this key's alone
            clients = [served.sent("POST /v1/query", key="write", body=b"{", length=99) for _ in range(CROWD)]
            refused = [answer(each) for each in clients[PLACES // 2 :]]
            assert {each.status for each in refused} == {429} and all(each.headers["Retry-After"] for each in refused)
            assert served.core.places.taken == PLACES // 2
            served.assert_others_are_answered()
            assert served.refusals("key") == CROWD - PLACES // 2

    def test_keys_that_nobody_gave_get_no_places(self, tmp_path: Path) -> None:
        with serving(tmp_path) as served:
            clients = [served.sent("POST /v1/query", key=f"x{number}", length=99) for number in range(CROWD)]
            assert {answer(each).status for each in clients} <= {401, 429}
            wait_for(lambda: served.core.places.taken == 0, "no place is taken")
            served.assert_others_are_answered()

    def test_one_that_stands_still_is_ended(self, tmp_path: Path) -> None:
        with serving(tmp_path, pace=WEDGED) as served:
            client = served.sent("POST /v1/query", key="write", body=b"{", length=99)
            response = answer(client)
            assert (response.status, response.headers["Connection"]) == (408, "close")
            assert "1 bytes" in json.loads(response.read())["detail"]
            assert is_cut(client) and served.core.places.taken == 0 and served.refusals("slow_body") == 1

    def test_one_that_drips_is_ended(self, tmp_path: Path) -> None:
        with serving(tmp_path, pace=DRIPPING) as served:
            client = served.sent("POST /v1/query", key="write", length=10_000_000)
            client.settimeout(0.02)
            found = b""
            while not found:
                try:
                    client.send(b" ")
                    found = client.recv(12)
                except TimeoutError:
                    continue
            assert found == b"HTTP/1.1 408"

    def test_one_that_is_slow_but_steady_is_taken(self, tmp_path: Path) -> None:
        body = json.dumps({"question": "?"}).encode().ljust(50_000)
        with serving(tmp_path, pace=DRIPPING) as served:
            client = served.sent("POST /v1/query", key="write", body=body[:5000], length=len(body))
            for start in range(5000, len(body), 5000):
                time.sleep(DRIPPING.spare_s / 6)  # in all longer than the time that is spared
                client.sendall(body[start : start + 5000])
            assert answer(client).status == 200


class TestFollowers:
    def test_those_of_a_key_take_its_room_alone_and_no_places(self, tmp_path: Path) -> None:
        with serving(tmp_path) as served:
            path = followed(served)
            clients = [served.sent(f"GET {path}", key="write") for _ in range(CROWD)]
            found = [answer(each) for each in clients]
            assert sum(each.status == 200 for each in found) == served.core.places.followers == FOLLOWERS_OF_KEY
            assert {each.headers["Retry-After"] for each in found if each.status == 429} == {"1"}
            assert served.core.places.taken == 0
            served.assert_others_are_answered()
            assert served.status(path, "bound") == 404

    def test_one_outlives_every_deadline(self, tmp_path: Path) -> None:
        with serving(tmp_path, patience=Patience(seconds=0.1), pace=WEDGED) as served:
            path = followed(served)
            stream = answer(served.sent(f"GET {path}", key="write"))
            for _ in range(10):
                assert is_cut(
                    served.clients.enter_context(socket.create_connection(("127.0.0.1", served.port), WAIT_S))
                )
            served.core.ingest.cancel(served.core.opened("default"), path.split("/")[3])
            assert b"event: done" in stream.read()


def followed(served: Served) -> str:
    """Where a job is followed that does not end."""
    served.core.ingest.waits = True
    client = served.sent("POST /v1/documents", key="write", body=json.dumps({"text": "x"}).encode())
    return f"/v1/jobs/{json.loads(answer(client).read())['job_id']}/events"


class TestConnections:
    def test_heads_that_do_not_come_keep_nobody_out(self, tmp_path: Path) -> None:
        with serving(tmp_path, patience=Patience(connections=20)) as served:
            for _ in range(400):
                client = served.clients.enter_context(socket.create_connection(("127.0.0.1", served.port)))
                client.sendall(b"GET / HTTP/1.1\r\nHost:")
            served.assert_others_are_answered()
            assert served.refusals("connections") >= 380

    @pytest.mark.parametrize("head", [b"", b"GET / HTTP/1.1\r\nHost:"])
    def test_a_head_has_its_time(self, head: bytes, tmp_path: Path) -> None:
        with serving(tmp_path, patience=Patience(seconds=0.2)) as served:
            client = served.clients.enter_context(socket.create_connection(("127.0.0.1", served.port), WAIT_S))
            client.sendall(head)
            assert is_cut(client) and served.refusals("slow_head") == 1

    def test_between_requests_one_may_wait_longer(self, tmp_path: Path) -> None:
        """Also behind a response that waited for its reader. Of a head that has begun the rest has its time as ever."""
        patience = Patience(seconds=0.5)
        with serving(tmp_path, patience=patience) as served:
            client = served.sent(f"GET {LARGE}")
            for _ in range(2):
                assert answer(client).read()
                time.sleep(2 * patience.seconds)
                client.sendall(written(f"GET {LARGE}"))
            assert answer(client).read()
            client.sendall(b"GET / HTTP/1.1\r\nHost:")
            assert is_cut(client) and served.refusals("slow_head") == 1
            client = served.sent("GET /healthz")
            assert answer(client).read()
            client.sendall(written("GET /healthz") + b"GET / HTTP/1.1\r\nHost:")  # both at once
            assert answer(client).read() and is_cut(client) and served.refusals("slow_head") == 2
            assert served.refusals("slow_reader") == 0

    def test_one_that_waits_between_requests_is_closed_in_the_end_and_first_where_there_are_too_many(
        self, tmp_path: Path
    ) -> None:
        with serving(tmp_path, patience=Patience(seconds=0.5, kept_s=1)) as served:
            client = served.sent("GET /healthz")
            assert answer(client).read() and not client.recv(1)
        patience = Patience(seconds=0.5, connections=2)
        with serving(tmp_path, patience=patience) as served:
            first, second = served.sent("GET /healthz"), served.sent("GET /healthz")
            assert answer(first).read() and answer(second).read()
            time.sleep(2 * patience.seconds)
            first.sendall(written("GET /healthz"))
            assert answer(first).read()
            served.assert_others_are_answered()
            assert is_cut(second) and served.refusals("connections") >= 1

    def test_who_reads_nothing_is_cut_and_takes_nobodys_place(self, tmp_path: Path) -> None:
        with serving(tmp_path, patience=Patience(seconds=0.5)) as served:
            for _ in range(40):
                served.sent(f"GET {LARGE}")
            served.assert_others_are_answered()
            wait_for(lambda: served.refusals("slow_reader"), "the first is cut")
            wait_for(lambda: served.core.places.taken == 0, "no place is taken")

    def test_who_reads_slowly_gets_everything(self, tmp_path: Path) -> None:
        patience = Patience(seconds=1.0)
        with serving(tmp_path, patience=patience) as served:
            client = served.sent(f"GET {LARGE}", key="read")
            response = answer(client)
            size, read = int(response.headers["Content-Length"]), 0
            while read < size:
                time.sleep(patience.seconds / 20)
                read += len(response.read(min(size // 32, size - read)))
            assert served.refusals("slow_reader") == 0

    def test_one_connection_serves_many_requests_also_at_once(self, tmp_path: Path) -> None:
        with serving(tmp_path) as served:
            client = served.sent("GET /v1/documents", key="read")
            for _ in range(3):
                response = answer(client)
                assert (response.status, json.loads(response.read())["documents"]) == (200, [])
                client.sendall(written("GET /v1/documents", key="read"))
            assert answer(client).read()
            client.sendall(written("GET /v1/documents", key="read") * 2 + written("GET /healthz"))
            found = b""
            while found.count(b"HTTP/1.1 200 OK") < 3:
                found += client.recv(4096)
