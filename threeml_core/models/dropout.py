"""Dropout from random bytes instead of one Bernoulli draw after another: the same statistics, much faster.

On a CPU torch draws the mask of `F.dropout` serially, number by number. Here 64 random bits give eight decisions: a
value is dropped if its byte is below a threshold. p · 256 is seldom whole, so the threshold of each place is drawn
too, one of the two neighbours, such that a value is dropped with probability p exactly; a threshold is shared by
values `TILE` places apart (correlation under 2^-14 / (p (1 - p))). Compiled, or on a GPU, it is `F.dropout`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

TILE = 4096

_LARGEST = 255 / 256  # above it a threshold would not fit a byte


def keep_mask(shape: torch.Size, p: float) -> Tensor:
    """uint8 of this shape, 1 with probability 1 - p, else 0; p at most 255/256; from torch's default CPU generator."""
    count = shape.numel()
    rows = math.ceil(count / TILE)
    words = torch.empty(rows * TILE // 8, dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
    below = math.floor(256 * p)
    # a byte as int8 is uniform over -128 to 127
    thresholds = (torch.rand(TILE) < 256 * p - below).to(torch.int8) + (below - 128)
    return (words.view(torch.int8).view(rows, TILE) >= thresholds).view(torch.uint8).flatten()[:count].view(shape)


class _Dropout(torch.autograd.Function):
    """x -> x · mask / (1 - p)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        mask = keep_mask(x.shape, p)
        ctx.save_for_backward(mask)
        ctx.p = p
        return (x * mask.to(x.dtype)).mul_(1 / (1 - p))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return (gradient * mask.to(gradient.dtype)).mul_(1 / (1 - ctx.p)), None


class _DropoutAdd(torch.autograd.Function):
    """(residual, x) -> residual + x · mask / (1 - p), in one pass."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, x: Tensor, p: float) -> Tensor:
        mask = keep_mask(x.shape, p)
        ctx.save_for_backward(mask)
        ctx.p = p
        return torch.addcmul(residual, x, mask.to(x.dtype), value=1 / (1 - p))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (mask,) = ctx.saved_tensors
        return gradient, (gradient * mask.to(gradient.dtype)).mul_(1 / (1 - ctx.p)), None


def by_bytes(x: Tensor, p: float) -> bool:
    """Is dropout of this tensor drawn here, not by `F.dropout`?"""
    return x.device.type == "cpu" and p <= _LARGEST and not torch.compiler.is_compiling()


def dropout(x: Tensor, p: float) -> Tensor:
    """Dropout of a module in training mode.

    Args:
        x: any shape.
        p: probability of a zero, in [0, 1).
    """
    if p == 0:
        return x
    return _Dropout.apply(x, p) if by_bytes(x, p) else F.dropout(x, p)


def dropout_add(residual: Tensor, x: Tensor, p: float) -> Tensor:
    """`residual + dropout(x, p)`, both of the same shape."""
    if p == 0:
        return residual + x
    return _DropoutAdd.apply(residual, x, p) if by_bytes(x, p) else residual + F.dropout(x, p)
