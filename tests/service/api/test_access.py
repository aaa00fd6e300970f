"""Who may call what, and what a key with a filter learns of the rest."""

from dataclasses import replace
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from retriever.documents import chunk_id
from service.access.principal import Role
from service.api.guards import Guarded
from service.api.routes import ROUTES, Route
from service.errors import Exhausted
from tests.service.api.conftest import KEYS, Clients
from tests.service.api.fakes import FakeCore, principal

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
    is_json = "json" in answer.headers.get("content-type", "")
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
        unbound = ("put_collection", "delete_collection", "evict")
        changes_all = who.bound is not None and route.handler.__name__ in unbound
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
    core.control.keys["read"] = replace(KEYS["read"], per_minute=1)
    answer = as_key("read").get("/v1/documents")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "8")


@pytest.mark.parametrize("team", ["b", ["a", "b"], ["a", ["b"]], [], {"a": "a"}, None])
def test_a_bound_key_writes_only_within_its_filter_alone(team: object, filled: Clients) -> None:
    client = filled("bound")
    assert client.put("/v1/documents/new", json={"text": "x", "metadata": {"team": team}}).status_code == 403
    for metadata in ({"team": "a"}, {}):
        chunks = [{"text": "one"}, {"text": "two", "metadata": {"team": team}}]
        body = {"documents": [{"chunks": chunks, "metadata": metadata}]}
        assert client.post("/v1/documents", json=body).status_code == 403
    for name in ("hers", "new"):
        assert client.put(f"/v1/documents/{name}", json={"text": "x", "metadata": {"team": team}}).status_code == 403
    assert client.patch("/v1/documents/hers", json={"metadata": {"team": team}}).status_code == 403
    assert client.get("/v1/documents/hers").json()["metadata"] == {"team": "a"}
    assert [each["id"] for each in client.get("/v1/documents").json()["documents"]] == ["hers"]


@pytest.mark.parametrize("team", [{"name": "hr"}, {}, [{"name": "hr"}]])
def test_a_key_for_what_has_no_team_sees_nothing_of_a_team_that_is_an_object(
    team: object, as_key: Clients, core: FakeCore
) -> None:
    core.control.keys["none"] = principal("k8", Role.WRITE, bound={"team": {"$exists": False}})
    core.control.keys["some"] = principal("k9", Role.WRITE, bound={"team": {"$exists": True}})
    put(as_key("operator"), "theirs", "secret", team=team)
    assert as_key("none").get("/v1/documents").json()["documents"] == []
    assert as_key("none").delete("/v1/documents/theirs").status_code == 404
    assert put(as_key("none"), "mine", "mine", team=team) == 403
    assert put(as_key("some"), "mine", "mine", team=team) == 202
    assert as_key("some").delete("/v1/documents/theirs").status_code == 200


def test_what_a_bound_key_writes_has_the_values_of_its_filter(filled: Clients) -> None:
    client = filled("bound")
    assert put(client, "plain", "x") == put(client, "said", "x", team=["a"], year=1) == 202
    for metadata in ("{}", '{"team": "a"}'):
        sent = client.post("/v1/documents", files={"files": ("a.md", b"# x")}, data={"metadata": metadata})
        assert sent.status_code == 202
    for name in ("plain", "a.md"):
        assert client.get(f"/v1/documents/{name}").json()["metadata"] == {"team": "a"}
    assert client.patch("/v1/documents/said", json={"metadata": {"year": 2}}).status_code == 200


def test_a_bound_key_cannot_change_what_its_filter_names_and_an_operator_can(as_key: Clients, core: FakeCore) -> None:
    wanted: dict[str, object] = {"$or": [{"team": "a"}, {"team": "b"}], "$not": {"closed": True}}
    core.control.keys["either"] = principal("k8", Role.WRITE, bound=wanted)
    client = as_key("either")
    assert put(client, "one", "x", team="a") == 202
    assert put(client, "two", "x", team=["a", "b"]) == 403
    assert put(client, "one", "y", team="b") == 403
    for metadata in ({"team": "b"}, {"closed": False}):
        assert client.patch("/v1/documents/one", json={"metadata": metadata}).status_code == 403
    [entry] = as_key("operator").get("/v1/documents").json()["documents"]
    moved = as_key("operator").patch(f"/v1/documents/{entry['id']}", json={"metadata": {"team": "b"}})
    assert (moved.status_code, client.get("/v1/documents/one").json()["metadata"]) == (200, {"team": "b"})


