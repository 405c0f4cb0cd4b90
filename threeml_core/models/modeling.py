"""Vanilla, 3ML_self and 3ML_cross on an untouched Hugging Face encoder. Modules only: no data, no training.

Source: section 2.2, Figure 2 and Appendix A. Axes: batch, n (block), n_en (kept tokens), n_de ([MASK]s),
d_en, d_de, vocab.

Every model has two ways in:

* `forward(input_ids, attention_mask, labels)`, as every Hugging Face masked language model: any number of [MASK]s a
  row, logits at every position. The 3ML encoder runs over all positions with the [MASK]s hidden as attention keys,
  which gives the kept tokens exactly the states they get when the [MASK]s are dropped (tested). Padding changes
  nothing, whatever the row is. `output_hidden_states` and `return_dict` are as elsewhere (see `ThreeMLOutput`).
* `forward(corrupted=CorruptedBatch)`, the fast path: the kept tokens are gathered into a shorter sequence, and the
  head runs at the corrupted positions only, in the order masked, replaced, unchanged.

The encoder's blocks are Hugging Face's, so `model.encoder` is an ordinary RoBERTa. The decoder's are stock torch
layers, as the paper describes them ("Transformer encoder layers", "decoder layers without causal masking").
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils import can_return_tuple

from threeml_core.config import StudyConfig
from threeml_core.foundation.errors import ParameterError
from threeml_core.masking import IGNORE_INDEX, CorruptedBatch
from threeml_core.models.blocks import cross_block, encode, runs_through_blocks, self_block, take
from threeml_core.models.configuration import ThreeMLConfig, ThreeMLCrossConfig, ThreeMLSelfConfig, VanillaConfig
from threeml_core.models.head import PredictionTransform, summed_cross_entropy


@dataclasses.dataclass
class ThreeMLOutput(MaskedLMOutput):
    """What the models give: Hugging Face's output of a masked language model, and the decoder's states.

    Attributes:
        hidden_states: the encoder's, (batch, n, d_en): its embedding's output, then one for each block, the last behind
            the final LayerNorm. 3ML's at a [MASK] mean nothing, as no other token sees them and the decoder neither.
        decoder_hidden_states: 3ML only, (batch, n, d_de): the decoder's input, then one for each block, the last behind
            the final LayerNorm. 3ML_cross's mean something at [MASK]s only, where its decoder works.
    """

    decoder_hidden_states: tuple[Tensor, ...] | None = None


@dataclasses.dataclass
class _Everywhere:
    """What a model makes of all positions: `transformed` (batch, n, d_en) is behind the head's first layer."""

    transformed: Tensor
    encoder_states: tuple[Tensor, ...] | None = None
    decoder_states: tuple[Tensor, ...] | None = None


