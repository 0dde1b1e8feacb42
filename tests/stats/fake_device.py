"""An accelerator that is not there: a PrivateUse1 device "npu" in the memory of the host, with the kernels of the CPU.

It is stricter than most that exist, by rules that a test may change:

* `forbidden`: dtypes that raise; float64 and complex128 from the beginning;
* `lazy`: operators wait in the queue of their stream until somebody waits for it, and memory that is not yet written
  holds NaN. Between streams nothing is ordered but by events;
* `sequential`: sums in float32 are made one after the other, the worst order there is;
* `capturing`: the current stream is being captured.

It counts launches, and waits of each thread. Whoever waits for an event must have entered the device before.

Importing this file changes torch for good: only in a process of its own.
"""

import contextlib
import ctypes
import threading
from collections import Counter, deque

import numpy as np
import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "npu"


class UnsupportedError(RuntimeError):
    """The device has no such operator."""


class Rules:
    """What the device does, and what was done with it."""

    def __init__(self):
        self.forbidden = {torch.float64, torch.complex128}
        self.lazy = self.sequential = self.capturing = self.out_of_memory = False
        self.launches = Counter()
        self.while_capturing = Counter()
        self.waits = Counter()
        """By name of the waiting thread."""
        self.values = 0
        """How many values the operators have read and written."""
        self.allocated = []
        """Bytes of each piece of memory that was asked for; not of the results of operators."""

    def reset(self):
        """Count from 0."""
        for counter in (self.launches, self.while_capturing, self.waits):
            counter.clear()
        self.values = 0

    @contextlib.contextmanager
    def set(self, **rules):
        """Other rules for a while."""
        old = {name: getattr(self, name) for name in rules}
        vars(self).update(rules)
        try:
            yield self
        finally:
            drain()
            vars(self).update(old)

    def launch(self, name, tensors=()):
        self.launches[name] += 1
        self.values += sum(tensor.numel() for tensor in tensors)
        if self.capturing:
            self.while_capturing[name] += 1

    def wait(self):
        self.waits[threading.current_thread().name] += 1

    def check(self, name, *dtypes):
        for dtype in dtypes:
            if dtype in self.forbidden:
                raise UnsupportedError(f"{name}: not implemented for {dtype}")


RULES = Rules()


def figure(what, found, *, before, most):
    """Print a line of the table of what measuring costs, and see that it costs no more than that."""
    print(f"\n| {what} | {before} | {most} | {found} |")
    assert found <= most


LOCK = threading.RLock()


STREAMS = []


class Stream:
    """A queue of work."""

    def __init__(self, device=None):
        self.jobs = deque()
        STREAMS.append(self)

    def submit(self, job):
        if RULES.lazy:
            self.jobs.append(job)
        else:
            job()

    def run(self, event=None):
        with LOCK:
            while self.jobs and not (event is not None and event.done):
                self.jobs.popleft()()

    def wait_event(self, event):
        self.submit(event.finish)

    def wait_stream(self, other):
        if other is not self:
            event = Event()
            event.record(other)
            self.wait_event(event)

    def synchronize(self):
        RULES.wait()
        self.run()


class Event:
    def __init__(self, *args, **kwargs):
        self.done, self.stream = True, None

    def record(self, stream=None):
        self.done, self.stream = False, stream or BACKEND.current_stream()
        self.stream.submit(lambda: setattr(self, "done", True))

    def finish(self):
        if not self.done:
            self.stream.run(self)

    def query(self):
        return self.done

    def synchronize(self):
        if not getattr(HERE, "entered", 0):
            raise RuntimeError("this thread has not entered the device")
        RULES.wait()
        self.finish()


HERE = threading.local()
DEFAULT = Stream()


def drain():
    """Do everything that waits, without counting it."""
    for stream in STREAMS:
        stream.run()


class Backend:
    """`torch.npu`."""

    Stream, Event = Stream, Event

    def is_initialized(self):
        return True

    is_available = is_initialized

    def current_device(self):
        return 0

    def device_count(self):
        return 1

    def _is_in_bad_fork(self):
        return False

    def manual_seed_all(self, seed):
        pass

    def get_amp_supported_dtype(self):
        return [torch.float16, torch.bfloat16]

    def current_stream(self, device=None):
        return getattr(HERE, "stream", DEFAULT)

    @contextlib.contextmanager
    def stream(self, stream):
        before, HERE.stream = self.current_stream(), stream
        try:
            yield
        finally:
            HERE.stream = before

    @contextlib.contextmanager
    def device(self, device):
        HERE.entered = getattr(HERE, "entered", 0) + 1
        try:
            yield
        finally:
            HERE.entered -= 1

    def is_current_stream_capturing(self):
        return RULES.capturing

    def synchronize(self, device=None):
        RULES.wait()
        drain()


BACKEND = Backend()

# The same memory as a tensor of the host and one of the device: the kind of device is a field of a DLPack capsule.

