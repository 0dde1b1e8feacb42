"""LLVM code that reads one contiguous run of values once and gives its eight sufficient statistics.

A block of a few thousand values is read with vector accumulators: min, max and the comparison with eps in the
precision of the values, sum and sum of squares in float64. NaN and Inf need no test per value: a block that holds one
has a sum of squares that is not finite, and only such a block is read again, with masks. NaN never enters min, max and
zeros, because every comparison with it is false. Sums of blocks are added with compensation (Neumaier 1974), so the
error does not grow with the size of the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from attrs import frozen
from llvmlite import ir

from msmon_stats.cpu.builder import (
    BYTES,
    F32,
    F64,
    F64_POINTER,
    HALF,
    I8,
    I16,
    I32,
    I64,
    I64_POINTER,
    VOID,
    broadcast,
    fold,
    function,
    loop,
    splat,
    vector,
)
from msmon_stats.cpu.fingerprint import Words
from msmon_stats.fields import COUNT, HIGH, INFS, LOW, MAX, MIN, NANS, SUM, SUMSQ, WIDE, ZEROS
from msmon_stats.fingerprint import WORD, power, signed

BLOCK = 4096
_UNROLL = 2


@frozen(kw_only=True)
class Element:
    """How the values of a dtype are stored, and in which precision they can be compared without loss."""

    storage: ir.Type
    compare: ir.Type
    signed: bool = True
    """Of integers."""

    @property
    def itemsize(self) -> int:
        """Bytes of a stored value."""
        if isinstance(self.storage, ir.IntType):
            return int(self.storage.width) // 8
        return {HALF: 2, F32: 4, F64: 8}[self.storage]

    @property
    def integer(self) -> bool:
        return isinstance(self.storage, ir.IntType) and self is not ELEMENTS["bfloat16"]


ELEMENTS = {
    "float64": Element(storage=F64, compare=F64),
    "float32": Element(storage=F32, compare=F32),
    "float16": Element(storage=HALF, compare=F32),
    "bfloat16": Element(storage=I16, compare=F32),
    "int8": Element(storage=I8, compare=F32),
    "int16": Element(storage=I16, compare=F32),
    "int32": Element(storage=I32, compare=F64),
    "int64": Element(storage=I64, compare=F64),
    "uint8": Element(storage=I8, compare=F32, signed=False),
    "uint16": Element(storage=I16, compare=F32, signed=False),
    "uint32": Element(storage=I32, compare=F64, signed=False),
    "uint64": Element(storage=I64, compare=F64, signed=False),
}

# What one vector accumulator holds; the first five in this order in every loop, the counts only in the careful one.
State = Sequence[ir.Value]
_LOW, _HIGH, _ZEROS, _SUM, _SUMSQ, _NANS, _INFS = range(7)


class _Block:
    """Builds the function that reads one block."""

    def __init__(self, element: Element, builder: ir.IRBuilder, careful: bool) -> None:
        self.element = element
        self.builder = builder
        self.careful = careful
        self.bits = I32 if element.compare == F32 else I64

    def empty(self, lanes: int) -> list[ir.Value]:
        compare, bits = self.element.compare, self.bits
        state = [splat(compare, lanes, math.inf), splat(compare, lanes, -math.inf), splat(bits, lanes, 0)]
        state += [splat(F64, lanes, 0.0), splat(F64, lanes, 0.0)]
        if self.careful:
            state += [splat(bits, lanes, 0), splat(bits, lanes, 0)]
        return state

    def load(self, data: ir.Value, index: ir.Value, lanes: int) -> ir.Value:
        """Values `index .. index + lanes` in the precision of comparison."""
        builder, element = self.builder, self.element
        pointer = builder.bitcast(builder.gep(data, [index]), vector(element.storage, lanes).as_pointer())
        value = builder.load(pointer, align=element.itemsize)
        target = vector(element.compare, lanes)
        if element is ELEMENTS["bfloat16"]:
            # bfloat16 is the upper half of a float32.
            wide = builder.zext(value, vector(I32, lanes))
            return builder.bitcast(builder.shl(wide, splat(I32, lanes, 16)), target)
        if element.integer:
            return builder.sitofp(value, target) if element.signed else builder.uitofp(value, target)
        return value if element.storage == element.compare else builder.fpext(value, target)

    def accumulate(self, value: ir.Value, eps: ir.Value, state: State, lanes: int) -> list[ir.Value]:
        builder, compare, bits = self.builder, self.element.compare, self.bits
        mask = splat(bits, lanes, (1 << (bits.width - 1)) - 1)
        size = builder.bitcast(builder.and_(builder.bitcast(value, vector(bits, lanes)), mask), value.type)
        wide = value if compare == F64 else builder.fpext(value, vector(F64, lanes))
        result = [
            self.lower(value, state[_LOW]),
            self.higher(value, state[_HIGH]),
            self.count(builder.fcmp_ordered("<", size, eps), state[_ZEROS], lanes),
        ]
        if self.careful:
            nan = builder.fcmp_unordered("uno", value, value)
            wide = builder.select(nan, splat(F64, lanes, 0.0), wide)
            infinite = builder.fcmp_ordered("==", size, splat(compare, lanes, math.inf))
        result += [builder.fadd(state[_SUM], wide), self.multiply_add(wide, state[_SUMSQ])]
        if self.careful:
            result += [self.count(nan, state[_NANS], lanes), self.count(infinite, state[_INFS], lanes)]
        return result

    def multiply_add(self, value: ir.Value, total: ir.Value) -> ir.Value:
        # Fused where the machine can.
        square = self.builder.fmul(value, value, flags=("contract",))
        return self.builder.fadd(square, total, flags=("contract",))

    def lower(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), a, b)

    def higher(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def count(self, mask: ir.Value, total: ir.Value, lanes: int) -> ir.Value:
        return self.builder.sub(total, self.builder.sext(mask, vector(self.bits, lanes)))

    def combiners(self) -> list[Any]:
        builder = self.builder
        combiners = [self.lower, self.higher, builder.add, builder.fadd, builder.fadd]
        return [*combiners, builder.add, builder.add] if self.careful else combiners


def _build_block(
    module: ir.Module, name: str, element: Element, lanes: int, *, careful: bool = False, words_in: int = 0
) -> Any:
    """`words_in`: of so many bytes are the vectors in which the words of the fingerprint are summed, if they are."""
    new, builder = function(module, name, VOID, [element.storage.as_pointer(), I64, element.compare, F64_POINTER])
    new.linkage = "internal"
    data, size, eps, out = new.args
    block = _Block(element, builder, careful)
    zero = ir.Constant(I64, 0)
    whole = builder.and_(size, ir.Constant(I64, -lanes))
    unrolled = builder.and_(size, ir.Constant(I64, -lanes * _UNROLL))
    wide_eps = broadcast(builder, eps, lanes)
    width = len(block.empty(1))
    words = None
    if words_in:
        step_bytes = lanes * _UNROLL * element.itemsize
        words = Words(builder, step_bytes=step_bytes, steps=BLOCK // (lanes * _UNROLL), vector_bytes=words_in)

    def step_number(index: ir.Value) -> ir.Value:
        return builder.udiv(index, ir.Constant(I64, lanes * _UNROLL))

    def bytes_at(index: ir.Value) -> ir.Value:
        return builder.bitcast(builder.gep(data, [index]), BYTES)

    def many(index: ir.Value, state: State) -> list[ir.Value]:
        result: list[ir.Value] = []
        for part in range(_UNROLL):
            value = block.load(data, builder.add(index, ir.Constant(I64, part * lanes)), lanes)
            result += block.accumulate(value, wide_eps, state[part * width : (part + 1) * width], lanes)
        if words is not None:
            result += words.step(bytes_at(index), step_number(index), state[_UNROLL * width :])
        return result

    def one_vector(index: ir.Value, state: State) -> list[ir.Value]:
        return block.accumulate(block.load(data, index, lanes), wide_eps, state, lanes)

    def one_value(index: ir.Value, state: State) -> list[ir.Value]:
        return block.accumulate(block.load(data, index, 1), eps, state, 1)

    start = block.empty(lanes) * _UNROLL + (words.empty() if words is not None else [])
    state = loop(builder, zero, unrolled, ir.Constant(I64, lanes * _UNROLL), start, many)
    first = loop(builder, unrolled, whole, ir.Constant(I64, lanes), state[:width], one_vector)
    combiners = block.combiners()
    for part in range(1, _UNROLL):
        others = state[part * width : (part + 1) * width]
        first = [combine(a, b) for combine, a, b in zip(combiners, first, others, strict=True)]
    scalars = [fold(builder, value, lanes, combine) for combine, value in zip(combiners, first, strict=True)]
    scalars = loop(builder, whole, size, ir.Constant(I64, 1), scalars, one_value)

    for state_index, field in enumerate((MIN, MAX, ZEROS, SUM, SUMSQ, NANS, INFS)[:width]):
        value = scalars[state_index]
        if isinstance(value.type, ir.IntType):
            value = builder.sitofp(value, F64)
        elif value.type != F64:
            value = builder.fpext(value, F64)
        store_field(builder, out, field, value)
    if words is not None:
        left = builder.mul(builder.sub(size, unrolled), ir.Constant(I64, element.itemsize))
        sums = words.last_step(bytes_at(unrolled), left, step_number(unrolled), state[_UNROLL * width :])
        builder.store(words.total(sums), _as_bits(builder, out))
    builder.ret_void()
    return new


def _as_bits(builder: ir.IRBuilder, row: ir.Value) -> ir.Value:
    """Where a block leaves its sum of words, as 64 bits."""
    return builder.bitcast(builder.gep(row, [ir.Constant(I64, LOW)]), I64_POINTER)


def store_words(builder: ir.IRBuilder, row: ir.Value, total: ir.Value) -> None:
    """The two columns of a row that a sum of words takes."""
    half = ir.Constant(I64, 0xFFFFFFFF)
    store_field(builder, row, LOW, builder.uitofp(builder.and_(total, half), F64))
    store_field(builder, row, HIGH, builder.uitofp(builder.lshr(total, ir.Constant(I64, 32)), F64))


def load_words(builder: ir.IRBuilder, row: ir.Value) -> ir.Value:
    """The sum of words that two columns of a row make."""
    low, high = (builder.fptoui(load_field(builder, row, field), I64) for field in (LOW, HIGH))
    return builder.or_(low, builder.shl(high, ir.Constant(I64, 32)))


def load_field(builder: ir.IRBuilder, row: ir.Value, field: int) -> ir.Value:
    return builder.load(builder.gep(row, [ir.Constant(I64, field)]))


def store_field(builder: ir.IRBuilder, row: ir.Value, field: int, value: ir.Value) -> None:
    builder.store(value, builder.gep(row, [ir.Constant(I64, field)]))


def _comparable_eps(builder: ir.IRBuilder, element: Element, eps: ir.Value) -> ir.Value:
    """The smallest number of the compared precision that is not below eps: `x < eps` then means the same."""
    if element.compare == F64:
        return eps
    narrow = builder.fptrunc(eps, F32)
    rounded_down = builder.fcmp_ordered("<", builder.fpext(narrow, F64), eps)
    bits = builder.add(builder.bitcast(narrow, I32), ir.Constant(I32, 1))
    return builder.select(rounded_down, builder.bitcast(bits, F32), narrow)


def build_row(name: str, vector_bytes: int, *, fingerprint: bool) -> ir.Module:
    """The module with `row_<name>(data, size, eps, out)` for contiguous values of one dtype."""
    element = ELEMENTS[name]
    lanes = vector_bytes // (4 if element.compare == F32 else 8)
    module = ir.Module(name)
    fast = _build_block(module, "block", element, lanes, words_in=vector_bytes if fingerprint else 0)
    careful = None if element.integer else _build_block(module, "careful_block", element, lanes, careful=True)

    row, builder = function(module, f"row_{name}", VOID, [BYTES, I64, F64, F64_POINTER])
    data, size, eps, out = row.args
    data = builder.bitcast(data, element.storage.as_pointer())
    part = builder.bitcast(builder.alloca(F64, size=WIDE), F64_POINTER)
    eps = _comparable_eps(builder, element, eps)
    zero, inf = ir.Constant(F64, 0.0), ir.Constant(F64, math.inf)
    store_field(builder, part, NANS, zero)
    store_field(builder, part, INFS, zero)

    def read_block(start: ir.Value, state: State) -> list[ir.Value]:
        left = builder.sub(size, start)
        length = builder.select(builder.icmp_signed("<", left, ir.Constant(I64, BLOCK)), left, ir.Constant(I64, BLOCK))
        here = builder.gep(data, [start])
        builder.call(fast, [here, length, eps, part])
        nans = infs = zero
        if careful is not None:
            sumsq = load_field(builder, part, SUMSQ)
            finite = builder.fcmp_ordered("==", builder.fsub(sumsq, sumsq), zero)
            origin = builder.block
            with builder.if_then(builder.not_(finite), likely=False):
                builder.call(careful, [here, length, eps, part])
                seen = [load_field(builder, part, NANS), load_field(builder, part, INFS)]
                inside = builder.block
            nans, infs = builder.phi(F64), builder.phi(F64)
            for phi, value in zip((nans, infs), seen, strict=True):
                phi.add_incoming(zero, origin)
                phi.add_incoming(value, inside)
        low, high, zeros, total, total_lost, squares, squares_lost, all_nans, all_infs, *words = state
        block_low, block_high = load_field(builder, part, MIN), load_field(builder, part, MAX)
        return [
            builder.select(builder.fcmp_ordered("<", block_low, low), block_low, low),
            builder.select(builder.fcmp_ordered(">", block_high, high), block_high, high),
            builder.fadd(zeros, load_field(builder, part, ZEROS)),
            *_add_compensated(builder, total, total_lost, load_field(builder, part, SUM)),
            *_add_compensated(builder, squares, squares_lost, load_field(builder, part, SUMSQ)),
            builder.fadd(all_nans, nans),
            builder.fadd(all_infs, infs),
            *_add_words(builder, words, builder.load(_as_bits(builder, part)), element.itemsize),
        ]

    start = [inf, ir.Constant(F64, -math.inf), *[zero] * 7]
    if fingerprint:
        start += [ir.Constant(I64, 0), ir.Constant(I64, 1)]
    low, high, zeros, total, total_lost, squares, squares_lost, nans, infs, *words = loop(
        builder, ir.Constant(I64, 0), size, ir.Constant(I64, BLOCK), start, read_block
    )
    store_field(builder, out, COUNT, builder.sitofp(size, F64))
    for field, value in ((NANS, nans), (INFS, infs), (ZEROS, zeros), (MIN, low), (MAX, high)):
        store_field(builder, out, field, value)
    store_field(builder, out, SUM, _compensated(builder, total, total_lost))
    store_field(builder, out, SUMSQ, _compensated(builder, squares, squares_lost))
    if fingerprint:
        store_words(builder, out, words[0])
    builder.ret_void()
    return module


def _add_words(builder: ir.IRBuilder, words: State, block: ir.Value, itemsize: int) -> list[ir.Value]:
    """Add the sum of a block to the total, if there is one: it and the power of the block's first word."""
    if not words:
        return []
    total, here = words
    step = ir.Constant(I64, signed(power(BLOCK * itemsize // WORD)))
    return [builder.add(total, builder.mul(block, here)), builder.mul(here, step)]


def _add_compensated(
    builder: ir.IRBuilder, total: ir.Value, lost: ir.Value, value: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Add a value, and the part of it (or of the total) that rounding loses to `lost`."""
    new = builder.fadd(total, value)
    fabs = builder.module.declare_intrinsic("llvm.fabs", [F64])
    larger_total = builder.fcmp_ordered(">=", builder.call(fabs, [total]), builder.call(fabs, [value]))
    large = builder.select(larger_total, total, value)
    small = builder.select(larger_total, value, total)
    return new, builder.fadd(lost, builder.fadd(builder.fsub(large, new), small))


def _compensated(builder: ir.IRBuilder, total: ir.Value, lost: ir.Value) -> ir.Value:
    """The total with what was lost; an infinite total has no meaningful loss."""
    finite = builder.fcmp_ordered("==", builder.fsub(total, total), ir.Constant(F64, 0.0))
    return builder.select(finite, builder.fadd(total, lost), total)