class _Base(PreTrainedModel):
    """What the three models share: the encoder, the tied head, the loss, initialisation."""

    config: ThreeMLConfig
    # The name must not be a prefix of a sibling's: Hugging Face strips it from checkpoint keys when loading.
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True

    def __init__(self, config: ThreeMLConfig) -> None:
        super().__init__(config)
        encoder = config.encoder
        self.encoder = AutoModel.from_config(encoder, add_pooling_layer=False)
        self.head = PredictionTransform(self._head_width(), encoder.hidden_size, encoder.layer_norm_eps)
        self.head_bias = nn.Parameter(torch.zeros(encoder.vocab_size))

    def _head_width(self) -> int:
        return self.config.encoder.hidden_size

    def _init_weights(self, module: nn.Module) -> None:
        """N(0, 0.02) for every matrix, torch's decoder layers included (their own default is Xavier)."""
        std = self.config.initializer_range
        if isinstance(module, nn.MultiheadAttention):
            init.normal_(module.in_proj_weight, mean=0.0, std=std)
            init.zeros_(module.in_proj_bias)
        elif isinstance(module, _Base):
            init.zeros_(module.head_bias)
            if isinstance(module, _WithDecoder):
                init.normal_(module.mask_embedding, mean=0.0, std=std)
        else:
            super()._init_weights(module)

    def get_input_embeddings(self) -> nn.Module:
        """The word embedding, which the head shares."""
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the word embedding."""
        self.encoder.set_input_embeddings(value)

    def get_output_embeddings(self) -> None:
        """None: the output matrix is the word embedding itself, used functionally, so there is nothing to tie."""
        return None

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Module:
        """The word embedding as Hugging Face resizes it, and the head's bias, the other thing with a row for a token.

        A new token's bias is zero, or with `mean_resizing` the mean of the others, as its embedding is.
        """
        embedding = super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        old, size = self.head_bias, len(self._output_weight())
        if size == len(old):
            return embedding
        new = old.data.mean() if mean_resizing else old.data.new_zeros(())
        bias = torch.cat([old.data[:size], new.expand(max(0, size - len(old)))])
        self.head_bias = nn.Parameter(bias, requires_grad=old.requires_grad)
        return embedding

    def _positions(self, idx: Tensor) -> Tensor:
        """Position ids of places in a block. RoBERTa counts from pad_token_id + 1."""
        return idx + self.config.encoder.pad_token_id + 1

    def _padded_positions(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """(batch, n): position ids that skip padding, on either side."""
        if attention_mask is None:
            return self._positions(torch.arange(input_ids.shape[1], device=input_ids.device)[None])
        real = attention_mask.long()
        return real.cumsum(1) * real + self.config.encoder.pad_token_id

    def _output_weight(self) -> Tensor:
        """(vocab, d_en): the word embedding."""
        return cast(nn.Embedding, self.get_input_embeddings()).weight

    def _encode(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Unpadded sequences: (batch, k) -> (batch, k, d_en)."""
        return self._encode_padded(input_ids, positions, None)[0]

    def _encode_padded(
        self, input_ids: Tensor, positions: Tensor, attention_mask: Tensor | None, keep_states: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """(batch, k) -> (batch, k, d_en), and with `keep_states` those of each layer."""
        if attention_mask is None and not keep_states and runs_through_blocks(self.encoder):
            return encode(self.encoder, input_ids, positions), None
        output = self.encoder(
            input_ids, attention_mask=attention_mask, position_ids=positions, output_hidden_states=keep_states
        )
        return output.last_hidden_state, output.hidden_states

    def _at_corrupted(self, batch: CorruptedBatch) -> Tensor:
        """(batch, n_corrupted, d_en) behind the head's first layer, in the order masked, replaced, unchanged."""
        raise NotImplementedError

    def _everywhere(self, input_ids: Tensor, attention_mask: Tensor | None, keep_states: bool) -> _Everywhere:
        """All positions, with the states of each layer if they are kept."""
        raise NotImplementedError

    def mask_states(self, batch: CorruptedBatch, final_norm: bool = True) -> list[Tensor]:
        """States of the [MASK]s as they come in (layer 0) and after each block that they pass.

        Source: section 4.2, Figure 4. The blocks are the encoder's of the vanilla model and the decoder's of the 3ML
        models, whose encoder never sees a [MASK]. Pre-LN blocks leave their sum unnormalised; whether the paper
        looked at the last one before or after the final LayerNorm, it does not say.

        Args:
            batch: corrupted blocks.
            final_norm: pre-LN: take the last layer behind the final LayerNorm, as the head does.

        Returns:
            For each layer (batch, n_de, d_en) or (batch, n_de, d_de), in the order of `batch.mask_idx`.
        """
        raise NotImplementedError

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
        """Predict corrupted tokens.

        Source: section 2.1. Equation 1's delta would drop unchanged tokens; the text and Appendix C predict all
        corrupted ones, and so does this.

        Args:
            input_ids: (batch, n) ids with [MASK]s in place.
            attention_mask: (batch, n), 1 for real tokens, 0 for padding.
            labels: (batch, n), -100 where nothing is predicted.
            corrupted: a batch with equal counts in every row, instead of the three above.
            num_items_in_batch: corrupted tokens of the whole update; the loss is the sum of cross-entropies
                divided by it. None: divided by this batch's own count.
            return_logits: False: the loss alone, which takes less time and memory.
            output_hidden_states: return the states of each layer too; None: as the configuration says. Not for a
                `CorruptedBatch`, whose sequences have another length in each part of the model: `mask_states`.
            token_type_ids: zeros, which some tokenizers give; there is one segment.
            others: `return_dict=False`: a tuple instead. Anything else is refused, unless it is None or False.

        Returns:
            `loss` in nats (None without labels) and `logits`: (batch, n, vocab), or (batch, n_corrupted, vocab)
            for a `CorruptedBatch`.

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
        found: _Everywhere
        targets: Tensor | None
        if corrupted is not None:
            if input_ids is not None or attention_mask is not None or labels is not None:
                raise ValueError("expected input_ids, attention_mask and labels, or a CorruptedBatch, not both")
            if keep_states:
                raise ValueError("a CorruptedBatch gives no hidden_states: take mask_states(batch), or input_ids")
            found, targets = _Everywhere(self._at_corrupted(corrupted)), corrupted.targets
        elif input_ids is not None:
            found, targets = self._everywhere(input_ids, attention_mask, keep_states), labels
        else:
            raise ValueError("expected input_ids or a CorruptedBatch")
        transformed = found.transformed
        states: dict[str, Any] = {
            "hidden_states": found.encoder_states,
            "decoder_hidden_states": found.decoder_states,
        }
        weight, bias = self._output_weight(), self.head_bias
        logits = F.linear(transformed, weight, bias) if return_logits else None
        if targets is None:
            return ThreeMLOutput(logits=logits, **states)
        if logits is None:
            total = summed_cross_entropy(transformed, weight, bias, targets)
        else:
            total = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
        count = (targets != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch
        return ThreeMLOutput(loss=total / count, logits=logits, **states)


class VanillaForMaskedLM(_Base):
    """The baseline: all tokens, [MASK]s among them, through the encoder; the head at corrupted positions."""

    config_class = VanillaConfig

    def __init__(self, config: VanillaConfig) -> None:
        super().__init__(config)
        self.post_init()

    def _at_corrupted(self, batch: CorruptedBatch) -> Tensor:
        n = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)
        hidden = self._encode(batch.input_ids, self._positions(n)[None])
        return self.head(take(hidden, batch.corrupted_idx))

    def _everywhere(self, input_ids: Tensor, attention_mask: Tensor | None, keep_states: bool) -> _Everywhere:
        positions = self._padded_positions(input_ids, attention_mask)
        hidden, states = self._encode_padded(input_ids, positions, attention_mask, keep_states)
        return _Everywhere(self.head(hidden), states)

    def mask_states(self, batch: CorruptedBatch, final_norm: bool = True) -> list[Tensor]:
        """Layer 0 is the embedding's output, then one for each encoder block. See `_Base.mask_states`."""
        before: list[Tensor] = []
        norm = getattr(self.encoder, "LayerNorm", None)  # pre-LN encoders have one behind the last block
        hook = norm and norm.register_forward_pre_hook(lambda _, inputs: before.append(inputs[0]))
        try:
            positions = self._positions(torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device))
            output = self.encoder(batch.input_ids, position_ids=positions[None], output_hidden_states=True)
        finally:
            if hook is not None:
                hook.remove()
        last = output.last_hidden_state if final_norm or not before else before[0]
        return [take(hidden, batch.mask_idx) for hidden in (*output.hidden_states[:-1], last)]


