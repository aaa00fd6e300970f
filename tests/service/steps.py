"""Requests that one key sends in a row, to every endpoint there is, and what it is told: what may differ is taken out.

Whoever sends the same twice, in worlds that differ in what the key must not see, is told the same twice.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

import httpx

from retriever.documents import chunk_id
from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import Json, finished, good, wait_for

LETTER, REGISTER, LEDGER = PASSAGES[1].text, PASSAGES[0].text, PASSAGES[2].text
HIDDEN = "Selark keeps a heron in Fenhaven. It is fed by Dalware at noon."
FRESH = "Mirel sells maps in Odan. Nobody else has any."
CLOSED = "closed"  # a collection of others, with a system prompt of its own
TEAM: Json = {"team": "a"}
SAMPLING: Json = {"max_tokens": 3}
CHAT = f"{LETTER}\n\nQuestion: {QUESTIONS[0]}"
PLAIN = "Tell me what is kept in a house by the river, in few words and without any haste, as you did before."
BEHIND: Json = {"question": QUESTIONS[0], "system": PLAIN, "chunk_ids": [chunk_id(LETTER)], "sampling": SAMPLING}
CACHE = ("lookup", "prefetch", "pin", "unpin", "evict")

ONE = "/v1/documents/{document_id}"
COLLECTION = "/v1/collections/{name}"
JOB = "/v1/jobs/{job_id}"
HANDLE = "/v1/handoffs/{handle}"
RESPONSE = "/v1/responses/{response_id}"
STORE = "/v1/vector_stores/{vector_store_id}"
STORED = f"{STORE}/files/{{file_id}}"
FILE = "/v1/files/{file_id}"
BATCH = f"{STORE}/file_batches/{{batch_id}}"

_MOVING = {"created", "created_at", "completed_at", "updated", "timings_ms", "id", "job_id", "request_id", "change"}
_SECRETS = {"handle", "salt"}
_MOVED = re.compile(r'"(created|updated|id|timings_ms|change)":(\{[^}]*\}|"[^"]*"|[0-9.]+)')
_JOB = re.compile(r"job-[\w-]+")


@dataclass(frozen=True, slots=True)
class Step:
    """A request. `OWN` in a path stands for the last job that this key began."""

    operation: str  # a method and a path, as the description of the interface has them
    names: dict[str, str] = field(default_factory=dict[str, str])
    body: object = None
    query: dict[str, str | int] = field(default_factory=dict[str, str | int])

    @property
    def method(self) -> str:
        return self.operation.partition(" ")[0]

    @property
    def path(self) -> str:
        path = self.operation.partition(" ")[2]
        for name, value in self.names.items():
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        return path

    def send(self, client: httpx.Client) -> httpx.Response:
        return client.request(self.method, self.path, json=self.body, params=self.query)


OWN = "OWN"


@dataclass(frozen=True, slots=True)
class Told:
    """What a step was answered, without what differs from one time to the next."""

    step: Step
    status: int
    body: object

    def __repr__(self) -> str:
        asked = f"{self.step.operation} {self.step.names} {self.step.body} {self.step.query}"
        return f"{asked}\n-> {self.status} {self.body}\n"


def document(name: str, *texts: str) -> Json:
    return {"id": name, "chunks": [{"text": text} for text in texts], "metadata": TEAM}


def asking(names: "Foreign") -> Iterator[Step]:
    """Everything that can be asked by name, about what is not the key's own."""
    for path in (ONE, f"{ONE}/chunks"):
        yield Step(f"GET {path}", {"document_id": names.document})
    yield Step(f"PATCH {ONE}", {"document_id": names.document}, {"metadata": TEAM})
    yield Step(f"DELETE {ONE}", {"document_id": names.document})
    yield Step("GET /v1/documents", query={"collection": CLOSED})
    yield Step("GET /v1/documents", query={"after": names.document, "filter": '{"team": "b"}'})
    yield Step(f"GET {COLLECTION}", {"name": CLOSED})
    for operation, body in ((f"GET {STORE}", None), (f"POST {STORE}", {}), (f"DELETE {STORE}", None)):
        yield Step(operation, {"vector_store_id": f"vs_{CLOSED}"}, body)
    yield Step(f"POST {STORE}/search", {"vector_store_id": f"vs_{CLOSED}"}, {"query": "heron Fenhaven"})
    yield from filing(f"vs_{CLOSED}", f"file-{names.document}")
    yield from filing("vs_default", f"file-{names.document}")
    yield Step(f"GET {BATCH}", {"vector_store_id": f"vs_{CLOSED}", "batch_id": f"vsfb_{names.job}"})
    for method, path in (("GET", JOB), ("GET", f"{JOB}/events"), ("DELETE", JOB)):
        yield Step(f"{method} {path}", {"job_id": names.job})
    yield Step(f"GET {JOB}", {"job_id": names.job}, query={"after": 0, "limit": 1})
    yield Step("GET /v1/jobs", query={"after": names.job})
    for what in CACHE:
        for which in ({"document_ids": [names.document]}, {"chunk_ids": [names.chunk]}, {"collection": CLOSED}):
            yield Step(f"POST /v1/cache/{what}", body=which)
    yield Step("POST /v1/rerank", body={"query": "heron", "chunk_ids": [names.chunk]})
    for more in ({"collection": CLOSED}, {"filter": {"team": "b"}}, {"neighbors": 3}):
        yield Step("POST /v1/search", body={"query": "heron Fenhaven", **more})
    for more in ({"chunk_ids": [names.chunk]}, {"collection": CLOSED}, {"filter": {"team": "b"}}, {"neighbors": 2}):
        yield Step("POST /v1/query", body={"question": "Who keeps a heron?", "sampling": SAMPLING, **more})
        yield Step("POST /v1/fuse", body={"question": "Who keeps a heron?", "max_tokens": 3, **more})
    yield Step(f"GET {HANDLE}", {"handle": names.handle})
    part: dict[str, str | int] = {"start": 0, "stop": 1}
    yield Step(f"GET {HANDLE}/layers/{{layer}}", {"handle": names.handle, "layer": "0"}, query=part)
    yield Step(f"DELETE {HANDLE}", {"handle": names.handle})
    for more in ({"chunk_ids": [names.chunk]}, {"collection": CLOSED}, {}):
        text = f"{HIDDEN}\n\nQuestion: Who keeps a heron?"
        yield Step("POST /v1/chat/completions", body=chat(text, **more))
        yield Step("POST /v1/responses", body=response(text, **more))
    yield Step("POST /v1/completions", body={"model": "default", "prompt": HIDDEN, "max_tokens": 3, "temperature": 0})
    yield Step("POST /v1/embeddings", body={"model": "default", "input": HIDDEN})
    yield Step("POST /v1/responses", body=response("Who keeps a heron?", previous_response_id=names.response))
    yield Step(f"GET {RESPONSE}/input_items", {"response_id": names.response})
    for method in ("GET", "DELETE"):
        yield Step(f"{method} {RESPONSE}", {"response_id": names.response})


