# numba and llvmlite have few types:
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false, reportAttributeAccessIssue=false
# pyright: reportReturnType=false, reportArgumentType=false
"""Sixteen numbers at a time, by instructions that no loop becomes. What they write goes past the caches, which would
first read what is written over; it stands in memory when `all_written` returns.

Numba keeps what `place_kernel.py` and `lone_kernel.py` became until they change: touch both where this changes alone.
"""

import platform
from collections.abc import Callable, Sequence

from llvmlite import binding  # pyright: ignore[reportMissingTypeStubs]
from llvmlite.ir import (  # pyright: ignore[reportMissingTypeStubs]
    Constant,
    FloatType,
    FunctionType,
    IntType,
    IRBuilder,
    Type,
    Undefined,
    Value,
    VectorType,
    VoidType,
)
from numba import (
    config,
    float32,
    int64,
    types,
    uint32,
)
from numba.core.base import BaseContext
from numba.core.datamodel.models import PrimitiveModel
from numba.core.typing.templates import Signature
from numba.extending import intrinsic, register_model

LANES = 16
_LINE_BITS = 512
_BYTE, _SHORT, _LONG = IntType(8), IntType(16), IntType(32)
_BYTES, _FLOATS, _WORDS = VectorType(_BYTE, LANES), VectorType(FloatType(), LANES), VectorType(_LONG, LANES)
_X86, _ARM = "llvm.x86.ssse3.pshuf.b.128", "llvm.aarch64.neon.tbl1.v16i8"
_LOOKING_UP = {"x86_64": _X86, "amd64": _X86, "aarch64": _ARM, "arm64": _ARM}
_RAISED, _RAISED_BITS = 2.0**15, 0x47000000  # what has a mantissa whose ninth bit from below counts one
_SPLITTING = 65537  # 2**16 + 1: what a bfloat16 has of a float32 is left when as much is taken away again

Emitted = tuple[Signature, Callable[..., Value]]


class Lanes(types.Type):
    """Numbers in float32, which no array holds."""

    def __init__(self) -> None:
        super().__init__(name="lanes")


@register_model(Lanes)
class _LanesModel(PrimitiveModel):
    def __init__(self, manager: object, kind: Lanes) -> None:
        super().__init__(manager, kind, _FLOATS)


