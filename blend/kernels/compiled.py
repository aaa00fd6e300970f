# numba and llvmlite have few types:
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportCallIssue=false, reportReturnType=false, reportUnknownLambdaType=false
# pyright: reportAttributeAccessIssue=false
"""Numba's ways of compiling (no aliasing, loose sums), rounding to bfloat16, C functions and memory by address.

Numba caches the kernels of a file until that file changes: after changing this one alone, touch those of this folder
that import it.
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
    """Compiles functions whose arrays never overlap, without a check of each row whether they do."""

    def define_pipelines(self) -> list[PassManager]:
        self.state.flags.noalias = True
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]


def compiled(function: Function) -> Function:
    """The function, compiled at its first call."""
    return njit(nogil=True)(function)


def compiled_apart(function: Function) -> Function:
    """The function, which must not make arrays, compiled without reference counts."""
    return njit(nogil=True, pipeline_class=_Apart, _nrt=False)(function)


def compiled_loosely(function: Function) -> Function:
    """The function, compiled so that it may reorder sums; each run adds in the same order."""
    return njit(nogil=True, fastmath={"reassoc", "contract", "nsz", "nnan"}, error_model="numpy")(function)


def cast(x: np.float32, to: np.float32 | Word, like: Word) -> np.float32 | Word:
    """The number rounded as a context stores it, in words of the type of `like`: as such a word, or as a float32."""
    raise NotImplementedError


@compiled
def _rounded(x: np.float32) -> np.uint32:
    """The bits of a float32, rounded so that the upper half is the nearest bfloat16, ties to even."""
    bits = np.float32(x).view(np.uint32)
    return np.uint32(bits + np.uint32(_ODD + np.uint32(np.uint32(bits >> _HALF) & _ONE)))


@overload(cast, strict=False)
def _chosen_cast(x: types.Type, to: types.Type, like: types.Type) -> Callable[..., object]:
    """Chooses the cast by types at compile time, so that no branch is left at run time."""
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
def call_at(typing: object, address: types.Type) -> tuple[Signature, Callable[..., Value]]:
    """Calls the C function at an address, which has no parameters and returns an int."""

    def made(context: BaseContext, builder: IRBuilder, signature: Signature, args: Sequence[Value]) -> Value:
        return builder.call(builder.inttoptr(args[0], FunctionType(IntType(32), ()).as_pointer()), ())

    return int32(int64), made


@compiled
def bytes_at(address: int, nbytes: int) -> NDArray[np.uint8]:
    """The memory at an address, as an array that counts no references."""
    return carray(_pointer(address, np.uint8(0)), nbytes)


@compiled
def words_at(address: int, shape: tuple[int, ...], like: Number) -> NDArray[Number]:
    """The memory at an address, as an array of words or numbers of the type of `like`, without reference counts."""
    return carray(_pointer(address, like), shape)
