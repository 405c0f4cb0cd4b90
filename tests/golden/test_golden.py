"""Golden loss curves: 20 steps of each model on CPU. `python tests/golden/test_golden.py` renews them on purpose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from threeml_core.config import StudyConfig
from threeml_core.masking import Masking, corrupt
from threeml_core.models.build import build_model
from threeml_core.parameters.architectures import PAPER_ARCHITECTURES
from threeml_core.parameters.masking import levels_of
from threeml_core.training.optim import linear_warmup_decay, make_optimizer, set_learning_rate

FILE = Path(__file__).with_name("losses.json")
VOCAB, N, STEPS = 97, 32, 20
KINDS = ("pre", "post", "modern")
OPTIMIZERS = {"adamw": "", "muon": "-muon"}
SCHEDULE = {"mask_rate": 0.5, "mask_rate_schedule": "linear", "mask_rate_end": 0.15}


def curve(architecture: str, kind: str, by: str, **changes: Any) -> list[float]:
    """Losses in nats; blocks with a rule to learn (each token is its left neighbour plus one)."""
    modern: Any = {"encoder": "modernbert", "local_attention": 16, "global_attn_every_n_layers": 2}
    config = StudyConfig(
        architecture=architecture,
        **modern if kind == "modern" else {"layer_norm": kind},
        sequence_length=N,
        max_position_embeddings=N + 2,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        decoder_hidden_size=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        learning_rate=1e-2,
        optimizer=by,
        max_steps=STEPS,
        batch_size=16,
        **changes,
    )
    torch.manual_seed(0)
    model = build_model(config, VOCAB, mask_token_id=4).train()
    optimizer = make_optimizer(model, config)
    rates = [level.rate for level in levels_of(config.parameters()) for _ in range(len(level))]
    losses = []
    for step, rate in enumerate(rates):
        generator = torch.Generator().manual_seed(step)
        first = torch.randint(0, VOCAB - 5, (16, 1), generator=generator)
        blocks = (first + torch.arange(N)) % (VOCAB - 5) + 5
        blocks[:, 0], blocks[:, -1] = 0, 2
        set_learning_rate(optimizer, config.learning_rate * linear_warmup_decay(step, STEPS, 0.06))
        optimizer.zero_grad()
        batch = corrupt(blocks, Masking(4, (0, 1, 2, 3, 4), VOCAB, rate), generator)
        loss = model(corrupted=batch, return_logits=False).loss
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 6))
    return losses


@pytest.mark.parametrize("by", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", PAPER_ARCHITECTURES)
def test_golden_curve(architecture: str, kind: str, by: str) -> None:
    expected = json.loads(FILE.read_text())[f"{architecture}-{kind}{OPTIMIZERS[by]}"]
    assert curve(architecture, kind, by) == pytest.approx(expected, rel=3e-3 if by == "muon" else 1e-3)  # by bfloat16


@pytest.mark.parametrize("architecture", ["vanilla", "self"])
def test_golden_curve_of_a_schedule(architecture: str) -> None:
    expected = json.loads(FILE.read_text())[f"{architecture}-pre-schedule"]
    assert curve(architecture, "pre", "adamw", **SCHEDULE) == pytest.approx(expected, rel=1e-3)


if __name__ == "__main__":
    curves = {
        f"{a}-{k}{end}": curve(a, k, by) for by, end in OPTIMIZERS.items() for a in PAPER_ARCHITECTURES for k in KINDS
    }
    curves |= {f"{a}-pre-schedule": curve(a, "pre", "adamw", **SCHEDULE) for a in ("vanilla", "self")}
    FILE.write_text(json.dumps(curves, indent=1) + "\n")