class _BFloat16(Type):
    """LLVM's own, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"


_LANES = Lanes()


def _knows(feature: str) -> bool:
    """Whether this CPU has such instructions, and nobody told numba of another one."""
    return not (config.CPU_NAME or config.CPU_FEATURES) and bool(binding.get_host_cpu_features().get(feature, False))


_ROUNDS = _knows("avx512bf16")  # to bfloat16; what is below 2**-126 becomes zero then
_NAMED = _LOOKING_UP.get(platform.machine().lower())
_LOOKS_UP = _NAMED if _NAMED == _ARM or _knows("ssse3") else None


def _emitted(make: Callable[..., Value | None]) -> Callable[..., Value]:
    """What numba asks for, of a function that takes a builder and the arguments, of arrays the addresses."""

    def emitted(context: BaseContext, builder: IRBuilder, signature: Signature, args: Sequence[Value]) -> Value:
        arrays = [
            context.make_array(kind)(context, builder, arg).data if isinstance(kind, types.Array) else arg
            for kind, arg in zip(signature.args, args, strict=True)
        ]
        made = make(builder, *arrays)
        return context.get_dummy_value() if made is None else made

    return emitted


def _loaded(builder: IRBuilder, data: Value, *, at: Value, count: int = LANES) -> Value:
    kind = VectorType(data.type.pointee, count)
    return builder.load(builder.bitcast(builder.gep(data, [at]), kind.as_pointer()), align=1)


def _streamed(builder: IRBuilder, words: Value, *, data: Value, at: Value) -> None:
    """Writes words past the caches, to memory aligned to as many."""
    if _ROUNDS:  # LLVM knows no such way for its bfloat16, and remembers where words came from
        words = builder.asm(FunctionType(words.type, (words.type,)), "", "=v,0", [words], side_effect=False)
    nbytes = words.type.count * words.type.element.width // 8
    stored = builder.store(words, builder.bitcast(builder.gep(data, [at]), words.type.as_pointer()), align=nbytes)
    stored.set_metadata("nontemporal", builder.module.add_metadata([_LONG(1)]))


def _filled(builder: IRBuilder, x: Value, *, count: int = LANES) -> Value:
    one = builder.insert_element(Constant(VectorType(x.type, count), Undefined), x, _LONG(0))
    return _shuffled(builder, (one, one), lanes=[0] * count)


def _shuffled(builder: IRBuilder, both: tuple[Value, Value], *, lanes: Sequence[int]) -> Value:
    return builder.shuffle_vector(*both, Constant(VectorType(_LONG, len(lanes)), [_LONG(lane) for lane in lanes]))


def _interleaved(builder: IRBuilder, both: tuple[Value, Value]) -> Value:
    count = both[0].type.count
    return _shuffled(builder, both, lanes=[place + count * side for place in range(count) for side in (0, 1)])


def _halves(builder: IRBuilder, x: Value) -> tuple[Value, Value]:
    half = x.type.count // 2
    return tuple(_shuffled(builder, (x, x), lanes=range(first, first + half)) for first in (0, half))


def _words(builder: IRBuilder, x: Value, *, row: Value) -> Value:
    """What memory holds of numbers: their bits, or those of the nearest bfloat16, the even one of two."""
    bits = builder.bitcast(x, _WORDS)
    if row.type.pointee.width == _LONG.width:
        return bits
    short = VectorType(_SHORT, LANES)
    if _ROUNDS:
        return builder.bitcast(builder.fptrunc(x, VectorType(_BFloat16(), LANES)), short)
    half, odd, one = (_filled(builder, _LONG(each)) for each in (16, 0x7FFF, 1))
    up = builder.add(odd, builder.and_(builder.lshr(bits, half), one))
    return builder.trunc(builder.lshr(builder.add(bits, up), half), short)


def _reading(apart: int, first: int) -> tuple[Callable[..., Lanes], Callable[..., Lanes]]:
    """Numbers of an array that lie so far apart, and codes (a byte each, or some bits of one) as numbers."""
    lanes = range(first, apart * LANES, apart)

    def found(builder: IRBuilder, data: Value, start: Value) -> Value:
        every = _loaded(builder, data, at=start, count=apart * LANES)
        return _shuffled(builder, (every, every), lanes=lanes)

    @intrinsic
    def numbers(typing: object, array: types.Type, start: types.Type) -> Emitted:
        return _LANES(array, int64), _emitted(found)

    @intrinsic
    def codes(typing: object, row: types.Type, start: types.Type, bits: types.Type) -> Emitted:
        def made(builder: IRBuilder, row: Value, start: Value, bits: Value) -> Value:
            shift, mask, half = (builder.extract_value(bits, place) for place in range(3))
            wide = builder.zext(found(builder, row, start), _WORDS)
            upper = builder.shl(wide, _filled(builder, builder.sub(_LONG(8), shift)))
            kept = builder.and_(upper, _filled(builder, builder.shl(mask, _LONG(8))))
            raised = builder.bitcast(builder.or_(kept, _filled(builder, _LONG(_RAISED_BITS))), _FLOATS)
            return builder.fsub(raised, _filled(builder, builder.fadd(half, FloatType()(_RAISED))))

        return _LANES(row, int64, bits), _emitted(made)

    return numbers, codes


numbers_at, codes_at = _reading(1, 0)
even_numbers, even_codes = _reading(2, 0)
odd_numbers, odd_codes = _reading(2, 1)


@intrinsic
def floats_at(typing: object, row: types.Type, start: types.Type) -> Emitted:
    """Numbers that a row holds as words, or as they are."""

    def made(builder: IRBuilder, row: Value, start: Value) -> Value:
        found = _loaded(builder, row, at=start)
        if row.type.pointee == _SHORT:
            found = builder.shl(builder.zext(found, _WORDS), _filled(builder, _LONG(16)))
        return builder.bitcast(found, _FLOATS)

    return _LANES(row, int64), _emitted(made)


@intrinsic
def per_line(typing: object, row: types.Type) -> Emitted:
    """How many numbers of a row a line of the caches holds: known when it is compiled."""
    return int64(row), _emitted(lambda builder, row: IntType(64)(_LINE_BITS // row.type.pointee.width))


@intrinsic
def asked_for(typing: object, row: types.Type, start: types.Type) -> Emitted:
    """Memory that is needed soon, brought near meanwhile."""

    def made(builder: IRBuilder, row: Value, start: Value) -> None:
        bytes_ = _BYTE.as_pointer()
        kind = FunctionType(VoidType(), (bytes_, _LONG, _LONG, _LONG))
        fetch = builder.module.declare_intrinsic("llvm.prefetch", (bytes_,), kind)
        builder.call(fetch, (builder.bitcast(builder.gep(row, [start]), bytes_), _LONG(0), _LONG(2), _LONG(1)))

    return types.void(row, int64), _emitted(made)


@intrinsic
def sum_of(typing: object, x: types.Type) -> Emitted:
    """The sum of all lanes, pairs first."""

    def made(builder: IRBuilder, x: Value) -> Value:
        kind = FunctionType(FloatType(), (FloatType(), _FLOATS))
        added = builder.module.declare_intrinsic("llvm.vector.reduce.fadd.v16f32", (), kind)
        return builder.call(added, (FloatType()(-0.0), x), fastmath=("reassoc",))

    return float32(x), _emitted(made)


@intrinsic
def keep(typing: object, row: types.Type, start: types.Type, x: types.Type) -> Emitted:
    """Writes numbers as they are, to be read soon."""

    def made(builder: IRBuilder, row: Value, start: Value, x: Value) -> None:
        builder.store(x, builder.bitcast(builder.gep(row, [start]), _FLOATS.as_pointer()), align=4)

    return types.void(row, int64, x), _emitted(made)


@intrinsic
def filled(typing: object, x: types.Type) -> Emitted:
    """The same number in each lane."""
    return _LANES(float32), _emitted(_filled)


@intrinsic
def plus(typing: object, a: types.Type, b: types.Type) -> Emitted:
    return _LANES(a, b), _emitted(lambda builder, a, b: builder.fadd(a, b))


@intrinsic
def minus(typing: object, a: types.Type, b: types.Type) -> Emitted:
    return _LANES(a, b), _emitted(lambda builder, a, b: builder.fsub(a, b))


@intrinsic
def times(typing: object, a: types.Type, b: types.Type) -> Emitted:
    return _LANES(a, b), _emitted(lambda builder, a, b: builder.fmul(a, b))


@intrinsic
def multiply_add(typing: object, a: types.Type, b: types.Type, c: types.Type) -> Emitted:
    """a * b + c, in one step where that takes less time. Nothing is rounded otherwise where a * b is exact."""

    def made(builder: IRBuilder, *args: Value) -> Value:
        kind = FunctionType(_FLOATS, (_FLOATS,) * 3)
        return builder.call(builder.module.declare_intrinsic("llvm.fmuladd.v16f32", (), kind), args)

    return _LANES(a, b, c), _emitted(made)


@intrinsic
def within(typing: object, x: types.Type, limit: types.Type) -> Emitted:
    """Numbers of which none is further from zero than the limit."""

    def made(builder: IRBuilder, x: Value, limit: Value) -> Value:
        most, least = _filled(builder, limit), _filled(builder, builder.fneg(limit))
        x = builder.select(builder.fcmp_ordered("<", x, most), x, most)
        return builder.select(builder.fcmp_ordered(">", x, least), x, least)

    return _LANES(x, float32), _emitted(made)


@intrinsic
def rounded(typing: object, x: types.Type, row: types.Type) -> Emitted:
    """Numbers as words of this row hold them, for those from 2**-110 to 2**110, and above zero where they are zero."""

    def made(builder: IRBuilder, x: Value, row: Value) -> Value:
        if row.type.pointee.width == _LONG.width:
            return x
        more = builder.fmul(x, _filled(builder, FloatType()(_SPLITTING)))
        return builder.fadd(more, builder.fsub(x, more))

    return _LANES(x, row), _emitted(made)


@intrinsic
def put(typing: object, row: types.Type, start: types.Type, x: types.Type) -> Emitted:
    """Writes numbers as words of a row from the start on."""

    def made(builder: IRBuilder, row: Value, start: Value, x: Value) -> None:
        _streamed(builder, _words(builder, x, row=row), data=row, at=start)

    return types.void(row, int64, x), _emitted(made)


@intrinsic
def put_in_turn(typing: object, row: types.Type, start: types.Type, a: types.Type, b: types.Type) -> Emitted:
    """Writes numbers of two kinds alternately."""

    def made(builder: IRBuilder, row: Value, start: Value, a: Value, b: Value) -> None:
        both = _interleaved(builder, (_words(builder, a, row=row), _words(builder, b, row=row)))
        for words, first in zip(_halves(builder, both), (0, LANES), strict=True):
            _streamed(builder, words, data=row, at=builder.add(start, start.type(first)))

    return types.void(row, int64, a, b), _emitted(made)


@intrinsic
def put_found(  # noqa: PLR0917
    typing: object,
    row: types.Type,
    start: types.Type,
    codes: types.Type,
    shift: types.Type,
    mask: types.Type,
    table: types.Type,
) -> Emitted:
    """Writes what a table has for codes of four bits from the start on: each byte of its words is looked up."""

    def made(  # noqa: PLR0917
        builder: IRBuilder, row: Value, start: Value, codes: Value, shift: Value, mask: Value, table: Value
    ) -> None:
        pairs = builder.bitcast(_loaded(builder, codes, at=start), VectorType(_SHORT, LANES // 2))
        shifted = builder.lshr(pairs, _filled(builder, builder.trunc(shift, _SHORT), count=LANES // 2))
        places = builder.and_(builder.bitcast(shifted, _BYTES), _filled(builder, builder.trunc(mask, _BYTE)))
        words = _words(builder, table, row=row)
        width = words.type.element.width // 8
        flat = builder.bitcast(words, VectorType(_BYTE, LANES * width))
        tables = [_shuffled(builder, (flat, flat), lanes=range(byte, LANES * width, width)) for byte in range(width)]
        planes = [_looked_up(builder, each, places=places) for each in tables]
        while len(planes) > 1:  # the first half of the bytes of each word, then the second, side by side
            half = len(planes) // 2
            planes = [_interleaved(builder, (planes[number], planes[number + half])) for number in range(half)]
        _streamed(builder, builder.bitcast(planes[0], words.type), data=row, at=start)

    return types.void(row, int64, codes, uint32, uint32, table), _emitted(made)


def _looked_up(builder: IRBuilder, table: Value, *, places: Value) -> Value:
    """The bytes of a table at 16 places: one instruction where it is known by name."""
    if _LOOKS_UP:
        kind = FunctionType(_BYTES, (_BYTES, _BYTES))
        return builder.call(builder.module.declare_intrinsic(_LOOKS_UP, (), kind), [table, places])
    found = Constant(_BYTES, Undefined)
    for lane in range(LANES):
        byte = builder.extract_element(table, builder.extract_element(places, _LONG(lane)))
        found = builder.insert_element(found, byte, _LONG(lane))
    return found


@intrinsic
def transpose_at(  # noqa: PLR0917
    typing: object,
    to: types.Type,
    start: types.Type,
    width: types.Type,
    of: types.Type,
    begin: types.Type,
    length: types.Type,
) -> Emitted:
    """Bytes of 16 columns, one after the other and each so long, as 16 rows, each so wide."""

    def made(  # noqa: PLR0917
        builder: IRBuilder, to: Value, start: Value, width: Value, of: Value, begin: Value, length: Value
    ) -> None:
        def at(start: Value, step: Value, number: int) -> Value:
            return builder.add(start, builder.mul(step, step.type(number)))

        lines = [_loaded(builder, of, at=at(begin, length, number)) for number in range(LANES)]
        for _ in range(LANES.bit_length() - 1):  # each time bytes of lines that are eight apart come side by side
            pairs = [_interleaved(builder, (lines[number], lines[number + LANES // 2])) for number in range(LANES // 2)]
            lines = [half for pair in pairs for half in _halves(builder, pair)]
        for number, line in enumerate(lines):
            place = builder.bitcast(builder.gep(to, [at(start, width, number)]), line.type.as_pointer())
            builder.store(line, place, align=1)

    return types.void(to, int64, int64, of, int64, int64), _emitted(made)


@intrinsic
def all_written(typing: object) -> Emitted:
    """What was written past the caches stands before anything that is written later."""

    def made(builder: IRBuilder) -> None:
        builder.fence("seq_cst")

    return types.void(), _emitted(made)
