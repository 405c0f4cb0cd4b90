"""Corruption as a data collator, for Hugging Face's `Trainer` or any loop with a `DataLoader`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from threeml_core.data.tokenizer import boundary_ids
from threeml_core.foundation.errors import ParameterError
from threeml_core.masking import IGNORE_INDEX, Batch, Masking, corrupt


def masking_for(tokenizer: PreTrainedTokenizerFast, mask_rate: float = 0.4, **others: Any) -> Masking:
    """A `Masking` for a tokenizer, of which no special token is corrupted.

    Args:
        tokenizer: one with a mask token.
        mask_rate: share of the tokens of a sequence that is corrupted.
        others: further fields of `Masking`, such as `mask_split`.

    Raises:
        ParameterError: the tokenizer has no mask token.
    """
    if tokenizer.mask_token_id is None:
        raise ParameterError("the tokenizer has no mask token: take one that has, such as roberta-base's kind")
    special = {*tokenizer.all_special_ids, *(i for i in boundary_ids(tokenizer) if i is not None)}
    return Masking(tokenizer.mask_token_id, tuple(sorted(special)), len(tokenizer), mask_rate, **others)


@dataclasses.dataclass
class CorruptingCollator:
    """Tokenized texts -> arguments of a model's `forward`, corrupted as this project's own training does it.

    Attributes:
        tokenizer: pads.
        masking: what is corrupted, see `masking_for`; of a sequence's own length. `mask_counts="exact"` refuses
            sequences of a few tokens, which "probabilistic" takes, but not for the fast path.
        fast: a `CorruptedBatch`, for sequences of one length without padding: the encoder gets the kept tokens alone,
            and no logits are kept. Else `input_ids`, `attention_mask` and `labels`, padded on the right.
        generator: of every draw, on the CPU; None: torch's own, which `Trainer` seeds, in each worker of its own.
    """

    tokenizer: PreTrainedTokenizerFast
    masking: Masking
    fast: bool = True
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        """Refuse rows of unequal counts, which are no `CorruptedBatch`."""
        if self.fast and self.masking.mask_counts != "exact":
            raise ParameterError(
                f"mask_counts={self.masking.mask_counts!r}: the fast path needs 'exact'; take fast=False"
            )

    def __call__(self, examples: Sequence[Mapping[str, Any] | Sequence[int]]) -> dict[str, Any]:
        """Corrupt token ids, or mappings with `input_ids`, special tokens included.

        Raises:
            ParameterError: sequences of several lengths for the fast path, or one too short for the mask rate.
        """
        rows = [torch.as_tensor(e["input_ids"] if isinstance(e, Mapping) else e, dtype=torch.long) for e in examples]
        lengths = sorted({len(row) for row in rows})
        if not self.fast:
            return self._padded(rows, lengths)
        if len(lengths) > 1:
            raise ParameterError(
                f"sequences of {lengths[0]} to {lengths[-1]} tokens: the fast path needs one length; join and cut the "
                "texts, or take fast=False"
            )
        batch = self._corrupted(torch.stack(rows))
        return {"corrupted": batch, "labels": batch.labels, "return_logits": False}

    def _corrupted(self, sequences: Tensor) -> Batch:
        return corrupt(sequences, self.masking, self.generator or torch.default_generator)

    def _padded(self, rows: list[Tensor], lengths: list[int]) -> dict[str, Tensor]:
        """Rows of one length are corrupted together; padding is in nobody's count."""
        shape = len(rows), lengths[-1]
        ids, labels = torch.full(shape, self.tokenizer.pad_token_id or 0), torch.full(shape, IGNORE_INDEX)
        mask = torch.zeros(shape, dtype=torch.long)
        for n in lengths:
            at = [number for number, row in enumerate(rows) if len(row) == n]
            batch = self._corrupted(torch.stack([rows[number] for number in at]))
            ids[at, :n], labels[at, :n], mask[at, :n] = batch.input_ids, batch.labels, 1
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}
