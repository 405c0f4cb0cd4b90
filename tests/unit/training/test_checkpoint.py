"""Saved states: resumed bit for bit, and whole whatever happens."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from tests.combinations import WITH_ENCODERS
from threeml_core.config import make_config
from threeml_core.data.prepare import prepare_data
from threeml_core.foundation.errors import StudyError
from threeml_core.foundation.log import no_line
from threeml_core.training.checkpoint import SavedStates, load_training_state
from threeml_core.training.trainer import Trainer

CPU = torch.device("cpu")


def state_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize(("architecture", "encoder"), WITH_ENCODERS)
def test_resume_is_bit_for_bit(architecture: str, encoder: str, optimizer: str, small: dict, tmp_path: Path) -> None:
    """With dropout on: weights after save, load and k more steps equal those of the uninterrupted run."""
    given = {"architecture": architecture, "encoder": encoder, "optimizer": optimizer, "hidden_dropout_prob": 0.1}
    config = make_config({**small, **given})
    data = prepare_data(config)
    straight = Trainer(config, data, CPU)
    for _ in range(10):
        straight.update()
    states = SavedStates(tmp_path, keep=2)
    states.save(straight.model, straight.optimizer, straight.state)
    expected_losses = [straight.update().item() for _ in range(10)]
    torch.manual_seed(999)
    resumed = Trainer(config, data, CPU)
    saved = states.newest(no_line)
    assert saved is not None
    resumed.state = load_training_state(saved, resumed.model, resumed.optimizer)
    assert resumed.state.step == 10
    assert [resumed.update().item() for _ in range(10)] == expected_losses
    assert same(state_of(resumed.model), state_of(straight.model))
    moments = [[t.optimizer.state[p] for p in t.model.parameters()] for t in (straight, resumed)]
    assert all(same(*pair) for pair in zip(*moments, strict=True))


def test_disk_full_while_saving_keeps_the_previous_state(own_runs: dict, tmp_path: Path) -> None:
    import resource

    config = make_config(own_runs)
    trainer = Trainer(config, prepare_data(config), CPU)
    states = SavedStates(tmp_path / "states", keep=1)
    states.save(trainer.model, trainer.optimizer, trainer.state)
    (path,) = states.files()
    before = path.read_bytes()
    trainer.update()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(StudyError, match="the disk is full"):
            states.save(trainer.model, trainer.optimizer, trainer.state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.name for p in states.folder.iterdir()] == [path.name] and path.read_bytes() == before
