"""Writes the weights and batches of the reference models, for MindSpore: run with torch, ``python make.py``."""

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from reference_models import build

HERE = Path(__file__).parent
STEPS, MOST_MICRO_STEPS = 4, 2

for name in ("mlp", "seq"):
    model, _ = build(name)
    arrays = {f"weight:{key}": value.detach().numpy() for key, value in model.named_parameters()}
    torch.manual_seed(1)
    for index in range(STEPS * MOST_MICRO_STEPS):
        batch = torch.randn(5, 4) if name == "mlp" else torch.randint(0, 11, (2, 5))
        arrays[f"batch:{index}"] = batch.numpy()
    np.savez(HERE / f"{name}.npz", **arrays)
