"""Configurations of the models: an ordinary encoder configuration inside, the decoder's numbers beside it."""

from __future__ import annotations

from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from threeml_core.foundation.errors import ParameterError
from threeml_core.parameters.architectures import narrowbert_full_layers, token_dropping_full_layers
from threeml_core.parameters.model import MODERN


class ThreeMLConfig(PreTrainedConfig):
    """A Hugging Face encoder configuration plus the decoder of section 2.2, whose layers are of the encoder's kind.

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
            if (kind := self.encoder.get("model_type")) not in CONFIG_MAPPING:
                raise ParameterError(f"encoder {kind}: transformers has no such model; take roberta or modernbert")
            self.encoder = AutoConfig.for_model(**self.encoder)
        encoder = self.encoder
        if self.decoder_hidden_size is None:
            self.decoder_hidden_size = encoder.hidden_size // 2
        if self.decoder_num_attention_heads is None:
            head_size = encoder.hidden_size // encoder.num_attention_heads
            self.decoder_num_attention_heads = max(1, self.decoder_hidden_size // head_size)
        if self.decoder_norm_first is None:
            self.decoder_norm_first = self.is_modern or "prelayernorm" in encoder.model_type
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
    def is_modern(self) -> bool:
        """ModernBERT as encoder, and so RoPE, gated FFNs and no biases (but the vocabulary's) in decoder and head."""
        return bool(self.encoder.model_type == MODERN)

    @property
    def rope_theta(self) -> float | None:
        """Base of the decoder's RoPE, that of the encoder's global layers; None: it has a position table."""
        return self.encoder.rope_parameters["full_attention"]["rope_theta"] if self.is_modern else None

    @property
    def layer_norm_eps(self) -> float:
        """Of every LayerNorm."""
        return self.encoder.norm_eps if self.is_modern else self.encoder.layer_norm_eps

    @property
    def hidden_dropout_prob(self) -> float:
        """Dropout on hidden states; ModernBERT has it behind the embedding and within the FFN."""
        return self.encoder.mlp_dropout if self.is_modern else self.encoder.hidden_dropout_prob

    @property
    def attention_probs_dropout_prob(self) -> float:
        """Dropout on attention weights; ModernBERT has it on what comes out of the attention too."""
        return self.encoder.attention_dropout if self.is_modern else self.encoder.attention_probs_dropout_prob

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


class NarrowBertConfig(ThreeMLConfig):
    """NarrowBERT; the decoder's numbers are not used.

    Attributes:
        full_layers: layers that all tokens pass; None: a sixth of the encoder's, at least 1.
    """

    full_layers: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill what is left open."""
        super().__post_init__(**kwargs)
        if self.full_layers is None:
            self.full_layers = narrowbert_full_layers(self.encoder.num_hidden_layers)


class SparseQueriesConfig(NarrowBertConfig):
    """NarrowBERT SparseQueries."""

    model_type = "threeml_sparse_queries"


class ContextFirstConfig(NarrowBertConfig):
    """NarrowBERT ContextFirst."""

    model_type = "threeml_context_first"


class TokenDroppingConfig(VanillaConfig):
    """Token dropping; the decoder's numbers are not used.

    Attributes:
        full_layers: first layers, which all tokens pass; None: half of the encoder's less one, at least 0.
        kept_share: share of the tokens that the middle layers keep.
    """

    model_type = "threeml_token_dropping"

    full_layers: int | None = None
    kept_share: float = 0.5

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill what is left open."""
        super().__post_init__(**kwargs)
        if self.full_layers is None:
            self.full_layers = token_dropping_full_layers(self.encoder.num_hidden_layers)
