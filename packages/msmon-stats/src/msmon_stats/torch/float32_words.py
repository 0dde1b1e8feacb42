"""Fingerprints on a device without float64: sums over the words of rows by torch's operators, in int64.

What is left of a row is one number of 8 bytes, of which the host makes the sums of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from msmon_stats.fingerprint import WORD
from msmon_stats.float32 import ROW, WordRows
from msmon_stats.torch.words import in_order, powers_on

_HALF = 0xFFFFFFFF


class Words:
    """Sums words.

    Args:
        device: where.
        size: of the memory to work in, in bytes.
        numbers: as of `Work`; a number of 8 bytes takes the room of two.
    """

    def __init__(self, device: torch.device, size: int, numbers: Callable[[int], tuple[torch.Tensor, int]]) -> None:
        self._memory = torch.empty(max(size // 8, 2 * ROW), dtype=torch.int64, device=device)
        self._powers = powers_on(device, 2 * ROW)
        self._numbers = numbers
        self._before: dict[int, int] = {}
        """Words of each tensor that were read."""
        self.done: list[WordRows] = []
        """What was read, and the place of its numbers."""

    def add_rows(self, rows: torch.Tensor, runs: Sequence[tuple[int, int]], padding: int) -> None:
        """Read whole rows of values.

        Args:
            rows: of one dimension, as they are stored.
            runs: handle and number of values of each tensor in it, in order; each begins at a row.
            padding: the bits of what is free in its last row.
        """
        itemsize = rows.element_size()
        if rows.storage_offset() * itemsize % WORD:
            rows = rows.clone()
        self._sum(rows.view(torch.int32).view(-1, ROW * itemsize // WORD), self.room(itemsize, runs, padding))

    def add(self, handle: int, tensor: torch.Tensor) -> bool:
        """Read a supported local tensor of any dtype and layout; False where it has no fingerprint."""
        runs = in_order(tensor)
        if runs is None:
            return False
        for run in runs:
            if run.numel() % WORD:
                run = torch.cat((run, run.new_zeros(-run.numel() % WORD)))
            elif run.storage_offset() % WORD:
                run = run.clone()
            words = run.view(torch.int32)
            whole = words.numel() - words.numel() % ROW
            for part in (words[:whole].view(-1, ROW), words[whole:].view(1, -1)):
                if part.numel():
                    self._sum(part, self.room(WORD, [(handle, part.numel())], 0))
        return True

    def room(self, itemsize: int, runs: Sequence[tuple[int, int]], padding: int) -> torch.Tensor:
        """Where the numbers of rows go, int64; see `add_rows`."""
        flat, place = self._numbers(2 * sum(-(-values // ROW) for _, values in runs))
        before = []
        for handle, values in runs:
            before.append(self._before.get(handle, 0))
            self._before[handle] = before[-1] + values * itemsize // WORD
        self.done.append(WordRows(place=place, runs=runs, before=before, itemsize=itemsize, padding=padding))
        return flat.view(torch.int64)

    def _sum(self, words: torch.Tensor, out: torch.Tensor) -> None:
        """Over each row of int32 words `[n, width]`."""
        width = words.shape[1]
        for start in range(0, len(words), len(self._memory) // width):
            part = words[start : start + len(self._memory) // width]
            wide = self._memory[: part.numel()].view(part.shape)
            wide.copy_(part)
            # They have no sign.
            wide.bitwise_and_(_HALF).mul_(self._powers[:width])
            torch.sum(wide, 1, out=out[start : start + len(part)])

    def forget(self) -> None:
        """The step is over."""
        self._before, self.done = {}, []
