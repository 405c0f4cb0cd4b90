"""Our vanilla model is transformers' RoBERTa or ModernBERT: same weights, same logits, same loss."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForMaskedLM,
    ModernBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaPreLayerNormConfig,
    RobertaPreLayerNormForMaskedLM,
    get_scheduler,
)

from threeml_core.config import make_config
from threeml_core.masking import Masking, corrupt
from threeml_core.models.build import build_model
from threeml_core.training.optim import linear_warmup_decay

VOCAB, N = 90, 20


@pytest.mark.parametrize(
    ("layer_norm", "config_class", "model_class", "name"),
    [
        ("post", RobertaConfig, RobertaForMaskedLM, "roberta"),
        ("pre", RobertaPreLayerNormConfig, RobertaPreLayerNormForMaskedLM, "roberta_prelayernorm"),
    ],
)
def test_vanilla_equals_roberta_for_masked_lm(layer_norm, config_class, model_class, name) -> None:
    geometry = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = make_config(
        {
            "architecture": "vanilla",
            "layer_norm": layer_norm,
            "sequence_length": N,
            **geometry,
            "max_position_embeddings": N + 2,
        }
    )
    torch.manual_seed(0)
    ours = build_model(config, VOCAB, mask_token_id=4).eval()
    theirs = model_class(
        config_class(
            vocab_size=VOCAB,
            intermediate_size=128,
            max_position_embeddings=N + 2,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            **geometry,
        )
    ).eval()
    getattr(theirs, name).load_state_dict(ours.encoder.state_dict())
    theirs.lm_head.dense.load_state_dict(ours.head.dense.state_dict())
    theirs.lm_head.layer_norm.load_state_dict(ours.head.layer_norm.state_dict())
    with torch.no_grad():
        ours.head_bias.normal_()
        theirs.lm_head.bias.copy_(ours.head_bias)
        theirs.lm_head.decoder.bias.copy_(ours.head_bias)
        theirs.lm_head.decoder.weight.copy_(ours.get_input_embeddings().weight)
    assert_same(ours, theirs)


def test_vanilla_equals_modernbert_for_masked_lm() -> None:
    """In fp64, with a local layer, and with as many parameters."""
    given = {"architecture": "vanilla", "encoder": "modernbert", "sequence_length": N, "hidden_size": 32}
    given |= {"num_attention_heads": 4, "num_hidden_layers": 2, "local_attention": 8, "initialization": "scaled"}
    config = make_config(given)
    torch.manual_seed(0)
    ours = build_model(config, VOCAB, mask_token_id=4).eval().double()
    theirs = AutoModelForMaskedLM.from_config(ours.config.encoder).eval().double()
    theirs.model.load_state_dict(ours.encoder.state_dict())
    theirs.head.dense.load_state_dict(ours.head.dense.state_dict())
    theirs.head.norm.load_state_dict(ours.head.layer_norm.state_dict())
    with torch.no_grad():
        theirs.decoder.bias.copy_(ours.head_bias.normal_())
    assert isinstance(theirs, ModernBertForMaskedLM) and ours.num_parameters() == theirs.num_parameters()
    assert_same(ours, theirs)


def assert_same(ours: nn.Module, theirs: nn.Module) -> None:
    """Logits and loss of both ways in."""
    ids = torch.randint(5, VOCAB, (4, N))
    batch = corrupt(ids, Masking(4, (0, 1, 2, 3, 4), VOCAB), torch.Generator().manual_seed(0))
    expected = theirs(batch.input_ids, labels=batch.labels)
    ordinary = ours(batch.input_ids, labels=batch.labels)
    fast = ours(corrupted=batch)
    assert (ordinary.logits - expected.logits).abs().max() < 1e-5
    assert fast.loss.item() == pytest.approx(expected.loss.item(), abs=1e-5)
    at = expected.logits.gather(1, batch.corrupted_idx[..., None].expand(-1, -1, VOCAB))
    assert (fast.logits - at).abs().max() < 1e-5


def test_schedule_equals_transformers() -> None:
    """transformers' linear schedule starts from zero; ours is the same line one step on."""
    warmup, steps = 6, 100
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = get_scheduler("linear", optimizer, warmup, steps)
    theirs = []
    for _ in range(steps):
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    ours = [linear_warmup_decay(step, steps, 0.06) for step in range(steps)]
    assert ours[:warmup] == pytest.approx([*theirs[1:warmup], 1.0])
    assert ours[warmup:] == pytest.approx(theirs[warmup:])
