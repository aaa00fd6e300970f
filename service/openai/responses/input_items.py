"""What a response is asked: messages, calls of functions and what these gave, as OpenAI has them. Knows no answer."""

from typing import Annotated, Final, Literal, cast

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, StringConstraints, Tag

from service.api.fields import Strict
from service.openai.request import Unused, texts_of
from service.openai.tools import CalledFunction, kind_tag

MOST_ITEMS: Final = 1000

_TEXTS: Final = ("input_text", "output_text")
_READ: Final = ("message", "function_call", "function_call_output")

CallId = Annotated[str, StringConstraints(min_length=1, max_length=200), Field(examples=["Abcdef123"])]


class InputText(Strict):
    """A part of a message."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: Unused = None
    logprobs: Unused = None
    prompt_cache_breakpoint: Unused = None


InputTexts = Annotated[str | list[InputText], texts_of(*_TEXTS)]


class InputMessage(Strict):
    """One turn of a chat."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: InputTexts = Field(examples=["Where does Mira live?"])
    id: Unused = None
    status: Unused = None
    phase: Unused = None

    @property
    def text(self) -> str:
        """The text of all parts, a line for each."""
        return _joined(self.content)


class FunctionCall(CalledFunction):
    """A call that an answer before made."""

    type: Literal["function_call"]
    call_id: CallId
    id: Unused = None
    status: Unused = None
    caller: Unused = None
    namespace: Unused = None


class FunctionOutput(Strict):
    """What a function that was called gave."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: InputTexts = Field(examples=["sunny"])
    id: Unused = None
    status: Unused = None
    caller: Unused = None
    name: Unused = None
    namespace: Unused = None

    @property
    def text(self) -> str:
        """The text of all parts, a line for each."""
        return _joined(self.output)


class PastSearch(BaseModel):
    """A search of an answer before, which is not read: each answer searches anew."""

    type: Literal["file_search_call"]


def _joined(texts: str | list[InputText]) -> str:
    return texts if isinstance(texts, str) else "\n".join(part.text for part in texts)


def _items(given: object) -> object:
    """The items that are read; of a text, a message of the user. Other kinds of items get a sentence of their own."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise ValueError("the input is a text, or a list of items such as {role: user, content: ...}")
    read: list[object] = []
    for each in cast(list[object], given):
        kind = cast(dict[str, object], each).get("type", "message") if isinstance(each, dict) else each
        if kind in _READ:
            read.append(cast(object, each))
        elif kind != "file_search_call":
            raise ValueError(
                "kvweave reads messages, calls of functions and their outputs, got an item of the type "
                f"{str(kind)[:40]!r}: leave it out"
            )
    return read


Item = InputMessage | FunctionCall | FunctionOutput
_Tagged = Annotated[
    Annotated[InputMessage, Tag("type[message]")]
    | Annotated[FunctionCall, Tag("type[function_call]")]
    | Annotated[FunctionOutput, Tag("type[function_call_output]")],
    Discriminator(kind_tag),
]
_Given = Annotated[
    list[_Tagged | PastSearch],
    Field(
        max_length=MOST_ITEMS,
        json_schema_extra={"contains": {"properties": {"type": {"enum": [*_READ]}}}},
    ),
]
Items = Annotated[
    list[_Tagged],
    Field(min_length=1, max_length=MOST_ITEMS),
    BeforeValidator(_items, json_schema_input_type=str | _Given),
]
