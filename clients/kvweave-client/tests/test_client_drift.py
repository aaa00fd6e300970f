"""The client's types against the description that a service gives of itself: what one has, the other has.

A field that the service adds fails here, until the client has it or `LEFT_OUT` says why not.
"""

import re
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import httpx
import msgspec
import pytest
from msgspec import inspect

from clients.tests import canned
from kvweave_client import answers, chatting, errors, operations, options, pages
from kvweave_client.requests import Listing, Operation, Request, Streaming

Json = dict[str, Any]

# An example of each operation, with the types of its answer, by the names that the service's schemas have.
CALLS: dict[str, tuple[Operation[Any] | Listing[Any] | Streaming[Any], dict[str, type]]] = {
    "health": (operations.health(), {"Health": answers.Health}),
    "ready": (operations.ready(), {"Health": answers.Health}),
    "stats": (operations.stats(), {"Stats": answers.Stats}),
    "models": (operations.models(), {"ModelList": pages.Models}),
    "search": (operations.search("?"), {"SearchAnswer": pages.SearchAnswer}),
    "rerank": (operations.rerank("?", documents=["a"]), {"RerankAnswer": pages.Results}),
    "query": (operations.query("?"), {"QueryAnswer": answers.Answer}),
    "stream_query": (
        operations.stream_query("?"),
        {
            "RetrievedEvent": answers.Retrieved,
            "LoadedEvent": answers.Loaded,
            "FusedEvent": answers.Fused,
            "TokenEvent": answers.Token,
            "Problem": errors.Problem,
        },
    ),
    "chat": (operations.chat([]), {"ChatCompletion": chatting.Completion}),
    "stream_chat": (operations.stream_chat([]), {}),  # chunks are no schema; live tests hold them against answers
    "put_documents": (operations.put_documents([]), {"Accepted": answers.Accepted}),
    "documents": (operations.documents(), {"DocumentPage": pages.Documents}),
    "document": (operations.document("d"), {"DocumentOut": answers.Document}),
    "put_document": (operations.put_document("d", text="x"), {"Accepted": answers.Accepted}),
    "patch_document": (operations.patch_document("d", {}), {"DocumentOut": answers.Document}),
    "delete_document": (operations.delete_document("d"), {"Deleted": answers.Deleted}),
    "chunks": (operations.chunks("d"), {"ChunkPage": pages.Chunks}),
    "collections": (operations.collections(), {"CollectionList": pages.Collections}),
    "collection": (operations.collection("c"), {"CollectionOut": answers.Collection}),
    "put_collection": (operations.put_collection("c"), {"CollectionOut": answers.Collection}),
    "delete_collection": (operations.delete_collection("c"), {"CollectionDeleted": answers.CollectionDeleted}),
    "jobs": (operations.jobs(), {"JobPage": pages.Jobs}),
    "job": (operations.job("j"), {"JobOut": answers.Job}),
    "job_items": (operations.job_items("j"), {"JobDetail": pages.Items}),
    "cancel_job": (operations.cancel_job("j"), {"JobOut": answers.Job}),
    "follow_job": (operations.follow_job("j"), {"JobOut": answers.Job}),
    "lookup": (operations.lookup(collection="c"), {"LookupAnswer": pages.States}),
    "prefetch": (operations.prefetch(collection="c"), {"Touched": answers.Touched}),
    "pin": (operations.pin(collection="c"), {"Touched": answers.Touched}),
    "unpin": (operations.unpin(collection="c"), {"Touched": answers.Touched}),
    "evict": (operations.evict(collection="c"), {"Touched": answers.Touched}),
    "end_session": (operations.end_session("s"), {}),
    "blend_switch": (operations.blend_switch(), {"BlendSwitch": answers.BlendSwitch}),
    "put_blend_switch": (operations.put_blend_switch(enabled=True), {"BlendSwitch": answers.BlendSwitch}),
}

REQUESTS: dict[str, type] = {
    "ChunkIn": options.NewChunk,
    "NewDocument": options.NewDocument,
    "LooseIn": options.LooseDocument,
    "MessageIn": options.Message,
    "Message": options.Message,
    "BlendIn": options.Blend,
    "SamplingIn": options.Sampling,
    "Replacement": options.DocumentFields,
    "Rules": options.Rules,
    "SearchRequest": options.SearchOptions,
    "QueryRequest": options.QueryOptions,
    "ChatRequest": options.ChatOptions,
    "RerankRequest": options.RerankOptions,
    "LookupRequest": options.Choice,
    "CacheChoice": options.Choice,
}

