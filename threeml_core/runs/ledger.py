"""Records found by the parameters of their runs: where text, tasks and weights are not at hand. No torch, no scipy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from threeml_core.config import DATA_PARAMETERS, StudyConfig, executed_parameters, identity_parameters
from threeml_core.foundation.errors import ParameterError
from threeml_core.runs.record import RunRecord, load_records


def data_record(config: StudyConfig) -> RunRecord:
    """Of the prepared text: sizes and token counts.

    Raises:
        ParameterError: there is none.
    """
    return newest(config, "data", lambda record: has_parameters(record, config, DATA_PARAMETERS))


def pretraining(config: StudyConfig) -> RunRecord:
    """Of one pre-training.

    Raises:
        ParameterError: there is none.
    """
    return newest(config, "pretrain", lambda record: record.failure is None and is_pretraining_of(record, config))


def has_parameters(record: RunRecord, config: StudyConfig, names: Iterable[str]) -> bool:
    """Was it done with the same values of these parameters?"""
    return all(record.parameters[name] == getattr(config, name) for name in names)


def is_pretraining_of(record: RunRecord, config: StudyConfig) -> bool:
    """Is it a record of this pre-training, as far as parameters tell?"""
    return has_parameters(record, config, DATA_PARAMETERS) and is_wanted(
        known_parameters(record), wanted_parameters(config)
    )


def known_parameters(record: RunRecord) -> dict[str, Any]:
    """What was asked for, what was decided by the device, and what was executed; a failed run has the first alone."""
    return {**record.parameters, **record.identity}


def wanted_parameters(config: StudyConfig) -> dict[str, Any]:
    """What a record's `known_parameters` are compared with, in `is_wanted`."""
    return {**identity_parameters(config), **executed_parameters(config)}


_ASKED = {
    "corruption": ("mask_rate", "mask_split"),
    "eval_corruption": ("eval_mask_rate", "eval_mask_split"),
}
"""What is executed, and the parameters that ask for it."""


def is_wanted(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Are all values the same? None is decided by the device; a corruption may be asked for in several ways.

    Records of an older schema executed another corruption under the same parameters: they answer who asks as they did.
    """
    asked = {name for names in _ASKED.values() for name in names}
    if not all(known[n] == value for n, value in wanted.items() if value is not None and n not in {*asked, *_ASKED}):
        return False
    return all(
        known.get(executed) == wanted[executed] or all(known[name] == wanted[name] for name in names)
        for executed, names in _ASKED.items()
    )


def newest(config: StudyConfig, stage: str, fits: Callable[[RunRecord], bool]) -> RunRecord:
    """The newest record of a stage that fits.

    Raises:
        ParameterError: there is none.
    """
    found = [record for record in load_records(config.runs_dir, stage) if fits(record)]
    if not found:
        raise ParameterError(nothing(config, f"stage {stage}"))
    return found[-1]


def nothing(config: StudyConfig, what: str) -> str:
    """That there is no record of it, as a line."""
    return (
        f"plan_only=True: nothing is run, and {config.runs_dir} has no record of {what} with these parameters; leave "
        "plan_only out to run it"
    )
