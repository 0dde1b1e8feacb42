"""Train a small compiled model under a monitor: `python -m tests.compiled.train_once CONFIG [SECOND]`.

Prints the caches that were asked, losses, and where the files are. SECOND: another monitored model of the same graph.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch._dynamo.utils import counters

from msmon.pytorch import TrainerMon


class Net(nn.Module):
    """`names`: of the two layers, which make no difference to the graph."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(8, 8))
        self.names, self.act = names, nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.names:
            x = self.act(self._modules[name](x)) * 2
        return x


def main() -> None:
    config = sys.argv[1]
    torch.manual_seed(0)
    model = Net(*(sys.argv[2:] or ("first", "second")))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = None
    if config != "none":
        monitor = TrainerMon(Path(config), params_have_main_grad=False)
        monitor.set_monitor(model, 1, optimizer)
    run = torch.compile(model, fullgraph=True)
    losses = []
    for _ in range(4):
        loss = run(torch.ones(4, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if monitor is not None:
        monitor.close()
    hits = {name: counters["inductor"][name] + counters["aot_autograd"][name] for name in CACHES}
    print(json.dumps({"losses": losses, "hits": sum(hits.values())}))


CACHES = ("fxgraph_cache_hit", "autograd_cache_hit")

if __name__ == "__main__":
    main()
