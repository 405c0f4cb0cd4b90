"""Attention with dropout on a CPU, where torch's own kernel is the same products around a serial dropout."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from threeml_core.models.dropout import by_bytes, keep_mask


class _Attention(torch.autograd.Function):
    """Softmax attention with dropout on its weights; queries, keys and values (batch, n, d), split into heads.

    Each is copied once into the order of heads and its gradient once back; the scale of the scores is part of their
    product, that of the dropout part of the product with the values.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, heads: int, p: float) -> Tensor:
        q, k, v = (_split(x, heads) for x in (query, key, value))
        scale = q.shape[-1] ** -0.5
        weights = torch.baddbmm(q.new_empty(1, 1, 1), q, k.mT, beta=0, alpha=scale).softmax(-1)
        mask = keep_mask(weights.shape, p)
        dropped = weights * mask.to(weights.dtype)
        context = torch.baddbmm(q.new_empty(1, 1, 1), dropped, v, beta=0, alpha=1 / (1 - p))
        ctx.save_for_backward(q, k, v, weights, mask)
        ctx.heads, ctx.scale, ctx.p = heads, scale, p
        return _join(context, heads)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, mask = ctx.saved_tensors
        heads, keep, empty = ctx.heads, 1 / (1 - ctx.p), q.new_empty(1, 1, 1)
        kept = mask.to(weights.dtype)
        outer = _split(gradient, heads)
        by_value = torch.baddbmm(empty, (weights * kept).mT, outer, beta=0, alpha=keep)
        by_weights = torch.baddbmm(empty, outer, v.mT, beta=0, alpha=keep).mul_(kept)
        by_scores = torch._softmax_backward_data(by_weights, weights, -1, weights.dtype)
        by_query = torch.baddbmm(empty, by_scores, k, beta=0, alpha=ctx.scale)
        by_key = torch.baddbmm(empty, by_scores.mT, q, beta=0, alpha=ctx.scale)
        return *(_join(x, heads) for x in (by_query, by_key, by_value)), None, None


def _split(x: Tensor, heads: int) -> Tensor:
    """(batch, n, d) -> (batch · heads, n, d / heads), contiguous."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2).reshape(-1, x.shape[1], x.shape[2] // heads)


def _join(x: Tensor, heads: int) -> Tensor:
    """The way back."""
    return x.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, p: float) -> Tensor:
    """Softmax attention, dropout on its weights: (batch, n_q, d), (batch, n_k, d) twice -> (batch, n_q, d)."""
    if p and by_bytes(query, p) and not torch.is_autocast_enabled("cpu"):
        return _Attention.apply(query, key, value, heads, p)
    query, key, value = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, dropout_p=p).transpose(1, 2).flatten(2)
