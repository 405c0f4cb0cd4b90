"""Table 3: the main comparison beside the paper's, its differences, whether pre-training helps at all, its budget."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from threeml_core.config import StudyConfig, study_steps
from threeml_core.glue.protocol import best_of_seeds
from threeml_core.glue.tasks import GLUE_TASKS, Task, select_tasks
from threeml_core.paper import ReportedValue, reported_values
from threeml_core.reporting import cells
from threeml_core.reporting.commands import commands_of
from threeml_core.reporting.references import untrained
from threeml_core.reporting.table import MISSING, NOT_RUN, Table, beside
from threeml_core.runs.record import RunRecord
from threeml_core.statistics.intervals import difference_interval
from threeml_core.study.results import Result


def table_3(results: Sequence[Result], config: StudyConfig) -> Table:
    """Our row of each model, in its cells the paper's values of its model."""
    tasks = select_tasks(config)
    recipe = config.preset if config.preset == "longer-base" else "efficient-large"
    rows, shown = [], cells.shown_in("Table 3", results)
    for result in shown:
        c = result.run.config
        equal = c.max_steps == study_steps(config)
        row = {"Model": result.run.model + ("" if equal else ", equal FLOPs")}
        row["Average"] = cells.average(result.comparison, marked=True)
        row |= {cells.task_heading(task): _task_cell(result, task) for task in tasks}
        row["Speed-up, FLOPs"] = cells.measured(cells.speedup(result), 2)
        setting = f"{c.architecture} {c.mask_rate:g}"
        for model, values in reported_rows(recipe).items():
            where = values["glue_average"].setting
            # the efficient recipe has one budget; the longer one reports 125K and, at equal FLOPs, others
            if where.startswith(setting) and (where == setting or where.endswith(" 125")) == equal:
                said = {cells.task_heading(task): reported_cell(values, task) for task in tasks}
                said |= {"Model": model * (model != row["Model"]), "Speed-up, FLOPs": _reported_speedup(values)}
                if {task.name for task in tasks} == set(GLUE_TASKS):
                    said["Average"] = values["glue_average"].reported
                row = {name: beside(text, said.get(name)) for name, text in row.items()}
        rows.append(row)
    title = "GLUE development sets" if tasks[0].name in GLUE_TASKS else "diagnostic tasks, which are not GLUE"
    caption = f"Table 3: {title}; medians over fine-tuning seeds, beside the paper's ({recipe})"
    return Table(rows, caption, commands=commands_of(shown, config, "Table 3", "max_steps"))


def table_3_reported(recipe: str) -> Table:
    """All rows of the half of Table 3 that is of one recipe, as the paper reports them."""
    rows = []
    for model, values in reported_rows(recipe).items():
        row = {"Model": model, "Average": values["glue_average"].reported}
        row |= {cells.task_heading(task): reported_cell(values, task) for task in GLUE_TASKS.values()}
        rows.append({**row, "Speed-up": _reported_speedup(values)})
    return Table(rows, f"Table 3 as reported, {recipe}", folded=True)


def reported_rows(recipe: str) -> dict[str, dict[str, ReportedValue]]:
    """Model -> metric -> value, of each row of Table 3 with scores."""
    rows: dict[str, dict[str, ReportedValue]] = {}
    for value in reported_values():
        if value.artefact == "Table 3" and value.recipe == recipe:
            rows.setdefault(value.model, {})[value.metric] = value
    return {model: values for model, values in rows.items() if "glue_average" in values}


def reported_cell(values: Mapping[str, ReportedValue], task: Task) -> str:
    """All metrics of a task, or the one number that the paper has of it."""
    names = [name for key in task.metric_keys if (name := f"{task.name}_{key}") in values]
    return "/".join(values[name].reported for name in names or [task.name] if name in values) or MISSING


def _reported_speedup(values: Mapping[str, ReportedValue]) -> str:
    return next((values[name].reported for name in ("speedup", "speedup_at_steps") if name in values), MISSING)


def _task_cell(result: Result, task: Task) -> str:
    found = [metrics for study in result.comparison.values() if (metrics := study.metrics(task))]
    said = [cells.measured([metrics[key] for metrics in found], scale=100) for key in task.metric_keys if found]
    return "/".join(said) or NOT_RUN


