"""One fine-tuning study: its row of Table 3, what stands behind it, its curves, and which runs failed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import matplotlib.ticker

from threeml_core.config import StudyConfig
from threeml_core.glue.metrics import FEWEST_SEEDS
from threeml_core.glue.protocol import GlueStudy, TaskResult, compare_results, planned_tasks, runs_of, start_of
from threeml_core.glue.tasks import ABLATION_TASKS, GLUE_TASKS, select_tasks, tasks_of_source
from threeml_core.paper import RECIPES
from threeml_core.reporting.cells import ablation_heading, percent, task_heading
from threeml_core.reporting.drawing import near
from threeml_core.reporting.references import CONSTANT, WORDS
from threeml_core.reporting.style import GREY, INK, Figure, color_of, draw_references, drawing, legend_below, span_alike
from threeml_core.reporting.table import MISSING, NOT_RUN, Table
from threeml_core.reporting.table_3 import reported_cell, reported_rows
from threeml_core.runs.record import RunRecord, read_metrics
from threeml_core.study.results import Downstream


def finetune_plan(config: StudyConfig) -> Table:
    """The runs of the protocol, before anything is loaded: grid, seeds, where a task starts, what is asked for."""
    rows, total, asked = [], 0, select_tasks(config)
    titles = {task.name: task.title for task in tasks_of_source(config.glue).values()}
    for task in planned_tasks(config):
        runs, start = len(runs_of(task, config)), start_of(task, config)
        total += runs
        row = {"Task": task.title + ("" if task in asked else " (only as a start)")}
        for name in ("learning_rates", "batch_sizes", "epochs"):
            grid = getattr(config, f"finetune_{'large_' if task.large else ''}{name}")
            row[name.replace("_", " ").capitalize()] = grid.replace(",", ", ")
        row["Starts from"] = "the encoder" if start is None else f"the best {titles[start]} model of the seed"
        rows.append({**row, "Runs": f"{runs}"})
    trials = "the whole grid" if config.num_trials is None else f"{config.num_trials} points of the grid"
    rows.append({"Task": "all", "Runs": f"{total}"})
    return Table(rows, f"Plan: {trials}, seeds per task: {config.num_seeds}")


def _cell(result: TaskResult) -> str:
    if result.score is None:
        return "failed"
    text = "/".join(percent(result.metrics[key]) for key in result.task.metric_keys)
    marks = {"subset": result.is_subset}
    marks[f"{len(result.best)} of {result.seeds} seeds"] = len(result.best) < result.seeds
    marks["undefined, counted as 0"] = bool(result.undefined)
    said = ", ".join(mark for mark, holds in marks.items() if holds)
    return f"{text} ({said})" if said else text


def glue_table(studies: Sequence[GlueStudy]) -> Table:
    """Our row of Table 3 for each study (medians over seeds of the best of the grid, times 100), and the paper's."""
    tasks = [result.task for result in studies[0].results]
    rows = []
    for study in studies:
        complete = len(tasks) > 1 and study.average is not None
        subset = " (subset)" if any(result.is_subset for result in study.results) else ""
        row = {"Model": study.name, "Average": f"{percent(study.average)}{subset}" if complete else MISSING}
        rows.append(row | {task_heading(result.task): _cell(result) for result in study.results})
    if not all(task.name in GLUE_TASKS for task in tasks):
        return Table(rows, "Diagnostic tasks of this project; they are not GLUE, and the paper has no such numbers")
    for recipe in RECIPES:
        for model, values in reported_rows(recipe).items():
            average = values["glue_average"]
            if "mrpc_f1" in values and studies[0].architecture in (None, average.setting.split()[0]):
                row = {"Model": f"paper, {recipe}: {model}", "Average": average.reported}
                rows.append({**row, **{task_heading(task): reported_cell(values, task) for task in tasks}})
    return Table(rows, "GLUE development sets, this study and the paper (Table 3; its average is over all eight tasks)")


