"""The benchmark: what is compared and counted, the statistics, a small run with its tables. No time is asserted."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tests.unit.test_models import batch_of, make
from threeml_core import reporting, speeds
from threeml_core.benchmark import run_benchmark
from threeml_core.benchmark.arms import arms_of, make_runner, with_vocabulary
from threeml_core.benchmark.breakdown import KINDS, kind_of
from threeml_core.benchmark.preparation import compare_preparation
from threeml_core.benchmark.scaling import points_of
from threeml_core.config import make_config
from threeml_core.data import prepare_data
from threeml_core.data.blocks import widen
from threeml_core.errors import ParameterError
from threeml_core.files import PROJECT_ROOT
from threeml_core.flops import forward_flops
from threeml_core.masking import CorruptedBatch
from threeml_core.pretrain import Batches, count_of
from threeml_core.results import RunRecord

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def short_turns() -> Iterator[None]:
    """A step a turn: what the numbers are does not matter here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("threeml_core.benchmark.speed.TURN_SECONDS", 0.0)
        patch.setattr("threeml_core.benchmark.scaling.TURN_SECONDS", 0.0)
        patch.setattr("threeml_core.benchmark.scaling.TURNS", 1)
        yield


@pytest.fixture(scope="module")
def record(corpus_file: Path, runs_dir: Path) -> RunRecord:
    """A benchmark of a second: speed and breakdown of three arms, all of a tiny geometry's scaling."""
    return run_benchmark(make_config(settings(corpus_file, runs_dir)), lambda line: None)


def settings(corpus_file: Path, runs_dir: Path) -> dict[str, object]:
    return {
        "corpus": str(corpus_file),
        "runs_dir": str(runs_dir),
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "decoder_hidden_size": 16,
        "batch_size": 4,
        "benchmark_arms": "hf,self",
        "benchmark_rates": "0.5",
        "benchmark_rounds": 2,
        "benchmark_parts": "speed,breakdown,scaling",
    }


def test_median_and_interval() -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(200):
        found = speeds.interval(rng.normal(1.5, 0.1, 25), 1000)
        assert found.low <= found.median <= found.high
        inside += found.low <= 1.5 <= found.high
    assert 180 <= inside <= 200  # 95% of 200, give or take
    assert speeds.interval(np.array([2.0, 2.0])) == speeds.Interval(2.0, 2.0, 2.0)


def test_ratios_are_taken_within_rounds() -> None:
    """A machine that slows down by half in the middle changes no ratio."""
    drift = np.array([1, 1, 2, 2, 2])
    assert speeds.ratio(3 * drift, 2.0 * drift) == speeds.Interval(1.5, 1.5, 1.5)


def test_too_noisy() -> None:
    assert speeds.too_noisy(speeds.Interval(1.051, 0.9, 1.2))
    assert speeds.too_noisy(speeds.Interval(0.949, 0.9, 1.2))
    assert not speeds.too_noisy(speeds.Interval(1.049, 0.9, 1.2))


def test_arms() -> None:
    names = [arm.name for arm in arms_of(make_config({}))]
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
    some = arms_of(make_config({"benchmark_arms": "self", "benchmark_rates": "0.15,0.5"}))
    assert [arm.name for arm in some] == ["vanilla-15", "self-15", "self-50"]
    for wrong in ({"benchmark_arms": "bert"}, {"benchmark_parts": "speed,speed"}, {"benchmark_rates": "x"}):
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            make_config(wrong)


@pytest.mark.parametrize("kind", ["hf", "hf_bare", "vanilla-15", "self-50", "cross-40"])
def test_flops_of_an_arm_are_what_its_step_executes(kind: str, corpus_file: Path, runs_dir: Path) -> None:
    """Forward and backward, by torch's counter; with dropout, as it is timed.

    The backward pass is twice the forward, but that nothing is propagated to the token ids; and our loss on a CPU
    makes its gradients in the forward pass. A CPU leaves out the logits of slots that hold no token.
    """
    given = {**settings(corpus_file, runs_dir), "benchmark_arms": "all", "benchmark_rates": "0.4,0.5"}
    given |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    config = make_config(given)
    data = with_vocabulary(prepare_data(config), config)
    arm = next(arm for arm in arms_of(config) if arm.name == kind)
    runner = make_runner(arm, data, CPU)
    batch = runner.batch()
    with FlopCounterMode(display=False) as counter:
        runner.step(batch)
    unused = int((batch.kinds == 0).sum()) if isinstance(batch, CorruptedBatch) else 0
    left_out = 6 * unused * config.hidden_size * data.vocab_size
    assert counter.get_total_flops() == pytest.approx(arm.step_flops(data.vocab_size) - left_out, rel=1e-9)


