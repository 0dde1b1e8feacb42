"""LLVM code that shares the work of many tensors among threads.

A job is a table of runs of values and an output row for each. Long runs are cut into pieces; threads take pieces by an
atomic counter, each piece has a row of scratch, and the rows are merged in order afterwards, so the numbers do not
depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from msmon_stats.cpu.builder import BYTES, F64, F64_POINTER, I32, I64, I64_POINTER, VOID, function, loop
from msmon_stats.cpu.row import load_field, load_words, store_field, store_words
from msmon_stats.fields import MAX, MIN, WIDE, WIDTH

PIECE = 1 << 17
"""Elements that a thread reads at a time: some ten microseconds of work, few enough to share evenly."""

# The words of a job, 8 bytes each. The last two are functions and are used by `team` only.
JOB_WORDS = (
    "row",
    "data",
    "sizes",
    "runs",
    "itemsize",
    "eps",
    "out",
    "scratch",
    "next",
    "pieces",
    "grain",
    "piece_power",
    "fork",
    "threads",
)
_ROW = ir.FunctionType(VOID, [BYTES, I64, F64, F64_POINTER])
_BODY = ir.FunctionType(VOID, [I64_POINTER])
# void GOMP_parallel(void (*fn)(void *), void *data, unsigned num_threads, unsigned flags)
_FORK = ir.FunctionType(VOID, [_BODY.as_pointer(), I64_POINTER, I32, I32])


class _Job:
    """Reads the words of a job."""

    def __init__(self, builder: ir.IRBuilder, words: ir.Value, width: int) -> None:
        self.builder = builder
        self.words = words
        self.width = width

    def address(self, name: str) -> ir.Value:
        return self.builder.gep(self.words, [_int(JOB_WORDS.index(name))])

    def __getitem__(self, name: str) -> ir.Value:
        return self.builder.load(self.address(name))

    def pointer(self, name: str, kind: ir.Type) -> ir.Value:
        return self.builder.inttoptr(self[name], kind)

    def call_row(self, data: ir.Value, size: ir.Value, row: ir.Value) -> None:
        eps = self.builder.bitcast(self["eps"], F64)
        self.builder.call(self.pointer("row", _ROW.as_pointer()), [data, size, eps, row])

    def run(self, index: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Address (as an integer) and size of one run."""
        builder = self.builder
        data, sizes = (self.pointer(name, I64_POINTER) for name in ("data", "sizes"))
        return builder.load(builder.gep(data, [index])), builder.load(builder.gep(sizes, [index]))

    def row(self, name: str, index: ir.Value) -> ir.Value:
        return self.builder.gep(self.pointer(name, F64_POINTER), [self.builder.mul(index, _int(self.width))])


