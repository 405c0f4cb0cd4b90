"""The parameters behind a page, each with its value and where it came from."""

from __future__ import annotations

from threeml_core.config import (
    BENCHMARK_PARAMETERS,
    DATA_PARAMETERS,
    FINETUNE_PARAMETERS,
    INFORMATION_PARAMETERS,
    STUDY_PARAMETERS,
    StudyConfig,
    identity_parameters,
)
from threeml_core.reporting.table import Table

_SHARED = ("seed", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "device", "bf16")


def parameter_table(config: StudyConfig, stage: str = "pretrain") -> Table:
    """Every parameter that decides the result of a stage: given, of the preset, a default, or derived from another.

    Args:
        config: the parameters.
        stage: `pretrain`, `finetune`, `study`, `information` or `benchmark`.
    """
    pretraining = tuple(identity_parameters(config))
    names = {
        "pretrain": (*DATA_PARAMETERS, *pretraining),
        "finetune": (*FINETUNE_PARAMETERS, *_SHARED),
        "study": (*STUDY_PARAMETERS, *pretraining),
        "information": INFORMATION_PARAMETERS,
        "benchmark": (*pretraining, *BENCHMARK_PARAMETERS, "benchmark_sessions"),
    }[stage]
    values = config.parameters()
    rows = [
        {"Parameter": name, "Value": f"{values[name]}", "Source": config.sources[name]}
        for name in dict.fromkeys(("preset", *names))
    ]
    return Table(rows, "Resolved parameters")