def test_a_vocabulary_larger_than_the_tokenizers(corpus_file: Path, runs_dir: Path) -> None:
    config = make_config({**settings(corpus_file, runs_dir), "vocab_size": 300})
    data = prepare_data(config)
    assert with_vocabulary(data, config.replace(vocab_size=1000)).vocab_size == 1000
    assert with_vocabulary(data, config.replace(vocab_size=290)).vocab_size == data.vocab_size


def test_both_ways_see_the_same_share_of_corrupted_tokens(corpus_file: Path, runs_dir: Path) -> None:
    config = make_config({**settings(corpus_file, runs_dir), "batch_size": 32})
    data = with_vocabulary(prepare_data(config), config)
    arms = {arm.name: arm for arm in arms_of(config)}
    theirs = make_runner(arms["hf"], data, CPU).batch()
    ours = make_runner(arms["self-50"], data, CPU).batch()
    assert theirs[0]["input_ids"].shape == ours.input_ids.shape
    assert theirs[0]["attention_mask"].all()
    share = (theirs[0]["labels"] != -100).float().mean().item()
    assert share == pytest.approx((ours.labels != -100).float().mean().item(), abs=0.06)


def test_operators_are_sorted_into_kinds() -> None:
    assert kind_of("aten::mm", [[64, 32], [32, 128]], [], 300) == "matrix products"
    assert kind_of("aten::mm", [[64, 32], [32, 300]], [], 300) == "head"
    assert kind_of("aten::addmm", [[64, 32], [32, 320]], [], 300) == "head"  # padded to 64
    assert kind_of("aten::baddbmm", [[8, 9, 4], [8, 4, 9]], ["_Attention"], 300) == "attention"
    assert kind_of("aten::random_", [[64]], ["_Attention"], 300) == "dropout"
    assert kind_of("aten::mul", [[64, 32]], ["_DropoutAddBackward"], 300) == "dropout"
    assert kind_of("aten::_fused_adamw_", [], ["Optimizer.step#AdamW.step"], 300) == "optimizer"
    assert kind_of("aten::gather", [[8, 32]], ["threeml: data"], 300) == "data"
    assert kind_of("aten::native_layer_norm", [[64, 32]], [], 300) == "GELU and norms"
    assert kind_of("aten::copy_", [[64, 32]], [], 300) == "the rest"


def test_a_record_and_its_tables(record: RunRecord, corpus_file: Path, runs_dir: Path) -> None:
    metrics = record.metrics
    assert record.stage == "benchmark" and set(metrics["turns"]) == {"hf", "vanilla-15", "self-50", "vanilla-15 again"}
    assert all(len(turn["seconds"]) == 2 for turn in metrics["turns"].values())
    for parts in metrics["breakdown"].values():
        assert list(parts) == list(KINDS) and parts["matrix products"] > 0 and parts["head"] > 0 and parts["data"] > 0
    axes = Counter(point["axis"] for point in metrics["scaling"])
    assert axes["mask_rate"] == 15 and axes["decoder_num_hidden_layers"] == 6 and axes["sequence_length"] == 9
    for point, (_, _, config) in zip(
        metrics["scaling"], points_of(make_config(settings(corpus_file, runs_dir))), strict=True
    ):
        assert point["flops"] == 3 * 4 * forward_flops(config, "exact", record.data["vocab_size"])

    quiet = dataclasses.replace(record, metrics={**metrics, "too_noisy": False})
    arms = {arm.name: arm for arm in speeds.speeds(quiet)}
    assert arms["vanilla-15"].over_vanilla == speeds.Interval(1.0, 1.0, 1.0)
    one = arms["self-50"]
    assert one.conversion.median == pytest.approx(
        one.over_vanilla.median * record.flops["self-50"] / record.flops["vanilla-15"]
    )
    assert one.mfu is None and 0 <= one.data_wait < 1
    text = "\n".join(speeds.lines_of(quiet))
    assert "3ML_self-50%" in text and "Hugging Face" in text
    html = reporting.speed_comparison(quiet)._repr_html_()
    assert "3ML_self-50%" in html and speeds.text_of(one.conversion) in html
    for part in (
        "resource_table",
        "plot_conversion",
        "plot_breakdown",
        "breakdown_table",
        "plot_scaling",
        "scaling_table",
    ):
        assert getattr(reporting, part)(quiet)._repr_html_()
    assert "not measured" in repr(reporting.preparation_table(quiet))


def test_a_noisy_record_gives_no_speed(record: RunRecord) -> None:
    noisy = dataclasses.replace(record, metrics={**record.metrics, "too_noisy": True})
    assert speeds.speeds(noisy) == []
    assert speeds.lines_of(noisy)[-1] == "too noisy: no speed is given"
    assert "too noisy" in repr(reporting.speed_comparison(noisy)) and "too noisy" in repr(
        reporting.resource_table(noisy)
    )
    assert reporting.plot_conversion(noisy)._repr_html_()