def result_sentence(study: GlueStudy) -> str:
    """Average over how many tasks of which kind, from how many runs."""
    kind = "GLUE" if all(result.task.name in GLUE_TASKS for result in study.results) else "diagnostic, not GLUE"
    tasks, runs = len(study.results), len(study.runs)
    return f"{study.name}: average score {percent(study.average)}; tasks: {tasks} ({kind}), fine-tunings: {runs:,}."


def protocol_table(study: GlueStudy) -> Table:
    """What stands behind each cell: interval, spread over seeds, chance, word counts, failed and collapsed runs."""
    rows = []
    for result in study.all_results:
        scores = result.seed_scores
        row = {"Task": result.title, "Score": percent(result.score), "95% interval": MISSING}
        if result.low is not None and result.high is not None:
            few = " (examples alone)" if len(scores) < FEWEST_SEEDS else ""
            row["95% interval"] = _range((result.low, result.high)) + (" (seeds resampled)" if result.is_older else few)
        row |= {"Seeds": f"{len(scores)} of {result.seeds}", "Spread over seeds": _range(scores) if scores else MISSING}
        row |= {"Constant answer": percent(result.chance), "Bag of words": percent(result.baseline.metrics["score"])}
        row |= {"Verdict": _verdict(result), "Runs": f"{len(result.records)}"}
        rows.append({**row, "Failed": f"{len(result.failed)}", "Collapsed": f"{len(result.collapsed)}"})
    few = f"with fewer than {FEWEST_SEEDS} seeds for other examples alone"
    what = f"{study.name}: the protocol, task by task. Intervals: of the mean over seeds, for other seeds and examples"
    return Table(rows, f"{what}; {few}")


def _verdict(result: TaskResult) -> str:
    if result.low is None or result.high is None or result.chance is None:
        return "no result"
    if result.is_older:
        return "undecided: resampled seeds, an interval that is too narrow"
    if result.low > result.chance:
        return "above a constant answer"
    return "below a constant answer" if result.high < result.chance else "undecided"


def learned_statement(study: GlueStudy) -> str:
    """On which tasks a model is above a constant answer, and what the page shows if on none of them."""
    results = study.all_results
    above = [result.task.title for result in results if _verdict(result).startswith("above")]
    if above:
        return f"{study.name} is above a constant answer on {len(above)} of {len(results)} tasks: {', '.join(above)}."
    return (
        f"{study.name} is above a constant answer on none of its tasks: it has not learned them, and "
        "this page shows how the protocol reads, not how good the model is."
    )


def example_table(study: GlueStudy) -> Table:
    """Where the examples of each task came from, how many there are, and which are subsets."""
    rows = []
    for result in study.all_results:
        data = result.records[0].data
        for split, about in data["splits"].items():
            row = {"Task": result.task.title, "Split": split.replace("_", " "), "Source": about["source"]}
            official = "subset" if about["is_subset"] else "all" if result.task.official_sizes else MISSING
            row |= {"Examples": f"{about['examples']:,}", "Official": official}
            row["Rows left out"] = f"{about['skipped_rows']}"
            rows.append({**row, "At max_length": f"{data['share_at_max_length']:.1%}" if split == "train" else ""})
    return Table(rows, "Examples")


def ablation_table(study: GlueStudy) -> Table:
    """The columns of the paper's Table 2 from the protocol's runs: QQP's are best by the mean of F1 and accuracy."""
    results = {result.task.name: result for result in study.results}
    row = {"Model": study.name}
    if not results.keys() & set(ABLATION_TASKS):
        return Table([{**row, "Ablation mode": "not run: it needs MNLI, QNLI and QQP"}], "Ablation mode")
    tasks = tuple(GLUE_TASKS[name] for name in ABLATION_TASKS)
    found = Downstream(tasks, {name: result.records for name, result in results.items()}, accuracies=True)
    for task in tasks:
        score, result = found.score(task), results.get(task.name)
        if result is None or score is None:
            row[ablation_heading(task)] = NOT_RUN if result is None else "failed"
        else:
            row[ablation_heading(task)] = percent(score) + " (subset)" * result.is_subset
    row["Average"] = MISSING if found.average is None else percent(found.average) + " (subset)" * found.is_subset
    return Table([row], "Ablation mode: accuracies, MNLI weighted over matched and mismatched")


