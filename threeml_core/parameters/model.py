"""Parameters of the model."""

from __future__ import annotations

import dataclasses

from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.parameters.parameter import COUNT, POSITIVE, SHARE, one_of, parameter


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelParameters:
    """Model."""

    STAGES = "pretrain benchmark plan"

    architecture: str = parameter("self", "vanilla, 3ML_self or 3ML_cross", one_of(ARCHITECTURES))
    layer_norm: str = parameter("pre", "where LayerNorm stands", one_of(("pre", "post")))
    num_hidden_layers: int = parameter(24, "l_en: encoder layers", COUNT)
    hidden_size: int = parameter(1024, "d_en: encoder width", COUNT)
    num_attention_heads: int = parameter(16, "encoder attention heads", COUNT)
    intermediate_size: int | None = parameter(None, "encoder FFN width", COUNT, none="4 x hidden_size")
    max_position_embeddings: int | None = parameter(None, "rows of both position tables", none="max(n, max_length) + 2")
    decoder_num_hidden_layers: int = parameter(2, "l_de: decoder layers", COUNT)
    decoder_hidden_size: int | None = parameter(None, "d_de: decoder width", COUNT, none="hidden_size / 2")
    decoder_num_attention_heads: int | None = parameter(None, "decoder heads", COUNT, none="the encoder's head size")
    visible_head: str = parameter(
        "shared", "3ML_cross: head for replaced and unchanged tokens", one_of(("shared", "separate"))
    )
    hidden_dropout_prob: float = parameter(0.1, "dropout on hidden states", SHARE)
    attention_probs_dropout_prob: float = parameter(0.1, "dropout on attention weights", SHARE)
    initializer_range: float = parameter(0.02, "standard deviation of the normal initialisation", POSITIVE)
    initialization: str = parameter(
        "bert", "N(0, initializer_range), or by fan-in with sinusoidal positions", one_of(("bert", "scaled"))
    )