def filing(store: str, file: str) -> Iterator[Step]:
    """Everything that can be asked of a file, by OpenAI's names."""
    yield Step(f"GET {FILE}", {"file_id": file})
    yield Step(f"GET {FILE}/content", {"file_id": file})
    here, there = {"vector_store_id": store}, {"vector_store_id": store, "file_id": file}
    yield Step(f"GET {STORE}/files", here)
    yield Step(f"POST {STORE}/files", here, {"file_id": file})
    yield Step(f"POST {STORE}/file_batches", here, {"file_ids": [file]})
    yield Step(f"GET {STORED}", there)
    yield Step(f"GET {STORED}/content", there)
    yield Step(f"POST {STORED}", there, {"attributes": TEAM})
    yield Step(f"DELETE {STORED}", there)
    yield Step(f"DELETE {FILE}", {"file_id": file})


@dataclass(frozen=True, slots=True)
class Foreign:
    """Names of what is not the key's own, or of nothing at all."""

    document: str = "hidden"
    chunk: str = chunk_id(HIDDEN)
    job: str = "job-0-0"
    handle: str = "none"
    response: str = "resp_none"


def response(text: str, **more: object) -> Json:
    return {"model": "default", "input": text, "max_output_tokens": 3, "temperature": 0, **more}


def chat(text: str, **more: object) -> Json:
    messages = [{"role": "user", "content": text}]
    return {"model": "default", "messages": messages, "max_tokens": 3, "temperature": 0, **more}


