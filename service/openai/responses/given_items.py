"""What a response answers, as items that OpenAI's clients list: made anew of the messages that are kept. Keeps none."""

import json
from collections.abc import Iterator, Sequence

from service.api.rendering import rendered
from service.openai.list_pages import Cursor, page_of
from service.openai.request import Message
from service.openai.responses.response_bodies import (
    CalledItem,
    GivenItem,
    GivenItems,
    GivenMessage,
    GivenOutput,
    GivenText,
    OutputMessage,
    OutputText,
)


def given_items(messages: Sequence[str], at: Cursor, *, name: str) -> GivenItems:
    """A page of the items that messages, as text of JSON, stand for. Ids are made of `name`, and stay the same."""
    by_id = {
        item.id: item
        for number, text in enumerate(messages)
        for item in _items_of(Message.model_validate(json.loads(text)), f"{name}_{number}")
    }
    page = page_of([(number, each) for number, each in enumerate(by_id)], at)
    return rendered(GivenItems, page, data=[by_id[each] for each in page.ids])


def _items_of(message: Message, name: str) -> Iterator[GivenItem]:
    calls = message.tool_calls or ()
    match message.role:
        case "tool":
            yield GivenOutput(id=f"fco_{name}", call_id=message.tool_call_id or "", output=message.text)
        case "assistant":
            if message.text or not calls:
                content = [OutputText(text=message.text)]
                yield OutputMessage(id=f"msg_{name}", status="completed", content=content)
        case role:
            yield GivenMessage(id=f"msg_{name}", role=role, content=[GivenText(text=message.text)])
    for at, call in enumerate(calls):
        called = call.function
        yield CalledItem(
            id=f"fc_{name}_{at}", status="completed", call_id=call.id, name=called.name, arguments=called.arguments
        )
