"""Token dropping: while it trains, tokens of low running loss skip the middle layers; else it is the vanilla model.

Source: Hou et al. (ACL 2022), arXiv:2203.13240, section 3. For a sequence of n tokens, m of them kept:

    first layers       (batch, n, d)    over all tokens
    a middle layer     (batch, m, d)    the kept tokens ask, all n are asked
    middle layers      (batch, m, d)    over the kept tokens alone
    last layer         (batch, n, d)    over all tokens, the dropped ones as the first layers left them
    head               (batch, k, d)    at the k corrupted positions

Kept are the m tokens of largest importance, which is one number per token of the vocabulary, looked up for the tokens
that stand in the input: the running loss of its predictions. [MASK]s and special tokens are always kept, padding comes
last. Of equal ones, as all are at first, those that stand earlier are kept, which is what the authors' top-k does.

Validation, states and fine-tuning have all tokens in all layers, as the authors fine-tune: the exported encoder is
computed as it was validated. Where the loss of several predictions of a token is known after a step, the authors' code
takes one of them into the running loss; here it is their mean, so that it does not depend on their order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from threeml_core.foundation.errors import ParameterError
from threeml_core.masking import CorruptedBatch
from threeml_core.models import sublayers
from threeml_core.models.base import States
from threeml_core.models.configuration import TokenDroppingConfig
from threeml_core.models.gather import put, take
from threeml_core.models.tally import TokenTally
from threeml_core.models.vanilla import VanillaForMaskedLM
from threeml_core.parameters.model import num_kept, too_few_kept

START = 10.0
"""Running loss of a token that was never predicted; nats."""
BETA = 0.995
"""Share of the running loss that a step leaves; both are the authors' code's."""


class TokenDroppingForMaskedLM(VanillaForMaskedLM):
    """The vanilla model, whose middle layers see the important tokens alone while it trains.

    Attributes:
        token_importance: (vocab,) running loss in nats; infinite for special tokens, minus infinity for padding.
    """

    config: TokenDroppingConfig
    config_class = TokenDroppingConfig
    token_importance: Tensor

    def __init__(self, config: TokenDroppingConfig) -> None:
        super().__init__(config)
        sublayers.layers_of(self.encoder)  # or an error
        self.tally = TokenTally(config.vocab_size)
        self.register_buffer("token_importance", self._first_importance())

    def _first_importance(self) -> Tensor:
        config, importance = self.config, torch.full((self.config.vocab_size,), START)
        for ids, value in (
            ((config.bos_token_id, config.eos_token_id, config.mask_token_id), torch.inf),
            ((config.pad_token_id,), -torch.inf),
        ):
            importance[[i for i in ids if i is not None]] = value
        return importance

    def _init_weights(self, module: nn.Module) -> None:
        """See `MaskedLanguageModel._init_weights`; the buffer of a model that is loaded comes by here too."""
        super()._init_weights(module)
        if module is self and hasattr(self, "token_importance"):
            init.copy_(self.token_importance, self._first_importance())

    def _resize_token_embeddings(self, *given: Any, **others: Any) -> nn.Module:
        """See `MaskedLanguageModel._resize_token_embeddings`. A new token has the importance of a fresh model's."""
        embedding, old = super()._resize_token_embeddings(*given, **others), self.token_importance
        if (size := len(self.word_embedding)) != len(old):
            self.token_importance = torch.cat([old[:size], old.new_full((max(0, size - len(old)),), START)])
            self.tally = TokenTally(size).to(old.device)
        return embedding

    @torch.no_grad()
    def end_of_step(self) -> None:
        """Take a step's mean loss of each token that was predicted, as `tally` has it, into its running loss."""
        assert self.tally is not None
        count, old = self.tally.count, self.token_importance
        new = BETA * old + (1 - BETA) * (self.tally.loss / count.clamp(min=1)).to(old.dtype)
        old.copy_(new.where((count > 0) & old.isfinite(), old))

    def kept_positions(self, importance: Tensor) -> Tensor:
        """(batch, m) ascending: where the m largest of (batch, n) stand.

        Raises:
            ParameterError: a row has more tokens that are always kept. Not on a GPU, which would have to wait for it.
        """
        n = importance.shape[1]
        kept = num_kept(n, self.config.kept_share)
        if importance.device.type == "cpu" and not torch.compiler.is_compiling():
            if problem := too_few_kept(n, self.config.kept_share, int((importance == torch.inf).sum(1).max())):
                raise ParameterError(problem)
        return importance.argsort(dim=1, descending=True, stable=True)[:, :kept].sort(1).values

    def dropping(self, ids: Tensor, positions: Tensor, importance: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """(batch, n, d_en): what the encoder makes of tokens (batch, n) if those of low `importance` are dropped.

        `key_mask` (batch, n) tells which tokens may be attended to; None: all.
        """
        encoder, (*layers, last) = self.encoder, sublayers.layers_of(self.encoder)
        hidden = sublayers.embed(encoder, ids, positions)
        mask = sublayers.attention_mask(encoder, hidden, hidden, key_mask)
        hidden = sublayers.states_after(layers[: self.config.full_layers], hidden, mask)[-1]
        if middle := layers[self.config.full_layers :]:
            at = self.kept_positions(importance)
            kept = take(hidden, at)
            of_all = sublayers.attention_mask(encoder, kept, hidden, key_mask)
            kept = sublayers.run(sublayers.narrow_layer, middle[0], kept, hidden, of_all)
            of_kept = None if key_mask is None else key_mask.gather(1, at)
            own = sublayers.attention_mask(encoder, kept, kept, of_kept)
            hidden = put(sublayers.states_after(middle[1:], kept, own)[-1], at, hidden)
        return sublayers.final_norm(encoder, last(hidden, mask))

    def encoder_states(self, batch: CorruptedBatch) -> Tensor:
        """See `MaskedLanguageModel.encoder_states`. [MASK]s are kept whatever their id is."""
        if not self.training:
            return super().encoder_states(batch)
        importance = self.token_importance[batch.input_ids].scatter(1, batch.mask_idx, torch.inf)
        return self.dropping(*self.kept_tokens(batch), importance)

    def at_all(self, input_ids: Tensor, attention_mask: Tensor | None, keep_states: bool) -> tuple[Tensor, States]:
        """See `MaskedLanguageModel.at_all`. While it trains tokens are dropped here too, padding first.

        Raises:
            ValueError: states are asked for while it trains, of layers that have none of the dropped tokens.
        """
        if not self.training:
            return super().at_all(input_ids, attention_mask, keep_states)
        if keep_states:
            raise ValueError("hidden_states while tokens are dropped: call eval() first")
        if self.config.mask_token_id is None:
            raise ValueError(
                "the configuration has no mask_token_id, so [MASK] tokens, which are kept, cannot be found in "
                "input_ids: set config.mask_token_id, or pass a CorruptedBatch"
            )
        importance = self.token_importance[input_ids]
        if attention_mask is not None:
            importance = importance.where(attention_mask.bool(), -torch.inf)
        positions = self.position_ids(input_ids, attention_mask)
        return self.head(self.dropping(input_ids, positions, importance, attention_mask)), {}
