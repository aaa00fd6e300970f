"""No word of a document, a prompt or an answer is in the log of a service that runs at the level INFO."""

import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.service.serving import Json, Service, finished, good, put_in

STEM = "Mumbrelix"
SECRET = f"{STEM}Text lives in K7. {STEM}Text keeps a badger."
QUESTION = f"Which animal does {STEM}Question keep?"


def mark(place: str) -> str:
    """A word that stands nowhere else, with letters that escape, too."""
    return f'{STEM}{place} "ä\\'


@pytest.fixture(scope="module", params=["text", pytest.param("json", marks=pytest.mark.long)])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(
        tmp_path_factory.mktemp(request.param), log_style=request.param, max_question_chars=500, max_documents=50
    ) as service:
        yield service


def test_whatever_is_asked_no_word_of_it_is_in_the_log(service: Service) -> None:
    with service.client() as client:
        use(client)
        misuse(client)
        fail_to_read(client)
    with service.client(f"kvw_{STEM}_{STEM}") as stranger:
        assert stranger.post("/v1/query", json={"question": QUESTION}).status_code == 401
    leave(service)
    service.terminate()
    text = service.text()
    assert text.count("/v1/query") > 10 and "ready" in text and "first_token_ms" in text
    assert STEM.lower() not in text.lower(), [line for line in text.splitlines() if STEM.lower() in line.lower()][:5]


def use(client: httpx.Client) -> None:
    """Every endpoint, as it is meant."""
    named = {"id": mark("Id"), "title": mark("Title"), "metadata": {mark("Field"): mark("Value")}}
    collection = f"{STEM}Collection"
    good(client.put(f"/v1/collections/{collection}", json={"system": mark("Rules")}))
    chunk: Json = {"id": mark("Name"), "text": SECRET, "metadata": {"x": mark("Own")}}
    put_in(client, [{**named, "chunks": [chunk]}], collection=collection)
    put_in(client, [{"id": "plain", "text": SECRET + mark("Plain")}])
    [held] = good(client.get("/v1/documents/plain/chunks"))["chunks"]
    ids = [held["chunk_id"]]
    for path in ("/v1/documents", f"/v1/collections/{collection}", "/v1/collections", "/v1/jobs", "/v1/stats"):
        good(client.get(path))
    good(client.get("/v1/documents", params={"filter": json.dumps({mark("Field"): mark("Value")})}))
    good(client.get(f"/v1/documents/{STEM}Id%20%22%C3%A4%5C"))
    good(client.patch("/v1/documents/plain", json={"metadata": {"y": mark("Patch")}}))
    for action in ("lookup", "prefetch", "pin", "unpin", "evict"):
        good(client.post(f"/v1/cache/{action}", json={"chunk_ids": ids}))
    good(client.post("/v1/search", json={"query": QUESTION, "filter": {"y": mark("Patch")}}))
    loose = [{"id": mark("Loose"), "title": mark("LooseTitle"), "text": mark("LooseText")}]
    asked: Json = {"question": QUESTION, "system": mark("System"), "documents": loose, "top_k": 3}
    schema = {"type": "json_schema", "json_schema": {"name": STEM, "schema": {"const": mark("Schema")}}}
    good(client.post("/v1/query", json=asked))
    good(client.post("/v1/query", json={**asked, "sampling": {"stop": mark("Stop"), "response_format": schema}}))
    assert "event: done" in client.post("/v1/query", json={**asked, "stream": True}).text
    turns = [{"role": "system", "content": mark("Told")}, {"role": "user", "content": f"{SECRET} {QUESTION}"}]
    chat: Json = {"model": "builtin", "messages": turns, "user": mark("User"), "max_tokens": 8}
    for more in ({}, {"stream": True}, {"logprobs": True}, {"response_format": schema}, {"documents": loose}):
        assert client.post("/v1/chat/completions", json={**chat, **more}).status_code == 200
    good(client.delete("/v1/documents/plain"))