LEFT_OUT: dict[str, set[str]] = {
    # What operations take as arguments of their own, or set themselves.
    "SearchRequest": {"query"},
    "QueryRequest": {"question", "messages", "stream"},
    "RerankRequest": {"query"},
    "LookupRequest": {"after", "limit"},
    "ChatRequest": {"messages", "stream", "stream_options", "n", "max_completion_tokens"},
    "Message": {
        "name",
        "refusal",
        "annotations",
        "audio",
        "cache_control",
        "reasoning_content",
        "tool_calls",
        "tool_call_id",
        "function_call",
    },
    # What pages say of a job besides, and who asks for chunks knows which of them are unknown.
    "JobDetail": {
        "id",
        "status",
        "uploads",
        "chunks",
        "stored",
        "over_budget",
        "unsupported",
        "created",
        "updated",
        "change",
        "search_waits",
    },
    "LookupAnswer": {"unknown"},
    # What OpenAI's form has to say and says nothing, or what is the sum of others.
    "ModelList": {"object"},
    "Model": {"object", "created", "owned_by", "embedder"},
    "ChatCompletion": {"object", "created", "system_fingerprint"},
    "Choice": {"index"},
    "AnswerMessage": {"role", "refusal", "tool_calls"},  # tools are for OpenAI's own client
    "CompletionUsage": {"total_tokens"},
    "Logprobs": {"refusal"},
    "TokenLogprob": {"bytes"},
    "TopLogprob": {"bytes"},
}
REFUSED_BY_OPENAI_FORM = re.compile("tool|function|audio|web_search|moderation|store|user|metadata|service_tier|safety")
IGNORED_BY_OPENAI_FORM = re.compile("prompt_cache|prediction|reasoning_effort|verbosity|parallel|modalities")

SCALARS: dict[type, set[str]] = {
    inspect.StrType: {"string"},
    inspect.IntType: {"integer"},
    inspect.FloatType: {"number", "integer"},
    inspect.BoolType: {"boolean"},
    inspect.DictType: {"object"},
    inspect.NoneType: {"null"},
}


@pytest.fixture(scope="module")
def described(service: Any) -> Json:  # noqa: ANN401
    """What the service says of itself."""
    return httpx.get(f"{service.base_url}/openapi.json", trust_env=False, timeout=60).json()


def requests_of(operation: Operation[Any] | Listing[Any] | Streaming[Any]) -> Request:
    return operation.page(None).request if isinstance(operation, Listing) else operation.request


def test_every_route_is_reached_and_every_operation_has_one(described: Json) -> None:
    routes = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    reached: set[tuple[str, str]] = set()
    for operation, _ in CALLS.values():
        request = requests_of(operation)
        address = request.path.partition("?")[0]
        fitting = [path for method, path in routes if method == request.method and _fits(path, address)]
        assert fitting, f"{request.name} is no route"
        reached.add((request.method, min(fitting, key=lambda path: path.count("{"))))
    # The metrics are for Prometheus; there is one model, which the list tells whole; vLLM fetches its prompts; and the
    # rest of OpenAI's interface is for OpenAI's own client.
    others = {("GET", "/metrics"), ("GET", "/v1/models/{model}")}
    assert {
        each
        for each in routes - reached
        if not re.match("/v1/(fuse|handoffs|completions|responses|vector_stores|files|embeddings)", each[1])
    } == others


def _fits(template: str, address: str) -> bool:
    return bool(re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), address))


def test_what_is_listed_here_is_all() -> None:
    named = {name for name in vars(operations) if not name.startswith("_")}
    built = {name for name in named if getattr(getattr(operations, name), "__module__", "") == operations.__name__}
    assert built == {*CALLS, "upload_files"}


ANSWERS = {name: kind for _, kinds in CALLS.values() for name, kind in kinds.items()}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_has_the_fields_that_the_service_describes(described: Json, name: str) -> None:
    assert list(_differences(described, name, inspect.type_info(ANSWERS[name]))) == []


