"""Token dropping: which tokens are kept, what the middle layers see, the running loss; and vanilla in all else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM

from tests.unit.models.test_models import VOCAB, N, batch_of, make
from tests.unit.models.test_narrowbert import narrow_by_hand
from threeml_core import flops
from threeml_core.config import make_config
from threeml_core.data.prepare import prepare_data
from threeml_core.foundation.errors import ParameterError
from threeml_core.models.counting import count_forward_flops
from threeml_core.models.gather import take
from threeml_core.parameters.model import num_kept
from threeml_core.training.evaluation import masking_of
from threeml_core.training.trainer import Trainer

CPU = torch.device("cpu")


def dropping(kind: str = "pre", layers: int = 5, **settings):
    given = {"num_hidden_layers": layers, "initialization": "scaled", **settings}
    return make("token_dropping", kind, **given)[1].double().train()


@pytest.mark.parametrize("kind", ["pre", "post"])
@pytest.mark.parametrize("full_layers", [0, 1, 3])
def test_states_by_definition(full_layers: int, kind: str) -> None:
    """In fp64, with heads of 8; both ways in."""
    model, batch, pre = dropping(kind, full_layers=full_layers, kept_share=0.6), batch_of(), kind == "pre"
    model.token_importance[5:] = torch.rand(VOCAB - 5, dtype=torch.double)
    *layers, last = model.encoder.encoder.layer
    hidden = model.encoder.embeddings(batch.input_ids, position_ids=model.position_ids(batch.input_ids))
    for layer in layers[:full_layers]:
        hidden = narrow_by_hand(layer, hidden, hidden, pre)
    whole = torch.empty_like(hidden)
    for row, ids in enumerate(batch.input_ids):
        importance = [model.token_importance[i].item() for i in ids]
        at = sorted(sorted(range(N), key=lambda i: -importance[i])[:14])  # 0.6 · 24, rounded
        assert {i for i in range(N) if ids[i] in (0, 2, 4)} <= set(at)
        of_all = hidden[row : row + 1]
        kept = narrow_by_hand(layers[full_layers], of_all[:, at], of_all, pre)
        for layer in layers[full_layers + 1 :]:
            kept = narrow_by_hand(layer, kept, kept, pre)
        whole[row] = of_all[0]
        whole[row, at] = kept[0]
    whole = narrow_by_hand(last, whole, whole, pre)
    logits = model.logits(model.head(model.encoder.LayerNorm(whole) if pre else whole))
    assert (model(corrupted=batch).logits - take(logits, batch.corrupted_idx)).abs().max() < 1e-10
    for mask in (None, torch.ones_like(batch.input_ids)):
        assert (model(batch.input_ids, mask).logits - logits).abs().max() < 1e-10


@pytest.mark.parametrize("kind", ["pre", "post"])
@pytest.mark.parametrize("given", [{"full_layers": 5}, {"full_layers": 4}, {"kept_share": 1.0}])
def test_where_nothing_is_dropped_it_is_vanilla(given: dict, kind: str) -> None:
    """The same weights by the same seed, the same losses and gradients in fp64; the buffer is none of the weights."""
    settings = {"num_hidden_layers": 5, "initialization": "scaled", **given}
    models = [make(name, kind, **settings)[1].double().train() for name in ("vanilla", "token_dropping")]
    parameters = [dict(model.named_parameters()) for model in models]
    assert parameters[0].keys() == parameters[1].keys()
    assert all(torch.equal(parameters[0][name], parameters[1][name]) for name in parameters[0])
    batch = batch_of()
    for arguments in ({"corrupted": batch}, {"input_ids": batch.input_ids, "labels": batch.labels}):
        losses = [model(**arguments).loss for model in models]
        assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-6)
        gradients = [torch.autograd.grad(x, list(of.values())) for x, of in zip(losses, parameters, strict=True)]
        for a, b in zip(*gradients, strict=True):
            assert (a - b).abs().max() < 1e-6


def test_in_evaluation_it_is_vanilla_whatever_is_important() -> None:
    batch, vanilla = batch_of(), make("vanilla", num_hidden_layers=5, initialization="scaled")[1].double()
    model = dropping(kept_share=0.5)
    assert (model(corrupted=batch).logits - vanilla(corrupted=batch).logits).abs().max() > 1e-3
    model.eval()
    assert torch.equal(model(corrupted=batch).logits, vanilla(corrupted=batch).logits)
    assert torch.equal(model(batch.input_ids).logits, vanilla(batch.input_ids).logits)
    for a, b in zip(model.mask_states(batch), vanilla.mask_states(batch), strict=True):
        assert torch.equal(a, b)


def test_what_is_kept() -> None:
    """Special tokens and [MASK]s, then by running loss, then what stands earlier; padding last."""
    model = dropping()
    model.token_importance[torch.tensor([10, 11, 12])] = torch.tensor([3.0, 12.0, 3.0], dtype=torch.double)
    ids = torch.tensor([[0, 10, 11, 12, 20, 4, 10, 20, 2, 1], [0, 12, 10, 10, 2, 1, 1, 1, 1, 1]])
    assert model.kept_positions(model.token_importance[ids]).tolist() == [[0, 2, 4, 5, 8], [0, 1, 2, 3, 4]]
    assert [num_kept(n, 0.5) for n in (4, 5, 512)] == [2, 3, 256]


def test_too_few_kept_is_refused(small: dict) -> None:
    """By configuration for two special tokens; before a run for those of its data; by the model for a batch's."""
    given = {"architecture": "token_dropping", "sequence_length": 100, "mask_rate": 0.5}
    assert make_config({**given, "kept_share": 0.42}).kept_share == 0.42
    with pytest.raises(ParameterError, match="kept_share=0.41 keeps 41 of 100 tokens, .* 42 .*: raise it .* 0.42,"):
        make_config({**given, "kept_share": 0.41})
    rising = {**given, "mask_rate": 0.2, "mask_rate_schedule": "linear", "mask_rate_end": 0.5, "kept_share": 0.41}
    with pytest.raises(ParameterError, match="or lower mask_rate$"):
        make_config(rising)
    for share in (0.0, 1.01):
        with pytest.raises(ParameterError, match="^kept_share=.*: expected more than 0 and at most 1$"):
            make_config({**given, "kept_share": share})
    config = make_config({**small, "architecture": "token_dropping", "kept_share": 0.37})  # of 32 tokens 10 are masked
    data = prepare_data(config)
    with pytest.raises(ParameterError, match=r"keeps 12 of 32 tokens, .* holds 1\d \[MASK\]s"):
        masking_of(config, dataclasses.replace(data, train=dataclasses.replace(data.train, max_special_tokens=4)))
    batch = batch_of()
    batch = dataclasses.replace(batch, input_ids=batch.input_ids.scatter(1, batch.keep_idx[:, :10], 2))
    with pytest.raises(ParameterError, match=r"^kept_share=0.5 keeps 12 of 24 tokens, .* holds \d+ \[MASK\]s"):
        dropping()(corrupted=batch)


