"""Corruption: exact counts, shares, protection of special tokens, reproducibility."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from threeml_core.foundation.errors import ParameterError
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


def replaced(batch: CorruptedBatch) -> torch.Tensor:
    """The random tokens of a batch."""
    return batch.input_ids.gather(1, batch.visible_idx)[batch.visible_kinds == 2]


def kinds_of(batch: CorruptedBatch) -> list[int]:
    """Masked, replaced and unchanged tokens of a batch."""
    return torch.bincount(batch.kinds.flatten().long(), minlength=4)[1:].tolist()


@pytest.mark.parametrize("split", ["80-10-10", "100-0-0", "80-20-0", "80-0-20"])
@pytest.mark.parametrize("rate", [0.15, 0.4, 0.75])
def test_every_row_has_the_same_masks_and_its_visible_tokens_within_one(split: str, rate: float) -> None:
    ids = blocks()
    batch = draw(ids, mask_rate=rate, mask_split=split)
    counts = Masking(4, SPECIAL, VOCAB, rate, split).counts(64)
    assert ((batch.input_ids == 4).sum(1) == counts.masked).all()
    visible = (batch.labels != -100).sum(1) - counts.masked
    assert set(visible.tolist()) <= {math.floor(counts.visible), math.ceil(counts.visible)}
    assert torch.equal(batch.kinds != 0, batch.targets != -100)
    assert batch.corrupted_idx.shape[1] == counts.masked + counts.visible_slots
    assert batch.keep_idx.shape[1] + batch.mask_idx.shape[1] == 64
    together = torch.cat([batch.keep_idx, batch.mask_idx], 1).sort(1).values
    assert torch.equal(together, torch.arange(64).expand(64, -1))
    assert (batch.keep_idx.diff(dim=1) > 0).all() and (batch.mask_idx.diff(dim=1) > 0).all()


@pytest.mark.parametrize("n", [16, 31, 32, 64, 128, 512])
@pytest.mark.parametrize("rate", [0.06, 0.15, 0.2, 0.4, 0.5, 0.75])
@pytest.mark.parametrize("split", ["80-10-10", "80-15-5", "70-20-10", "33.3-33.3-33.4", "80-0-20"])
def test_the_split_is_exact_over_rows(n: int, rate: float, split: str) -> None:
    """Over any number of rows each kind is within one token of its exact share: nothing is lost by rounding."""
    shares = [Fraction(part) / 100 for part in split.split("-")]
    ids = torch.full((96, n), 7)
    batch = draw(ids, mask_rate=rate, mask_split=split)
    masked, *visible = kinds_of(batch)
    for found, share in zip(visible, shares[1:], strict=True):
        assert abs(found - masked * share / shares[0]) <= 1


def test_the_split_is_exact_over_steps_and_rows_of_one() -> None:
    """15% of 32 tokens are 4 [MASK]s and one token more: in half of the blocks it is replaced, in half unchanged."""
    ids = torch.full((1, 32), 7)
    found = [kinds_of(draw(ids, seed, mask_rate=0.15)) for seed in range(2000)]
    assert {tuple(kinds) for kinds in found} == {(4, 1, 0), (4, 0, 1)}
    assert abs(sum(kinds[1] for kinds in found) - 1000) < 5 * math.sqrt(2000 / 4)
    batch = draw(torch.full((64, 32), 7), mask_rate=0.15)
    assert kinds_of(batch) == [256, 32, 32]


def test_every_place_is_equally_likely_to_be_replaced() -> None:
    """Which row and which token gets the odd one is drawn: no row of a batch is preferred."""
    ids = torch.full((8, 16), 7)
    replaced = torch.zeros(8, 16)
    for seed in range(2000):
        batch = draw(ids, seed, mask_rate=0.2)  # 3 [MASK]s, 0.375 replaced and 0.375 unchanged
        replaced.scatter_add_(1, batch.visible_idx, (batch.visible_kinds == 2).float())
    expected = 2000 * 0.375 / 16
    assert (replaced - expected).abs().max() < 5 * math.sqrt(expected)


def test_kinds_hold_what_they_say() -> None:
    ids = blocks()
    batch = draw(ids)
    places, kinds = batch.corrupted_idx, batch.kinds
    assert torch.equal(batch.targets[kinds > 0], ids.gather(1, places)[kinds > 0])
    assert torch.equal(batch.input_ids.gather(1, places)[kinds == 3], ids.gather(1, places)[kinds == 3])
    assert (batch.input_ids.gather(1, places)[kinds == 2] != ids.gather(1, places)[kinds == 2]).double().mean() > 0.9
    untouched = torch.ones_like(ids, dtype=torch.bool).scatter_(1, places, kinds == 0)
    assert torch.equal(batch.input_ids[untouched], ids[untouched])
    assert (batch.labels[untouched] == -100).all()


def test_special_tokens_are_neither_corrupted_nor_drawn() -> None:
    ids = blocks()
    batch = draw(ids, mask_rate=0.9, mask_split="50-50-0")
    special = torch.isin(ids, torch.tensor(SPECIAL))
    assert torch.equal(batch.input_ids[special], ids[special])
    assert not torch.isin(replaced(batch), torch.tensor(SPECIAL)).any()


def test_special_tokens_can_be_corrupted_as_in_fairseq() -> None:
    ids = blocks()
    batch = draw(ids, mask_rate=0.95, mask_special_tokens=True)
    assert (batch.input_ids[:, 0] == 4).any()
    assert not torch.isin(replaced(batch), torch.tensor(SPECIAL)).any()


def test_every_regular_token_is_equally_likely() -> None:
    """Positions and replacements are uniform: within five standard deviations of the expected counts."""
    ids = blocks(4096, 32)
    batch = draw(ids, mask_rate=0.5, mask_split="50-50-0")
    draws = replaced(batch)
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
    with pytest.raises(ParameterError, match=r"mask_rate=0.6 corrupts 10 of 16 tokens.*lower it to at most 0.351"):
        draw(ids, mask_rate=0.6)
    draw(ids, mask_rate=0.351)
    with pytest.raises(ParameterError):
        draw(ids, mask_rate=0.352)
    ids[0, 1:15] = 2
    with pytest.raises(ParameterError, match="16 special tokens that stay: join short documents"):
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
