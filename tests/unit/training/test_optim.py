"""Muon for the matrices of the layers, AdamW for the rest: which is whose, and the same steps as torch's own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers import ModernBertConfig, ModernBertForMaskedLM

from tests.combinations import WITH_ENCODERS
from threeml_core.config import StudyConfig, make_config
from threeml_core.data.prepare import prepare_data
from threeml_core.foundation.errors import ParameterError
from threeml_core.models.build import build_model
from threeml_core.training.optim import (
    ProductsInFloat32,
    fast_products,
    hidden_matrices,
    make_optimizer,
    set_learning_rate,
)
from threeml_core.training.trainer import Trainer

CPU = torch.device("cpu")


@pytest.fixture
def muon(small: dict) -> StudyConfig:
    return make_config({**small, "optimizer": "muon", "weight_decay": 0.1})


def names_by_group(model: nn.Module, config: StudyConfig) -> list[tuple[int | None, float, float, list[str]]]:
    """(parts, weight decay, learning rate, names) of every group."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = make_optimizer(model, config).param_groups
    return [(g.get("parts"), g["weight_decay"], g["lr"], [names[p] for p in g["params"]]) for g in groups]


@pytest.mark.parametrize(("architecture", "encoder"), WITH_ENCODERS)
def test_muon_has_the_matrices_of_the_layers(architecture: str, encoder: str, muon: StudyConfig) -> None:
    """AdamW has the tables, the one of the words being the head's output too, and all that has one axis."""
    model = build_model(muon.replace(architecture=architecture, encoder=encoder), 300, mask_token_id=4)
    (_, decay, rate, tables), (_, none, _, vectors), *matrices = names_by_group(model, muon)
    assert all("embeddings" in name or name == "decoder_positions.weight" for name in tables)
    assert all(model.get_parameter(name).ndim == 1 for name in vectors)
    assert (decay, none, rate) == (0.1, 0.0, 4e-3)
    assert all(group[1:3] == (0.1, 0.02) for group in matrices)
    by_parts = {parts: names for parts, _, _, names in matrices}
    assert "head.dense.weight" in by_parts[1]
    modern, attentions = encoder == "modernbert", {"self": 2, "cross": 4}.get(architecture, 0)
    assert all(name.endswith(("in_proj_weight", ".Wqkv.weight")) for name in by_parts.get(3, []))
    assert len(by_parts.get(3, [])) == attentions + 2 * modern
    assert all(name.endswith(".Wi.weight") for name in by_parts.get(2, [])) and (2 in by_parts) == modern
    assert sorted([*tables, *vectors, *sum(by_parts.values(), [])]) == sorted(dict(model.named_parameters()))


def test_muon_for_modernbert(muon: StudyConfig) -> None:
    """No biases, one matrix for queries, keys and values, one for the two sides of the gated FFN; a tied output."""
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    special = {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")}
    model = ModernBertForMaskedLM(ModernBertConfig(vocab_size=50, **special, **size))
    (_, _, _, tables), _, *matrices = names_by_group(model, muon)
    assert tables == ["model.embeddings.tok_embeddings.weight"]
    assert {parts: names for parts, _, _, names in matrices} == {
        1: ["model.layers.0.attn.Wo.weight", "model.layers.0.mlp.Wo.weight", "head.dense.weight"],
        2: ["model.layers.0.mlp.Wi.weight"],
        3: ["model.layers.0.attn.Wqkv.weight"],
    }


@pytest.mark.parametrize("adjust_lr_fn", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("architecture", ["self", "cross"])
def test_steps_are_those_of_torch(architecture: str, adjust_lr_fn: str, muon: StudyConfig) -> None:
    """Bit for bit, with clipping and decay, by torch's Muon on queries, keys and values apart and torch's AdamW."""
    config = muon.replace(architecture=architecture, adjust_lr_fn=adjust_lr_fn, max_grad_norm=0.1, muon_momentum=0.9)
    trainer = Trainer(config, prepare_data(config), CPU)
    parts = {
        name: [part.detach().clone() for part in p.chunk(3 if name.endswith("in_proj_weight") else 1)]
        for name, p in trainer.model.named_parameters()
    }
    matrices = hidden_matrices(trainer.model)

    def those(chosen: bool, axes: tuple[int, ...]) -> list[Tensor]:
        return [p for name in parts for p in parts[name] if (name in matrices) == chosen and p.ndim in axes]

    by_muon = torch.optim.Muon(those(True, (2,)), weight_decay=0.1, momentum=0.9, adjust_lr_fn=adjust_lr_fn)
    groups = [{"params": those(False, (2,)), "weight_decay": 0.1}, {"params": those(False, (1,)), "weight_decay": 0.0}]
    by_adamw = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-6, fused=True)
    for step in range(3):
        learning_rate = trainer.learning_rate()
        trainer.update()
        total = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in trainer.model.parameters()]))  # type: ignore[union-attr]
        assert total.item() == pytest.approx(0.1, rel=1e-3), "clipped"
        for name, parameter in trainer.model.named_parameters():
            assert parameter.grad is not None
            for part, gradient in zip(parts[name], parameter.grad.chunk(len(parts[name])), strict=True):
                part.grad = gradient.clone()
        set_learning_rate(by_muon, 0.02 / config.learning_rate * learning_rate)
        set_learning_rate(by_adamw, learning_rate)
        with fast_products(CPU):
            by_muon.step()
        by_adamw.step()
        for name, parameter in trainer.model.named_parameters():
            assert torch.equal(parameter, torch.cat(parts[name])), (step, name)