def _int(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def _pieces(builder: ir.IRBuilder, size: ir.Value) -> ir.Value:
    """How many pieces a run is cut into; an empty one is one piece."""
    pieces = builder.sdiv(builder.add(size, _int(PIECE - 1)), _int(PIECE))
    return builder.select(builder.icmp_signed("<", pieces, _int(1)), _int(1), pieces)


def build_job(width: int) -> ir.Module:
    """The module with `serial(job)`, `body(job)`, `finish(job)` and `team(job)`, for rows of so many columns."""
    module = ir.Module("job")
    _build_serial(module, width)
    body = _build_body(module, width)
    finish = _build_finish(module, width)
    _build_team(module, body, finish)
    return module


def _build_serial(module: ir.Module, width: int) -> None:
    """Every run on the calling thread, without scratch."""
    new, builder = function(module, "serial", VOID, [I64_POINTER])
    job = _Job(builder, new.args[0], width)

    def one(index: ir.Value, _: Any) -> list[ir.Value]:
        data, size = job.run(index)
        job.call_row(builder.inttoptr(data, BYTES), size, job.row("out", index))
        return []

    loop(builder, _int(0), job["runs"], _int(1), [], one)
    builder.ret_void()


def _build_body(module: ir.Module, width: int) -> Any:
    """What each thread of a team does: take pieces until none is left."""
    new, builder = function(module, "body", VOID, [I64_POINTER])
    job = _Job(builder, new.args[0], width)
    pieces, grain, itemsize = job["pieces"], job["grain"], job["itemsize"]
    entry = builder.block
    take, work, skip, found, done = (
        builder.append_basic_block(name) for name in ("take", "work", "skip", "found", "done")
    )
    more = builder.append_basic_block("more")
    builder.branch(take)

    # The run that holds the current piece, and the number of its first piece: pieces only grow, so both only advance.
    builder.position_at_end(take)
    run_at_take, base_at_take = builder.phi(I64), builder.phi(I64)
    first = builder.atomic_rmw("add", job.address("next"), grain, "monotonic")
    last = builder.add(first, grain)
    last = builder.select(builder.icmp_signed("<", last, pieces), last, pieces)
    builder.cbranch(builder.icmp_signed("<", first, pieces), work, done)

    builder.position_at_end(work)
    piece, run_at_work, base_at_work = builder.phi(I64), builder.phi(I64), builder.phi(I64)
    builder.branch(skip)

    builder.position_at_end(skip)
    run, base = builder.phi(I64), builder.phi(I64)
    data, size = job.run(run)
    following = builder.add(base, _pieces(builder, size))
    next_run = builder.add(run, _int(1))
    builder.cbranch(builder.icmp_signed("<", piece, following), found, skip)

    builder.position_at_end(found)
    start = builder.mul(builder.sub(piece, base), _int(PIECE))
    left = builder.sub(size, start)
    length = builder.select(builder.icmp_signed("<", left, _int(PIECE)), left, _int(PIECE))
    address = builder.add(data, builder.mul(start, itemsize))
    job.call_row(builder.inttoptr(address, BYTES), length, job.row("scratch", piece))
    builder.branch(more)

    builder.position_at_end(more)
    next_piece = builder.add(piece, _int(1))
    builder.cbranch(builder.icmp_signed("<", next_piece, last), work, take)

    for phi, incoming in (
        (run_at_take, [(_int(0), entry), (run, more)]),
        (base_at_take, [(_int(0), entry), (base, more)]),
        (piece, [(first, take), (next_piece, more)]),
        (run_at_work, [(run_at_take, take), (run, more)]),
        (base_at_work, [(base_at_take, take), (base, more)]),
        (run, [(run_at_work, work), (next_run, skip)]),
        (base, [(base_at_work, work), (following, skip)]),
    ):
        for value, block in incoming:
            phi.add_incoming(value, block)
    builder.position_at_end(done)
    builder.ret_void()
    return new


def _build_finish(module: ir.Module, width: int) -> Any:
    """Merge the rows of the pieces of each run."""
    new, builder = function(module, "finish", VOID, [I64_POINTER])
    job = _Job(builder, new.args[0], width)

    def one_run(run: ir.Value, state: Any) -> list[ir.Value]:
        first = state[0]
        _, size = job.run(run)
        following = builder.add(first, _pieces(builder, size))
        fields = [load_field(builder, job.row("scratch", first), field) for field in range(WIDTH)]
        if width == WIDE:
            fields += [load_words(builder, job.row("scratch", first)), job["piece_power"]]

        def one_piece(piece: ir.Value, state: Any) -> list[ir.Value]:
            fields, words = state[:WIDTH], state[WIDTH:]
            others = [load_field(builder, job.row("scratch", piece), field) for field in range(WIDTH)]
            merged = [builder.fadd(a, b) for a, b in zip(fields, others, strict=True)]
            for field, order in ((MIN, "<"), (MAX, ">")):
                a, b = fields[field], others[field]
                merged[field] = builder.select(builder.fcmp_ordered(order, b, a), b, a)
            if words:
                # The sum so far, and the power of this piece's first word.
                part = builder.mul(load_words(builder, job.row("scratch", piece)), words[1])
                merged += [builder.add(words[0], part), builder.mul(words[1], job["piece_power"])]
            return merged

        fields = loop(builder, builder.add(first, _int(1)), following, _int(1), fields, one_piece)
        for field, value in enumerate(fields[:WIDTH]):
            store_field(builder, job.row("out", run), field, value)
        if width == WIDE:
            store_words(builder, job.row("out", run), fields[WIDTH])
        return [following]

    loop(builder, _int(0), job["runs"], _int(1), [_int(0)], one_run)
    builder.ret_void()
    return new


def _build_team(module: ir.Module, body: Any, finish: Any) -> None:
    """Run the body on a team of threads that the framework keeps (OpenMP), then finish."""
    new, builder = function(module, "team", VOID, [I64_POINTER])
    job = _Job(builder, new.args[0], WIDTH)
    fork = job.pointer("fork", _FORK.as_pointer())
    builder.call(fork, [body, new.args[0], builder.trunc(job["threads"], I32), ir.Constant(I32, 0)])
    builder.call(finish, [new.args[0]])
    builder.ret_void()