def difference_table(results: Sequence[Result], config: StudyConfig) -> Table:
    """Each model against both vanilla models: average and loss."""
    rows = []
    for baseline, result in itertools.permutations(cells.shown_in("Table 3", results), 2):
        if baseline.run.config.architecture == "vanilla":
            equal = "steps" if result.run.config.max_steps == study_steps(config) else "FLOPs"
            row = {"Model": result.run.model, "Budget": f"equal {equal}", "Against": baseline.run.model}
            row["Average (points)"] = cells.average_difference(result.comparison, baseline.comparison)
            rows.append({**row, "Loss, all corrupted (nats)": cells.loss_difference(result, baseline)})
    return Table(rows, "Differences, paired by pre-training seed")


def learned_table(results: Sequence[Result], config: StudyConfig, finetuning: Iterable[RunRecord]) -> Table:
    """Does pre-training help? Each task's score from every encoder of Table 3, and from `random:` ones of its size.

    Of these every fine-tuning seed has weights of its own, so it stands where a pre-training seed does. *Helps*: the
    95% interval of the difference (Welch's t over seeds) is above zero.
    """
    rows, shown = [], cells.with_equal_steps(results, config)
    random = untrained((d for o in shown for d in o.comparison.values()), finetuning)
    for task in select_tasks(config):
        base = [100 * record.metrics["score"] for record in best_of_seeds(random.get(task.name, ()))]
        row = {"Task": task.title, "Constant answer": NOT_RUN, "Without pre-training": cells.measured(base)}
        helps = []
        for result in shown:
            scores = [(d, score) for d in result.comparison.values() if (score := d.score(task)) is not None]
            values = [100 * score for _, score in scores]
            row[result.run.model] = cells.measured(values)
            if scores:
                row["Constant answer"] = cells.percent(scores[0][0].constant(task))
            gain = difference_interval(values, base)
            if gain.low is not None and gain.low > 0:
                helps.append(result.run.model)
        row["Pre-training helps"] = ", ".join(helps) or ("undecided" if base else NOT_RUN)
        rows.append(row)
    alone = "each comparison at 95% for itself, not corrected for their number"
    brings = "What pre-training brings, task by task: scores from each encoder, and without pre-training"
    return Table(rows, f"{brings}; {alone}")


def untrained_table(results: Sequence[Result], finetuning: Iterable[RunRecord]) -> Table:
    """The runs without pre-training behind `learned_table`."""
    studies = (study for result in cells.shown_in("Table 3", results) for study in result.comparison.values())
    rows, found = [], untrained(studies, finetuning)
    for record in itertools.chain(*found.values()):
        score = MISSING if record.failure else cells.percent(record.metrics["score"])
        row = {"Run": record.run_id, "Task": record.data["task"], "Seed": f"{record.identity['seed']}"}
        rows.append({**row, "Score": score})
    return Table(rows or [{"Run": NOT_RUN}], "Runs without pre-training", folded=True)


def budget_table(results: Sequence[Result]) -> Table:
    """What pre-training took: tokens, FLOPs, hours, energy (codecarbon's, else a GPU's hours times `gpu_watts`)."""
    rows = []
    for result in cells.shown_in("Table 3", results):
        c, records = result.run.config, list(result.ended.values())
        hours = [record.timing["train_seconds"] / 3600 for record in records]
        machines = [record.environment["hardware"] for record in records]
        row = {"Model": result.run.model, "Parameters": cells.parameters(result), "Steps": f"{c.max_steps:,}"}
        row["Tokens"] = f"{c.max_steps * c.batch_size * c.sequence_length / 1e6:,.1f} M"
        row["Training FLOPs"] = f"{records[0].flops['training']:.3g}" if records and records[0].flops else NOT_RUN
        row["Hours"] = cells.measured(hours, 3)
        row |= {"Energy (kWh)": MISSING, "Energy by": "not measured: no codecarbon" if records else NOT_RUN}
        meant = [record.timing["energy_kwh"] for record in records if "energy_kwh" in record.timing]
        if meant and len(meant) == len(records):
            row |= {"Energy (kWh)": cells.measured(meant, 4), "Energy by": "codecarbon"}
        elif machines and all("gpu" in machine for machine in machines):
            row["Energy (kWh)"] = cells.measured((h * c.gpu_watts / 1000 for h in hours), 3)
            row["Energy by"] = f"hours × {c.gpu_watts:g} W"
        row["Hardware"] = ", ".join(sorted({f"{m.get('gpu') or m['cpu']}" for m in machines})) or NOT_RUN
        rows.append({**row, "Threads": ", ".join(sorted({f"{m['threads']}" for m in machines})) or NOT_RUN})
    return Table(rows, "Budget of pre-training, one seed")
