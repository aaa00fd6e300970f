"""The official client of OpenAI, LangChain's and LlamaIndex's in front of a running service, unchanged."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from langchain_openai import ChatOpenAI
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam
from pydantic import BaseModel

from service.access.principal import Role
from tests.service.official import langchain, official
from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import Inside, in_process, put_in, settings_in

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clients.md"
TEXT = PASSAGES[1].text
ASKED = f"{TEXT}\n\nQuestion: {QUESTIONS[0]}"
CHAT: list[ChatCompletionMessageParam] = [{"role": "user", "content": ASKED}]
MODEL = "builtin"


class Kept(BaseModel):
    """An answer of which nothing but one word is open."""

    animal: Literal["badger", "heron"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    letter = {"id": "letter", "text": TEXT}
    with in_process(settings_in(tmp_path_factory.mktemp("clients")), documents=[letter]) as service:
        yield service


@pytest.fixture
def client(service: Inside) -> Iterator[OpenAI]:
    with official(service) as client:
        yield client


def ask(client: OpenAI, **more: object) -> ChatCompletion:
    asked: dict[str, Any] = {"model": "default", "messages": CHAT, "temperature": 0, **more}
    return client.chat.completions.create(**asked)


def cached(answer: ChatCompletion) -> int:
    assert answer.usage and answer.usage.prompt_tokens_details
    return answer.usage.prompt_tokens_details.cached_tokens or 0


def said(answer: ChatCompletion) -> str:
    return answer.choices[0].message.content or ""


# --- OpenAI


def test_the_example_of_the_page_runs_and_its_comment_is_true(service: Inside) -> None:
    [code] = re.findall(r"```python\n(from openai import OpenAI.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    with service.client() as client:
        put_in(client, [{"id": "letter-40", "title": "Letter 40", "text": "Halio lives in K7. Halio keeps a badger."}])
    found: dict[str, Any] = {"key": service.key}
    exec(code.replace("http://localhost:8000", service.base_url), found)
    try:
        assert "cached_tokens" in code.splitlines()[-1] and "recognised" in code.splitlines()[-1]
        assert cached(found["answer"]) > 0
        assert said(found["answer"]).strip() == "badger"
    finally:
        found["client"].close()


def test_a_chat_says_the_same_whole_and_streamed(client: OpenAI) -> None:
    whole = ask(client)
    assert said(whole) == "badger" and whole.choices[0].finish_reason == "stop"
    stream = client.chat.completions.create(
        model="default", messages=CHAT, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == said(whole)
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage and cached(whole) > 0
    assert [each.choices[0].finish_reason for each in chunks[:-1]][-1] == "stop"


def test_the_asynchronous_client_asks_many_at_once(service: Inside) -> None:
    async def talk() -> list[str]:
        inner = httpx.AsyncClient(trust_env=False)
        async with AsyncOpenAI(
            api_key=service.key, base_url=f"{service.base_url}/v1", http_client=inner, max_retries=0
        ) as client:
            create = client.chat.completions.create
            answers = await asyncio.gather(*(create(model="default", messages=CHAT, temperature=0) for _ in range(4)))
            stream = await create(model="default", messages=CHAT, temperature=0, stream=True)
            streamed = [each.choices[0].delta.content or "" async for each in stream]
            names = [each.id async for each in client.models.list()]
            return [*(said(each) for each in answers), "".join(streamed), *names]

    assert asyncio.run(talk()) == ["badger"] * 5 + [MODEL]


def test_a_chat_goes_on_for_turns_and_text_is_recognised_in_the_first(client: OpenAI) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASKED}]
    counts: list[int] = []
    for question in ("Where does Halio live?", "Question: Which animal does Halio keep?"):
        answer = ask(client, messages=messages)
        assert answer.usage and cached(answer) > 0
        counts.append(answer.usage.prompt_tokens)
        messages += [{"role": "assistant", "content": said(answer)}, {"role": "user", "content": question}]
    assert ask(client, messages=messages).usage.prompt_tokens > counts[1] > counts[0]  # pyright: ignore


def test_documents_and_chunks_come_beside_what_openai_knows(client: OpenAI, service: Inside) -> None:
    question = [{"role": "user", "content": f"Question: {QUESTIONS[0]}"}]
    loose = ask(client, messages=question, extra_body={"documents": [{"text": TEXT}]})
    with service.client() as http:
        [chunk] = http.get("/v1/documents/letter/chunks").json()["chunks"]
    named = ask(client, messages=question, extra_body={"chunk_ids": [chunk["chunk_id"]]})
    assert (said(loose), said(named)) == ("badger", "badger")
    assert cached(named) > 0
    assert named.model_extra and named.model_extra["kvweave"]["report"]["chunks"][0]["source"] == "lmdb"


def test_a_parsed_answer_obeys_its_schema(client: OpenAI) -> None:
    answer = client.chat.completions.parse(model="default", messages=CHAT, temperature=0, response_format=Kept)
    assert answer.choices[0].message.parsed == Kept.model_validate_json(answer.choices[0].message.content or "")
    with client.chat.completions.stream(model="default", messages=CHAT, temperature=0, response_format=Kept) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Kept)


def test_an_answer_that_is_cut_before_its_schema_is_met_says_so(client: OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="default", messages=CHAT, response_format=Kept, max_completion_tokens=1)


def test_a_seed_repeats_and_a_stop_ends(client: OpenAI) -> None:
    drawn = [said(ask(client, temperature=2, seed=7, max_tokens=8)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    answer = ask(client, stop=["dge"])
    assert (said(answer), answer.choices[0].finish_reason) == ("ba", "stop")


def test_logprobs_are_of_the_answer(client: OpenAI) -> None:
    answer = ask(client, logprobs=True, top_logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs and logprobs.content and len(logprobs.content[0].top_logprobs) == 3
    text = b"".join(bytes(each.bytes or []) for each in logprobs.content)
    assert text.decode().startswith(said(answer))
    for each in logprobs.content:
        assert each.logprob == max(top.logprob for top in each.top_logprobs) <= 0


def test_models_are_listed_and_found(client: OpenAI, service: Inside) -> None:
    [listed] = client.models.list()
    assert (listed.id, listed.owned_by, listed.created) == (MODEL, "kvweave", int(service.core.created))
    assert client.models.retrieve(MODEL) == client.models.retrieve("default") == listed
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-5")
    assert caught.value.code == "model_not_found" and "gpt-5" in caught.value.message and MODEL in caught.value.message


def test_a_raw_response_has_the_request_id_that_the_answer_has(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="default", messages=CHAT)
    answer = raw.parse()
    assert raw.request_id and answer._request_id == raw.request_id == raw.headers["x-request-id"]
    assert answer.id == f"chatcmpl-{raw.request_id}"
    assert "total;dur=" in raw.headers["server-timing"]


@pytest.mark.parametrize("key", ["none", "kvw_0_none"])
def test_a_wrong_key_is_an_authentication_error(service: Inside, key: str) -> None:
    with official(service, key=key) as client, pytest.raises(openai.AuthenticationError) as caught:
        ask(client)
    assert caught.value.code == "invalid_api_key" and caught.value.request_id


WRONG: list[tuple[dict[str, object], type[openai.APIStatusError], str, str | None]] = [
    ({"model": "gpt-5"}, openai.NotFoundError, "gpt-5", None),
    ({"temperature": 3}, openai.BadRequestError, "2", "temperature"),
    ({"extra_body": {"chunk_ids": ["0" * 32]}}, openai.NotFoundError, "0" * 32, None),
]


@pytest.mark.parametrize(("more", "kind", "word", "param"), WRONG)
def test_what_is_wrong_is_raised_as_the_client_knows_it(
    client: OpenAI, more: dict[str, object], kind: type[openai.APIStatusError], word: str, param: str | None
) -> None:
    for stream in (False, True):
        with pytest.raises(kind) as caught:
            ask(client, **more, stream=stream)
        assert word in caught.value.message and caught.value.param == param
        assert caught.value.request_id and caught.value.type == "invalid_request_error"


def test_a_key_of_few_requests_a_minute_is_told_when_to_come_back(service: Inside) -> None:
    _, key = service.core.control.create_key("default", Role.READ, per_minute=2)
    with official(service, key=key) as client:
        client.models.list()
        ask(client)
        with pytest.raises(openai.RateLimitError) as caught:
            ask(client)
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
    assert caught.value.code == "rate_limit_exceeded"


# --- LangChain and LlamaIndex


@pytest.fixture
def chain(service: Inside) -> Iterator[ChatOpenAI]:
    with langchain(service, temperature=0) as chain:
        yield chain


def test_langchain_invokes_and_counts_what_was_cached(chain: ChatOpenAI) -> None:
    answer = chain.invoke([("system", "Be brief."), ("human", ASKED)])
    assert isinstance(answer.content, str) and answer.usage_metadata
    assert answer.usage_metadata["input_token_details"]["cache_read"] > 0  # pyright: ignore
    assert answer.response_metadata["model_name"] == MODEL
    assert chain.invoke(ASKED).content == "badger"


def test_langchain_streams_with_usage(chain: ChatOpenAI) -> None:
    chunks = list(chain.stream(ASKED, stream_usage=True))
    assert "".join(str(each.content) for each in chunks) == "badger"
    used = [each.usage_metadata for each in chunks if each.usage_metadata]
    assert used and used[-1]["total_tokens"] > 0


def test_langchain_takes_an_answer_of_a_form(chain: ChatOpenAI) -> None:
    asking = chain.with_structured_output(Kept, method="json_schema")
    assert isinstance(asking.invoke(ASKED), Kept)


def llama(service: Inside, **way: object) -> OpenAILike:
    at: dict[str, Any] = {"api_key": service.key, "api_base": f"{service.base_url}/v1", **way}
    return OpenAILike(model="default", is_chat_model=True, temperature=0, max_retries=0, **at)


def test_llama_index_completes_chats_and_streams(service: Inside) -> None:
    messages = [ChatMessage(role="user", content=ASKED)]
    with httpx.Client(trust_env=False) as inner:
        model = llama(service, http_client=inner)
        assert model.complete(ASKED).text == "badger"
        assert model.chat(messages).message.content == "badger"
        assert "".join(each.delta or "" for each in model.stream_chat(messages)) == "badger"


def test_llama_index_chats_without_waiting(service: Inside) -> None:
    messages = [ChatMessage(role="user", content=ASKED)]

    async def talk() -> list[str | None]:
        async with httpx.AsyncClient(trust_env=False) as inner:
            model = llama(service, async_http_client=inner)
            streamed = [each.delta or "" async for each in await model.astream_chat(messages)]
            return [(await model.achat(messages)).message.content, "".join(streamed)]

    assert asyncio.run(talk()) == ["badger", "badger"]
