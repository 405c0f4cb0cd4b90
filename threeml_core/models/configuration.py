"""Configurations of the three models: an ordinary encoder configuration inside, the decoder's numbers beside it."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from threeml_core.foundation.errors import ParameterError


class ThreeMLConfig(PreTrainedConfig):
    """A Hugging Face encoder configuration plus the decoder of section 2.2.

    Attributes:
        encoder: configuration of any Hugging Face encoder that takes `position_ids`.
        decoder_num_hidden_layers: l_de.
        decoder_hidden_size: d_de; None: half of the encoder's.
        decoder_num_attention_heads: None: as many as keep the encoder's head size.
        decoder_norm_first: pre-LN (with a final LayerNorm) or post-LN; None: as the encoder.
        visible_head: 3ML_cross only: `shared` (section 2.2) or `separate` (Appendix C).
        mask_token_id: finds the [MASK]s in `input_ids`; the fast path does not need it.
    """

    model_type = "threeml"
    sub_configs = {"encoder": AutoConfig}

    encoder: Any = None
    decoder_num_hidden_layers: int = 2
    decoder_hidden_size: int | None = None
    decoder_num_attention_heads: int | None = None
    decoder_norm_first: bool | None = None
    visible_head: str = "shared"
    mask_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Build the inner configuration and fill what follows from it."""
        if self.encoder is None:
            self.encoder = {"model_type": "roberta-prelayernorm"}
        if isinstance(self.encoder, dict):
            self.encoder = AutoConfig.for_model(**self.encoder)
        encoder = self.encoder
        if self.decoder_hidden_size is None:
            self.decoder_hidden_size = encoder.hidden_size // 2
        if self.decoder_num_attention_heads is None:
            head_size = encoder.hidden_size // encoder.num_attention_heads
            self.decoder_num_attention_heads = max(1, self.decoder_hidden_size // head_size)
        if self.decoder_norm_first is None:
            self.decoder_norm_first = "prelayernorm" in encoder.model_type
        for width, heads, whose in (
            (encoder.hidden_size, encoder.num_attention_heads, "encoder"),
            (self.decoder_hidden_size, self.decoder_num_attention_heads, "decoder"),
        ):
            if width % heads:
                raise ParameterError(f"{whose}: {heads} attention heads do not divide the width {width}")
        kwargs.setdefault("tie_word_embeddings", False)  # the tie is functional: see base.py
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            kwargs.setdefault(name, getattr(encoder, name, None))
        super().__post_init__(**kwargs)

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary, the encoder's."""
        return self.encoder.vocab_size

    @vocab_size.setter
    def vocab_size(self, size: int) -> None:
        self.encoder.vocab_size = size

    @property
    def hidden_size(self) -> int:
        """d_en."""
        return self.encoder.hidden_size

    @property
    def initializer_range(self) -> float:
        """Standard deviation of the normal initialisation, the encoder's."""
        return self.encoder.initializer_range


class VanillaConfig(ThreeMLConfig):
    """The vanilla masked language model; the decoder's numbers are not used."""

    model_type = "threeml_vanilla"


class ThreeMLSelfConfig(ThreeMLConfig):
    """3ML_self."""

    model_type = "threeml_self"


class ThreeMLCrossConfig(ThreeMLConfig):
    """3ML_cross."""

    model_type = "threeml_cross"
