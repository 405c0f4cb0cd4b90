"""What a forward pass executes, counted by torch on the meta device, beside Appendix C."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from threeml_core import flops
from threeml_core.config import StudyConfig, at_constant_rate
from threeml_core.masking import CorruptedBatch, Masking, corrupt
from threeml_core.models.build import build_model
from threeml_core.parameters.architectures import PAPER_ARCHITECTURES


def count_forward_flops(config: StudyConfig, vocab: int | None = None) -> int:
    """FLOPs that torch counts in one forward pass of one sequence; no memory is allocated for the model."""
    vocab = config.vocab_size if vocab is None else vocab
    n = config.sequence_length
    special = (0, 1, 2, 3, 4)
    masking = Masking(4, special, max(vocab, 8), config.mask_rate, config.mask_split)
    sequence = torch.full((1, n), 5)
    sequence[0, 0], sequence[0, -1] = 0, 2
    batch = corrupt(sequence, masking, torch.Generator().manual_seed(0))
    assert isinstance(batch, CorruptedBatch)
    with torch.device("meta"):
        model = build_model(config, vocab).train()
    with FlopCounterMode(display=False) as counter:
        model(corrupted=batch.to("meta"), return_logits=False)
    return int(counter.get_total_flops())


def counted_against_formula(config: StudyConfig) -> list[dict[str, str]]:
    """Rows for a table: formula (exact mode) and count, for the paper's three architectures."""
    rows = []
    for architecture in PAPER_ARCHITECTURES:
        model = at_constant_rate(config.replace(architecture=architecture))
        formula, counted = flops.forward_flops(model, "exact"), count_forward_flops(model)
        rows.append(
            {
                "Model": architecture,
                "Formula": f"{formula:,.0f}",
                "Counted by torch": f"{counted:,}",
                "Difference": f"{counted - formula:,.0f}",
            }
        )
    return rows
