"""Tables of fine-tuning: the paper's table row, what stands behind it, and which runs failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from threeml_core.config import FINETUNE_PARAMETERS, GRID_PARAMETERS, StudyConfig
from threeml_core.glue.metrics import FEWEST_SEEDS, weighted_accuracy
from threeml_core.glue.protocol import GlueStudy, TaskResult, compare_results, planned_tasks, runs_of, start_of
from threeml_core.glue.tasks import ABLATION_TASKS, GLUE_TASKS, Task, select_tasks, tasks_of_source
from threeml_core.paper import printed_values
from threeml_core.reporting.tables import MISSING, NOT_RUN, Table, parameter_table
from threeml_core.runs.record import RunRecord

METRIC_TITLES = {"mcc": "MCC", "accuracy": "acc.", "f1": "F1", "pearson": "Pearson", "spearman": "Spearman"}


def task_heading(task: Task) -> str:
    """Of a column: the task and its metrics."""
    metrics = "/".join(METRIC_TITLES[metric] for metric in task.metrics)
    return "MNLI-m/mm (acc.)" if task.name == "mnli" else f"{task.title} ({metrics})"


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.1f}"


def finetune_plan(config: StudyConfig) -> Table:
    """The runs of the protocol, before anything is loaded: grid, seeds, where a task starts, what is asked for."""
    rows, total = [], 0
    asked = select_tasks(config)
    titles = {task.name: task.title for task in tasks_of_source(config.glue).values()}
    for task in planned_tasks(config):
        size = "finetune_large_" if task.large else "finetune_"
        grid = {name.removeprefix(size): getattr(config, name) for name in GRID_PARAMETERS if name.startswith(size)}
        runs = len(runs_of(task, config))
        total += runs
        start = start_of(task, config)
        rows.append(
            {
                "Task": task.title + ("" if task in asked else " (only as a start)"),
                "Learning rates": grid["learning_rates"].replace(",", ", "),
                "Batch sizes": grid["batch_sizes"].replace(",", ", "),
                "Epochs": grid["epochs"].replace(",", ", "),
                "Starts from": "the encoder" if start is None else f"the best {titles[start]} model of the seed",
                "Runs": f"{runs}",
            }
        )
    trials = "the whole grid" if config.trials is None else f"{config.trials} points of the grid"
    rows.append({"Task": "all", "Runs": f"{total}"})
    return Table(rows, f"Plan: {trials}, seeds a task: {config.seeds}")


def _cells(result: TaskResult) -> str:
    if result.score is None:
        return "failed"
    marks = ["subset"] if result.is_subset else []
    if len(result.best) < result.seeds:
        marks.append(f"{len(result.best)} of {result.seeds} seeds")
    if result.undefined:
        marks.append("undefined, counted as 0")
    text = "/".join(_percent(result.metrics[key]) for key in result.task.metric_keys)
    return f"{text} ({', '.join(marks)})" if marks else text


def glue_table(studies: Sequence[GlueStudy]) -> Table:
    """Our row of Table 3 for each study, and beneath it the paper's rows for the same architecture.

    Cells are medians over seeds of the best of the grid, times 100, in the paper's order of metrics. A task whose
    examples are not the full official ones is marked as a subset, and so is an average that holds one; seeds without
    a result are counted in the cell.
    """
    tasks = [result.task for result in studies[0].results]
    rows = []
    for study in studies:
        row = {"Model": study.name}
        row |= {task_heading(result.task): _cells(result) for result in study.results}
        complete = len(tasks) > 1 and study.average is not None
        subset = " (subset)" if any(result.is_subset for result in study.results) else ""
        rows.append({**row, "Average": f"{_percent(study.average)}{subset}" if complete else MISSING})
    is_glue = all(task.name in GLUE_TASKS for task in tasks)
    if is_glue:
        rows += _paper_rows(tasks, studies[0].architecture)
    caption = (
        "GLUE development sets, this study and the paper (Table 3; its average is over all eight tasks)"
        if is_glue
        else "Diagnostic tasks of this project; they are not GLUE, and the paper has no such numbers"
    )
    return Table(rows, caption)


def _paper_rows(tasks: Iterable[Task], architecture: str | None) -> list[dict[str, str]]:
    """Rows of Table 3 with all metrics, of one architecture or of all."""
    printed: dict[tuple[str, str], dict[str, str]] = {}
    for value in printed_values():
        if value.artefact == "Table 3" and architecture in (None, value.setting.split()[0]):
            printed.setdefault((value.recipe, value.model), {})[value.metric] = value.printed
    rows = []
    for (recipe, model), values in printed.items():
        if "mrpc_f1" not in values:
            continue
        row = {"Model": f"paper, {recipe}: {model}"}
        for task in tasks:
            row[task_heading(task)] = "/".join(values[f"{task.name}_{key}"] for key in task.metric_keys)
        rows.append({**row, "Average": values["glue_average"]})
    return rows


def protocol_table(study: GlueStudy) -> Table:
    """What stands behind each cell: interval, spread over seeds, chance, word counts, failed and collapsed runs."""
    rows = []
    for result in study.all_results:
        scores = result.seed_scores
        interval = MISSING
        if result.low is not None and result.high is not None:
            few = " (examples alone)" if len(scores) < FEWEST_SEEDS else ""
            kind = " (seeds resampled)" if result.is_older else few
            interval = f"{100 * result.low:.1f} to {100 * result.high:.1f}{kind}"
        rows.append(
            {
                "Task": result.title,
                "Score": _percent(result.score),
                "95% interval": interval,
                "Seeds": f"{len(scores)} of {result.seeds}",
                "Spread over seeds": f"{100 * min(scores):.1f} to {100 * max(scores):.1f}" if scores else MISSING,
                "Constant answer": _percent(result.chance),
                "Bag of words": _percent(result.baseline.metrics["score"]),
                "Verdict": _verdict(result),
                "Runs": f"{len(result.records)}",
                "Failed": f"{len(result.failed)}",
                "Collapsed": f"{len(result.collapsed)}",
            }
        )
    return Table(
        rows,
        f"{study.name}: the protocol, task by task. Intervals: of the mean over seeds, for other seeds and examples; "
        f"with fewer than {FEWEST_SEEDS} seeds for other examples alone",
    )


def _verdict(result: TaskResult) -> str:
    """Above, below or not distinguishable from the best constant answer, by the 95% interval."""
    if result.low is None or result.high is None or result.chance is None:
        return "no result"
    if result.is_older:
        return "undecided: resampled seeds, an interval that is too narrow"
    if result.low > result.chance:
        return "above a constant answer"
    return "below a constant answer" if result.high < result.chance else "undecided"


def example_table(study: GlueStudy) -> Table:
    """Where the examples of each task came from, how many there are, and which are subsets."""
    rows = []
    for result in study.all_results:
        data = result.records[0].data
        for split, about in data["splits"].items():
            rows.append(
                {
                    "Task": result.task.title,
                    "Split": split.replace("_", " "),
                    "Source": about["source"],
                    "Examples": f"{about['examples']:,}",
                    "Official": "subset" if about["is_subset"] else "all" if result.task.official_sizes else MISSING,
                    "Rows left out": f"{about['skipped_rows']}",
                    "At max_length": f"{data['share_at_max_length']:.1%}" if split == "train" else "",
                }
            )
    return Table(rows, "Examples")


def ablation_table(study: GlueStudy) -> Table:
    """The columns of the paper's ablations: accuracies, MNLI weighted by the sizes of its two sets.

    Source: section 3.1 and Table 2. The runs are those of the protocol: QQP's are best by the mean of F1 and accuracy.
    Tasks that were not run show as not run.
    """
    if not any(result.task.name in ABLATION_TASKS for result in study.results):
        row = {"Model": study.name, "Ablation mode": "not run: it needs MNLI, QNLI and QQP"}
        return Table([row], "Ablation mode")
    row = {"Model": study.name}
    results = {result.task.name: result for result in study.results}
    values = []
    for name in ABLATION_TASKS:
        result, title = results.get(name), GLUE_TASKS[name].title
        if result is None or result.score is None:
            row[f"{title} (acc.)"] = NOT_RUN if result is None else "failed"
            continue
        keys = [key for key in result.task.metric_keys if key.endswith("accuracy")]
        value = weighted_accuracy([result.metrics[key] for key in keys], list(result.examples.values()))
        values.append(value)
        row[f"{title} (acc.)"] = _percent(value) + (" (subset)" if result.is_subset else "")
    complete = len(values) == len(ABLATION_TASKS)
    subset = " (subset)" if any(result.is_subset for result in results.values()) else ""
    row["Average"] = _percent(sum(values) / len(values)) + subset if complete else MISSING
    return Table([row], "Ablation mode: accuracies, MNLI weighted over matched and mismatched")


def comparison_of_models(first: GlueStudy, others: Sequence[GlueStudy], runs_dir: str) -> Table:
    """One study against others on their predictions, task by task, with a verdict where there are seeds for it."""
    rows = []
    for second in others:
        results = {result.task.name: result for result in second.results}
        for result in first.results:
            other = results.get(result.task.name)
            row = {"Task": result.title, "Model": first.name, "Score": _percent(result.score)}
            row |= {"Other model": second.name, "Its score": _percent(other.score if other else None)}
            found = compare_results(result, other, runs_dir) if other else None
            if found is None:
                rows.append({**row, "Better": NOT_RUN if other is None else "no result"})
                continue
            row["Difference"] = f"{100 * found.difference:+.1f}"
            row["95% interval"] = f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"
            if found.p_value is None:
                seeds = min(len(result.best), len(other.best)) if other else 0
                few = "one seed" if seeds == 1 else f"{seeds} seeds"
                why = few if seeds < FEWEST_SEEDS else "resampled seeds"
                row |= {"p": MISSING, "Better": f"{why}: no p-value"}
            else:
                better = first.name if found.difference > 0 else second.name
                row |= {"p": f"{found.p_value:.3f}", "Better": better if found.p_value < 0.05 else "undecided"}
            rows.append(row)
    if not rows:
        rows = [{"Model": first.name, "Other model": "not run: set random_baseline=True"}]
    return Table(
        rows,
        "Difference of the mean scores over seeds, for other seeds and examples; with fewer than "
        f"{FEWEST_SEEDS} seeds a side for other examples alone",
    )


def failed_table(studies: Sequence[GlueStudy]) -> Table:
    """Runs that diverged, and runs that answer everything alike; one row says so if there are none."""
    rows = []
    for study in studies:
        for result in study.all_results:
            for outcome, records in (("failed", result.failed), ("collapsed", result.collapsed)):
                for record in records:
                    reason = record.failure or "one answer for every example"
                    row = {"Model": study.name, "Run": record.run_id, **_point(record)}
                    rows.append({**row, "Outcome": outcome, "Reason": reason})
    if not rows:
        count = sum(len(study.runs) for study in studies)
        rows = [{"Run": "none", "Outcome": f"all {count} runs ended, none with one answer for everything"}]
    return Table(rows, "Failed and collapsed runs", folded=len(rows) > 20)


def runs_table(study: GlueStudy) -> Table:
    """Every run with its point of the grid and its score, the bag of words first; the best of each seed is marked."""
    rows = []
    for result in study.all_results:
        rows.append(
            {"Run": result.baseline.run_id, "Task": result.task.name, "Score": _percent(_score(result.baseline))}
        )
        best = {record.run_id for record in result.best}
        for record in result.records:
            speed = MISSING if record.failure else f"{record.timing['sequences_per_second']:,.0f}"
            name = ("→ " if record.run_id in best else "") + record.run_id
            rows.append({"Run": name, **_point(record), "Score": _percent(_score(record)), "Sequences/s": speed})
    return Table(rows, f"{study.name}: all {len(study.runs)} runs; → best of its seed", folded=True)


def _score(record: RunRecord) -> float | None:
    return None if record.failure else record.metrics["score"]


def finetune_parameter_table(config: StudyConfig) -> Table:
    """Every parameter that decides a fine-tuning study, with its value and where it came from."""
    shared = ("seed", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "device", "bf16")
    return parameter_table(config, (*FINETUNE_PARAMETERS, *shared))


def _point(record: RunRecord) -> dict[str, str]:
    point = record.identity
    return {
        "Task": point["task"],
        "Seed": f"{point['seed']}",
        "Learning rate": f"{point['learning_rate']:g}",
        "Batch size": f"{point['batch_size']}",
        "Epochs": f"{point['epochs']}",
    }
