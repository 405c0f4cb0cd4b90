"""The baseline, a masked language model as BERT and RoBERTa: the encoder sees all tokens, [MASK]s among them."""

from __future__ import annotations

from torch import Tensor, nn

from threeml_core.masking import CorruptedBatch
from threeml_core.models.base import MaskedLanguageModel, States
from threeml_core.models.configuration import VanillaConfig
from threeml_core.models.gather import take


class VanillaForMaskedLM(MaskedLanguageModel):
    """Encoder over all n tokens; the head at corrupted positions."""

    config_class = VanillaConfig

    def __init__(self, config: VanillaConfig) -> None:
        super().__init__(config, head_width=config.hidden_size)
        self.post_init()

    def at_corrupted(self, batch: CorruptedBatch) -> Tensor:
        """(batch, n_corrupted, d_en) behind the head."""
        return self.head(take(self.encoder_states(batch), batch.corrupted_idx))

    def at_all(self, input_ids: Tensor, attention_mask: Tensor | None, keep_states: bool) -> tuple[Tensor, States]:
        """See `MaskedLanguageModel.at_all`."""
        positions, n = self.position_ids(input_ids, attention_mask), input_ids.shape[1]
        encoded = self.encode(input_ids, positions, n, attention_mask, output_hidden_states=keep_states)
        return self.head(encoded.last_hidden_state), {"hidden_states": encoded.hidden_states}

    def mask_states(self, batch: CorruptedBatch, final_norm: bool = True) -> list[Tensor]:
        """Layer 0 is the embedding's output, then one per encoder layer. See `MaskedLanguageModel.mask_states`."""
        (ids, positions), before = self.kept_tokens(batch), list[Tensor]()
        # pre-LN encoders have one behind the last layer
        norm = getattr(self.encoder, "final_norm" if self.config.is_modern else "LayerNorm", nn.Identity())
        with norm.register_forward_pre_hook(lambda _, inputs: before.append(inputs[0])):
            encoded = self.encode(ids, positions, batch.input_ids.shape[1], output_hidden_states=True)
        last = encoded.last_hidden_state if final_norm or not before else before[0]
        return [take(hidden, batch.mask_idx) for hidden in (*encoded.hidden_states[:-1], last)]
