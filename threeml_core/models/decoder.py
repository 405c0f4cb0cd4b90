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
from threeml_core.parameters.model import default_ffn_width


def rotate(x: Tensor, positions: Tensor | None, theta: float) -> Tensor:
    """RoPE: (batch, heads, n, d / heads) turned by their positions (batch or 1, n); None: 0 to n - 1.

    As in transformers, value i of a head and value i + d / heads / 2 are a point in the plane, turned by
    position · theta^(-2i heads / d), in fp32 at least. Source: Su et al. (2021), arXiv:2104.09864.
    """
    size, kind = x.shape[-1], torch.promote_types(x.dtype, torch.float32)
    if positions is None:
        positions = torch.arange(x.shape[2], device=x.device)[None]
    frequencies = theta ** (-torch.arange(0, size, 2, device=x.device, dtype=kind) / size)
    angles = positions[:, None, :, None] * frequencies
    cos, sin, (a, b) = angles.cos(), angles.sin(), x.to(kind).chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Attention(nn.Module):
    """Multi-head attention; query, key and value have one matrix, as in torch's `MultiheadAttention`.

    With `rope_theta` queries and keys are turned by their positions, and there are no biases.
    """

    is_causal = False

    def __init__(self, d: int, num_heads: int, dropout: float, rope_theta: float | None = None) -> None:
        super().__init__()
        self.num_heads, self.dropout, self.rope_theta = num_heads, dropout, rope_theta
        self.in_proj_weight = nn.Parameter(torch.empty(3 * d, d))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * d)) if rope_theta is None else None
        self.out_proj = nn.Linear(d, d, bias=rope_theta is None)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        key_mask: Tensor | None = None,
        query_positions: Tensor | None = None,
        key_positions: Tensor | None = None,
    ) -> Tensor:
        """(batch, n_q, d) attend to (batch, n_k, d), of which `key_mask` (batch, n_k) bool are seen; None: all.

        Positions are (batch or 1, n_q) and (batch or 1, n_k), for RoPE alone; None: 0 to n - 1.
        """
        weight, bias, d = self.in_proj_weight, self.in_proj_bias, queries.shape[-1]
        if queries is keys:
            projected = F.linear(keys, weight, bias).chunk(3, -1)
        else:
            of_query, of_keys = (None, None) if bias is None else (bias[:d], bias[d:])
            query = F.linear(queries, weight[:d], of_query)
            projected = (query, *F.linear(keys, weight[d:], of_keys).chunk(2, -1))
        query, key, value = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in projected)
        if self.rope_theta is not None:
            query = rotate(query, query_positions, self.rope_theta)
            key = rotate(key, key_positions, self.rope_theta)
        mask = None if key_mask is None else key_mask[:, None, None]
        context, _ = attend(self, query, key, value, mask, self.dropout if self.training else 0.0)
        return self.out_proj(context.flatten(2))


class DecoderLayer(GradientCheckpointingLayer):
    """Self-attention, for 3ML_cross attention to the encoder's output, and an FFN; nothing is causal.

    Parameters are named as in torch's `TransformerEncoderLayer` and `TransformerDecoderLayer`, whose weights it loads
    and whose results it gives. Dropout is BERT's: its own rate for attention weights (Appendix A), none in the FFN.

    With ModernBERT as encoder there are RoPE in both attentions, by true positions, a gated FFN (GeGLU) whose matrices
    are named as ModernBERT's, and no biases. All its attention is global.
    """

    def __init__(self, config: ThreeMLConfig, cross_attention: bool) -> None:
        super().__init__()
        d, heads = cast(int, config.decoder_hidden_size), cast(int, config.decoder_num_attention_heads)
        eps, bias, inner = config.layer_norm_eps, not config.is_modern, default_ffn_width(config.encoder.model_type, d)
        attention = d, heads, config.attention_probs_dropout_prob, config.rope_theta
        self.norm_first, self.is_modern = config.decoder_norm_first, config.is_modern
        self.self_attn = Attention(*attention)
        self.multihead_attn = Attention(*attention) if cross_attention else None
        if self.is_modern:
            self.Wi, self.Wo = nn.Linear(d, 2 * inner, bias=False), nn.Linear(inner, d, bias=False)
        else:
            self.linear1, self.linear2 = nn.Linear(d, inner), nn.Linear(inner, d)
        self.norm1, self.norm2 = (nn.LayerNorm(d, eps, bias=bias) for _ in range(2))
        self.norm3 = nn.LayerNorm(d, eps, bias=bias) if cross_attention else None
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        hidden: Tensor,
        memory: Tensor | None = None,
        at: Tensor | None = None,
        key_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        positions: Tensor | None = None,
        memory_positions: Tensor | None = None,
    ) -> Tensor:
        """(batch, n, d_de) -> (batch, n, d_de), or (batch, k, d_de) at positions `at`.

        Args:
            hidden: states of the layer before.
            memory: (batch, n_en, d_de), what 3ML_cross attends to.
            at: (batch, k); keys and values are made of all positions, the rest at these alone. None: everything at all.
            key_mask: (batch, n) bool, True where a position may be attended to; None: everywhere.
            memory_mask: (batch, n_en) bool, the same for the memory.
            positions: (batch or 1, n), for RoPE alone; None: 0 to n - 1.
            memory_positions: (batch or 1, n_en), the same for the memory.
        """
        keys = self._before(self.norm1, hidden)
        queries, hidden = (keys, hidden) if at is None else (take(keys, at), take(hidden, at))
        asking = positions if at is None else at if positions is None else positions.expand(len(at), -1).gather(1, at)
        context = self.self_attn(queries, keys, key_mask, asking, positions)
        hidden = self._after(self.norm1, self.dropout(context, hidden))
        if self.multihead_attn is not None:
            queries = self._before(self.norm2, hidden)
            context = self.multihead_attn(queries, memory, memory_mask, asking, memory_positions)
            hidden = self._after(self.norm2, self.dropout(context, hidden))
        norm = self.norm2 if self.norm3 is None else self.norm3
        return self._after(norm, self.dropout(self._feed_forward(self._before(norm, hidden)), hidden))

    def _feed_forward(self, hidden: Tensor) -> Tensor:
        if not self.is_modern:
            return self.linear2(F.gelu(self.linear1(hidden)))
        value, gate = self.Wi(hidden).chunk(2, -1)
        return self.Wo(F.gelu(value) * gate)

    def _before(self, norm: nn.Module, hidden: Tensor) -> Tensor:
        return norm(hidden) if self.norm_first else hidden

    def _after(self, norm: nn.Module, hidden: Tensor) -> Tensor:
        return hidden if self.norm_first else norm(hidden)
