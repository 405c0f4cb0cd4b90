"""Attention with dropout: the formula's gradient, masks, and when it is torch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.unit.models.test_models import batch_of, make
from threeml_core.models import attention
from threeml_core.models.attention import attend
from threeml_core.models.dropout import keep_mask


class Bidirectional(nn.Module):
    is_causal = False


def tensors(requires_grad: bool = False) -> list[Tensor]:
    """Queries (2, 2, 5, 4), keys and values (2, 2, 9, 4)."""
    torch.manual_seed(0)
    return [torch.randn(2, 2, n, 4, requires_grad=requires_grad) for n in (5, 9, 9)]


@pytest.mark.parametrize("masked", [False, True])
def test_attention_with_dropout_has_the_gradient_of_its_formula(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against autograd through the formula with the same mask of dropout, and with padding."""
    query, key, value = tensors(requires_grad=True)
    mask = keep_mask(torch.Size([4, 5, 9]), 0.3)
    monkeypatch.setattr(attention, "keep_mask", lambda *_: mask)
    visible = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    visible[1, ..., 6:] = False
    scores = (query @ key.mT / 2).masked_fill(~visible, -torch.inf) if masked else query @ key.mT / 2
    expected = (scores.softmax(-1) * mask.view(2, 2, 5, 9) / 0.7 @ value).transpose(1, 2)
    found, weights = attend(Bidirectional(), query, key, value, visible if masked else None, 0.3)
    assert weights is None and torch.allclose(found, expected, atol=1e-6)
    outer = torch.randn_like(found)
    for a, b in zip(
        torch.autograd.grad(expected, (query, key, value), outer),
        torch.autograd.grad(found, (query, key, value), outer),
        strict=True,
    ):
        assert torch.allclose(a, b, atol=1e-6)


def test_attention_dropout_is_unbiased_and_off_in_evaluation() -> None:
    exact, _ = attend(Bidirectional(), *tensors(), None)
    query, key, value = tensors()
    mean = torch.stack([attend(Bidirectional(), query, key, value, None, 0.2)[0] for _ in range(4000)]).mean(0)
    assert (mean - exact).abs().max() < 0.05
    _, model = make("self", hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    batch = batch_of()
    assert torch.equal(model(corrupted=batch).logits, model(corrupted=batch).logits)
    model.train()
    assert not torch.equal(model(corrupted=batch).logits, model(corrupted=batch).logits)


def test_what_is_not_plain_is_hugging_faces_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A causal layer, a float mask, fewer key heads, a position bias, no dropout, autocast: nothing is passed over."""
    query, key, value = tensors()
    monkeypatch.setattr(attention, "sdpa_attention_forward", lambda *arguments, **others: ("sdpa", None))
    plain = attend(Bidirectional(), query, key, value, None, 0.3)[0]
    assert isinstance(plain, Tensor)
    causal = Bidirectional()
    causal.is_causal = True
    assert attend(causal, query, key, value, None, 0.3)[0] == "sdpa"
    assert attend(nn.Module(), query, key, value, None, 0.3)[0] == "sdpa"
    assert attend(Bidirectional(), query, key, value, torch.zeros(2, 1, 1, 9), 0.3)[0] == "sdpa"
    assert attend(Bidirectional(), query, key[:, :1], value[:, :1], None, 0.3)[0] == "sdpa"
    assert attend(Bidirectional(), query, key, value, None, 0.3, position_bias=key)[0] == "sdpa"
    assert attend(Bidirectional(), query, key, value, None)[0] == "sdpa"
    with torch.autocast("cpu", torch.bfloat16):
        assert attend(Bidirectional(), query, key, value, None, 0.3)[0] == "sdpa"
