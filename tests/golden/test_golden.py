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
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.training.optim import linear_warmup_decay, make_optimizer, set_learning_rate

FILE = Path(__file__).with_name("losses.json")
VOCAB, N, STEPS = 97, 32, 20
KINDS = ("pre", "post", "modern")
OPTIMIZERS = {"adamw": "", "muon": "-muon"}


def curve(architecture: str, kind: str, by: str) -> list[float]:
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
    )
    torch.manual_seed(0)
    model = build_model(config, VOCAB, mask_token_id=4).train()
    optimizer = make_optimizer(model, config)
    masking = Masking(4, (0, 1, 2, 3, 4), VOCAB, 0.4)
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        first = torch.randint(0, VOCAB - 5, (16, 1), generator=generator)
        blocks = (first + torch.arange(N)) % (VOCAB - 5) + 5
        blocks[:, 0], blocks[:, -1] = 0, 2
        set_learning_rate(optimizer, config.learning_rate * linear_warmup_decay(step, STEPS, 0.06))
        optimizer.zero_grad()
        loss = model(corrupted=corrupt(blocks, masking, generator), return_logits=False).loss
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 6))
    return losses


@pytest.mark.parametrize("by", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_golden_curve(architecture: str, kind: str, by: str) -> None:
    expected = json.loads(FILE.read_text())[f"{architecture}-{kind}{OPTIMIZERS[by]}"]
    assert curve(architecture, kind, by) == pytest.approx(expected, rel=3e-3 if by == "muon" else 1e-3)  # by bfloat16


if __name__ == "__main__":
    curves = {f"{a}-{k}{end}": curve(a, k, by) for by, end in OPTIMIZERS.items() for a in ARCHITECTURES for k in KINDS}
    FILE.write_text(json.dumps(curves, indent=1) + "\n")
