"""Which models are asked what they know of masked tokens, and the records of their answers. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from threeml_core.config import (
    DATA_PARAMETERS,
    INFORMATION_PARAMETERS,
    PROBING_PARAMETERS,
    StudyConfig,
    study_steps,
    variant,
)
from threeml_core.foundation.errors import ParameterError
from threeml_core.parameters.architectures import PAPER_ARCHITECTURES
from threeml_core.runs.ledger import find, newest, pretraining
from threeml_core.runs.record import RunRecord


def information_configs(config: StudyConfig) -> list[StudyConfig]:
    """Of the pre-trainings behind Table 1 and Figure 4: vanilla, 3ML_self and 3ML_cross with each pre-training seed."""
    seeds = range(config.seed, config.seed + config.num_pretrain_seeds)
    steps = study_steps(config)
    return [variant(config, architecture=a, seed=s, max_steps=steps) for s in seeds for a in PAPER_ARCHITECTURES]


def information_records(config: StudyConfig) -> list[RunRecord]:
    """The newest record of mutual information of each run that `runs` names, or of those behind Figure 4.

    Raises:
        ParameterError: there is none of one of them.
    """
    if config.runs is None:
        runs = [pretraining(each).run_id for each in information_configs(config)]
    else:
        runs = [PurePath(part.strip()).name for part in config.runs.split(",") if part.strip()]
    names = [name for name in INFORMATION_PARAMETERS if name not in ("runs", "states_store", "keep_states")]
    there = find(config, "mutual_information", names)
    return [newest([r for r in there if r.data["run"] == run], config, "stage mutual_information") for run in runs]


def named_encoders(config: StudyConfig) -> list[str]:
    """Those of the parameter `encoders`; a `ParameterError` if it names one twice or is empty."""
    names = [part.strip() for part in (config.encoders or "").split(",")]
    if "" in names or len(set(names)) < len(names):
        raise ParameterError(f"encoders={config.encoders!r}: expected folders or hub names, each once, with commas")
    return names


def probe_records(config: StudyConfig, checkpoints: Sequence[str] | None = None) -> list[RunRecord]:
    """Records of probing with these parameters: of the words alone, then of encoders, the newest of each.

    Args:
        config: what is asked.
        checkpoints: the encoders, by the names that they were probed under; None: all, oldest first.

    Raises:
        ParameterError: there is none, or none of one of the encoders.
    """
    asked = [name for name in PROBING_PARAMETERS if name != "probe_rates"]
    there = find(config, "probe", (*DATA_PARAMETERS, *asked))
    words = newest([record for record in there if "words_alone" in record.identity], config, "stage probe")
    of_encoders = [r for r in there if r.identity.get("questions") == words.identity["words_alone"]]
    if checkpoints is None:
        return [words, *of_encoders]
    by_name = [[r for r in of_encoders if r.data["checkpoint"] == name] for name in checkpoints]
    return [words, *(newest(r, config, f"probes of {n}") for r, n in zip(by_name, checkpoints, strict=True))]


def rate_records(config: StudyConfig, runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The newest record of the rate matrix of each of these runs; a `ParameterError` if there is none of one."""
    there = find(config, "rates", (*DATA_PARAMETERS, "probe_rates"))
    return [newest([r for r in there if r.data["run"] == run.run_id], config, "stage rates") for run in runs]
