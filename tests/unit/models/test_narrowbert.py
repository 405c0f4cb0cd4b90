"""NarrowBERT by its definition; vanilla where nothing is narrow; both ways in."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.unit.models.test_models import VOCAB, N, batch_of, make
from threeml_core.config import make_config
from threeml_core.foundation.errors import ParameterError
from threeml_core.models.build import model_class
from threeml_core.models.gather import take

NARROW = ("sparse_queries", "context_first")


def attention_by_hand(layer: nn.Module, hidden: Tensor, memory: Tensor, pre: bool) -> Tensor:
    own, output = layer.attention.self, layer.attention.output
    norm = layer.attention.LayerNorm if pre else nn.Identity()
    query, key, value = own.query(norm(hidden)), own.key(norm(memory)), own.value(norm(memory))
    heads = []
    for q, k, v in zip(*(x.split(8, -1) for x in (query, key, value)), strict=True):
        heads.append((q @ k.mT / 8**0.5).softmax(-1) @ v)
    hidden = hidden + output.dense(torch.cat(heads, -1))
    return hidden if pre else output.LayerNorm(hidden)


def feed_forward_by_hand(layer: nn.Module, hidden: Tensor, pre: bool) -> Tensor:
    inner = layer.intermediate.dense(layer.intermediate.LayerNorm(hidden) if pre else hidden)
    hidden = hidden + layer.output.dense(F.gelu(inner))
    return hidden if pre else layer.output.LayerNorm(hidden)


@pytest.mark.parametrize("kind", ["pre", "post"])
@pytest.mark.parametrize("full_layers", [0, 1, 3, 4])
@pytest.mark.parametrize("architecture", NARROW)
def test_states_by_definition(architecture: str, full_layers: int, kind: str) -> None:
    """In fp64, with heads of 8: the corrupted tokens' last state, and those of [MASK]s behind each layer."""
    given = {"num_hidden_layers": 4, "full_layers": full_layers, "initialization": "scaled"}
    _, model = make(architecture, kind, **given)
    model, batch, pre = model.double(), batch_of(), kind == "pre"
    layers, at = model.encoder.encoder.layer, batch.corrupted_idx
    hidden = model.encoder.embeddings(batch.input_ids, position_ids=model.position_ids(batch.input_ids))
    states = [hidden]
    for layer in layers[:full_layers]:
        hidden = feed_forward_by_hand(layer, attention_by_hand(layer, hidden, hidden, pre), pre)
        states.append(hidden)
    memory, narrow = hidden, take(hidden, at)
    if architecture == "sparse_queries":
        behind = [narrow := narrow_by_hand(layer, narrow, memory, pre) for layer in layers[full_layers:]]
    else:
        for layer in layers[full_layers:]:
            hidden = attention_by_hand(layer, hidden, hidden, pre)
        narrow = take(hidden, at)
        behind = [narrow := feed_forward_by_hand(layer, narrow, pre) for layer in layers[full_layers:]]
    last = model.encoder.LayerNorm(narrow) if pre else narrow
    assert (model(corrupted=batch).logits - model.logits(model.head(last))).abs().max() < 1e-10
    masks = batch.mask_idx.shape[1]  # the first of the corrupted ones
    expected = [*(take(state, batch.mask_idx) for state in states), *(state[:, :masks] for state in behind)]
    for a, b in zip(model.mask_states(batch, final_norm=False), expected, strict=True):
        assert (a - b).abs().max() < 1e-10


def narrow_by_hand(layer: nn.Module, hidden: Tensor, memory: Tensor, pre: bool) -> Tensor:
    return feed_forward_by_hand(layer, attention_by_hand(layer, hidden, memory, pre), pre)


