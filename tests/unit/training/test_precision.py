"""bfloat16 on a CPU: the gradients of float32 but for rounding, and one decision for a kind of machine."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.combinations import WITH_ENCODERS
from threeml_core.config import make_config
from threeml_core.data.prepare import prepare_data
from threeml_core.models.attention import attend
from threeml_core.models.head import summed_cross_entropy
from threeml_core.runs.record import load_records
from threeml_core.training import precision
from threeml_core.training.loop import pretrain
from threeml_core.training.trainer import Trainer, precision_of

CPU = torch.device("cpu")


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return F.cosine_similarity(a.flatten().double(), b.flatten().double(), 0).item()


@pytest.mark.parametrize(("architecture", "encoder"), WITH_ENCODERS)
def test_gradients_are_those_of_float32(architecture: str, encoder: str, small: dict) -> None:
    """Of every parameter, also summed over micro-batches; the model itself, which is saved, stays float32."""
    given = {"architecture": architecture, "encoder": encoder, "local_attention": 8, "learning_rate": 1e-12}
    config = make_config({**small, **given})
    data = prepare_data(config)
    exact = Trainer(config, data, CPU)
    trainers = [Trainer(config.replace(bf16=True, micro_batch_size=size), data, CPU) for size in (8, 2)]
    loss = exact.update().item()
    for trainer in trainers:
        assert trainer.half and trainer.update().item() == pytest.approx(loss, rel=3e-3)
        linear = [m for m in trainer.half.model.modules() if isinstance(m, torch.nn.Linear)]
        assert linear and all(m.weight.dtype == torch.bfloat16 for m in linear)
        for (name, p), q in zip(trainer.model.named_parameters(), exact.model.parameters(), strict=True):
            assert p.dtype == torch.float32 and p.grad is not None and q.grad is not None
            assert p.grad.dtype == torch.float32
            if q.grad.norm() > 1e-6 * q.grad.numel() ** 0.5:  # a key's bias has a gradient of rounding alone
                assert cosine(p.grad, q.grad) > 0.995, name


def test_it_learns_as_in_float32(small: dict) -> None:
    data = prepare_data(make_config(small))
    curves = []
    for bf16 in (False, True):
        trainer = Trainer(make_config({**small, "bf16": bf16}), data, CPU)
        curves.append([trainer.update().item() for _ in range(20)])
    assert curves[1] == pytest.approx(curves[0], abs=0.05) and curves[1][-1] < curves[1][0] - 0.3


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention(dropout: float) -> None:
    """As torch's own in float32; with dropout, in the mean over many draws."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, dtype=torch.bfloat16) for n in (5, 7, 7))
    visible = torch.rand(2, 1, 1, 7) > 0.3
    visible[..., 0] = True
    module = torch.nn.Module()
    module.is_causal = False  # type: ignore[assignment]

    def with_gradients(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        inputs = [x.clone().requires_grad_() for x in tensors]
        out = attend(module, *inputs, visible, dropout)[0]
        return [out.detach().float(), *(x.float() for x in torch.autograd.grad(out.sum(), inputs))]

    repeats = 1 if not dropout else 3000
    found = [
        torch.stack(parts).mean(0) for parts in zip(*(with_gradients([q, k, v]) for _ in range(repeats)), strict=True)
    ]
    inputs = [x.float().requires_grad_() for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*inputs, visible).transpose(1, 2)
    for mine, wanted in zip(found, [out, *torch.autograd.grad(out.sum(), inputs)], strict=True):
        assert torch.allclose(mine, wanted.detach(), atol=0.02 if not dropout else 0.12)


def test_loss() -> None:
    """The chunked loss over bfloat16 rows, with the word embedding in float32."""
    torch.manual_seed(0)
    rows, weight, bias = torch.randn(40, 16), torch.randn(300, 16), torch.randn(300)
    ids = torch.randint(300, (40,))
    ids[::5] = -100
    half = [rows.bfloat16().requires_grad_(), weight.clone().requires_grad_(), bias.clone().requires_grad_()]
    full = [x.detach().float().requires_grad_() for x in half]
    mine = summed_cross_entropy(*half, ids)
    wanted = F.cross_entropy(F.linear(*full), ids, reduction="sum")
    assert mine.dtype == torch.float32 and mine.item() == pytest.approx(wanted.item(), rel=5e-3)
    for a, b in zip(torch.autograd.grad(mine, half), torch.autograd.grad(wanted, full), strict=True):
        assert cosine(a, b) > 0.999
    assert [x.dtype for x in torch.autograd.grad(summed_cross_entropy(*half, ids), half)] == [x.dtype for x in half]


def test_it_is_decided_once(own_runs: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a layer of this width, recorded beside the runs; a value given, or a compiled model, asks nothing."""
    config = make_config({**own_runs, "bf16": None})
    for measured, width, wanted in ((3.0, 32, True), (1.0, 32, True), (1.0, 64, False), (3.0, 64, False)):
        monkeypatch.setattr(precision, "layer_speedup", lambda width, measured=measured: measured)
        assert precision_of(config.replace(hidden_size=width), CPU) == (wanted, False)
    assert [record.metrics for record in load_records(config.runs_dir, "precision")] == [
        {"speedup": 3.0},
        {"speedup": 1.0},
    ]
    assert precision_of(config.replace(bf16=False), CPU)[0] is False
    assert precision_of(config.replace(hidden_size=64, bf16=True), CPU)[0] is True
    assert precision_of(config.replace(torch_compile=True), CPU) == (False, True)
    record = pretrain(config, lambda line: None)
    assert record.identity["bf16"] is True and record.run_id != pretrain(config.replace(bf16=False), print).run_id
