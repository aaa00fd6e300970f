"""Who may call what, and what a key with a filter learns of the rest."""

import json
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from retriever.documents import chunk_id
from service.access.principal import Role
from service.api.guards import Guarded
from service.api.routes import ROUTES, Route
from service.errors import Exhausted
from tests.service.api.conftest import KEYS, Clients
from tests.service.api.fakes import FakeCore

BODIES: dict[str, object] = {
    "post_documents": {"documents": [{"id": "new", "text": "new", "metadata": {"team": "a"}}]},
    "put_document": {"text": "other", "metadata": {"team": "a"}},
    "patch_document": {"metadata": {"seen": True}},
    "put_collection": {},
    "search": {"query": "hers"},
    "rerank": {"query": "q", "documents": ["a", "bb"]},
    "query": {"question": "what?"},
    "put_blend": {"enabled": True},
    **{key: {"chunk_ids": [chunk_id("hers alone")]} for key in ["lookup", "prefetch", "pin", "unpin", "evict"]},
}
NAMES = {"document_id:name": "hers", "name:name": "default", "job_id": "job-k4-00000001"}


def call(client: TestClient, route: Route, *, names: dict[str, str] = NAMES) -> "tuple[int, dict[str, object]]":
    path = route.path
    for place, name in names.items():
        path = path.replace(f"{{{place}}}", quote(name, safe=""))
    body = BODIES.get(route.handler.__name__)
    answer = client.request(route.method, path, json=body)
    is_json = "json" in answer.headers["content-type"]
    return answer.status_code, answer.json() if is_json else {"text": answer.text}


def put(client: TestClient, name: str, text: str, **metadata: object) -> int:
    path = f"/v1/documents/{quote(name, safe='')}"
    return client.put(path, json={"text": text, "metadata": metadata}).status_code


@pytest.fixture
def filled(as_key: Clients) -> Clients:
    """Of team a: hers, by the bound key, job 1; of team b: theirs."""
    assert put(as_key("bound"), "hers", "hers alone", team="a") == 202
    assert put(as_key("operator"), "theirs", "theirs alone, secret", team="b") == 202
    return as_key


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_lets_in_whom_its_role_says(route: Route, filled: Clients) -> None:
    if not issubclass(route.kind, Guarded):
        assert call(filled(""), route)[0] == 200
        return
    for name in ("", "nonsense"):
        status, problem = call(filled(name), route)
        assert (status, problem["status"]) == (401, 401)
    for name, who in KEYS.items():
        may = who.is_operator if route.kind.operators else who.role >= route.kind.role
        changes_all = who.bound is not None and route.handler.__name__ in ("put_collection", "delete_collection")
        status, _ = call(filled(name), route)
        assert (status == 403) == (not may or changes_all), (name, status)
        assert status < 500


def test_a_refused_key_is_told_how_to_send_one_and_its_body_is_not_read(as_key: Clients) -> None:
    answer = as_key("").post("/v1/query", content=b"{", headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.headers["www-authenticate"][:6]) == (401, "Bearer")
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_key_that_asks_too_often_is_told_when_to_ask_again(as_key: Clients, core: FakeCore) -> None:
    def take(principal: object) -> None:
        raise Exhausted("too often", retry_after_s=7.2)

    core.rates.take = take
    answer = as_key("read").get("/v1/documents")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "8")


UNSEEN = [
    ("GET", "/v1/documents/{}", None),
    ("GET", "/v1/documents/{}/chunks", None),
    ("PATCH", "/v1/documents/{}", {"metadata": {"team": "a"}}),
    ("DELETE", "/v1/documents/{}", None),
]


@pytest.mark.parametrize(("method", "path", "body"), UNSEEN)
def test_what_is_outside_a_filter_looks_like_what_is_not_there(
    method: str, path: str, body: object, filled: Clients
) -> None:
    client = filled("bound")
    there = client.request(method, path.format("theirs"), json=body)
    absent = client.request(method, path.format("nothing"), json=body)
    assert there.status_code == absent.status_code == 404
    assert there.json() == json.loads(absent.text.replace("nothing", "theirs"))
    assert filled("operator").get("/v1/documents/theirs").status_code == 200


def test_a_filter_holds_in_listings_search_cache_collections_and_counts(filled: Clients) -> None:
    client, secret = filled("bound"), chunk_id("theirs alone, secret")
    assert [each["id"] for each in client.get("/v1/documents").json()["documents"]] == ["hers"]
    assert client.get("/v1/documents", params={"filter": '{"team": "b"}'}).json()["documents"] == []
    assert [hit["document_id"] for hit in client.post("/v1/search", json={"query": "alone"}).json()["hits"]] == ["hers"]
    for what in ("lookup", "prefetch", "pin", "unpin", "evict"):
        told = client.post(f"/v1/cache/{what}", json={"chunk_ids": [secret, "0" * 32]}).json()
        assert told["unknown"] == [secret, "0" * 32]
        assert told["chunks"] in ([], 0)
        told = client.post(f"/v1/cache/{what}", json={"document_ids": ["theirs", "nothing"]}).json()
        assert told["unknown"] == ["theirs", "nothing"]
    assert client.post("/v1/rerank", json={"query": "q", "chunk_ids": [secret]}).status_code == 404
    assert client.get("/v1/collections").json()["collections"][0]["documents"] == 1
    stats = client.get("/v1/stats").json()
    assert (stats["documents"], stats["chunks"], stats["served"], stats["store"]) == (1, 1, None, None)


