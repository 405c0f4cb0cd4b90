"""What `scripts/gpu_check.sh` runs; see there."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters

from threeml_core.benchmark.run import run_benchmark
from threeml_core.benchmark.speeds import lines_of, speeds
from threeml_core.config import StudyConfig, make_config
from threeml_core.data.prepare import PreparedData, load_prepared, prepare_data
from threeml_core.models.build import build_model
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.runs.record import RunRecord, describe_environment
from threeml_core.training.device import describe_device
from threeml_core.training.evaluation import fixed_corruption, masking_of, validation_sequences
from threeml_core.training.trainer import Trainer

BLOCKS = Path("runs/gpu_check")
"""Prepared blocks that are brought along, one folder a sequence length."""

SECONDS = 360
"""Time for all of it; what cannot begin in time is left out and said to be."""

GEOMETRIES: dict[str, dict[str, Any]] = {
    "base-512": {"preset": "longer-base", "batch_size": 64, "micro_batch_size": 64},
    "large-128": {"preset": "efficient-large", "batch_size": 256, "micro_batch_size": 256},
}
"""The paper's two geometries at a batch that fits one GPU of 80 GB."""

GOALS = {
    "base-512": {
        "mfu vanilla-15": 0.38,
        "mfu self-50": 0.33,
        "realised self-50": 0.85,
        "hf self-50": 2.0,
        "hf_bare self-50": 1.5,
    },
    "large-128": {"mfu vanilla-15": 0.42, "mfu self-50": 0.38, "realised self-50": 0.90},
}
"""On one H100: share of the bf16 peak; realised speed-up; times as fast as Hugging Face eager and compiled."""

SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "decoder_hidden_size": 32,
    "intermediate_size": 256,
    "decoder_num_attention_heads": 2,
    "vocab_size": 2000,
    "batch_size": 4,
    "micro_batch_size": 4,
}
"""Of a rehearsal on a CPU."""


def prepare() -> None:
    """Write the bundled text as blocks of both lengths, with one tokenizer."""
    shutil.rmtree(BLOCKS, ignore_errors=True)
    for name, given in GEOMETRIES.items():
        config = make_config({**given, "corpus": "bundled", "tokenizer": "train", "vocab_size": 4096})
        data = prepare_data(config.replace(runs_dir=str(BLOCKS / "cache")))
        shutil.copytree(data.folder, BLOCKS / name)
    shutil.rmtree(BLOCKS / "cache")
    size = sum(path.stat().st_size for path in BLOCKS.rglob("*") if path.is_file())
    print(f"{BLOCKS}: {size / 1e6:.1f} MB to bring along")


def configuration(name: str, rehearse: bool) -> StudyConfig:
    """Parameters of a geometry; the vocabulary of the paper, whatever the tokenizer's."""
    given = {**GEOMETRIES[name], "corpus": str(BLOCKS / name), "runs_dir": str(BLOCKS / "runs")}
    if rehearse:
        given |= {**SMALL, "device": "cpu", "torch_compile": True, "bf16": False}
    return make_config(given)


def parity(config: StudyConfig, data: PreparedData, device: torch.device) -> dict[str, float]:
    """Largest difference of logits (fp32) and of losses (bf16 too) between this device and the CPU, by model."""
    found = {}
    small = config.replace(num_hidden_layers=2)
    for architecture in ARCHITECTURES:
        one = small.replace(architecture=architecture)
        torch.manual_seed(0)
        model = build_model(one, data.vocab_size, **data.token_ids).eval()
        batch = fixed_corruption(
            validation_sequences(one.replace(max_eval_sequences=4), data), masking_of(one, data, True)
        )
        with torch.no_grad():
            here = model(corrupted=batch)
            model.to(device=device)
            there = model(corrupted=batch.to(device))
            alone = model(corrupted=batch.to(device), return_logits=False)
            with torch.autocast(device.type, torch.bfloat16):
                rough = model(corrupted=batch.to(device), return_logits=False)
        found[f"{architecture}: logits, fp32"] = (here.logits - there.logits.cpu()).abs().max().item()
        found[f"{architecture}: loss, fp32, padded vocabulary"] = abs(here.loss.item() - alone.loss.item())
        found[f"{architecture}: loss, bf16"] = abs(here.loss.item() - rough.loss.item())
    return found


LARGEST = {"logits, fp32": 1e-3, "loss, fp32, padded vocabulary": 1e-4, "loss, bf16": 5e-2}
"""Differences that are allowed (TF32 is off)."""


def recompiles(config: StudyConfig, data: PreparedData, device: torch.device) -> dict[str, int]:
    """Graphs after the first update and after the fifth, of a compiled 3ML_self."""
    torch._dynamo.reset()
    counters.clear()
    trainer = Trainer(config.replace(architecture="self", mask_rate=0.5, num_hidden_layers=2), data, device)
    graphs = []
    for _ in range(5):
        trainer.update()
        graphs.append(counters["stats"]["unique_graphs"])
    return {"after the first update": graphs[0], "after the fifth": graphs[-1]}