_HOST, _DEVICE = 1, 12
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _elsewhere(tensor, kind):
    with torch._C._DisableTorchDispatch(), torch._C._AutoDispatchBelowAutograd():
        capsule = torch._C._to_dlpack(tensor)
        ctypes.c_int32.from_address(_pointer(capsule, b"dltensor") + 8).value = kind
        return torch._C._from_dlpack(capsule)


def on_host(tensor):
    """The memory of a device's tensor."""
    return _elsewhere(tensor, _HOST)


def on_device(tensor):
    """The memory of a host's tensor as one of the device's."""
    return _elsewhere(tensor, _DEVICE)


def unwritten(shape, stride, dtype):
    """Memory of the host that holds NaN, whatever the dtype."""
    memory = torch.empty_strided(shape, stride, dtype=dtype)
    if memory.numel():
        size = memory.untyped_storage().nbytes() // memory.element_size()
        memory.as_strided((size,), (1,), 0).view(torch.uint8).fill_(255)
    return memory


def _is_here(value):
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def _each(function, value):
    if isinstance(value, torch.Tensor):
        return function(value)
    if type(value) in (list, tuple):
        return type(value)(_each(function, one) for one in value)
    if isinstance(value, dict):
        return {key: _each(function, one) for key, one in value.items()}
    return value


def _tensors(value):
    found = []
    _each(found.append, value)
    return found


_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_VIEWS = [
    f"aten::{name}"
    for name in (
        *("view", "as_strided", "_reshape_alias", "unfold", "alias", "detach", "set_", "select", "_unsafe_view"),
        *("view_as_real", "_conj", "_neg_view"),
    )
]


def _sequential_sum(values, axes, dtype):
    """A sum along the last axis in which every value is added to all those before it."""
    array = values.to(dtype or values.dtype).numpy()
    assert [axis % array.ndim for axis in axes] == [array.ndim - 1]
    return torch.from_numpy(np.add.accumulate(array, axis=-1, dtype=np.float32)[..., -1].copy())


def _run(op, args, kwargs):
    if RULES.sequential and op._schema.name == "aten::sum" and len(args) > 1 and args[1] is not None:
        found = _sequential_sum(args[0], args[1], kwargs.get("dtype"))
        return kwargs["out"].copy_(found) if "out" in kwargs else found
    return op(*args, **kwargs)


def _operator(op, *args, **kwargs):
    """Any operator that has no implementation of its own below."""
    with LOCK:
        name = op._schema.name
        if name in _VIEWS or (op.is_view and name != "aten::_to_copy"):
            return op.redispatch(_CPU, *args, **kwargs)
        # A number in the place of a tensor.
        args = tuple(
            torch.tensor(value) if type(value) in (int, float) and str(argument.type) == "Tensor" else value
            for argument, value in zip(op._schema.arguments, args, strict=False)
        )
        tensors = _tensors((args, kwargs))
        dtype = kwargs.get("dtype")
        RULES.check(name, *(tensor.dtype for tensor in tensors if _is_here(tensor)), *([dtype] if dtype else []))
        RULES.launch(name, tensors)
        return (_later if RULES.lazy else _at_once)(op, args, kwargs)


def _written(op, args, kwargs):
    """The tensors that an operator is given to write into."""
    named = zip(op._schema.arguments, args, strict=False)
    positional = [value for argument, value in named if argument.is_out]
    return [*positional, *(kwargs[one.name] for one in op._schema.arguments if one.is_out and one.name in kwargs)]


def _host_arguments(op, args, kwargs):
    """The arguments on the host, and for each of these tensors the one that was given."""
    resized = [id(out) for out in _written(op, args, kwargs) if isinstance(out, torch.Tensor) and out.numel() == 0]

    def convert(tensor):
        if id(tensor) in resized:
            return torch.empty(0, dtype=tensor.dtype)
        return on_host(tensor) if _is_here(tensor) else tensor

    converted = _each(convert, (args, kwargs))
    given = dict(zip(map(id, _tensors(converted)), _tensors((args, kwargs)), strict=True))
    host = torch.device("cpu")
    kwargs = {k: host if isinstance(v, torch.device) else v for k, v in converted[1].items()}
    return converted[0], kwargs, given


def _at_once(op, args, kwargs):
    host_args, host_kwargs, given = _host_arguments(op, args, kwargs)
    result = _run(op, host_args, host_kwargs)
    outs = {id(out) for out in _written(op, args, kwargs)}
    for host in _tensors((host_args, host_kwargs)):
        if id(given[id(host)]) in outs and given[id(host)].shape != host.shape:
            given[id(host)].set_(on_device(host))

    def back(host):
        RULES.check(op._schema.name, host.dtype)
        return given[id(host)] if id(host) in given else on_device(host.contiguous() if host.numel() == 0 else host)

    return _each(back, result)


