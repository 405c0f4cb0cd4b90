"""The layer of the 3ML decoder. Source: section 2.2 and Figure 2."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from threeml_core.models.attention import attend
from threeml_core.models.configuration import ThreeMLConfig
from threeml_core.models.dropout import Dropout
from threeml_core.models.gather import take


class Attention(nn.Module):
    """Multi-head attention; query, key and value have one matrix, as in torch's `MultiheadAttention`."""

    is_causal = False

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
            query = F.linear(queries, weight[:d], bias[:d])
            projected = (query, *F.linear(keys, weight[d:], bias[d:]).chunk(2, -1))
        query, key, value = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in projected)
        mask = None if visible is None else visible[:, None, None]
        context, _ = attend(self, query, key, value, mask, self.dropout if self.training else 0.0)
        return self.out_proj(context.flatten(2))


class DecoderLayer(GradientCheckpointingLayer):
    """Self-attention, for 3ML_cross attention to the encoder's output, and an FFN; nothing is causal.

    Parameters are named as in torch's `TransformerEncoderLayer` and `TransformerDecoderLayer`, whose weights it loads
    and whose results it gives. Dropout is BERT's: its own rate for attention weights (Appendix A), none in the FFN.
    """

    def __init__(self, config: ThreeMLConfig, cross_attention: bool) -> None:
        super().__init__()
        encoder, d = config.encoder, cast(int, config.decoder_hidden_size)
        heads = cast(int, config.decoder_num_attention_heads)
        self.norm_first, dropout = config.decoder_norm_first, encoder.attention_probs_dropout_prob
        self.self_attn = Attention(d, heads, dropout)
        self.multihead_attn = Attention(d, heads, dropout) if cross_attention else None
        self.linear1, self.linear2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.norm1, self.norm2 = (nn.LayerNorm(d, encoder.layer_norm_eps) for _ in range(2))
        self.norm3 = nn.LayerNorm(d, encoder.layer_norm_eps) if cross_attention else None
        self.dropout = Dropout(encoder.hidden_dropout_prob)

    def forward(
        self,
        hidden: Tensor,
        memory: Tensor | None = None,
        at: Tensor | None = None,
        visible: Tensor | None = None,
        visible_memory: Tensor | None = None,
    ) -> Tensor:
        """(batch, n, d_de) -> (batch, n, d_de), or (batch, k, d_de) at positions `at`.

        Args:
            hidden: states of the layer before.
            memory: (batch, n_en, d_de), what 3ML_cross attends to.
            at: (batch, k); keys and values are made of all positions, the rest at these alone. None: everything at all.
            visible: (batch, n) bool, True where a position may be attended to; None: everywhere.
            visible_memory: (batch, n_en) bool, the same for the memory.
        """
        keys = self._before(self.norm1, hidden)
        queries, hidden = (keys, hidden) if at is None else (take(keys, at), take(hidden, at))
        hidden = self._after(self.norm1, self.dropout(self.self_attn(queries, keys, visible), hidden))
        if self.multihead_attn is not None:
            queries = self._before(self.norm2, hidden)
            context = self.multihead_attn(queries, memory, visible_memory)
            hidden = self._after(self.norm2, self.dropout(context, hidden))
        norm = self.norm2 if self.norm3 is None else self.norm3
        x = self.linear2(F.gelu(self.linear1(self._before(norm, hidden))))
        return self._after(norm, self.dropout(x, hidden))

    def _before(self, norm: nn.Module, hidden: Tensor) -> Tensor:
        return norm(hidden) if self.norm_first else hidden

    def _after(self, norm: nn.Module, hidden: Tensor) -> Tensor:
        return hidden if self.norm_first else norm(hidden)
