"""Questions that the documents do not answer: it is said, and answered or refused as the collection has it."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import Json, good, in_process, put_in, settings_in

STRANGE = "Which wine goes with salmon?"
BRIEF: Json = {"max_tokens": 2}


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
