"""How the functions of `operations` become methods: what they are called, and what `help` shows of them."""

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Final, TypeVar, cast, get_args

C = TypeVar("C", bound=Callable[..., object])

_SELF: Final = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)


def named(call: C, build: Callable[..., object], *, of: str, result: Callable[[object], object]) -> C:
    """`call` as the method of class `of` that `build` makes it; `result` is what becomes of the answer's type."""
    made, signature = cast(FunctionType, call), inspect.signature(build)
    made.__name__, made.__doc__ = cast(FunctionType, build).__name__, build.__doc__
    made.__qualname__ = f"{of}.{made.__name__}"
    vars(made)["__signature__"] = signature.replace(
        parameters=[_SELF, *signature.parameters.values()],
        return_annotation=result(get_args(signature.return_annotation)[0]),
    )
    return call
