"""Fresh models by the study's parameters; which there are stands in `parameters/architectures.py`.

Importing this registers the models with Hugging Face's Auto classes.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM

from threeml_core.config import StudyConfig
from threeml_core.foundation.errors import ParameterError
from threeml_core.models.base import MaskedLanguageModel, ThreeMLModel
from threeml_core.models.decoder import Attention
from threeml_core.parameters.architectures import ARCHITECTURES


def model_class(architecture: str) -> Any:
    """The model of an architecture, made known to Hugging Face's Auto classes."""
    model = ARCHITECTURES[architecture].load("model")
    AutoConfig.register(model.config_class.model_type, model.config_class, exist_ok=True)
    AutoModelForMaskedLM.register(model.config_class, model, exist_ok=True)
    return model


for _architecture in ARCHITECTURES:
    model_class(_architecture)

_ENCODER_TYPES = {"post": "roberta", "pre": "roberta-prelayernorm"}


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
    encoder = AutoConfig.for_model(
        _ENCODER_TYPES[config.layer_norm],
        vocab_size=vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=cast(int, config.max_position_embeddings) + max(0, pad_token_id - 1),
        hidden_dropout_prob=config.hidden_dropout_prob,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob,
        initializer_range=config.initializer_range,
        layer_norm_eps=1e-5,
        type_vocab_size=1,
        pad_token_id=pad_token_id,
        bos_token_id=bos_token_id,
        eos_token_id=eos_token_id,
    )
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
    """Start every matrix at N(0, 1/fan_in) and both position tables at sinusoids; embeddings stay N(0, 0.02).

    Not the paper's: BERT's fixed 0.02 is the fan-in scale of a width in the thousands. At a width of 64 it makes
    what attention brings to a [MASK] a hundredth of the residual stream, and a small run never leaves the unigram
    plateau. Sinusoids let one head find "the token before" everywhere at once. The encoder's table keeps the scale of
    the word embeddings that it is added to; the decoder's has amplitude 1, as in MAE: its states left a LayerNorm.
    """
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(std=module.in_features**-0.5)
            elif isinstance(module, Attention):
                module.in_proj_weight.normal_(std=module.in_proj_weight.shape[1] ** -0.5)
        encoder_table = model.encoder.embeddings.position_embeddings
        _sinusoids_(encoder_table, amplitude=2**0.5 * model.config.initializer_range)
        if isinstance(model, ThreeMLModel):
            _sinusoids_(model.decoder_positions, amplitude=1.0)


def _sinusoids_(table: nn.Embedding, amplitude: float) -> None:
    """Vaswani et al.'s positions, with wavelengths from 2 pi to 2,000 pi; the padding row stays zero."""
    n, d = table.weight.shape
    angles = torch.arange(n)[:, None] * 1000.0 ** (-torch.arange(0, d, 2) / d)
    table.weight[:, 0::2] = amplitude * angles.sin()
    table.weight[:, 1::2] = amplitude * angles[:, : d // 2].cos()
    if table.padding_idx is not None:
        table.weight[table.padding_idx] = 0
