"""The responses that a key's later requests go on from: what is kept of one, whether it may be told still,
and what it answers, as items that clients list."""

import json
from collections.abc import Iterable, Iterator, Sequence

from retriever.documents import Json
from service.answers.events import Source
from service.answers.kept_answers import KEPT_S, KeptAnswer
from service.api.caller import Caller
from service.api.rendering import rendered
from service.errors import NotFound
from service.openai.list_pages import Cursor, page_of
from service.openai.request import Message
from service.openai.responses.chat_body import messages_of
from service.openai.responses.response_bodies import (
    CalledItem,
    FileSearchCall,
    GivenItem,
    GivenItems,
    GivenMessage,
    GivenOutput,
    GivenText,
    OutputItem,
    OutputMessage,
    OutputText,
    ResponseBody,
)


def previous_response(by: Caller, response_id: str) -> KeptAnswer:
    """The response of this id. Raises NotFound where it is not kept, or not for this key.

    One that rests on what this key sees no more, as it was deleted, edited or moved, is forgotten.
    """
    found = by.core.kept_answers.answer(by.who, response_id)
    if found is None or not _is_seen(by, found.sources):
        by.core.kept_answers.forget(by.who, response_id)
        raise NotFound(
            f"there is no response {response_id[:80]!r}: one is kept for {KEPT_S / 60:.0f} minutes at most, by the "
            "replica that gave it, while all of its sources are there: send the turns as input"
        )
    return found


def kept_answer(
    response: ResponseBody, messages: Sequence[Json], *, sources: Iterable[Source], before: KeptAnswer | None
) -> KeptAnswer:
    """What is kept of a response to these messages: no passages. `before`: the response that it goes on from."""
    items = [
        each.model_copy(update={"results": None}) if isinstance(each, FileSearchCall) else each
        for each in response.output
    ]
    said = messages_of(each for each in items if not isinstance(each, FileSearchCall) and not _is_cut_call(each))
    asked = (*(before.messages if before else ()), *map(_as_text, messages))
    rests_on = {(each.passage.document, each.passage.id) for each in sources if each.passage}
    return KeptAnswer(
        response.model_copy(update={"kvweave": None, "output": items}).model_dump_json(),
        (*asked, *map(_as_text, said)),
        frozenset(rests_on | before.sources if before else rests_on),
        len(asked),
    )


def _as_text(message: Json) -> str:
    return json.dumps(message, ensure_ascii=False)


def _is_cut_call(item: OutputItem) -> bool:
    """Whether its arguments are JSON in part alone, from which nothing can go on."""
    return isinstance(item, CalledItem) and item.status == "incomplete"


def _is_seen(by: Caller, sources: frozenset[tuple[str, str]]) -> bool:
    """Whether the key sees all of these documents and chunks."""
    documents, chunks = {document for document, _ in sources}, {chunk for _, chunk in sources}
    if not sources:
        return True
    with by.tenant.catalog.view() as view:
        rows = [view.document(each) for each in documents]
        held = view.holding(list(view.rows_of(list(chunks)).values()), by.allowed())
    return all(row and by.fits(row.collection, row.metadata) for row in rows) and {each.id for each in held} == chunks


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
