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


WEIGHTS = torch.ones(VOCAB).index_fill_(0, torch.arange(5, 60), 4.0).index_fill_(0, torch.arange(150, VOCAB), 0.25)


@pytest.mark.parametrize("rate", [0.15, 0.4, 0.75])
def test_weights_change_no_count_and_spare_special_tokens(rate: float) -> None:
    ids, masking = blocks(), Masking(4, SPECIAL, VOCAB, rate)
    plain, weighted, again = (
        corrupt(ids, masking, torch.Generator().manual_seed(1), weights) for weights in (None, WEIGHTS, WEIGHTS)
    )
    assert isinstance(plain, CorruptedBatch) and isinstance(weighted, CorruptedBatch)
    assert torch.equal(weighted.input_ids, again.input_ids) and not torch.equal(weighted.labels, plain.labels)
    for name in ("keep_idx", "mask_idx", "visible_idx"):
        assert getattr(weighted, name).shape == getattr(plain, name).shape
    assert kinds_of(weighted) == pytest.approx(kinds_of(plain), abs=1)
    together = torch.cat([weighted.keep_idx, weighted.mask_idx], 1).sort(1).values
    assert torch.equal(together, torch.arange(64).expand(64, -1))
    assert not set(weighted.labels.unique().tolist()) & set(SPECIAL)


def test_one_token_of_a_sequence_is_drawn_by_its_share_of_the_weight() -> None:
    """P(i) = w_i / sum w; within 5 standard deviations of a binomial over 20,000 rows."""
    row = torch.tensor([0, 10, 70, 160, 11, 2])  # weights 4, 1, 1/4, 4
    batch = corrupt(row.expand(20_000, -1), Masking(4, SPECIAL, VOCAB, 1 / 6, "100-0-0"), torch.Generator(), WEIGHTS)
    assert isinstance(batch, CorruptedBatch) and batch.mask_idx.shape[1] == 1
    found = batch.mask_idx.flatten().bincount(minlength=6) / 20_000
    share = torch.tensor([0, 4, 1, 0.25, 4, 0]) / 9.25
    assert (abs(found - share) <= 5 * (share * (1 - share) / 20_000).sqrt()).all()


def test_two_tokens_are_drawn_one_after_the_other() -> None:
    """P({i, j}) = w_i w_j / (1 - w_i) + w_i w_j / (1 - w_j), w summing to 1; each kind has its share of each token."""
    row, rows = torch.tensor([0, 10, 70, 160, 2]), 20_000
    batch = corrupt(row.expand(rows, -1), Masking(4, SPECIAL, VOCAB, 0.4, "50-50-0"), torch.Generator(), WEIGHTS)
    assert isinstance(batch, CorruptedBatch) and (batch.mask_idx.shape[1], batch.visible_idx.shape[1]) == (1, 1)
    w = (torch.tensor([4, 1, 0.25]) / 5.25).tolist()
    for left_out in range(3):
        i, j = (k for k in range(3) if k != left_out)
        share = w[i] * w[j] / (1 - w[i]) + w[i] * w[j] / (1 - w[j])
        found = (batch.labels[:, 1 + left_out] == -100).sum().item()
        assert abs(found - rows * share) <= 5 * math.sqrt(rows * share * (1 - share))
    for token in range(1, 4):
        masked, replaced = ((idx == token).sum().item() for idx in (batch.mask_idx, batch.visible_idx))
        assert abs(masked - replaced) <= 5 * math.sqrt(masked + replaced)


@pytest.mark.parametrize("counts", ["exact", "probabilistic"])
def test_equal_weights_are_a_uniform_draw(counts: str) -> None:
    """Each of 14 places and each kind of it as often as the others: 5 standard deviations of 20,000 rows."""
    rows, n = 20_000, 16
    ids = torch.arange(5, 5 + n).expand(rows, -1).clone()
    ids[:, 0], ids[:, -1] = 0, 2
    masking = Masking(4, SPECIAL, VOCAB, 0.4, "80-10-10", counts)
    batch = corrupt(ids, masking, torch.Generator(), torch.full((VOCAB,), 0.7))
    for found in ((batch.labels != -100), (batch.input_ids == 4)):
        assert not found[:, [0, -1]].any()
        share = found.sum().item() / rows / (n - 2)
        deviation = math.sqrt(rows * share * (1 - share))
        assert (abs(found[:, 1:-1].sum(0) - rows * share) <= 5 * deviation).all()


def test_probabilistic_counts_take_weights_too() -> None:
    ids, masking = blocks(512), Masking(4, SPECIAL, VOCAB, 0.4, "80-10-10", "probabilistic")
    plain, weighted = (corrupt(ids, masking, torch.Generator().manual_seed(0), w) for w in (None, WEIGHTS))
    for batch in (plain, weighted):
        assert (batch.labels != -100).sum() == pytest.approx(512 * 25.6, rel=0.01)
    heavy = [(batch.labels[ids < 60] >= 5).float().mean().item() for batch in (plain, weighted)]
    assert heavy[1] > 1.3 * heavy[0]