def _later(op, args, kwargs):
    """The shapes now, the values when somebody waits."""
    outs = {id(out) for out in _written(op, args, kwargs)}
    host_args, host_kwargs, given = _host_arguments(op, args, kwargs)
    meta_args, meta_kwargs = _each(
        lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta"), (host_args, host_kwargs)
    )
    meta_kwargs = {k: torch.device("meta") if isinstance(v, torch.device) else v for k, v in meta_kwargs.items()}
    shapes = op(*meta_args, **meta_kwargs)
    metas, hosts = _tensors((meta_args, meta_kwargs)), _tensors((host_args, host_kwargs))
    of_meta = {id(meta): given[id(host)] for meta, host in zip(metas, hosts, strict=True)}
    for meta in metas:
        tensor = of_meta[id(meta)]
        if id(tensor) in outs and tensor.shape != meta.shape:
            tensor.set_(on_device(unwritten(meta.shape, meta.stride(), meta.dtype)))
            return _later(op, args, kwargs)
    places = []

    def place(meta):
        if id(meta) in of_meta:
            places.append(None)
            return of_meta[id(meta)]
        RULES.check(op._schema.name, meta.dtype)
        places.append(unwritten(meta.shape, meta.stride(), meta.dtype))
        return on_device(places[-1])

    result = _each(place, shapes)

    def job():
        for value, target in zip(_tensors(_run(op, host_args, host_kwargs)), places, strict=True):
            if target is not None:
                target.copy_(value)

    BACKEND.current_stream().submit(job)
    return result


def _empty(size, *, memory_format=None, **options):
    stride = torch.empty(size, device="meta", memory_format=memory_format or torch.contiguous_format).stride()
    return _empty_strided(size, stride, **options)


def _empty_strided(size, stride, *, dtype=None, **_):
    dtype = dtype or torch.get_default_dtype()
    RULES.check("empty_strided", dtype)
    if RULES.out_of_memory:
        raise torch.OutOfMemoryError("the device's memory is full")
    memory = unwritten(size, stride, dtype)
    RULES.allocated.append(memory.untyped_storage().nbytes())
    return on_device(memory)


def _copy_from(source, target, non_blocking=False):
    with LOCK:
        RULES.check("copy_", *(tensor.dtype for tensor in (source, target) if _is_here(tensor)))
        RULES.launch("aten::copy_", (source, target))
        read, written = (on_host(tensor) if _is_here(tensor) else tensor for tensor in (source, target))
        if not _is_here(source):
            # Memory of the host that is not pinned is staged before the call returns.
            read = read.clone()
        if not _is_here(target):
            # What is read of it before the copy is there is nothing.
            written.copy_(unwritten(written.shape, written.stride(), written.dtype))
        BACKEND.current_stream().submit(lambda: written.copy_(read))
        if not _is_here(target) and not non_blocking:
            RULES.wait()
            BACKEND.current_stream().run()
        return target


def _item(tensor):
    RULES.wait()
    BACKEND.current_stream().run()
    return on_host(tensor).item()


def _to_copy(self, *, dtype=None, device=None, non_blocking=False, memory_format=None, **_):
    dense = is_non_overlapping_and_dense_or_false(self)
    stride = self.stride() if dense else torch.empty(self.shape, device="meta").stride()
    device = self.device if device is None else torch.device(device)
    target = torch.empty_strided(self.shape, stride, dtype=dtype or self.dtype, device=device)
    return target.copy_(self, non_blocking=non_blocking)


def _resize(self, size, *, memory_format=None):
    if tuple(self.shape) == tuple(size):
        return self
    free = self.untyped_storage().nbytes() - self.storage_offset() * self.element_size()
    stride = torch.empty(size, device="meta").stride()
    if torch.Size(size).numel() * self.element_size() <= free:
        return self.set_(self.untyped_storage(), self.storage_offset(), size, stride)
    return self.set_(torch.empty(size, dtype=self.dtype, device=self.device))


def _view(op):
    return lambda *args, **kwargs: op.redispatch(_CPU, *args, **kwargs)


_setup_privateuseone_for_python_backend(NAME, backend_module=BACKEND)
_ALL = torch.library.Library("_", "IMPL")
_ALL.fallback(_operator, "PrivateUse1")
_SOME = torch.library.Library("aten", "IMPL")
for _name, _function in {
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
    "_copy_from": _copy_from,
    "_local_scalar_dense": _item,
    "resize_": _resize,
    "_to_copy": _to_copy,
    "view": _view(torch.ops.aten.view.default),
    "as_strided": _view(torch.ops.aten.as_strided.default),
    "_reshape_alias": _view(torch.ops.aten._reshape_alias.default),
    "unfold": _view(torch.ops.aten.unfold.default),
    "set_.source_Storage_storage_offset": _view(torch.ops.aten.set_.source_Storage_storage_offset),
    "set_.source_Tensor": _view(torch.ops.aten.set_.source_Tensor),
}.items():
    _SOME.impl(_name, _function, "PrivateUse1")
# A device in Python has no allocator of pinned memory.
torch.Tensor.pin_memory = lambda tensor, *args, **kwargs: tensor
