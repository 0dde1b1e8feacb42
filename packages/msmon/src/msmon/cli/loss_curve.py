"""A loss curve for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def loss_curve(losses: Sequence[float], *, height: int = 6) -> str:
    """Bars over the steps, as text of `height` lines with the range at the left.

    Losses that are not finite are left blank.

    Example:
        >>> print(loss_curve([4.0, 2.0, 1.0], height=2))
         4.000 █▃
         1.000 ██▁
    """
    finite = [loss for loss in losses if abs(loss) != float("inf") and loss == loss]
    if not finite:
        return "(no finite loss)"
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    levels = [1 + round((loss - low) / span * (height * 8 - 1)) if loss in finite else 0 for loss in losses]
    lines = []
    for row in range(height - 1, -1, -1):
        bar = "".join(_EIGHTHS[min(max(level - row * 8, 0), 8)] for level in levels)
        label = f"{high:6.3f}" if row == height - 1 else f"{low:6.3f}" if row == 0 else " " * 6
        lines.append(f"{label} {bar}")
    return "\n".join(lines)
