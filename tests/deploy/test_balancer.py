"""The balancer's delivered configuration, by a real nginx before servers that refuse and break off."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler

import httpx
import pytest

from tests.conftest import WITHOUT_NGINX
from tests.servers.listening import listening
from tests.servers.nginx import nginx


class _Replica(BaseHTTPRequestHandler):
    """Answers with what it was sent, or refuses, as a replica does whose model is loading."""

    is_ready = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.is_ready:
            self.send_error(503)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


class _NotReady(_Replica):
    is_ready = False


class _Dying(_Replica):
    """Breaks off, as a replica does that is killed."""

    def do_POST(self) -> None:
        self.close_connection = True


@pytest.mark.parametrize("kind", [_NotReady, _Dying])
def test_who_cannot_answer_is_passed_over_with_what_was_sent(kind: type[_Replica]) -> None:
    """Questions and uploads are POSTs, which nginx sends on only where it is told to."""
    with behind_nginx(kind, _Replica) as client:
        for number in range(4):
            answer = client.post("/v1/query", content=b"x" * number)
            assert (answer.status_code, len(answer.content)) == (200, number)


def test_one_that_is_back_answers_as_soon_as_the_other_is_away() -> None:
    """As in an upgrade, which stops the next one when the one before is ready."""

    class One(_NotReady):
        pass

    class Other(_Replica):
        pass

    with behind_nginx(One, Other) as client:
        for _ in range(2):
            for _ in range(4):
                assert client.post("/v1/query", content=b"x").status_code == 200
            One.is_ready, Other.is_ready = Other.is_ready, One.is_ready


@contextmanager
def behind_nginx(*kinds: type[_Replica]) -> Iterator[httpx.Client]:
    """A client of the balancer before one of each kind."""
    with ExitStack() as stack:
        balanced = stack.enter_context(nginx([stack.enter_context(listening(each)) for each in kinds]))
        if balanced is None:
            pytest.skip(WITHOUT_NGINX)
        yield stack.enter_context(httpx.Client(base_url=balanced, trust_env=False))
