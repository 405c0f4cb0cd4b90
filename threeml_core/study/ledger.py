"""The study's experiments, their runs, and what they gave, found among records by their parameters. No torch."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence

from threeml_core.config import DATA_PARAMETERS, StudyConfig, executed_parameters, variant
from threeml_core.foundation.errors import ParameterError
from threeml_core.foundation.files import fingerprint
from threeml_core.glue.ledger import FINETUNE_MATCH, encoder_of, finished_tasks
from threeml_core.glue.tasks import select_tasks
from threeml_core.runs.ledger import has_parameters, of_pretraining
from threeml_core.runs.record import RunRecord, load_records
from threeml_core.study import experiments as _folder
from threeml_core.study.experiment import Experiment, StudyRun
from threeml_core.study.results import Downstream, Result


def discovered() -> dict[str, Experiment]:
    """Name -> experiment, of all files in `study/experiments/`: the paper's in the order of their runs, then others."""
    first = ("figure_3", "table_1", "figure_4", "table_2", "figure_5", "table_3", "scaling")
    names = dict.fromkeys((*first, *sorted(module.name for module in pkgutil.iter_modules(_folder.__path__))))
    modules = [importlib.import_module(f"{_folder.__name__}.{name}") for name in names]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Experiment)]
    return {experiment.name: experiment for experiment in found}


EXPERIMENTS = discovered()


def chosen_experiments(names: Iterable[Experiment | str] | None) -> list[Experiment]:
    """Experiments, given by themselves or by name; None: all of the study.

    Raises:
        ParameterError: there is none of this name.
    """
    names = list(EXPERIMENTS.values() if names is None else names)
    if unknown := [name for name in names if isinstance(name, str) and name not in EXPERIMENTS]:
        raise ParameterError(f"no runs are known for {unknown[0]!r}: expected one of {', '.join(EXPERIMENTS)}")
    return [EXPERIMENTS[name] if isinstance(name, str) else name for name in names]


def study_runs(config: StudyConfig, experiments: Iterable[Experiment | str] | None = None) -> list[StudyRun]:
    """The runs that experiments need, each once, in the order in which they are first needed.

    Source: Tables 1 to 3, Figures 3 to 5; all but Table 3 are of the large model in the paper.

    Raises:
        ParameterError: no such experiment, or a value in a list that the model cannot have.
    """
    runs: dict[str, tuple[StudyConfig, dict[Experiment, None]]] = {}
    for experiment in chosen_experiments(experiments):
        for changes in experiment.changes(config):
            run = variant(config, **changes)
            runs.setdefault(fingerprint(executed_parameters(run)), (run, {}))[1][experiment] = None
    return [StudyRun(run, tuple(needed_by)) for run, needed_by in runs.values()]


def find(
    config: StudyConfig,
    experiments: Iterable[Experiment | str] | None = None,
    records: Iterable[RunRecord] | None = None,
    any_text: bool = False,
) -> list[Result]:
    """What the runs of experiments gave, found among records by their parameters; what has none is left out.

    The records are of pre-training and fine-tuning, oldest first: of two that answer the same the later one counts;
    None: those in `runs_dir`. Those of other paths of text and tasks are passed over, unless `any_text` says that all
    are of these, by whatever paths they were given.
    """
    return results_of(config, study_runs(config, experiments), records, any_text)


def results_of(
    config: StudyConfig,
    runs: Iterable[StudyRun],
    records: Iterable[RunRecord] | None = None,
    any_text: bool = False,
) -> list[Result]:
    """As `find`, of these runs."""
    if records is None:
        records = [record for stage in ("pretrain", "finetune") for record in load_records(config.runs_dir, stage)]
    trained: dict[int, list[RunRecord]] = {}
    tuned: dict[str | None, list[RunRecord]] = {}
    for record in records:
        if record.stage == "pretrain" and (any_text or has_parameters(record, config, DATA_PARAMETERS)):
            trained.setdefault(record.parameters["seed"], []).append(record)
        elif record.stage == "finetune" and (any_text or has_parameters(record, config, FINETUNE_MATCH)):
            tuned.setdefault(encoder_of(record), []).append(record)
    results = []
    for run in runs:
        answers = {seed: of_pretraining(trained.get(seed, ()), run.config.replace(seed=seed)) for seed in run.seeds}
        pretraining = {seed: found[-1] for seed, found in answers.items() if found}
        of_seeds = {seed: tuned[record.run_id] for seed, record in pretraining.items() if record.run_id in tuned}
        downstream: dict[str, dict[int, Downstream]] = {"all": {}, "ablation": {}}
        for tasks, chosen in run.finetunings(config).items():
            downstream[tasks] = {seed: _downstream(chosen, of, tasks == "ablation") for seed, of in of_seeds.items()}
        results.append(Result(run, pretraining, *downstream.values()))
    return results


def _downstream(config: StudyConfig, records: Sequence[RunRecord], accuracies: bool) -> Downstream:
    """The tasks whose planned runs are all there."""
    tasks, found = tuple(select_tasks(config)), finished_tasks(config, records)
    return Downstream(tasks, {task.name: found[task.name] for task in tasks if task.name in found}, accuracies)
