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
from torch import Tensor, nn

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
    """x, residual -> residual + x · mask / (1 - p), in one pass; without a residual the first summand is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, p: float) -> Tensor:
        mask, ctx.scale, ctx.residual = keep_mask(x.shape, p), 1 / (1 - p), residual is not None
        ctx.save_for_backward(mask)
        kept = mask.to(x.dtype)
        return kept.mul_(x).mul_(ctx.scale) if residual is None else torch.addcmul(residual, x, kept, value=ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (mask,) = ctx.saved_tensors
        return mask.to(gradient.dtype).mul_(gradient).mul_(ctx.scale), gradient if ctx.residual else None, None


def by_bytes(x: Tensor, p: float) -> bool:
    """Is dropout of this tensor drawn here, not by torch?"""
    return x.device.type == "cpu" and 0 < p <= _LARGEST and not torch.compiler.is_compiling()


class Dropout(nn.Dropout):
    """torch's `Dropout`, drawn by bytes where that is faster; it can add the residual stream in the same pass."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Drop out values of x (any shape), and add `residual` of the same shape if there is one."""
        if self.training and by_bytes(x, self.p):
            return _Dropout.apply(x, residual, self.p)
        dropped = F.dropout(x, self.p, self.training)
        return dropped if residual is None else residual + dropped


def replace_dropout(module: nn.Module) -> None:
    """Put `Dropout` in the place of every `torch.nn.Dropout` within the module; it has no parameters to lose."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p))
