"""The layer of the 3ML decoder. Source: section 2.2 and Figure 2."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from threeml_core.models.attention import attend
from threeml_core.models.dropout import Dropout
from threeml_core.models.gather import take


class Attention(nn.Module):
    """Multi-head attention; query, key and value have one matrix, as in torch's `MultiheadAttention`."""

    def __init__(self, d: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * d, d))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * d))
        self.out_proj = nn.Linear(d, d)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, queries: Tensor, keys: Tensor, visible: Tensor | None = None) -> Tensor:
        """(batch, n_q, d) attend to (batch, n_k, d), of which `visible` (batch, n_k) bool are seen; None: all."""
        weight, bias, d = self.in_proj_weight, self.in_proj_bias, queries.shape[-1]
        if queries is keys:
            projected = F.linear(keys, weight, bias).chunk(3, -1)
        else:
            key_value = F.linear(keys, weight[d:], bias[d:]).chunk(2, -1)
            projected = (F.linear(queries, weight[:d], bias[:d]), *key_value)
        query, key, value = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in projected)
        seen = None if visible is None else visible[:, None, None]
        return self.out_proj(attend(query, key, value, seen, self.dropout if self.training else 0.0))


class DecoderLayer(GradientCheckpointingLayer):
    """Self-attention, for 3ML_cross attention to the encoder's output, and an FFN; nothing is causal.

    Parameters are named as in torch's `TransformerEncoderLayer` and `TransformerDecoderLayer`, whose weights it loads
    and whose results it gives. Dropout as in BERT and Appendix A: a rate of its own for attention weights, none within
    the FFN.
    """

    def __init__(
        self, d: int, num_heads: int, cross: bool, norm_first: bool, dropout: float, attention_dropout: float, eps: float
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.self_attn = Attention(d, num_heads, attention_dropout)
        self.multihead_attn = Attention(d, num_heads, attention_dropout) if cross else None
        self.linear1, self.linear2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.norm1, self.norm2 = nn.LayerNorm(d, eps=eps), nn.LayerNorm(d, eps=eps)
        self.norm3 = nn.LayerNorm(d, eps=eps) if cross else None
        self.dropout = Dropout(dropout)

    def forward(
        self,
        hidden: Tensor,
        memory: Tensor | None = None,
        at: Tensor | None = None,
        visible: Tensor | None = None,
        visible_memory: Tensor | None = None,
    ) -> Tensor:
        """States one layer on.

        Args:
            hidden: (batch, n, d_de).
            memory: (batch, n_en, d_de), what 3ML_cross attends to.
            at: (batch, k) positions; None: all. Keys and values are made of all, the rest at these alone.
            visible: (batch, n) bool: which positions may be attended to; None: all.
            visible_memory: (batch, n_en) bool, the same for the memory.

        Returns:
            (batch, n, d_de), or (batch, k, d_de).
        """
        keys = self.norm1(hidden) if self.norm_first else hidden
        queries, hidden = (keys, hidden) if at is None else (take(keys, at), take(hidden, at))
        hidden = self.dropout(self.self_attn(queries, keys, visible), hidden)
        hidden = hidden if self.norm_first else self.norm1(hidden)
        if self.multihead_attn is None:
            return self._add_ffn(hidden, self.norm2)
        queries = self.norm2(hidden) if self.norm_first else hidden
        hidden = self.dropout(self.multihead_attn(queries, memory, visible_memory), hidden)
        hidden = hidden if self.norm_first else self.norm2(hidden)
        return self._add_ffn(hidden, self.norm3)

    def _add_ffn(self, hidden: Tensor, norm: nn.Module) -> Tensor:
        x = norm(hidden) if self.norm_first else hidden
        hidden = self.dropout(self.linear2(F.gelu(self.linear1(x))), hidden)
        return hidden if self.norm_first else norm(hidden)
