"""What the official client is told of a response, of a pipeline that tells a fixed tale."""

from itertools import product
from typing import Any, Literal

import openai
import pytest
from openai.types.responses import Response, ResponseFailedEvent, ResponseOutputText, ResponseStreamEvent

from blend.engine.engine import MessagePiece
from blend.text.template import MadeCall
from service.answers.events import Event, Finished
from service.errors import Invalid, NotFound
from store.errors import StoreUnavailable
from tests.service.openai.served import (
    MODEL,
    OPENING,
    REPORT,
    USED,
    WORDS,
    FakeCore,
    FakePipeline,
    client,
    core_telling,
    http,
    run,
    tale,
)

BEGINNING = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
ENDING = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]


def ask(core: FakeCore, **more: object) -> Response:
    create: Any = client(core).responses.create
    return run(create(**{"model": MODEL, "input": "Where?", **more}))


async def events_of(core: FakeCore, **more: object) -> list[ResponseStreamEvent]:
    create: Any = client(core).responses.create
    return [event async for event in await create(model=MODEL, input="Where?", stream=True, **more)]


@pytest.mark.parametrize(
    ("reason", "status", "cut"), [("stop", "completed", None), ("length", "incomplete", "max_output_tokens")]
)
def test_a_response_is_whole_with_its_usage_and_its_report(reason: str, status: str, cut: str | None) -> None:
    core = core_telling(*WORDS, "ro.", reason=reason)
    answer = ask(core, instructions="Be brief.", metadata={"topic": "cities"}, max_output_tokens=9)
    assert (answer.output_text, answer.status, answer.object) == ("In Aveiro.", status, "response")
    assert (answer.incomplete_details and answer.incomplete_details.reason) == cut
    [message] = answer.output
    assert message.type == "message" and (message.role, message.status) == ("assistant", status)
    assert answer.usage
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (40, 3, 43)
    assert answer.usage.input_tokens_details.cached_tokens == 30
    assert (answer.model, answer.id[:5], answer.error) == (MODEL, "resp_", None)
    assert (answer.instructions, answer.metadata, answer.max_output_tokens) == ("Be brief.", {"topic": "cities"}, 9)
    assert answer.text and answer.text.format and answer.text.format.type == "text"
    assert answer.model_extra and answer.model_extra["kvweave"]["recomputed_tokens"] == 4
    assert [each["title"] for each in answer.model_extra["kvweave"]["sources"]] == ["Cities"]
    assert core.told.open == 0


