"""The monitor for PyTorch: `from msmon.pytorch import TrainerMon`."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("msmon.pytorch needs PyTorch: pip install 'msmon[torch]'") from error


from msmon.pytorch.trainer_mon import TrainerMon

__all__ = ["TrainerMon"]
