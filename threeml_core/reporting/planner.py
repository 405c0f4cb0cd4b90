"""What pre-training costs on which GPU: hours, money and energy, from exact FLOPs and an assumed utilisation."""

from __future__ import annotations

import dataclasses

from threeml_core import flops
from threeml_core.config import DATA_PARAMETERS, StudyConfig, make_config, variant
from threeml_core.paper import RECIPES, reported_values
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.parameters.masking import rate_label
from threeml_core.reporting.table import NOT_RUN, Table
from threeml_core.runs.ledger import find, of_pretraining
from threeml_core.study.experiments.table_3 import STUDY_MODELS


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU as its data sheet has it, and what an hour of it is assumed to cost.

    Attributes:
        tflops: dense BF16 peak, without sparsity; TFLOP/s.
        watts: power limit of the board; W.
        price: USD per hour, an assumption.
    """

    name: str
    tflops: float
    watts: float
    price: float
    source: str = "gpu_* parameters"


GPUS = (
    Gpu("RTX 4090", 165.2, 450, 0.5, "Ada white paper, FP32 accumulation"),
    Gpu("L40S", 362, 350, 1.0, "data sheet, half of 733 with sparsity"),
    Gpu("A100 SXM 80 GB", 312, 400, 1.6, "data sheet, half of 624 with sparsity"),
    Gpu("H100 SXM", 989, 700, 2.8, "data sheet, half of 1,979 with sparsity"),
    Gpu("H200 SXM", 989, 700, 3.5, "data sheet, half of 1,979 with sparsity"),
    Gpu("B200", 2250, 1000, 5.0, "data sheet, half of 4,500 with sparsity"),
)
"""Peaks and powers are NVIDIA's; prices are assumed, as rents differ between hosts by a factor of two and more."""

_MINUTE = 1 / 60  # in hours
_V100_TFLOPS = 125.0  # of its tensor cores in FP16, by its data sheet; the paper's GPU


def training_flops(config: StudyConfig) -> float:
    """FLOPs that one pre-training executes."""
    return flops.training_flops(flops.forward_flops(config, "exact"), config.batch_size, config.max_steps, "exact")


def gpu_hours(total: float, tflops: float, utilisation: float) -> float:
    """Hours in which a GPU of this peak (TFLOP/s) executes so many FLOPs at this share of it."""
    return total / (tflops * 1e12 * utilisation) / 3600


def duration(hours: float) -> str:
    """In hours, below one in minutes."""
    if hours >= 1:
        return f"{hours:,.0f} h" if hours >= 1000 else f"{hours:.1f} h"
    return f"{60 * hours:.0f} min" if hours >= _MINUTE else "under 1 min"


def energy(watt_hours: float) -> str:
    """In kWh, little in Wh."""
    if watt_hours >= 100:
        return f"{watt_hours / 1000:,.1f} kWh"
    return f"{watt_hours:.0f} Wh" if watt_hours >= 1 else "under 1 Wh"


def gpus(config: StudyConfig) -> dict[str, Gpu]:
    """The known GPUs by name, and first the one that the parameters give, which counts where the name is known."""
    own = Gpu(config.gpu_name, config.gpu_tflops, config.gpu_watts, config.gpu_price)
    known = {gpu.name: gpu for gpu in GPUS}
    if (same := known.get(own.name)) and dataclasses.replace(own, source=same.source) == same:
        own = same
    return {own.name: own} | {name: gpu for name, gpu in known.items() if name != own.name}


def models(config: StudyConfig) -> dict[str, StudyConfig]:
    """Table 3's five models at the size of a preset, by name."""
    found = (variant(config, architecture=architecture, mask_rate=rate) for architecture, rate in STUDY_MODELS)
    return {f"{ARCHITECTURES[c.architecture].label}-{rate_label(c.parameters())}": c for c in found}


