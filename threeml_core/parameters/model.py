"""Parameters of the model."""

from __future__ import annotations

import dataclasses
import math

from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.parameters.parameter import COUNT, POSITIVE, SHARE, at_least, in_range, one_of, parameter

MODERN = "modernbert"
"""Value of `encoder` and transformers' name of the class: RoPE, gated FFNs, no biases, local and global layers."""
_MODERN_ONLY = ("encoder", MODERN)
_NARROW = ("architecture", "sparse_queries", "context_first", "token_dropping")
_DROPPING = ("architecture", "token_dropping")


def default_ffn_width(encoder: str, width: int) -> int:
    """FFN width of layers of this width: 4 x it; ModernBERT's, with a gate, costs as much at 8/3 x it.

    That is rounded up to a multiple of 8. Source: Shazeer (2020), arXiv:2002.05202, who takes two thirds of the width.
    """
    return 8 * math.ceil(width / 3) if encoder == MODERN else 4 * width


def num_kept(n: int, kept_share: float) -> int:
    """How many of n tokens the middle layers of token dropping keep: the nearest whole number, halves rounded up."""
    return math.floor(kept_share * n + 0.5)


def too_few_kept(n: int, kept_share: float, needed: int) -> str:
    """What is wrong if `needed` [MASK]s and special tokens of n stay in all layers of token dropping; "": nothing."""
    if (kept := num_kept(n, kept_share)) >= needed:
        return ""
    return (
        f"kept_share={kept_share} keeps {kept} of {n} tokens, but a sequence holds {needed} [MASK]s and special "
        f"tokens, which always stay: raise it to at least {math.ceil(1000 * needed / n) / 1000}, or lower mask_rate"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelParameters:
    """Model."""

    STAGES = "pretrain benchmark plan"

    architecture: str = parameter("self", "which model", one_of(ARCHITECTURES))
    encoder: str = parameter(
        "roberta",
        "encoder and decoder layers: RoBERTa's, or ModernBERT's (RoPE, GeGLU, no biases)",
        one_of(("roberta", MODERN)),
        later=True,
    )
    init_encoder: str | None = parameter(
        None,
        "folder or hub name of a RoBERTa or ModernBERT to go on from",
        none="from scratch",
        later=True,
    )
    layer_norm: str = parameter("pre", "where LayerNorm stands", one_of(("pre", "post")))
    num_hidden_layers: int = parameter(24, "l_en: encoder layers", COUNT)
    hidden_size: int = parameter(1024, "d_en: encoder width", COUNT)
    num_attention_heads: int = parameter(16, "encoder attention heads", COUNT)
    intermediate_size: int | None = parameter(
        None, "encoder FFN width", COUNT, none="4 x hidden_size, modernbert: 8/3 x it, up to a multiple of 8"
    )
    max_position_embeddings: int | None = parameter(
        None,
        "rows of both position tables, 2 of them no token's; modernbert has no table and as much room",
        none="max(n, max_length) + 2",
    )
    local_attention: int = parameter(
        128, "window of local layers, half of it on each side, tokens", at_least(2), later=True, when=_MODERN_ONLY
    )
    global_attn_every_n_layers: int = parameter(
        3, "one layer of so many is global, the first among them", COUNT, later=True, when=_MODERN_ONLY
    )
    global_rope_theta: float = parameter(
        10_000.0, "RoPE base of global layers and of the decoder", at_least(1), later=True, when=_MODERN_ONLY
    )
    local_rope_theta: float = parameter(
        10_000.0, "RoPE base of local layers", at_least(1), later=True, when=_MODERN_ONLY
    )
    decoder_num_hidden_layers: int = parameter(2, "l_de: decoder layers", COUNT)
    decoder_hidden_size: int | None = parameter(None, "d_de: decoder width", COUNT, none="hidden_size / 2")
    decoder_num_attention_heads: int | None = parameter(None, "decoder heads", COUNT, none="the encoder's head size")
    visible_head: str = parameter(
        "shared", "3ML_cross: head for replaced and unchanged tokens", one_of(("shared", "separate"))
    )
    full_layers: int | None = parameter(
        None,
        "first encoder layers, which all tokens pass; NarrowBERT, token dropping",
        at_least(0),
        none="a sixth of num_hidden_layers, at least 1; token dropping: half of it less 1",
        later=True,
        when=_NARROW,
    )
    kept_share: float = parameter(
        0.5,
        "share of the tokens of a sequence that the middle layers keep",
        in_range("more than 0 and at most 1", lambda value: 0 < value <= 1),
        later=True,
        when=_DROPPING,
    )
    hidden_dropout_prob: float = parameter(0.1, "dropout on hidden states", SHARE)
    attention_probs_dropout_prob: float = parameter(0.1, "dropout on attention weights", SHARE)
    initializer_range: float = parameter(0.02, "standard deviation of the normal initialisation", POSITIVE)
    initialization: str = parameter(
        "bert", "N(0, initializer_range), or by fan-in with sinusoidal positions", one_of(("bert", "scaled"))
    )
