"""OpenAI's official client has a running service go on with texts, unchanged; transformers says how they go on."""

from collections.abc import AsyncGenerator, Iterator
from functools import cache
from typing import Any, cast

import openai
import pytest
import torch
from openai import OpenAI
from transformers import AutoTokenizer, LlamaForCausalLM

from service.answers.answer_request import AnswerRequest
from service.answers.events import Event
from service.builtin import CHECKPOINT
from tests.service.official import official
from tests.service.passages import PASSAGES, QUESTIONS
from tests.service.serving import Inside, in_process, put_in, settings_in

TEXTS = [f"{PASSAGES[1].text}\n\nQuestion: {QUESTIONS[0]}", "Mira lives in", " and\n\nthen  "]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    with in_process(settings_in(tmp_path_factory.mktemp("texts"))) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: Inside) -> Iterator[OpenAI]:
    with official(service) as client:
        yield client


@cache
def loaded() -> tuple[Any, Any]:
    return AutoTokenizer.from_pretrained(CHECKPOINT), cast(Any, LlamaForCausalLM.from_pretrained(CHECKPOINT))


@cache
def gone_on(text: str, tokens: int) -> tuple[str, int]:
    """What transformers itself makes of it, and of how many tokens it is."""
    tokenizer, model = loaded()
    ids = tokenizer(text, return_tensors="pt").input_ids
    with torch.inference_mode():
        out = model.generate(ids, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True), ids.shape[1]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_goes_on_as_transformers_has_it(client: OpenAI, text: str) -> None:
    expected, tokens = gone_on(text, 12)
    answer = client.completions.create(model="default", prompt=text, max_tokens=12, temperature=0)
    [choice] = answer.choices
    assert choice.text == expected
    assert answer.usage and answer.usage.prompt_tokens == tokens
    chunks = client.completions.create(
        model="default", prompt=text, max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    told = [*chunks]
    assert "".join(chunk.choices[0].text for chunk in told if chunk.choices) == expected
    assert told[-2].choices[0].finish_reason == choice.finish_reason
    assert told[-1].choices == [] and told[-1].usage and told[-1].usage.prompt_tokens == tokens


def test_several_texts_go_on_each_by_itself_in_order(client: OpenAI) -> None:
    answer = client.completions.create(model="default", prompt=TEXTS, max_tokens=6, temperature=0, echo=True)
    assert [(each.index, each.text) for each in answer.choices] == [
        (at, text + gone_on(text, 6)[0]) for at, text in enumerate(TEXTS)
    ]
    assert answer.usage and answer.usage.prompt_tokens == sum(gone_on(text, 6)[1] for text in TEXTS)


def test_null_is_the_same_as_nothing(client: OpenAI) -> None:
    said = client.completions.create(model="default", prompt=TEXTS[1], temperature=0)
    again = client.completions.create(model="default", prompt=TEXTS[1], temperature=0, max_tokens=None)
    assert (said.choices[0].text, said.usage) == (again.choices[0].text, again.usage)


def test_a_penalty_counts_what_one_text_went_on_with(client: OpenAI) -> None:
    asked = {"model": "default", "max_tokens": 6, "temperature": 0, "frequency_penalty": 2}
    texts = [client.completions.create(prompt=[TEXTS[1]] * many, **asked) for many in (1, 2)]  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert [each.text for each in texts[1].choices] == [texts[0].choices[0].text] * 2


def test_the_time_that_is_given_is_for_all_texts(
    client: OpenAI, service: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, given = service.core.pipeline, list[float]()
    answer = pipeline.answer

    def noted(ask: AnswerRequest) -> AsyncGenerator[Event]:
        given.append(ask.within_s or 0)
        return answer(ask)

    monkeypatch.setattr(pipeline, "answer", noted)
    headers = {"X-Request-Timeout": "60"}
    client.completions.create(model="default", prompt=TEXTS, max_tokens=2, extra_headers=headers)
    assert 60 >= given[0] > given[1] > given[2] > 0


def test_log_probabilities_have_the_older_form(client: OpenAI) -> None:
    asked = {"model": "default", "prompt": TEXTS[0], "max_tokens": 6, "temperature": 0, "logprobs": 2}
    [choice] = client.completions.create(**asked).choices  # pyright: ignore[reportArgumentType, reportCallIssue]
    found = choice.logprobs
    assert found and found.tokens and found.token_logprobs and found.top_logprobs and found.text_offset
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(found.text_offset)
    assert found.text_offset[0] == 0 and all(
        choice.text[at:].startswith(token)
        for at, token in zip(found.text_offset, found.tokens, strict=True)
        if at < len(choice.text)
    )
    for token, logprob, tops in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert max(tops, key=lambda each: tops[each]) == token and tops[token] == pytest.approx(logprob)


def test_a_passage_that_a_session_began_is_read_to_its_end(service: Inside, client: OpenAI) -> None:
    before, whole = (each.text for each in PASSAGES[2:4])
    with service.client() as ours:
        put_in(ours, [{"id": "grown", "chunks": [{"text": before}, {"text": whole}]}])
    begun, grown, told = f"{before}\n{whole.rpartition(' ')[0]}", f"{before}\n{whole}\n{QUESTIONS[0]}", list[Any]()
    for text, session in ((begun, {"session": "s"}), (grown, {"session": "s"}), (grown, {})):
        more = {"blend": {"policy": "reuse"}, **session}
        told.append(client.completions.create(model="default", prompt=text, max_tokens=1, extra_body=more))
    chunks = [[each["miss_reason"] for each in answer.choices[0].kvweave["report"]["chunks"]] for answer in told]
    assert chunks == [[None], [None, "begun before"], [None, None]]
    usage = [answer.usage.prompt_tokens_details.cached_tokens for answer in told]
    assert usage[1] == told[0].usage.prompt_tokens


def test_a_control_token_in_a_text_stays_text(client: OpenAI) -> None:
    tokenizer, _ = loaded()
    text = f"Mira {tokenizer.eos_token} lives"
    answer = client.completions.create(model="default", prompt=text, max_tokens=1)
    assert answer.usage and answer.usage.prompt_tokens > len(tokenizer(text).input_ids)


def test_a_text_that_ends_with_a_known_chunk_goes_on(client: OpenAI, service: Inside) -> None:
    """No token stands behind the chunk, so that it is read as text."""
    text = "Lena keeps seven lanterns in the barn behind the mill, and lights them when the river is high."
    with service.client() as http:
        put_in(http, [{"id": "lanterns", "chunks": [{"text": text}]}])
    answer = client.completions.create(model="default", prompt=text, max_tokens=4, temperature=0)
    assert (answer.choices[0].text, answer.usage and answer.usage.prompt_tokens) == gone_on(text, 4)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"prompt": [[1, 2]]}, "send texts, not token ids"),
        ({"prompt": ""}, "at least 1 character"),
        ({"suffix": "end"}, "writes no middle of a text"),
        ({"best_of": 3}, "best_of"),
        ({"n": 2}, "one answer for a prompt"),
        ({"prompt": ["a", "b"], "stream": True}, "a stream is of one prompt"),
        ({"echo": True, "logprobs": 1}, "no logprobs of a prompt"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_is_not_served_is_refused_with_the_reason(client: OpenAI, more: dict[str, object], reason: str) -> None:
    body = {"model": "default", "prompt": "Mira", **more}
    with pytest.raises(openai.BadRequestError, match=reason):
        client.completions.create(**body)  # pyright: ignore[reportArgumentType, reportCallIssue]
