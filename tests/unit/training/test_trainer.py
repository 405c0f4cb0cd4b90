"""One step of training: the same, however it is cut."""

from __future__ import annotations

import pytest
import torch

from threeml_core.config import make_config
from threeml_core.data.prepare import prepare_data
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.training.trainer import Trainer

CPU = torch.device("cpu")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_accumulation_equals_one_big_batch(architecture: str, small: dict) -> None:
    whole = make_config({**small, "architecture": architecture})
    data = prepare_data(whole)
    a, b = Trainer(whole, data, CPU), Trainer(whole.replace(micro_batch_size=2), data, CPU)
    for _ in range(3):
        assert a.update().item() == pytest.approx(b.update().item(), rel=1e-5)
    for (name, p), q in zip(a.model.named_parameters(), b.model.parameters(), strict=True):
        assert torch.allclose(p, q, atol=2e-5), name


def test_same_seed_same_run(small: dict) -> None:
    config = make_config({**small, "hidden_dropout_prob": 0.1})
    data = prepare_data(config)
    losses = []
    for _ in range(2):
        trainer = Trainer(config, data, CPU)
        losses.append([trainer.update().item() for _ in range(4)])
    assert losses[0] == losses[1]


def test_each_level_of_a_schedule_is_compiled_once(small: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """More levels than torch compiles by default; the inductor is not needed to count graphs."""
    from torch._dynamo.utils import counters

    honest = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, mode, **how: honest(model, backend="aot_eager", **how))
    schedule = {"mask_rate": 0.6, "mask_rate_schedule": "steps", "mask_rate_levels": 9, "num_hidden_layers": 1}
    config = make_config({**small, **schedule, "architecture": "vanilla", "torch_compile": True, "max_steps": 9})
    torch._dynamo.reset()
    counters.clear()
    trainer = Trainer(config, prepare_data(config), CPU)
    for _ in range(config.max_steps):
        trainer.update()
    assert counters["stats"]["unique_graphs"] == 9 and not counters["graph_break"]