def test_measured_once_unless_it_was_too_noisy(record: RunRecord, corpus_file: Path, runs_dir: Path) -> None:
    config = make_config(settings(corpus_file, runs_dir))
    path = record.folder(runs_dir) / "record.json"
    lines: list[str] = []
    for noisy in (False, True):
        values = json.loads(path.read_text())
        values["metrics"] |= {"too_noisy": noisy, "mark": 1}
        path.write_text(json.dumps(values))
        again = run_benchmark(config.replace(benchmark_parts="speed,breakdown,scaling"), lines.append)
        assert again.run_id == record.run_id and ("mark" in again.metrics) is not noisy
    assert any("is finished" in line for line in lines) and any("measured again" in line for line in lines)


def test_preparing_data_in_both_ways(corpus_file: Path, tmp_path: Path) -> None:
    """The same text: as many tokens, up to the blocks' own ends and what fills no block."""
    config = make_config({"corpus": str(corpus_file), "runs_dir": str(tmp_path), "benchmark_megabytes": 1})
    found = compare_preparation(config, prepare_data(config), lambda line: None)
    assert isinstance(found, dict)
    assert found["ours"].tokens == pytest.approx(found["run_mlm"].tokens, rel=0.1)
    assert all(way.cpu_seconds > 0 and way.peak_bytes >= 0 for way in found.values())


def test_a_prepared_corpus_has_no_text_to_prepare(corpus_file: Path, tmp_path: Path) -> None:
    config = make_config({"corpus": str(corpus_file), "runs_dir": str(tmp_path)})
    data = prepare_data(config)
    given = config.replace(corpus=str(data.folder))
    assert "prepared elsewhere" in str(compare_preparation(given, data, lambda line: None))


def test_the_command(corpus_file: Path, runs_dir: Path) -> None:
    """Prints a table, or says that it was too noisy and fails; never a number that is not to be trusted."""
    given = {**settings(corpus_file, runs_dir), "benchmark_parts": "speed"}
    parameters = [part for name, value in given.items() for part in ("-p", name, str(value))]
    command = [sys.executable, "-m", "threeml_core.benchmark", *parameters]
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=200)
    assert "vanilla-15% against itself" in done.stdout and "record.json" in done.stdout
    if done.returncode:
        assert "error: too noisy" in done.stderr and "ms/step" not in done.stdout
    else:
        assert "3ML_self-50%" in done.stdout


def test_blocks_travel_as_they_are_stored(corpus_file: Path, runs_dir: Path) -> None:
    """A quarter of int64's bytes go to a GPU, and become the same ids there."""
    config = make_config({**settings(corpus_file, runs_dir), "architecture": "self", "mask_rate": 0.5})
    data = prepare_data(config)
    stored = data.train.stored(np.arange(4))
    assert stored.dtype == torch.int16 and torch.equal(widen(stored), data.train[np.arange(4)])
    large = torch.tensor([[65535, 40000, 5]], dtype=torch.int32).to(torch.int16)
    assert widen(large).tolist() == [[65535, 40000, 5]]
    batches = Batches(config, data, CPU)
    assert count_of(batches[0]) == int((batches[0].labels != -100).sum()) == 4 * 16 + 1


def test_batches_read_ahead_are_the_same(corpus_file: Path, runs_dir: Path) -> None:
    """As on a GPU, where a thread reads: any order of steps, none skipped, none left running at the end."""
    config = make_config({**settings(corpus_file, runs_dir), "max_steps": 6})
    data = prepare_data(config)
    plain, ahead = Batches(config, data, CPU), Batches(config, data, torch.device("meta"))
    ahead.device = CPU
    for step in (0, 1, 2, 4, 5, 3):
        assert torch.equal(plain[step].input_ids, ahead[step].input_ids)
    assert not [step for step in ahead._reading if step >= 6]


class Copies(TorchDispatchMode):
    """Counts the operators that only move data."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # noqa: ANN001
        name = function.overloadpacket.__name__
        if name in ("clone", "copy_", "cat", "_to_copy", "index_select", "index_copy", "gather"):
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


def test_copies_of_a_step() -> None:
    """Per encoder block: q, k, v into heads, the context back; joined weights and biases; three dropout masks."""
    _, model = make("self", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    model.train()
    with Copies() as copies:
        model(corrupted=batch_of(), return_logits=False)
    encoder_blocks, decoder_blocks = 2, 2
    blocks = encoder_blocks + decoder_blocks
    assert copies.counts["clone"] <= 4 * blocks
    assert copies.counts["_to_copy"] <= 3 * blocks + 1 + 5 * blocks  # masks; thresholds and their types
    assert copies.counts["cat"] <= 2 * encoder_blocks + 2  # and the order of what is predicted
    assert copies.counts["index_copy"] == 1 and copies.counts["index_select"] == 2
