"""Fresh models by the study's parameters; which there are stands in `parameters/architectures.py`.

Importing this registers the models with Hugging Face's Auto classes.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedConfig

from threeml_core.config import StudyConfig, unused_parameters
from threeml_core.foundation.checkpoints import find_checkpoint, refuse_foreign_files
from threeml_core.foundation.errors import CheckpointError, ParameterError
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
    if config.init_encoder is not None:
        return _start_of(config, config.init_encoder)
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
            **_dropout_of(config),
        )
    return AutoConfig.for_model(
        _ROBERTA_TYPES[config.layer_norm],
        **shared,
        max_position_embeddings=rows + max(0, ids["pad_token_id"] - 1),
        **_dropout_of(config),
        layer_norm_eps=1e-5,
        type_vocab_size=1,
    )


def _dropout_of(config: StudyConfig) -> dict[str, float]:
    """The study's dropout, as the encoder's kind calls it."""
    hidden, attention = config.hidden_dropout_prob, config.attention_probs_dropout_prob
    if config.encoder == MODERN:
        return {"embedding_dropout": hidden, "mlp_dropout": hidden, "attention_dropout": attention}
    return {"hidden_dropout_prob": hidden, "attention_probs_dropout_prob": attention}


def _start_of(config: StudyConfig, source: str) -> PreTrainedConfig:
    """The encoder of a checkpoint as it is, but in float32, with the dropout and `initializer_range` of the study."""
    folder, _ = find_checkpoint(source, ("config.json",))
    refuse_foreign_files(folder)
    try:
        encoder = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # transformers' errors have no common base
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(f"checkpoint {source}: its config.json cannot be read ({reason})") from None
    for name, value in _dropout_of(config).items():
        setattr(encoder, name, value)
    encoder.initializer_range, encoder.dtype = config.initializer_range, torch.float32
    return encoder


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
    With `init_encoder` the encoder is of that class, size and vocabulary; `training/start.py` brings its weights.
    3ML_cross has a pre-LN decoder then, whatever the encoder is.

    Raises:
        CheckpointError: the configuration of `init_encoder` cannot be read.
        ParameterError: no memory for so large a model.
    """
    ids = {"pad_token_id": pad_token_id, "bos_token_id": bos_token_id, "eos_token_id": eos_token_id}
    encoder = _encoder_of(config, vocab_size=vocab_size, **ids)
    entry, model_type = ARCHITECTURES[config.architecture], model_class(config.architecture)
    own = {"full_layers", "kept_share"} - unused_parameters(config.parameters())
    whole = model_type.config_class(
        encoder=encoder,
        decoder_num_hidden_layers=config.decoder_num_hidden_layers,
        decoder_hidden_size=config.decoder_hidden_size,
        decoder_num_attention_heads=config.decoder_num_attention_heads,
        decoder_norm_first=config.layer_norm == "pre" or config.init_encoder is not None and entry.pre_layer_norm_only,
        visible_head=config.visible_head,
        mask_token_id=mask_token_id,
        **{name: getattr(config, name) for name in sorted(own)},
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