class _WithDecoder(_Base):
    """What both 3ML models share: projection, [MASK] embedding, decoder positions, decoder blocks, final norm."""

    def __init__(
        self, config: ThreeMLConfig, layer: type[nn.TransformerEncoderLayer | nn.TransformerDecoderLayer]
    ) -> None:
        super().__init__(config)
        encoder, d_en, d_de = config.encoder, config.encoder.hidden_size, cast(int, config.decoder_hidden_size)
        self.projection = nn.Linear(d_en, d_de) if d_en != d_de else nn.Identity()
        self.mask_embedding = nn.Parameter(torch.zeros(d_de))
        self.decoder_positions = nn.Embedding(encoder.max_position_embeddings, d_de, padding_idx=encoder.pad_token_id)
        self.decoder_layers = nn.ModuleList()
        for _ in range(config.decoder_num_hidden_layers):
            block = layer(
                d_model=d_de,
                nhead=cast(int, config.decoder_num_attention_heads),
                dim_feedforward=4 * d_de,
                dropout=encoder.hidden_dropout_prob,
                activation=F.gelu,
                layer_norm_eps=encoder.layer_norm_eps,
                batch_first=True,
                norm_first=bool(config.decoder_norm_first),
            )
            # torch's layers have one dropout rate and apply it inside the FFN too; the paper (Appendix A) has a
            # rate for attention weights and, like BERT, none inside the FFN.
            block.dropout.p = 0.0
            for attention in (block.self_attn, getattr(block, "multihead_attn", None)):
                if attention is not None:
                    attention.dropout = encoder.attention_probs_dropout_prob
            self.decoder_layers.append(block)
        final = nn.LayerNorm(d_de, eps=encoder.layer_norm_eps) if config.decoder_norm_first else nn.Identity()
        self.decoder_norm = final

    def _head_width(self) -> int:
        return cast(int, self.config.decoder_hidden_size)

    def _encode_kept(self, batch: CorruptedBatch) -> Tensor:
        """(batch, n_en, d_en): the [MASK]s are dropped before the embedding, kept tokens keep their positions."""
        return self._encode(batch.input_ids.gather(1, batch.keep_idx), self._positions(batch.keep_idx))

    def _is_masked(self, input_ids: Tensor) -> Tensor:
        if self.config.mask_token_id is None:
            raise ValueError(
                "the configuration has no mask_token_id, so [MASK] tokens cannot be found in input_ids: "
                "set config.mask_token_id, or pass a CorruptedBatch"
            )
        return input_ids == self.config.mask_token_id

    def _encode_hiding_masks(self, input_ids: Tensor, attention_mask: Tensor | None, keep_states: bool) -> _Hidden:
        """States of all positions when no [MASK] can be seen."""
        masked = self._is_masked(input_ids)
        real = torch.ones_like(masked) if attention_mask is None else attention_mask.bool()
        kept = real & ~masked
        positions = self._padded_positions(input_ids, attention_mask)
        hidden, states = self._encode_padded(input_ids, positions, _never_empty(kept).long(), keep_states)
        return _Hidden(hidden, states, masked & real, kept, positions)


