"""Hidden states at some positions of their sequences: taken out, and put back in place."""

from __future__ import annotations

import torch
from torch import Tensor


def take(hidden: Tensor, idx: Tensor) -> Tensor:
    """(batch, n, d) at positions (batch, k) -> (batch, k, d); whole rows are copied, there and back."""
    return hidden.flatten(0, 1).index_select(0, _rows(idx, hidden.shape[1])).unflatten(0, idx.shape)


def place(hidden: Tensor, idx: Tensor, n: int, filler: Tensor) -> Tensor:
    """(batch, k, d) at positions (batch, k) of n, and `filler` (d,) at all others -> (batch, n, d)."""
    return put(hidden, idx, filler.to(hidden.dtype).expand(len(hidden), n, -1))


def put(hidden: Tensor, idx: Tensor, around: Tensor) -> Tensor:
    """(batch, k, d) at positions (batch, k), and what is `around`, (batch, n, d), at all others -> (batch, n, d)."""
    n = around.shape[1]
    return around.flatten(0, 1).index_copy(0, _rows(idx, n), hidden.flatten(0, 1)).unflatten(0, (-1, n))


def _rows(idx: Tensor, n: int) -> Tensor:
    """Positions (batch, k) in sequences of n -> rows (batch · k,) of all sequences, one below the other."""
    return (idx + n * torch.arange(len(idx), device=idx.device)[:, None]).flatten()