def test_a_bound_key_makes_no_collection(as_key: Clients) -> None:
    body = {"documents": [{"id": "x", "text": "x"}], "collection": "new"}
    absent = as_key("bound").post("/v1/documents", json=body)
    assert absent.status_code == 404
    assert as_key("operator").put("/v1/collections/new", json={}).status_code == 201
    theirs = {"documents": [{"id": "y", "text": "y", "metadata": {"team": "b"}}], "collection": "new"}
    assert as_key("operator").post("/v1/documents", json=theirs).status_code == 202
    hidden = as_key("bound").post("/v1/documents", json=body)
    assert (hidden.status_code, hidden.json()) == (404, absent.json())
    assert as_key("operator").delete("/v1/documents/y").status_code == 200
    assert as_key("bound").post("/v1/documents", json=body).status_code == 202  # it was made for whoever comes


def test_a_put_of_a_hidden_id_is_like_that_of_a_free_one_and_leaves_the_hidden_document(filled: Clients) -> None:
    client, operator = filled("bound"), filled("operator")
    before = operator.get("/v1/documents/theirs").json()
    for name in ("theirs", "nothing"):
        sent = client.put(f"/v1/documents/{name}", json={"text": "mine", "metadata": {"team": "a"}})
        assert (sent.status_code, sent.json()["documents"]) == (202, [name])
        job = client.get(sent.headers["location"]).json()
        assert (job["status"], job["items"][0]["document"]) == ("done", name)
        assert client.get(f"/v1/documents/{name}").json()["id"] == name
        assert client.get(f"/v1/documents/{name}/chunks").json()["chunks"][0]["text"] == "mine"
        assert client.post("/v1/cache/lookup", json={"document_ids": [name]}).json()["unknown"] == []
        assert client.patch(f"/v1/documents/{name}", json={"metadata": {"x": 1}}).json()["id"] == name
    smuggled = b'{"id": "theirs", "text": "again"}\n'
    assert client.post("/v1/documents", files={"files": ("a.jsonl", smuggled)}).status_code == 202
    assert {hit["document_id"] for hit in client.post("/v1/search", json={"query": "mine again"}).json()["hits"]} == {
        "theirs", "nothing"
    }  # fmt: skip
    assert client.delete("/v1/documents/theirs").json()["id"] == "theirs"
    assert client.get("/v1/documents/theirs").status_code == client.delete("/v1/documents/theirs").status_code == 404
    assert operator.get("/v1/documents/theirs").json() == before


def test_a_document_that_left_a_filter_is_not_written_over_from_within(filled: Clients) -> None:
    client, operator = filled("bound"), filled("operator")
    [kept] = [each["id"] for each in operator.get("/v1/documents").json()["documents"] if each["id"] != "theirs"]
    for number in range(2):
        assert operator.patch(f"/v1/documents/{kept}", json={"metadata": {"team": "b"}}).status_code == 200
        assert client.get("/v1/documents/hers").status_code == 404
        assert put(client, "hers", f"new {number}") == 202
        [kept] = {
            each["id"] for each in operator.get("/v1/documents", params={"filter": '{"team": "a"}'}).json()["documents"]
        }
    operator.delete(f"/v1/documents/{kept.removesuffix('.2')}")
    assert client.get("/v1/documents/hers/chunks").json()["chunks"][0]["text"] == "new 1"
    assert len(operator.get("/v1/documents").json()["documents"]) == 3


def test_pages_of_a_bound_key_show_each_document_once(as_key: Clients) -> None:
    for name in ("b", "ba", "c"):
        put(as_key("operator"), name, name, team="a")
        put(as_key("operator"), f"{name}b", name, team="b")
    for name in ("bb", "a", "bab"):
        put(as_key("bound"), name, name)
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = as_key("bound").get("/v1/documents", params={"limit": 1, "after": after}).json()
        seen += [each["id"] for each in page["documents"]]
        after = page["next"]
    assert sorted(seen) == ["a", "b", "ba", "bab", "bb", "c"]


