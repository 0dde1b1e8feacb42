"""The monitor for MindSpore: `from msmon.mindspore import TrainerMon`."""

try:
    import mindspore as _mindspore  # noqa: F401
except ImportError as error:
    raise ImportError("msmon.mindspore needs MindSpore: pip install 'msmon[mindspore]'") from error


from msmon.mindspore.trainer_mon import TrainerMon

__all__ = ["TrainerMon"]