def looking() -> Iterator[Step]:
    """Everything that tells of the whole."""
    yield Step("GET /v1/documents")
    yield Step("GET /v1/collections")
    yield Step("GET /v1/vector_stores")
    yield Step("GET /v1/files")
    yield Step("GET /v1/jobs")
    yield Step("GET /v1/jobs", query={"limit": 1})
    yield Step("GET /v1/stats")
    yield Step("GET /v1/models")
    yield Step("GET /v1/models/{model}", {"model": "default"})


def writing() -> Iterator[Step]:
    """Documents whose texts others may have, too."""
    documents = [document("fresh", FRESH), document("letter", LETTER), document("pair", REGISTER, LEDGER)]
    yield Step("POST /v1/documents", body={"documents": documents})
    yield Step(f"PUT {ONE}", {"document_id": "hidden"}, without_id(document("hidden", FRESH)))
    yield Step(f"PUT {ONE}", {"document_id": "mine"}, {**without_id(document("mine", LETTER)), "collection": "mine"})
    yield Step("POST /v1/documents", body={"documents": [{"text": HIDDEN, "metadata": TEAM}], "collection": "mine"})


def without_id(given: Json) -> Json:
    return {name: value for name, value in given.items() if name != "id"}


def using() -> Iterator[Step]:
    """What can be done with documents of one's own. Nothing of it changes one."""
    yield Step(f"GET {JOB}", {"job_id": OWN})
    yield Step(f"GET {JOB}", {"job_id": OWN}, query={"limit": 2})
    yield Step(f"GET {JOB}/events", {"job_id": OWN})
    for name in ("letter", "pair", "mine", "hidden"):
        yield Step(f"GET {ONE}", {"document_id": name})
        yield Step(f"GET {ONE}/chunks", {"document_id": name})
    yield Step(f"GET {COLLECTION}", {"name": "mine"})
    yield Step(f"GET {STORE}", {"vector_store_id": "vs_mine"})
    yield Step(f"POST {STORE}", {"vector_store_id": "vs_mine"}, {"name": "mine"})
    yield Step(f"POST {STORE}/search", {"vector_store_id": "vs_mine"}, {"query": QUESTIONS[0]})
    yield Step("POST /v1/search", body={"query": QUESTIONS[0]})
    yield Step("POST /v1/search", body={"query": "captain", "neighbors": 1, "filter": TEAM})
    for _ in range(2):  # the second time from what the first one left
        yield Step("POST /v1/query", body=BEHIND)
        yield Step("POST /v1/query", body={"question": QUESTIONS[0], "sampling": SAMPLING})
        yield Step("POST /v1/fuse", body={"question": QUESTIONS[0], "max_tokens": 3})
        yield Step("POST /v1/chat/completions", body=chat(CHAT))
        yield Step("POST /v1/chat/completions", body=chat(PLAIN))
        yield Step("POST /v1/responses", body=response(CHAT))
    yield Step("POST /v1/chat/completions", body=chat(CHAT, stream=True, stream_options={"include_usage": True}))
    yield Step("POST /v1/query", body={"question": QUESTIONS[0], "sampling": SAMPLING, "stream": True})
    yield Step("POST /v1/query", body={"question": QUESTIONS[0], "documents": [{"text": LETTER}], "sampling": SAMPLING})
    yield Step("POST /v1/query", body={"question": QUESTIONS[2], "chunk_ids": ids_of(REGISTER, LETTER)})
    yield Step("DELETE /v1/sessions/{name}", {"name": "s"})
    yield Step("POST /v1/query", body={"question": QUESTIONS[2], "system": "Be brief.", "collection": "mine"})
    for chosen in ({"document_ids": ["fresh", "letter", "pair"]}, {"chunk_ids": ids_of(LEDGER, FRESH, LETTER)}):
        yield Step("POST /v1/cache/lookup", body=chosen)
    yield Step("POST /v1/cache/lookup", body={"collection": "mine"})
    for what in ("pin", "unpin", "prefetch"):
        yield Step(f"POST /v1/cache/{what}", body={"chunk_ids": ids_of(LETTER, REGISTER)})


