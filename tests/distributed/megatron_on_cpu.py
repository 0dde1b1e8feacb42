"""Megatron-core on a CPU: whatever it asks of CUDA is answered with the CPU. Import before anything of Megatron."""

from __future__ import annotations

import contextlib
import runpy
import warnings
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "megatron_on_cpu.py"


def answer_with_cpu() -> None:
    """Once, for the rest of the process."""
    warnings.simplefilter("ignore")
    runpy.run_path(str(EXAMPLE))
    with contextlib.suppress(ImportError):
        from megatron.core.transformer.moe import moe_utils

        # Asked for even where Transformer Engine, which would define it, is not there.
        moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)
