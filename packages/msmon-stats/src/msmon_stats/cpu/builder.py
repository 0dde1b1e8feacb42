"""Small helpers over llvmlite's instruction builder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
HALF, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
VOID = ir.VoidType()
F64_POINTER = F64.as_pointer()
I64_POINTER = I64.as_pointer()
BYTES = I8.as_pointer()


def vector(scalar: ir.Type, lanes: int) -> ir.Type:
    """The type of `lanes` scalars; of one, the scalar type itself."""
    return scalar if lanes == 1 else ir.VectorType(scalar, lanes)


def splat(scalar: ir.Type, lanes: int, value: float) -> ir.Constant:
    """A constant in every lane."""
    return ir.Constant(vector(scalar, lanes), value if lanes == 1 else [ir.Constant(scalar, value)] * lanes)


def broadcast(builder: ir.IRBuilder, value: ir.Value, lanes: int) -> ir.Value:
    """A run-time scalar in every lane."""
    if lanes == 1:
        return value
    kind = vector(value.type, lanes)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), splat(I32, lanes, 0))


def fold(builder: ir.IRBuilder, value: ir.Value, lanes: int, combine: Callable[[Any, Any], Any]) -> ir.Value:
    """Combine all lanes into one scalar, halving each time."""
    while lanes > 1:
        half = lanes // 2
        undefined = ir.Constant(value.type, ir.Undefined)
        low, high = (
            builder.shuffle_vector(
                value,
                undefined,
                ir.Constant(ir.VectorType(I32, half), [ir.Constant(I32, i + first) for i in range(half)]),
            )
            for first in (0, half)
        )
        value, lanes = combine(low, high), half
    return value if not isinstance(value.type, ir.VectorType) else builder.extract_element(value, ir.Constant(I32, 0))


def loop(
    builder: ir.IRBuilder,
    start: ir.Value,
    stop: ir.Value,
    step: ir.Value,
    state: Sequence[ir.Value],
    body: Callable[[ir.Value, Sequence[ir.Value]], Sequence[ir.Value]],
) -> list[ir.Value]:
    """`for i in range(start, stop, step): state = body(i, state)`; gives the last state."""
    before = builder.block
    head, inside, after = (builder.append_basic_block(name) for name in ("head", "inside", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(I64)
    phis = [builder.phi(value.type) for value in state]
    builder.cbranch(builder.icmp_signed("<", index, stop), inside, after)
    builder.position_at_end(inside)
    last = body(index, phis)
    following = builder.add(index, step)
    for phi, first, next_value in zip([index, *phis], [start, *state], [following, *last], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(next_value, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return phis


def function(module: ir.Module, name: str, result: ir.Type, arguments: Sequence[ir.Type]) -> tuple[Any, Any]:
    """A new function and a builder at its entry."""
    new = ir.Function(module, ir.FunctionType(result, arguments), name)
    return new, ir.IRBuilder(new.append_basic_block("entry"))