def ending() -> Iterator[Step]:
    """The end of what `writing` made."""
    yield Step(f"PATCH {ONE}", {"document_id": "letter"}, {"metadata": {"seen": True}})
    yield Step("POST /v1/cache/evict", body={"document_ids": ["letter", "pair"]})
    yield Step("POST /v1/cache/lookup", body={"document_ids": ["letter", "pair"]})
    yield Step("POST /v1/query", body={"question": QUESTIONS[0], "chunk_ids": ids_of(LETTER), "sampling": SAMPLING})
    yield Step(f"DELETE {JOB}", {"job_id": OWN})
    for name in ("letter", "pair", "mine", "hidden"):
        yield Step(f"DELETE {ONE}", {"document_id": name})
    yield Step(f"PUT {COLLECTION}", {"name": "kept"}, {})
    yield Step("POST /v1/documents", body=document("filed", REGISTER))
    yield from filing("vs_default", "file-filed")
    yield Step("POST /v1/files", body={})
    yield Step("POST /v1/vector_stores", body={"name": "made"})
    yield Step(f"DELETE {STORE}", {"vector_store_id": "vs_made"})
    yield Step(f"DELETE {COLLECTION}", {"name": "mine"})


def every() -> list[Step]:
    """All of a life, in its order."""
    foreign = list(asking(Foreign()))
    named = [step for step in foreign if step.names]
    return [*looking(), *named, *writing(), *looking(), *foreign, *using(), *ending(), *looking()]


def ids_of(*texts: str) -> list[str]:
    return [chunk_id(text) for text in texts]


def live(client: httpx.Client, steps: Sequence[Step], at_rest: Callable[[], object]) -> list[Told]:
    """Send them one after the other; what was put in is waited for, and so is what is computed again or anew."""
    told: list[Told] = []
    job = "job-none"
    for step in steps:
        names = {name: job if value == OWN else value for name, value in step.names.items()}
        sent = Step(step.operation, names, step.body, step.query)
        response = sent.send(client)
        if response.status_code == 202:
            job = response.json()["job_id"]
            finished(client, job)
        at_rest()
        told.append(Told(step, response.status_code, body_of(response)))
        if lacking := missing_in(response):
            wait_stored(client, lacking)
    return told


def missing_in(response: httpx.Response) -> list[str]:
    """Chunks that an answer found evicted, which are computed again behind it."""
    if "json" not in response.headers.get("content-type", "") or '"evicted"' not in response.text:
        return []
    found = response.json()
    report = found.get("report") or found["kvweave"]["report"]
    return [each["chunk_id"] for each in report["chunks"] if each["miss_reason"] == "evicted"]


def wait_stored(client: httpx.Client, chunks: Sequence[str]) -> None:
    def is_stored() -> bool:
        found = good(client.post("/v1/cache/lookup", json={"chunk_ids": list(chunks)}))["chunks"]
        return bool(found) and all(each["state"] == "stored" for each in found)

    wait_for(is_stored, "what was missing is stored again")


def body_of(response: httpx.Response) -> object:
    """Without times, and with job ids that are all the same."""
    if "json" in response.headers.get("content-type", ""):
        return still(response.json())
    return _JOB.sub("job", _MOVED.sub("", response.text))


def still(found: object) -> object:
    """What does not move of it."""
    match found:
        case dict():
            told = {name: value for name, value in found.items() if name not in _MOVING or is_name(value)}
            return {name: still(value) for name, value in told.items() if name not in _SECRETS}
        case list():
            return [still(each) for each in found]
        case str():
            return _JOB.sub("job", found)
        case _:
            return found


def is_name(value: object) -> bool:
    """Documents are named by who puts them in, so their ids do not move."""
    return isinstance(value, str) and not re.match(r"(job|query|fuse|(chat)?cmpl)-|(resp|msg)_|[0-9a-f]{16,}$", value)
