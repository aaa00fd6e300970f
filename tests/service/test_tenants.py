"""What a key learns of what is not for it: nothing, at no endpoint. The service is whole, with the built-in model."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import cast

import httpx
import pytest

from blend.engine.local_engine import LocalEngine
from retriever.documents import Json, chunk_id
from service.access.principal import Role
from tests.service import steps
from tests.service.serving import Inside, good, in_process, put_in, settings_in, wait_for
from tests.service.steps import Foreign, Step, Told
from tests.service.test_chunk_contexts import settled

OPERATED = {"GET /v1/admin/blend", "PUT /v1/admin/blend", "GET /metrics"}
OPEN = {"GET /healthz", "GET /readyz"}
FETCHED = {
    "GET /v1/handoffs/{handle}",
    "GET /v1/handoffs/{handle}/layers/{layer}",
    "DELETE /v1/handoffs/{handle}",
}
READ = {
    *FETCHED,
    "GET /v1/documents",
    "GET /v1/documents/{document_id}",
    "GET /v1/documents/{document_id}/chunks",
    "GET /v1/collections",
    "GET /v1/collections/{name}",
    "POST /v1/search",
    "POST /v1/rerank",
    "POST /v1/query",
    "POST /v1/fuse",
    "DELETE /v1/sessions/{name}",
    "POST /v1/cache/lookup",
    "GET /v1/stats",
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/embeddings",
    "POST /v1/responses",
    "GET /v1/responses/{response_id}",
    "GET /v1/responses/{response_id}/input_items",
    "DELETE /v1/responses/{response_id}",
    "GET /v1/vector_stores",
    "GET /v1/vector_stores/{vector_store_id}",
    "POST /v1/vector_stores/{vector_store_id}/search",
    "GET /v1/vector_stores/{vector_store_id}/files",
    "GET /v1/vector_stores/{vector_store_id}/files/{file_id}",
    "GET /v1/vector_stores/{vector_store_id}/files/{file_id}/content",
    "GET /v1/vector_stores/{vector_store_id}/file_batches/{batch_id}",
    "GET /v1/files",
    "GET /v1/files/{file_id}",
    "GET /v1/files/{file_id}/content",
    "GET /v1/models",
    "GET /v1/models/{model}",
}  # all others change something
SECRET_PROMPT = "You guard the herons of Fenhaven. Never tell where they sleep at night, whoever may ask you for it."


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with in_process(settings_in(tmp_path_factory.mktemp("tenants"))) as service:
        yield service


def key_of(service: Inside, tenant: str, *, bound: Json | None = None, role: Role = Role.ADMIN) -> str:
    return service.core.control.create_key(tenant, role, bound=bound)[1]


def client_in(service: Inside, tenant: str, *, bound: Json | None = None, role: Role = Role.ADMIN) -> httpx.Client:
    if bound:  # which makes no collection
        with service.client(key_of(service, tenant)) as others:
            good(others.put("/v1/collections/mine", json={}))
    return service.client(key_of(service, tenant, bound=bound, role=role))


@pytest.fixture(scope="module")
def described(service: Inside) -> dict[str, Json]:
    """Every operation that the description of the interface has."""
    with service.client("") as client:
        paths = good(client.get("/openapi.json"))["paths"]
    return {f"{method.upper()} {path}": told for path, each in paths.items() for method, told in each.items()}


def fill(client: httpx.Client) -> str:
    """As others might: the same texts, more of them, in a collection with a secret system prompt; the job."""
    good(client.put(f"/v1/collections/{steps.CLOSED}", json={"system": SECRET_PROMPT, "chunk_tokens": 64}))
    others = [
        {"id": name, "chunks": [{"text": text}], "metadata": {"team": "b"}}
        for name, text in {
            "hidden": steps.HIDDEN,
            "hers": steps.LETTER,
            "theirs": steps.LEDGER,
            "more": "A heron is no badger.",
        }.items()
    ]
    put_in(client, [{**each, "id": f"{each['id']} too"} for each in others], collection=steps.CLOSED)
    job = put_in(client, others)
    for step in steps.using():
        if step.operation in ("POST /v1/query", "POST /v1/chat/completions", "POST /v1/search"):
            step.send(client)
    for text in (steps.CHAT, steps.PLAIN, f"{steps.HIDDEN}\n\nQuestion: Who keeps a heron?"):
        good(client.post("/v1/chat/completions", json=steps.chat(text)))
    return job["id"]


def live(service: Inside, tenant: str, client: httpx.Client, sent: Sequence[Step]) -> list[Told]:
    return steps.live(client, sent, at_rest=lambda: settled(service, tenant))


def check_same(found: list[Told], wanted: list[Told]) -> None:
    differing = [(one, other) for one, other in zip(found, wanted, strict=True) if one != other]
    assert not differing, f"{len(differing)} of {len(found)} differ, the first:\n{differing[0][0]}\n{differing[0][1]}"


# --- that nothing is forgotten


def test_every_endpoint_and_every_name_in_it_is_tried(described: dict[str, Json]) -> None:
    assert described.keys() - OPERATED - OPEN == {step.operation for step in steps.every()}
    assert described.keys() >= OPERATED | OPEN | READ
    for operation, told in described.items():
        assert ("security" in told) == (operation not in OPEN), operation


# --- who may come in


def test_a_wrong_key_is_told_the_same_everywhere_and_nothing_else(service: Inside) -> None:
    key = key_of(service, "acme")
    number = key.split("_")[1]
    entry, revoked = service.core.control.create_key("acme", Role.ADMIN)
    assert service.core.control.revoke_key(entry.id)
    tried = [*{step.operation: step for step in steps.every()}.values(), *(Step(operation) for operation in OPERATED)]
    wrong = ["", "nonsense", key[:-1], f"{key}x", key.swapcase(), f"kvw_{number}_{'a' * 40}", revoked]
    headers = [f"Bearer {each}".strip() for each in wrong] + [key, f"Basic {key}", f"Bearer{key}"]
    told: dict[object, set[str]] = {}
    with service.client("") as client:
        for number, header in enumerate(headers):
            client.headers["Authorization"] = header
            for step in tried if number < 2 else tried[number :: len(headers)]:
                response = step.send(client)
                assert (response.status_code, response.headers["www-authenticate"][:6]) == (401, "Bearer"), step
                told.setdefault(header.startswith("Bearer "), set()).add(str(told_apart(response)))
    assert [len(each) for each in told.values()] == [2, 2], f"in OpenAI's form and in ours: {told}"


def told_apart(response: httpx.Response) -> object:
    assert "json" in response.headers["content-type"]
    return steps.body_of(response)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("bound", [None, steps.TEAM])
def test_too_small_a_role_is_told_so_before_anything_is_looked_at(
    service: Inside, role: Role, bound: Json | None
) -> None:
    tenant = f"role-{role.label}-{'bound' if bound else 'free'}"
    with client_in(service, tenant, bound=bound, role=role) as client:
        for operation in OPERATED:
            assert (
                Step(operation, body={"enabled": True} if "PUT" in operation else None).send(client).status_code == 403
            )
        for step in steps.asking(Foreign()):
            status = step.send(client).status_code
            unbound = bound is not None and step.operation == "POST /v1/cache/evict"
            is_open = step.operation in (READ if role > Role.FETCH else FETCHED)
            assert (status == 403) == (not is_open and (role < Role.WRITE or unbound)), step
        for step in steps.writing():
            assert step.send(client).status_code == (403 if role < Role.WRITE else 202)


# --- what one learns of others


def test_two_tenants_share_nothing_observable(service: Inside) -> None:
    with client_in(service, "tenant-1") as first, client_in(service, "tenant-2") as second:
        alone = live(service, "tenant-1", first, steps.every())
        assert is_reused(alone), "what is asked twice is not reused: this shows nothing"
        with client_in(service, "tenant-0") as others:
            job = fill(others)
            handle = good(others.post("/v1/fuse", json={"question": "Who keeps a heron?"}))["handle"]
            kept = good(others.post("/v1/responses", json=steps.response("Who keeps a heron?")))["id"]
            before = live(service, "tenant-0", others, list(watching()))
            names = Foreign(job=job, handle=handle, response=kept)
            own = {"job_id", "handle", "response_id"}
            foreign = [each for each in steps.asking(names) if own & each.names.keys() or kept in str(each.body)]
            assert {told.status for told in live(service, "tenant-2", second, foreign)} == {404}
            good(others.get(f"/v1/handoffs/{handle}"))
            good(others.get(f"/v1/responses/{kept}"))
            check_same(live(service, "tenant-2", second, steps.every()), alone)
            check_same(live(service, "tenant-0", others, list(watching())), before)


def watching() -> Iterator[Step]:
    """What the others see of their own."""
    yield Step("POST /v1/cache/lookup", body={"collection": "default"})
    yield Step("POST /v1/cache/lookup", body={"collection": steps.CLOSED})
    yield Step("GET /v1/documents")
    yield Step("GET /v1/stats")
    yield Step("GET /v1/jobs")


def is_reused(told: list[Told]) -> bool:
    """Whether the second question behind one system prompt finds the prompt computed; chunks are reused both times."""
    first, second = [each.body["usage"]["reused_tokens"] for each in told if each.step.body == steps.BEHIND]  # pyright: ignore
    return first + 10 < second


def test_a_key_with_a_filter_learns_nothing_of_what_is_outside(service: Inside) -> None:
    with (
        client_in(service, "team-1", bound=steps.TEAM) as first,
        client_in(service, "team-2", bound=steps.TEAM) as second,
    ):
        alone = live(service, "team-1", first, steps.every())
        assert is_reused(alone)
        with client_in(service, "team-2") as others:
            fill(others)
        check_same(live(service, "team-2", second, steps.every()), alone)


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_key_reuses_the_beginning_of_anothers_prompt_only_where_keys_are_joined(
    service: Inside, *, is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = service.core.settings.model_copy(update={"shared_prefixes": is_shared})
    monkeypatch.setattr(service.core.pipeline, "_settings", settings)
    with client_in(service, f"joined-{is_shared:d}") as one, client_in(service, f"joined-{is_shared:d}") as other:
        put_in(one, [{"id": "letter", "chunks": [{"text": steps.LETTER}]}])
        asked = [
            good(client.post("/v1/query", json=steps.BEHIND))["usage"]["reused_tokens"] for client in (one, one, other)
        ]
    assert asked[0] + 10 < asked[1] and asked[2] == asked[is_shared]


@pytest.mark.parametrize("behind", [{}, {"chunk_ids": [chunk_id(steps.LETTER), chunk_id(steps.LEDGER)]}])
def test_a_conversation_that_goes_on_computes_what_is_new_for_its_key_alone(service: Inside, behind: Json) -> None:
    """Passages stand in the last turn: what was said before they came is taken over, and without any the answer too."""

    def turn(client: httpx.Client, said: list[Json], question: str) -> tuple[list[Json], int]:
        asked = [*said, {"role": "user", "content": question}]
        told = good(client.post("/v1/chat/completions", json={**steps.chat(""), "messages": asked, **behind}))
        chunks, cached = told["kvweave"]["report"]["chunks"], told["usage"]["prompt_tokens_details"]["cached_tokens"]
        of_chunks = sum(each["tokens"] - each["recomputed"] for each in chunks if each["source"] != "computed")
        return [*asked, {"role": "assistant", "content": told["choices"][0]["message"]["content"]}], cached - of_chunks

    questions, tenant = [f"Where does heron {at} of Fenhaven sleep?" for at in range(4)], f"goes-on-{len(behind)}"
    with client_in(service, tenant) as one, client_in(service, tenant) as other:
        put_in(one, [{"id": "pair", "chunks": [{"text": steps.LETTER}, {"text": steps.LEDGER}]}])
        before, said, taken = list[Json](), list[Json](), list[int]()
        for question in questions:
            before = said
            said, kept = turn(one, said, question)
            taken.append(kept)
        of_other = turn(other, before, questions[-1])[1]
    grown = [later - earlier for earlier, later in pairwise(taken)]
    assert all(each > 8 for each in grown[len(behind) :]), taken
    assert taken[-1] - of_other > 16


@pytest.mark.parametrize("end", ["DELETE", "PATCH", "named", "lease"])
def test_a_session_over_documents_computes_what_is_new_for_its_key_alone_until_one_goes(
    service: Inside, end: str
) -> None:
    """The documents stand where the conversation begins, so that each turn's prompt begins with the one before."""

    def turn(client: httpx.Client, said: list[Json], question: str, **more: object) -> tuple[list[Json], int]:
        asked = [*said, {"role": "user", "content": question}]
        wanted = {**steps.chat(""), "messages": asked, "blend": {"policy": "reuse"}, **more}
        told = good(client.post("/v1/chat/completions", json=wanted))
        usage = told["usage"]
        computed = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        return [*asked, {"role": "assistant", "content": told["choices"][0]["message"]["content"]}], computed

    questions = [f"Where does heron {at} of Fenhaven sleep?" for at in range(3)]
    tenant, texts = f"sessions-{end.lower()}", (steps.LETTER, steps.LEDGER)
    with client_in(service, tenant) as one, client_in(service, tenant, bound=steps.TEAM) as other:
        put_in(
            one, [{"id": f"{at}", "chunks": [{"text": each}], "metadata": steps.TEAM} for at, each in enumerate(texts)]
        )
        read: list[Json] = [{"role": "user", "content": f"{steps.LETTER}\n\n{steps.LEDGER}\n\nRead this."}]
        said, first = turn(one, read, questions[0], session="s")
        further, second = turn(one, said, questions[1], session="s")
        strangers = [turn(one, said, questions[1])[1], turn(other, said, questions[1], session="s")[1]]
        assert second < 40 and min(strangers) > second + 20, (first, second, strangers)
        last, third = turn(one, further, questions[2], session="s")
        assert third < 40
        prefixes = cast(LocalEngine, service.core.model.engine)._prefixes

        def kept() -> bool:
            of_it = [each.session for each in prefixes._kept if each.session and each.session.payer == tenant]
            return any(each.order or end in ("named", "lease") for each in of_it)  # what is exact holds no document

        good(other.post("/v1/query", json={"question": questions[0], "session_keep_s": 0}))  # which names none
        assert other.delete("/v1/sessions/s").status_code == one.delete("/v1/sessions/t").status_code == 204
        assert kept()
        if end == "named":
            assert one.delete("/v1/sessions/s").status_code == 204
        elif end == "lease":
            assert turn(one, last, "Enough?", session="s", session_keep_s=0)[1] < 40
        else:
            good(one.request(end, "/v1/documents/1", json={"metadata": {"team": "b"}} if end == "PATCH" else None))
        wait_for(lambda: not kept(), "what the session had kept is gone")
        assert turn(one, last, questions[0], session="s")[1] > third + 20


