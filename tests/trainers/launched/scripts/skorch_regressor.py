"""skorch's regressor, which makes model and optimizer itself and evaluates after each epoch."""

import torch
from skorch import NeuralNetRegressor
from torch import nn


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


if __name__ == "__main__":
    torch.manual_seed(0)
    net = NeuralNetRegressor(Network, optimizer=torch.optim.AdamW, max_epochs=2, batch_size=4)
    net.fit(torch.randn(16, 4).numpy(), torch.randn(16, 1).numpy())
    net.save_params(f_params="model.pth")
