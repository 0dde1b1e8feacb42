"""`python lightning_cli.py fit`, with Lightning's own model and data."""

from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule, DemoModel

if __name__ == "__main__":
    LightningCLI(DemoModel, BoringDataModule, seed_everything_default=1)
