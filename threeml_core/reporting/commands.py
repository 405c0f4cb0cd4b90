"""The command that does a run again, printed beside what it gave."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from threeml_core.config import DATA_PARAMETERS, StudyConfig, identity_parameters, make_config
from threeml_core.glue.ledger import FINETUNE_MATCH
from threeml_core.study.experiment import StudyRun, ablation_config
from threeml_core.study.results import Result


def pretrain_command(run: StudyRun, seed: int) -> str:
    """One papermill command that pre-trains a run of the study again, or reads it where it is there."""
    names = (*DATA_PARAMETERS, *identity_parameters(run.config))
    return _papermill("02_pretrain", run.config, run.config.replace(seed=seed), names)


def finetune_command(run: StudyRun, config: StudyConfig, seed: int, ablation: bool = False) -> str:
    """The same for its fine-tunings, which pre-trains first what is not there.

    Args:
        run: of the study.
        config: of the study.
        seed: of pre-training.
        ablation: on the tasks of the ablations, not on those of Table 3.
    """
    own = ablation_config(config) if ablation else config
    asked = run.config.replace(pretrain_seed=seed, tasks=own.tasks, seeds=own.seeds)
    names = (*DATA_PARAMETERS, *identity_parameters(run.config), *FINETUNE_MATCH, "tasks", "seeds", "pretrain_seed")
    return _papermill("03_finetune", run.config, asked, names)


def commands_of(
    outcomes: Iterable[Result], config: StudyConfig, artefact: str, key: str | None = None
) -> list[tuple[str, str]]:
    """(label, command) for each row of a table: what its pre-training and, where it has scores, its fine-tuning was.

    Args:
        outcomes: the rows, in their order.
        config: of the study.
        artefact: the table or figure.
        key: the parameter that it varies, for the label.
    """
    found = []
    for outcome in outcomes:
        run = outcome.run
        label = run.model + (f", {key} {getattr(run.config, key)}" if key else "")
        said = _seeds_said(run.seeds)
        found.append((f"{label}: perplexity, {said}", pretrain_command(run, run.seeds[0])))
        if tasks := {experiment.name: experiment.tasks for experiment in run.experiments}[artefact]:
            tuned = finetune_command(run, config, run.seeds[0], tasks == "ablation")
            found.append((f"{label}: scores, {said}", tuned))
    return found


def _seeds_said(seeds: Sequence[int]) -> str:
    """Which runs a mean is over."""
    others = " or ".join(map(str, seeds[1:]))
    return f"seed {seeds[0]}" + (f" (the mean is also over {others} in its place)" if others else "")


def _papermill(notebook: str, base: StudyConfig, asked: StudyConfig, names: Iterable[str]) -> str:
    """Gives what differs from the preset and does not follow from the rest."""
    preset = make_config({"preset": base.preset}).parameters()
    values = asked.parameters()
    changed = {
        name: values[name]
        for name in dict.fromkeys(names)
        if values[name] != preset[name] and asked.sources[name] != "derived"
    }
    options = [part for name, value in changed.items() for part in ("-p", name, str(value))]
    return shlex.join(["papermill", f"notebooks/{notebook}.ipynb", "out.ipynb", "-p", "preset", base.preset, *options])
