"""Perplexity, of a uniform model and of the unigram."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from threeml_core.config import make_config
from threeml_core.data.prepare import prepare_data
from threeml_core.training.evaluation import (
    fixed_corruption,
    masking_of,
    mlm_perplexity,
    unigram_log_probabilities,
    validation_sequences,
)
from threeml_core.training.trainer import Trainer

CPU = torch.device("cpu")


def test_perplexity_of_a_uniform_model(small: dict) -> None:
    """All logits equal: perplexity is the vocabulary size, for every kind; batch size does not matter."""
    config = make_config(small)
    data = prepare_data(config)
    model = Trainer(config, data, CPU).model
    with torch.no_grad():
        model.get_input_embeddings().weight.zero_()
        model.head_bias.zero_()
    corruption = fixed_corruption(validation_sequences(config, data), masking_of(config, data, evaluation=True))
    unigram = unigram_log_probabilities(data.train_counts(), data.special_ids)
    for batch_size in (3, 100):
        metrics = mlm_perplexity(model, corruption, unigram, batch_size)
        for key, value in metrics.items():
            if key.startswith("eval_perplexity"):
                assert value == pytest.approx(data.vocab_size, rel=1e-4), key


def test_unigram_perplexity_by_hand(small: dict) -> None:
    config = make_config(small)
    data = prepare_data(config)
    counts = data.train_counts().astype(float) + 1
    counts[list(data.special_ids)] = 0
    corruption = fixed_corruption(validation_sequences(config, data), masking_of(config, data, evaluation=True))
    masked = corruption.labels.gather(1, corruption.mask_idx).numpy()
    expected = np.exp(-np.log(counts[masked] / counts.sum()).mean())
    model = Trainer(config, data, CPU).model
    metrics = mlm_perplexity(model, corruption, unigram_log_probabilities(data.train_counts(), data.special_ids))
    assert metrics["unigram_perplexity_masked"] == pytest.approx(expected, rel=1e-9)