def comparison_of_models(first: GlueStudy, others: Sequence[GlueStudy], runs_dir: str) -> Table:
    """One study against others on their predictions, task by task, with a verdict where there are seeds for it."""
    rows = []
    for second, result in itertools.product(others, first.results):
        other = next((of for of in second.results if of.task.name == result.task.name), None)
        row = {"Task": result.title, "Model": first.name, "Score": percent(result.score)}
        row |= {"Other model": second.name, "Its score": percent(other.score if other else None)}
        found = compare_results(result, other, runs_dir) if other else None
        if other is None or found is None:
            rows.append({**row, "Better": NOT_RUN if other is None else "no result"})
            continue
        row["Difference"] = f"{100 * found.difference:+.1f}"
        row["95% interval"] = f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"
        if found.p_value is None:
            seeds = min(len(result.best), len(other.best))
            few = "one seed" if seeds == 1 else f"{seeds} seeds"
            row |= {"p": MISSING, "Better": f"{few if seeds < FEWEST_SEEDS else 'resampled seeds'}: no p-value"}
        else:
            better = first.name if found.difference > 0 else second.name
            row |= {"p": f"{found.p_value:.3f}", "Better": better if found.p_value < 0.05 else "undecided"}
        rows.append(row)
    alone = f"with fewer than {FEWEST_SEEDS} seeds per model for other examples alone"
    rows = rows or [{"Model": first.name, "Other model": "not run: set random_baseline=True"}]
    return Table(rows, f"Difference of the mean scores over seeds, for other seeds and examples; {alone}")


def failed_table(studies: Sequence[GlueStudy]) -> Table:
    """Runs that diverged, and runs that answer everything alike; one row says so if there are none."""
    rows = []
    for study in studies:
        for record in (record for result in study.all_results for record in (*result.failed, *result.collapsed)):
            row = {"Model": study.name, "Run": record.run_id, **_point(record)}
            row["Result"] = "failed" if record.failure else "collapsed"
            rows.append({**row, "Reason": record.failure or "one answer for every example"})
    count = sum(len(study.runs) for study in studies)
    rows = rows or [{"Run": "none", "Result": f"all {count} runs ended, none with one answer for everything"}]
    return Table(rows, "Failed and collapsed runs", folded=len(rows) > 20)


def runs_table(study: GlueStudy) -> Table:
    """Every run with its point of the grid and its score, the bag of words first; the best of each seed is marked."""
    rows = []
    for result in study.all_results:
        rows.append({"Run": result.baseline.run_id, "Task": result.task.name, "Score": _score(result.baseline)})
        best = {record.run_id for record in result.best}
        for record in result.records:
            speed = MISSING if record.failure else f"{record.timing['sequences_per_second']:,.0f}"
            name = "→ " * (record.run_id in best) + record.run_id
            rows.append({"Run": name, **_point(record), "Score": _score(record), "Sequences/s": speed})
    return Table(rows, f"{study.name}: all {len(study.runs)} runs; → best of its seed", folded=True)


def _score(record: RunRecord) -> str:
    return MISSING if record.failure else percent(record.metrics["score"])


def _point(record: RunRecord) -> dict[str, str]:
    of = record.identity
    point = {"Task": of["task"], "Seed": f"{of['seed']}", "Learning rate": f"{of['learning_rate']:g}"}
    return {**point, "Batch size": f"{of['batch_size']}", "Epochs": f"{of['epochs']}"}


