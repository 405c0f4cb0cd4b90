"""What the blocks of the models compute, from the parameters of the stock modules that hold them.

Hugging Face's and torch's modules stay what is built, initialised, saved and exported; running through their own
`forward` costs more than it needs to. The same computation here:

* query, key and value in one matrix product (their parameters are joined for it, and stay three);
* dropout by random bytes on a CPU (see `dropout`), in one pass with the residual sum;
* the last decoder block at the predicted positions only: keys and values of all, queries and FFN of those.

The ordinary `forward` of the models runs through the stock modules, and the two are compared in tests.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.roberta.modeling_roberta import RobertaModel
from transformers.models.roberta_prelayernorm.modeling_roberta_prelayernorm import RobertaPreLayerNormModel

from threeml_core.models.attention import attend
from threeml_core.models.dropout import dropout, dropout_add


def take(hidden: Tensor, idx: Tensor) -> Tensor:
    """(batch, n, d) at positions (batch, k) -> (batch, k, d); whole rows are copied, there and back."""
    batch, n, _ = hidden.shape
    rows = idx + n * torch.arange(batch, device=idx.device)[:, None]
    return hidden.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, idx.shape)


def runs_through_blocks(encoder: Any) -> bool:
    """Is it an encoder that `encode` knows? Any other, or one that recomputes its states, runs by itself."""
    known = type(encoder) in (RobertaModel, RobertaPreLayerNormModel)
    return known and not encoder.gradient_checkpointing


def encode(encoder: Any, input_ids: Tensor, positions: Tensor) -> Tensor:
    """A RoBERTa encoder over unpadded sequences: (batch, k) twice (positions may be (1, k)) -> (batch, k, d_en)."""
    embeddings = encoder.embeddings
    types = embeddings.token_type_embeddings.weight[0]
    hidden = embeddings.word_embeddings(input_ids) + (embeddings.position_embeddings(positions) + types)
    hidden = dropout(embeddings.LayerNorm(hidden), _rate(embeddings.dropout))
    for layer in encoder.encoder.layer:
        hidden = _encoder_block(layer, hidden)
    return encoder.LayerNorm(hidden) if isinstance(encoder, RobertaPreLayerNormModel) else hidden


def _encoder_block(layer: Any, hidden: Tensor) -> Tensor:
    own, out, inner = layer.attention.self, layer.attention.output, layer.intermediate
    norms_first = hasattr(inner, "LayerNorm")
    x = layer.attention.LayerNorm(hidden) if norms_first else hidden
    weight = torch.cat([own.query.weight, own.key.weight, own.value.weight])
    bias = torch.cat([own.query.bias, own.key.bias, own.value.bias])
    query, key, value = F.linear(x, weight, bias).chunk(3, -1)
    context = attend(query, key, value, own.num_attention_heads, _rate(own.dropout))
    hidden = dropout_add(hidden, out.dense(context), _rate(out.dropout))
    x = inner.LayerNorm(hidden) if norms_first else (hidden := out.LayerNorm(hidden))
    x = layer.output.dense(inner.intermediate_act_fn(inner.dense(x)))
    hidden = dropout_add(hidden, x, _rate(layer.output.dropout))
    return hidden if norms_first else layer.output.LayerNorm(hidden)


def self_block(layer: Any, hidden: Tensor, at: Tensor | None = None) -> Tensor:
    """A block of 3ML_self's decoder: (batch, n, d_de) -> (batch, n, d_de), or (batch, k, d_de) at (batch, k)."""
    hidden = _self_attention(layer, hidden, at)
    return _feed_forward(layer, hidden, layer.norm2, layer.dropout2)


def cross_block(layer: Any, hidden: Tensor, memory: Tensor) -> Tensor:
    """A block of 3ML_cross's decoder: (batch, n_de, d_de), memory (batch, n_en, d_de) -> (batch, n_de, d_de)."""
    hidden = _self_attention(layer, hidden)
    attention, d = layer.multihead_attn, hidden.shape[-1]
    x = layer.norm2(hidden) if layer.norm_first else hidden
    query = F.linear(x, attention.in_proj_weight[:d], attention.in_proj_bias[:d])
    key, value = F.linear(memory, attention.in_proj_weight[d:], attention.in_proj_bias[d:]).chunk(2, -1)
    context = attend(query, key, value, attention.num_heads, _attention_rate(attention))
    hidden = dropout_add(hidden, attention.out_proj(context), _rate(layer.dropout2))
    hidden = hidden if layer.norm_first else layer.norm2(hidden)
    return _feed_forward(layer, hidden, layer.norm3, layer.dropout3)


def _self_attention(layer: Any, hidden: Tensor, at: Tensor | None = None) -> Tensor:
    attention, d = layer.self_attn, hidden.shape[-1]
    weight, bias = attention.in_proj_weight, attention.in_proj_bias
    x = layer.norm1(hidden) if layer.norm_first else hidden
    if at is None:
        query, key, value = F.linear(x, weight, bias).chunk(3, -1)
    else:
        query, hidden = F.linear(take(x, at), weight[:d], bias[:d]), take(hidden, at)
        key, value = F.linear(x, weight[d:], bias[d:]).chunk(2, -1)
    context = attend(query, key, value, attention.num_heads, _attention_rate(attention))
    hidden = dropout_add(hidden, attention.out_proj(context), _rate(layer.dropout1))
    return hidden if layer.norm_first else layer.norm1(hidden)


def _feed_forward(layer: Any, hidden: Tensor, norm: nn.LayerNorm, drop: nn.Dropout) -> Tensor:
    x = norm(hidden) if layer.norm_first else hidden
    x = layer.linear2(layer.activation(layer.linear1(x)))
    hidden = dropout_add(hidden, x, _rate(drop))
    return hidden if layer.norm_first else norm(hidden)


def _rate(module: nn.Dropout) -> float:
    return module.p if module.training else 0.0


def _attention_rate(attention: nn.MultiheadAttention) -> float:
    return attention.dropout if attention.training else 0.0