def _finite(value: Any) -> Any:
    """As JSON can hold it: a number that is not finite as text."""
    if isinstance(value, dict):
        return {name: _finite(of) for name, of in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(of) for of in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def goals_of(name: str, record: RunRecord) -> dict[str, list[float | None]]:
    """Goal -> [wanted, found]."""
    arms = {arm.name: arm for arm in speeds([record])}
    found: dict[str, list[float | None]] = {}
    for goal, wanted in GOALS.get(name, {}).items():
        kind, arm = goal.split()
        one, value = arms.get(arm), None
        if one is not None and kind == "mfu":
            value = one.mfu
        elif one is not None and kind == "realised":
            value = one.realised.value
        elif one is not None and kind in arms:
            value = arms[kind].step.value / one.step.value
        found[goal] = [wanted, value]
    return found


def main() -> None:
    """Run the checks that fit the time, write one JSON and one table."""
    parser = argparse.ArgumentParser(description="GPU checks; see scripts/gpu_check.sh")
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, a hundredth of the size")
    options = parser.parse_args()
    if options.arguments == ["prepare"]:
        prepare()
        return
    if not all((BLOCKS / name / "meta.json").exists() for name in GEOMETRIES):
        raise SystemExit(
            f"error: {BLOCKS} holds no prepared blocks: run `scripts/gpu_check.sh prepare` where the package is "
            "installed, and bring the folder along"
        )
    if not options.rehearse and not torch.cuda.is_available():
        raise SystemExit("error: no GPU here; `scripts/gpu_check.sh --rehearse` tries everything on a CPU")
    out = Path(options.arguments[0] if options.arguments else "gpu_check")
    out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cpu" if options.rehearse else "cuda")
    environment = describe_environment()
    describe_device(environment, device)
    began = time.monotonic()
    result: dict[str, Any] = {"environment": environment, "rehearsal": options.rehearse, "seconds": {}}
    lines = [f"{environment['hardware'].get('gpu', environment['hardware']['cpu'])}, torch {torch.__version__}"]

    def stage(name: str, at_least: float, work: Callable[[], Any]) -> Any:
        """Do it if there is time for it; note what it took, or why there is nothing."""
        left = SECONDS - (time.monotonic() - began)
        started = time.monotonic()
        if left < at_least:
            result[name] = f"left out: {left:.0f} s were left, it needs {at_least:.0f}"
        else:
            try:
                result[name] = work()
            except Exception as error:  # the other checks are worth having
                result[name] = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        result["seconds"][name] = round(time.monotonic() - started, 1)
        if isinstance(result[name], str):
            lines.append(f"{name}: {result[name]}")
        (out / "gpu_check.json").write_text(
            json.dumps(_finite(result), indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )
        (out / "gpu_check.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return result[name]

    torch.backends.cuda.matmul.allow_tf32 = False
    first = configuration("base-512", options.rehearse)
    data = load_prepared(BLOCKS / "base-512")
    found = stage("parity", 20, lambda: parity(first, data, device))
    if isinstance(found, dict):
        for what, value in found.items():
            limit = LARGEST[what.split(": ")[1]]
            lines.append(f"parity, {what}: {value:.2e} ({'holds' if value <= limit else 'FAILS'}, at most {limit:g})")
    found = stage("recompiles", 40, lambda: recompiles(first, data, device))
    if isinstance(found, dict):
        lines.append(f"graphs: {found}")
    for name, arms, mode in (
        ("base-512", "hf,hf_bare,self", "default"),
        ("large-128", "self", "default"),
        ("base-512", "self", "reduce-overhead"),  # do CUDA graphs pay?
    ):
        config = configuration(name, options.rehearse).replace(
            benchmark_variants=arms,
            benchmark_rates="0.5",
            num_benchmark_rounds=10,
            benchmark_parts="speed",
            torch_compile_mode=mode,
        )
        name = name if mode == "default" else f"{name}, {mode}"
        records: list[RunRecord] = []

        def measure(config: StudyConfig = config, records: list[RunRecord] = records) -> dict[str, Any]:
            records += run_benchmark(config)
            return {"metrics": records[0].metrics, "flops": records[0].flops}

        stage(name, 90, measure)
        if records:
            result[f"{name}, goals"] = goals_of(name, records[0])
            lines += [f"{name}:", *lines_of(records)]
            for goal, (wanted, value) in result[f"{name}, goals"].items():
                lines.append(f"goal, {name}, {goal}: {'none' if value is None else f'{value:.2f}'} (wanted {wanted})")
    stage("total", 0, lambda: {"seconds": round(time.monotonic() - began, 1)})
    print("\n".join(lines))
    print(f"{out}/gpu_check.json, {out}/gpu_check.txt")


if __name__ == "__main__":  # child processes import it again
    main()
