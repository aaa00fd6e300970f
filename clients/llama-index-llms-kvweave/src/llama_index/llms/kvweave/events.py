"""LlamaIndex's events around calls of a model, with types: its own decorators have none."""

from collections.abc import Callable
from typing import TypeVar, cast

from llama_index.core.llms.callbacks import (
    llm_chat_callback,  # pyright: ignore[reportUnknownVariableType] (it returns a bare Callable)
    llm_completion_callback,  # pyright: ignore[reportUnknownVariableType] (it returns a bare Callable)
)

F = TypeVar("F", bound=Callable[..., object])


def chats(call: F) -> F:
    """Tells who listens that a chat begins and ends."""
    return cast(F, llm_chat_callback()(call))


def completes(call: F) -> F:
    """Tells who listens that a completion begins and ends."""
    return cast(F, llm_completion_callback()(call))