def plot_learning_curves(study: GlueStudy, runs_dir: str) -> Figure:
    """Score on the validation set after each epoch, of the best run of each seed, a panel for each task."""
    results, ends = [result for result in study.results if result.best], []
    if not results:
        return _nothing(study)
    spans, against = [], []
    with drawing(len(results), 2.5, per_row=4) as (figure, axes):
        for axis, result in zip(axes, results, strict=True):
            assert result.chance is not None and result.score is not None
            shown: list[float] = []
            look = {"color": color_of(study.architecture), "marker": "o", "markersize": 4, "linewidth": 1}
            for record in result.best:
                lines = read_metrics(record.folder(runs_dir) / "metrics.jsonl")
                scores = [100 * line["score"] for line in lines]
                axis.plot([line["epoch"] for line in lines], scores, alpha=0.8, label="a seed", **look)
                shown += scores
            against.append({CONSTANT: 100 * result.chance, WORDS: 100 * result.baseline.metrics["score"]})
            spans.append((axis, near(shown, against[-1])))
            axis.set(xlabel="epoch", ylabel="score", title=result.title)
            axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True, min_n_ticks=1))
            axis.set_xlim(0.5, max(record.identity["epochs"] for record in result.best) + 0.5)
            ends.append(f"{result.task.title} {100 * result.score:.1f} (constant answer {100 * result.chance:.1f})")
        span_alike(spans)
        for axis, of in zip(axes, against, strict=True):
            draw_references(axis, of)
        legend_below(axes)
    return Figure(
        figure,
        f"{study.name}: validation score after each epoch, a line for the best run of each seed; grey: the best "
        f"constant answer and a bag of words. All panels span the same number of points. Median scores: "
        f"{', '.join(ends)}.",
    )


def plot_spread(study: GlueStudy) -> Figure:
    """Every run's score, and the best of each seed, task by task: what choosing from the grid does."""
    results = [result for result in study.results if result.best]
    if not results:
        return _nothing(study)
    import seaborn as sns  # with pandas a second, which no other page needs

    with drawing(height=0.6 + 0.45 * len(results)) as (figure, (axis,)):
        titles = [result.title for result in results]
        ended = [(r, o.title) for o in results for r in o.records if r.failure is None]
        scores, tasks = [100 * record.metrics["score"] for record, _ in ended], [title for _, title in ended]
        swarm = {"size": 4, "color": GREY, "alpha": 0.5, "label": "a run", "legend": False, "warn_thresh": 1}
        sns.swarmplot(x=scores, y=tasks, order=titles, ax=axis, **swarm)
        for row, result in enumerate(results):
            assert result.chance is not None
            best, color = [100 * score for score in result.seed_scores], color_of(study.architecture)
            axis.scatter(best, [row] * len(best), color=color, s=34, label="best of a seed", zorder=3)
            for label, value, mark in ((CONSTANT, result.chance, "|"), (WORDS, result.baseline.metrics["score"], "x")):
                axis.scatter([100 * value], [row], color=INK, marker=mark, s=60, label=label, zorder=4)
        axis.set(xlabel="score", ylim=(len(results) - 0.5, -0.5))
        legend_below([axis])
    spreads = ", ".join(f"{result.task.title} {_range(result.seed_scores)}" for result in results)
    return Figure(
        figure,
        f"{study.name}: a dot for each run, a coloured one for the best run of each seed, a bar for the best constant "
        f"answer, a cross for a bag of words. Best of a seed: {spreads}.",
    )


def _range(scores: Sequence[float]) -> str:
    return f"{percent(min(scores))} to {percent(max(scores))}"


def _nothing(study: GlueStudy) -> Figure:
    with drawing(height=1) as (figure, (axis,)):
        axis.text(0.5, 0.5, "no task has a result", ha="center", va="center", color=INK)
        axis.set_axis_off()
    return Figure(figure, f"{study.name}: no run of any task ended, so there is nothing to draw.")
