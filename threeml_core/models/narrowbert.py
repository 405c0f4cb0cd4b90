"""NarrowBERT: behind the first layers, most of the work is done at the corrupted positions alone.

Source: Li et al. (ACL 2023), arXiv:2301.04761, section 2. For a sequence of n tokens, k of them corrupted:

    full layers        (batch, n, d)    as any encoder's, over all tokens
    narrow layers      (batch, k, d)    SparseQueries: the k ask, and all n are asked, as the full layers left them
                                        ContextFirst: first every attention, over all n, then every FFN, of the k
    head               (batch, k, d)
    logits             (batch, k, vocab)

The narrow layers' parameters are those of ordinary layers, and the exported encoder is a plain one: it runs them over
all tokens, each attending to the output of the whole layer before, which narrow layers never do in pre-training. (The
authors fine-tune as they pre-train, with [CLS] as the only query for a sentence.) With `full_layers` one less than the
layers, or all of them, nothing is left that differs from the vanilla model.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from threeml_core.masking import CorruptedBatch
from threeml_core.models import sublayers
from threeml_core.models.base import MaskedLanguageModel, States
from threeml_core.models.configuration import ContextFirstConfig, NarrowBertConfig, SparseQueriesConfig
from threeml_core.models.gather import take


class NarrowBertModel(MaskedLanguageModel):
    """What both variants share."""

    config: NarrowBertConfig

    def __init__(self, config: NarrowBertConfig) -> None:
        super().__init__(config, head_width=config.hidden_size)
        sublayers.layers_of(self.encoder)  # or an error
        self.post_init()

    def narrow(self, layers: list[Any], hidden: Tensor, at: Tensor | None, mask: Tensor | None) -> list[Tensor]:
        """States at positions `at` (batch, k), None: at all, before the narrow layers and behind each: (batch, k, d).

        `hidden`, (batch, n, d), is what the full layers give; `mask` as `sublayers.attention_mask` makes it.
        """
        raise NotImplementedError

    def states(
        self, ids: Tensor, positions: Tensor, at: Tensor | None, key_mask: Tensor | None = None, final_norm: bool = True
    ) -> tuple[list[Tensor], list[Tensor]]:
        """States of the embedding and of each layer: (batch, n, d) of all full ones but the last; the others' narrow.

        These are at positions `at` (batch, k), None: at all, and take nothing from one another. `key_mask` (batch, n)
        tells which tokens may be attended to; None: all.
        """
        hidden, layers = sublayers.embed(self.encoder, ids, positions), sublayers.layers_of(self.encoder)
        mask = sublayers.attention_mask(self.encoder, hidden, hidden, key_mask)
        *before, full = sublayers.states_after(layers[: self.config.full_layers], hidden, mask)
        *narrow, last = self.narrow(layers[self.config.full_layers :], full, at, mask)
        return before, [*narrow, sublayers.final_norm(self.encoder, last) if final_norm else last]

    def at_corrupted(self, batch: CorruptedBatch) -> Tensor:
        """(batch, n_corrupted, d_en) behind the head."""
        return self.head(self.states(*self.kept_tokens(batch), batch.corrupted_idx)[1][-1])

    def at_all(self, input_ids: Tensor, attention_mask: Tensor | None, keep_states: bool) -> tuple[Tensor, States]:
        """See `MaskedLanguageModel.at_all`. Every position is narrow."""
        full, narrow = self.states(input_ids, self.position_ids(input_ids, attention_mask), None, attention_mask)
        return self.head(narrow[-1]), {"hidden_states": (*full, *narrow)} if keep_states else {}

    def mask_states(self, batch: CorruptedBatch, final_norm: bool = True) -> list[Tensor]:
        """Layer 0 is the embedding's output, then one per encoder layer. See `MaskedLanguageModel.mask_states`.

        ContextFirst leaves a narrow layer with its FFN, when the attention of all others is done.
        """
        full, narrow = self.states(*self.kept_tokens(batch), batch.mask_idx, final_norm=final_norm)
        return [*(take(state, batch.mask_idx) for state in full), *narrow]


class SparseQueriesForMaskedLM(NarrowBertModel):
    """NarrowBERT SparseQueries: keys and values of all narrow layers are made of the full layers' output."""

    config_class = SparseQueriesConfig

    def narrow(self, layers: list[Any], hidden: Tensor, at: Tensor | None, mask: Tensor | None) -> list[Tensor]:
        """See `NarrowBertModel.narrow`."""
        states = [hidden if at is None else take(hidden, at)]
        for layer in layers:
            states.append(sublayers.run(sublayers.narrow_layer, layer, states[-1], hidden, mask))
        return states


class ContextFirstForMaskedLM(NarrowBertModel):
    """NarrowBERT ContextFirst: the attention of all narrow layers comes before the first of their FFNs."""

    config_class = ContextFirstConfig

    def narrow(self, layers: list[Any], hidden: Tensor, at: Tensor | None, mask: Tensor | None) -> list[Tensor]:
        """See `NarrowBertModel.narrow`."""
        states = [hidden if at is None else take(hidden, at)]
        for layer in layers:
            hidden = sublayers.run(sublayers.self_attention, layer, hidden, mask)
        narrow = hidden if at is None else take(hidden, at)
        for layer in layers:
            narrow = sublayers.run(sublayers.feed_forward, layer, narrow)
            states.append(narrow)
        return states
