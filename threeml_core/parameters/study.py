"""Parameters of the study: which runs the tables and figures need, and how they are done."""

from __future__ import annotations

import dataclasses
import re

from threeml_core.parameters.masking import MASK_RATES, MASK_SPLIT
from threeml_core.parameters.parameter import (
    COUNT,
    COUNTS,
    NOT_NEGATIVE,
    POSITIVE,
    RATES,
    Allowed,
    in_range,
    one_of,
    parameter,
    setting,
)


def _sizes(text: str) -> tuple[tuple[int, int], ...]:
    found = [re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,5})", part.strip()) for part in text.split(",")]
    sizes = tuple((int(match[1]), int(match[2])) for match in found if match)
    if len(sizes) < len(found) or len(set(sizes)) < len(sizes):
        raise ValueError(text)
    return sizes


SIZES = Allowed("layers x width of encoders, each once, such as '2x48,4x64'", _sizes)
"""Read as pairs (layers, width)."""


def _read_splits(text: str) -> tuple[str, ...]:
    splits = tuple(part.strip() for part in text.split(","))
    for split in splits:
        MASK_SPLIT.read(split)
    return splits


SPLITS = Allowed(f"splits joined with commas, each {MASK_SPLIT.text}", _read_splits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyParameters:
    """Study: which runs it has, and how they are done; the runs' own settings are those of the other sections."""

    STAGES = "study"

    study_mask_rates: str = parameter("0.15,0.2,0.3,0.4,0.5,0.6", "Figures 3 and 5: mask rates", MASK_RATES)
    study_depths: str = parameter("1,2,4,8", "Table 2a: decoder layers", COUNTS)
    study_widths: str = parameter("256,512,768,1024", "Table 2b: decoder widths", COUNTS)
    study_splits: str = parameter("80-10-10,100-0-0,80-20-0,80-0-20", "Table 2c: mask splits", SPLITS)
    study_sizes: str | None = parameter(None, "further encoders for Table 3's models", SIZES, none="no others")
    equal_size_flops: bool = parameter(
        False,
        "study_sizes: each model of each size gets the executed FLOPs of vanilla at 15%, not its steps",
        later=True,
    )
    study_steps: int | None = parameter(None, "Tables 1 and 3, Figure 4: steps", COUNT, none="max_steps")
    ablation_steps: int | None = parameter(None, "the other tables and figures: steps", COUNT, none="study_steps")
    equal_budget: bool = parameter(False, "Table 3: the 3ML models also with the FLOPs of vanilla at 15%")
    budget_flops: str = parameter(
        "paper",
        "equal_budget counts FLOPs by Appendix C, or exactly those that are executed",
        one_of(("paper", "exact")),
        later=True,
    )
    pooled_variances: bool = parameter(False, "claims are judged by the spread over seeds of all models together")
    num_pretrain_seeds: int = parameter(
        1, "pre-training seeds of each run: seed, seed + 1, ...; one gives no verdict", COUNT, also="finetune"
    )
    num_ablation_pretrain_seeds: int | None = parameter(
        None, "pre-training seeds of what only ablations need", COUNT, none="num_pretrain_seeds"
    )
    num_ablation_seeds: int | None = parameter(None, "fine-tuning seeds of all but Table 3", COUNT, none="num_seeds")
    speedrun_target: float | None = parameter(
        None, "11_speedrun: masked perplexity to which its rungs are timed", POSITIVE, none="no speedrun"
    )
    speedrun_steps: str = parameter(
        "150,250,400,650,1000,1600,2500,4000", "budgets that a rung is given, until one reaches it; steps", COUNTS
    )
    sweep_steps: int = parameter(1600, "steps of each run that tunes a learning rate", COUNT)
    sweep_learning_rates: str = parameter("1e-3,2e-3,4e-3,8e-3", "learning_rate, of AdamW, is tuned over these", RATES)
    sweep_muon_learning_rates: str = parameter("0.01,0.02,0.04,0.08", "muon_learning_rate is tuned over these", RATES)
    rivals: str = parameter("all", "12_rivals: which, such as 3ML_self-40%,token dropping-15%")
    rival_steps: str = parameter(
        "250,500,1000", "budgets: all rivals get the FLOPs of so many steps of the baseline", COUNTS
    )
    plan_only: bool = setting(
        False,
        "run nothing: 01 to 08 show what the records say, 04 to 06 with the plan",
        also="data pretrain finetune information benchmark",
    )
    num_workers: int = setting(
        1, "03 to 06: processes at once, the cores divided among them; 1: none but this", COUNT, also="finetune"
    )
    engine: str = setting(
        "inline", "what does the runs of 03 to 06: this host, or a cluster", one_of(("inline", "ray")), also="finetune"
    )
    ray_address: str | None = setting(
        None, "a running Ray cluster, such as auto", none="Ray is started here", also="finetune"
    )
    ray_num_cpus: float = setting(1.0, "cores that a run takes of the cluster", POSITIVE, also="finetune")
    ray_num_gpus: float | None = setting(
        None,
        "GPUs of a fine-tuning, such as 0.25 (four share one)",
        in_range(
            "a fraction of a GPU, such as 0.25, or a whole number",
            lambda gpus: 0 <= gpus <= 1 or gpus.is_integer() and gpus > 0,
        ),
        none="1 if it runs on a GPU",
        also="finetune",
    )
    ray_max_retries: int = setting(
        3, "how often a run starts again if its worker or host is lost", NOT_NEGATIVE, also="finetune"
    )