def test_a_collection_without_a_document_for_a_key_is_not_there(filled: Clients) -> None:
    filled("operator").post("/v1/documents", json={"documents": [{"text": "x"}], "collection": "closed"})
    client = filled("bound")
    assert [each["name"] for each in client.get("/v1/collections").json()["collections"]] == ["default"]
    assert client.get("/v1/collections/closed").status_code == 404
    assert client.post("/v1/cache/lookup", json={"collection": "closed"}).status_code == 404


def test_a_bound_key_writes_only_within_its_filter_and_learns_no_more(filled: Clients) -> None:
    client = filled("bound")
    taken = client.put("/v1/documents/theirs", json={"text": "x", "metadata": {"team": "a"}})
    unfit = client.put("/v1/documents/theirs", json={"text": "x", "metadata": {"team": "b"}})
    assert (taken.status_code, taken.json()) == (403, unfit.json())
    assert client.patch("/v1/documents/hers", json={"metadata": {"team": "b"}}).status_code == 403
    assert filled("operator").get("/v1/documents/hers").json()["metadata"] == {"team": "a"}
    chunks = [{"text": "one"}, {"text": "two", "metadata": {"team": "b"}}]
    body = {"documents": [{"chunks": chunks, "metadata": {"team": "a"}}]}
    assert client.post("/v1/documents", json=body).status_code == 403
    for metadata, status in (("{}", 403), ('{"team": "a"}', 202)):
        sent = client.post("/v1/documents", files={"files": ("a.md", b"# x")}, data={"metadata": metadata})
        assert sent.status_code == status
    smuggled = b'{"id": "theirs", "text": "x"}\n'
    sent = client.post("/v1/documents", files={"files": ("a.jsonl", smuggled)}, data={"metadata": '{"team": "a"}'})
    assert sent.status_code == 403


def test_a_bound_key_cannot_write_over_chunks_that_it_does_not_see(as_key: Clients) -> None:
    chunks = [{"text": "one"}, {"text": "two", "metadata": {"team": "b"}}]
    as_key("operator").put("/v1/documents/mixed", json={"chunks": chunks, "metadata": {"team": "a"}})
    client = as_key("bound")
    assert len(client.get("/v1/documents/mixed/chunks").json()["chunks"]) == 1
    assert put(client, "mixed", "x", team="a") == 403
    assert client.patch("/v1/documents/mixed", json={"metadata": {"x": 1}}).status_code == 403
    assert client.delete("/v1/documents/mixed").status_code == 403


def test_a_bound_key_neither_replaces_nor_ends_what_another_key_has_under_way(as_key: Clients, core: FakeCore) -> None:
    core.ingest.waits = True
    assert put(as_key("operator"), "soon", "x", team="b") == 202
    assert put(as_key("bound"), "soon", "x", team="a") == 403
    assert as_key("bound").delete("/v1/documents/soon").status_code == 404
    assert as_key("operator").delete("/v1/documents/soon").status_code == 200


def test_jobs_of_others_are_not_there_for_a_bound_key(filled: Clients) -> None:
    client = filled("bound")
    jobs = [each["id"] for each in filled("write").get("/v1/jobs").json()["jobs"]]
    own = [each["id"] for each in client.get("/v1/jobs").json()["jobs"]]
    assert (len(jobs), own) == (2, ["job-k4-00000001"])
    [other] = set(jobs) - set(own)
    for method, path in (("GET", ""), ("GET", "/events"), ("DELETE", "")):
        assert client.request(method, f"/v1/jobs/{other}{path}").status_code == 404


def test_tenants_share_nothing(filled: Clients) -> None:
    foreign = filled("foreign-admin")
    assert foreign.get("/v1/documents").json()["documents"] == []
    assert foreign.get("/v1/documents/hers").status_code == 404
    assert put(foreign, "hers", "hers alone", team="a") == 202
    assert foreign.delete("/v1/documents/hers").json()["chunks_kept"] == []
    assert filled("read").get("/v1/documents/hers").status_code == 200
    assert foreign.get("/v1/stats").json()["store"] is None


def test_roles_are_ordered_and_operators_are_of_the_default_tenant() -> None:
    assert Role.READ < Role.WRITE < Role.ADMIN
    assert [name for name, who in KEYS.items() if who.is_operator] == ["operator"]
