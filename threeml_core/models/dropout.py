"""Dropout from random words instead of one Bernoulli draw after another: the same statistics, a tenth of the time.

On a CPU torch draws the mask of `F.dropout` serially, number by number. Here 64 random bits give four decisions: a
16-bit word is kept if it is at least the threshold. The rate is therefore rounded to a multiple of 2^-16 (0.1 becomes
0.100006) and the kept values are scaled by its own complement, so the expectation is exact. Everywhere else, and when
compiled, it is `F.dropout`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_WORDS = 2**16


def rounded_rate(p: float) -> float:
    """The rate that is drawn: p to the nearest multiple of 2^-16."""
    return round(p * _WORDS) / _WORDS


def keep_mask(shape: torch.Size, p: float) -> Tensor:
    """Bool of this shape, True with probability 1 - `rounded_rate(p)`; from torch's default CPU generator."""
    count = shape.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
    threshold = round(p * _WORDS) - _WORDS // 2
    return (words.view(torch.int16)[:count] >= threshold).view(shape)


def _scaled(mask: Tensor, p: float, like: Tensor) -> Tensor:
    """1 / (1 - p) where kept, else 0; multiplying by floats is several times faster than by bools."""
    return mask.to(like.dtype).mul_(1 / (1 - rounded_rate(p)))


class _Dropout(torch.autograd.Function):
    """x -> x · mask / (1 - p)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        mask = keep_mask(x.shape, p)
        ctx.save_for_backward(mask)
        ctx.p = p
        return x * _scaled(mask, p, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (mask,) = ctx.saved_tensors
        return gradient * _scaled(mask, ctx.p, gradient), None


class _DropoutAdd(torch.autograd.Function):
    """(residual, x) -> residual + x · mask / (1 - p), in one pass."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, x: Tensor, p: float) -> Tensor:
        mask = keep_mask(x.shape, p)
        ctx.save_for_backward(mask)
        ctx.p = p
        return torch.addcmul(residual, x, _scaled(mask, p, x))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        (mask,) = ctx.saved_tensors
        return gradient, gradient * _scaled(mask, ctx.p, gradient), None


def _by_words(x: Tensor) -> bool:
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def dropout(x: Tensor, p: float) -> Tensor:
    """Dropout of a module in training mode.

    Args:
        x: any shape.
        p: probability of a zero, in [0, 1).
    """
    if p == 0:
        return x
    return _Dropout.apply(x, p) if _by_words(x) else F.dropout(x, p)


def dropout_add(residual: Tensor, x: Tensor, p: float) -> Tensor:
    """`residual + dropout(x, p)`, both of the same shape."""
    if p == 0:
        return residual + x
    return _DropoutAdd.apply(residual, x, p) if _by_words(x) else residual + F.dropout(x, p)
