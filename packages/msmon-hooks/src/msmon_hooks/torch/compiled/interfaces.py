"""All that is used of the compiler and is not public: where its graphs can be seen and added to.

Proved with the versions in `PROVED`. With any other, a small model is compiled first; see
`msmon_hooks.torch.compiled.trial`.
"""

from __future__ import annotations

import hashlib
import sys
import weakref
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import torch
from torch import fx

PROVED = ("2.13",)
"""Versions of torch with which the table of `tests/compiled` was seen."""

BACKENDS = ("inductor", "aot_eager", "eager")
"""Backends of the compiler whose graphs can be looked into."""

MEMBER = "msmon"
"""Under which name nodes, graphs and lowered graphs carry what belongs to marks."""

CONSTANT = "msmon_name"
"""In the names of functions that the tracer calls, so that what it keeps of them is found."""

PASS = "joint_custom_pre_pass"
"""The setting of inductor that `strip_joint_graphs` sets."""


class NotHere(RuntimeError):
    """Something that is needed is not in this version of torch."""


# Dynamo


def skip_as_frame(*functions: Callable[..., Any]) -> Callable[[], None]:
    """Let the tracer go through these functions, but not begin with them: called outside of a graph they run as they
    are, with all that they call, and are no graphs of their own.

    Returns:
        What ends that.
    """
    from torch._C._dynamo.eval_frame import _FrameAction as FrameAction
    from torch._C._dynamo.eval_frame import _FrameExecStrategy as FrameExecStrategy
    from torch._C._dynamo.eval_frame import set_code_exec_strategy

    def act(action: Any) -> None:
        for function in functions:
            set_code_exec_strategy(function.__code__, FrameExecStrategy(action, action))

    act(FrameAction.SKIP)
    return lambda: act(FrameAction.DEFAULT)


def disregard_hooks(is_ours: Callable[[Any], bool]) -> Callable[[], None]:
    """Where code outside of a graph calls a module of `torch.nn` that has forward hooks, torch compiles that module
    alone, and one without hooks it does not: let these hooks not count.

    Returns:
        What ends that.
    """
    from torch._dynamo import utils

    original = utils.nnmodule_has_hooks

    def nnmodule_has_hooks(mod: torch.nn.Module, *args: Any, **kwargs: Any) -> bool:
        hooks = [*mod._forward_pre_hooks.values(), *mod._forward_hooks.values()]
        return original(mod, *args, **kwargs) and not (hooks and all(map(is_ours, hooks)))

    return _replace(utils, "nnmodule_has_hooks", nnmodule_has_hooks)


def look_at_no_arguments() -> Callable[[], None]:
    """Let the tracer not look at what the first module with hooks is called with before that module does: inputs of a
    graph are listed in the order in which they are first looked at, and kernels depend on it.

    To decide whether it may go through the function that is inside of `Module._call_impl`, the tracer turns all that it
    refers to into constants, if it can.

    Returns:
        What ends that.
    """
    from torch._dynamo.symbolic_convert import InliningInstructionTranslator
    from torch._dynamo.trace_rules import SkipResult

    inner = [one for one in torch.nn.Module._call_impl.__code__.co_consts if isinstance(one, CodeType)]
    original = InliningInstructionTranslator.check_inlineable

    def check_inlineable(func: Any) -> Any:
        if func.get_code() in inner:
            return SkipResult(False, "calls a module")
        return original(func)

    return _replace(InliningInstructionTranslator, "check_inlineable", staticmethod(check_inlineable))


