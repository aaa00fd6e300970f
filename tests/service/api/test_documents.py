"""Documents, collections, jobs and the cache over HTTP, from put to delete."""

import json
from urllib.parse import quote

import pytest
from fastapi.exceptions import RequestValidationError
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from retriever.documents import chunk_id
from service.api import fields, guards
from service.api.guards import parse
from service.errors import TooLarge
from service.model.prompt_builder import SYSTEM
from tests.service.api.conftest import Clients
from tests.service.api.fakes import FakeCore

NAMES = ["a/b", "a?b=c#d", "ü …", "100%", "%2F", "a b\n", ".hidden", "...", "a/../b", "x/chunks", "é" * 1024, "+"]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:12])
def test_a_document_of_any_name_can_be_put_read_patched_and_deleted(name: str, operator: TestClient) -> None:
    path = f"/v1/documents/{quote(name, safe='')}"
    accepted = operator.put(path, json={"text": "some text", "title": "T", "metadata": {"a": 1, "b": 2}})
    assert (accepted.status_code, accepted.json()["documents"]) == (202, [name])
    assert operator.get(accepted.headers["location"]).json()["status"] == "done"
    assert operator.get(path).json()["id"] == name
    assert operator.patch(path, json={"metadata": {"a": None, "c": 3}}).json()["metadata"] == {"b": 2, "c": 3}
    [chunk] = operator.get(f"{path}/chunks").json()["chunks"]
    told = {key: chunk[key] for key in ("chunk_id", "text", "start", "end", "state", "bytes", "tier")}
    assert list(told.values()) == [chunk_id("some text"), "some text", 0, 9, "stored", 100, "ram"]
    gone = operator.delete(path).json()
    assert (gone["id"], gone["chunks_removed"], gone["done"]) == (name, [chunk_id("some text")], True)
    assert operator.get(path).status_code == operator.delete(path).status_code == 404


def one(**fields: object) -> dict[str, object]:
    return {"documents": [fields]}


REFUSED = [
    one(text=""),
    one(text=" \n"),
    one(text="a\0b"),
    one(text="x", chunks=[{"text": "y"}]),
    one(title="neither"),
    one(chunks=[]),
    one(text="x", id="."),
    one(text="x", id=".."),
    one(text="x", id="a\0"),
    one(text="x", id=""),
    one(text="x", id="i" * 1025),
    one(text="x", id=7),
    one(text="x", surprise=1),
    one(text="x", metadata={"n": 10**400}),
    one(text="x", metadata=json.loads('{"a":' * 70 + "1" + "}" * 70)),
    one(text="x", metadata=[]),
    {"documents": []},
    {"documents": [{"id": "a", "text": "x"}, {"id": "a", "text": "y"}]},
    {"documents": [{"text": "x"}], "collection": ".."},
]


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: str(body)[:40])
def test_a_document_that_cannot_be_kept_is_refused_and_the_field_named(body: object, operator: TestClient) -> None:
    answer = operator.post("/v1/documents", json=body)
    problem = answer.json()
    assert (answer.status_code, problem["title"]) == (422, "The request is not valid")
    assert problem["errors"]
    assert problem["errors"][0]["field"]
    assert len(answer.content) < 2000