def test_a_bound_key_evicts_nothing_and_unpins_what_it_sees(filled: Clients, core: FakeCore) -> None:
    put(filled("operator"), "both", "hers alone", team="b")
    put(filled("bound"), "mine", "mine alone")
    chosen = {"document_ids": ["hers", "mine"]}
    assert filled("bound").post("/v1/cache/evict", json=chosen).status_code == 403
    told = filled("bound").post("/v1/cache/unpin", json=chosen).json()
    assert (told["chunks"], told["blobs"]) == (2, 2)
    [(unpinned, chunks)] = core.caches["default"].told
    assert (unpinned, len(chunks), chunk_id("mine alone") in chunks) == ("unpin", 2, True)
    filled("operator").post("/v1/cache/unpin", json={"document_ids": ["both"]})
    assert core.caches["default"].told[-1][0] == "unpin in all domains"
    filled("operator").post("/v1/cache/evict", json={"document_ids": ["both"]})
    assert core.caches["default"].told[-1] == ("evict", [chunk_id("hers alone")])


@pytest.mark.parametrize("part", [{"team": "b"}, {"team": ["a", "b"]}])
def test_a_bound_key_cannot_write_over_chunks_that_others_see(part: object, as_key: Clients) -> None:
    chunks = [{"text": "one"}, {"text": "two", "metadata": part}]
    as_key("operator").put("/v1/documents/mixed", json={"chunks": chunks, "metadata": {"team": "a"}})
    client = as_key("bound")
    assert client.get("/v1/documents/mixed/chunks").json()["chunks"]
    assert put(client, "mixed", "x", team="a") == 403
    assert client.patch("/v1/documents/mixed", json={"metadata": {"x": 1}}).status_code == 403
    assert client.delete("/v1/documents/mixed").status_code == 403


def test_a_bound_key_neither_patches_nor_deletes_what_it_shares(as_key: Clients) -> None:
    assert put(as_key("operator"), "shared", "x", team=["a", "b"]) == 202
    client = as_key("bound")
    assert client.get("/v1/documents/shared").status_code == 200
    assert put(client, "shared", "y", team="a") == put(client, "shared", "y", team=["a", "b"]) == 403
    for metadata in ({"seen": 1}, {"team": "a"}):
        assert client.patch("/v1/documents/shared", json={"metadata": metadata}).status_code == 403
    assert client.delete("/v1/documents/shared").status_code == 403
    assert as_key("operator").get("/v1/documents/shared").json()["metadata"] == {"team": ["a", "b"]}


def test_a_bound_key_neither_replaces_nor_ends_what_another_key_has_under_way(as_key: Clients, core: FakeCore) -> None:
    core.ingest.waits = True
    assert put(as_key("operator"), "soon", "x", team="b") == 202
    assert as_key("bound").delete("/v1/documents/soon").status_code == 404
    assert put(as_key("bound"), "soon", "x", team="a") == put(as_key("bound"), "soon", "y", team="a") == 202
    assert as_key("bound").delete("/v1/documents/soon").status_code == 200
    [last, first, others] = as_key("operator").get("/v1/jobs").json()["jobs"]
    assert (first["uploads"], last["uploads"], others["uploads"]) == ({"superseded": 1}, {"deleted": 1}, {"waiting": 1})
    assert as_key("operator").delete("/v1/documents/soon").status_code == 200


def test_jobs_of_others_are_not_there_for_a_bound_key(filled: Clients) -> None:
    client = filled("bound")
    jobs = [each["id"] for each in filled("write").get("/v1/jobs").json()["jobs"]]
    own = [each["id"] for each in client.get("/v1/jobs").json()["jobs"]]
    assert (len(jobs), own) == (2, ["job-k4-00000001"])
    [other] = set(jobs) - set(own)
    for method, path in (("GET", ""), ("GET", "/events"), ("DELETE", "")):
        assert client.request(method, f"/v1/jobs/{other}{path}").status_code == 404


def test_roles_are_ordered_and_operators_are_of_the_default_tenant() -> None:
    assert Role.READ < Role.WRITE < Role.ADMIN
    assert [name for name, who in KEYS.items() if who.is_operator] == ["operator"]
