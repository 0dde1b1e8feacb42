"""Compiling the kernels for this machine, each when it is first needed."""

from __future__ import annotations

import threading
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from msmon_stats.cpu.row import build_row

_lock = threading.Lock()
_rows: dict[tuple[str, bool], int] = {}
_engines: list[Any] = []  # An engine owns the machine code of its functions.
_machine: Any = None


def row_address(dtype: str, fingerprint: bool = False) -> int:
    """The address of the row function for a dtype; compiles it (some ten milliseconds) at the first call."""
    key = dtype, fingerprint
    address = _rows.get(key)
    if address is None:
        with _lock:
            address = _rows.get(key)
            if address is None:
                module = build_row(dtype, _vector_bytes(), fingerprint=fingerprint)
                address = _rows[key] = compiled(module)(f"row_{dtype}")
    return address


def _vector_bytes() -> int:
    return 64 if llvm.get_host_cpu_features().get("avx512f") else 32


def compiled(module: ir.Module) -> Any:
    """Machine code for a module: a function from names to addresses."""
    global _machine
    if _machine is None:
        for initialize in (llvm.initialize_native_target, llvm.initialize_native_asmprinter):
            initialize()
        _machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, jit=True
        )
    module.triple = llvm.get_process_triple()
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    engine = llvm.create_mcjit_compiler(parsed, _machine)
    engine.finalize_object()
    _engines.append(engine)
    return engine.get_function_address