@dataclasses.dataclass
class _Hidden:
    """What an encoder makes of all positions when no [MASK] can be seen.

    Attributes:
        hidden: (batch, n, d_en); of kept tokens, anything elsewhere.
        states: the same of each layer, if they are kept.
        masked: (batch, n) bool: a [MASK]?
        kept: (batch, n) bool: neither [MASK] nor padding?
        positions: (batch or 1, n) position ids.
    """

    hidden: Tensor
    states: tuple[Tensor, ...] | None
    masked: Tensor
    kept: Tensor
    positions: Tensor


def _never_empty(keys: Tensor) -> Tensor:
    """A row without any attention key would give NaN; such a row's result is never used, so let it see all."""
    return keys | ~keys.any(1, keepdim=True)


class ThreeMLSelfForMaskedLM(_WithDecoder):
    """3ML_self: encoder over the kept tokens, then self-attention blocks over all n tokens.

    Source: section 2.2. Decoder positions are added to all tokens (as in MAE; section 6.2 blames 3ML_cross's
    lack of a common positional space).
    """

    config_class = ThreeMLSelfConfig

    def __init__(self, config: ThreeMLSelfConfig) -> None:
        super().__init__(config, nn.TransformerEncoderLayer)
        self.post_init()

    def _decoder_input(self, batch: CorruptedBatch) -> Tensor:
        """(batch, n, d_de): projected states of the kept tokens, [MASK] embeddings between them, positions on all."""
        size, n = batch.input_ids.shape
        kept = self.projection(self._encode_kept(batch))
        rows = batch.keep_idx + n * torch.arange(size, device=kept.device)[:, None]
        masks = self.mask_embedding.to(kept.dtype).expand(size * n, -1)
        hidden = masks.index_copy(0, rows.flatten(), kept.flatten(0, 1)).unflatten(0, (size, n))
        positions = self._positions(torch.arange(n, device=kept.device))
        return hidden + self.decoder_positions(positions)

    def _at_corrupted(self, batch: CorruptedBatch) -> Tensor:
        hidden, predicted = self._decoder_input(batch), batch.corrupted_idx
        for layer in self.decoder_layers[:-1]:
            hidden = self_block(layer, hidden)
        hidden = self_block(self.decoder_layers[-1], hidden, predicted)
        return self.head(self.decoder_norm(hidden))

    def mask_states(self, batch: CorruptedBatch, final_norm: bool = True) -> list[Tensor]:
        """Layer 0 is the decoder's input, then one for each decoder block. See `_Base.mask_states`."""
        hidden = self._decoder_input(batch)
        states = [take(hidden, batch.mask_idx)]
        for layer in self.decoder_layers:
            hidden = layer(hidden)
            states.append(take(hidden, batch.mask_idx))
        return [*states[:-1], self.decoder_norm(states[-1])] if final_norm else states

    def _everywhere(self, input_ids: Tensor, attention_mask: Tensor | None, keep_states: bool) -> _Everywhere:
        found = self._encode_hiding_masks(input_ids, attention_mask, keep_states)
        hidden = torch.where(found.masked[..., None], self.mask_embedding, self.projection(found.hidden))
        states = [hidden + self.decoder_positions(found.positions)]
        padding = None if attention_mask is None else ~_never_empty(found.kept | found.masked)
        for layer in self.decoder_layers:
            states.append(layer(states[-1], src_key_padding_mask=padding))
        states[-1] = self.decoder_norm(states[-1])
        return _Everywhere(self.head(states[-1]), found.states, tuple(states) if keep_states else None)


