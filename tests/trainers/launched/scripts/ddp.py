"""A loop of PyTorch's own in each process that `torchrun` starts."""

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

if __name__ == "__main__":
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(3):
        model(torch.full((2, 4), float(step + distributed.get_rank()))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if distributed.get_rank() == 0:
        torch.save(model.module.state_dict(), "model.pth")
    distributed.destroy_process_group()
