"""Corruption: which tokens of a block are masked, replaced or left unchanged, and all of them predicted.

Source: sections 2.1, 3.3 and 4.3 of the paper; BERT's 80-10-10 split by default. Every draw comes from the
generator that is passed in, so the same generator gives the same batch.
"""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor

from threeml_core.config import KINDS, corruption_counts, parse_mask_split
from threeml_core.errors import ParameterError

IGNORE_INDEX = -100
"""Label of a position that is not predicted (Hugging Face's and torch's convention)."""


@dataclasses.dataclass(frozen=True)
class CorruptedBatch:
    """Corrupted blocks with the same counts in every row, so that nothing needs padding.

    Index tensors hold positions in the block, int64; `keep_idx` and `mask_idx` ascend, and together they cover
    the block. Corrupted positions are predicted in the order masked, replaced, unchanged.
    """

    input_ids: Tensor
    """(batch, n) with [MASK] and random tokens in place."""
    labels: Tensor
    """(batch, n): the original token at corrupted positions, else -100."""
    keep_idx: Tensor
    """(batch, n_en): positions the encoder sees: all but the masked."""
    mask_idx: Tensor
    """(batch, n_de): positions that hold [MASK]."""
    replaced_idx: Tensor
    """(batch, n_replaced): positions that hold a random token."""
    unchanged_idx: Tensor
    """(batch, n_unchanged): positions that hold their own token and are predicted all the same."""

    @property
    def visible_idx(self) -> Tensor:
        """(batch, n_replaced + n_unchanged): corrupted positions that the encoder sees."""
        return torch.cat([self.replaced_idx, self.unchanged_idx], 1)

    @property
    def corrupted_idx(self) -> Tensor:
        """(batch, n_corrupted): masked, replaced, unchanged."""
        return torch.cat([self.mask_idx, self.replaced_idx, self.unchanged_idx], 1)

    @property
    def targets(self) -> Tensor:
        """(batch, n_corrupted): original tokens, in the order of `corrupted_idx`."""
        return self.labels.gather(1, self.corrupted_idx)

    @property
    def kind_sizes(self) -> dict[str, int]:
        """Corrupted tokens of a row, by kind, in the order of `corrupted_idx`."""
        sizes = (self.mask_idx.shape[1], self.replaced_idx.shape[1], self.unchanged_idx.shape[1])
        return dict(zip(KINDS, sizes, strict=True))

    def map(self, function) -> CorruptedBatch:  # noqa: ANN001  (Tensor -> Tensor)
        """The same batch with `function` applied to every tensor (a slice of rows, a device)."""
        fields = (field.name for field in dataclasses.fields(self))
        return CorruptedBatch(**{name: function(getattr(self, name)) for name in fields})

    def to(self, device: torch.device | str) -> CorruptedBatch:
        """The same batch on another device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def split(self, rows: int) -> list[CorruptedBatch]:
        """Micro-batches of `rows` blocks each."""
        return [self.map(lambda t, i=i: t[i : i + rows]) for i in range(0, len(self.input_ids), rows)]


@dataclasses.dataclass(frozen=True)
class RaggedBatch:
    """Corrupted blocks whose counts differ from row to row (`mask_counts="probabilistic"`).

    Models read it through their ordinary `forward(input_ids, attention_mask, labels)`.
    """

    input_ids: Tensor
    """(batch, n)."""
    labels: Tensor
    """(batch, n): the original token at corrupted positions, else -100."""
    kinds: Tensor
    """(batch, n) int8: 0 untouched, 1 masked, 2 replaced, 3 unchanged."""

    def to(self, device: torch.device | str) -> RaggedBatch:
        """The same batch on another device."""
        return RaggedBatch(self.input_ids.to(device), self.labels.to(device), self.kinds.to(device))

    def split(self, rows: int) -> list[RaggedBatch]:
        """Micro-batches of `rows` blocks each."""
        parts = range(0, len(self.input_ids), rows)
        return [
            RaggedBatch(self.input_ids[i : i + rows], self.labels[i : i + rows], self.kinds[i : i + rows])
            for i in parts
        ]


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

    def regular(self) -> Tensor:
        """(vocab_size,) bool: may this token be corrupted and drawn."""
        table = torch.ones(self.vocab_size, dtype=torch.bool)
        table[list(set(self.special_ids))] = False
        return table

    def tables(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """`regular` and the ids it is true for, on a device; kept, as finding them would wait for a GPU."""
        return _tables(self, device)

    def counts(self, n: int) -> tuple[int, int, int]:
        """Tokens masked, replaced and unchanged in a block of n (`exact`)."""
        return corruption_counts(n, self.mask_rate, self.mask_split)

    def check(self, n: int, max_special_tokens: int) -> None:
        """Refuse a rate that some block of the data cannot satisfy.

        Raises:
            ParameterError: a block with `max_special_tokens` special tokens has too few others to corrupt.
        """
        wanted = sum(self.counts(n))
        if not self.mask_special_tokens and wanted > n - max_special_tokens:
            raise ParameterError(
                f"mask_rate={self.mask_rate} corrupts {wanted} of {n} tokens, but a block of this corpus holds "
                f"{max_special_tokens} special tokens that stay: lower it to at most "
                f"{(n - max_special_tokens) / n:.3f}, or join short documents"
            )


@functools.lru_cache(maxsize=16)
def _tables(masking: Masking, device: torch.device) -> tuple[Tensor, Tensor]:
    regular = masking.regular().to(device)
    return regular, regular.nonzero()[:, 0]


def corrupt(blocks: Tensor, masking: Masking, generator: torch.Generator) -> CorruptedBatch | RaggedBatch:
    """Corrupt token blocks.

    Args:
        blocks: (batch, n) int64 token ids.
        masking: rate, split and special tokens.
        generator: source of every draw; on the device of `blocks`.

    Returns:
        A `CorruptedBatch` if the counts are exact, else a `RaggedBatch`.

    Raises:
        ParameterError: a block has fewer regular tokens than are to be corrupted.
    """
    device = blocks.device
    regular, drawable = masking.tables(device)
    candidates = torch.ones_like(blocks, dtype=torch.bool) if masking.mask_special_tokens else regular[blocks]
    noise = torch.rand(blocks.shape, generator=generator, device=device).masked_fill(~candidates, 2.0)
    order = noise.argsort(1)
    if masking.mask_counts == "probabilistic":
        return _corrupt_ragged(blocks, masking, generator, candidates, order, drawable)

    n_masked, n_replaced, n_unchanged = masking.counts(blocks.shape[1])
    total = n_masked + n_replaced + n_unchanged
    if device.type == "cpu" and int(candidates.sum(1).min()) < total:  # on a GPU `Masking.check` has to do
        masking.check(blocks.shape[1], int((~candidates).sum(1).max()))
    mask_idx = order[:, :n_masked].sort(1).values
    replaced_idx = order[:, n_masked : n_masked + n_replaced]
    unchanged_idx = order[:, n_masked + n_replaced : total]
    keep_idx = order[:, n_masked:].sort(1).values
    corrupted = order[:, :total]

    labels = torch.full_like(blocks, IGNORE_INDEX).scatter_(1, corrupted, blocks.gather(1, corrupted))
    draws = drawable[torch.randint(len(drawable), replaced_idx.shape, generator=generator, device=device)]
    input_ids = blocks.scatter(1, mask_idx, masking.mask_token_id).scatter_(1, replaced_idx, draws)
    return CorruptedBatch(input_ids, labels, keep_idx, mask_idx, replaced_idx, unchanged_idx)


def _corrupt_ragged(
    blocks: Tensor,
    masking: Masking,
    generator: torch.Generator,
    candidates: Tensor,
    order: Tensor,
    drawable: Tensor,
) -> RaggedBatch:
    """Fairseq's draw: int(r·n + u) corrupted tokens a block, u uniform; the split drawn per token."""
    n, device = blocks.shape[1], blocks.device
    dither = torch.rand(len(blocks), 1, generator=generator, device=device)
    # at least one a row, so that a step always has something to predict; never more than there are candidates
    total = (masking.mask_rate * n + dither).floor().clamp(min=1).minimum(candidates.sum(1, keepdim=True))
    rank = order.argsort(1)
    corrupted = rank < total
    masked, replaced, _ = parse_mask_split(masking.mask_split)
    draw = torch.rand(blocks.shape, generator=generator, device=device)
    kind = torch.where(draw < masked, 1, torch.where(draw < masked + replaced, 2, 3))
    kinds = torch.where(corrupted, kind, 0).to(torch.int8)
    draws = drawable[torch.randint(len(drawable), blocks.shape, generator=generator, device=device)]
    input_ids = torch.where(kinds == 1, masking.mask_token_id, torch.where(kinds == 2, draws, blocks))
    labels = torch.where(corrupted, blocks, IGNORE_INDEX)
    return RaggedBatch(input_ids, labels, kinds)