@pytest.mark.parametrize("kind", ["pre", "post"])
@pytest.mark.parametrize("full_layers", [2, 3])
@pytest.mark.parametrize("architecture", NARROW)
def test_where_nothing_is_narrow_it_is_vanilla(architecture: str, full_layers: int, kind: str) -> None:
    """All layers full, or all but the last: the same weights by the same seed, losses and gradients in fp64."""
    found = []
    for name in ("vanilla", architecture):
        _, model = make(name, kind, num_hidden_layers=3, full_layers=full_layers, initialization="scaled")
        model, batch = model.double().train(), batch_of()
        parameters = dict(model.named_parameters())
        ways = ({"corrupted": batch}, {"corrupted": batch, "return_logits": False})
        for given in (*ways, {"input_ids": batch.input_ids, "labels": batch.labels}):
            loss = model(**given).loss
            found.append((parameters, loss, torch.autograd.grad(loss, list(parameters.values()))))
    for (weights, loss, gradients), (others, other_loss, other) in zip(found[:3], found[3:], strict=True):
        assert weights.keys() == others.keys() and all(torch.equal(weights[n], others[n]) for n in weights)
        assert loss.item() == pytest.approx(other_loss.item(), abs=1e-6)
        for a, b in zip(gradients, other, strict=True):
            assert (a - b).abs().max() < 1e-6


@pytest.mark.parametrize("architecture", NARROW)
def test_narrow_layers_are_something_else(architecture: str) -> None:
    """Two of them, or one of three: not the vanilla model's logits, and not those of the other variant."""
    logits = [
        make(name, num_hidden_layers=3, full_layers=1, initialization="scaled")[1](corrupted=batch_of()).logits
        for name in ("vanilla", *NARROW)
    ]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert (logits[a] - logits[b]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["pre", "post"])
@pytest.mark.parametrize("full_layers", [0, 1, 2])
@pytest.mark.parametrize("architecture", NARROW)
def test_both_ways_in_agree(architecture: str, full_layers: int, kind: str) -> None:
    """Narrow positions do not look at each other: with all as queries, and padding, the same logits in fp64."""
    given = {"num_hidden_layers": 4, "full_layers": full_layers, "max_position_embeddings": N + 10}
    _, model = make(architecture, kind, initialization="scaled", **given)
    model, batch = model.double(), batch_of()
    fast = model(corrupted=batch).logits
    ids, real = batch.input_ids, torch.ones_like(batch.input_ids)
    padding = torch.full((len(ids), 5), 50)
    for padded, mask, start in (
        (ids, None, 0),
        (torch.cat([ids, padding], 1), torch.cat([real, 0 * padding], 1), 0),
        (torch.cat([padding, ids], 1), torch.cat([0 * padding, real], 1), 5),
    ):
        assert (take(model(padded, mask).logits, batch.corrupted_idx + start) - fast).abs().max() < 1e-10
    model.set_attn_implementation("eager")
    assert (model(corrupted=batch).logits - fast).abs().max() < 1e-10


def test_a_sixth_of_the_layers_is_full() -> None:
    for layers, full in ((1, 1), (2, 1), (4, 1), (8, 1), (9, 2), (12, 2), (24, 4)):
        for architecture in NARROW:
            config = make_config({"architecture": architecture, "num_hidden_layers": layers})
            assert (config.full_layers, config.sources["full_layers"]) == (full, "derived")
            encoder = {"model_type": "roberta", "num_hidden_layers": layers}
            assert model_class(architecture).config_class(encoder=encoder).full_layers == full
    assert make_config({"architecture": "vanilla"}).full_layers is None


def test_what_does_not_go_is_refused() -> None:
    with pytest.raises(ParameterError, match="^full_layers=5: expected at most num_hidden_layers=4$"):
        make_config({"architecture": "sparse_queries", "num_hidden_layers": 4, "full_layers": 5})
    with pytest.raises(ParameterError, match="^encoder='modernbert': .*; take encoder=roberta$"):
        make_config({"architecture": "context_first", "encoder": "modernbert"})
    of = model_class("sparse_queries")
    encoder = {"model_type": "modernbert", "vocab_size": VOCAB, "hidden_size": 32, "num_attention_heads": 4}
    encoder |= {"num_hidden_layers": 2, "intermediate_size": 8}
    encoder |= {f"{name}_token_id": 1 for name in ("pad", "bos", "eos", "cls", "sep")}
    with pytest.raises(ParameterError, match="^encoder modernbert: its layers cannot run in parts"):
        of(of.config_class(encoder=encoder))