@pytest.mark.parametrize("text", [r'"\ud800"', "NaN", "[1", "\udcff", "[" * 2000, "1" * 5000])
def test_what_is_no_json_is_refused(text: str, operator: TestClient) -> None:
    body = f'{{"documents": [{{"text": "x", "metadata": {{"a": {text}}}}}]}}'.encode(errors="surrogateescape")
    for method, path in (("POST", "/v1/documents"), ("POST", "/v1/query"), ("PATCH", "/v1/documents/x")):
        answer = operator.request(method, path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422, answer.text
    where = quote(text, safe="", errors="surrogateescape")
    assert operator.get(f"/v1/documents?filter={where}").status_code == 422


@pytest.mark.parametrize(
    "text",
    [
        r'{"a": "\ud83d\ude00 \u00e9 \/ \u0000", "a": [1.0, -0, 1e400, 123456789012345678901, 0.1]}',
        "\ufeff[1]",
        "[" * 400 + "]" * 400,
        "[NaN]",
        r'["\ud800"]',
        "[1,]",
        "[01]",
        "",
    ],
    ids=ascii,
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_json_means_what_python_reads_in_it(text: str, encoding: str) -> None:
    try:
        wanted: object = json.loads(text.encode(encoding), parse_constant=int)
        json.dumps(wanted, ensure_ascii=False).encode()
    except ValueError:
        with pytest.raises(RequestValidationError):
            parse(text.encode(encoding))
    else:
        assert repr(parse(text.encode(encoding))) == repr(wanted)


def parts(found: object) -> tuple[int, int, int]:
    """The lists and objects, the texts with the names of fields, and the commas of what a JSON text says."""
    lists = texts = commas = 0
    inside = [found]
    while inside:
        each = inside.pop()
        texts += isinstance(each, str) + (len(each) if isinstance(each, dict) else 0)
        if isinstance(each, dict | list):
            lists, commas = lists + 1, commas + max(0, len(each) - 1)
            inside += each.values() if isinstance(each, dict) else each
    return lists, texts, commas


LETTERS = st.text('[]{},:"\\a', max_size=9)
JSON = st.recursive(
    st.integers() | LETTERS, lambda held: st.lists(held, max_size=4) | st.dictionaries(LETTERS, held, max_size=4)
)


@given(JSON)
def test_json_of_very_many_parts_is_refused_and_what_texts_hold_is_none(found: object) -> None:
    text = json.dumps(found).encode()
    for number, name in enumerate(("MOST_LISTS", "MOST_TEXTS", "MOST_ITEMS")):
        count = parts(found)[number]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(guards, name, count)
            assert parse(text) == found
            patch.setattr(guards, name, count - 1)
            with pytest.raises(TooLarge, match=f"JSON with {count} .*send less at once"):
                parse(text)


def test_every_endpoint_refuses_a_body_of_very_many_fields(operator: TestClient) -> None:
    many = {f"k{number}": number for number in range(10_001)}
    for path, body in {
        "query": {"question": "Who?", **many},
        "search": {"query": "Who?", "filter": many},
        "documents": {"text": "x", "metadata": many},
        "chat/completions": {"model": "m", "messages": [], "logit_bias": many},
    }.items():
        assert operator.post(f"/v1/{path}", json=body).status_code == 413


def test_several_documents_and_the_same_again(operator: TestClient) -> None:
    body = {"documents": [{"id": "a", "text": "x"}, {"text": "y"}], "collection": "shelf"}
    first, second = (operator.post("/v1/documents", json=body).json() for _ in range(2))
    assert first["documents"] == second["documents"]
    assert first["documents"][0] == "a"
    found = operator.get("/v1/documents", params={"collection": "shelf"}).json()
    assert sorted(each["id"] for each in found["documents"]) == sorted(first["documents"])
    too_many = {"documents": [{"text": str(number)} for number in range(21)]}
    assert operator.post("/v1/documents", json=too_many).status_code == 413


def test_files_are_taken_as_they_are_or_read_where_metadata_are_laid_over(operator: TestClient) -> None:
    files = [("files", ("a.md", b"# A")), ("files", ("b.txt", b"B"))]
    sent = operator.post("/v1/documents", files=files, data={"collection": "c"})
    assert (sent.status_code, sent.json()["files"], sent.json()["documents"]) == (202, ["a.md", "b.txt"], [])
    sent = operator.post("/v1/documents", files=files, data={"metadata": '{"team": "x"}'})
    assert (sent.json()["files"], len(sent.json()["documents"])) == ([], 2)
    assert len(operator.get("/v1/documents", params={"filter": '{"team": "x"}'}).json()["documents"]) == 2


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.exe", {}),
        ("a", {}),
        ("a.txt", {"surprise": "1"}),
        ("a.txt", {"metadata": "{"}),
        ("a.txt", {"metadata": "1"}),
    ],
)
def test_files_that_cannot_be_read_are_refused(name: str, data: dict[str, str], operator: TestClient) -> None:
    sent = operator.post("/v1/documents", files={"files": (name, b"x")}, data=data)
    assert (sent.status_code, bool(sent.json()["errors"])) == (422, True)


@pytest.mark.parametrize("data", [{}, {"metadata": '{"team": "x"}'}])
def test_a_bad_file_is_refused_and_the_others_are_taken(data: dict[str, str], operator: TestClient) -> None:
    bad = [("files", ("b.exe", b"x")), ("files", ("c.txt", b" "))]
    sent = operator.post("/v1/documents", files=[bad[0], ("files", ("a.md", b"# A")), bad[1]], data=data)
    told = sent.json()
    assert (sent.status_code, told["documents"] + told["files"]) == (202, ["a.md"])
    assert [reason.split()[0] for reason in told["refused"]] == ["'b.exe'", "'c.txt'"]
    refused = operator.post("/v1/documents", files=bad, data=data)
    assert (refused.status_code, [each["message"].split()[0] for each in refused.json()["errors"]]) == (
        422,
        ["'b.exe'", "'c.txt'"],
    )


