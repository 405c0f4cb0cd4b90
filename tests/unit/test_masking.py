"""Corruption: exact counts, shares, protection of special tokens, reproducibility."""

from __future__ import annotations

import math

import pytest
import torch

from threeml_core.errors import ParameterError
from threeml_core.masking import CorruptedBatch, Masking, RaggedBatch, corrupt

SPECIAL = (0, 1, 2, 3, 4)
VOCAB = 200


def blocks(rows: int = 64, n: int = 64) -> torch.Tensor:
    ids = torch.randint(5, VOCAB, (rows, n), generator=torch.Generator().manual_seed(7))
    ids[:, 0], ids[:, -1], ids[::3, n // 2] = 0, 2, 2
    return ids


def draw(ids: torch.Tensor, seed: int = 0, **settings) -> CorruptedBatch:
    masking = Masking(4, SPECIAL, VOCAB, **settings)
    batch = corrupt(ids, masking, torch.Generator().manual_seed(seed))
    assert isinstance(batch, CorruptedBatch)
    return batch


@pytest.mark.parametrize("split", ["80-10-10", "100-0-0", "80-20-0", "80-0-20"])
@pytest.mark.parametrize("rate", [0.15, 0.4, 0.75])
def test_exact_counts_in_every_row(split: str, rate: float) -> None:
    ids = blocks()
    batch = draw(ids, mask_rate=rate, mask_split=split)
    masked, replaced, unchanged = Masking(4, SPECIAL, VOCAB, rate, split).counts(64)
    assert ((batch.input_ids == 4).sum(1) == masked).all()
    assert ((batch.labels != -100).sum(1) == masked + replaced + unchanged).all()
    assert list(batch.kind_sizes.values()) == [masked, replaced, unchanged]
    assert batch.keep_idx.shape[1] + batch.mask_idx.shape[1] == 64
    together = torch.cat([batch.keep_idx, batch.mask_idx], 1).sort(1).values
    assert torch.equal(together, torch.arange(64).expand(64, -1))
    assert (batch.keep_idx.diff(dim=1) > 0).all() and (batch.mask_idx.diff(dim=1) > 0).all()


def test_kinds_hold_what_they_say() -> None:
    ids = blocks()
    batch = draw(ids)
    assert torch.equal(batch.targets, ids.gather(1, batch.corrupted_idx))
    assert torch.equal(batch.input_ids.gather(1, batch.unchanged_idx), ids.gather(1, batch.unchanged_idx))
    untouched = torch.ones_like(ids, dtype=torch.bool).scatter_(1, batch.corrupted_idx, False)
    assert torch.equal(batch.input_ids[untouched], ids[untouched])
    assert (batch.labels[untouched] == -100).all()


def test_special_tokens_are_neither_corrupted_nor_drawn() -> None:
    ids = blocks()
    batch = draw(ids, mask_rate=0.9, mask_split="50-50-0")
    special = torch.isin(ids, torch.tensor(SPECIAL))
    assert torch.equal(batch.input_ids[special], ids[special])
    assert not torch.isin(batch.input_ids.gather(1, batch.replaced_idx), torch.tensor(SPECIAL)).any()


def test_special_tokens_can_be_corrupted_as_in_fairseq() -> None:
    ids = blocks()
    batch = draw(ids, mask_rate=0.95, mask_special_tokens=True)
    assert (batch.input_ids[:, 0] == 4).any()
    assert not torch.isin(batch.input_ids.gather(1, batch.replaced_idx), torch.tensor(SPECIAL)).any()


def test_every_regular_token_is_equally_likely() -> None:
    """Positions and replacements are uniform: within five standard deviations of the expected counts."""
    ids = blocks(4096, 32)
    batch = draw(ids, mask_rate=0.5, mask_split="50-50-0")
    draws = batch.input_ids.gather(1, batch.replaced_idx).flatten()
    expected = draws.numel() / (VOCAB - len(SPECIAL))
    counts = torch.bincount(draws, minlength=VOCAB)[5:].double()
    assert (counts - expected).abs().max() < 5 * math.sqrt(expected)
    rows = ids[1::3]  # without a </s> in the middle, places 1 to 30 are all candidates
    share = (draw(rows, mask_rate=0.5).labels != -100).double().mean(0)[1:-1]
    assert (share - 16 / 30).abs().max() < 5 * math.sqrt(0.25 / len(rows))


def test_same_generator_same_batch() -> None:
    ids = blocks()
    first, second, other = draw(ids, 1), draw(ids, 1), draw(ids, 2)
    assert torch.equal(first.input_ids, second.input_ids) and torch.equal(first.corrupted_idx, second.corrupted_idx)
    assert not torch.equal(first.input_ids, other.input_ids)
    before = torch.get_rng_state()
    draw(ids, 3)
    assert torch.equal(before, torch.get_rng_state())


def test_split_in_micro_batches_loses_nothing() -> None:
    batch = draw(blocks())
    parts = batch.split(10)
    assert [len(part.input_ids) for part in parts] == [10] * 6 + [4]
    assert torch.equal(torch.cat([part.targets for part in parts]), batch.targets)


def test_too_many_special_tokens_is_refused() -> None:
    ids = blocks(2, 16)
    ids[0, 1:10] = 2
    with pytest.raises(ParameterError, match=r"mask_rate=0.6 corrupts 10 of 16 tokens.*lower it to at most 0.312"):
        draw(ids, mask_rate=0.6)


def test_probabilistic_counts_follow_fairseq() -> None:
    """int(r·n + u) corrupted a row, so the mean is r·n exactly; kinds are drawn per token."""
    ids = blocks(4096, 30)[1::3]
    masking = Masking(4, SPECIAL, VOCAB, 0.42, "80-10-10", "probabilistic")
    batch = corrupt(ids, masking, torch.Generator().manual_seed(0))
    assert isinstance(batch, RaggedBatch)
    counts = (batch.labels != -100).sum(1)
    assert set(counts.tolist()) == {12, 13}
    assert counts.double().mean() == pytest.approx(12.6, abs=0.06)
    kinds = torch.bincount(batch.kinds.flatten().long(), minlength=4)[1:].double()
    share = kinds / kinds.sum()
    assert torch.allclose(share, torch.tensor([0.8, 0.1, 0.1]).double(), atol=0.015)
    assert torch.equal(batch.kinds > 0, batch.labels != -100)
    assert torch.equal(batch.input_ids[batch.kinds == 3], ids[batch.kinds == 3])
    assert (batch.input_ids[batch.kinds == 1] == 4).all()
