"""Validation: perplexity in total and by kind, on one fixed corruption, beside the unigram perplexity.

Source: Tables 1 and 2c. Perplexity is exp of the mean cross-entropy in nats over corrupted tokens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from threeml_core.config import StudyConfig
from threeml_core.data.prepare import PreparedData
from threeml_core.foundation.errors import ParameterError
from threeml_core.masking import MASKED, NOT_PREDICTED, CorruptedBatch, Masking, corrupt
from threeml_core.parameters.masking import KINDS, levels_of
from threeml_core.parameters.model import too_few_kept

EVAL_SEED = 20221027
"""Seed of the one corruption that every model is validated on."""


def masking_of(config: StudyConfig, data: PreparedData, evaluation: bool = False) -> Masking:
    """The corruption of training, or the fixed one of validation; checked against the sequences it will meet.

    With a schedule of the mask rate: that of its first level, checked at its highest.
    """
    masking = Masking(
        mask_token_id=data.token_ids["mask_token_id"],
        special_ids=data.special_ids,
        vocab_size=data.vocab_size,
        mask_rate=config.eval_mask_rate if evaluation else config.mask_rate,
        mask_split=config.eval_mask_split if evaluation else config.mask_split,
        mask_counts="exact" if evaluation else config.mask_counts,
        mask_special_tokens=config.mask_special_tokens and not evaluation,
    )
    sequences = data.validation if evaluation else data.train
    highest = masking.mask_rate if evaluation else max(level.rate for level in levels_of(config.parameters()))
    n, special, most = sequences.n, sequences.max_special_tokens, dataclasses.replace(masking, mask_rate=highest)
    most.check(n, special)
    if config.architecture == "token_dropping" and not evaluation:
        if problem := too_few_kept(n, config.kept_share, most.counts(n).masked + special):
            raise ParameterError(problem)
    return masking


def validation_sequences(config: StudyConfig, data: PreparedData) -> Tensor:
    """(k, n): at most `max_eval_sequences` validation sequences, evenly over the text."""
    last = len(data.validation) - 1
    return data.validation[np.unique(np.linspace(0, last, config.max_eval_sequences).round().astype(int))]


def fixed_corruption(sequences: Tensor, masking: Masking) -> CorruptedBatch:
    """The corruption of the validation sequences: a function of sequences, rate and split only.

    It is always drawn on the CPU with exact counts, so every model and every device sees the same.
    """
    batch = corrupt(sequences, masking, torch.Generator().manual_seed(EVAL_SEED))
    assert isinstance(batch, CorruptedBatch)
    return batch


def tokens_by_kind(batch: CorruptedBatch) -> dict[str, int]:
    """How many tokens of a batch are masked, replaced and unchanged."""
    return {kind: int((batch.kinds == code).sum()) for code, kind in enumerate(KINDS, MASKED)}


def corruption_fingerprint(batch: CorruptedBatch) -> str:
    """Two perplexities may be compared if they carry the same one."""
    digest = hashlib.sha256()
    for tensor in (batch.input_ids, batch.labels):
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:12]


def unigram_log_probabilities(train_counts: np.ndarray, special_ids: tuple[int, ...]) -> Tensor:
    """(vocab,) log-probabilities of the training text's tokens, add-one smoothed, special tokens left out."""
    counts = torch.from_numpy(train_counts).double() + 1
    counts[list(special_ids)] = 0
    return (counts / counts.sum()).log()


def summarize(losses: Tensor, kinds: Tensor, prefix: str) -> dict[str, float]:
    """Cross-entropies in nats and the kind of each, both (sequences, slots) -> mean loss, perplexities, by kind too.

    For the kinds see `CorruptedBatch.kinds`; slots that hold nothing are passed over. `prefix` is that of the names.
    """
    total = losses[kinds != NOT_PREDICTED].mean()
    result = {f"{prefix}_loss": total.item(), f"{prefix}_perplexity": total.exp().item()}
    for code, kind in enumerate(KINDS, MASKED):
        if (part := losses[kinds == code]).numel():
            result[f"{prefix}_perplexity_{kind}"] = part.mean().exp().item()
    return result


@torch.no_grad()
def mlm_perplexity(
    model: PreTrainedModel, corruption: CorruptedBatch, unigram: Tensor, batch_size: int = 32, autocast: Any = None
) -> dict[str, float]:
    """Validation loss and perplexities of the model, and of the unigram distribution at the same positions.

    Args:
        model: of any architecture; its training mode is restored.
        corruption: from `fixed_corruption`, on the CPU.
        unigram: (vocab,) from `unigram_log_probabilities`.
        batch_size: sequences per forward pass.
        autocast: a context manager for mixed precision.

    Returns:
        `eval_loss` (nats), `eval_perplexity`, `eval_perplexity_<kind>`, and the same as `unigram_*`.
    """
    was_training = model.training
    model.eval()
    losses = []
    try:
        for part in corruption.split(batch_size):
            part = part.to(model.device)
            with autocast or contextlib.nullcontext():
                logits = model(corrupted=part).logits
            flat = F.cross_entropy(logits.flatten(0, 1).float(), part.targets.flatten(), reduction="none")
            losses.append(flat.view(logits.shape[:2]).double().cpu())
    finally:
        model.train(was_training)
    kinds = corruption.kinds
    by_unigram = -unigram[corruption.targets.clamp(min=0)]
    return summarize(torch.cat(losses), kinds, "eval") | summarize(by_unigram, kinds, "unigram")


PLATEAU_MARGIN = 0.95
"""Masked perplexity above this share of the unigram's counts as "has not left the plateau"."""


def on_unigram_plateau(metrics: dict[str, float]) -> bool:
    """Has the model learned next to nothing about masked tokens beyond how frequent they are?"""
    return metrics["eval_perplexity_masked"] > PLATEAU_MARGIN * metrics["unigram_perplexity_masked"]


def corruption_example(
    tokenizer: PreTrainedTokenizerBase, original: Tensor, batch: CorruptedBatch, tokens: int = 24
) -> list[dict[str, str]]:
    """Rows for a table: the start of the first sequence as it is, corrupted, and as the 3ML encoder sees it.

    Args:
        tokenizer: whose ids they are.
        original: (batch, n), before the corruption.
        batch: what became of it.
        tokens: how many are shown.
    """
    shown, seen = (
        [repr(tokenizer.convert_tokens_to_string([token])) for token in tokenizer.convert_ids_to_tokens(ids.tolist())]
        for ids in (original[0, :tokens], batch.input_ids[0, :tokens])
    )
    codes = dict(zip(batch.corrupted_idx[0].tolist(), batch.kinds[0].tolist(), strict=True))
    kinds = {place: KINDS[code - MASKED] for place, code in codes.items() if code != NOT_PREDICTED}
    return [
        {
            "Position": f"{i}",
            "Token": token,
            "Corrupted": corrupted,
            "Kind": kinds.get(i, ""),
            "3ML encoder sees": "" if kinds.get(i) == "masked" else corrupted,
        }
        for i, (token, corrupted) in enumerate(zip(shown, seen, strict=True))
    ]
