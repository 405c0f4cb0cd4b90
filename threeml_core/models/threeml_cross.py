"""3ML_cross: the encoder sees the kept tokens alone; the [MASK]s attend to its output in a small decoder.

Source: section 2.2 and Figure 2. For a sequence of n tokens, n_de of them [MASK]s and n_en = n - n_de kept:

    kept tokens        (batch, n_en)          the [MASK]s are dropped, the others keep their positions
    encoder            (batch, n_en, d_en)    most of the layers, and no [MASK] in them
    memory             (batch, n_en, d_de)    its output, projected to the decoder's width
    decoder input      (batch, n_de, d_de)    the [MASK] embedding plus each [MASK]'s decoder position (but with RoPE)
    decoder layers     (batch, n_de, d_de)    [MASK]s attend to each other, then to the memory; nothing is causal
    head               (batch, n_de, d_en)    at the [MASK]s; at replaced and unchanged tokens on the memory
    logits             (batch, k, vocab)      by the word embedding
"""

from __future__ import annotations

import torch
from torch import Tensor

from threeml_core.masking import CorruptedBatch
from threeml_core.models.attention import never_empty
from threeml_core.models.base import ThreeMLModel
from threeml_core.models.configuration import ThreeMLCrossConfig
from threeml_core.models.gather import take
from threeml_core.models.head import PredictionTransform


class ThreeMLCrossForMaskedLM(ThreeMLModel):
    """3ML_cross. Replaced and unchanged tokens are predicted from the encoder's output.

    Decoder positions are added to the queries only: keys and values are the encoder's output as it is. RoPE turns
    the keys too, which gives decoder and memory a common space of positions.

    The paper contradicts itself on their head: section 2.2 says the same prediction layer (`visible_head="shared"`,
    which fits the reported 364M parameters), Appendix C counts one of its own (`separate`, which shares embedding and
    bias).
    """

    config_class = ThreeMLCrossConfig
    cross_attention = True

    def __init__(self, config: ThreeMLCrossConfig) -> None:
        super().__init__(config)
        head = config.hidden_size, config.hidden_size, config.layer_norm_eps, not config.is_modern
        self.visible_head = PredictionTransform(*head) if config.visible_head == "separate" else None
        self.post_init()

    def decoder_input(self, batch: CorruptedBatch) -> Tensor:
        """(batch, n_de, d_de): the queries, [MASK] embedding plus position."""
        queries = self.with_positions(self.mask_embedding, batch.mask_idx + self.first_position)
        return queries.expand(*batch.mask_idx.shape, -1)

    def head_of_visible(self, encoded: Tensor, memory: Tensor) -> Tensor:
        """Encoder states (..., d_en) and their projection (..., d_de) -> (..., d_en), ready for the embedding."""
        return self.head(memory) if self.visible_head is None else self.visible_head(encoded)

    def at_corrupted(self, batch: CorruptedBatch) -> Tensor:
        """(batch, n_corrupted, d_en) behind the head: [MASK]s by the decoder, visible tokens by the encoder."""
        encoded = self.encoder_states(batch)
        memory = self.projection(encoded)
        at_masked = self.head(self._decode_masks(batch, memory)[-1])
        # a visible token's place among the kept ones is its position minus the [MASK]s before it
        visible = batch.visible_idx
        places = visible - (batch.mask_idx[:, None, :] < visible[:, :, None]).sum(2)
        at_visible = self.head_of_visible(take(encoded, places), take(memory, places))
        return torch.cat([at_masked, at_visible], 1)

    def mask_states(self, batch: CorruptedBatch, final_norm: bool = True) -> list[Tensor]:
        """Layer 0 is the decoder's input, then one per decoder layer. See `MaskedLanguageModel.mask_states`."""
        memory = self.projection(self.encoder_states(batch))
        return self._decode_masks(batch, memory, final_norm)

    def _decode_masks(self, batch: CorruptedBatch, memory: Tensor, final_norm: bool = True) -> list[Tensor]:
        queries, own, others = self.decoder_input(batch), batch.mask_idx, batch.keep_idx
        return self.decode(queries, memory, final_norm=final_norm, positions=own, memory_positions=others)

    def decode_all(
        self, encoded: Tensor, positions: Tensor, masked: Tensor, kept: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """As `at_corrupted`, at all n positions: the ordinary `forward`, for rows with any number of [MASK]s."""
        projected = self.projection(encoded)
        # a row of [MASK]s alone has nothing to remember: zeros, so that it sees neither its padding nor its [MASK]s
        memory = projected.where(kept.any(1)[:, None, None], torch.zeros_like(projected))
        queries = self.with_positions(self.mask_embedding, positions).expand(len(encoded), encoded.shape[1], -1)
        states = self.decode(
            queries,
            memory,
            key_mask=never_empty(masked),
            memory_mask=never_empty(kept),
            positions=positions,
            memory_positions=positions,
        )
        at_masked, at_visible = self.head(states[-1]), self.head_of_visible(encoded, projected)
        return torch.where(masked[..., None], at_masked, at_visible), states
