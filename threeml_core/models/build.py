"""Fresh models by the study's parameters; which there are stands in `parameters/architectures.py`.

Importing this registers the models with Hugging Face's Auto classes.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedConfig

from threeml_core.config import StudyConfig
from threeml_core.foundation.errors import ParameterError
from threeml_core.models.base import MaskedLanguageModel, ThreeMLModel
from threeml_core.models.decoder import Attention
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.parameters.model import MODERN


def model_class(architecture: str) -> Any:
    """The model of an architecture, made known to Hugging Face's Auto classes."""
    model = ARCHITECTURES[architecture].load("model")
    AutoConfig.register(model.config_class.model_type, model.config_class, exist_ok=True)
    AutoModelForMaskedLM.register(model.config_class, model, exist_ok=True)
    return model


for _architecture in ARCHITECTURES:
    model_class(_architecture)

_ROBERTA_TYPES = {"post": "roberta", "pre": "roberta-prelayernorm"}


def _encoder_of(config: StudyConfig, **ids: Any) -> PreTrainedConfig:
    """The encoder that the study's parameters describe, as transformers configures it; `ids` of the vocabulary."""
    same = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "initializer_range")
    shared = {**{name: getattr(config, name) for name in same}, **ids}
    rows = cast(int, config.max_position_embeddings)
    if config.encoder == MODERN:
        own = ("local_attention", "global_attn_every_n_layers", "global_rope_theta", "local_rope_theta")
        return AutoConfig.for_model(
            MODERN,
            **shared,
            **{name: getattr(config, name) for name in own},
            cls_token_id=ids["bos_token_id"],
            sep_token_id=ids["eos_token_id"],
            max_position_embeddings=rows - 2,
            embedding_dropout=config.hidden_dropout_prob,
            mlp_dropout=config.hidden_dropout_prob,
            attention_dropout=config.attention_probs_dropout_prob,
        )
    return AutoConfig.for_model(
        _ROBERTA_TYPES[config.layer_norm],
        **shared,
        max_position_embeddings=rows + max(0, ids["pad_token_id"] - 1),
        hidden_dropout_prob=config.hidden_dropout_prob,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob,
        layer_norm_eps=1e-5,
        type_vocab_size=1,
    )


def build_model(
    config: StudyConfig,
    vocab_size: int,
    pad_token_id: int = 1,
    bos_token_id: int = 0,
    eos_token_id: int = 2,
    mask_token_id: int | None = None,
) -> MaskedLanguageModel:
    """A freshly initialised model as the study's parameters describe it, for a tokenizer's ids; seed torch before.

    RoBERTa's positions start one above the padding's id. The ordinary `forward` of the 3ML models needs the [MASK]'s.

    Raises:
        ParameterError: no memory for so large a model.
    """
    ids = {"pad_token_id": pad_token_id, "bos_token_id": bos_token_id, "eos_token_id": eos_token_id}
    encoder = _encoder_of(config, vocab_size=vocab_size, **ids)
    model_type = model_class(config.architecture)
    whole = model_type.config_class(
        encoder=encoder,
        decoder_num_hidden_layers=config.decoder_num_hidden_layers,
        decoder_hidden_size=config.decoder_hidden_size,
        decoder_num_attention_heads=config.decoder_num_attention_heads,
        decoder_norm_first=config.layer_norm == "pre",
        visible_head=config.visible_head,
        mask_token_id=mask_token_id,
    )
    try:
        model = model_type(whole)
    except RuntimeError as error:
        if not any(sign in str(error) for sign in ("can't allocate memory", "overflow")):
            raise
        raise ParameterError(
            f"there is no memory for a model of hidden_size={config.hidden_size:,}, "
            f"intermediate_size={config.intermediate_size:,} and {vocab_size:,} tokens: take a smaller one"
        ) from None
    if config.initialization == "scaled":
        initialize_scaled(model)
    return model


def initialize_scaled(model: MaskedLanguageModel) -> None:
    """Start every matrix at N(0, 1/fan_in) and position tables at sinusoids; embeddings stay as they are, N(0, 0.02).

    Not the paper's: BERT's fixed 0.02 is the fan-in scale of a width in the thousands. At a width of 64 it makes
    what attention brings to a [MASK] a hundredth of the residual stream, and a small run never leaves the unigram
    plateau. Sinusoids let one head find "the token before" everywhere at once. The encoder's table keeps the scale of
    the word embeddings that it is added to; the decoder's has amplitude 1, as in MAE: its states left a LayerNorm.
    ModernBERT has no table, and norms its word embeddings.
    """
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(std=module.in_features**-0.5)
            elif isinstance(module, Attention):
                module.in_proj_weight.normal_(std=module.in_proj_weight.shape[1] ** -0.5)
        if not model.config.is_modern:
            encoder_table = model.encoder.embeddings.position_embeddings
            _sinusoids_(encoder_table, amplitude=2**0.5 * model.config.initializer_range)
        if isinstance(model, ThreeMLModel) and model.decoder_positions is not None:
            _sinusoids_(model.decoder_positions, amplitude=1.0)


def _sinusoids_(table: nn.Embedding, amplitude: float) -> None:
    """Vaswani et al.'s positions, with wavelengths from 2 pi to 2,000 pi; the padding row stays zero."""
    n, d = table.weight.shape
    angles = torch.arange(n)[:, None] * 1000.0 ** (-torch.arange(0, d, 2) / d)
    table.weight[:, 0::2] = amplitude * angles.sin()
    table.weight[:, 1::2] = amplitude * angles[:, : d // 2].cos()
    if table.padding_idx is not None:
        table.weight[table.padding_idx] = 0