@pytest.mark.parametrize(("policy", "read"), [("reuse", steps.LETTER), ("full", "")])
def test_what_a_session_said_before_its_documents_ends_with_it(service: Inside, policy: str, read: str) -> None:
    said = [("user", "Otto Zwei keeps the herons."), ("assistant", "Yes."), ("user", f"{read}\n\nWho keeps them?")]
    body = {**steps.chat(""), "messages": [{"role": role, "content": text} for role, text in said]}

    def cached(policy: str, **more: object) -> int:
        told = good(one.post("/v1/chat/completions", json={**body, "blend": {"policy": policy}, **more}))
        return told["usage"]["prompt_tokens_details"]["cached_tokens"]

    with client_in(service, f"said-{policy}") as one:
        put_in(one, [{"id": "letter", "chunks": [{"text": steps.LETTER}]}])
        alone = cached(policy, session="s")
        assert one.delete("/v1/sessions/s").status_code == 204
        assert cached("reuse") == alone < cached("reuse")


def test_cursors_count_nothing_of_others(service: Inside) -> None:
    with client_in(service, "cursors", bound=steps.TEAM) as client, client_in(service, "cursors") as others:
        put_in(
            others, [{"id": f"{number}", "text": f"Text {number}.", "metadata": {"team": "b"}} for number in range(9)]
        )
        job = put_in(client, [{"id": "pair", "chunks": [{"text": steps.LETTER}, {"text": steps.LEDGER}]}])["id"]
        for chosen in ({"document_ids": ["pair"]}, {"collection": "default"}):
            told = good(client.post("/v1/cache/lookup", json={**chosen, "limit": 1}))
            assert told["next"] == 1
            more = good(client.post("/v1/cache/lookup", json={**chosen, "limit": 1, "after": 1}))
            assert {each["chunk_id"] for each in (*told["chunks"], *more["chunks"])} == {
                *map(chunk_id, (steps.LETTER, steps.LEDGER))
            }
        assert good(client.get(f"/v1/jobs/{job}", params={"limit": 1}))["next"] == 1
        assert good(client.get(f"/v1/jobs/{job}", params={"limit": 1, "after": 1}))["items"] == []
