"""3ML_self: the encoder sees the kept tokens alone; [MASK]s join them in a small decoder of self-attention.

Source: section 2.2 and Figure 2. For a sequence of n tokens, n_de of them [MASK]s and n_en = n - n_de kept:

    kept tokens        (batch, n_en)          the [MASK]s are dropped, the others keep their positions
    encoder            (batch, n_en, d_en)    most of the layers, and no [MASK] in them
    projection         (batch, n_en, d_de)    to the decoder's width
    decoder input      (batch, n, d_de)       [MASK] embeddings in between, decoder positions on all (but with RoPE)
    decoder layers     (batch, n, d_de)       self-attention over all n tokens; the last one for k positions only
    head               (batch, k, d_en)       at the k corrupted positions, back to the encoder's width
    logits             (batch, k, vocab)      by the word embedding
"""

from __future__ import annotations

import torch
from torch import Tensor

from threeml_core.masking import CorruptedBatch
from threeml_core.models.attention import never_empty
from threeml_core.models.base import ThreeMLModel
from threeml_core.models.configuration import ThreeMLSelfConfig
from threeml_core.models.gather import place, take


class ThreeMLSelfForMaskedLM(ThreeMLModel):
    """3ML_self. Positions are added to all tokens of the decoder, as in MAE.

    Section 6.2 blames 3ML_cross's lack of a common positional space.
    """

    config_class = ThreeMLSelfConfig
    cross_attention = False

    def __init__(self, config: ThreeMLSelfConfig) -> None:
        super().__init__(config)
        self.post_init()

    def decoder_input(self, batch: CorruptedBatch) -> Tensor:
        """(batch, n, d_de): projected states of the kept tokens, [MASK] embeddings between them, positions on all."""
        kept = self.projection(self.encoder_states(batch))
        hidden = place(kept, batch.keep_idx, batch.input_ids.shape[1], self.mask_embedding)
        return self.with_positions(hidden, self.position_ids(batch.input_ids))

    def at_corrupted(self, batch: CorruptedBatch) -> Tensor:
        """(batch, n_corrupted, d_en) behind the head; the last layer runs at the corrupted positions only."""
        return self.head(self.decode(self.decoder_input(batch), at=batch.corrupted_idx)[-1])

    def mask_states(self, batch: CorruptedBatch, final_norm: bool = True) -> list[Tensor]:
        """Layer 0 is the decoder's input, then one per decoder layer. See `MaskedLanguageModel.mask_states`."""
        states = self.decode(self.decoder_input(batch), final_norm=final_norm)
        return [take(hidden, batch.mask_idx) for hidden in states]

    def decode_all(
        self, encoded: Tensor, positions: Tensor, masked: Tensor, kept: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """As `at_corrupted`, at all n positions: the ordinary `forward`, for rows with any number of [MASK]s."""
        hidden = torch.where(masked[..., None], self.mask_embedding, self.projection(encoded))
        hidden = self.with_positions(hidden, positions)
        states = self.decode(hidden, key_mask=never_empty(kept | masked), positions=positions)
        return self.head(states[-1]), states
