"""What each token of the vocabulary costs as a prediction, summed over a step."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TokenTally(nn.Module):
    """Sums over the predictions of each token id since `clear`: their loss, how many were right, how many there were.

    A model that has one as its `tally` adds to it in `forward` while it trains. The trainer clears it as a step begins
    and, when the step is done, has it hold the sums of all its micro-batches and processes. No state holds it.
    """

    sums: Tensor

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(3, vocab), persistent=False)

    @property
    def loss(self) -> Tensor:
        """(vocab,) nats: cross-entropies, each at the token that was to be predicted."""
        return self.sums[0]

    @property
    def correct(self) -> Tensor:
        """(vocab,): predictions to which no other token had a larger logit."""
        return self.sums[1]

    @property
    def count(self) -> Tensor:
        """(vocab,): all predictions."""
        return self.sums[2]

    @torch.no_grad()
    def add(self, ids: Tensor, losses: Tensor, correct: Tensor) -> None:
        """Predictions of `ids` (rows,): their losses in nats and whether each was right; of a negative id: nothing."""
        predicted = ids >= 0
        values = torch.stack([losses.to(self.sums), correct.to(self.sums), predicted.to(self.sums)])
        self.sums.index_add_(1, ids.clamp(min=0), values * predicted)

    def clear(self) -> None:
        """Begin the next step."""
        self.sums.zero_()
