# numba and llvmlite have few types:
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportCallIssue=false, reportReturnType=false, reportUnknownLambdaType=false
# pyright: reportAttributeAccessIssue=false
"""What numba does not offer by itself: functions whose arrays lie apart, casts chosen by types, and memory by address.

Numba keeps what `place_kernel.py` and `cpu_rows_kernel.py` became until they change: touch both where this one changes
alone.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from llvmlite.ir import FunctionType, IntType, IRBuilder, Value  # pyright: ignore[reportMissingTypeStubs]
from numba import (
    carray,  # pyright: ignore[reportPrivateImportUsage]
    int32,
    int64,
    njit,
    types,
    uint16,
    uint32,
)
from numba.core.base import BaseContext
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager
from numba.core.typing.templates import Signature
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., object])
Number = TypeVar("Number", bound=np.generic)
Word = np.uint16 | np.uint32  # the bits of bfloat16 or float32

_HALF, _ODD, _ONE, _UPPER = np.uint32(16), np.uint32(0x7FFF), np.uint32(1), np.uint32(0xFFFF0000)


class _Apart(CompilerBase):
    """Compiles functions whose arrays never overlap: without a look for each row whether they do, nothing is lost."""

    def define_pipelines(self) -> list[PassManager]:
        self.state.flags.noalias = True
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]


def compiled(function: Function) -> Function:
    """The function, compiled where it is called first."""
    return njit(nogil=True)(function)


def compiled_apart(function: Function) -> Function:
    """The function, which must not make arrays, compiled without counts of who uses them."""
    return njit(nogil=True, pipeline_class=_Apart, _nrt=False)(function)


def compiled_loosely(function: Function) -> Function:
    """The function, compiled so that it may add in another order than is written, the same each time."""
    return njit(nogil=True, fastmath={"reassoc", "contract", "nsz", "nnan"}, error_model="numpy")(function)


def cast(x: np.float32, to: np.float32 | Word, like: Word) -> np.float32 | Word:
    """What a context's words, which are like `like`, hold of a number: as such a word, or as a float32 again."""
    raise NotImplementedError


@compiled
def _rounded(x: np.float32) -> np.uint32:
    """The bits of a float32, whose upper half is the nearest bfloat16 then, the even one of two."""
    bits = np.float32(x).view(np.uint32)
    return np.uint32(bits + np.uint32(_ODD + np.uint32(np.uint32(bits >> _HALF) & _ONE)))


@overload(cast, strict=False)
def _chosen_cast(x: types.Type, to: types.Type, like: types.Type) -> Callable[..., object]:
    """Chosen by types, so that nothing is left to choose where it runs."""
    if to == uint16:
        return lambda x, to, like: np.uint16(_rounded(x) >> _HALF)
    if to == uint32:
        return lambda x, to, like: np.float32(x).view(np.uint32)
    if like == uint16:
        return lambda x, to, like: np.uint32(_rounded(x) & _UPPER).view(np.float32)
    return lambda x, to, like: x


def widened(word: Word) -> np.float32:
    """The number that a context holds as this word."""
    raise NotImplementedError


@overload(widened, strict=False)
def _chosen_widened(word: types.Type) -> Callable[..., object]:
    if word == uint16:
        return lambda word: np.uint32(np.uint32(word) << _HALF).view(np.float32)
    return lambda word: np.uint32(word).view(np.float32)


@intrinsic
def _pointer(typing: object, address: types.Type, like: types.Type) -> tuple[Signature, Callable[..., Value]]:
    def converted(context: BaseContext, builder: IRBuilder, signature: Signature, args: Sequence[Value]) -> Value:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(int64, like), converted


@intrinsic
def called(typing: object, address: types.Type) -> tuple[Signature, Callable[..., Value]]:
    """What a C function without parameters returns, an int; its address is told."""

    def made(context: BaseContext, builder: IRBuilder, signature: Signature, args: Sequence[Value]) -> Value:
        return builder.call(builder.inttoptr(args[0], FunctionType(IntType(32), ()).as_pointer()), ())

    return int32(int64), made


@compiled
def bytes_at(address: int, nbytes: int) -> NDArray[np.uint8]:
    """The memory at an address, as an array that counts no references."""
    return carray(_pointer(address, np.uint8(0)), nbytes)


@compiled
def words_at(address: int, shape: tuple[int, ...], like: Number) -> NDArray[Number]:
    """The same of words or numbers, which are like this one."""
    return carray(_pointer(address, like), shape)
