"""What the statistics are, said once more in plain numpy and in the slowest way."""

import numpy as np


def partials(values, eps=1e-8):
    """count, nans, infs, zeros, min, max, sum and sum of squares of float64 values."""
    values = np.asarray(values, dtype=np.float64).ravel()
    known = values[~np.isnan(values)]
    with np.errstate(all="ignore"):
        return np.array(
            [
                values.size,
                np.isnan(values).sum(),
                np.isinf(values).sum(),
                (np.abs(known) < eps).sum(),
                known.min() if known.size else np.inf,
                known.max() if known.size else -np.inf,
                known.sum(),
                np.square(known).sum(),
            ],
            dtype=np.float64,
        )


def statistics(values, eps=1e-8):
    """Every statistic of float64 values, by numpy's own functions."""
    values = np.asarray(values, dtype=np.float64).ravel()
    with np.errstate(all="ignore"):
        return {
            "min": values.min(),
            "max": values.max(),
            "mean": values.mean(),
            "norm": np.sqrt(np.square(values).sum()),
            "zeros": (np.abs(values) < eps).mean(),
            "nans": np.isnan(values).sum(),
            "std": values.std(ddof=1) if values.size > 1 else np.nan,
            "rms": np.sqrt(np.square(values).mean()),
            "absmax": np.abs(values).max(),
            "infs": np.isinf(values).sum(),
        }


def fingerprint(count, content):
    """Of so many elements and their bytes, by whole numbers of any size."""
    words = [count, *(int.from_bytes(content[at : at + 4], "little") for at in range(0, len(content), 4))]
    total = 0
    for word in reversed(words):
        total = (total * 6364136223846793005 + word) % 2**64
    return f"{total:016x}"
