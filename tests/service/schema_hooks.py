"""What the generator of requests cannot know: what is there to ask for, and the rules that no JSON schema can say."""

from __future__ import annotations

import json
import os
import re
from typing import Any, cast
from zlib import crc32

import schemathesis
from schemathesis import Case, HookContext, Response
from schemathesis.core.failures import AcceptedNegativeData, Failure, ServerError
from schemathesis.generation import GenerationMode
from schemathesis.generation.meta import TestPhase
from schemathesis.openapi.checks import RejectedPositiveData, UseAfterFree

from service.api.changes import HEADER

CHUNKS = "KVWEAVE_TEST_CHUNKS"  # ids of chunks that are there
DOCUMENT = "letter/0"  # that is there
MOST_TOKENS = 4

CHATS = "POST /v1/((chat/)?completions|responses)"
TOOLED = "POST /v1/(chat/completions|responses)"

Rule = tuple[type[Failure], str, str]  # a check's failure, the operation, and what the answer says

UNSAYABLE: tuple[Rule, ...] = (
    # A schema knows the bytes of a file, and not its name.
    (RejectedPositiveData, "POST /v1/(documents|files)", "is of no known kind: its name must end in"),
    # One file that is read is enough: the others are refused by name.
    (AcceptedNegativeData, "POST /v1/documents", '"refused":["'),
    # A schema knows the first items of an array, and not the last.
    (RejectedPositiveData, "POST /v1/(query|fuse)", "the last message is the user's question"),
    (RejectedPositiveData, CHATS, "the last message is the user's, where documents are read"),
    # Nor one of them in the light of a field.
    (RejectedPositiveData, "POST /v1/(query|fuse)", "the messages have a system prompt already"),
    # A schema knows of no rules of a collection.
    (RejectedPositiveData, "POST /v1/(search|query|fuse|chat/completions|responses)", "is kept without search"),
    # A schema counts each list alone, and not how long an address becomes.
    (RejectedPositiveData, ".*", "the filter compares with more than"),
    (RejectedPositiveData, ".*", "the filter has more than"),
    (RejectedPositiveData, ".*", "the address and the headers have at most"),
    # A schema knows of no generator.
    (RejectedPositiveData, "POST /v1/chat/completions", "one answer for a request"),
    (RejectedPositiveData, "POST /v1/chat/completions", "only vLLM obeys these"),
    (RejectedPositiveData, TOOLED, "either tools or a response_format"),
    (RejectedPositiveData, TOOLED, "with tools there are no logprobs"),
    (RejectedPositiveData, CHATS, "there are no tools to choose of"),
    (RejectedPositiveData, CHATS, "file_search names what is searched already"),
    (RejectedPositiveData, "POST /v1/chat/completions", "either response_format or structured_outputs"),
    (RejectedPositiveData, "POST /v1/completions", "one answer for a prompt"),
    (RejectedPositiveData, "POST /v1/completions", "a stream is of one prompt"),
    (RejectedPositiveData, "POST /v1/completions", "there are no logprobs of a prompt"),
    # Nor of an embedder.
    (RejectedPositiveData, "POST /v1/embeddings", "dimensions, not"),
    # Nor of a template, other fields, or JSON within a text.
    (RejectedPositiveData, TOOLED, "chat template knows no tools"),
    (RejectedPositiveData, TOOLED, "there is no tool"),
    (RejectedPositiveData, TOOLED, "two tools have the name"),
    (RejectedPositiveData, TOOLED, "the parameters of"),
    (RejectedPositiveData, TOOLED, "the arguments are"),
    # A schema knows of no vocabulary.
    (RejectedPositiveData, CHATS, "leave it out of logit_bias"),
    # Numbers beside 2**63 are the same to what generates them, which counts in doubles.
    (RejectedPositiveData, "POST /v1/(query|(chat/)?completions|responses)", "9223372036854775808"),
    # A deadline may be as short as anybody likes, and an address as long.
    (ServerError, "POST /v1/(query|(chat/)?completions|responses)", "not whole in the time that it was given"),
    (AcceptedNegativeData, ".*", "the address and the headers have at most"),
    # Deleting a job cancels it; what became of it can be read afterwards.
    (UseAfterFree, "(GET|DELETE) /v1/jobs/.*", ""),
)


@schemathesis.hook
def filter_failure(context: HookContext, failure: Failure, case: Case, response: Response) -> bool:
    """Keep all but what no schema can say."""
    return not any(
        isinstance(failure, kind) and re.fullmatch(operation, case.operation.label) and said in response.text
        for kind, operation, said in UNSAYABLE
    )


@schemathesis.hook
def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:
    """Answers are short, and half of the valid requests ask for what is there."""
    if case.meta is None or case.meta.generation.mode != GenerationMode.POSITIVE:
        return
    if case.meta.phase.name != TestPhase.STATEFUL and case.method in ("GET", "PATCH") and _half(case.path_parameters):
        case.path_parameters = {
            name: {"document_id": DOCUMENT, "name": "default", "model": "default"}.get(name, value)
            for name, value in case.path_parameters.items()
        }
    if case.headers:
        case.headers.pop(HEADER, None)  # what this catalog told is nothing that can be guessed
    if isinstance(case.body, dict):
        case.body = _mended(case.operation.label, cast(dict[str, Any], case.body))


def _mended(operation: str, body: dict[str, Any]) -> dict[str, Any]:
    body = {**body, **(_there(body) if _half(body) else {})}
    if operation == "POST /v1/query":
        body["sampling"] = _short(body.get("sampling") or {})
    if operation == "POST /v1/chat/completions":
        body = _short({name: value for name, value in body.items() if name != "max_completion_tokens"})
    if operation == "POST /v1/responses":
        body = {**body, "max_output_tokens": min(int(body.get("max_output_tokens") or MOST_TOKENS), MOST_TOKENS)}
    return body


def _there(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if body.get("chunk_ids"):
        found["chunk_ids"] = os.environ[CHUNKS].split()
    if body.get("collection"):
        found["collection"] = "default"
    if body.get("model"):
        found["model"] = "default"
    if body.get("messages"):
        found["messages"] = [*body["messages"][:-1], {**body["messages"][-1], "role": "user"}]
    return found


def _short(sampling: dict[str, Any]) -> dict[str, Any]:
    return {**sampling, "max_tokens": min(int(sampling.get("max_tokens") or MOST_TOKENS), MOST_TOKENS)}


def _half(value: object) -> bool:
    """The same for the same value, in every run."""
    return bool(crc32(json.dumps(value, sort_keys=True, default=repr).encode()) % 2)