def test_events_come_in_openais_order_and_are_counted() -> None:
    events = run(events_of(core_telling(*WORDS, "ro.")))
    kinds = [event.type for event in events]
    assert kinds == [*BEGINNING, *["response.output_text.delta"] * 3, *ENDING, "response.completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    first, *_, last = events
    assert first.type == "response.created" and (first.response.status, first.response.output) == ("in_progress", [])
    assert last.type == "response.completed" and last.response.output_text == "In Aveiro."
    assert last.response.usage and last.response.usage.total_tokens == 43
    assert len({event.item_id for event in events if hasattr(event, "item_id")}) == 1  # pyright: ignore


def test_an_answer_that_is_cut_off_is_incomplete_in_a_stream_too() -> None:
    *_, item, last = run(events_of(core_telling("Avei", "ro", reason="length")))
    assert item.type == "response.output_item.done" and item.item.type == "message"
    assert item.item.status == "incomplete"
    assert last.type == "response.incomplete" and last.response.incomplete_details
    assert last.response.incomplete_details.reason == "max_output_tokens" and last.response.output_text == "Aveiro"


def test_the_clients_own_accumulation_agrees_with_the_last_event() -> None:
    async def read() -> tuple[str, Response]:
        text = ""
        async with client(core_telling(*WORDS, "ro.")).responses.stream(model=MODEL, input="Where?") as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    text += event.delta
                    assert event.snapshot == text
            return text, await stream.get_final_response()

    text, answer = run(read())
    assert text == answer.output_text == "In Aveiro."


def test_an_answer_without_a_word_is_an_empty_text() -> None:
    assert ask(core_telling("")).output_text == ""
    kinds = [event.type for event in run(events_of(core_telling("")))]
    assert kinds == [*BEGINNING, "response.output_text.delta", *ENDING, "response.completed"]


@pytest.mark.parametrize("more", [{"include": ["message.output_text.logprobs"]}, {"top_logprobs": 2}])
def test_logprobs_stand_beside_every_token(more: dict[str, Any]) -> None:
    answer = ask(core_telling(*WORDS, "ro.", logprobs=True), **more)
    assert answer.output[0].type == "message"
    [part] = answer.output[0].content
    assert isinstance(part, ResponseOutputText) and part.logprobs
    assert [each.token for each in part.logprobs] == [*WORDS] and part.logprobs[0].top_logprobs[1].bytes == [0xE6]
    events = run(events_of(core_telling(*WORDS, "ro.", logprobs=True), **more))
    told = [each.token for event in events if event.type == "response.output_text.delta" for each in event.logprobs]
    assert told == [*WORDS]


@pytest.mark.parametrize(
    ("error", "status", "param"),
    [(NotFound("no chunk"), 404, None), (Invalid("nothing fits it", field="response_format"), 400, "text.format")],
)
def test_what_goes_wrong_before_the_first_token_has_its_status(
    error: Exception, status: int, param: str | None
) -> None:
    for stream, after in product([False, True], [0, 3]):
        core = FakeCore(FakePipeline(tale("Aveiro", ""), error, after))
        with pytest.raises(openai.APIStatusError, match=str(error)) as caught:
            ask(core, stream=stream)
        assert (caught.value.status_code, caught.value.param) == (status, param)
        assert core.told.open == 0


def test_what_goes_wrong_later_is_the_last_event() -> None:
    core = FakeCore(FakePipeline(tale("Avei", "ro", ""), StoreUnavailable("s3 is gone"), 4))
    *_, last = run(events_of(core))
    assert isinstance(last, ResponseFailedEvent) and last.response.status == "failed"
    assert last.response.error and last.response.error.message == "s3 is gone"
    assert last.response.output_text == "Avei" and core.told.open == 0


def test_an_answer_that_the_service_cuts_off_is_an_error() -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        ask(core_telling("Avei", "ro", reason="cancelled"))
    assert caught.value.status_code == 503


def test_a_response_goes_on_from_one_before_without_its_instructions() -> None:
    core = core_telling(*WORDS, "ro.")
    first = ask(core, instructions="Be brief.")
    second = ask(core, input="Since when?", previous_response_id=first.id)
    third = ask(core, input="Why?", previous_response_id=second.id, instructions="Now.")
    assert third.previous_response_id == second.id
    said = [("user", "Where?"), ("assistant", "In Aveiro."), ("user", "Since when?"), ("assistant", "In Aveiro.")]
    assert [(each.role, each.text) for each in core.told.asked[-1].turns] == [
        ("system", "Now."), *said, ("user", "Why?"),
    ]  # fmt: skip


def test_a_kept_response_is_told_again_without_passages_until_it_is_deleted() -> None:
    core = core_telling(*WORDS, "ro.")
    answers = client(core).responses
    streamed = run(events_of(core))[-1]
    assert streamed.type == "response.completed"
    for given in (ask(core), streamed.response):
        kept = run(answers.retrieve(given.id))
        assert kept.model_extra and kept.model_extra["kvweave"] is None
        assert kept.to_dict() | {"kvweave": 0} == given.to_dict() | {"kvweave": 0}
        run(answers.delete(given.id))
        told = [refusal(core, given.id), refusal(core, "resp_never")]
        assert {each.replace(given.id, "resp_never") for each in told} == {told[1]}
        with pytest.raises(openai.NotFoundError):
            ask(core, previous_response_id=given.id)
    unkept = ask(core, store=False)
    assert "no response" in refusal(core, unkept.id)


def refusal(core: FakeCore, name: str) -> str:
    with pytest.raises(openai.NotFoundError) as caught:
        run(client(core).responses.retrieve(name))
    return caught.value.message


USER = {"role": "user", "content": "Where?"}
GAVE = {"type": "function_call_output", "call_id": "b", "output": "2"}
CALLS: tuple[Event, ...] = tuple(
    MessagePiece(each)
    for each in (
        {"role": "assistant", "content": ""},
        {"content": "Let me "},
        {"content": "look."},
        {"tool_calls": [{"index": 0, "id": "Abcdef123", "type": "function", "function": {"name": "f"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": '{"c": 2}'}}]},
    )
)


def core_calling(reason: Literal["length", "tool_calls"]) -> FakeCore:
    return FakeCore(FakePipeline([*OPENING, *CALLS, Finished(reason, "", USED, REPORT)]))


def test_a_text_and_calls_are_items_that_end_before_the_next_begins() -> None:
    events = run(events_of(core_calling("tool_calls")))
    added, done = "response.output_item.added", "response.output_item.done"
    arguments = "response.function_call_arguments"
    assert [event.type for event in events][4:] == [
        *["response.output_text.delta"] * 2, *ENDING, added, *[f"{arguments}.delta"] * 2, f"{arguments}.done", done,
        added, f"{arguments}.delta", f"{arguments}.done", done, "response.completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == [*range(len(events))]
    ends = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [(each.output_index, each.name, each.arguments) for each in ends] == [
        (1, "f", '{"a": 1}'),
        (2, "g", '{"c": 2}'),
    ]
    last = events[-1]
    assert last.type == "response.completed"
    message, *calls = last.response.output
    assert message.type == "message" and last.response.output_text == "Let me look."
    assert [each.call_id for each in calls if each.type == "function_call"] == ["Abcdef123", "b"]


def test_a_call_that_is_cut_is_incomplete_and_nothing_goes_on_from_it() -> None:
    core = core_calling("length")
    first = ask(core)
    assert [each.to_dict().get("status") for each in first.output] == ["completed", "completed", "incomplete"]
    ask(
        core,
        input=[{"type": "function_call_output", "call_id": "Abcdef123", "output": "2"}],
        previous_response_id=first.id,
    )
    turns = core.told.asked[-1].turns
    assert [(each.role, each.text, each.answers) for each in turns] == [
        ("user", "Where?", ""), ("assistant", "Let me look.", ""), ("tool", "2", "Abcdef123"),
    ]  # fmt: skip
    assert turns[1].calls == (MadeCall("Abcdef123", "f", {"a": 1}),)


def test_what_a_response_answers_is_listed_with_what_was_said_before() -> None:
    core = core_calling("tool_calls")
    answers: Any = client(core).responses
    first = ask(core, instructions="Be brief.", input=[{"role": "developer", "content": "Now."}, USER])
    second = ask(core, input=[GAVE], previous_response_id=first.id)

    async def listed(name: str, **more: object) -> list[dict[str, Any]]:
        return [each.to_dict() async for each in answers.input_items.list(name, **more)]

    shown = run(listed(first.id, order="asc"))
    assert [(each["role"], each["content"][0]["text"]) for each in shown] == [("developer", "Now."), ("user", "Where?")]
    whole = run(listed(second.id, order="asc"))
    kinds = ["message", "message", "message", "function_call", "function_call", "function_call_output"]
    assert [each["type"] for each in whole] == kinds and len({each["id"] for each in whole}) == len(kinds)
    assert (whole[3]["call_id"], whole[4]["arguments"], whole[5]["output"]) == ("Abcdef123", '{"c": 2}', "2")
    assert run(listed(second.id, limit=2)) == whole[::-1]  # page by page, the newest first
    run(answers.delete(second.id))
    with pytest.raises(openai.NotFoundError):
        run(listed(second.id))


def test_the_wire_names_every_event_and_ends_with_the_last() -> None:
    async def read() -> tuple[str, str]:
        body = {"model": "default", "input": "Where?", "stream": True}
        answer = await http(core_telling("Aveiro", "")).post("/v1/responses", json=body)
        return answer.headers["content-type"], answer.text

    kind, text = run(read())
    assert kind.startswith("text/event-stream")
    *lines, last = [event.splitlines() for event in text.split("\n\n")]
    assert last == [] and all(len(each) == 2 and each[0].startswith("event: response.") for each in lines)
    assert lines[-1][0] == "event: response.completed"