def see_graphs(
    see: Callable[[fx.GraphModule, str, Any], bool], failed: Callable[[fx.GraphModule, Exception], None]
) -> Callable[[], None]:
    """Have `see(graph, backend, options)` called with every graph before it is given to a backend; the options are
    those of inductor that the program has given to `torch.compile`.

    Where it says that there are marks and the backend fails, `failed(graph, error)` is called, and the backend again.

    Returns:
        What ends that.
    """
    from torch._dynamo.exc import RestartAnalysis
    from torch._dynamo.output_graph import OutputGraph

    original = OutputGraph.call_user_compiler

    def call_user_compiler(self: Any, gm: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        marked = see(gm, *_backend(self.compiler_fn))
        for name in [name for name in self.nn_modules if CONSTANT in name]:
            # Where the tracer puts what a function returned that it was told to call.
            self.global_scope.pop(name, None)
        try:
            return original(self, gm, *args, **kwargs)
        except Exception as error:
            # The tracer begins again where a number turns out to be a constant.
            if not marked or isinstance(error, RestartAnalysis):
                raise
            failed(gm, error)
        return original(self, gm, *args, **kwargs)

    return _replace(OutputGraph, "call_user_compiler", call_user_compiler)


def _backend(compiler: Any) -> tuple[str, dict[str, Any]]:
    """The name of a backend, and the options that it was given."""
    for _ in range(_DEEPEST):
        # Under DDP a method of what parts graphs by buckets stands for the backend.
        owners = (compiler, getattr(compiler, "__self__", None))
        inner = (getattr(owner, name, None) for owner in owners for name in _WRAPPED)
        compiler = next((found for found in inner if found is not None), compiler)
    name = getattr(compiler, "compiler_name", None) or getattr(compiler, "__name__", type(compiler).__name__)
    return str(name), dict(getattr(compiler, "config", None) or {})


_WRAPPED = ("_torchdynamo_orig_backend", "_compiler_fn", "backend_compile_fn")
_DEEPEST = 6


def see_compiled_backwards(tell: Callable[[], None]) -> Callable[[], None]:
    """Have `tell()` called when a backward is about to be compiled as a whole, with the backwards of compiled graphs in
    it (compiled autograd).

    Returns:
        What ends that.
    """
    from torch._dynamo.compiled_autograd import AutogradCompilerInstance

    original = AutogradCompilerInstance.begin_capture

    def begin_capture(self: Any, *args: Any, **kwargs: Any) -> Any:
        tell()
        return original(self, *args, **kwargs)

    return _replace(AutogradCompilerInstance, "begin_capture", begin_capture)


def has_compiled() -> bool:
    """Whether there is compiled code that would be used again."""
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    if dynamo is None:
        return False
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

    codes = (reference() for reference in dynamo.input_codes.seen)
    return any(code is not None and _debug_get_cache_entry_list(code) for code in codes)


def forget_compiled() -> None:
    """Forget all compiled code; what is called again is compiled again."""
    torch._dynamo.reset_code_caches()


def tracing_context() -> Any:
    """An object that is the same while one graph is traced, lowered, and its backward is; None outside."""
    from torch._guards import TracingContext

    return TracingContext.try_get()


_digests: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()


def add_digest(texts: Sequence[str]) -> int:
    """The graph that is being compiled has these marks; how many such graphs its tracing has had before."""
    context = tracing_context()
    if context is None:
        return 0
    found = _digests.setdefault(context, [])
    found.append(hashlib.sha256("\x1e".join(texts).encode()).hexdigest())
    return len(found) - 1


# AOTAutograd and inductor


def strip_joint_graphs(strip: Callable[[fx.Graph], None], identity: Callable[[], str]) -> Callable[[], None]:
    """Have `strip(graph)` called with every graph of forward and backward before it is parted, ahead of the passes that
    the program has set.

    Args:
        identity: what it gives joins the keys of caches, with the marks of the graph at hand.

    Returns:
        What ends that.
    """
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    before = getattr(config, PASS)
    theirs = tuple(before) if isinstance(before, list | tuple) else () if before is None else (before,)

    class First(CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            strip(graph)
            for other in theirs:
                other(graph)

        def uuid(self) -> Any:
            # A pass of theirs that names no key keeps its graphs out of the cache.
            keys = [other.uuid() if isinstance(other, CustomGraphPass) else None for other in theirs]
            own = _cache_key(identity())
            return None if own is None or not all(keys) else (own, *keys)

    ours = First()
    setattr(config, PASS, ours)

    def restore() -> None:
        if getattr(config, PASS) is ours:
            setattr(config, PASS, before)

    return restore


def _cache_key(identity: str) -> str | None:
    context = tracing_context()
    digests = [] if context is None else _digests.get(context, [])
    # Of several graphs the backwards may be compiled later, in any order: nothing tells them apart here.
    return None if len(digests) > 1 else f"{identity}:{''.join(digests)}"


def see_values(operators: Sequence[Any]) -> Callable[[], None]:
    """Keep what inductor makes of marked nodes, and lower none of these operators.

    Returns:
        What ends that.
    """
    from torch._inductor.graph import GraphLowering

    original = GraphLowering.run_node

    def run_node(self: Any, n: fx.Node) -> Any:
        if n.op == "call_function" and n.target in operators:
            return None
        result = original(self, n)
        if MEMBER in n.meta:
            self.__dict__.setdefault(MEMBER, {})[n] = result
        return result

    return _replace(GraphLowering, "run_node", run_node)


def before_code(add: Callable[[Any, Any], None]) -> Callable[[], None]:
    """Have `add(scheduler, graph)` called when all is decided and only code is to be written.

    Returns:
        What ends that.
    """
    from torch._inductor.scheduler import Scheduler
    from torch._inductor.virtualized import V

    original = Scheduler.compute_last_usage

    def compute_last_usage(self: Any) -> None:
        add(self, V.graph)
        original(self)

    return _replace(Scheduler, "compute_last_usage", compute_last_usage)


def backward_node() -> int | None:
    """The number of the node of the graph of gradients that autograd runs now."""
    node = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def next_node() -> int:
    """The number that the next node of the graph of gradients gets in this thread."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def _replace(owner: Any, name: str, replacement: Any) -> Callable[[], None]:
    original = vars(owner).get(name)
    if original is None:
        raise NotHere(f"{owner.__name__} of torch {torch.__version__} has no {name}")
    setattr(owner, name, replacement)

    def restore() -> None:
        if vars(owner).get(name) is replacement:
            setattr(owner, name, original)

    return restore
