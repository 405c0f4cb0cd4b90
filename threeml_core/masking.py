"""Corruption: which tokens of a sequence are masked, replaced or left unchanged, and all of them predicted.

Source: sections 2.1, 3.3 and 4.3 of the paper; BERT's 80-10-10 split by default. Every draw comes from the
generator that is passed in, so the same generator gives the same batch.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Self

import torch
from torch import Tensor

from threeml_core.foundation.errors import ParameterError
from threeml_core.parameters.masking import CorruptionCounts, corruption_counts, largest_mask_rate, parse_mask_split

IGNORE_INDEX = -100
"""Label of a position that is not predicted (Hugging Face's and torch's convention)."""

NOT_PREDICTED, MASKED, REPLACED, UNCHANGED = range(4)
"""What can stand at a position of a corrupted sequence; `config.KINDS` names the last three."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Corrupted sequences."""

    input_ids: Tensor
    """(batch, n) with [MASK] and random tokens in place."""
    labels: Tensor
    """(batch, n): the original token at corrupted positions, else -100."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same batch with `function` applied to every tensor."""
        return type(self)(*(function(getattr(self, field.name)) for field in dataclasses.fields(self)))

    def to(self, device: torch.device | str) -> Self:
        """The same batch on another device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def split(self, rows: int) -> list[Self]:
        """Micro-batches of `rows` sequences each."""
        return [self.map(operator.itemgetter(slice(i, i + rows))) for i in range(0, len(self.input_ids), rows)]


@dataclasses.dataclass(frozen=True)
class CorruptedBatch(Batch):
    """Sequences with the same number of [MASK]s in every row, so that the encoder needs no padding.

    Index tensors hold positions in the sequence, int64; `keep_idx` and `mask_idx` ascend, and together they cover
    the sequence. Predictions are made at `corrupted_idx`: the [MASK]s, then slots for replaced and unchanged tokens. A
    row that has fewer of these than there are slots has an untouched token in the last one, with label -100.
    """

    keep_idx: Tensor
    """(batch, n_en): positions the encoder sees: all but the masked."""
    mask_idx: Tensor
    """(batch, n_de): positions that hold [MASK]."""
    visible_idx: Tensor
    """(batch, n_visible): positions that hold a random token or their own; the encoder sees them."""
    visible_kinds: Tensor
    """(batch, n_visible) int8: what stands there, as in `kinds`."""

    @property
    def corrupted_idx(self) -> Tensor:
        """(batch, n_de + n_visible): `mask_idx`, then `visible_idx`."""
        return torch.cat([self.mask_idx, self.visible_idx], 1)

    @property
    def kinds(self) -> Tensor:
        """(batch, n_de + n_visible) int8, as `corrupted_idx`: 1 masked, 2 replaced, 3 unchanged, 0 not predicted."""
        return torch.cat([torch.ones_like(self.mask_idx, dtype=torch.int8), self.visible_kinds], 1)

    @property
    def targets(self) -> Tensor:
        """(batch, n_de + n_visible): original tokens, as `corrupted_idx`; -100 where nothing is predicted."""
        return self.labels.gather(1, self.corrupted_idx)


@dataclasses.dataclass(frozen=True)
class RaggedBatch(Batch):
    """Sequences whose counts differ from row to row (`mask_counts="probabilistic"`).

    Models read it through their ordinary `forward(input_ids, attention_mask, labels)`.
    """

    kinds: Tensor
    """(batch, n) int8: 0 untouched, 1 masked, 2 replaced, 3 unchanged."""


@dataclasses.dataclass(frozen=True)
class Masking:
    """How to corrupt: the rate, the split, and what the vocabulary's special tokens are."""

    mask_token_id: int
    special_ids: tuple[int, ...]
    """Ids that are never corrupted and never drawn as a replacement."""
    vocab_size: int
    mask_rate: float = 0.4
    mask_split: str = "80-10-10"
    mask_counts: str = "exact"
    mask_special_tokens: bool = False
    """Corrupt special tokens too, as fairseq does; they are still never drawn as a replacement."""

    def __post_init__(self) -> None:
        """Check that there is something to draw replacements from."""
        if self.mask_token_id not in self.special_ids:
            object.__setattr__(self, "special_ids", (*self.special_ids, self.mask_token_id))
        if self.vocab_size <= len(set(self.special_ids)):
            raise ParameterError(f"vocab_size={self.vocab_size}: expected more tokens than the special ones")

    def counts(self, n: int) -> CorruptionCounts:
        """Tokens masked, replaced and unchanged in sequences of n (`exact`)."""
        return corruption_counts(n, self.mask_rate, self.mask_split)

    def check(self, n: int, max_special_tokens: int) -> None:
        """Refuse a rate that some sequence of the data cannot satisfy.

        Raises:
            ParameterError: a sequence with `max_special_tokens` special tokens has too few others to corrupt.
        """
        counts = self.counts(n)
        wanted = counts.masked + counts.visible_slots
        if not self.mask_special_tokens and wanted > n - max_special_tokens:
            limit = largest_mask_rate(n, self.mask_split, n - max_special_tokens)
            raise ParameterError(
                f"mask_rate={self.mask_rate} corrupts {wanted} of {n} tokens, but a sequence of this corpus holds "
                f"{max_special_tokens} special tokens that stay: "
                + (f"lower it to at most {limit:.3f}, or " if limit else "")
                + "join short documents"
            )


@functools.lru_cache(maxsize=16)
def _tables(masking: Masking, device: torch.device) -> tuple[Tensor, Tensor]:
    """(vocab_size,) bool: may this token be corrupted and drawn; and the ids of those. Finding them waits for a GPU."""
    regular = torch.ones(masking.vocab_size, dtype=torch.bool)
    regular[list(masking.special_ids)] = False
    return regular.to(device), regular.nonzero()[:, 0].to(device)


