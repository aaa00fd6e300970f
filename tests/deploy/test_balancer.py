"""The balancer's delivered configuration, by a real nginx before servers that refuse and break off."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from tests.conftest import WITHOUT_NGINX
from tests.servers.nginx import nginx


class _Replica(BaseHTTPRequestHandler):
    """Answers with what it was sent."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


class _NotReady(_Replica):
    """Refuses, as a replica does whose model is loading."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(503)


class _Dying(_Replica):
    """Breaks off, as a replica does that is killed."""

    def do_POST(self) -> None:
        self.close_connection = True


@contextmanager
def served(kind: type[_Replica]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        running = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        running.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            running.join()


@pytest.mark.parametrize("kind", [_NotReady, _Dying])
def test_who_cannot_answer_is_passed_over_with_what_was_sent(kind: type[_Replica]) -> None:
    """Questions and uploads are POSTs, which nginx sends on only where it is told to."""
    with ExitStack() as stack:
        urls = [stack.enter_context(served(each)) for each in (kind, _Replica)]
        balanced = stack.enter_context(nginx(urls))
        if balanced is None:
            pytest.skip(WITHOUT_NGINX)
        client = stack.enter_context(httpx.Client(base_url=balanced, trust_env=False))
        for number in range(4):
            answer = client.post("/v1/query", content=b"x" * number)
            assert (answer.status_code, len(answer.content)) == (200, number)
