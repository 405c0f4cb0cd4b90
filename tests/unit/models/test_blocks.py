"""What runs instead of the stock modules: the same numbers and gradients, dropout of the same statistics."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.unit.models.test_models import VARIANTS, VOCAB, N, batch_of, make
from threeml_core.config import ARCHITECTURES
from threeml_core.masking import IGNORE_INDEX
from threeml_core.models import blocks, head
from threeml_core.models.attention import attend
from threeml_core.models.blocks import cross_block, encode, self_block, take
from threeml_core.models.dropout import TILE, dropout, dropout_add, keep_mask
from threeml_core.models.head import padded_logits, summed_cross_entropy


def gradients(module: nn.Module, output: Tensor, *inputs: Tensor) -> list[Tensor]:
    """Of an uneven sum of the output, by every parameter that it depends on, and by the inputs."""
    weights = torch.linspace(-1, 1, output.numel()).view_as(output)
    found = torch.autograd.grad((output * weights).sum(), [*inputs, *module.parameters()], allow_unused=True)
    return [x for x in found if x is not None]


def assert_same(stock: tuple[Tensor, list[Tensor]], ours: tuple[Tensor, list[Tensor]]) -> None:
    assert (stock[0] - ours[0]).abs().max() < 1e-6
    assert len(stock[1]) == len(ours[1])
    for a, b in zip(stock[1], ours[1], strict=True):
        assert torch.allclose(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layer_norm", ["pre", "post"])
def test_encoder_is_hugging_faces(layer_norm: str) -> None:
    _, model = make("vanilla", layer_norm)
    encoder = model.train().encoder
    ids, positions = batch_of().input_ids, torch.arange(2, N + 2)[None]
    stock = encoder(ids, position_ids=positions).last_hidden_state
    ours = encode(encoder, ids, positions)
    assert_same((stock, gradients(encoder, stock)), (ours, gradients(encoder, ours)))


@pytest.mark.parametrize("layer_norm", ["pre", "post"])
def test_decoder_blocks_are_torchs(layer_norm: str) -> None:
    hidden, memory = torch.randn(3, N, 16, requires_grad=True), torch.randn(3, 11, 16, requires_grad=True)
    layer = make("self", layer_norm)[1].train().decoder_layers[0]
    stock, ours = layer(hidden), self_block(layer, hidden)
    assert_same((stock, gradients(layer, stock, hidden)), (ours, gradients(layer, ours, hidden)))

    at = torch.stack([torch.randperm(N)[:7] for _ in range(3)])
    stock, ours = take(layer(hidden), at), self_block(layer, hidden, at)
    assert_same((stock, gradients(layer, stock, hidden)), (ours, gradients(layer, ours, hidden)))

    layer = make("cross", layer_norm)[1].train().decoder_layers[0]
    stock, ours = layer(hidden, memory), cross_block(layer, hidden, memory)
    assert_same((stock, gradients(layer, stock, hidden, memory)), (ours, gradients(layer, ours, hidden, memory)))


@pytest.mark.parametrize(("architecture", "layer_norm"), VARIANTS)
def test_training_runs_no_stock_block(architecture: str, layer_norm: str) -> None:
    """Else a change that falls back to them would only be slower, and no other test would see it."""
    _, model = make(architecture, layer_norm)
    called: list[str] = []
    for layer in (*model.encoder.encoder.layer, *getattr(model, "decoder_layers", [])):
        layer.register_forward_hook(lambda module, *_: called.append(type(module).__name__))
    model.train()(corrupted=batch_of()).loss.backward()
    assert not called
    model.encoder.activation_checkpointing_enable()
    model.train()(corrupted=batch_of()).loss.backward()
    assert set(called) == {type(model.encoder.encoder.layer[0]).__name__}  # it recomputes, which is its own business


def test_dropout_statistics() -> None:
    """Rate, scale, and independence: of neighbours (one random word makes eight decisions) and of calls."""
    torch.manual_seed(0)
    size, p = 1_000_000, 0.1
    x = torch.ones(1000, 1000, requires_grad=True)
    y = dropout(x, p)
    kept = (y != 0).float()
    assert kept.mean().item() == pytest.approx(1 - p, abs=4 * math.sqrt(p * (1 - p) / size))
    assert y[y != 0].unique().tolist() == pytest.approx([1 / (1 - p)])
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())  # the gradient goes where the value went, at the same scale
    again = (dropout(x, p) != 0).float().flatten()
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
    assert (dropout(x, 0.999) != 0).sum() < 300


def test_dropout_follows_torchs_seed() -> None:
    x = torch.ones(999)
    torch.manual_seed(3)
    first, state = dropout(x, 0.2), torch.get_rng_state()
    second = dropout(x, 0.2)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x, 0.2), second) and not torch.equal(first, second)


def test_dropout_with_the_residual_sum() -> None:
    residual, x = torch.randn(50, 40, requires_grad=True), torch.randn(50, 40, requires_grad=True)
    torch.manual_seed(0)
    separate = residual + dropout(x, 0.3)
    torch.manual_seed(0)
    joined = dropout_add(residual, x, 0.3)
    assert torch.allclose(separate, joined, atol=1e-6)
    for a, b in zip(
        torch.autograd.grad(separate.square().sum(), (residual, x)),
        torch.autograd.grad(joined.square().sum(), (residual, x)),
        strict=True,
    ):
        assert torch.allclose(a, b, atol=1e-5)
    assert torch.equal(dropout_add(residual, x, 0.0), residual + x) and dropout(x, 0.0) is x


def test_attention_with_dropout_has_the_gradient_of_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against autograd through the formula with the same mask."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, n, 8, requires_grad=True) for n in (5, 9, 9))
    mask = keep_mask(torch.Size([4, 5, 9]), 0.3)
    monkeypatch.setattr("threeml_core.models.attention.keep_mask", lambda *_: mask)
    q, k, v = (x.view(2, -1, 2, 4).transpose(1, 2) for x in (query, key, value))
    weights = (q @ k.mT / 2).softmax(-1) * mask.view(2, 2, 5, 9) / 0.7
    expected = (weights @ v).transpose(1, 2).reshape(2, 5, 8)
    found = attend(query, key, value, 2, 0.3)
    assert torch.allclose(found, expected, atol=1e-6)
    outer = torch.randn_like(found)
    for a, b in zip(
        torch.autograd.grad(expected, (query, key, value), outer),
        torch.autograd.grad(found, (query, key, value), outer),
        strict=True,
    ):
        assert torch.allclose(a, b, atol=1e-6)


def test_attention_dropout_is_unbiased_and_off_in_evaluation() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, n, 8) for n in (5, 9, 9))
    exact = attend(query, key, value, 2, 0.0)
    mean = torch.stack([attend(query, key, value, 2, 0.2) for _ in range(4000)]).mean(0)
    assert (mean - exact).abs().max() < 0.05
    _, model = make("self", hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    batch = batch_of()
    assert torch.equal(model(corrupted=batch).logits, model(corrupted=batch).logits)
    model.train()
    assert not torch.equal(model(corrupted=batch).logits, model(corrupted=batch).logits)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dropout_is_where_the_stock_modules_have_it(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites and rates of a training step: counted in ours, and in the stock modules by torch's functions."""
    _, model = make(architecture, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
    model.train()
    ours: list[tuple[float, int]] = []
    monkeypatch.setattr(blocks, "dropout", lambda x, p: ours.append((p, x.numel())) or x)
    monkeypatch.setattr(blocks, "attend", lambda q, k, v, heads, p: ours.append((p, q.numel())) or q)
    monkeypatch.setattr(blocks, "dropout_add", lambda r, x, p: ours.append((p, x.numel())) or r + x)
    batch = batch_of()
    model(corrupted=batch)
    rates = [p for p, _ in ours]
    encoder_blocks, decoder_blocks = 2, 0 if architecture == "vanilla" else 2
    hidden = 1 + 2 * encoder_blocks + (3 if architecture == "cross" else 2) * decoder_blocks
    attention = encoder_blocks + (2 if architecture == "cross" else 1) * decoder_blocks
    assert (rates.count(0.3), rates.count(0.2), len(rates)) == (hidden, attention, hidden + attention)


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


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_compiled_once_and_never_again(architecture: str) -> None:
    """One graph without a break for all micro-batches of a shape, whatever their tokens. The inductor is not needed
    to count graphs, and takes a minute."""
    from torch._dynamo.utils import counters

    _, model = make(architecture, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model.train(), dynamic=False, fullgraph=True, backend="aot_eager")
    for seed in range(4):
        batch = batch_of(4, seed)
        for part in batch.split(2):
            compiled(corrupted=part, num_items_in_batch=64, return_logits=False).loss.backward()
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
    model.eval()
    with torch.no_grad():
        expected, found = model(corrupted=batch).logits, compiled(corrupted=batch).logits
    assert (expected - found).abs().max() < 1e-5
    torch._dynamo.reset()
