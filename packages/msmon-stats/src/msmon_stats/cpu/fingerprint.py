"""LLVM code that sums the words of a block for its fingerprint, beside the statistics: see `msmon_stats.fingerprint`.

The words of a step, which lie behind one another, are multiplied by the same power, and those of a place in a step are
summed; what tells places apart is factored out to the end of the block. The power has two halves of 32 bits: of the
product with the upper half only its own lower half is left in 64 bits, so it takes one multiplication for two words.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from msmon_stats.cpu.builder import I8, I32, I64, broadcast, fold, loop, splat, vector
from msmon_stats.fingerprint import WORD, powers, signed

_HALF = 0xFFFFFFFF


class Words:
    """Sums the words of a block, in steps of a fixed number of bytes."""

    def __init__(self, builder: ir.IRBuilder, *, step_bytes: int, steps: int, vector_bytes: int) -> None:
        """`steps`: the most in a block. One more may be taken, of what is left."""
        self._builder = builder
        self._step_bytes = step_bytes
        self._vector_bytes = min(step_bytes, vector_bytes)
        self._pairs = self._vector_bytes // (2 * WORD)
        table = powers(steps + 1, step_bytes // WORD)
        self._low = self._constants("low", I64, [int(one) & _HALF for one in table])
        self._high = self._constants("high", I32, [int(one) >> 32 for one in table])

    def _constants(self, name: str, kind: ir.Type, numbers: Sequence[int]) -> ir.Value:
        array = ir.ArrayType(kind, len(numbers))
        table = ir.GlobalVariable(self._builder.module, array, f"powers_{name}")
        table.initializer, table.global_constant, table.linkage = ir.Constant(array, list(numbers)), True, "internal"
        return self._builder.bitcast(table, kind.as_pointer())

    def empty(self) -> list[ir.Value]:
        """Of each vector in a step: the sums of even words and of odd ones, and those with the power's upper half."""
        wide, narrow = splat(I64, self._pairs, 0), splat(I32, 2 * self._pairs, 0)
        return [wide, wide, narrow] * (self._step_bytes // self._vector_bytes)

    def step(self, data: ir.Value, number: ir.Value, state: Sequence[ir.Value]) -> list[ir.Value]:
        """Add the bytes at `data`, which are the step of this number."""
        builder, pairs = self._builder, self._pairs
        low = broadcast(builder, builder.load(builder.gep(self._low, [number])), pairs)
        high = broadcast(builder, builder.load(builder.gep(self._high, [number])), 2 * pairs)
        half = splat(I64, pairs, _HALF)
        low = builder.and_(low, half)
        result = []
        for at in range(len(state) // 3):
            even, odd, upper = state[3 * at : 3 * at + 3]
            here = builder.gep(data, [ir.Constant(I64, at * self._vector_bytes)])
            words = builder.load(builder.bitcast(here, vector(I32, 2 * pairs).as_pointer()), align=1)
            both = builder.bitcast(words, vector(I64, pairs))
            result += [
                builder.add(even, builder.mul(builder.and_(both, half), low)),
                builder.add(odd, builder.mul(builder.lshr(both, splat(I64, pairs, 32)), low)),
                builder.add(upper, builder.mul(words, high)),
            ]
        return result

    def last_step(self, data: ir.Value, size: ir.Value, number: ir.Value, state: Sequence[ir.Value]) -> list[ir.Value]:
        """Add what is left, less than a step, with zeros behind it."""
        builder, zero = self._builder, ir.Constant(I64, 0)
        with builder.goto_entry_block():
            buffer = builder.alloca(I8, size=self._step_bytes)
        words = builder.bitcast(buffer, I64.as_pointer())
        for at in range(self._step_bytes // 8):
            builder.store(zero, builder.gep(words, [ir.Constant(I64, at)]), align=1)

        def one(index: ir.Value, _: Sequence[ir.Value]) -> list[ir.Value]:
            builder.store(builder.load(builder.gep(data, [index])), builder.gep(buffer, [index]))
            return []

        loop(builder, zero, size, ir.Constant(I64, 1), [], one)
        return self.step(buffer, number, state)

    def total(self, state: Sequence[ir.Value]) -> ir.Value:
        """The sum over the block, whose first word counts once."""
        builder, pairs = self._builder, self._pairs
        places = [int(one) for one in powers(self._step_bytes // WORD)]
        total = None
        for at in range(len(state) // 3):
            even, odd, upper = state[3 * at : 3 * at + 3]
            upper = builder.bitcast(upper, vector(I64, pairs))
            even = builder.add(even, builder.shl(upper, splat(I64, pairs, 32)))
            odd = builder.add(odd, builder.and_(upper, splat(I64, pairs, -1 << 32)))
            first = 2 * pairs * at
            for sums, start in ((even, first), (odd, first + 1)):
                factors = ir.Constant(sums.type, [ir.Constant(I64, signed(one)) for one in places[start::2][:pairs]])
                product = builder.mul(sums, factors)
                total = product if total is None else builder.add(total, product)
        return fold(builder, total, pairs, builder.add)
