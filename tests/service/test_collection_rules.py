"""What a collection's rules do: its system prompt, what is said where nothing is found, and chunks without search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from retriever.documents import chunk_id
from service.access.principal import Role
from service.app import composition
from service.app.workspace import open_workspace
from service.builtin import CHECKPOINT
from service.documents import ingest
from service.documents.collection_rules import REFUSE, CollectionRules
from service.documents.corpus_listing import files
from service.documents.precompute import Precompute
from service.documents.tenants import Tenant
from service.model.prompt_builder import GROUNDED, SYSTEM
from tests.retriever.fakes import WordEmbedder
from tests.service.checkpoints import small
from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import Inside, Json, ask, good, in_process, put_in, settings_in, wait_for

DOCUMENTS = [{"id": str(at), "chunks": [{"text": each.text}]} for at, each in enumerate(PASSAGES)]
NAMED = [{**each, "id": f"new-{each['id']}"} for each in DOCUMENTS]
STRANGE = "Which wine goes with salmon?"
BRIEF: Json = {"max_tokens": 2}
REGISTER, LETTER, LEDGER, LAST = (each.text for each in PASSAGES)
TEAM: Json = {"team": "a"}
OFF: Json = {"search": False}


def test_a_new_collection_of_a_named_model_is_told_to_say_what_is_not_there(tmp_path: Path) -> None:
    with in_process(settings_in(tmp_path)) as inside, inside.client() as client:
        put_in(client, DOCUMENTS, collection="old")
        assert good(client.get("/v1/collections/old"))["system"] == SYSTEM
        prompt = ask(client, QUESTIONS[0], collection="old")["usage"]["prompt_tokens"]
    with in_process(settings_in(tmp_path, model=str(CHECKPOINT))) as inside, inside.client() as client:
        was = ask(client, QUESTIONS[0], collection="old")
        assert was["usage"]["prompt_tokens"] == prompt
        assert {each["miss_reason"] for each in was["report"]["chunks"]} == {None}
        put_in(client, NAMED, collection="new")
        assert good(client.get("/v1/collections/new"))["system"] == GROUNDED
        assert ask(client, QUESTIONS[0], collection="new")["usage"]["prompt_tokens"] > prompt
        rules = {"system": "Be brief."}
        assert good(client.put("/v1/collections/new", json=rules))["system"] == "Be brief."
        assert good(client.put("/v1/collections/new", json={}))["system"] == GROUNDED
        assert good(client.put("/v1/collections/old", json={"floor": 0.1}))["system"] == SYSTEM
        assert good(client.put("/v1/collections/made", json={}))["system"] == GROUNDED


def test_rules_that_somebody_gives_while_an_upload_arrives_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_process(settings_in(tmp_path)) as inside, inside.client() as client:
        put_collection = inside.core.ingest.put_collection

        def behind_another(tenant: Tenant, name: str, *, rules: CollectionRules, only_new: bool = False) -> bool:
            put_collection(tenant, name, rules=replace(rules, on_empty=REFUSE))
            return put_collection(tenant, name, rules=rules, only_new=only_new)

        monkeypatch.setattr(inside.core.ingest, "put_collection", behind_another)
        put_in(client, DOCUMENTS[:1], collection="raced")
        assert good(client.get("/v1/collections/raced"))["on_empty"] == REFUSE


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder: Path = tmp_path_factory.mktemp("unfound")
    with in_process(settings_in(folder, store="mem://")) as inside, inside.client() as client:
        for name in ("letters", "strict"):
            nodes = [{"id": f"{name} {at}", "chunks": [{"text": each.text}]} for at, each in enumerate(PASSAGES)]
            put_in(client, nodes, collection=name)
        yield client


def asked(client: httpx.Client, question: str, collection: str) -> httpx.Response:
    return client.post("/v1/query", json={"question": question, "collection": collection, "sampling": BRIEF})


def test_what_no_passage_answers_is_said_and_answered(client: httpx.Client) -> None:
    for question, is_found in ((STRANGE, False), (QUESTIONS[0], True)):
        report = good(asked(client, question, "letters"))["report"]
        relevance = report["relevance"]
        assert relevance["found"] == (relevance["best"] >= relevance["floor"]) == is_found
        assert any("nothing was found" in note for note in report["notes"]) != is_found
        found = good(client.post("/v1/search", json={"query": question, "collection": "letters"}))
        assert found["relevance"] == relevance and bool(found["note"]) != (is_found or not found["hits"])


def test_a_collection_that_refuses_answers_no_question_that_it_has_no_passage_for(client: httpx.Client) -> None:
    rules = good(client.put("/v1/collections/strict", json={"on_empty": "refuse"}))
    assert (rules["on_empty"], rules["floor"]) == ("refuse", None)
    refused = asked(client, STRANGE, "strict")
    assert refused.status_code == 404 and "nothing was found" in refused.json()["detail"]
    chat = {"model": "default", "collection": "strict", "messages": [{"role": "user", "content": STRANGE}]}
    assert client.post("/v1/chat/completions", json=chat).status_code == 404
    good(asked(client, QUESTIONS[0], "strict"))


def test_a_collection_that_is_not_there_is_told_in_one_sentence(client: httpx.Client) -> None:
    for name, remedy in (("default", "GET /v1/collections lists all"), ("leters", "did you mean 'letters'?")):
        got, deleted = (act(f"/v1/collections/{name}").json()["detail"] for act in (client.get, client.delete))
        assert got == deleted and got.startswith(f"there is no collection '{name}': {remedy}")


def test_the_floor_is_the_collections_own_where_it_has_one(client: httpx.Client) -> None:
    good(client.put("/v1/collections/letters", json={"floor": 0.99}))
    relevance = good(asked(client, QUESTIONS[0] + " Surely?", "letters"))["report"]["relevance"]
    assert relevance["floor"] == 0.99 and not relevance["found"]
    good(client.put("/v1/collections/letters", json={"floor": 0}))
    assert good(asked(client, STRANGE, "letters"))["report"]["relevance"]["found"]
    assert client.put("/v1/collections/letters", json={"on_empty": "ignore"}).status_code == 422


@dataclass(frozen=True, slots=True)
class Served:
    """A service with an embedder, and what it holds: the letter and the ledger in `foreign`, which has no search, the
    register and the ledger in `default`."""

    inside: Inside
    embedder: WordEmbedder

    def client(self, *, bound: Json | None = None) -> httpx.Client:
        return self.inside.client(self.inside.core.control.create_key("default", Role.ADMIN, bound=bound)[1])


@pytest.fixture
def embedder(monkeypatch: pytest.MonkeyPatch) -> WordEmbedder:
    """The one that every service here has. It has not long to wait before it looks what is to be embedded."""
    embedder = WordEmbedder()
    monkeypatch.setattr(composition, "compose_embedder", lambda settings: embedder)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(ingest, "IDLE_S", 0.1)
    return embedder


@pytest.fixture
def served(tmp_path: Path, embedder: WordEmbedder) -> Iterator[Served]:
    with in_process(settings_in(tmp_path, store="mem://")) as inside, inside.client() as client:
        assert good(client.put("/v1/collections/foreign", json=OFF))["search"] is False
        put_in(client, [node("letter", LETTER), node("ledger", LEDGER)], collection="foreign")
        put_in(client, [node("register", REGISTER), node("ledger too", LEDGER)])
        yield Served(inside, embedder)


def node(name: str, text: str, **metadata: object) -> Json:
    return {"id": name, "chunks": [{"text": text}], "metadata": {**TEAM, **metadata}}


def found(client: httpx.Client, **more: object) -> list[str]:
    """The documents of all hits, in every mode."""
    seen: set[str] = set()
    for mode in ("lexical", "vector", "hybrid"):
        body = {"query": f"{QUESTIONS[0]} Norworks captain", "mode": mode, "top_k": 100, "neighbors": 1, **more}
        seen |= {hit["document_id"] for hit in good(client.post("/v1/search", json=body))["hits"]}
    return sorted(seen)


def chat(client: httpx.Client, content: str, **more: object) -> httpx.Response:
    turns = [{"role": "user", "content": content}]
    body = {"model": "default", "messages": turns, "max_tokens": 2, "temperature": 0, **more}
    return client.post("/v1/chat/completions", json=body)


def test_nothing_of_it_is_embedded_or_found(served: Served) -> None:
    with served.client() as client:
        assert found(client) == found(client, filter=TEAM) == ["ledger too", "register"]
        assert sorted(served.embedder.seen) == sorted([REGISTER, LEDGER])
        asked = good(client.post("/v1/query", json={"question": QUESTIONS[0], "top_k": 9, "sampling": BRIEF}))
        assert {each["document_id"] for each in asked["sources"]} == {"ledger too", "register"}


def test_a_search_that_names_it_is_told_the_remedy(served: Served) -> None:
    with served.client() as client:
        named: Json = {"collection": "foreign"}
        query = {"question": "Who?", "sampling": BRIEF, **named}
        for path, body in (("search", {"query": "heron", **named}), ("query", query)):
            refused = client.post(f"/v1/{path}", json=body)
            assert refused.status_code == 422
            [error] = refused.json()["errors"]
            assert error["field"] == "collection" and '"search": true' in error["message"]
        streamed = client.post("/v1/query", json={**query, "stream": True})
        assert streamed.status_code == 422
        refused = chat(client, "Who?", **named)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "collection")
        assert client.post("/v1/query", json={**query, "top_k": 0}).status_code == 200  # it searches nothing


def test_its_caches_serve_by_every_other_way(served: Served) -> None:
    with served.client() as client:
        by_id: Json = {"question": QUESTIONS[0], "chunk_ids": [chunk_id(LETTER)], "sampling": BRIEF}
        loose: Json = {"question": QUESTIONS[0], "documents": [{"text": LETTER}], "sampling": BRIEF}
        for body in (by_id, loose, {**by_id, "collection": "foreign"}):
            answer = good(client.post("/v1/query", json=body))
            assert answer["usage"]["reused_tokens"] > 0
            assert [(each["chunk_id"], each["source"]) for each in answer["report"]["chunks"]] == [
                (chunk_id(LETTER), "ram")
            ]
        inline = good(chat(client, f"{LETTER}\n\nQuestion: {QUESTIONS[0]}"))
        assert inline["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        listed = good(client.get("/v1/documents", params={"collection": "foreign"}))["documents"]
        assert [each["id"] for each in listed] == ["ledger", "letter"]
        [chunk] = good(client.get("/v1/documents/letter/chunks"))["chunks"]
        assert chunk["state"] == "stored"
        looked = good(client.post("/v1/cache/lookup", json={"collection": "foreign"}))["chunks"]
        assert {each["state"] for each in looked} == {"stored"} and len(looked) == 2
        assert good(client.post("/v1/cache/evict", json={"document_ids": ["letter"]}))["blobs"] == 1
        assert good(client.delete("/v1/documents/letter"))["done"]
        assert good(client.delete("/v1/collections/foreign"))["chunks_kept"] == 1
        assert found(client) == ["ledger too", "register"]


def test_switched_on_it_is_embedded_and_found_and_switched_off_it_is_not(served: Served) -> None:
    with served.client() as client:
        good(client.put("/v1/collections/foreign", json={}))
        wait_for(lambda: LETTER in served.embedder.seen, "the letter is embedded")
        vector: Json = {"query": LETTER, "mode": "vector", "top_k": 1}
        wait_for(lambda: hits(client, vector) == ["letter"], "the letter is found by its vector")
        assert found(client) == ["ledger", "letter", "register"]  # of a chunk in two documents the older one is told
        good(client.put("/v1/collections/foreign", json=OFF))
        assert found(client) == ["ledger too", "register"]
        assert {*served.embedder.seen} == {LETTER, LEDGER, REGISTER}  # two that look for work may make a vector at once


def hits(client: httpx.Client, body: Json) -> list[str]:
    return [hit["document_id"] for hit in good(client.post("/v1/search", json=body))["hits"]]


def test_a_key_with_a_filter_is_told_of_it_only_where_it_sees_some(served: Served) -> None:
    with served.client(bound={"team": "b"}) as stranger, served.client(bound=TEAM) as member:
        named: Json = {"query": "heron", "collection": "foreign"}
        for name in ("foreign", "nowhere"):
            asked = {"question": "Who?", "collection": name, "sampling": BRIEF}
            chat = {"messages": [{"role": "user", "content": "Who?"}], "collection": name, "model": "builtin"}
            told = [
                stranger.post("/v1/search", json={**named, "collection": name}),
                stranger.post("/v1/query", json=asked),
                stranger.post("/v1/cache/lookup", json={"collection": name}),
                stranger.get(f"/v1/collections/{name}"),
                stranger.post("/v1/chat/completions", json=chat),
            ]
            sentence = f"there is no collection '{name}': GET /v1/collections lists all that there are for this key"
            assert [answer.status_code for answer in told] == [404] * len(told)
            assert [answer.json()["detail"] for answer in told[:-1]] == [sentence] * (len(told) - 1)
            assert told[-1].json()["error"]["message"] == sentence
        assert member.post("/v1/search", json=named).status_code == 422
        assert found(member) == ["ledger too", "register"]


def test_a_misspelt_collection_is_told_with_the_one_that_was_meant(served: Served) -> None:
    """Of those that the key may see: what is hidden from it is proposed to nobody."""
    with served.client() as client, served.client(bound=TEAM) as member, served.client(bound={"team": "b"}) as stranger:
        for who, meant in ((client, True), (member, True), (stranger, False)):
            answer = who.post("/v1/query", json={"question": "Who?", "collection": "foriegn"})
            assert answer.status_code == 404
            assert ("did you mean 'foreign'?" in answer.json()["detail"]) is meant
            assert good(who.post("/v1/search", json={"query": "heron", "collection": "default"}))["hits"] is not None


def test_precompute_into_it_embeds_nothing(tmp_path: Path, embedder: WordEmbedder) -> None:
    """Nor does it make it searchable again; a corpus beside it is."""
    settings, corpus = settings_in(tmp_path, model=small()), tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "letter.txt").write_text(LETTER)
    with in_process(settings) as inside, inside.client() as client:
        good(client.put("/v1/collections/foreign", json=OFF))
    with open_workspace(settings, "default", collection="foreign") as target:
        told = Precompute(target).run(files([str(corpus)]), on_progress=lambda tally: None)
    assert (told.documents, told.stored, embedder.seen) == (1, 1, [])
    (corpus / "letter.txt").write_text(LAST)
    with open_workspace(settings, "default", collection="open") as target:
        Precompute(target).run(files([str(corpus)]), on_progress=lambda tally: None)
    assert embedder.seen == [LAST]
    with in_process(settings) as inside, inside.client() as client:
        assert good(client.get("/v1/collections/foreign"))["search"] is False
        assert good(client.get("/v1/collections/open"))["search"] is True