class ThreeMLCrossForMaskedLM(_WithDecoder):
    """3ML_cross: encoder over the kept tokens; [MASK] queries attend to each other and to the encoder's output.

    Source: section 2.2. Replaced and unchanged tokens are predicted from the encoder's output. The paper
    contradicts itself on their head: section 2.2 says the same prediction layer (`visible_head="shared"`, which
    fits the printed 364M parameters), Appendix C counts one of its own (`separate`, which shares embedding and bias).
    """

    config_class = ThreeMLCrossConfig

    def __init__(self, config: ThreeMLCrossConfig) -> None:
        super().__init__(config, nn.TransformerDecoderLayer)
        encoder = config.encoder
        self.visible_head = None
        if config.visible_head == "separate":
            self.visible_head = PredictionTransform(encoder.hidden_size, encoder.hidden_size, encoder.layer_norm_eps)
        self.post_init()

    def _transform_visible(self, hidden: Tensor, memory: Tensor) -> Tensor:
        """Encoder states (.., d_en) and their projection (.., d_de) -> (.., d_en), ready for the embedding."""
        return self.head(memory) if self.visible_head is None else self.visible_head(hidden)

    def _queries(self, batch: CorruptedBatch) -> Tensor:
        """(batch, n_de, d_de): the decoder's input, [MASK] embedding plus position."""
        return self.mask_embedding + self.decoder_positions(self._positions(batch.mask_idx))

    def mask_states(self, batch: CorruptedBatch, final_norm: bool = True) -> list[Tensor]:
        """Layer 0 is the decoder's input, then one for each decoder block. See `_Base.mask_states`."""
        memory = self.projection(self._encode_kept(batch))
        states = [self._queries(batch)]
        for layer in self.decoder_layers:
            states.append(layer(states[-1], memory))
        return [*states[:-1], self.decoder_norm(states[-1])] if final_norm else states

    def _at_corrupted(self, batch: CorruptedBatch) -> Tensor:
        hidden = self._encode_kept(batch)
        memory = self.projection(hidden)
        queries = self._queries(batch)
        for layer in self.decoder_layers:
            queries = cross_block(layer, queries, memory)
        # a visible token's slot among the kept ones is its position minus the [MASK]s before it
        visible = batch.visible_idx
        slots = visible - (batch.mask_idx[:, None, :] < visible[:, :, None]).sum(2)
        at_visible = self._transform_visible(take(hidden, slots), take(memory, slots))
        return torch.cat([self.head(self.decoder_norm(queries)), at_visible], 1)

    def _everywhere(self, input_ids: Tensor, attention_mask: Tensor | None, keep_states: bool) -> _Everywhere:
        found = self._encode_hiding_masks(input_ids, attention_mask, keep_states)
        projected = self.projection(found.hidden)
        # a row of [MASK]s alone has nothing to remember: zeros, so that it sees neither its padding nor its [MASK]s
        memory = projected.where(found.kept.any(1)[:, None, None], torch.zeros_like(projected))
        queries = self.mask_embedding + self.decoder_positions(found.positions)
        states = [queries.expand(len(input_ids), -1, -1)]
        hide_queries, hide_memory = ~_never_empty(found.masked), ~_never_empty(found.kept)
        for layer in self.decoder_layers:
            states.append(
                layer(states[-1], memory, tgt_key_padding_mask=hide_queries, memory_key_padding_mask=hide_memory)
            )
        states[-1] = self.decoder_norm(states[-1])
        at_masked, at_visible = self.head(states[-1]), self._transform_visible(found.hidden, projected)
        transformed = torch.where(found.masked[..., None], at_masked, at_visible)
        return _Everywhere(transformed, found.states, tuple(states) if keep_states else None)


