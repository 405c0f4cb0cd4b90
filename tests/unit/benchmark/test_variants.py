"""What is compared, and the FLOPs that it executes."""

from __future__ import annotations

import dataclasses
import itertools
import time
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.combinations import PARTIAL
from threeml_core.benchmark import variants
from threeml_core.benchmark.variants import HuggingFaceRunner, at_its_best, make_runner, variants_of, with_vocabulary
from threeml_core.config import make_config
from threeml_core.data.prepare import prepare_data
from threeml_core.foundation.errors import ParameterError
from threeml_core.masking import CorruptedBatch

CPU = torch.device("cpu")


def settings(corpus_file: Path, runs_dir: Path) -> dict[str, object]:
    return {
        "corpus": str(corpus_file),
        "runs_dir": str(runs_dir),
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "decoder_hidden_size": 16,
        "batch_size": 4,
        "benchmark_variants": "hf,self",
        "benchmark_rates": "0.5",
        "num_benchmark_rounds": 6,
        "benchmark_parts": "speed,breakdown,scaling",
    }


def test_variants() -> None:
    names = [variant.name for variant in variants_of(make_config({"benchmark_rates": "0.4,0.5"}))]
    assert names == [
        "hf",
        "hf_bare",
        "vanilla-15",
        "vanilla-40",
        "vanilla-50",
        "self-40",
        "self-50",
        "cross-40",
        "cross-50",
    ]
    some = variants_of(make_config({"benchmark_variants": "self", "benchmark_rates": "0.15,0.5"}))
    assert [variant.name for variant in some] == ["vanilla-15", "self-15", "self-50"]
    rivals = variants_of(make_config({"benchmark_variants": ",".join(PARTIAL), "benchmark_rates": "0.4"}))
    assert [variant.name for variant in rivals] == ["vanilla-15", *(f"{name}-40" for name in PARTIAL)]
    for wrong in ({"benchmark_variants": "bert"}, {"benchmark_parts": "speed,speed"}, {"benchmark_rates": "x"}):
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            make_config(wrong)


_OF_ALL = itertools.product(["hf", "hf_bare", "vanilla-15", "self-50", "cross-40"], ["roberta", "modernbert"])


@pytest.mark.parametrize(("kind", "encoder"), [*_OF_ALL, *((f"{name}-40", "roberta") for name in PARTIAL)])
def test_flops_of_an_arm_are_what_its_step_executes(kind: str, encoder: str, corpus_file: Path, runs_dir: Path) -> None:
    """Forward and backward, by torch's counter; with dropout, as it is timed.

    The backward pass is twice the forward, but that nothing is propagated to the token ids; and our loss on a CPU
    makes its gradients in the forward pass. A CPU leaves out the logits of slots that hold no token.
    """
    named = kind.split("-")[0] if kind[:-3] in PARTIAL else "all"
    given = {**settings(corpus_file, runs_dir), "benchmark_variants": named, "benchmark_rates": "0.4,0.5"}
    given |= {
        "num_hidden_layers": 3,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "encoder": encoder,
    }
    config = make_config(given)
    data = with_vocabulary(prepare_data(config), config)
    variant = next(variant for variant in variants_of(config) if variant.name == kind)
    runner = make_runner(variant, data, CPU)
    if kind.startswith("hf"):
        names = {"roberta": "RobertaPreLayerNormForMaskedLM", "modernbert": "ModernBertForMaskedLM"}
        assert type(runner.model).__name__ == names[encoder]
    batch = runner.batch()
    with FlopCounterMode(display=False) as counter:
        runner.step(batch)
    unused = int((batch.kinds == 0).sum()) if isinstance(batch, CorruptedBatch) else 0
    left_out = 6 * unused * config.hidden_size * data.vocab_size
    assert counter.get_total_flops() == pytest.approx(variant.step_flops(data.vocab_size) - left_out, rel=1e-9)


def test_a_vocabulary_larger_than_the_tokenizers(corpus_file: Path, runs_dir: Path) -> None:
    config = make_config({**settings(corpus_file, runs_dir), "vocab_size": 300})
    data = prepare_data(config)
    assert with_vocabulary(data, config.replace(vocab_size=1000)).vocab_size == 1000
    assert with_vocabulary(data, config.replace(vocab_size=290)).vocab_size == data.vocab_size


def test_both_ways_see_the_same_share_of_corrupted_tokens(corpus_file: Path, runs_dir: Path) -> None:
    config = make_config({**settings(corpus_file, runs_dir), "batch_size": 32})
    data = with_vocabulary(prepare_data(config), config)
    variants = {variant.name: variant for variant in variants_of(config)}
    theirs = make_runner(variants["hf"], data, CPU).batch()
    ours = make_runner(variants["self-50"], data, CPU).batch()
    assert theirs[0]["input_ids"].shape == ours.input_ids.shape
    assert theirs[0]["attention_mask"].all()
    share = (theirs[0]["labels"] != -100).float().mean().item()
    assert share == pytest.approx((ours.labels != -100).float().mean().item(), abs=0.06)


def test_hugging_face_has_its_own_best_precision(
    corpus_file: Path, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU where ours take bfloat16; ours, and a precision that was given, stay as they are."""
    config = make_config(settings(corpus_file, runs_dir))
    data = prepare_data(config)
    hf, ours = variants_of(config)[:2]
    steps: list[bool | None] = []
    step = HuggingFaceRunner.step

    def slow_in_one(runner: HuggingFaceRunner, batch: list[dict[str, torch.Tensor]]) -> torch.Tensor:
        steps.append(runner.bf16)
        time.sleep(0.5 * (runner.bf16 == slow))
        return step(runner, batch)

    monkeypatch.setattr(HuggingFaceRunner, "step", slow_in_one)
    monkeypatch.setattr(variants, "precision_of", lambda config, device: (config.bf16 is not False, False))
    for slow in (True, False):
        assert at_its_best(hf, data, CPU).config.bf16 is not slow
    assert steps == [False, False, True, True] * 2
    assert at_its_best(ours, data, CPU) == ours
    given = dataclasses.replace(hf, config=config.replace(bf16=True))
    assert at_its_best(given, data, CPU) == given
    monkeypatch.setattr(variants, "precision_of", lambda config, device: (False, False))
    assert at_its_best(hf, data, CPU) == hf and len(steps) == 8
