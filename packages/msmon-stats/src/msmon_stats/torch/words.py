"""The words of a torch tensor's content, in order: for fingerprints of what no kernel reads with the statistics."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import torch

from msmon_stats.fingerprint import WORD, element_powers, in_whole_words, power, powers, signed
from msmon_stats.torch.values import PIECE, SPARSE, split

_HALF = 0xFFFFFFFF


def in_order(tensor: torch.Tensor) -> Iterator[torch.Tensor] | None:
    """The content of a supported local tensor as runs of bytes that fill whole words, whatever its layout is.

    None for sparse tensors: to put what they store in its place would take more than reading them does.
    """
    tensor = tensor.detach()
    if tensor.layout in SPARSE:
        return None
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_contiguous():
        return iter((_as_bytes(tensor),))
    parts = split(tensor, max(PIECE, tensor.numel() >> 10))
    return in_whole_words((_as_bytes(part.contiguous()) for part in parts), WORD, torch.cat)


def _as_bytes(values: torch.Tensor) -> torch.Tensor:
    # Where there is but one value, its stride may be anything.
    values = values.as_strided((values.numel(),), (1,))
    return (torch.view_as_real(values).view(-1) if values.is_complex() else values).view(torch.uint8)


def write_fields(tensor: torch.Tensor, fields: torch.Tensor) -> None:
    """Write the two columns of a supported local tensor, float64 on its device, by torch's operators."""
    runs = in_order(tensor)
    if runs is None:
        fields.fill_(float("nan"))
        return
    total, before = torch.zeros((), dtype=torch.int64, device=tensor.device), 0
    for run in runs:
        # Pieces of a thousandth bound the temporaries.
        for piece in run.split(WORD * max(PIECE, run.numel() // WORD >> 10)):
            total = total + signed(power(before)) * sum_of_words(piece)
            before += piece.numel() // WORD
    fields.copy_(torch.stack((total & _HALF, (total >> 32) & _HALF)))


def sum_of_words(run: torch.Tensor) -> torch.Tensor:
    """Of bytes that begin at a word; a 0-d int64 tensor."""
    if run.numel() % WORD:
        run = torch.cat((run, run.new_zeros(-run.numel() % WORD)))
    elif run.storage_offset() % WORD:
        run = run.clone()
    words = run.view(torch.int32).to(torch.int64) & _HALF
    return (words * powers_on(words.device, words.numel())).sum()


def powers_on(device: torch.device, count: int, step: int = 1) -> torch.Tensor:
    """The first powers of `BASE**step` on a device, int64."""
    return _table(device, 1 << max(count - 1, 1).bit_length(), step)[:count]


@cache
def _table(device: torch.device, count: int, step: int) -> torch.Tensor:
    return torch.from_numpy(powers(count, step).view(np.int64)).to(device)


@cache
def element_powers_on(device: torch.device, count: int, itemsize: int) -> torch.Tensor:
    """See `msmon_stats.fingerprint.element_powers`; int64."""
    return torch.from_numpy(element_powers(count, itemsize).view(np.int64)).to(device)
