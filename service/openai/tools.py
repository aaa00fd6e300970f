"""Tools, and messages that call them, as OpenAI has them. Knows no answer."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

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


ToolChoice = Literal["none", "auto", "required"] | NamedTool
