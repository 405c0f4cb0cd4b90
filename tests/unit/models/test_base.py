"""The encoder is Hugging Face's, executed by its own forward: hooks, adapters, other classes, plain files."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from tests.combinations import PARTIAL, WITH_KINDS
from tests.unit.models.test_models import KINDS, NOT_POST, VOCAB, N, batch_of, make
from threeml_core.foundation.errors import ParameterError
from threeml_core.models import attention, dropout
from threeml_core.models.build import model_class
from threeml_core.parameters.architectures import ARCHITECTURES


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [True, False])
def test_encoder_is_hugging_faces(kind: str, training: bool) -> None:
    """One made by Hugging Face alone with the same weights gives the same states and gradients."""
    _, model = make("vanilla", kind)
    ours, ids = model.encoder.train(training), batch_of().input_ids
    pooling = {} if kind == "modern" else {"add_pooling_layer": False}
    theirs = AutoModel.from_config(model.config.encoder, **pooling).train(training)
    theirs.load_state_dict(ours.state_dict())
    assert theirs.config._attn_implementation == "sdpa" and theirs.state_dict().keys() == ours.state_dict().keys()
    states = [encoder(ids).last_hidden_state for encoder in (theirs, ours)]
    assert torch.equal(*states)
    weights = torch.linspace(-1, 1, states[0].numel()).view_as(states[0])
    gradients = [
        torch.autograd.grad((hidden * weights).sum(), list(encoder.parameters()))
        for hidden, encoder in zip(states, (theirs, ours), strict=True)
    ]
    for a, b in zip(*gradients, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(("architecture", "kind"), NOT_POST)
def test_dropout_is_drawn_where_hugging_face_has_it(
    architecture: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sites and rates of a training step, in the fast path and in the ordinary forward; no other dropout is drawn.

    What comes out of ModernBERT's attention is dropped at the rate of its weights.
    """
    _, model = make(architecture, kind, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
    model.train()
    rates: list[float] = []

    def keep_all(shape: torch.Size, p: float) -> Tensor:
        rates.append(p)
        return torch.ones(shape, dtype=torch.uint8)

    monkeypatch.setattr(dropout, "keep_mask", keep_all)
    monkeypatch.setattr(attention, "keep_mask", keep_all)
    layers, decoder_layers = 2, 2 * ARCHITECTURES[architecture].has_decoder
    in_hidden, in_weights = (1, 2) if kind == "modern" else (2, 1)
    hidden = 1 + in_hidden * layers + (3 if architecture == "cross" else 2) * decoder_layers
    weights = in_weights * layers + (2 if architecture == "cross" else 1) * decoder_layers
    batch, state = batch_of(), torch.get_rng_state()
    for given in ({"corrupted": batch}, {"input_ids": batch.input_ids}):
        rates.clear()
        model(**given)
        assert (rates.count(0.3), rates.count(0.2), len(rates)) == (hidden, weights, hidden + weights)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("architecture", "kind"), WITH_KINDS)
def test_hooks_fire_in_the_fast_path(architecture: str, kind: str) -> None:
    _, model = make(architecture, kind)
    called: list[str] = []
    for name, module in model.named_modules():
        if name and not isinstance(module, nn.ModuleList):
            module.register_forward_hook(lambda *_, name=name: called.append(name))
    model.train()(corrupted=batch_of())
    if kind == "modern":
        words, layer, parts = "tok_embeddings", "encoder.layers", ("attn.Wqkv", "attn.out_drop", "mlp.Wi", "")
    else:
        parts = ("attention.self.query", "attention.self.key", "attention.output.dropout", "intermediate.dense", "")
        words, layer = "word_embeddings", "encoder.encoder.layer"
    if architecture in PARTIAL:
        parts = parts[:-1]  # not every layer runs as a whole
    for part in parts:
        assert {f"{layer}.{i}.{part}".rstrip(".") for i in (0, 1)} <= set(called)
    assert f"encoder.embeddings.{words}" in called and ("encoder" in called) == (architecture not in PARTIAL)


