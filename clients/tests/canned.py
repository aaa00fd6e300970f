"""Answers of a service as literals, for tests that have none, and passages for those that have one.

The tests of kvweave-client hold the answers against its API.
"""

from clients.tests.scripted import event

Found = dict[str, object]

# All that is known of Halio, Norworks and Selark: the built-in model reads such worlds.
PASSAGES = (
    "Code K7 stands for Belford. Nothing else was noted on that day. The captain is Corina.",
    "Halio lives in K7. Halio keeps a badger. Norworks was founded by the captain.",
    "Norworks makes lamps. The ink is still easy to read. The next page is about Selark.",
    "It is led by Rosen. Some lamps are made by Dalware. Dalware is based in Fenhaven.",
)

USAGE: Found = {"prompt_tokens": 40, "completion_tokens": 2, "reused_tokens": 30, "recomputed_tokens": 3}
CHUNK: Found = {
    "chunk_id": "0" * 32,
    "source": "ram",
    "tokens": 33,
    "recomputed": 3,
    "bytes": 4096,
    "miss_reason": None,
}
REPORT: Found = {
    "policy": "hybrid",
    "ratio": 0.15,
    "chunks": [CHUNK],
    "dropped": [],
    "timings_ms": {"fuse": 1.5},
    "notes": [],
}
SOURCE: Found = {
    "chunk_id": "0" * 32,
    "document_id": "d",
    "title": "Halio",
    "score": 1.0,
    "text": "Halio keeps a badger.",
    "metadata": {},
    "page": None,
    "start": None,
    "end": None,
}
ANSWER: Found = {
    "id": "q-1",
    "answer": "badger",
    "finish_reason": "stop",
    "sources": [SOURCE],
    "usage": USAGE,
    "report": REPORT,
}
DOCUMENT: Found = {
    "id": "d",
    "collection": "default",
    "title": "Halio",
    "metadata": {},
    "chunks": 1,
    "created": 1.0,
    "updated": 1.0,
}
JOB: Found = {
    "id": "job-1",
    "status": "done",
    "uploads": {"ready": 1},
    "chunks": 1,
    "stored": 1,
    "over_budget": 0,
    "unsupported": 0,
    "created": 1.0,
    "updated": 1.0,
    "search_waits": "",
    "change": "00",
}
ITEM: Found = {
    "document": "d",
    "collection": "default",
    "file": "",
    "state": "ready",
    "chunks": 1,
    "stored": 1,
    "over_budget": 0,
    "unsupported": 0,
    "detail": "",
}
ACCEPTED: Found = {"job_id": "job-1", "documents": ["d"], "files": [], "refused": []}
EXTRA: Found = {"report": REPORT, "sources": [SOURCE], "recomputed_tokens": 3}
CHAT_USAGE: Found = {
    "prompt_tokens": 40,
    "completion_tokens": 2,
    "total_tokens": 42,
    "prompt_tokens_details": {"cached_tokens": 30},
}
COMPLETION: Found = {
    "id": "c-1",
    "object": "chat.completion",
    "created": 1,
    "model": "builtin",
    "system_fingerprint": "builtin-1",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "badger"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": CHAT_USAGE,
    "kvweave": EXTRA,
}
QUERY_EVENTS = (
    event("retrieved", {"id": "q-1", "sources": [SOURCE]}),
    event("loaded", {"chunks": [CHUNK]}),
    event("fused", {"usage": USAGE, "report": REPORT}),
    event("token", {"text": "bad"}),
    event("token", {"text": "ger"}),
    event("done", ANSWER),
)


def _part(delta: Found, *, reason: str | None = None) -> str:
    choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
    return event("", {"id": "c-1", "model": "builtin", "choices": choices, "usage": None})


CHAT_EVENTS = (
    _part({"role": "assistant", "content": ""}),
    _part({"content": "bad"}),
    _part({"content": "ger"}),
    _part({}, reason="stop"),
    event("", {"id": "c-1", "model": "builtin", "choices": [], "usage": CHAT_USAGE, "kvweave": EXTRA}),
    event("", "[DONE]"),
)
PROBLEM: Found = {
    "type": "about:blank",
    "title": "The request is not valid",
    "status": 422,
    "detail": "top_k: it must be at least 1",
    "request_id": "r-1",
    "errors": [{"field": "top_k", "message": "it must be at least 1"}],
}
OPENAI_ERROR: Found = {
    "error": {"message": "Invalid value for 'stop'", "type": "invalid_request_error", "param": "stop", "code": None}
}
