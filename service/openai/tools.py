"""Tools, calls and tool_choice as OpenAI has them: functions alone, how many and how named."""

from typing import Annotated, Final, Literal, cast, get_args

from pydantic import BeforeValidator, Discriminator, Field, StringConstraints, Tag

from service.api.fields import Strict

MOST_TOOLS = 128
FunctionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class Function(Strict):
    """What an answer may call. `parameters`: a JSON schema of its arguments."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, object] | None = Field(None, examples=[{"type": "object", "properties": {}}])
    strict: bool | None = None


class Tool(Strict):
    """A tool. Functions are the only kind."""

    type: Literal["function"]
    function: Function


class NamedFunction(Strict):
    """A function by its name."""

    name: FunctionName


class NamedTool(Strict):
    """The tool that the answer has to call."""

    type: Literal["function"]
    function: NamedFunction


class CalledFunction(Strict):
    """A call, with its arguments as text of JSON."""

    name: FunctionName
    arguments: str


class ToolCall(Strict):
    """A call that an answer made."""

    id: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    type: Literal["function"]
    function: CalledFunction
    index: object = Field(None, exclude=True, description="Accepted and not used")  # of a stream's pieces


ChoiceWord = Literal["none", "auto", "required"]
WORD: Final = Tag("type[None]")  # of what has no type


def kind_tag(given: object) -> str:
    """The tag of an item or a tool by its type; messages may leave it out. Errors do not name it."""
    named = cast(dict[str, object], given) if isinstance(given, dict) else {"type": getattr(given, "type", None)}
    return f"type[{named.get('type', 'message')}]"


def choice_of(*kinds: str) -> BeforeValidator:
    """A check that a choice is a word, or a tool of one of these kinds. Others get a sentence of their own."""
    words = get_args(ChoiceWord)

    def check(given: object) -> object:
        kind = cast(dict[str, object], given).get("type") if isinstance(given, dict) else getattr(given, "type", given)
        if kind not in (kinds if kind is not given else words):
            said = f"{', '.join(words)}, or a tool of the type {' or '.join(kinds)}"
            raise ValueError(f"what is chosen is {said}, got {str(kind)[:40]!r}: take one of these")
        return cast(object, given)

    return BeforeValidator(check)


ToolChoice = Annotated[
    Annotated[ChoiceWord, WORD] | Annotated[NamedTool, Tag("type[function]")],
    Discriminator(kind_tag),
    choice_of("function"),
]
