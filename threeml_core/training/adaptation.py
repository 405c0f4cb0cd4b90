"""Adaptive masking: tokens that the model predicts badly are corrupted more often."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from threeml_core.config import StudyConfig
from threeml_core.data.prepare import PreparedData
from threeml_core.models.tally import TokenTally

SMALLEST = 0.0125
"""No weight is below it when it is renewed; the authors' 0.005 in units of the 40% that they begin with."""


class MaskWeights(nn.Module):
    """Weights of the token ids for `masking.corrupt`, renewed now and then by how well each was predicted.

    Source: Edman and Fraser, "Mask and You Shall Receive", BabyLM 2025 (arXiv 2510.20475), and their code where that
    says more (github.com/serdardoesml/babylm25). With w = 1 at the start, and s the score of an id since the last time:

        w <- smoothing * w + (1 - smoothing) * (1 - s), at least `SMALLEST`, divided by the mean over the vocabulary
        hard: s = (correct + 1/2) / (predicted + 1)
        soft: s = (max l - l) / (max l - min l) over the vocabulary, where l = (loss + ln vocab) / (predicted + 1)

    So an id that was not predicted counts as one that is right half of the time, or that costs a uniform guess. The
    mask rate, a factor of theirs, is left out: only ratios of weights matter within a sequence. Deviations: all
    corrupted tokens count, also for `soft`, where theirs takes [MASK]s alone.
    """

    weights: Tensor
    """(vocab,), 1 in the mean."""
    sums: Tensor
    """(3, vocab) float64: `TokenTally.sums` of the steps since the last time."""

    def __init__(self, vocab: int, score: str, smoothing: float, steps: int) -> None:
        """`score`: "hard" or "soft"; `steps`: from one renewal to the next."""
        super().__init__()
        self.score, self.smoothing, self.steps = score, smoothing, steps
        self.register_buffer("weights", torch.ones(vocab))
        self.register_buffer("sums", torch.zeros(3, vocab, dtype=torch.float64))

    @classmethod
    def of(cls, config: StudyConfig, vocab: int) -> MaskWeights | None:
        """Those that the parameters ask for."""
        if config.mask_adaptation == "none":
            return None
        return cls(vocab, config.mask_adaptation, config.mask_adaptation_smoothing, config.mask_adaptation_steps)

    def take(self, tally: TokenTally, step: int) -> None:
        """Take in what step `step`, from 1, has counted, and renew the weights if it is time. No GPU is waited for."""
        self.sums += tally.sums
        if step % self.steps == 0:
            self.renew()

    def renew(self) -> None:
        """Renew the weights, in place, by the steps since the last time."""
        loss, correct, count = self.sums
        if self.score == "hard":
            difficulty = 1 - (correct + 0.5) / (count + 1)
        else:
            mean = (loss + math.log(len(loss))) / (count + 1)
            difficulty = (mean - mean.min()) / (mean.max() - mean.min()).clamp(min=1e-9)
        weights = (self.smoothing * self.weights + (1 - self.smoothing) * difficulty).clamp(min=SMALLEST)
        self.weights.copy_(weights / weights.mean())
        self.sums.zero_()

    def summary(self, data: PreparedData, most: int = 10) -> dict[str, Any]:
        """For a record: quantiles of the weights of the tokens that the training text has, the heaviest, the lightest.

        Special tokens are left out.
        """
        weights, counts = self.weights.double().cpu().numpy(), data.train_counts().copy()
        counts[list(data.special_ids)] = 0
        (ids,) = counts.nonzero()
        ids = ids[np.argsort(-weights[ids], kind="stable")]
        heaviest, lightest = (
            list(
                zip(data.tokenizer().convert_ids_to_tokens(some.tolist()), weights[some].round(4).tolist(), strict=True)
            )
            for some in (ids[:most], ids[: -most - 1 : -1])
        )
        shares = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)
        quantiles = dict(zip(map(str, shares), np.quantile(weights[ids], shares).round(4).tolist(), strict=True))
        return {"quantiles": quantiles, "heaviest": heaviest, "lightest": lightest}