@pytest.mark.parametrize("data", [{}, {"metadata": '{"team": "x"}'}])
def test_of_two_files_of_one_name_the_second_is_refused(data: dict[str, str], operator: TestClient) -> None:
    files = [("files", (name, text)) for name, text in (("a/r.md", b"# One"), ("b/r.md", b"# Two"), ("s.md", b"# Q"))]
    told = operator.post("/v1/documents", files=files, data=data).json()
    assert (told["documents"] + told["files"], told["refused"]) == (
        ["r.md", "s.md"],
        ["'r.md' is there twice: give each a name of its own"],
    )


def test_what_can_be_read_of_a_file_is_taken_where_metadata_are_laid_over(operator: TestClient) -> None:
    files = {"files": ("a.jsonl", '{"id": "a", "text": "A."}\n{"id": "bad"}\n{"id": "c", "text": "C."}')}
    sent = operator.post("/v1/documents", files=files, data={"metadata": '{"team": "x"}'})
    assert (sent.status_code, sent.json()["documents"]) == (202, ["a", "c"])
    assert [reason.split()[0] for reason in sent.json()["refused"]] == ["a.jsonl:2:"]
    nothing = {"files": ("a.jsonl", '{"id": "bad"}')}
    sent = operator.post("/v1/documents", files=nothing, data={"metadata": '{"team": "x"}'})
    assert (sent.status_code, sent.json()["errors"][0]["message"][:24]) == (422, "a.jsonl:1 cannot be read")


def test_a_form_without_files_or_out_of_form_is_refused(operator: TestClient) -> None:
    empty = operator.post("/v1/documents", files={"other": ("a.txt", b"x")})
    assert empty.status_code == 422
    headers = {"content-type": "multipart/form-data"}
    assert operator.post("/v1/documents", content=b"--", headers=headers).status_code == 400


def test_of_a_form_that_is_cut_off_nothing_is_taken(operator: TestClient) -> None:
    head = b"--b\r\nContent-Disposition: form-data; name="
    whole = b"".join([head, b'"files"; filename="a.md"\r\n\r\n# A\r\n', head, b'"collection"\r\n\r\nc\r\n--b--'])
    headers = {"content-type": "multipart/form-data; boundary=b"}
    before = operator.get("/v1/jobs").json()
    for left_out in (1, 3, 5, 9, len(head), len(head) + 40, len(whole)):
        told = operator.post("/v1/documents", content=whole[:-left_out], headers=headers)
        assert told.status_code == 400 and "the body ended before the last boundary of its form" in told.text
    assert operator.get("/v1/jobs").json() == before
    assert operator.post("/v1/documents", content=whole, headers=headers).json()["files"] == ["a.md"]


def test_lists_come_in_pages(operator: TestClient) -> None:
    chunks = [{"text": f"chunk {number}"} for number in range(5)]
    operator.post("/v1/documents", json={"documents": [{"id": name, "chunks": chunks} for name in "abcde"]})
    for path, key in (("/v1/documents", "documents"), ("/v1/documents/a/chunks", "chunks")):
        seen: list[object] = []
        after: str | int | None = None
        while True:
            page = operator.get(path, params={"limit": 2} | ({"after": after} if after else {})).json()
            seen += page[key]
            after = page["next"]
            if after is None:
                break
        assert len(seen) == 5
    assert operator.get("/v1/documents/a/chunks", params={"after": 9}).json() == {"chunks": [], "next": None}


def test_a_replaced_document_stays_in_its_collection(operator: TestClient) -> None:
    operator.post("/v1/documents", json={"documents": [{"id": "a", "text": "x"}], "collection": "c"})
    operator.put("/v1/documents/a", json={"text": "y"})
    assert operator.get("/v1/documents/a").json()["collection"] == "c"
    operator.put("/v1/documents/a", json={"text": "y", "collection": "d"})
    assert operator.get("/v1/documents/a").json()["collection"] == "d"


def test_metadata_do_not_grow_without_end_by_patches(operator: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "MAX_METADATA_BYTES", 10_000)
    operator.put("/v1/documents/a", json={"text": "x"})
    answers = [
        operator.patch("/v1/documents/a", json={"metadata": {f"f{number}": "x" * 4000}}).status_code
        for number in range(3)
    ]
    assert answers == [200, 200, 422]


