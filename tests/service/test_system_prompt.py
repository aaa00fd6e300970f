"""The system prompt of a collection: what a new one has, and that one which was there keeps its own, and its caches."""

from pathlib import Path

from service.builtin import CHECKPOINT
from service.model.prompt_builder import GROUNDED, SYSTEM
from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import ask, good, in_process, put_in, settings_in

DOCUMENTS = [{"id": str(at), "chunks": [{"text": each.text}]} for at, each in enumerate(PASSAGES)]
NAMED = [{**each, "id": f"new-{each['id']}"} for each in DOCUMENTS]


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
