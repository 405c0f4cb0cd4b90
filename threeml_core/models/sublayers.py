"""Layers of RoBERTa, BERT and their like, in parts: queries at some positions, keys and values at others.

Whole layers run by their own `forward`, parts by their own modules: hooks on linear layers, norms and dropout, adapters
and gradient checkpointing work, hooks on the encoder as a whole and on an attention that runs in parts do not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.roberta.modeling_roberta import eager_attention_forward

from threeml_core.foundation.errors import ParameterError


def layers_of(encoder: Any) -> list[Any]:
    """The layers, first to last.

    Raises:
        ParameterError: they are not built as BERT's.
    """
    layers = list(getattr(getattr(encoder, "encoder", None), "layer", ()))
    if not all(hasattr(layer, "attention") and hasattr(layer, "feed_forward_chunk") for layer in layers) or not layers:
        raise ParameterError(
            f"encoder {encoder.config.model_type}: its layers cannot run in parts, as this architecture does; take one "
            "with BERT's layers, such as roberta, or another architecture"
        )
    return layers


def embed(encoder: Any, ids: Tensor, positions: Tensor) -> Tensor:
    """(batch, n, d) of token ids (batch, n) at position ids (batch or 1, n)."""
    return encoder.embeddings(input_ids=ids, position_ids=positions)


def final_norm(encoder: Any, hidden: Tensor) -> Tensor:
    """What stands behind the last layer: a LayerNorm with pre-LN, nothing with post-LN."""
    return encoder.LayerNorm(hidden) if hasattr(encoder, "LayerNorm") else hidden


def attention_mask(encoder: Any, queries: Tensor, keys: Tensor, key_mask: Tensor | None) -> Tensor | None:
    """The mask of (batch, n_k) tokens that may be attended to, None: all, as the encoder's attention takes it."""
    return create_bidirectional_mask(encoder.config, queries, key_mask, encoder_hidden_states=keys)


def states_after(layers: Iterable[Any], hidden: Tensor, mask: Tensor | None) -> list[Tensor]:
    """`hidden` (batch, n, d), then what each of the layers makes of it, run as it is."""
    states = [hidden]
    for layer in layers:
        states.append(layer(states[-1], mask))
    return states


def run(part: Callable[..., Tensor], layer: Any, *given: Tensor | None) -> Tensor:
    """`part(layer, *given)`; once more on the way back, instead of being kept, where gradients are checkpointed."""
    if layer.gradient_checkpointing and layer.training:
        return layer._gradient_checkpointing_func(functools.partial(part, layer), *given)
    return part(layer, *given)


def self_attention(layer: Any, hidden: Tensor, mask: Tensor | None) -> Tensor:
    """The attention sub-layer with its residual stream, run as it is: (batch, n, d) -> (batch, n, d)."""
    return layer.attention(hidden, mask)[0]


def attention(layer: Any, hidden: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
    """The attention sub-layer: (batch, n_q, d), with its residual stream, attends to `memory` (batch, n_k, d).

    With pre-LN the layer's norm is that of both.
    """
    own, norm = layer.attention.self, getattr(layer.attention, "LayerNorm", nn.Identity())
    queries, keys = norm(hidden), norm(memory)
    query, key, value = (
        projection(states).unflatten(-1, (-1, own.attention_head_size)).transpose(1, 2)
        for projection, states in ((own.query, queries), (own.key, keys), (own.value, keys))
    )
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(own.config._attn_implementation, eager_attention_forward)
    p = own.dropout.p if own.training else 0.0
    context, _ = attend(own, query, key, value, mask, dropout=p, scaling=own.scaling)
    return layer.attention.output(context.flatten(2), hidden)


def feed_forward(layer: Any, hidden: Tensor) -> Tensor:
    """The FFN sub-layer with its residual stream: (batch, k, d) -> (batch, k, d)."""
    return layer.feed_forward_chunk(hidden)


def narrow_layer(layer: Any, hidden: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
    """Both: (batch, n_q, d) attends to `memory` (batch, n_k, d); the rest is of the queries alone."""
    return feed_forward(layer, attention(layer, hidden, memory, mask))
