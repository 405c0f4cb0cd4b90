"""What the tables of a study have in common: which models they show in which order, and the cells of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from threeml_core.config import StudyConfig, study_steps
from threeml_core.glue.tasks import ABLATION_TASKS, GLUE_TASKS, Task
from threeml_core.paper import ReportedValue
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.reporting.table import MISSING, NOT_RUN
from threeml_core.statistics.intervals import mean_interval, ratio_interval
from threeml_core.study.results import Downstream, Result, averages

_Reported = Mapping[tuple[str, str], ReportedValue]  # (setting, metric) -> value

# the vanilla model at which mask rate, and where a record has the speed-up in FLOPs over it
SPEEDUPS = {"15%": "speedup_over_vanilla_15", "the same rate": "speedup_over_vanilla_same_rate"}


def shown_in(exhibit: str, results: Iterable[Result]) -> list[Result]:
    """The models of a table or figure: vanilla, 3ML_self, 3ML_cross, each in the order of what is varied."""

    def order(result: Result) -> tuple[Any, ...]:
        c = result.run.config
        splits = c.listed("study_splits")
        split = splits.index(c.mask_split) if c.mask_split in splits else -1
        sizes = (c.hidden_size, c.num_hidden_layers, c.decoder_num_hidden_layers, c.decoder_hidden_size)
        return list(ARCHITECTURES).index(c.architecture), c.max_steps, c.mask_rate, sizes, split

    return sorted((result for result in results if exhibit in result.run.exhibits), key=order)


def by_size(results: Iterable[Result]) -> dict[tuple[int, int], list[Result]]:
    """(layers, width) of the encoder -> its models, the smallest encoder first."""
    found: dict[tuple[int, int], list[Result]] = {}
    for result in results:
        c = result.run.config
        found.setdefault((c.num_hidden_layers, c.hidden_size), []).append(result)
    return dict(sorted(found.items(), key=lambda item: item[0][0] * item[0][1] ** 2))


def with_equal_steps(results: Iterable[Result], config: StudyConfig) -> list[Result]:
    """The models of Table 3 that were trained for the study's number of steps."""
    return [o for o in shown_in("Table 3", results) if o.run.config.max_steps == study_steps(config)]


def joined(parts: Sequence[str]) -> str:
    """Words in a sentence: a comma between them, "and" before the last."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def percent(value: float | None) -> str:
    """A fraction times 100."""
    return MISSING if value is None else f"{100 * value:.1f}"


def measured(values: Iterable[float], digits: int = 1, scale: float = 1.0, sign: bool = False) -> str:
    """Mean over pre-training seeds with half its 95% interval, which one seed does not have."""
    if not (scaled := [scale * value for value in values]):
        return NOT_RUN
    found = mean_interval(scaled)
    text = f"{found.mean:{'+' if sign else ''}.{digits}f}"
    return text if found.high is None else f"{text} ± {found.high - found.mean:.{digits}f}"


def measured_perplexity(values: Iterable[float]) -> str:
    """Exponential of the mean cross-entropy over pre-training seeds, with its 95% interval; see `ratio_interval`."""
    if not (known := list(values)):
        return NOT_RUN
    found = ratio_interval(known)
    text = f"{found.mean:.1f}"
    return text if found.low is None or found.high is None else f"{text} ({found.low:.1f} to {found.high:.1f})"


def difference(first: Mapping[int, float], second: Mapping[int, float], digits: int = 1) -> str:
    """First minus second, paired by pre-training seed."""
    return measured([first[seed] - second[seed] for seed in first.keys() & second.keys()], digits, sign=True)


def perplexity(result: Result, metric: str = "eval_perplexity_masked") -> str:
    """Validation perplexity, by one of the metrics of `Result.metric`."""
    return measured_perplexity(result.metric(metric).values())


def parameters(result: Result) -> str:
    """Parameters in pre-training; millions."""
    counts = {record.data["parameters"] for record in result.ended.values()}
    return f"{counts.pop() / 1e6:.2f} M" if len(counts) == 1 else NOT_RUN


def speedup(result: Result, baseline: str = "15%") -> list[float]:
    """In FLOPs, over one of `SPEEDUPS`, the same for all seeds; empty: not run."""
    return [record.flops[SPEEDUPS[baseline]] for record in result.ended.values() if record.flops][:1]


def average(studies: Mapping[int, Downstream], marked: bool = False) -> str:
    """Macro average after fine-tuning, times 100; `marked` where it holds a task with a part of its examples."""
    values = averages(studies).values()
    is_subset = marked and any(study.is_subset for study in studies.values())
    return measured(values) + (" (subset)" if values and is_subset else "")


def average_difference(first: Mapping[int, Downstream], second: Mapping[int, Downstream]) -> str:
    """First minus second macro average; points."""
    return difference(averages(first), averages(second))


def loss_difference(first: Result, second: Result) -> str:
    """First minus second validation loss over all corrupted tokens; nats."""
    return difference(first.metric("eval_loss"), second.metric("eval_loss"), 3)


_METRICS = {"mcc": "MCC", "accuracy": "acc.", "f1": "F1", "pearson": "Pearson", "spearman": "Spearman"}


def task_heading(task: Task) -> str:
    """Of a column of Table 3: the task and its metrics."""
    metrics = "/".join(_METRICS[metric] for metric in task.metrics)
    return "MNLI-m/mm (acc.)" if task.name == "mnli" else f"{task.title} ({metrics})"


def ablation_heading(task: Task) -> str:
    """Of a column of the ablations, which have one number per task."""
    return f"{task.title} (acc.)" if task.name in GLUE_TASKS else task_heading(task)


def ablation(result: Result, tasks: Sequence[Task]) -> dict[str, str]:
    """Columns of the ablations, times 100: the average, and each task."""
    cells = {"Average": average(result.ablation, marked=True)}
    for task in tasks:
        scores = [study.score(task) for study in result.ablation.values()]
        cells[ablation_heading(task)] = measured([s for s in scores if s is not None], scale=100)
    return cells


def reported_ablation(setting: str, reported: _Reported, tasks: Sequence[Task]) -> dict[str, str]:
    """The same columns as the paper reports them; the average is of its own three tasks alone."""
    same = {task.name for task in tasks} == set(ABLATION_TASKS)
    found = {"Average": reported.get((setting, "ablation_average")) if same else None}
    found |= {ablation_heading(task): reported.get((setting, f"{task.name}_accuracy")) for task in tasks}
    return {heading: value.reported if value else MISSING for heading, value in found.items()}
