"""What holds for every request: sizes, numbers, hosts, methods, the form of errors, and a true description."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from service.access.places import RETRY_S
from service.api import guards, limits, uploads
from service.api.app import create_app
from service.api.guards import Guarded
from service.api.limits import APART_S, LATEST_S
from service.api.routes import ROUTES
from service.settings import Settings
from tests.service.api.conftest import KEYS
from tests.service.api.fakes import FakeCore, as_core
from tests.service.lent import application_over

PROBLEM = "application/problem+json"


def test_a_body_that_says_or_turns_out_to_be_too_large_is_refused(operator: TestClient) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(30):
            yield b" " * 1000

    for headers in ({"content-type": "application/json"}, {"content-type": "multipart/form-data; boundary=x"}):
        for content in (b" " * 30_000, pieces()):
            answer = operator.post("/v1/documents", content=content, headers=headers)
            assert (answer.status_code, answer.headers["content-type"]) == (413, PROBLEM)


def test_large_bodies_are_read_one_after_the_other(operator: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    both, met, read = threading.Barrier(2), list[bool](), guards.parse

    def parse(text: bytes) -> object:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.05)
            met.append(True)
        return read(text)

    for module in (guards, uploads):
        monkeypatch.setattr(module, "parse", parse)
        monkeypatch.setattr(module, "SMALL", 100)
    asked = [("/v1/documents", {"text": "x" * 200}), ("/v1/query", {"question": "x" * 90, "filter": {"a": "y" * 90}})]
    with ThreadPoolExecutor(2) as threads:
        found = threads.map(lambda ask: operator.post(ask[0], json=ask[1]).status_code, asked)
        assert [*found] == [202, 200] and not met


@pytest.mark.parametrize("path", ["/healthz", "/v1/documents", "/v1/models"])
def test_a_head_that_is_too_large_is_refused(path: str, operator: TestClient) -> None:
    for headers in ({"x-long": "x" * 70_000}, {f"x-{number}": "x" * 1000 for number in range(70)}):
        answer = operator.get(path, headers=headers)
        assert (answer.status_code, "65,536" in answer.text) == (431, True)
    assert operator.get(path, headers={"x-long": "x" * 50_000}).status_code in (200, 404)


def test_other_media_are_refused(operator: TestClient) -> None:
    for headers in ({"content-type": "text/plain"}, {}):
        for path in ("/v1/documents", "/v1/query"):
            answer = operator.post(path, content=b'{"question": "q"}', headers=headers)
            assert (answer.status_code, answer.headers["content-type"]) == (415, PROBLEM)


def test_more_requests_than_may_run_are_turned_away_but_probes_are_not(tmp_path: Path) -> None:
    settings = Settings(store="ram://", data=tmp_path, max_requests=1)
    core = FakeCore(tmp_path, settings)
    core.control.keys = dict(KEYS)
    authorized = {"Authorization": "Bearer operator"}
    with application_over(as_core(core), create_app) as app, TestClient(app, headers=authorized) as client:
        with core.places.request(KEYS["operator"], address=""):
            refused = client.get("/v1/documents")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert [client.get(path).status_code for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3
        assert client.get("/v1/documents").status_code == 200


def test_who_comes_again_sooner_than_he_was_told_is_answered_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = list[float]()

    async def counted(seconds: float) -> None:
        waited.append(seconds)

    core = FakeCore(tmp_path, Settings(store="ram://", data=tmp_path, max_requests=1))
    core.control.keys = dict(KEYS)
    place = core.places.request(KEYS["operator"], address="")
    with application_over(as_core(core), create_app) as app, TestClient(app) as client, place:
        standing = SimpleNamespace(sleep=counted, get_running_loop=lambda: SimpleNamespace(time=lambda: 100.0))
        monkeypatch.setattr(limits, "asyncio", SimpleNamespace(**{**vars(asyncio), **vars(standing)}))
        for key, late in [*(("read", number) for number in range(300)), ("write", 299), ("write", 300)]:
            refused = client.get("/v1/documents", headers={"Authorization": f"Bearer {key}"})
            assert (refused.status_code, refused.headers["retry-after"], len(waited)) == (429, "1", late)
    one_by_one = [min(RETRY_S + place * APART_S, LATEST_S) for place in range(299)]
    assert waited == pytest.approx([*one_by_one, RETRY_S])


def test_paths_and_methods_that_are_not_there(operator: TestClient) -> None:
    absent = operator.get("/v1/nothing")
    assert (absent.status_code, absent.headers["content-type"]) == (404, PROBLEM)
    for path, allowed in (("/v1/documents/a", "DELETE, GET, PATCH, PUT"), ("/v1/search", "POST"), ("/healthz", "GET")):
        answer = operator.request("TRACE", path)
        assert (answer.status_code, answer.headers["allow"], answer.headers["content-type"]) == (405, allowed, PROBLEM)


def test_without_keys_only_localhost_is_answered(tmp_path: Path) -> None:
    core = FakeCore(tmp_path, Settings(store="ram://", data=tmp_path, auth=False))
    with application_over(as_core(core), create_app) as app, TestClient(app) as client:
        for host in ("localhost", "127.0.0.1:8000", "[::1]:1", "LOCALHOST:80"):
            assert client.get("/v1/documents", headers={"host": host}).status_code == 200
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1@evil", "", "localhost:80:80"):
            assert client.get("/v1/documents", headers={"host": host}).status_code == 403
        assert client.get("/metrics", headers={"host": "localhost"}).status_code == 200


def test_readiness_tells_why_not(operator: TestClient, core: FakeCore) -> None:
    assert operator.get("/readyz").json() == {"status": "ready", "search_waits": ""}
    core.reason = "the model is loading"
    answer = operator.get("/readyz")
    assert (answer.status_code, answer.json()["detail"]) == (503, "the model is loading")
    assert operator.get("/healthz").status_code == 200


def test_the_description_declares_every_failure_as_a_problem(operator: TestClient) -> None:
    told = operator.get("/openapi.json").json()
    operations = {(method.upper(), path): each for path, of in told["paths"].items() for method, each in of.items()}
    assert len({each["operationId"] for each in operations.values()}) == len(ROUTES)
    for route in ROUTES:
        path = route.path.replace(":name}", "}")
        operation = operations[route.method, path]
        responses = operation["responses"]
        failed = {status: list(each["content"]) for status, each in responses.items() if status >= "400"}
        assert all(media == [PROBLEM] for media in failed.values()), path
        if issubclass(route.kind, Guarded):
            assert {"401", "403", "422", "429", "500", "503"} <= failed.keys()
            assert operation["security"] == [{"bearer": []}]
        assert operation["summary"]
    assert told["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    schemas = told["components"]["schemas"].keys()
    assert "HTTPValidationError" not in schemas
    assert {"Filter", "Comparison", "Upload", "FileUpload", "QueryAnswer", "Problem"} <= schemas, "no route names them"


def test_numbers_keep_their_limits_in_the_description(operator: TestClient) -> None:
    schemas = operator.get("/openapi.json").json()["components"]["schemas"]
    for schema, name in (("QueryRequest", "top_k"), ("SamplingIn", "seed"), ("RerankRequest", "top_n")):
        number = schemas[schema]["properties"][name]["anyOf"][0]
        assert "minimum" in number, name
    assert operator.post("/v1/rerank", json={"query": "q", "documents": ["a"], "top_n": 1.0}).status_code == 200
