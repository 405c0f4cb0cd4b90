"""AdamW's parameter groups and the learning-rate schedule. Source: Table 5 (Appendix A)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from threeml_core.config import StudyConfig


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices decay; biases, norms, and the [MASK] vector (everything of one axis) do not."""
    decayed = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def make_optimizer(model: nn.Module, config: StudyConfig) -> torch.optim.AdamW:
    """AdamW with the study's values, in its fused form."""
    return torch.optim.AdamW(
        parameter_groups(model, config.weight_decay),
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        fused=True,
    )


def linear_warmup_decay(step: int, max_steps: int, warmup_ratio: float) -> float:
    """Factor on the peak learning rate at step `step` (from 0): linear up, then linear down to zero.

    The first step already moves (factor 1/warm-up steps), the last has one step's worth left. Source: Table 5.
    """
    warmup = math.ceil(warmup_ratio * max_steps)
    if step < warmup:
        return (step + 1) / warmup
    return (max_steps - step) / max(1, max_steps - warmup)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """The same learning rate for every group."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
