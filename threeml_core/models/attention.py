"""Softmax attention with dropout on its weights: of the decoder, and registered for Hugging Face's encoders.

On a CPU torch's own kernel is the same products around a serial dropout; here the mask is drawn by bytes. Compiled, or
on a GPU, it is `F.scaled_dot_product_attention`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from threeml_core.models.dropout import by_bytes, keep_mask

BYTE_DROPOUT = "byte_dropout"
"""The name under which Hugging Face's models find it: `model.set_attn_implementation(BYTE_DROPOUT)`."""


class _Attention(torch.autograd.Function):
    """Queries, keys, values (batch, heads, n, d / heads) -> (batch, n_q, heads, d / heads), the order of `flatten(2)`.

    Each is copied once into the order of its products, if it is not yet, and the result once back; the scale of the
    scores is part of their product, that of the dropout part of the product with the values.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, p: float, scale: float
    ) -> Tensor:
        q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (query, key, value))
        shape = query.shape
        scores = torch.baddbmm(q.new_empty(1, 1, 1), q, k.mT, beta=0, alpha=scale)
        if visible is not None:
            scores.unflatten(0, shape[:2]).masked_fill_(~visible, -torch.inf)
        weights = scores.softmax(-1)
        mask = keep_mask(weights.shape, p)
        context = torch.baddbmm(q.new_empty(1, 1, 1), weights * mask.to(q.dtype), v, beta=0, alpha=1 / (1 - p))
        ctx.save_for_backward(q, k, v, weights, mask)
        ctx.shape, ctx.scale, ctx.p = shape, scale, p
        return context.unflatten(0, shape[:2]).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, mask = ctx.saved_tensors
        keep, empty, kept = 1 / (1 - ctx.p), q.new_empty(1, 1, 1), mask.to(weights.dtype)
        outer = gradient.transpose(1, 2).reshape(q.shape)
        by_value = torch.baddbmm(empty, (weights * kept).mT, outer, beta=0, alpha=keep)
        by_weights = torch.baddbmm(empty, outer, v.mT, beta=0, alpha=keep).mul_(kept)
        by_scores = torch._softmax_backward_data(by_weights, weights, -1, weights.dtype)
        by_query = torch.baddbmm(empty, by_scores, k, beta=0, alpha=ctx.scale)
        by_key = torch.baddbmm(empty, by_scores.mT, q, beta=0, alpha=ctx.scale)
        return *(x.unflatten(0, ctx.shape[:2]) for x in (by_query, by_key, by_value)), None, None, None


def _drawn_here(query: Tensor, p: float) -> bool:
    return by_bytes(query, p) and not torch.is_autocast_enabled("cpu")


def attend(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, p: float) -> Tensor:
    """Softmax attention, dropout on its weights.

    Args:
        query: (batch, heads, n_q, d / heads).
        key: (batch, heads, n_k, d / heads).
        value: as `key`.
        visible: bool, broadcast to (batch, heads, n_q, n_k), True where a key is seen; None: everywhere.
        p: probability that a weight is dropped.

    Returns:
        (batch, n_q, d).
    """
    if _drawn_here(query, p):
        return _Attention.apply(query, key, value, visible, p, query.shape[-1] ** -0.5).flatten(2)
    return F.scaled_dot_product_attention(query, key, value, visible, p).transpose(1, 2).flatten(2)


def encoder_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The same as Hugging Face's encoders ask for it; whatever is not plain attention with dropout is their `sdpa`."""
    plain = query.shape[1] == key.shape[1] and not getattr(module, "is_causal", True) and "position_bias" not in others
    if plain and _drawn_here(query, dropout) and (attention_mask is None or attention_mask.dtype == torch.bool):
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return _Attention.apply(query, key, value, attention_mask, dropout, scale), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **others)


AttentionInterface.register(BYTE_DROPOUT, encoder_attention)
AttentionMaskInterface.register(BYTE_DROPOUT, sdpa_mask)
