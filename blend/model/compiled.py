# numba and llvmlite have few types:
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportCallIssue=false, reportReturnType=false, reportUnknownLambdaType=false
# pyright: reportAttributeAccessIssue=false
"""What numba does not offer by itself: functions whose arrays lie apart, casts chosen by types, memory by address, and
instructions that no loop becomes.

Numba keeps what `place_kernel.py` became until that file changes: touch it where this one changes alone.
"""

import platform
from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import binding  # pyright: ignore[reportMissingTypeStubs]
from llvmlite.ir import (  # pyright: ignore[reportMissingTypeStubs]
    Constant,
    FunctionType,
    IntType,
    IRBuilder,
    Type,
    Undefined,
    Value,
    VectorType,
)
from numba import (
    carray,  # pyright: ignore[reportPrivateImportUsage]
    config,
    int64,
    njit,
    types,
    uint8,
    uint16,
    uint32,
)
from numba.core.base import BaseContext
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager
from numba.core.typing.templates import Signature
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

Word = np.uint16 | np.uint32  # the bits of bfloat16 or float32

LANES = 16  # that one look-up takes
_BYTE, _PLACE = IntType(8), IntType(32)
_X86, _ARM = "llvm.x86.ssse3.pshuf.b.128", "llvm.aarch64.neon.tbl1.v16i8"
_LOOKING_UP = {"x86_64": _X86, "amd64": _X86, "aarch64": _ARM, "arm64": _ARM}
_HALF, _ODD, _ONE, _UPPER = np.uint32(16), np.uint32(0x7FFF), np.uint32(1), np.uint32(0xFFFF0000)


class _Apart(CompilerBase):
    """Compiles functions whose arrays never overlap: without a look for each row whether they do, nothing is lost."""

    def define_pipelines(self) -> list[PassManager]:
        self.state.flags.noalias = True
        return [DefaultPassBuilder.define_nopython_pipeline(self.state)]


compiled = njit(nogil=True)
compiled_apart = njit(nogil=True, pipeline_class=_Apart)


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


@intrinsic
def _pointer(typing: object, address: types.Type) -> tuple[Signature, Callable[..., Value]]:
    def converted(context: BaseContext, builder: IRBuilder, signature: Signature, args: Sequence[Value]) -> Value:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(uint8)(int64), converted


@compiled
def bytes_at(address: int, nbytes: int) -> NDArray[np.uint8]:
    """The memory at an address, as an array that counts no references."""
    return carray(_pointer(address), nbytes)


@intrinsic
def multiply_add(typing: object, a: types.Type, b: types.Type, c: types.Type) -> tuple[Signature, Callable[..., Value]]:
    """a * b + c, in one step where that takes less time. Nothing is rounded otherwise where a * b is exact."""

    def made(context: BaseContext, builder: IRBuilder, signature: Signature, args: Sequence[Value]) -> Value:
        kind = args[0].type
        function = builder.module.declare_intrinsic("llvm.fmuladd", (kind,), FunctionType(kind, (kind,) * 3))
        return builder.call(function, args)

    return a(a, b, c), made


@intrinsic
def look_up(
    typing: object, to: types.Type, codes: types.Type, start: types.Type, table: types.Type
) -> tuple[Signature, Callable[..., Value]]:
    """Puts 16 words of the `table` where 16 codes from the start on say so; codes and words lie side by side."""

    def made(context: BaseContext, builder: IRBuilder, signature: Signature, args: Sequence[Value]) -> Value:
        def at(number: int, start: Value, *, kind: Type) -> Value:
            array = context.make_array(signature.args[number])(context, builder, args[number])
            return builder.bitcast(builder.gep(array.data, [start]), kind.as_pointer())

        width = signature.args[0].dtype.bitwidth // 8
        places = builder.load(at(1, args[2], kind=VectorType(_BYTE, LANES)), align=1)
        words = builder.load(at(3, args[2].type(0), kind=VectorType(_BYTE, LANES * width)), align=1)
        lanes = [range(byte, LANES * width, width) for byte in range(width)]
        tables = [_shuffled(builder, (words, words), lanes=each) for each in lanes]
        planes = [_looked_up(builder, each, places=places) for each in tables]
        while len(planes) > 1:  # the first half of the bytes of each word, then the second, side by side
            half = len(planes) // 2
            planes = [_interleaved(builder, (planes[number], planes[number + half])) for number in range(half)]
        builder.store(planes[0], at(0, args[2], kind=planes[0].type), align=1)
        return context.get_dummy_value()

    return types.void(to, codes, int64, table), made


def _looked_up(builder: IRBuilder, table: Value, *, places: Value) -> Value:
    """The bytes of a table at 16 places: one instruction where it is known by name."""
    name = _LOOKING_UP.get(platform.machine().lower())
    is_there = name == _ARM or binding.get_host_cpu_features().get("ssse3", False)
    if name and is_there and not (config.CPU_NAME or config.CPU_FEATURES):
        kind = FunctionType(table.type, (table.type, places.type))
        return builder.call(builder.module.declare_intrinsic(name, (), kind), [table, places])
    found = Constant(table.type, Undefined)
    for lane in range(LANES):
        byte = builder.extract_element(table, builder.extract_element(places, _PLACE(lane)))
        found = builder.insert_element(found, byte, _PLACE(lane))
    return found


def _interleaved(builder: IRBuilder, both: tuple[Value, Value]) -> Value:
    count = both[0].type.count
    return _shuffled(builder, both, lanes=[place + count * side for place in range(count) for side in (0, 1)])


def _shuffled(builder: IRBuilder, both: tuple[Value, Value], *, lanes: Sequence[int]) -> Value:
    return builder.shuffle_vector(*both, Constant(VectorType(_PLACE, len(lanes)), [_PLACE(lane) for lane in lanes]))
