"""OpenAI's official client asks a running service for responses, unchanged; LangChain's does so too."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response
from pydantic import BaseModel

from service.access.principal import DEFAULT_TENANT, Role
from tests.service.official import langchain, official
from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import Inside, good, in_process, put_in, settings_in

TEXT = PASSAGES[1].text
ASKED = f"{TEXT}\n\nQuestion: {QUESTIONS[0]}"


class KeptAnimal(BaseModel):
    """An answer of which nothing but one word is open."""

    animal: Literal["badger", "heron"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    letter = {"id": "letter", "title": "Letter 40", "text": TEXT}
    with in_process(settings_in(tmp_path_factory.mktemp("responses")), documents=[letter]) as service:
        yield service


@pytest.fixture
def client(service: Inside) -> Iterator[OpenAI]:
    with official(service) as client:
        yield client


def ask(client: OpenAI, **more: object) -> Response:
    asked: dict[str, Any] = {"model": "default", "input": ASKED, "temperature": 0, **more}
    return client.responses.create(**asked)


def test_a_response_says_what_the_chat_says_and_reuses_as_much(client: OpenAI) -> None:
    ask(client)
    ask(client)
    answer = ask(client)
    chat = client.chat.completions.create(model="default", temperature=0, messages=[{"role": "user", "content": ASKED}])
    assert answer.output_text == chat.choices[0].message.content == "badger"
    assert answer.usage and chat.usage and chat.usage.prompt_tokens_details
    assert answer.usage.input_tokens == chat.usage.prompt_tokens
    assert answer.usage.input_tokens_details.cached_tokens == chat.usage.prompt_tokens_details.cached_tokens
    assert answer.usage.input_tokens_details.cached_tokens > 0


def test_what_was_said_goes_on_as_items_of_the_input(client: OpenAI) -> None:
    first = ask(client, instructions="Be brief.")
    turns: list[Any] = [{"role": "user", "content": ASKED}, *(each.to_dict() for each in first.output)]
    again = ask(client, input=[*turns, {"role": "user", "content": f"Question: {QUESTIONS[0]}"}])
    assert again.output_text and again.usage and first.usage
    assert again.usage.input_tokens > first.usage.input_tokens


def test_a_parsed_response_obeys_its_schema(client: OpenAI) -> None:
    answer = client.responses.parse(model="default", input=ASKED, temperature=0, text_format=KeptAnimal)
    assert answer.output_parsed == KeptAnimal.model_validate_json(answer.output_text)
    assert answer.text and answer.text.format and answer.text.format.type == "json_schema"
    loose = ask(client, text={"format": {"type": "json_object"}}, max_output_tokens=64)
    assert loose.status == "incomplete" or isinstance(json.loads(loose.output_text), dict)


def test_an_answer_that_is_cut_says_so_and_an_unknown_model_is_not_found(client: OpenAI) -> None:
    cut = ask(client, max_output_tokens=1)
    assert cut.status == "incomplete" and cut.incomplete_details
    assert cut.incomplete_details.reason == "max_output_tokens"
    with pytest.raises(openai.NotFoundError, match="gpt-5"):
        ask(client, model="gpt-5")


def letters(client: OpenAI, **more: object) -> Response:
    """A response that rests on the collection of letters."""
    return ask(client, **{"input": "Where does Elio live?", "extra_body": {"collection": "letters"}, **more})


def kept(client: OpenAI, name: str) -> bool:
    """Whether the response is there: whoever tells of it and whoever goes on from it say the same."""
    said = refusal(client, name)
    assert said.replace(name, "resp_never") in ("", refusal(client, "resp_never"))
    return not said


def refusal(client: OpenAI, name: str) -> str:
    said: list[str] = []
    for way in (lambda: client.responses.retrieve(name), lambda: ask(client, input="?", previous_response_id=name)):
        try:
            way()
            said.append("")
        except openai.NotFoundError as error:
            said.append(error.message)
    assert said[0] == said[1]
    return said[0]


def test_a_conversation_goes_on_and_is_its_keys_alone(client: OpenAI, service: Inside) -> None:
    first = ask(client)
    again = ask(client, input="Which animal does Halio keep?", previous_response_id=first.id)
    assert first.usage and again.usage and again.usage.input_tokens > first.usage.input_tokens
    _, other = service.core.control.create_key(DEFAULT_TENANT, Role.ADMIN)
    with official(service, key=other) as stranger:
        assert not kept(stranger, first.id)
    assert kept(client, first.id) and kept(client, again.id)


@pytest.mark.parametrize("way", ["delete", "edit", "move"])
def test_what_rests_on_what_is_gone_is_forgotten(client: OpenAI, service: Inside, way: str) -> None:
    letter = {"id": "elio", "text": "Elio lives in K9.", "metadata": {"team": "a"}}
    _, key = service.core.control.create_key(DEFAULT_TENANT, Role.READ, bound={"team": "a"})
    with service.client() as http, official(service, key=key) as bound:
        put_in(http, [letter], collection="letters")
        mine, theirs = letters(client), letters(bound)
        behind = ask(client, input="And Halio?", previous_response_id=mine.id)
        beside = ask(client, input="What is a badger?")
        assert mine.model_extra and mine.model_extra["kvweave"]["sources"]
        assert kept(client, mine.id) and kept(client, behind.id) and kept(bound, theirs.id)
        if way == "delete":
            good(http.delete("/v1/documents/elio"))
        elif way == "edit":
            put_in(http, [{**letter, "text": "Elio lives elsewhere."}], collection="letters")
        else:
            good(http.patch("/v1/documents/elio", json={"metadata": {"team": "b"}}))
        assert not kept(bound, theirs.id)
        assert kept(client, mine.id) == kept(client, behind.id) == (way == "move")
        assert kept(client, beside.id)


def test_what_rests_on_what_a_bound_key_put_in_is_kept_as_long_as_that(client: OpenAI, service: Inside) -> None:
    _, key = service.core.control.create_key(DEFAULT_TENANT, Role.WRITE, bound={"team": "a"})
    with service.client() as http, service.client(key) as mine, official(service, key=key) as bound:
        good(http.put("/v1/collections/drawer", json={}))
        put_in(mine, [{"id": "lydia", "text": "Lydia lives in F4."}], collection="drawer")
        asked = {"type": "file_search", "vector_store_ids": ["vs_drawer"]}
        answer = ask(bound, input="Where does Lydia live?", tools=[asked])
        assert answer.model_extra and "lydia~" not in json.dumps(answer.to_dict())
        assert [each["document_id"] for each in answer.model_extra["kvweave"]["sources"]] == ["lydia"]
        assert kept(bound, answer.id) and bound.responses.input_items.list(answer.id).data
        bound.responses.delete(answer.id)
        again = ask(bound, input="Where does Lydia live?", tools=[asked])
        good(mine.delete("/v1/documents/lydia"))
        assert not kept(bound, again.id)


FILES = [
    {"id": "notes/halio", "title": "Halio", "text": "Halio keeps a badger.", "metadata": {"year": 1911}},
    {"id": "notes/mirel", "text": "Mirel keeps a heron.", "metadata": {"year": 1920}},
    {"id": "notes/corina", "text": "Corina keeps a boat.", "metadata": {"year": 1930}},
]
KEEPERS = "Who keeps what: Halio, Mirel, Corina?"


@pytest.fixture(scope="module")
def notes(service: Inside) -> str:
    """A vector store of three files."""
    with service.client() as http:
        put_in(http, FILES, collection="notes")
    return "vs_notes"


def searched(client: OpenAI, store: str, *, more: dict[str, object] | None = None, **tool: object) -> Response:
    asked = {"type": "file_search", "vector_store_ids": [store], **tool}
    return ask(client, **{"input": KEEPERS, "tools": [asked], **(more or {})})


def found(answer: Response) -> list[str]:
    """The names of the files that were found, which the text cites."""
    call, message = answer.output
    assert call.type == "file_search_call" and call.status == "completed" and call.queries == [KEEPERS]
    assert message.type == "message" and message.content[0].type == "output_text"
    part = message.content[0]
    cited = [each for each in part.annotations if each.type == "file_citation"]
    assert {each.index for each in cited} <= {len(part.text)} and len(cited) == len(part.annotations)
    if call.results is not None:
        assert {(each.file_id, each.filename) for each in call.results} == {(c.file_id, c.filename) for c in cited}
    return sorted(each.filename for each in cited)


def test_a_file_search_finds_what_the_vector_store_finds(client: OpenAI, notes: str) -> None:
    shown = searched(client, notes, more={"include": ["file_search_call.results"]})
    call = shown.output[0]
    assert call.type == "file_search_call" and call.results
    beside = client.vector_stores.search(notes, query=KEEPERS).data
    assert {(each.file_id, each.filename, each.text) for each in call.results} == {
        (each.file_id, each.filename, each.content[0].text) for each in beside
    }
    assert found(shown) == ["Halio", "notes/corina", "notes/mirel"]
    assert {str(each.attributes) for each in call.results} == {str(each.attributes) for each in beside}
    again = ask(client, input=KEEPERS, extra_body={"collection": "notes"})
    assert shown.output_text == again.output_text and shown.usage and again.usage
    assert shown.usage.input_tokens == again.usage.input_tokens
    for each in (searched(client, notes), client.responses.retrieve(shown.id)):
        assert found(each) == found(shown) and each.output[0].to_dict()["results"] is None
    assert [each.type for each in searched(client, notes, more={"tool_choice": "none"}).output] == ["message"]


def test_a_file_search_is_streamed_before_its_message(client: OpenAI, notes: str) -> None:
    tool: Any = {"type": "file_search", "vector_store_ids": [notes]}
    with client.responses.stream(model="default", input=KEEPERS, temperature=0, tools=[tool]) as stream:
        events = [*stream]
        final = stream.get_final_response()
    call = [f"response.file_search_call.{each}" for each in ("in_progress", "searching", "completed")]
    item = ["response.output_item.added", *call, "response.output_item.done", "response.output_item.added"]
    kinds = [event.type for event in events]
    assert kinds[:8] == ["response.created", "response.in_progress", *item]
    assert kinds.count("response.output_text.annotation.added") == 3
    assert [event.sequence_number for event in events if hasattr(event, "sequence_number")] == [*range(len(events))]
    whole = searched(client, notes)
    assert final.output_text == whole.output_text and found(Response.model_validate(final.to_dict())) == found(whole)


def test_a_file_search_goes_on_and_sees_what_its_key_sees(client: OpenAI, service: Inside, notes: str) -> None:
    first = searched(client, notes)
    turns: list[Any] = [{"role": "user", "content": KEEPERS}, *(each.to_dict() for each in first.output)]
    more = ask(client, input=[*turns, {"role": "user", "content": "And Lydia?"}])
    kept = ask(client, input="And Lydia?", previous_response_id=first.id)
    assert more.usage and kept.usage and more.usage.input_tokens == kept.usage.input_tokens
    for year, sees in ((1920, ["notes/mirel"]), (1999, None)):
        _, key = service.core.control.create_key(DEFAULT_TENANT, Role.READ, bound={"year": year})
        with official(service, key=key) as bound:
            if sees is not None:
                assert found(searched(bound, notes)) == sees
                continue
            with pytest.raises(openai.NotFoundError, match="vs_notes"):
                searched(bound, notes)
    with pytest.raises(openai.NotFoundError, match="vs_never"):
        searched(client, "vs_never")
    with pytest.raises(openai.BadRequestError, match="leave one of both out"):
        searched(client, notes, more={"extra_body": {"collection": "notes"}})


def test_langchain_speaks_responses(service: Inside) -> None:
    with langchain(service, temperature=0, use_responses_api=True) as model:
        whole = model.invoke(ASKED)
        streamed = [*model.stream(ASKED)]
    assert whole.text == "".join(each.text for each in streamed) == "badger"
    assert whole.usage_metadata and whole.usage_metadata.get("input_token_details", {}).get("cache_read", 0) > 0
