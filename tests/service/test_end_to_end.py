"""The life of documents in a service of its own process, over HTTP: put in, asked about, replaced, patched, deleted."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from signal import SIGTERM

import httpx
import pytest

from tests.nursery import Fork
from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import Json, Service, ask, events_of, finished, good, put_in, sampled, wait_for

ANSWERS = ("badger", "Belford", "Corina", "Rosen")
REGISTER = [{"id": each.title, "text": each.text, "title": each.title} for each in PASSAGES[:2]]
LEDGER = {"id": "Ledger 33", "title": "Ledger 33", "chunks": [{"text": each.text} for each in PASSAGES[2:]]}
DIGEST = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    with Service(folder, store=f"tiered:mem://?budget=64MB|lmdb://{folder}/store") as service:
        yield service


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    """Each test begins with no document."""
    with service.client() as client:
        for each in good(client.get("/v1/documents", params={"limit": 1000}))["documents"]:
            good(client.delete(f"/v1/documents/{each['id']}"))
        yield client


def captured(client: httpx.Client) -> float:
    return sampled(client).get('kvweave_captured_chunks_total{tenant="default"}', 0.0)


def sources(answer: Json) -> list[str]:
    return [each["source"] for each in answer["report"]["chunks"]]


def letter(animal: str) -> Json:
    return {"id": "letter", "text": f"Halio lives in K7. Halio keeps a {animal}."}


def animal(client: httpx.Client) -> str:
    return ask(client, QUESTIONS[0])["answer"]


def test_it_starts_where_nothing_is_loaded_yet(tmp_path: Path) -> None:
    own = {"PYTHONHASHSEED": "7"}  # which no fork would heed
    with Service(tmp_path, environment=own) as service, service.client() as client:
        assert not isinstance(service.process, Fork)
        put_in(client, REGISTER)
        assert animal(client) == "badger"


def test_questions_are_answered_from_stored_chunks(client: httpx.Client) -> None:
    job = put_in(client, [*REGISTER, LEDGER])
    assert (job["status"], job["chunks"], job["stored"]) == ("done", 4, 4)
    assert (animal(client), ask(client, QUESTIONS[3], neighbors=1)["answer"]) == ("badger", "Rosen")
    every = [chunk for each in (*REGISTER, LEDGER) for chunk in chunks_of(client, each["id"])]
    for question, expected in zip(QUESTIONS, ANSWERS, strict=True):
        answer = ask(client, question, chunk_ids=every)
        assert (answer["answer"], answer["finish_reason"]) == (expected, "stop")
        assert len(sources(answer)) == 4 and set(sources(answer)) <= {"ram", "lmdb"}, answer["report"]
        used = answer["usage"]
        assert used["reused_tokens"] > 0 and used["reused_tokens"] + used["recomputed_tokens"] < used["prompt_tokens"]
        assert [each["text"] for each in answer["sources"]] == [each.text for each in PASSAGES]
        assert ask(client, question, chunk_ids=every, blend={"policy": "full"})["answer"] == expected


def test_a_stream_tells_what_the_whole_answer_tells(client: httpx.Client) -> None:
    put_in(client, [*REGISTER, LEDGER])
    whole = ask(client, QUESTIONS[2])
    with client.stream("POST", "/v1/query", json={"question": QUESTIONS[2], "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = list(events_of(response))
    names = [name for name, _ in events]
    assert names[:3] == ["retrieved", "loaded", "fused"] and names[-1] == "done" and set(names[3:-1]) == {"token"}
    done = events[-1][1]
    assert "".join(event["text"] for name, event in events if name == "token") == done["answer"] == whole["answer"]
    assert events[0][1]["sources"] == done["sources"] == whole["sources"]
    assert [each["chunk_id"] for each in events[1][1]["chunks"]] == [
        each["chunk_id"] for each in done["report"]["chunks"]
    ]


def test_the_old_version_answers_until_the_new_one_is_ready(client: httpx.Client) -> None:
    put_in(client, [letter("badger")])
    [old] = chunks_of(client, "letter")
    new = letter("heron") | {"chunks": [{"text": letter("heron")["text"]}, *filler(24)]}
    accepted = good(client.put("/v1/documents/letter", json={"chunks": new["chunks"]}))
    seen = [animal(client)]
    while good(client.get(f"/v1/jobs/{accepted['job_id']}"))["status"] == "running":
        seen.append(animal(client))
    last = animal(client)
    assert (seen[0], last) == ("badger", "heron")
    turn = seen.index("heron") if "heron" in seen else len(seen)
    assert set(seen[:turn]) == {"badger"} and set(seen[turn:]) <= {"heron"}
    assert good(client.post("/v1/cache/lookup", json={"chunk_ids": [old]}))["unknown"] == [old]
    assert good(client.get("/v1/documents/letter"))["chunks"] == 25


def test_a_patch_changes_what_filters_see_and_computes_nothing(client: httpx.Client) -> None:
    put_in(client, [{**letter("badger"), "metadata": {"year": 1901, "kind": "letter"}}])
    before = captured(client)
    assert ask(client, QUESTIONS[0], filter={"year": 1902})["sources"] == []
    patched = good(client.patch("/v1/documents/letter", json={"metadata": {"year": 1902, "kind": None}}))
    assert patched["metadata"] == {"year": 1902}
    answer = ask(client, QUESTIONS[0], filter={"year": 1902})
    assert answer["answer"] == "badger" and sources(answer) != ["computed"]
    assert ask(client, QUESTIONS[0], filter={"kind": "letter"})["sources"] == []
    assert captured(client) == before


def test_a_title_is_stored_with_its_chunk_and_a_new_one_is_read(client: httpx.Client) -> None:
    put_in(client, [{**letter("badger"), "title": "Letter 40"}])
    before, reused = captured(client), {"blend": {"policy": "reuse"}}
    ask(client, QUESTIONS[0], **reused)
    kept = ask(client, QUESTIONS[0], **reused)
    put_in(client, [{**letter("badger"), "title": "Letter 41"}])
    read = ask(client, QUESTIONS[0], **reused)
    fresh = [each["usage"]["prompt_tokens"] - each["usage"]["reused_tokens"] for each in (kept, read)]
    assert fresh[0] + 4 <= fresh[1] and captured(client) == before
    assert kept["usage"]["prompt_tokens"] == read["usage"]["prompt_tokens"]
    assert sources(kept) == sources(read) and kept["answer"] == read["answer"] == "badger"


def test_after_a_delete_nothing_knows_the_document(client: httpx.Client) -> None:
    put_in(client, [letter("badger"), {"id": "twin", "text": letter("badger")["text"]}])
    [chunk] = chunks_of(client, "letter")
    first = good(client.delete("/v1/documents/letter"))
    assert (first["chunks_removed"], first["chunks_kept"], first["done"]) == ([], [chunk], True)
    assert animal(client) == "badger"
    second = good(client.delete("/v1/documents/twin"))
    assert (second["chunks_removed"], second["chunks_kept"], second["done"]) == ([chunk], [], True)
    assert "no documents" in client.post("/v1/query", json={"question": QUESTIONS[0]}).json()["detail"]
    assert good(client.post("/v1/search", json={"query": "Halio badger"}))["hits"] == []
    assert good(client.post("/v1/cache/lookup", json={"chunk_ids": [chunk]})) == {
        "chunks": [],
        "unknown": [chunk],
        "next": None,
    }
    assert client.get("/v1/documents/twin").status_code == client.delete("/v1/documents/twin").status_code == 404
    assert client.post("/v1/query", json={"question": "?", "chunk_ids": [chunk]}).status_code == 404


def test_a_broken_file_is_told_beside_the_good_ones(client: httpx.Client) -> None:
    lines = [json.dumps({"id": "line-1", "text": PASSAGES[0].text}), "{no json", json.dumps({"text": PASSAGES[3].text})]
    files = {
        "notes.md": f"# Notes\n\n{PASSAGES[1].text}\n".encode(),
        "page.html": f"<html><body><h1>Page</h1><p>{PASSAGES[2].text}</p></body></html>".encode(),
        "scan.pdf": pdf("Selark is led by Rosen."),
        "lines.jsonl": "\n".join(lines).encode(),
        "broken.pdf": b"%PDF-1.7 and then nothing that a PDF has",
        "odd.json": b'{"id": "odd", "colour": 1}',
    }
    sent = [("files", (name, content)) for name, content in files.items()]
    accepted = good(client.post("/v1/documents", files=sent, data={"collection": "papers"}))
    assert (accepted["documents"], accepted["files"]) == ([], list(files))
    job = finished(client, accepted["job_id"])
    of_files = {each["file"]: each for each in job["items"] if each["file"]}
    assert {name: each["state"] for name, each in of_files.items()} == {
        **dict.fromkeys(files, "ready"),
        "broken.pdf": "failed",
        "odd.json": "failed",
    }
    assert "lines.jsonl:2" in of_files["lines.jsonl"]["detail"] and "colour" in of_files["odd.json"]["detail"]
    assert job["status"] == "failed" and job["stored"] == job["chunks"] > 0
    ids = {each["id"] for each in good(client.get("/v1/documents", params={"collection": "papers"}))["documents"]}
    assert {"notes.md", "page.html", "scan.pdf", "line-1"} < ids and len(ids) == 5
    assert ask(client, QUESTIONS[0], collection="papers")["answer"] == "badger"
    found = good(client.post("/v1/search", json={"query": "Selark Rosen led", "collection": "papers"}))["hits"]
    assert {each["document_id"]: each["page"] for each in found}["scan.pdf"] == 1
    assert good(client.delete("/v1/collections/papers"))["documents"] == 5
    assert client.post("/v1/query", json={"question": QUESTIONS[0]}).status_code == 404


def test_documents_of_a_request_are_read_and_never_stored(service: Service, client: httpx.Client) -> None:
    word = "Zorblax"
    loose = [{"id": "loose-1", "title": "Letter 41", "text": f"{word} lives in K7. {word} keeps a heron."}]
    before = captured(client)
    answer = ask(client, f"Which animal does {word} keep?", documents=loose)
    assert answer["answer"] == "heron" and answer["report"]["chunks"] == []
    chat = {"model": "builtin", "messages": [{"role": "user", "content": f"Which animal does {word} keep?"}]}
    good(client.post("/v1/chat/completions", json={**chat, "documents": loose, "temperature": 0}))
    pasted = [{"role": "user", "content": loose[0]["text"]}]
    assert not good(client.post("/v1/chat/completions", json={**chat, "messages": pasted}))["kvweave"]["report"][
        "chunks"
    ]
    put_in(client, [letter("badger")])  # what was queued before is over
    assert captured(client) == before + 1
    assert good(client.post("/v1/search", json={"query": word}))["hits"] == []
    assert [each["id"] for each in good(client.get("/v1/documents"))["documents"]] == ["letter"]
    files = [path for path in service.log.parent.rglob("*") if path.is_file()]
    assert not [path for path in files if word.encode() in path.read_bytes()]


def test_putting_the_same_in_again_computes_nothing(client: httpx.Client) -> None:
    first = put_in(client, [*REGISTER, LEDGER])
    before = captured(client)
    again = put_in(client, [*REGISTER, LEDGER])
    assert (again["status"], again["chunks"], again["stored"]) == ("done", first["chunks"], first["stored"])
    nameless = {"text": PASSAGES[0].text}  # the text is known from another document, the document is not
    ids = [good(client.post("/v1/documents", json={"documents": [nameless]}))["documents"] for _ in range(2)]
    assert ids[0] == ids[1]
    assert put_in(client, [nameless])["stored"] == 1
    assert captured(client) <= before + 1  # what stands in two documents is captured in the context of the first one
    assert again["id"] != first["id"]


def test_a_job_tells_its_progress_as_a_page_and_as_a_stream(client: httpx.Client) -> None:
    accepted = client.post("/v1/documents", json={"documents": [{"id": f"d{n}", **parts(4, n)} for n in range(6)]})
    job = good(accepted)["job_id"]
    assert accepted.headers["location"] == f"/v1/jobs/{job}"
    with client.stream("GET", f"/v1/jobs/{job}/events") as response:
        events = list(events_of(response))
    assert {name for name, _ in events[:-1]} == {"progress"} and events[-1][0] == "done"
    stored = [event["stored"] for _, event in events]
    assert stored == sorted(stored) and stored[-1] == 24
    page = good(client.get(f"/v1/jobs/{job}", params={"limit": 4}))
    rest = good(client.get(f"/v1/jobs/{job}", params={"limit": 4, "after": page["next"]}))
    assert [each["document"] for each in page["items"] + rest["items"]] == [f"d{n}" for n in range(6)]
    told = {name: value for name, value in events[-1][1].items() if name != "change"}  # which is another text each time
    assert told == {name: page[name] for name in told}
    assert good(client.get("/v1/jobs"))["jobs"][0]["id"] == job


def test_a_cancelled_job_keeps_what_is_ready_and_drops_the_rest(client: httpx.Client) -> None:
    large = [{"id": f"d{n}", **parts(600, n)} for n in range(2)]  # which are worked on beside small ones
    body = {"documents": [{"id": "first", "text": PASSAGES[0].text}, *large]}
    job = good(client.post("/v1/documents", json=body))["job_id"]
    wait_for(lambda: good(client.get(f"/v1/jobs/{job}"))["uploads"].get("ready"), "a document is ready")
    cancelled = good(client.delete(f"/v1/jobs/{job}"))
    assert cancelled["status"] == "cancelled" and set(cancelled["uploads"]) == {"ready", "cancelled"}
    ready = {each["document"] for each in finished(client, job)["items"] if each["state"] == "ready"}
    put_in(client, [letter("badger")])
    shown = {each["id"] for each in good(client.get("/v1/documents"))["documents"]}
    assert shown == ready | {"letter"} and "first" in ready
    assert good(client.delete(f"/v1/jobs/{job}"))["uploads"] == cancelled["uploads"]
    assert client.delete("/v1/jobs/job-nobody").status_code == 404


def test_what_was_accepted_goes_on_after_a_restart_and_what_is_stored_is_found_again(
    service: Service, client: httpx.Client
) -> None:
    put_in(client, [*REGISTER, LEDGER])
    body = {"documents": [{"id": f"d{n}", **parts(9, n)} for n in range(8)]}
    job = good(client.post("/v1/documents", json=body))["job_id"]
    assert service.terminate() in (0, -SIGTERM)
    service.start()
    done = finished(client, job)
    assert (done["status"], done["stored"]) == ("done", 72)
    answer = ask(client, QUESTIONS[0])
    assert answer["answer"] == "badger" and "computed" not in sources(answer)
    assert "another fingerprint" not in service.text()


def chunks_of(client: httpx.Client, name: str) -> list[str]:
    return [each["chunk_id"] for each in good(client.get(f"/v1/documents/{name}/chunks"))["chunks"]]


def filler(count: int, seed: int = 0) -> Sequence[Json]:
    """Chunks that answer nothing."""
    return [{"text": f"Shop {seed}.{number} sells lamps. The ink is still easy to read."} for number in range(count)]


def parts(count: int, seed: int) -> Json:
    return {"chunks": filler(count, seed), "metadata": {"filler": True}}


def pdf(text: str) -> bytes:
    """A file of one page with one line."""
    stream = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    body, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    start = len(body)
    return body + b"xref\n0 6\n0000000000 65535 f \n%strailer << /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (
        table,
        start,
    )
