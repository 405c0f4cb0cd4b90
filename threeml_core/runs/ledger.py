"""Records found by the parameters of their runs: where text, tasks and weights are not at hand. No torch, no scipy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from threeml_core.config import (
    DATA_PARAMETERS,
    LATER,
    PRETRAIN_PARAMETERS,
    StudyConfig,
    executed_parameters,
    unused_parameters,
)
from threeml_core.foundation.errors import ParameterError
from threeml_core.parameters.masking import ASKED
from threeml_core.runs.record import RunRecord, load_records

_LATER = {name: value for name, value in LATER.items() if name in PRETRAIN_PARAMETERS}


def has_parameters(record: RunRecord, config: StudyConfig, names: Iterable[str]) -> bool:
    """Was it done with the same values of these parameters?"""
    return all((LATER | record.parameters)[name] == getattr(config, name) for name in names)


def full_identity(record: RunRecord) -> dict[str, Any]:
    """All that determined the result of a pre-training: its identity, and the defaults that are no part of it."""
    unused = unused_parameters(LATER | record.parameters)
    return {name: value for name, value in _LATER.items() if name not in unused} | record.identity


def find(config: StudyConfig, stage: str, names: Iterable[str]) -> list[RunRecord]:
    """Records of a stage with the same values of these parameters, oldest first."""
    names = tuple(names)
    return [record for record in load_records(config.runs_dir, stage) if has_parameters(record, config, names)]


def of_pretraining(records: Iterable[RunRecord], config: StudyConfig) -> list[RunRecord]:
    """Those that are of this pre-training, as far as parameters other than those of its text tell.

    What `config` leaves to the device (None) may be anything. A corruption may be asked for in several ways; records of
    an older schema executed another one under the same parameters: they answer who asks as they did.
    """
    wanted = executed_parameters(config)
    corruptions = {name: wanted.pop(name) for name in ASKED}
    wanted.pop("init_encoder", None)  # by name among `used`; an identity has its content
    unused = unused_parameters(config.parameters())
    used = _LATER.keys() - unused - set(ASKED["corruption"])

    def fits(record: RunRecord) -> bool:
        known = {**record.parameters, **record.identity}  # a failed run may have the first alone
        return (
            has_parameters(record, config, used)
            and all(value is None or known[name] == value for name, value in wanted.items())
            and all(
                known.get(name) == value or has_parameters(record, config, set(ASKED[name]) - unused)
                for name, value in corruptions.items()
            )
        )

    return [record for record in records if fits(record)]


def pretraining(config: StudyConfig) -> RunRecord:
    """The newest record of one pre-training that did not fail; a `ParameterError` says that there is none."""
    there = [record for record in find(config, "pretrain", DATA_PARAMETERS) if record.failure is None]
    return newest(of_pretraining(there, config), config, "stage pretrain")


def newest(records: Sequence[RunRecord], config: StudyConfig, what: str) -> RunRecord:
    """The last of the records that were found; a `ParameterError` says that there is none."""
    if not records:
        raise missing(config, what)
    return records[-1]


def missing(config: StudyConfig, what: str) -> ParameterError:
    """That there is no record of it."""
    return ParameterError(
        f"plan_only=True: nothing is run, and {config.runs_dir} has no record of {what} with these parameters; leave "
        "plan_only out to run it"
    )
