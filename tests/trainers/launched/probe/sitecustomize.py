"""Imported first by every process of a command: writes down the norm of each gradient that an optimizer consumes.

By torch's own hooks, and nothing of msmon's but the call when torch has been imported. Under `msmon run`, which has
a file of this name in front, this one is imported as well, and writes nothing.
"""

import itertools
import json
import os
from pathlib import Path

from msmon.launching.imports import when_imported

FOLDER = "GRADIENTS_SEEN_IN"
"""The environment variable: a folder, where each optimizer of each process has a file with a line for each step."""


def _look(torch):
    from torch.optim.optimizer import register_optimizer_step_post_hook

    numbers = itertools.count()

    def stepped(optimizer, args, kwargs):
        parameters = {id(one): one for group in optimizer.param_groups for one in group["params"]}
        local = [getattr(one.grad, "_local_tensor", one.grad) for one in parameters.values() if one.grad is not None]
        norms = sorted(float(gradient.detach().double().norm()) for gradient in local)
        number = optimizer.__dict__.setdefault("_number", next(numbers))
        path = Path(os.environ[FOLDER], f"{os.environ.get('RANK', '0')}-{os.getpid()}-{number}.jsonl")
        with path.open("a") as file:
            print(json.dumps(norms), file=file)

    register_optimizer_step_post_hook(stepped)


if FOLDER in os.environ:
    when_imported("torch", _look)
