"""The runs behind a page, and the command that does each again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from threeml_core.config import DATA_PARAMETERS, StudyConfig, deciding_parameters, make_config
from threeml_core.glue.ledger import FINETUNE_MATCH
from threeml_core.reporting.table import MISSING, NOT_RUN, Command, Table
from threeml_core.study.experiment import StudyRun, ablation_config
from threeml_core.study.results import Result


def pretrain_command(run: StudyRun, seed: int) -> str:
    """One papermill command that pre-trains a run of the study again, or reads it where it is there."""
    names = (*DATA_PARAMETERS, *deciding_parameters(run.config))
    return _papermill("02_pretrain", run.config, run.config.replace(seed=seed), names)


def finetune_command(run: StudyRun, config: StudyConfig, seed: int, ablation: bool = False) -> str:
    """The same for its fine-tunings, on the tasks of Table 3 or of the ablations; it pre-trains what is not there."""
    own = ablation_config(config) if ablation else config
    asked = run.config.replace(pretrain_seed=seed, tasks=own.tasks, num_seeds=own.num_seeds)
    names = (*DATA_PARAMETERS, *deciding_parameters(run.config), *FINETUNE_MATCH, "tasks", "num_seeds", "pretrain_seed")
    return _papermill("03_finetune", run.config, asked, names)


def commands_of(results: Iterable[Result], config: StudyConfig, exhibit: str, key: str = "") -> list[Command]:
    """(label, command) of the pre-training of each row of a table and, where it has scores, of its fine-tuning.

    A label has the value of the parameter `key`, which the exhibit varies.
    """
    found = []
    for run in (result.run for result in results):
        seed, *others = run.seeds
        label = run.model + (f", {key} {getattr(run.config, key)}" if key else "")
        also = f" (the mean is also over {' or '.join(map(str, others))} in its place)" if others else ""
        found.append((f"{label}: perplexity, seed {seed}{also}", pretrain_command(run, seed)))
        if tasks := {experiment.name: experiment.tasks for experiment in run.experiments}[exhibit]:
            command = finetune_command(run, config, seed, tasks == "ablation")
            found.append((f"{label}: scores, seed {seed}{also}", command))
    return found


def study_runs_table(results: Sequence[Result], config: StudyConfig) -> Table:
    """Every run behind a page, fine-tunings included, with its command; what is missing shows as not run."""
    rows = []
    for result in results:
        run = result.run
        wanted = run.finetunings(config)
        for seed in run.seeds:
            row = {"Model": run.model, "For": ", ".join(run.exhibits), "Seed": f"{seed}"}
            row |= {"Pre-training": NOT_RUN, "Result": NOT_RUN}
            if record := result.pretraining.get(seed):
                state = f"failed: {record.failure}" if record.failure else "done"
                row |= {"Pre-training": record.run_id, "Result": state}
            studies = [by_seed[seed] for by_seed in (result.comparison, result.ablation) if seed in by_seed]
            names = dict.fromkeys(r.run_id for study in studies for found in study.records.values() for r in found)
            row["Fine-tuning"] = ", ".join(names) or (NOT_RUN if wanted else MISSING)
            again = finetune_command(run, config, seed, "all" not in wanted) if wanted else pretrain_command(run, seed)
            rows.append({**row, "Repeat": again})
    done = sum(row["Pre-training"] != NOT_RUN for row in rows)
    return Table(rows, f"Runs behind this page: {done} of {len(rows)} pre-trainings have been run", folded=True)


def _papermill(notebook: str, base: StudyConfig, asked: StudyConfig, names: Iterable[str]) -> str:
    """A command that gives what differs from the preset and does not follow from the rest."""
    preset, values = make_config({"preset": base.preset}).parameters(), asked.parameters()
    command = ["papermill", f"notebooks/{notebook}.ipynb", "out.ipynb", "-p", "preset", base.preset]
    for name in dict.fromkeys(names):
        if values[name] != preset[name] and asked.sources[name] != "derived":
            command += ["-p", name, str(values[name])]
    return shlex.join(command)
