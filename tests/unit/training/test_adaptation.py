"""Adaptive masking: its formulas by hand, what a run does with them, and that nothing else of it changes."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from threeml_core.config import executed_parameters, make_config
from threeml_core.data.prepare import prepare_data
from threeml_core.foundation.errors import DamagedFileError, ParameterError
from threeml_core.models.tally import TokenTally
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.training.adaptation import SMALLEST, MaskWeights
from threeml_core.training.checkpoint import SavedStates, load_training_state
from threeml_core.training.trainer import Trainer, count_of

CPU = torch.device("cpu")
ADAPTIVE = {"mask_adaptation": "hard", "mask_adaptation_steps": 3}


def taken(weights: MaskWeights, sums: list[list[float]], steps: range) -> list[float]:
    """The weights after these steps, each of which counted `sums`: loss, correct, count."""
    tally = TokenTally(len(sums[0]))
    tally.sums.copy_(torch.tensor(sums))
    for step in steps:
        weights.take(tally, step)
    return weights.weights.tolist()


def normalised(weights: list[float]) -> list[float]:
    return [weight * len(weights) / sum(weights) for weight in weights]


def test_hard_weights_by_hand() -> None:
    """Accuracy smoothed by half; an id that nobody predicted is one of accuracy 1/2; the second time forgets 80%."""
    weights = MaskWeights(3, "hard", smoothing=0.2, steps=2)
    counted = [[0.0, 0.0, 0.0], [4.5, 0.0, 0.0], [4.5, 4.5, 0.0]]  # in two steps: 9 of 9, 0 of 9, none
    assert taken(weights, counted, range(1, 2)) == [1, 1, 1] and weights.sums.any()
    first = normalised([0.2 + 0.8 * part for part in (0.05, 0.95, 0.5)])
    assert taken(weights, counted, range(2, 3)) == pytest.approx(first) and not weights.sums.any()
    second = [0.2 * w + 0.8 * part for w, part in zip(first, (0.05, 0.95, 0.5), strict=True)]
    assert taken(weights, counted, range(3, 5)) == pytest.approx(normalised(second))


def test_soft_weights_by_hand() -> None:
    """Mean loss beside one uniform guess, from 0 of the best id to 1 of the worst."""
    weights = MaskWeights(3, "soft", smoothing=0.2, steps=1)
    means = [(0.5 + math.log(3)) / 3, (9 + math.log(3)) / 4, math.log(3)]
    difficulty = [(mean - min(means)) / (max(means) - min(means)) for mean in means]
    expected = normalised([0.2 + 0.8 * part for part in difficulty])
    assert taken(weights, [[0.5, 9.0, 0.0], [0.0] * 3, [2.0, 3.0, 0.0]], range(1, 2)) == pytest.approx(expected)


@pytest.mark.parametrize("score", ["hard", "soft"])
def test_no_weight_comes_near_zero_and_full_smoothing_keeps_all(score: str) -> None:
    sure = [[0.0, 1e6, 0.0], [1e6, 0.0, 0.0], [1e6, 1e6, 0.0]]
    weights = MaskWeights(3, score, smoothing=0.0, steps=1)
    found = taken(weights, sure, range(1, 20))
    assert found[0] / max(found) == pytest.approx(SMALLEST, rel=1e-4)
    assert taken(MaskWeights(3, score, smoothing=1.0, steps=1), sure, range(1, 20)) == [1, 1, 1]
    assert taken(MaskWeights(3, score, smoothing=1.0, steps=1), [[0.0] * 3] * 3, range(1, 3)) == [1, 1, 1]


@pytest.mark.parametrize("bf16", [False, True])
def test_a_tally_holds_one_step_however_it_is_cut(bf16: bool, small: dict) -> None:
    """No step before and no attempt that failed, also of the copy in bfloat16; losses are those without a tally."""
    whole = make_config({**small, **ADAPTIVE, "bf16": bf16, "learning_rate": 1e-12})
    data = prepare_data(whole)
    plain, one, many = (
        Trainer(config, data, CPU)
        for config in (whole.replace(mask_adaptation="none"), whole, whole.replace(micro_batch_size=2))
    )
    assert plain.model.tally is None and one.model.tally is not None and many.model.tally is not None
    for _ in range(2):
        batch = one.next_batch()
        loss = one.update(batch)
        assert torch.equal(loss, plain.update(batch)), "bit for bit"
        tally, count = one.model.tally, count_of(batch)
        many._gradients(batch, count)
        many.update(batch)
        assert torch.equal(tally.count, many.model.tally.count)
        assert torch.equal(tally.count, batch.labels[batch.labels >= 0].bincount(minlength=data.vocab_size))
        assert torch.allclose(tally.sums, many.model.tally.sums, rtol=1e-4, atol=0.05 if bf16 else 1e-3)
        assert (tally.loss.sum() / count).item() == pytest.approx(loss.item(), rel=1e-5)


def test_tallies_of_processes_add_up(small: dict) -> None:
    """Each counts its own rows; what `Processes.sum` makes of two halves is what one process counts."""
    config = make_config({**small, **ADAPTIVE, "learning_rate": 1e-12})
    data = prepare_data(config)
    one, half = Trainer(config, data, CPU), Trainer(config, data, CPU)
    batch = one.next_batch()
    one.update(batch)
    halves = []
    for part in batch.split(4):
        half.update(part)
        halves.append(half.model.tally.sums.clone())
    assert torch.allclose(sum(halves), one.model.tally.sums, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "settings", [{}, {"bf16": True}, {"mask_counts": "probabilistic"}, {"mask_adaptation": "soft"}]
)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_resume_is_bit_for_bit(architecture: str, settings: dict, small: dict, tmp_path: Path) -> None:
    """Between two renewals, with a falling rate: what was counted goes on, and the draws that follow are the same."""
    schedule = {"mask_rate_schedule": "linear", "mask_rate": 0.4, "mask_rate_levels": 3, "hidden_dropout_prob": 0.1}
    config = make_config({**small, **ADAPTIVE, **schedule, "architecture": architecture, **settings})
    data = prepare_data(config)
    straight, resumed = Trainer(config, data, CPU), Trainer(config, data, CPU)
    uniform = straight.next_batch()
    for _ in range(7):
        straight.update()
    states = SavedStates(tmp_path, keep=1)
    states.save(straight.model, straight.optimizer, straight.state, straight.mask_weights)
    losses = [straight.update().item() for _ in range(7)]
    saved = states.files()[0]
    resumed.state = load_training_state(saved, resumed.model, resumed.optimizer, resumed.mask_weights)
    assert [resumed.update().item() for _ in range(7)] == losses
    assert straight.mask_weights and resumed.mask_weights
    assert torch.equal(straight.mask_weights.weights, resumed.mask_weights.weights)
    assert straight.mask_weights.weights.std() > 0.01 and straight.mask_weights.sums.any()
    assert straight.mask_weights.weights.mean().item() == pytest.approx(1)
    assert not torch.equal(Trainer(config, data, CPU).next_batch().labels, straight.batches[0].labels)
    assert torch.equal(Trainer(config, data, CPU).next_batch().labels, uniform.labels)
    plain = Trainer(config.replace(mask_adaptation="none"), data, CPU)
    with pytest.raises(DamagedFileError, match="it is of another model"):
        load_training_state(saved, plain.model, plain.optimizer, plain.mask_weights)


def test_buffers_of_a_model_are_kept_and_are_those_of_its_copy(small: dict, tmp_path: Path) -> None:
    """Such as a running mean: saved and loaded in place, so that the copy in bfloat16 sees it."""
    config = make_config({**small, "bf16": True})
    data = prepare_data(config)
    one, other = Trainer(config, data, CPU), Trainer(config, data, CPU)
    for trainer in (one, other):
        trainer.model.head.register_buffer("mean", torch.zeros(3))
    one.model.head.mean += 2
    states = SavedStates(tmp_path, keep=1)
    states.save(one.model, one.optimizer, one.state)
    mean = other.model.head.mean
    load_training_state(states.files()[0], other.model, other.optimizer)
    assert other.model.head.mean is mean and mean.tolist() == [2, 2, 2]
    assert one.half is not None
    copied, own = dict(one.half.model.named_buffers()), dict(one.model.named_buffers())
    assert copied and all(buffer is own[name] for name, buffer in copied.items())


def test_the_record_names_heavy_and_light_tokens(small: dict) -> None:
    config = make_config({**small, **ADAPTIVE})
    data = prepare_data(config)
    weights = MaskWeights.of(config, data.vocab_size)
    assert weights is not None
    tokens = data.tokenizer().convert_ids_to_tokens(range(data.vocab_size))
    (ids,) = data.train_counts().nonzero()
    ids = [i for i in ids.tolist() if i not in data.special_ids]
    weights.weights.copy_(torch.linspace(0, 2, data.vocab_size))
    found = weights.summary(data, 2)
    assert [name for name, _ in found["heaviest"]] == [tokens[i] for i in ids[:-3:-1]]
    assert [name for name, _ in found["lightest"]] == [tokens[i] for i in ids[:2]]
    assert (
        found["heaviest"][0][1] == found["quantiles"]["1"] == pytest.approx(weights.weights[ids[-1]].item(), abs=1e-4)
    )


def test_its_parameters(small: dict) -> None:
    """Part of an identity where they mean something; runs of before keep theirs."""
    names = {field.name for field in dataclasses.fields(make_config(small)) if field.name.startswith("mask_adaptation")}
    assert not names & executed_parameters(make_config(small)).keys()
    own = executed_parameters(make_config({**small, **ADAPTIVE, "mask_adaptation_smoothing": 0.5}))
    assert names & own.keys() == names
    with pytest.raises(ParameterError, match=r"mask_adaptation_smoothing=1.5: expected 0 to 1"):
        make_config({**small, "mask_adaptation_smoothing": 1.5})