def plan_table(config: StudyConfig) -> Table:
    """Table 3's models of this preset and of the paper's two recipes on the GPU of the plan, by utilisation."""
    gpu, rows, left_out = next(iter(gpus(config).values())), [], ""
    shares = config.listed("plan_mfus")
    for of in (config, *(make_config({"preset": recipe}) for recipe in RECIPES if recipe != config.preset)):
        totals = {name: training_flops(model) for name, model in models(of).items()}
        if gpu_hours(max(totals.values()), gpu.tflops, min(shares)) < _MINUTE:
            left_out = f"; of {of.preset} each takes under a minute, less than to start it, so it has no rows"
            continue
        for name, total in totals.items():
            row = {"Preset": of.preset, "Model": name, "Training FLOPs": f"{total:.3g}"}
            rows.append(row | {f"at {share:.0%}": _cost(total, gpu, share) for share in shares})
    return Table(
        rows,
        f"One pre-training on one {gpu.name} ({gpu.price:g} USD per hour, assumed; {gpu.watts:g} W), by the share of "
        f"its {gpu.tflops:g} TFLOP/s that the model gets{left_out}",
    )


def _cost(total: float, gpu: Gpu, utilisation: float) -> str:
    hours = gpu_hours(total, gpu.tflops, utilisation)
    price = hours * gpu.price
    return f"{duration(hours)}, {f'{price:,.0f}' if price >= 10 else f'{price:.2f}'} USD, {energy(hours * gpu.watts)}"


def measured_table(config: StudyConfig) -> Table:
    """What the newest recorded run of each of the preset's models took, and on what."""
    records = [record for record in find(config, "pretrain", DATA_PARAMETERS) if record.failure is None]
    rows = []
    for name, model in models(config).items():
        row = {"Model": name, "Training time": NOT_RUN}
        if there := of_pretraining(records, model):
            seconds, hardware = there[-1].timing["train_seconds"], there[-1].environment["hardware"]
            row["Training time"] = f"{seconds:.0f} s" if seconds < 600 else duration(seconds / 3600)
            row["Executed"] = f"{there[-1].flops['training'] / seconds / 1e9:,.0f} GFLOP/s" if there[-1].flops else ""
            row["On"] = hardware.get("gpu") or f"{hardware['cpu']}, threads: {hardware['threads']}"
            row["Run"] = there[-1].run_id
        rows.append(row)
    return Table(rows, f"Measured: preset {config.preset}, as its runs were recorded, other work beside them included")


def _middle(config: StudyConfig) -> float:
    shares = sorted(config.listed("plan_mfus"))
    return shares[len(shares) // 2]


def gpu_table(config: StudyConfig) -> Table:
    """The paper's two recipes with 3ML_self at 40%, GPU by GPU, at the middle one of the utilisations."""
    share, rows = _middle(config), []
    for gpu in gpus(config).values():
        row = {"GPU": gpu.name, "BF16 peak": f"{gpu.tflops:g} TFLOP/s", "Power": f"{gpu.watts:g} W"}
        row["Price, assumed"] = f"{gpu.price:g} USD per hour"
        for recipe in RECIPES:
            row[recipe] = _cost(training_flops(make_config({"preset": recipe})), gpu, share)
        rows.append({**row, "Peak and power from": gpu.source})
    return Table(rows, f"3ML_self-40% on one GPU, at {share:.0%} of its peak")


def utilisation_table() -> Table:
    """What share of a V100's peak the paper's own hours come to: how far an assumed utilisation may be trusted."""
    rows = []
    for value in (value for value in reported_values() if value.metric == "v100_hours"):
        total = training_flops(make_config({"preset": value.recipe, "architecture": "vanilla", "mask_rate": 0.15}))
        row = {"Recipe": value.recipe, "Model": value.model, "V100-hours, reported": f"{value.value:g}"}
        share = total / (value.value * 3600 * _V100_TFLOPS * 1e12)
        rows.append({**row, "Training FLOPs": f"{total:.3g}", "Share of the peak": f"{share:.0%}"})
    return Table(rows, f"Utilisation by the paper's hours on V100s of {_V100_TFLOPS:g} TFLOP/s (FP16)")


def plan_sentence(config: StudyConfig) -> str:
    """`efficient-large` in a sentence: what 3ML_self-40% costs, and what vanilla-15%."""
    gpu, share = next(iter(gpus(config).values())), _middle(config)
    of = models(make_config({"preset": "efficient-large"}))
    costs = {name: _cost(training_flops(of[name]), gpu, share) for name in ("3ML_self-40%", "vanilla-15%")}
    (ours, cost), (other, its) = costs.items()
    return f"efficient-large, {ours}: one {gpu.name} at {share:.0%} of its peak takes {cost}; {other}: {its}."
