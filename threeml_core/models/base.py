"""What the models share: Hugging Face's encoder, the tied head, the loss, initialisation; and what both 3ML models do.

Axes: batch, n (sequence), n_en (kept tokens), n_de ([MASK]s), d_en, d_de, vocab. A model has two ways in:

* `forward(input_ids, attention_mask, labels)`, as every Hugging Face masked language model: any number of [MASK]s per
  row, logits at every position. The 3ML encoder runs over all positions with the [MASK]s hidden as attention keys,
  which gives the kept tokens exactly the states they get when the [MASK]s are dropped. Padding changes nothing.
* `forward(corrupted=CorruptedBatch)`, the fast path through the same layers: the kept tokens are gathered into a
  shorter sequence, and the head runs at the corrupted positions only.

The encoder runs by its own `forward`, so hooks, adapters and gradient checkpointing work in both. NarrowBERT and
token dropping run its layers instead, see `sublayers.py`.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoModel, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils import can_return_tuple

from threeml_core.foundation.errors import ParameterError
from threeml_core.masking import IGNORE_INDEX, CorruptedBatch
from threeml_core.models.attention import BYTE_DROPOUT, masks_by_position, never_empty
from threeml_core.models.configuration import ThreeMLConfig
from threeml_core.models.decoder import Attention, DecoderLayer
from threeml_core.models.dropout import replace_dropout
from threeml_core.models.head import PredictionTransform, cross_entropy_of, summed_cross_entropy
from threeml_core.models.tally import TokenTally

States = dict[str, Any]
"""What `ThreeMLOutput` calls it -> a state per layer."""


@dataclasses.dataclass
class ThreeMLOutput(MaskedLMOutput):
    """What the models give: Hugging Face's output of a masked language model, and the decoder's states.

    Attributes:
        hidden_states: the encoder's, (batch, n, d_en): its embedding's output, then one per layer, the last behind
            the final LayerNorm. 3ML's at a [MASK] mean nothing, as no other token sees them and the decoder neither.
        decoder_hidden_states: 3ML only, (batch, n, d_de): the decoder's input, then one per layer, the last behind
            the final LayerNorm. 3ML_cross's mean something at [MASK]s only, where its decoder works.
    """

    decoder_hidden_states: tuple[Tensor, ...] | None = None


class MaskedLanguageModel(PreTrainedModel):
    """An encoder, and a head whose output matrix is the word embedding."""

    config: ThreeMLConfig
    # The name must not be a prefix of a sibling's: Hugging Face strips it from checkpoint keys when loading.
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True

    def __init__(self, config: ThreeMLConfig, head_width: int) -> None:
        super().__init__(config)
        # a copy of the configuration: the one that is saved, and that others build from, knows no BYTE_DROPOUT
        encoder_class: Any = MODEL_MAPPING[type(config.encoder)]
        if "position_ids" not in inspect.signature(encoder_class.forward).parameters:
            raise ParameterError(
                f"encoder {config.encoder.model_type}: it takes no position_ids, so gathered tokens would lose their "
                "places; take one that does, such as roberta or modernbert"
            )
        has_pooler = "add_pooling_layer" in inspect.signature(encoder_class).parameters
        pooling = {"add_pooling_layer": False} if has_pooler else {}
        self.encoder = AutoModel.from_config(copy.deepcopy(config.encoder), **pooling)
        if self.encoder.config._attn_implementation == "sdpa":
            self.encoder.set_attn_implementation(BYTE_DROPOUT)
        replace_dropout(self.encoder)
        tables = (m for name, m in self.encoder.named_modules() if name.endswith("position_embeddings"))
        padding = getattr(next(tables, None), "padding_idx", None)
        self.first_position = 0 if padding is None else padding + 1  # RoBERTa's follows the padding's
        bias = not config.is_modern
        self.head = PredictionTransform(head_width, config.hidden_size, config.layer_norm_eps, bias)
        self.head_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.tally: TokenTally | None = None

    def _init_weights(self, module: nn.Module) -> None:
        """N(0, 0.02) for every matrix, zero for every bias; the encoder's are drawn as its own class says."""
        std = self.config.initializer_range
        if isinstance(module, Attention):
            init.normal_(module.in_proj_weight, mean=0.0, std=std)
            if module.in_proj_bias is not None:
                init.zeros_(module.in_proj_bias)
        elif isinstance(module, TokenTally):
            init.zeros_(module.sums)
        elif isinstance(module, MaskedLanguageModel):
            init.zeros_(module.head_bias)
            if isinstance(module, ThreeMLModel):
                init.normal_(module.mask_embedding, mean=0.0, std=std)
        else:
            super()._init_weights(module)

    def get_output_embeddings(self) -> None:
        """None: the output matrix is the word embedding itself, used functionally, so there is nothing to tie."""
        return None

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Module:
        """The word embedding as Hugging Face resizes it, and the head's bias, the other thing with a row per token.

        A new token's bias is zero, or with `mean_resizing` the mean of the others, as its embedding is.
        """
        embedding = super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        old, size = self.head_bias, len(self.word_embedding)
        if size != len(old):
            new = old.data.mean() if mean_resizing else old.data.new_zeros(())
            bias = torch.cat([old.data[:size], new.expand(max(0, size - len(old)))])
            self.head_bias = nn.Parameter(bias, requires_grad=old.requires_grad)
            self.encoder.config.vocab_size = size
        return embedding

    def position_ids(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """(batch or 1, n) position ids of whole sequences (batch, n), as the encoder counts; padding is skipped."""
        if attention_mask is None:
            return torch.arange(input_ids.shape[1], device=input_ids.device)[None] + self.first_position
        real = attention_mask.long()
        return (real.cumsum(1) * real - 1 + self.first_position).clamp(min=0)

    def kept_tokens(self, batch: CorruptedBatch) -> tuple[Tensor, Tensor]:
        """What the encoder sees: token ids (batch, n_en), and their position ids (batch or 1, n_en). Here: all n."""
        return batch.input_ids, self.position_ids(batch.input_ids)

    def encoder_states(self, batch: CorruptedBatch) -> Tensor:
        """(batch, n_en, d_en): what the encoder makes of `kept_tokens`."""
        ids, positions = self.kept_tokens(batch)
        return self.encode(ids, positions, batch.input_ids.shape[1]).last_hidden_state

    def encode(self, ids: Tensor, positions: Tensor, n: int, key_mask: Tensor | None = None, **others: Any) -> Any:
        """The encoder's own `forward` for tokens (batch, k) at any position ids (batch or 1, k) of sequences of n.

        `key_mask` (batch, k) tells which of them may be attended to; None: all. See `masks_by_position`.
        """
        masks: Any = key_mask
        if self.config.is_modern:
            config, kind = self.encoder.config, self.encoder.config._attn_implementation
            if kind not in (BYTE_DROPOUT, "sdpa", "eager"):
                raise ValueError(f"attn_implementation={kind!r} has windows by index alone: take sdpa or eager")
            additive = self.word_embedding.dtype if kind == "eager" else None
            masks = masks_by_position(positions, key_mask, config.sliding_window, n, additive)
        return self.encoder(ids, attention_mask=masks, position_ids=positions, **others)

    def mask_states(self, batch: CorruptedBatch, final_norm: bool = True) -> list[Tensor]:
        """States of the [MASK]s as they come in (layer 0) and after each layer that they pass, as `batch.mask_idx`.

        Source: section 4.2, Figure 4. They are (batch, n_de, d_en) of the vanilla model's encoder and (batch, n_de,
        d_de) of the 3ML models' decoder, as their encoder never sees a [MASK]. Pre-LN layers leave their sum
        unnormalised: `final_norm` takes the last behind the final LayerNorm, as the head does; the paper does not say.
        """
        raise NotImplementedError

    def at_corrupted(self, batch: CorruptedBatch) -> Tensor:
        """(batch, n_corrupted, d_en) behind the head, for `logits`; in the order masked, replaced, unchanged."""
        raise NotImplementedError

    def at_all(self, input_ids: Tensor, attention_mask: Tensor | None, keep_states: bool) -> tuple[Tensor, States]:
        """(batch, n, d_en) behind the head, for `logits`; and, if they are kept, the states of each layer."""
        raise NotImplementedError

    @property
    def word_embedding(self) -> Tensor:
        """(vocab, d_en): the encoder's, and the head's output matrix."""
        return cast(nn.Embedding, self.get_input_embeddings()).weight

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., d_en) behind the head -> (..., vocab)."""
        return F.linear(hidden, self.word_embedding, self.head_bias)

    def end_of_step(self) -> None:
        """What follows from a step, whose sums over all processes `tally` holds; here nothing."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        corrupted: CorruptedBatch | None = None,
        num_items_in_batch: int | Tensor | None = None,
        return_logits: bool = True,
        output_hidden_states: bool | None = None,
        token_type_ids: Tensor | None = None,
        **others: Any,
    ) -> ThreeMLOutput:
        """Predict corrupted tokens: all of them, as section 2.1 and Appendix C say, not as Equation 1's delta does.

        Args:
            input_ids: (batch, n), [MASK]s in place.
            attention_mask: (batch, n), 1 for real tokens, 0 for padding.
            labels: (batch, n), -100 where nothing is predicted; beside `corrupted` they stand in for its own.
            corrupted: a batch with equal counts in every row, instead of the two first.
            num_items_in_batch: what the summed cross-entropies are divided by, the corrupted tokens of a whole step;
                None: this batch's.
            return_logits: False: the loss alone, which takes less time and memory.
            output_hidden_states: the states of each layer too; None: as the configuration says. Not of a
                `CorruptedBatch`, whose sequences have another length in each part of the model: see `mask_states`.
            token_type_ids: zeros, which some tokenizers give; there is one segment.
            others: `return_dict=False`: a tuple instead. Anything else is refused, unless it is None or False.

        Returns:
            `loss` in nats (None without labels), `logits` (batch, n, vocab) or (batch, n_corrupted, vocab).

        Raises:
            TypeError: an argument that means nothing here.
            ValueError: arguments that do not go together.
        """
        if unknown := [name for name, value in others.items() if value is not None and value is not False]:
            raise TypeError(
                f"{type(self).__name__} has no argument {', '.join(unknown)}: expected input_ids, attention_mask, "
                "labels, output_hidden_states, return_dict, or corrupted"
            )
        if token_type_ids is not None and token_type_ids.any():
            raise ValueError("token_type_ids: expected zeros, as there is one segment; leave them out")
        keep_states = bool(self.config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        states: States = {}
        if corrupted is not None:
            if input_ids is not None or attention_mask is not None:
                raise ValueError("expected input_ids and attention_mask, or a CorruptedBatch, not both")
            if keep_states:
                raise ValueError("a CorruptedBatch gives no hidden_states: take mask_states(batch), or input_ids")
            hidden = self.at_corrupted(corrupted)
            labels = corrupted.targets if labels is None else labels.gather(1, corrupted.corrupted_idx)
        elif input_ids is not None:
            hidden, states = self.at_all(input_ids, attention_mask, keep_states)
        else:
            raise ValueError("expected input_ids or a CorruptedBatch")
        logits, tally = self.logits(hidden) if return_logits else None, self.tally if self.training else None
        if labels is None:
            return ThreeMLOutput(logits=logits, **states)
        if logits is None:
            total = summed_cross_entropy(hidden, self.word_embedding, self.head_bias, labels, tally)
        else:
            total = cross_entropy_of(logits.flatten(0, 1), labels.flatten(), tally)
        count = (labels != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch
        return ThreeMLOutput(loss=total / count, logits=logits, **states)


class ThreeMLModel(MaskedLanguageModel):
    """What 3ML_self and 3ML_cross share: the encoder sees the kept tokens alone, and a small decoder follows."""

    cross_attention: bool  # do the decoder's layers attend to the encoder's output?

    def __init__(self, config: ThreeMLConfig) -> None:
        encoder, d_en, d_de = config.encoder, config.hidden_size, cast(int, config.decoder_hidden_size)
        eps, bias = config.layer_norm_eps, not config.is_modern
        super().__init__(config, head_width=d_de)
        self.projection = nn.Linear(d_en, d_de, bias=bias) if d_en != d_de else nn.Identity()
        self.mask_embedding = nn.Parameter(torch.zeros(d_de))
        self.decoder_positions = None  # with RoPE
        if config.rope_theta is None:
            padding = self.first_position - 1 if self.first_position else None
            self.decoder_positions = nn.Embedding(encoder.max_position_embeddings, d_de, padding_idx=padding)
        layers = range(config.decoder_num_hidden_layers)
        self.decoder_layers = nn.ModuleList(DecoderLayer(config, self.cross_attention) for _ in layers)
        self.decoder_norm = nn.LayerNorm(d_de, eps, bias=bias) if config.decoder_norm_first else nn.Identity()

    def kept_tokens(self, batch: CorruptedBatch) -> tuple[Tensor, Tensor]:
        """All but the [MASK]s: ids and position ids (batch, n_en); a token keeps the position it had."""
        return batch.input_ids.gather(1, batch.keep_idx), batch.keep_idx + self.first_position

    def decoder_input(self, batch: CorruptedBatch) -> Tensor:
        """What the decoder's first layer gets."""
        raise NotImplementedError

    def with_positions(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """(..., d_de) and the decoder's positions (batch or 1, n) in one; RoPE brings them in later, in attention."""
        return hidden if self.decoder_positions is None else hidden + self.decoder_positions(positions)

    def decode(
        self,
        hidden: Tensor,
        memory: Tensor | None = None,
        at: Tensor | None = None,
        final_norm: bool = True,
        **others: Tensor,
    ) -> list[Tensor]:
        """The decoder's input and the states after each `DecoderLayer`; the last at positions `at`, and normalised."""
        states = [hidden]
        for layer in self.decoder_layers:
            last = layer is self.decoder_layers[-1]
            states.append(layer(states[-1], memory, at if last else None, **others))
        return [*states[:-1], self.decoder_norm(states[-1])] if final_norm else states

    def at_all(self, input_ids: Tensor, attention_mask: Tensor | None, keep_states: bool) -> tuple[Tensor, States]:
        """See `MaskedLanguageModel.at_all`. The encoder runs over all positions, but no [MASK] can be seen in it."""
        if self.config.mask_token_id is None:
            raise ValueError(
                "the configuration has no mask_token_id, so [MASK] tokens cannot be found in input_ids: "
                "set config.mask_token_id, or pass a CorruptedBatch"
            )
        masked = input_ids == self.config.mask_token_id
        kept = ~masked
        if attention_mask is not None:
            masked, kept = masked & attention_mask.bool(), kept & attention_mask.bool()
        positions = self.position_ids(input_ids, attention_mask)
        n, seen = input_ids.shape[1], never_empty(kept)
        encoded = self.encode(input_ids, positions, n, seen, output_hidden_states=keep_states)
        hidden, states = self.decode_all(encoded.last_hidden_state, positions, masked, kept)
        if not keep_states:
            return hidden, {}
        return hidden, {"hidden_states": encoded.hidden_states, "decoder_hidden_states": tuple(states)}

    def decode_all(
        self, encoded: Tensor, positions: Tensor, masked: Tensor, kept: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """(batch, n, d_en) behind the head at all positions, and the states as of `decode`.

        Of `encoded`, (batch, n, d_en), only what is `kept` counts, neither `masked` nor padding: (batch, n) bool.
        """
        raise NotImplementedError
