"""What each token's predictions cost: sums that no path of the loss, no micro-batch and no precision changes."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.unit.models.test_models import VOCAB, batch_of, make
from threeml_core.masking import IGNORE_INDEX
from threeml_core.models import head
from threeml_core.models.head import cross_entropy_of, summed_cross_entropy
from threeml_core.models.tally import TokenTally
from threeml_core.parameters.architectures import ARCHITECTURES


def by_hand(logits: Tensor, ids: Tensor) -> Tensor:
    """(3, vocab): the same sums, prediction by prediction."""
    sums = torch.zeros(3, logits.shape[1])
    for row, wanted in zip(logits.float(), ids.tolist(), strict=True):
        if wanted != IGNORE_INDEX:
            right = float(row.argmax() == wanted)
            sums[:, wanted] += torch.stack([-row.log_softmax(0)[wanted], torch.tensor(right), torch.tensor(1.0)])
    return sums


@pytest.mark.parametrize("chunk_bytes", [1, 5000, head.CHUNK_BYTES])
def test_every_path_of_the_loss_gives_the_sums(chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks, over a padded vocabulary as on a GPU, and beside logits; loss and gradients as without a tally."""
    monkeypatch.setattr(head, "CHUNK_BYTES", chunk_bytes)
    torch.manual_seed(0)
    hidden, weight, bias = (torch.randn(*s, requires_grad=True) for s in ((40, 16), (VOCAB, 16), (VOCAB,)))
    ids = F.linear(hidden, weight, bias).argmax(1)  # half of them are right
    ids[::2] = torch.randint(VOCAB, (20,))
    ids[::7] = IGNORE_INDEX
    expected = by_hand(F.linear(hidden, weight, bias).detach(), ids)
    assert 0 < expected[1].sum() < expected[2].sum() == (ids != IGNORE_INDEX).sum()
    chunked, padded, plain = TokenTally(VOCAB), TokenTally(VOCAB), TokenTally(VOCAB)
    results = [summed_cross_entropy(hidden, weight, bias, ids, tally) for tally in (None, chunked)]
    results.append(cross_entropy_of(F.linear(hidden, weight, bias), ids, plain))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(head, "vocabulary_multiple", lambda device: 64)
    results += [summed_cross_entropy(hidden, weight, bias, ids, tally) for tally in (None, padded)]
    assert torch.equal(results[0], results[1]), "bit for bit"
    gradients = [torch.autograd.grad(result, (hidden, weight, bias)) for result in results]
    for result, gradient in zip(results, gradients, strict=True):
        assert result.item() == pytest.approx(results[0].item(), rel=1e-5)
        for a, b in zip(gradient, gradients[0], strict=True):
            assert torch.allclose(a, b, atol=1e-5, rtol=1e-5)
    for tally in (chunked, padded, plain):
        assert torch.equal(tally.correct, expected[1]) and torch.equal(tally.count, expected[2])
        assert torch.allclose(tally.loss, expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_adds_while_it_trains(architecture: str) -> None:
    """Both ways in; not in evaluation; not in what is saved; added up until it is cleared."""
    _, model = make(architecture, kept_share=1.0)  # else it drops tokens as it trains
    model.tally = TokenTally(VOCAB)
    batch = batch_of()
    assert not [name for name in model.state_dict() if "tally" in name]
    model.eval()
    with torch.no_grad():
        logits = model(corrupted=batch).logits
    assert not model.tally.sums.any()
    expected = by_hand(logits.flatten(0, 1), batch.targets.flatten())
    model.train()
    for arguments in (
        {"corrupted": batch},
        {"corrupted": batch, "return_logits": False},
        {"input_ids": batch.input_ids, "labels": batch.labels},
    ):
        model.tally.clear()
        for _ in range(2):
            model(**arguments)
        assert torch.equal(model.tally.count, 2 * expected[2])
        assert torch.allclose(model.tally.sums, 2 * expected, atol=1e-3)


def test_compiled_it_is_the_same() -> None:
    """A graph without a break, which changes the buffer itself."""
    model, batch = make("vanilla")[1].train(), batch_of()
    model.tally = TokenTally(VOCAB)
    other = copy.deepcopy(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        loss = compiled(corrupted=batch, return_logits=False).loss
        assert loss.item() == pytest.approx(other(corrupted=batch, return_logits=False).loss.item(), rel=1e-5)
    assert torch.equal(model.tally.count, other.tally.count)
    assert torch.allclose(model.tally.sums, other.tally.sums, atol=1e-4)
