"""New."""

from __future__ import annotations

import functools
from pathlib import PurePath

from threeml_core.config import ARCHITECTURES, INFORMATION_PARAMETERS, StudyConfig, study_steps, variant
from threeml_core.runs.ledger import has_parameters, newest, pretraining
from threeml_core.runs.record import RunRecord


def information_configs(config: StudyConfig) -> list[StudyConfig]:
    """Of the pre-trainings behind Table 1 and Figure 4: vanilla, 3ML_self and 3ML_cross with each pre-training seed."""
    seeds = range(config.seed, config.seed + config.pretrain_seeds)
    steps = study_steps(config)
    return [variant(config, architecture=a, seed=s, max_steps=steps) for s in seeds for a in ARCHITECTURES]


def pretrainings(config: StudyConfig) -> list[RunRecord]:
    """Of vanilla, 3ML_self and 3ML_cross with each pre-training seed: the models of Table 1 and Figure 4.

    Raises:
        ParameterError: there is none of one of them.
    """
    return [pretraining(each) for each in information_configs(config)]


def information_records(config: StudyConfig) -> list[RunRecord]:
    """The newest record of mutual information of each run that `runs` names, or of `pretrainings`.

    Raises:
        ParameterError: there is none of one of them.
    """
    if config.runs is None:
        names = [record.run_id for record in pretrainings(config)]
    else:
        names = [PurePath(part.strip()).name for part in config.runs.split(",") if part.strip()]
    measured = [name for name in INFORMATION_PARAMETERS if name not in ("runs", "states_store", "keep_states")]

    def of(run: str, record: RunRecord) -> bool:
        return record.data["run"] == run and has_parameters(record, config, measured)

    return [newest(config, "mutual_information", functools.partial(of, name)) for name in names]
