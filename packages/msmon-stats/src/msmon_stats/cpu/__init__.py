"""Compiled kernels for values in the memory of the host (extra `cpu`: llvmlite)."""

from msmon_stats.cpu.run import run_many, run_one, run_tables, sum_of_words, warm_up

__all__ = ["run_many", "run_one", "run_tables", "sum_of_words", "warm_up"]
