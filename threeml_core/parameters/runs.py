"""Parameters of every run."""

from __future__ import annotations

import dataclasses

from threeml_core.parameters.parameter import SEED, parameter, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunsParameters:
    """Every run."""

    STAGES = "data pretrain finetune information probe study benchmark report push plan"

    preset: str = setting("tiny", "a file in params/ that gives every value not given here")
    seed: int = parameter(0, "seed of initialisation, data order, corruption and dropout", SEED)
    runs_dir: str = setting("runs", "folder of all run folders; relative: below the project")
