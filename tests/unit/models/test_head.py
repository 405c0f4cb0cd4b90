"""The loss without its logits: value and gradients of `F.cross_entropy`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.unit.models.test_models import VOCAB, batch_of, make
from threeml_core.masking import IGNORE_INDEX
from threeml_core.models import head
from threeml_core.models.head import padded_logits, summed_cross_entropy
from threeml_core.parameters.architectures import ARCHITECTURES


@pytest.mark.parametrize("multiple", [1, 8, 64, 120])
def test_a_padded_vocabulary_changes_no_loss_and_no_gradient(multiple: int) -> None:
    torch.manual_seed(0)
    hidden, weight, bias = (torch.randn(*s, requires_grad=True) for s in ((9, 16), (VOCAB, 16), (VOCAB,)))
    targets = torch.randint(VOCAB, (9,))
    expected = F.cross_entropy(F.linear(hidden, weight, bias), targets)
    logits = padded_logits(hidden, weight, bias, multiple)
    loss = F.cross_entropy(logits, targets)
    assert logits.shape[-1] % multiple == 0 and logits.shape[-1] - VOCAB < multiple
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for a, b in zip(
        torch.autograd.grad(expected, (hidden, weight, bias)),
        torch.autograd.grad(loss, (hidden, weight, bias)),
        strict=True,
    ):
        assert torch.allclose(a, b, atol=1e-7)


@pytest.mark.parametrize("ignored", [0.0, 0.6])
@pytest.mark.parametrize("chunk_bytes", [1, 5000, head.CHUNK_BYTES])
def test_chunked_loss_is_cross_entropy(ignored: float, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Value and gradients, whatever the size of the chunks, with and without targets that are ignored."""
    monkeypatch.setattr(head, "CHUNK_BYTES", chunk_bytes)
    torch.manual_seed(0)
    hidden, weight, bias = (torch.randn(*s, requires_grad=True) for s in ((4, 9, 16), (VOCAB, 16), (VOCAB,)))
    targets = torch.randint(VOCAB, (4, 9)).masked_fill(torch.rand(4, 9) < ignored, IGNORE_INDEX)
    logits = F.linear(hidden, weight, bias).flatten(0, 1)
    expected = F.cross_entropy(logits, targets.flatten(), reduction="sum") / 7
    found = summed_cross_entropy(hidden, weight, bias, targets) / 7
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    for a, b in zip(
        torch.autograd.grad(expected, (hidden, weight, bias)),
        torch.autograd.grad(found, (hidden, weight, bias)),
        strict=True,
    ):
        assert torch.allclose(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loss_without_logits_is_the_loss(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU in chunks; elsewhere over a padded vocabulary, which the parameters do not show."""
    _, model = make(architecture)
    batch = batch_of()
    with_logits = model(corrupted=batch)
    alone = model(corrupted=batch, return_logits=False)
    assert alone.logits is None and alone.loss.item() == pytest.approx(with_logits.loss.item(), rel=1e-6)
    ordinary = model(batch.input_ids, labels=batch.labels, return_logits=False)
    assert ordinary.loss.item() == pytest.approx(with_logits.loss.item(), rel=1e-5)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(head, "vocabulary_multiple", lambda device: 64)
    padded = model(corrupted=batch, return_logits=False)
    assert padded.loss.item() == pytest.approx(with_logits.loss.item(), rel=1e-6)
    assert model.encoder.get_input_embeddings().weight.shape[0] == len(model.head_bias) == VOCAB
