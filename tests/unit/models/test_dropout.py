"""Dropout by bytes: the statistics of torch's, its seed, its place in a module."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from threeml_core.models.dropout import TILE, Dropout, keep_mask, replace_dropout


def test_dropout_statistics() -> None:
    """Rate, scale, and independence: of neighbours (one random word makes eight decisions) and of calls."""
    torch.manual_seed(0)
    size, p = 1_000_000, 0.1
    x = torch.ones(1000, 1000, requires_grad=True)
    y = Dropout(p)(x)
    kept = (y != 0).float()
    assert kept.mean().item() == pytest.approx(1 - p, abs=4 * math.sqrt(p * (1 - p) / size))
    assert y[y != 0].unique().tolist() == pytest.approx([1 / (1 - p)])
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())  # the gradient goes where the value went, at the same scale
    again = (Dropout(p)(x) != 0).float().flatten()
    flat = kept.flatten()
    for shifted in (*(flat.roll(k) for k in (1, 2, 3, 7, 8, 9, 1000, TILE)), again):
        correlation = ((flat - 1 + p) * (shifted - 1 + p)).mean() / (p * (1 - p))
        assert abs(correlation.item()) < 4 / math.sqrt(size)
    rows = kept.sum(1)  # binomial: its variance, not only its mean
    assert rows.var().item() == pytest.approx(1000 * p * (1 - p), rel=4 * math.sqrt(2 / 1000))


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 1e-3, 0.99])
def test_dropout_rate_is_exact(p: float) -> None:
    """Within what ten million decisions can tell, although a byte knows only multiples of 1/256."""
    torch.manual_seed(1)
    count, calls = 100_003, 100  # no multiple of eight
    means = torch.stack([keep_mask(torch.Size([count]), p).float().mean() for _ in range(calls)])
    assert means.mean().item() == pytest.approx(1 - p, abs=4 * math.sqrt(p * (1 - p) / (count * calls)) + 1e-6)
    mask = keep_mask(torch.Size([count]), p)
    assert mask.shape == (count,) and set(mask.unique().tolist()) <= {0, 1}


def test_dropout_above_the_largest_threshold_is_torchs() -> None:
    x = torch.ones(100_000)
    assert (Dropout(0.999)(x) != 0).sum() < 300


def test_dropout_follows_torchs_seed() -> None:
    x = torch.ones(999)
    torch.manual_seed(3)
    first, state = Dropout(0.2)(x), torch.get_rng_state()
    second = Dropout(0.2)(x)
    torch.set_rng_state(state)
    assert torch.equal(Dropout(0.2)(x), second) and not torch.equal(first, second)


def test_dropout_with_the_residual_sum() -> None:
    residual, x = torch.randn(50, 40, requires_grad=True), torch.randn(50, 40, requires_grad=True)
    torch.manual_seed(0)
    separate = residual + Dropout(0.3)(x)
    torch.manual_seed(0)
    joined = Dropout(0.3)(x, residual)
    assert torch.allclose(separate, joined, atol=1e-6)
    for a, b in zip(
        torch.autograd.grad(separate.square().sum(), (residual, x)),
        torch.autograd.grad(joined.square().sum(), (residual, x)),
        strict=True,
    ):
        assert torch.allclose(a, b, atol=1e-5)
    for idle in (Dropout(0.0), Dropout(0.3).eval()):
        assert torch.equal(idle(x, residual), residual + x) and torch.equal(idle(x), x)


def test_dropout_takes_the_place_of_torchs() -> None:
    """Everywhere within a module, at the same rate; other modules, parameters and their names stay."""
    inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Dropout1d(0.1))
    module = nn.ModuleDict({"inner": inner, "outer": nn.Dropout(0.2)})
    before = dict(module.named_parameters())
    replace_dropout(module)
    assert [type(m) for m in inner] == [nn.Linear, Dropout, nn.Dropout1d]
    assert (inner[1].p, module["outer"].p, type(module["outer"])) == (0.3, 0.2, Dropout)
    assert dict(module.named_parameters()) == before