def misuse(client: httpx.Client) -> None:
    """Requests that fail, with the words where they fail."""
    query: Json = {"question": QUESTION}
    chat: Json = {"model": "builtin", "messages": [{"role": "user", "content": SECRET}]}
    broken_schema = {
        "type": "json_schema",
        "json_schema": {"name": STEM, "schema": {"type": STEM, "$ref": f"#/{STEM}"}},
    }
    for status, body in (
        (422, {**query, mark("Extra"): mark("ExtraValue")}),
        (422, {**query, "top_k": STEM}),
        (422, {**query, "question": STEM * 400}),
        (422, {**query, "filter": {"$" + STEM: STEM}}),
        (422, {**query, "filter": {"x": {f"${STEM}": 1}}}),
        (422, {**query, "sampling": {"response_format": broken_schema}}),
        (422, {**query, "rerank": True}),
        (422, {"messages": [{"role": "assistant", "content": STEM}]}),
        (422, {**query, "mode": "vector"}),
        (404, {**query, "chunk_ids": ["0" * 32]}),
    ):
        assert client.post("/v1/query", json=body).status_code == status, body
    for status, body in (
        (404, {**chat, "model": STEM}),
        (400, {**chat, STEM: STEM}),
        (400, {**chat, "messages": [{"role": STEM, "content": STEM}]}),
        (400, {**chat, "tools": [{"name": STEM}]}),
        (400, {**chat, "response_format": broken_schema}),
        (400, {**chat, "chat_template_kwargs": {"tokenize": STEM}}),
        (400, {**chat, "messages": [{"role": "user", "content": f"{STEM} word " * 5000}]}),
    ):
        assert client.post("/v1/chat/completions", json=body).status_code == status, body
    for content in (f'{{"question": "{STEM}', f'{{"question": "{STEM}\\ud800"}}', f'"{STEM}"', f"{STEM}"):
        refused = client.post("/v1/query", content=content, headers={"content-type": "application/json"})
        assert refused.status_code in (400, 422), content
    assert client.post("/v1/documents", json={"documents": [{"text": STEM, "chunks": []}]}).status_code == 422
    assert client.post("/v1/rerank", json={"query": QUESTION, "documents": [SECRET]}).status_code == 422
    for path in (f"/v1/documents/{STEM}", f"/{STEM}", f"/v1/jobs/{STEM}", f"/v1/collections/{STEM}?x={STEM}"):
        assert client.get(path).status_code == 404
    assert client.put("/v1/query", headers={"x-request-id": f"{STEM} {STEM}"}).status_code == 405
    assert client.request(STEM.upper(), "/v1/query").status_code == 405


def fail_to_read(client: httpx.Client) -> None:
    """Files of all kinds that cannot be read, or not all of them."""
    files = {
        f"{STEM}1.json": f'{{"{STEM}": "{STEM}"}}',
        f"{STEM}2.jsonl": f'{{"text": "{STEM}"}}\n{{"{STEM}\n{{"text": "{STEM}", "metadata": "{STEM}"}}',
        f"{STEM}3.pdf": f"%PDF-1.4\n1 0 obj\n<< /{STEM} ({STEM}) >>\nendobj\ntrailer << /Root {STEM} >>\n%%EOF",
        f"{STEM}4.pdf": f"{STEM}",
        f"{STEM}5.html": f"<{STEM}><script>{STEM}</script><![CDATA[{STEM}",
        f"{STEM}6.md": f"---\n{STEM}: [{STEM}\n---\n",
        f"{STEM}7.txt": f"{STEM}\x00{STEM}",
        f"{STEM}8.html": f"<title>{STEM}</title>",
    }
    sent = [("files", (name, content.encode())) for name, content in files.items()]
    job = finished(client, good(client.post("/v1/documents", files=sent))["job_id"])
    assert job["uploads"]["failed"] >= 4, job
    assert any(STEM in each["detail"] for each in job["items"])  # who may see the job is told
    refused = client.post("/v1/documents", files=[("files", (f"{STEM}.{STEM}", b"x"))])
    assert refused.status_code == 422


def leave(service: Service) -> None:
    """Go in the middle of a stream, and send what is no HTTP."""
    with service.client() as client:
        body = {"question": QUESTION, "stream": True, "documents": [{"text": SECRET}], "sampling": {"max_tokens": 500}}
        with client.stream("POST", "/v1/query", json=body) as response:
            next(response.iter_lines())
    with socket.create_connection(("127.0.0.1", int(service.base_url.rpartition(":")[2]))) as raw:
        raw.sendall(f"{STEM} {STEM}\r\n{STEM}\r\n\r\n".encode())
        assert b"400" in raw.recv(1000)