def corrupt(sequences: Tensor, masking: Masking, generator: torch.Generator, weights: Tensor | None = None) -> Batch:
    """Corrupt (batch, n) int64 token ids: a `CorruptedBatch` if the counts are exact, else a `RaggedBatch`.

    Every draw comes from `generator`, which is on the device of `sequences`. With `weights` (vocab,), positive, the
    tokens of a sequence are drawn one after the other, each with a chance proportional to the weight of its id among
    those that are left: the smallest of Exp(1) / weight are corrupted. So the counts stay those of a uniform draw.
    Which of them are masked, replaced and unchanged does not depend on the weights.

    Raises:
        ParameterError: a sequence has fewer regular tokens than are to be corrupted.
    """
    device = sequences.device
    regular, drawable = _tables(masking, device)
    candidates = torch.ones_like(sequences, dtype=torch.bool) if masking.mask_special_tokens else regular[sequences]
    noise = torch.rand(sequences.shape, generator=generator, device=device)
    if weights is not None:
        noise = -torch.log1p(-noise) / weights[sequences]
    order = noise.masked_fill(~candidates, torch.inf).argsort(1)
    if masking.mask_counts == "probabilistic":
        return _corrupt_ragged(sequences, masking, generator, candidates, order, drawable)

    counts = masking.counts(sequences.shape[1])
    n_masked, total = counts.masked, counts.masked + counts.visible_slots
    if device.type == "cpu" and int(candidates.sum(1).min()) < total:  # on a GPU `Masking.check` has to do
        masking.check(sequences.shape[1], int((~candidates).sum(1).max()))
    if weights is not None:  # the heaviest come first, but are not the [MASK]s therefore
        shuffled = torch.rand(len(order), total, generator=generator, device=device).argsort(1)
        order = torch.cat([order.gather(1, shuffled), order[:, total:]], 1)
    mask_idx = order[:, :n_masked].sort(1).values
    keep_idx = order[:, n_masked:].sort(1).values
    visible_idx = order[:, n_masked:total]
    kinds = _visible_kinds(len(sequences), counts, generator)

    draws = drawable[torch.randint(len(drawable), kinds.shape, generator=generator, device=device)]
    originals = sequences.gather(1, visible_idx)
    labels = torch.full_like(sequences, IGNORE_INDEX).scatter_(1, mask_idx, sequences.gather(1, mask_idx))
    labels.scatter_(1, visible_idx, originals.where(kinds != NOT_PREDICTED, IGNORE_INDEX))
    input_ids = sequences.scatter(1, mask_idx, masking.mask_token_id)
    input_ids.scatter_(1, visible_idx, draws.where(kinds == REPLACED, originals))
    return CorruptedBatch(input_ids, labels, keep_idx, mask_idx, visible_idx, kinds)


def _visible_kinds(rows: int, counts: CorruptionCounts, generator: torch.Generator) -> Tensor:
    """(rows, slots) int8: replaced, unchanged, or not predicted.

    Systematic sampling: the rows share the tokens out as evenly as whole numbers allow, from a random start, and so do
    the two kinds. Each token's chance is exact, and any number of rows that the split divides has exactly its share.
    """
    device, slots = generator.device, counts.visible_slots
    if not slots:
        return torch.empty(rows, 0, dtype=torch.int8, device=device)
    filled = _evenly(torch.arange(rows, device=device), counts.visible, generator)
    slot = torch.arange(slots, device=device)
    place = (filled.cumsum(0) - filled)[:, None] + slot  # among all replaced and unchanged tokens of the batch
    replaced = _evenly(place, counts.replaced / counts.visible, generator)
    kinds = torch.where(replaced > 0, REPLACED, UNCHANGED)
    return kinds.where(slot < filled[:, None], NOT_PREDICTED).to(torch.int8)


def _evenly(index: Tensor, share: Fraction, generator: torch.Generator) -> Tensor:
    """How many of a stream of things fall on each index, `share` in the mean, as evenly as can be; whole numbers."""
    start = torch.randint(share.denominator, (1,), generator=generator, device=index.device)
    before = index * share.numerator + start
    return (before + share.numerator) // share.denominator - before // share.denominator


def _corrupt_ragged(
    sequences: Tensor, masking: Masking, generator: torch.Generator, candidates: Tensor, order: Tensor, drawable: Tensor
) -> RaggedBatch:
    """Fairseq's draw: int(r·n + u) corrupted tokens a sequence, u uniform; the split drawn per token."""
    n, device = sequences.shape[1], sequences.device
    dither = torch.rand(len(sequences), 1, generator=generator, device=device)
    # at least one a row, so that a step always has something to predict; never more than there are candidates
    total = (masking.mask_rate * n + dither).floor().clamp(min=1).minimum(candidates.sum(1, keepdim=True))
    rank = order.argsort(1)
    corrupted = rank < total
    masked, replaced, _ = parse_mask_split(masking.mask_split)
    draw = torch.rand(sequences.shape, generator=generator, device=device)
    kind = torch.where(draw < masked, MASKED, torch.where(draw < masked + replaced, REPLACED, UNCHANGED))
    kinds = torch.where(corrupted, kind, NOT_PREDICTED).to(torch.int8)
    draws = drawable[torch.randint(len(drawable), sequences.shape, generator=generator, device=device)]
    input_ids = torch.where(kinds == MASKED, masking.mask_token_id, torch.where(kinds == REPLACED, draws, sequences))
    labels = torch.where(corrupted, sequences, IGNORE_INDEX)
    return RaggedBatch(input_ids, labels, kinds)