def test_states_of_dropped_tokens_are_not_given() -> None:
    model, ids = dropping(), batch_of().input_ids
    with pytest.raises(ValueError, match="call eval"):
        model(ids, output_hidden_states=True)
    assert len(model.eval()(ids, output_hidden_states=True).hidden_states) == 6
    model.config.mask_token_id = None
    with pytest.raises(ValueError, match="mask_token_id"):
        model.train()(ids)


def test_half_of_the_layers_less_one_is_full() -> None:
    for layers, full in ((1, 0), (2, 0), (3, 0), (4, 1), (5, 1), (12, 5), (24, 11)):
        config = make_config({"architecture": "token_dropping", "num_hidden_layers": layers})
        assert (config.full_layers, config.sources["full_layers"]) == (full, "derived")


@pytest.mark.parametrize("layers", [1, 2, 3, 6])
@pytest.mark.parametrize("share", [0.4, 0.55, 1.0])
@pytest.mark.parametrize("full_layers", [None, 0, 1])
def test_flops_by_torchs_counter(layers: int, share: float, full_layers: int | None) -> None:
    given = {"num_hidden_layers": layers, "kept_share": share, "full_layers": full_layers, "mask_rate": 0.3}
    config = make_config({"architecture": "token_dropping", **given})
    assert count_forward_flops(config) == flops.forward_flops(config, "exact")


# -- the running loss -------------------------------------------------------------------------------------------


def test_a_step_moves_the_running_loss() -> None:
    """0.995 of what it was and 0.005 of the step's mean; no special token's, and none that was not predicted."""
    model = dropping()
    first = model.token_importance.clone()
    assert first[[0, 2, 4]].isposinf().all() and first[1].isneginf() and (first[5:] == 10).all() and first[3] == 10
    model.tally.add(torch.tensor([7, 7, 9, 2]), torch.tensor([1.0, 3.0, 5.0, 1.0]), torch.zeros(4))
    model.end_of_step()
    expected = first.clone()
    expected[7], expected[9] = 9.96, 9.975
    assert torch.allclose(model.token_importance, expected)
    model.end_of_step()
    assert model.token_importance[7].item() == pytest.approx(0.995 * 9.96 + 0.005 * 2)


def test_it_is_saved_with_the_model(tmp_path: Path) -> None:
    """And loaded, and not exported; a checkpoint without it starts as a fresh model."""
    model = make("token_dropping")[1]
    first = model.token_importance.clone()
    model.token_importance.uniform_()
    model.save_pretrained(tmp_path / "model")
    model.encoder.save_pretrained(tmp_path / "encoder")
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    assert torch.equal(loaded.token_importance, model.token_importance) and not loaded.tally.sums.any()
    assert "token_importance" not in AutoModel.from_pretrained(tmp_path / "encoder").state_dict()
    make("vanilla")[1].save_pretrained(tmp_path / "vanilla")
    other = type(model).from_pretrained(tmp_path / "vanilla", config=model.config)
    assert torch.equal(other.token_importance, first)


@pytest.mark.parametrize("bf16", [False, True])
def test_it_is_that_of_the_training(bf16: bool, small: dict) -> None:
    """Of each predicted token, in whatever micro-batches; the model that is trained drops by it."""
    whole = make_config({**small, "architecture": "token_dropping", "bf16": bf16})
    data = prepare_data(whole)
    trainers = [Trainer(config, data, CPU) for config in (whole, whole.replace(micro_batch_size=2))]
    batch = trainers[0].next_batch()
    predicted = batch.labels[batch.labels >= 0].unique()
    for trainer in trainers:
        before = trainer.model.token_importance.clone()
        trainer.update()
        after = trainer.model.token_importance
        assert after is trainer.model.token_importance and (before != after).nonzero()[:, 0].equal(predicted)
        assert trainer.half is None or trainer.half.model.token_importance is after
    a, b = (trainer.model.token_importance for trainer in trainers)
    assert torch.allclose(a, b, atol=1e-4)