def test_its_state_is_one_dictionary_as_of_any_optimizer(muon: StudyConfig) -> None:
    """Saved and loaded as torch does, it goes on bit for bit."""
    data = prepare_data(muon)
    one, other = Trainer(muon, data, CPU), Trainer(muon, data, CPU)
    for _ in range(3):
        one.update()
    other.model.load_state_dict(one.model.state_dict())
    other.optimizer.load_state_dict(copy.deepcopy(one.optimizer.state_dict()))
    other.state.step = 3
    for _ in range(2):
        assert one.update().item() == other.update().item()
    assert all(torch.equal(*pair) for pair in zip(one.model.parameters(), other.model.parameters(), strict=True))
    kinds = {frozenset(one.optimizer.state[p]) for p in one.model.parameters()}
    assert kinds == {frozenset({"momentum_buffer"}), frozenset({"step", "exp_avg", "exp_avg_sq"})}
    loss = one.optimizer.step(lambda: 1.5)  # type: ignore[arg-type,return-value]
    assert loss == 1.5


def test_with_bfloat16_weights_and_moments_stay_in_fp32(muon: StudyConfig) -> None:
    config = muon.replace(bf16=True)
    trainer = Trainer(config, prepare_data(config), CPU)
    losses = [trainer.update().item() for _ in range(20)]
    assert losses[-1] < losses[0] - 0.5
    state = trainer.optimizer.state
    assert {x.dtype for p in trainer.model.parameters() for x in (p, *state[p].values())} == {torch.float32}


def test_muon_without_matrices_is_refused(muon: StudyConfig) -> None:
    with pytest.raises(
        ParameterError, match=r"^optimizer='muon': the model has no matrix besides embeddings; take [^\n]*$"
    ):
        make_optimizer(nn.Sequential(nn.Embedding(5, 3), nn.LayerNorm(3)), muon)
    with pytest.raises(ParameterError, match="optimizer='sgd': expected one of adamw, muon"):
        make_config({"optimizer": "sgd"})


def test_products_in_float32_are_those_of_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded once, at the end; a CPU without bfloat16 takes them, one that has it and a GPU do not."""
    draw = torch.Generator().manual_seed(0)
    a, b, c = (torch.randn(size, generator=draw).bfloat16() for size in ((40, 96), (96, 30), (40, 30)))
    with ProductsInFloat32():
        product, added = a @ b, torch.addmm(c, a, b, beta=0.5, alpha=2)
    exact = a.double() @ b.double()
    for found, expected in ((product, exact), (added, 0.5 * c.double() + 2 * exact)):
        assert found.dtype is torch.bfloat16
        assert ((found.double() - expected).abs() <= 2**-8 * expected.abs() + 1e-5).all()  # half a unit of the last bit
    for has_bf16, taken in ((False, True), (True, False)):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda answer=has_bf16: answer)
        assert isinstance(fast_products(torch.device("cpu")), ProductsInFloat32) == taken
    assert not isinstance(fast_products(torch.device("cuda")), ProductsInFloat32)


def test_a_step_is_the_same_with_and_without_hardware_for_bfloat16(
    muon: StudyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped = []
    for has_bf16 in (False, True):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda answer=has_bf16: answer)
        torch.manual_seed(0)
        weight = nn.Linear(96, 64, bias=False)
        before = weight.weight.detach().clone()
        optimizer = make_optimizer(nn.Sequential(weight), muon)
        weight.weight.grad = torch.randn(64, 96)
        optimizer.step()
        stepped.append(weight.weight.detach() - before)
    moved = stepped[1].abs().max()
    assert moved > 0 and (stepped[0] - stepped[1]).abs().max() < 0.03 * moved  # five rounded iterations