class LowRank(nn.Module):
    """As an adapter wraps a linear layer."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_adapters_learn_in_the_fast_path(architecture: str) -> None:
    _, model = make(architecture, initialization="scaled")
    batch = batch_of()
    before = model(corrupted=batch).loss
    own = model.encoder.encoder.layer[0].attention.self
    own.query = LowRank(own.query, 2)
    with torch.no_grad():
        own.query.up.weight.normal_()
    fast, ordinary = model(corrupted=batch), model(batch.input_ids, labels=batch.labels)
    assert abs(fast.loss - before) > 1e-6 and fast.loss.item() == pytest.approx(ordinary.loss.item(), abs=1e-6)
    fast.loss.backward()
    assert own.query.down.weight.grad.any() and own.query.base.weight.grad is None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["bert", "xlm-roberta", "ernie"])
def test_other_encoders(architecture: str, kind: str, tmp_path: Path) -> None:
    """Any of Hugging Face's that takes position ids, wherever it counts from: both ways in agree, with padding too."""
    encoder = AutoConfig.for_model(
        kind,
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=N + 10,
        pad_token_id=1,
    )
    model_type = model_class(architecture)
    torch.manual_seed(0)
    model = model_type(model_type.config_class(encoder=encoder, mask_token_id=4)).eval()
    batch = batch_of()
    fast, ordinary = model(corrupted=batch), model(batch.input_ids, labels=batch.labels)
    assert fast.loss.item() == pytest.approx(ordinary.loss.item(), abs=1e-6)
    ids = batch.input_ids
    padded = torch.cat([torch.ones_like(ids[:, :5]), ids], 1)
    mask = torch.cat([torch.zeros_like(ids[:, :5]), torch.ones_like(ids)], 1)
    assert (model(padded, mask).logits[:, 5:] - ordinary.logits).abs().max() < 1e-5
    whole = model.encoder(ids, position_ids=model.position_ids(ids)).last_hidden_state
    assert torch.equal(whole, model.encoder(ids).last_hidden_state)
    model.train()(corrupted=batch).loss.backward()
    model.save_pretrained(tmp_path)
    assert torch.equal(model_type.from_pretrained(tmp_path).eval()(corrupted=batch).loss, fast.loss)


def test_an_encoder_that_cannot_work_is_refused() -> None:
    """One line each: not known to transformers, and without position ids."""
    model_type = model_class("self")
    with pytest.raises(ParameterError, match="^encoder modernbret: transformers has no such model; take .*$"):
        model_type.config_class(encoder={"model_type": "modernbret"})
    config = model_type.config_class(encoder={"model_type": "roformer", "hidden_size": 32, "num_attention_heads": 4})
    with pytest.raises(ParameterError, match="^encoder roformer: it takes no position_ids, .* roberta or modernbert$"):
        model_type(config)


@pytest.mark.parametrize(("architecture", "kind"), WITH_KINDS)
def test_gradient_checkpointing_changes_nothing(architecture: str, kind: str) -> None:
    """The same loss and gradients, dropout included, in both ways in; each layer is computed twice."""
    _, model = make(architecture, kind, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    batch, calls = batch_of(), []
    for name, module in model.named_modules():
        if name.endswith(("query", "linear1", "Wi")):  # one per layer of the encoder and of the decoder
            module.register_forward_hook(lambda *_: calls.append(1))

    def run(**given: Tensor) -> tuple[Tensor, list[Tensor], int]:
        calls.clear()
        torch.manual_seed(0)
        model.zero_grad()
        loss = model.train()(**given).loss
        loss.backward()
        return loss.detach(), [p.grad.clone() for p in model.parameters()], len(calls)

    both = ({"corrupted": batch}, {"input_ids": batch.input_ids, "labels": batch.labels})
    plain = [run(**given) for given in both]
    model.activation_checkpointing_enable()
    for given, (loss, gradients, count) in zip(both, plain, strict=True):
        again = run(**given)
        assert torch.equal(again[0], loss) and again[2] == 2 * count
        for a, b in zip(again[1], gradients, strict=True):
            assert torch.allclose(a, b, atol=1e-7)


@pytest.mark.parametrize(("architecture", "kind"), NOT_POST)
def test_attention_implementation_is_the_users(architecture: str, kind: str, tmp_path: Path) -> None:
    """Files and configurations that others build from name none; who asks for one gets it."""
    _, model = make(architecture, kind)
    assert model.encoder.config._attn_implementation == attention.BYTE_DROPOUT
    assert model.config.encoder._attn_implementation != attention.BYTE_DROPOUT
    model.save_pretrained(tmp_path / "model")
    model.encoder.save_pretrained(tmp_path / "encoder")
    for folder in ("model", "encoder"):
        text = (tmp_path / folder / "config.json").read_text()
        assert attention.BYTE_DROPOUT not in text and "attn_implementation" not in json.dumps(json.loads(text))
    assert AutoModel.from_pretrained(tmp_path / "encoder").config._attn_implementation == "sdpa"
    eager = type(model).from_pretrained(tmp_path / "model", attn_implementation="eager").eval()
    assert eager.encoder.config._attn_implementation == "eager"
    batch = batch_of()
    assert (eager(corrupted=batch).loss - model(corrupted=batch).loss).abs() < 1e-6
    model.set_attn_implementation("eager")
    assert model.encoder.config._attn_implementation == "eager"
    assert copy.deepcopy(model)(corrupted=batch).loss == eager(corrupted=batch).loss