def _differences(described: Json, name: str, found: inspect.Type) -> Iterator[str]:
    """Fields of one and not of the other, and types that do not fit; all the way down."""
    schema = described["components"]["schemas"][name]
    assert isinstance(found, inspect.StructType)
    ours = {field.encode_name: field for field in found.fields}
    missing = schema["properties"].keys() - ours.keys() - LEFT_OUT.get(name, set())
    yield from (f"{name}.{field} is not in {found.cls.__name__}" for field in missing)
    for field in ours.values():
        if field.encode_name not in schema["properties"]:
            yield f"{found.cls.__name__}.{field.name} is not in {name}"
            continue
        if field.required and field.encode_name not in schema["required"]:
            yield f"{name}.{field.name} may be left out, {found.cls.__name__} needs it"
        yield from _unfitting(described, f"{name}.{field.name}", schema["properties"][field.encode_name], field.type)


def _unfitting(described: Json, place: str, schema: Json, found: inspect.Type) -> Iterator[str]:
    if isinstance(found, inspect.AnyType):
        return
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        found = _without_null(found)
        yield from _differences(described, name, found) if isinstance(found, inspect.StructType) else [place]
        return
    branches = schema.get("anyOf", [schema])
    for branch in branches:
        if branch.get("type") == "null":
            if not (isinstance(found, inspect.UnionType) and found.includes_none):
                yield f"{place} may be null"
        elif "$ref" in branch:
            yield from _unfitting(described, place, branch, found)
        elif branch.get("type") == "array":
            inner = _without_null(found)
            if not isinstance(inner, inspect.VarTupleType):
                yield f"{place} is a list"
            else:
                yield from _unfitting(described, place, branch["items"], inner.item_type)
        elif branch.get("type", "object") not in SCALARS[type(_without_null(found))]:
            yield f"{place} is {branch.get('type')}"


def _without_null(found: inspect.Type) -> inspect.Type:
    if isinstance(found, inspect.UnionType):
        [found] = [each for each in found.types if not isinstance(each, inspect.NoneType)]
    return found


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_can_say_what_the_service_takes(described: Json, name: str) -> None:
    schema, ours = described["components"]["schemas"][name], get_type_hints(REQUESTS[name])
    theirs = schema["properties"].keys() - LEFT_OUT.get(name, set())
    if name == "ChatRequest":
        theirs = {each for each in theirs if not REFUSED_BY_OPENAI_FORM.search(each)}
        theirs = {each for each in theirs if not IGNORED_BY_OPENAI_FORM.search(each)}
    assert set(ours) == set(theirs)
    needed = set(schema.get("required", [])) - LEFT_OUT.get(name, set()) - {"model"}
    assert needed <= REQUESTS[name].__required_keys__  # type: ignore[attr-defined]


def test_choices_are_the_services(described: Json) -> None:
    schemas = described["components"]["schemas"]
    [policies] = [branch["enum"] for branch in schemas["BlendIn"]["properties"]["policy"]["anyOf"] if "enum" in branch]
    assert set(policies) == set(get_args(options.Policy))
    [modes] = [branch["enum"] for branch in schemas["SearchRequest"]["properties"]["mode"]["anyOf"] if "enum" in branch]
    assert set(modes) == set(get_args(options.Mode))


CANNED: dict[str, object] = {
    "QueryAnswer": canned.ANSWER,
    "ChatCompletion": canned.COMPLETION,
    "DocumentOut": canned.DOCUMENT,
    "JobOut": canned.JOB,
    "UploadOut": canned.ITEM,
    "Accepted": canned.ACCEPTED,
    "Problem": canned.PROBLEM,
    "ErrorBody": canned.OPENAI_ERROR,
}


@pytest.mark.parametrize("name", CANNED)
def test_what_other_tests_take_for_an_answer_could_be_one(described: Json, name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = {"$ref": f"#/components/schemas/{name}", "components": described["components"]}
    jsonschema.validate(CANNED[name], schema)


def test_a_type_is_made_of_fields_that_the_tests_can_read() -> None:
    """So that `_differences` passes over none of them."""
    known = (*SCALARS, inspect.VarTupleType, inspect.StructType, inspect.UnionType, inspect.AnyType)
    for kind in ANSWERS.values():
        for field in msgspec.structs.fields(kind):
            assert isinstance(inspect.type_info(field.type), known)
