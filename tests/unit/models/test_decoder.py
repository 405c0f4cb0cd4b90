"""The decoder layer is torch's, whose weights it takes: everywhere, at some positions, with padding, with dropout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import ModernBertConfig
from transformers.models.modernbert.modeling_modernbert import ModernBertEncoderLayer, ModernBertRotaryEmbedding

from tests.unit.models.test_models import N, make
from threeml_core.models.decoder import DecoderLayer
from threeml_core.models.gather import place, take

N_EN = 11


def pair(architecture: str, layer_norm: str) -> tuple[nn.Module, DecoderLayer]:
    """torch's layer and ours with its weights, fp64, in training mode without dropout."""
    _, model = make(architecture, layer_norm)
    stock_class = nn.TransformerEncoderLayer if architecture == "self" else nn.TransformerDecoderLayer
    torch.manual_seed(1)
    stock = stock_class(
        16, 2, 64, 0.0, "gelu", layer_norm_eps=1e-5, batch_first=True, norm_first=layer_norm == "pre"
    ).double()
    for parameter in stock.parameters():  # biases are zero at first
        nn.init.normal_(parameter, std=0.3)
    ours = DecoderLayer(model.config, architecture == "cross").double()
    assert model.config.decoder_num_attention_heads == 2
    ours.load_state_dict(stock.state_dict())
    return stock, ours


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    hidden, memory = torch.randn(3, N, 16).double(), torch.randn(3, N_EN, 16).double()
    return hidden.requires_grad_(), memory.requires_grad_()


def assert_same(stock: nn.Module, ours: nn.Module, expected: Tensor, found: Tensor, *given: Tensor) -> None:
    """Output, and the gradients of an uneven sum of it by every parameter and by what was given."""
    assert (expected - found).abs().max() < 1e-12
    weights = torch.linspace(-1, 1, found.numel()).view_as(found).double()
    by_stock = torch.autograd.grad((expected * weights).sum(), [*given, *stock.parameters()])
    names = [name for name, _ in stock.named_parameters()]
    by_ours = torch.autograd.grad((found * weights).sum(), [*given, *(ours.get_parameter(name) for name in names)])
    for a, b in zip(by_stock, by_ours, strict=True):
        assert torch.allclose(a, b, atol=1e-10)


@pytest.mark.parametrize("layer_norm", ["pre", "post"])
def test_self_attention_layer_is_torchs(layer_norm: str) -> None:
    stock, ours = pair("self", layer_norm)
    hidden, _ = inputs()
    assert_same(stock, ours, stock(hidden), ours(hidden), hidden)
    at = torch.stack([torch.randperm(N)[:7] for _ in range(3)])
    assert_same(stock, ours, take(stock(hidden), at), ours(hidden, at=at), hidden)


@pytest.mark.parametrize("layer_norm", ["pre", "post"])
def test_cross_attention_layer_is_torchs(layer_norm: str) -> None:
    stock, ours = pair("cross", layer_norm)
    hidden, memory = inputs()
    assert_same(stock, ours, stock(hidden, memory), ours(hidden, memory), hidden, memory)
    at = torch.stack([torch.randperm(N)[:7] for _ in range(3)])
    assert_same(stock, ours, take(stock(hidden, memory), at), ours(hidden, memory, at), hidden, memory)


@pytest.mark.parametrize("layer_norm", ["pre", "post"])
def test_padding_is_torchs(layer_norm: str) -> None:
    hidden, memory = inputs()
    visible, visible_memory = torch.ones(3, N, dtype=torch.bool), torch.ones(3, N_EN, dtype=torch.bool)
    visible[0, 20:], visible[1, :5], visible_memory[2, 4:] = False, False, False
    stock, ours = pair("self", layer_norm)
    assert_same(stock, ours, stock(hidden, src_key_padding_mask=~visible), ours(hidden, key_mask=visible), hidden)
    stock, ours = pair("cross", layer_norm)
    expected = stock(hidden, memory, tgt_key_padding_mask=~visible, memory_key_padding_mask=~visible_memory)
    found = ours(hidden, memory, key_mask=visible, memory_mask=visible_memory)
    assert_same(stock, ours, expected, found, hidden, memory)


@pytest.mark.parametrize("at_some", [False, True])
def test_modern_layer_is_modernberts(at_some: bool) -> None:
    """Its global encoder layer with the same weights, at the same positions; transformers turns them in fp32."""
    _, model = make("self", "modern")
    config = ModernBertConfig(
        hidden_size=16, num_attention_heads=2, intermediate_size=48, num_hidden_layers=4, global_rope_theta=10_000.0
    )
    theirs, ours = ModernBertEncoderLayer(config, 3).double(), DecoderLayer(model.config, False).double()
    names = {"attn_norm": "norm1", "attn.Wqkv": "self_attn.in_proj_weight", "attn.Wo": "self_attn.out_proj"}
    names |= {"mlp_norm": "norm2", "mlp.Wi": "Wi", "mlp.Wo": "Wo"}
    with torch.no_grad():
        for there, here in names.items():
            weight = theirs.get_parameter(f"{there}.weight").normal_(std=0.3)
            ours.get_parameter(here if "in_proj" in here else f"{here}.weight").copy_(weight)
    assert len(list(ours.parameters())) == len(list(theirs.parameters())) == len(names)
    hidden, positions = inputs()[0], torch.stack([torch.randperm(99)[:N].sort().values for _ in range(3)])
    angles = ModernBertRotaryEmbedding(config)(hidden, positions, "full_attention")
    at = torch.stack([torch.randperm(N)[:7] for _ in range(3)]) if at_some else None
    found, expected = ours(hidden, at=at, positions=positions), theirs(hidden, position_embeddings=angles)
    assert (found - (expected if at is None else take(expected, at))).abs().max() < 1e-6


def test_only_distances_count_in_the_modern_decoder() -> None:
    """Between [MASK]s, and from them to the memory; without positions they are 0 to n - 1."""
    _, model = make("cross", "modern", initialization="scaled")
    layer, (hidden, memory) = model.decoder_layers[0].double(), inputs()
    own, others = torch.arange(N)[None], torch.randperm(N)[None, :N_EN]
    found = layer(hidden, memory, positions=own, memory_positions=others)
    for given in ({"positions": own + 50, "memory_positions": others + 50}, {"memory_positions": others}):
        assert (layer(hidden, memory, **given) - found).abs().max() < 1e-12
    assert (layer(hidden, memory, positions=own + 1, memory_positions=others) - found).abs().max() > 1e-3


def test_what_is_placed_can_be_taken() -> None:
    hidden, filler = torch.randn(3, 5, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    idx = torch.stack([torch.randperm(9)[:5] for _ in range(3)])
    placed = place(hidden, idx, 9, filler)
    assert torch.equal(take(placed, idx), hidden)
    others = torch.ones(3, 9, dtype=torch.bool).scatter(1, idx, False)
    assert torch.equal(placed[others], filler.expand(12, 4))
    placed.sum().backward()
    assert torch.equal(hidden.grad, torch.ones_like(hidden)) and torch.equal(filler.grad, torch.full((4,), 12.0))
