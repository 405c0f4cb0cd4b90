"""Attention on a CPU with dropout or in bfloat16, where torch's own kernel is the same products, but slow.

The decoder calls `attend`, and Hugging Face's encoders find it under the name `BYTE_DROPOUT`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from threeml_core.models.dropout import by_bytes, keep_mask

BYTE_DROPOUT = "byte_dropout"
"""An attention implementation beside Hugging Face's own, such as `sdpa`."""


class _Attention(torch.autograd.Function):
    """Softmax attention with dropout on its weights, see `attend`.

    Queries, keys and values are copied once into the order of the products, unless they have it, and the result once
    back; the scale of the scores is part of their product, that of the dropout part of the product with the values.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None, p: float, scale: float
    ) -> Tensor:
        q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (query, key, value))
        weights = torch.baddbmm(q.new_empty(1, 1, 1), q, k.mT, beta=0, alpha=scale)
        if key_mask is not None:
            weights.unflatten(0, query.shape[:2]).masked_fill_(~key_mask, -torch.inf)
        weights = weights.softmax(-1)
        mask = keep_mask(weights.shape, p) if p else None
        dropped = weights if mask is None else mask.to(q.dtype).mul_(weights)
        context = torch.baddbmm(q.new_empty(1, 1, 1), dropped, v, beta=0, alpha=1 / (1 - p))
        ctx.save_for_backward(q, k, v, weights, mask)
        ctx.p, ctx.scale, ctx.batch_heads = p, scale, query.shape[:2]
        return context.unflatten(0, ctx.batch_heads).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, mask = ctx.saved_tensors
        keep, empty = 1 / (1 - ctx.p), q.new_empty(1, 1, 1)
        outer = gradient.transpose(1, 2).reshape(q.shape)
        by_weights, dropped = torch.baddbmm(empty, outer, v.mT, beta=0, alpha=keep), weights
        if mask is not None:
            kept = mask.to(weights.dtype)
            by_weights, dropped = by_weights.mul_(kept), kept.mul_(weights)
        by_value = torch.baddbmm(empty, dropped.mT, outer, beta=0, alpha=keep)
        by_scores = torch._softmax_backward_data(by_weights, weights, -1, weights.dtype, grad_input=by_weights)
        by_query = torch.baddbmm(empty, by_scores, k, beta=0, alpha=ctx.scale)
        by_key = torch.baddbmm(empty, by_scores.mT, q, beta=0, alpha=ctx.scale)
        return *(x.unflatten(0, ctx.batch_heads) for x in (by_query, by_key, by_value)), None, None, None


def is_half_on_cpu(states: Tensor) -> bool:
    """Are these states of a model that computes in bfloat16 on a CPU, uncompiled?"""
    return states.dtype == torch.bfloat16 and states.device.type == "cpu" and not torch.compiler.is_compiling()


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Softmax attention, dropout on its weights, as Hugging Face's models ask for it.

    Queries are (batch, heads, n_q, d / heads), keys and values (batch, heads, n_k, d / heads), the result is
    (batch, n_q, heads, d / heads), with None for the weights. What is not plain bidirectional attention with dropout on
    a CPU is Hugging Face's `sdpa`. A mask is bool, broadcast to (batch, heads, n_q, n_k), True where a key is seen.
    """
    plain = query.shape[1] == key.shape[1] and not getattr(module, "is_causal", True) and "position_bias" not in others
    known = plain and (attention_mask is None or attention_mask.dtype == torch.bool)
    # torch's own kernel takes many times as long backwards in bfloat16
    ours = by_bytes(query, dropout) or is_half_on_cpu(query)
    if known and ours and not torch.is_autocast_enabled("cpu"):
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return _Attention.apply(query, key, value, attention_mask, dropout, scale), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **others)


def masks_by_position(
    positions: Tensor, key_mask: Tensor | None, window: int, n: int, additive: torch.dtype | None = None
) -> dict[str, Tensor | None]:
    """Attention masks of ModernBERT's global and local layers for tokens at any positions.

    transformers' own local mask goes by index, which for gathered tokens is not their position. A token sees itself,
    so that no row is empty.

    Args:
        positions: (batch or 1, k), below n.
        key_mask: (batch, k), True where a token may be seen; None: everywhere.
        window: how far a local layer sees, in positions to each side.
        n: tokens of the whole sequence; up to `window + 1` local layers are global.
        additive: None: masks are bool, True where a key is seen; else of this type, to be added to the scores.

    Returns:
        Kind of layer -> mask, broadcast to (batch, heads, k, k), or None where all is seen.
    """
    seen = None if key_mask is None else never_empty(key_mask.bool())[:, None, None]
    local = seen
    if n > window + 1:
        local = ((positions[:, :, None] - positions[:, None, :]).abs() <= window)[:, None]
        if seen is not None:
            local = local & seen | torch.eye(positions.shape[1], dtype=torch.bool, device=positions.device)
    masks = {"full_attention": seen, "sliding_attention": local}
    if additive is None:
        return masks
    nothing = torch.zeros((), dtype=additive, device=positions.device)
    lowest = torch.finfo(additive).min
    return {kind: None if mask is None else nothing.where(mask, lowest) for kind, mask in masks.items()}


def never_empty(key_mask: Tensor) -> Tensor:
    """(batch, n) bool; a row without any attention key would give NaN and is never used, so let it see all."""
    return key_mask | ~key_mask.any(1, keepdim=True)


AttentionInterface.register(BYTE_DROPOUT, attend)
AttentionMaskInterface.register(BYTE_DROPOUT, sdpa_mask)