MODELS = {
    "vanilla": (VanillaConfig, VanillaForMaskedLM),
    "self": (ThreeMLSelfConfig, ThreeMLSelfForMaskedLM),
    "cross": (ThreeMLCrossConfig, ThreeMLCrossForMaskedLM),
}
"""Architecture -> configuration class, model class."""

for _config_class, _model_class in MODELS.values():
    AutoConfig.register(_config_class.model_type, _config_class, exist_ok=True)
    AutoModelForMaskedLM.register(_config_class, _model_class, exist_ok=True)


def initialize_scaled(model: _Base) -> None:
    """Start every matrix at N(0, 1/fan_in) and both position tables at sinusoids; embeddings stay N(0, 0.02).

    Not the paper's: BERT's fixed 0.02 is the fan-in scale of a width in the thousands. At a width of 64 it makes
    what attention brings to a [MASK] a hundredth of the residual stream, and a small run never leaves the unigram
    plateau. Sinusoids let one head find "the token before" at all positions at once. The encoder's table keeps the
    scale of the word embeddings it is added to; the decoder's has amplitude 1, as in MAE, for it is added to
    states that left a LayerNorm.
    """
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(std=module.in_features**-0.5)
            elif isinstance(module, nn.MultiheadAttention):
                module.in_proj_weight.normal_(std=module.embed_dim**-0.5)
        encoder_table = model.encoder.embeddings.position_embeddings
        _sinusoids_(encoder_table, amplitude=2**0.5 * model.config.initializer_range)
        if isinstance(model, _WithDecoder):
            _sinusoids_(model.decoder_positions, amplitude=1.0)


def _sinusoids_(table: nn.Embedding, amplitude: float) -> None:
    """Vaswani et al.'s positions, with wavelengths from 2 pi to 2,000 pi; the padding row stays zero."""
    n, d = table.weight.shape
    angles = torch.arange(n)[:, None] * 1000.0 ** (-torch.arange(0, d, 2) / d)
    table.weight[:, 0::2] = amplitude * angles.sin()
    table.weight[:, 1::2] = amplitude * angles[:, : d // 2].cos()
    if table.padding_idx is not None:
        table.weight[table.padding_idx] = 0


_ENCODER_TYPES = {"post": "roberta", "pre": "roberta-prelayernorm"}


def build_model(
    config: StudyConfig,
    vocab_size: int,
    pad_token_id: int = 1,
    bos_token_id: int = 0,
    eos_token_id: int = 2,
    mask_token_id: int | None = None,
) -> VanillaForMaskedLM | ThreeMLSelfForMaskedLM | ThreeMLCrossForMaskedLM:
    """A freshly initialised model as the study's parameters describe it; seed torch before.

    Args:
        config: geometry, LayerNorm placement, dropout, decoder.
        vocab_size: tokens in the tokenizer; the token ids are the tokenizer's.
        pad_token_id: RoBERTa's positions start one above it.
        bos_token_id: stored for fine-tuning.
        eos_token_id: stored for fine-tuning.
        mask_token_id: needed by the ordinary `forward` of the 3ML models.

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
    config_class, model_class = MODELS[config.architecture]
    whole = config_class(
        encoder=encoder,
        decoder_num_hidden_layers=config.decoder_num_hidden_layers,
        decoder_hidden_size=config.decoder_hidden_size,
        decoder_num_attention_heads=config.decoder_num_attention_heads,
        decoder_norm_first=config.layer_norm == "pre",
        visible_head=config.visible_head,
        mask_token_id=mask_token_id,
    )
    try:
        model = model_class(whole)
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