def test_whoever_follows_a_job_is_let_go_when_the_service_stops(operator: TestClient, core: FakeCore) -> None:
    core.ingest.waits, core.is_stopping = True, lambda: True
    job = operator.put("/v1/documents/soon", json={"text": "x"}).json()["job_id"]
    events = operator.get(f"/v1/jobs/{job}/events")
    assert [line for line in events.text.splitlines() if line.startswith("event")] == ["event: progress"]


def test_jobs_are_listed_newest_first_in_pages(operator: TestClient) -> None:
    made = [operator.put("/v1/documents/a", json={"text": text}).json()["job_id"] for text in "xyz"]
    first = operator.get("/v1/jobs", params={"limit": 2}).json()
    second = operator.get("/v1/jobs", params={"limit": 2, "after": first["next"]}).json()
    assert [each["id"] for each in first["jobs"] + second["jobs"]] == made[::-1]
    assert second["next"] is None


def test_a_collection_is_made_changed_and_deleted_with_its_documents(operator: TestClient) -> None:
    assert operator.put("/v1/collections/a%2Fb", json={"system": "Be brief."}).status_code == 201
    changed = operator.put("/v1/collections/a%2Fb", json={"chunk_tokens": 64})
    assert (changed.status_code, changed.json()["system"], changed.json()["chunk_tokens"]) == (200, SYSTEM, 64)
    operator.post("/v1/documents", json={"documents": [{"id": "x", "text": "x"}], "collection": "a/b"})
    assert operator.get("/v1/collections/a%2Fb").json()["documents"] == 1
    gone = operator.delete("/v1/collections/a%2Fb").json()
    assert (gone["name"], gone["documents"], gone["chunks_removed"], gone["done"]) == ("a/b", 1, 1, True)
    assert operator.get("/v1/documents/x").status_code == 404
    assert operator.delete("/v1/collections/a%2Fb").status_code == 404


def test_the_cache_is_spoken_to_by_document_chunk_or_collection(operator: TestClient, core: FakeCore) -> None:
    chunks = [{"text": f"chunk {number}"} for number in range(3)]
    operator.put("/v1/documents/a", json={"chunks": chunks})
    ids = [chunk_id(str(each["text"])) for each in chunks]
    choices: list[dict[str, object]] = [{"document_ids": ["a"]}, {"chunk_ids": ids}, {"collection": "default"}]
    for choice in choices:
        found = operator.post("/v1/cache/lookup", json={**choice, "limit": 2}).json()
        more = operator.post("/v1/cache/lookup", json={**choice, "after": found["next"]}).json()
        assert [each["chunk_id"] for each in found["chunks"] + more["chunks"]] == ids
        assert more["next"] is None
        assert operator.post("/v1/cache/pin", json=choice).json() == {"chunks": 3, "blobs": 3, "unknown": []}
    assert core.caches["default"].told == [("pin in all domains", ids)] * 3
    two = {"document_ids": ["a"], "collection": "default"}
    assert operator.post("/v1/cache/pin", json=two).status_code == 422
    assert operator.post("/v1/cache/pin", json={}).status_code == 422


def test_statistics_and_the_switch(operator: TestClient, as_key: Clients) -> None:
    operator.put("/v1/documents/a", json={"text": "four"})
    stats = operator.get("/v1/stats").json()
    assert (stats["documents"], stats["chunks"], stats["bytes_per_token"]) == (1, 1, 25.0)
    assert (stats["served"]["requests"], stats["store"][0]["tier"]) == (0, "ram")
    assert as_key("read").get("/v1/stats").json()["store"] is None
    assert operator.put("/v1/admin/blend", json={"enabled": False, "share": 0.5}).status_code == 200
    assert operator.get("/v1/admin/blend").json() == {"enabled": False, "share": 0.5}
    assert operator.put("/v1/admin/blend", json={"enabled": False, "share": 1.5}).status_code == 422


def test_one_document_is_put_in_by_itself(operator: TestClient) -> None:
    accepted = operator.post("/v1/documents", json={"id": "one", "text": "Alone.", "collection": "c"})
    assert accepted.status_code == 202 and accepted.json()["documents"] == ["one"]
    refused = operator.post("/v1/documents", json={"id": "one", "text": "Alone.", "chunks": [{"text": "x"}]})
    assert refused.status_code == 422
