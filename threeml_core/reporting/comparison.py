"""The paper's tables and figures beside ours, and its claims: what notebooks 04 to 06 and the first page show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import matplotlib.ticker

from threeml_core.config import KINDS, MODEL_NAMES, RANDOM, StudyConfig, study_steps
from threeml_core.glue.ledger import FINETUNE_MATCH
from threeml_core.glue.protocol import best_of_seeds
from threeml_core.glue.tasks import ABLATION_TASKS, GLUE_TASKS, Task, select_tasks
from threeml_core.paper import PrintedValue, printed_values
from threeml_core.reporting.commands import commands_of, finetune_command, pretrain_command
from threeml_core.reporting.figures import COLORS, INK, MARKERS, RC, STYLES, Figure, new_axes
from threeml_core.reporting.finetuning import task_heading
from threeml_core.reporting.tables import MISSING, NOT_RUN, Table, corruption_note
from threeml_core.runs.record import RunRecord
from threeml_core.statistics.intervals import Interval, difference_interval, mean_interval, ratio_interval
from threeml_core.statistics.verdicts import (
    CONTRADICTED,
    SUPPORTED,
    Claim,
    Finding,
    corrected_verdicts,
    family_statement,
)
from threeml_core.study.experiment import Experiment, ablation_config
from threeml_core.study.ledger import chosen_experiments
from threeml_core.study.results import Downstream, Result, averages

PAPER = "paper"


def measured(values: Iterable[float], digits: int = 1, scale: float = 1.0, sign: bool = False) -> str:
    """Mean over pre-training seeds with half its 95% interval, which one seed does not have."""
    scaled = [scale * value for value in values]
    if not scaled:
        return NOT_RUN
    found = mean_interval(scaled)
    text = f"{found.mean:{'+' if sign else ''}.{digits}f}"
    return text if found.high is None else f"{text} ± {found.high - found.mean:.{digits}f}"


def measured_perplexity(values: Iterable[float]) -> str:
    """Exponential of the mean cross-entropy over pre-training seeds, with its 95% interval; see `ratio_interval`."""
    known = list(values)
    if not known:
        return NOT_RUN
    found = ratio_interval(known)
    text = f"{found.mean:.1f}"
    return text if found.low is None or found.high is None else f"{text} ({found.low:.1f} to {found.high:.1f})"


def _recipe(config: StudyConfig) -> str:
    """The paper's recipe that a preset stands beside."""
    return config.preset if config.preset == "longer-base" else "efficient-large"


def _printed(artefact: str, recipe: str = "efficient-large") -> dict[tuple[str, str], PrintedValue]:
    """(setting, metric) -> printed value."""
    return {(v.setting, v.metric): v for v in printed_values() if v.artefact == artefact and v.recipe == recipe}


def _named(outcomes: Iterable[Result], artefact: str) -> list[Result]:
    """The outcomes that a table or figure shows: vanilla, 3ML_self, 3ML_cross, each in the order of what is varied."""

    def order(outcome: Result) -> tuple[Any, ...]:
        c = outcome.run.config
        splits = [split.strip() for split in c.study_splits.split(",")]
        split = splits.index(c.mask_split) if c.mask_split in splits else -1
        architecture = list(MODEL_NAMES).index(c.architecture)
        size = (c.hidden_size, c.num_hidden_layers)
        return architecture, c.max_steps, c.mask_rate, size, c.decoder_num_hidden_layers, c.decoder_hidden_size, split

    return sorted((outcome for outcome in outcomes if artefact in outcome.run.exhibits), key=order)


def seeds_statement(outcomes: Iterable[Result]) -> str:
    """What the number of pre-training seeds allows to say."""
    counts = sorted({len(outcome.run.seeds) for outcome in outcomes})
    if counts[-1] == 1:
        return (
            "One pre-training seed: no interval is possible, so no difference on this page decides anything "
            "(`pretrain_seeds`)."
        )
    return (
        f"{' or '.join(map(str, counts))} pre-training seeds: means ± half the 95% interval by Student's t "
        "(perplexities: computed on their logs); differences are paired by seed."
    )


def plateau_note(outcomes: Iterable[Result]) -> str:
    """Which models have learned nothing about masked tokens yet."""
    known = [outcome for outcome in outcomes if outcome.ended]
    flat = [outcome for outcome in known if outcome.on_plateau]
    if not known:
        return "Nothing of this page has been run yet."
    if not flat:
        return f"All {len(known)} models have left the unigram plateau."
    return (
        f"{len(flat)} of {len(known)} models have not left the unigram plateau: they have learned next to nothing of "
        "masked tokens, and what they give shows the form of this page, not the method."
    )


def lacking_note(outcomes: Iterable[Result]) -> str:
    """Which models were not trained as their split says, so that comparisons with them mean something else; or ""."""
    models: dict[tuple[str, ...], dict[str, None]] = {}
    for outcome in outcomes:
        if outcome.lacks:
            models.setdefault(outcome.lacks, {})[outcome.run.model] = None
    return " ".join(
        f"{', '.join(names)} never saw {' or '.join(kinds)} tokens in training, although the split asks for them: "
        "every difference against them is also one of the split, and decides nothing."
        for kinds, names in models.items()
    )


def first_notes(outcomes: Sequence[Result]) -> str:
    """What holds for all models of a study: seeds, the unigram plateau, kinds of tokens that were never trained on."""
    return " ".join(filter(None, (say(outcomes) for say in (seeds_statement, plateau_note, lacking_note))))


def study_notes(outcomes: Sequence[Result]) -> str:
    """The same, and in a paragraph of its own the corruption that was executed, where it is not what was asked for."""
    records = [record for outcome in outcomes for record in outcome.ended.values()]
    return "\n\n".join(filter(None, (first_notes(outcomes), corruption_note(records))))


# -- tasks ------------------------------------------------------------------------------------------------------


def _ablation_heading(task: Task) -> str:
    return f"{task.title} (acc.)" if task.name in GLUE_TASKS else task_heading(task)


def _ablation_cells(outcome: Result, tasks: Sequence[Task]) -> dict[str, str]:
    """Task columns and average of the ablations, times 100."""
    cells = {}
    for task in tasks:
        scores = [study.score(task) for study in outcome.ablation.values()]
        cells[_ablation_heading(task)] = measured([s for s in scores if s is not None], scale=100)
    subset = " (subset)" if any(study.is_subset for study in outcome.ablation.values()) else ""
    values = averages(outcome.ablation)
    return {**cells, "Average": measured(values.values()) + (subset if values else "")}


def _paper_ablation(
    setting: str, printed: Mapping[tuple[str, str], PrintedValue], tasks: Sequence[Task]
) -> dict[str, str]:
    """The same columns as printed; without the average where the paper prints none."""
    cells = {}
    for task in tasks:
        value = printed.get((setting, f"{task.name}_accuracy"))
        cells[_ablation_heading(task)] = value.printed if value else MISSING
    same = {task.name for task in tasks} == set(ABLATION_TASKS)
    average = printed.get((setting, "ablation_average")) if same else None
    return {**cells, "Average": average.printed if average else MISSING}


def _difference(first: Mapping[int, float], second: Mapping[int, float], digits: int = 1) -> str:
    return measured([first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())], digits, sign=True)


# -- 04: prerequisites ------------------------------------------------------------------------------------------


def masking_rate_table(outcomes: Sequence[Result], config: StudyConfig) -> Table:
    """Figure 3 in numbers: the vanilla model's scores at each mask rate."""
    tasks = select_tasks(ablation_config(config))
    rows = []
    for outcome in _named(outcomes, "Figure 3"):
        row = {"Mask rate": f"{outcome.run.config.mask_rate:.0%}", **_ablation_cells(outcome, tasks)}
        row["Perplexity, masked"] = measured_perplexity(outcome.metric("eval_perplexity_masked").values())
        rows.append(row)
    commands = commands_of(_named(outcomes, "Figure 3"), config, "Figure 3")
    return Table(rows, "Figure 3 in numbers: the vanilla model at different mask rates", commands=commands)


def plot_masking_rate(outcomes: Sequence[Result], config: StudyConfig) -> Figure:
    """Figure 3: score of the vanilla model against the mask rate, task by task; the paper's optimum in grey."""
    tasks = select_tasks(ablation_config(config))
    named = _named(outcomes, "Figure 3")
    optima = {v.metric: v.value for v in printed_values() if v.artefact == "Figure 3"}
    panels: list[tuple[str, str, Callable[[Downstream], float | None]]] = [
        *((task.title, f"{task.name}_best_mask_rate", lambda d, t=task: d.score(t)) for task in tasks),
        ("Average", "best_mask_rate", lambda d: d.average),
    ]
    said = []
    with matplotlib.rc_context(RC):
        figure, axes = new_axes(len(panels), 2.6)
        for axis, (title, key, of) in zip(axes, panels, strict=True):
            points = []
            for outcome in named:
                values = [100 * v for study in outcome.ablation.values() if (v := of(study)) is not None]
                if values:
                    points.append((100 * outcome.run.config.mask_rate, values))
            _draw_points(axis, points, "vanilla")
            _at_least_ten(axis, [value for _, values in points for value in values])
            if key in optima:
                axis.axvline(optima[key], color=COLORS["reference"], linestyle="-.")
                said.append(f"{title} {optima[key]:g}%")
            axis.set(title=title, xlabel="mask rate (%)")
        axes[0].set_ylabel("score")
    ran = ", ".join(f"{o.run.config.mask_rate:.0%}: {measured(averages(o.ablation).values())}" for o in named)
    return Figure(
        figure,
        f"Score of the vanilla model after fine-tuning against the mask rate of pre-training. Average at {ran}. Grey: "
        f"the best rate by the paper's text ({', '.join(said)}; the paper's figure has no numbers).",
    )


def _draw_points(
    axis: Any, points: Sequence[tuple[float, Sequence[float]]], architecture: str, label: str | None = None
) -> None:
    """A line through the means, every seed as a dot; nothing but a note where nothing was run."""
    if not points:
        axis.annotate(NOT_RUN, (0.5, 0.5), xycoords="axes fraction", ha="center", color=INK)
        return
    look = {"color": COLORS[architecture], "marker": MARKERS[architecture]}
    xs = [x for x, _ in points]
    means = [mean_interval(values).mean for _, values in points]
    axis.plot(xs, means, linestyle=STYLES[architecture], linewidth=2, markersize=5, label=label, **look)
    dots = [(x, value) for x, values in points for value in values if len(values) > 1]
    if dots:
        axis.scatter(*zip(*dots, strict=True), s=12, alpha=0.5, color=look["color"])


def _at_least_ten(axis: Any, scores: Sequence[float]) -> None:
    """Show ten points or more, so that noise does not look like an effect."""
    if scores:
        middle, half = (max(scores) + min(scores)) / 2, max(5, 0.6 * (max(scores) - min(scores)))
        axis.set_ylim(middle - half, middle + half)


def perplexity_comparison(outcomes: Sequence[Result], config: StudyConfig) -> Table:
    """Table 1: validation perplexity of the three models on one corruption, in total and by kind, and the paper's."""
    printed = _printed("Table 1")
    named = _named(outcomes, "Table 1")
    vanilla = next((o for o in named if o.run.config.architecture == "vanilla"), None)
    rows = []
    for outcome in named:
        c = outcome.run.config
        row = {
            "Model": outcome.run.model,
            "All corrupted": measured_perplexity(outcome.metric("eval_perplexity").values()),
        }
        for kind in KINDS:
            known = outcome.metric(f"eval_perplexity_{kind}").values()
            row[kind.capitalize()] = measured_perplexity(known) if known or not outcome.ended else MISSING
        row["Unigram, masked"] = measured_perplexity([*outcome.metric("unigram_perplexity_masked").values()][:1])
        loss = "eval_loss"
        against = _difference(outcome.metric(loss), vanilla.metric(loss), 3) if vanilla else NOT_RUN
        row["Loss over all corrupted, against vanilla (nats)"] = MISSING if outcome is vanilla else against
        rows.append(row)
        value = printed.get((f"{c.architecture} {c.mask_rate:g}", "perplexity"))
        if value:
            rows.append({"Model": f"{PAPER}: {value.model}", "All corrupted": value.printed})
    caption = f"Table 1: validation perplexity; every model sees the same corruption ({_corruption(config)})"
    return Table(rows, caption, commands=commands_of(named, config, "Table 1"))


def _corruption(config: StudyConfig) -> str:
    return f"{config.eval_mask_rate:.0%}, {config.eval_mask_split}"


# -- 05: efficient setting ----------------------------------------------------------------------------------------


def ablation_results(outcomes: Sequence[Result], experiment: Experiment | str, config: StudyConfig) -> Table:
    """Tables 2a, 2b, 2c: our row for each value and model, and beneath it the paper's where it has that value.

    Two perplexities stand beside the scores of Table 2c: of the corruption that every model is validated on, and over
    the kinds as in the run's own split, which is what the paper's column must be.
    """
    (experiment,) = chosen_experiments([experiment])
    (key,), title = experiment.vary, experiment.heading or next(iter(experiment.vary))
    printed = _printed(experiment.name)
    tasks = select_tasks(ablation_config(config))
    named = _named(outcomes, experiment.name)
    defaults = {o.run.config.architecture: o for o in named if getattr(o.run.config, key) == getattr(config, key)}
    rows = []
    for architecture in dict.fromkeys(o.run.config.architecture for o in named):
        for outcome in (o for o in named if o.run.config.architecture == architecture):
            c = outcome.run.config
            row = {"Model": outcome.run.model, title: f"{getattr(c, key)}", **_ablation_cells(outcome, tasks)}
            default = defaults.get(architecture)
            if outcome is default:
                row["Against the default"] = "default"
            elif default is not None:
                row["Against the default"] = _difference(averages(outcome.ablation), averages(default.ablation))
            for heading, metric in experiment.columns.items():
                row[heading] = measured_perplexity(outcome.metric(metric).values())
            row["Parameters"] = _parameters(outcome)
            rows.append(row)
            setting = f"{architecture} {c.mask_rate:g} {key}={getattr(c, key)}"
            said = _paper_ablation(setting, printed, tasks)
            if (setting, "perplexity") in printed:
                said["Perplexity, own split"] = printed[setting, "perplexity"].printed
            if set(said.values()) != {MISSING}:
                rows.append({"Model": PAPER, title: f"{getattr(c, key)}", **said})
    commands = commands_of(named, config, experiment.name, key)
    beside = "; the paper's rows are of its large models" if printed else ""
    return Table(rows, f"{experiment.name}: {experiment.title}{beside}", commands=commands)


def paper_ablation(experiment: Experiment | str) -> Table:
    """All that the paper prints in one of its ablation tables."""
    (experiment,) = chosen_experiments([experiment])
    title = experiment.heading
    tasks = [GLUE_TASKS[name] for name in ABLATION_TASKS]
    printed = _printed(experiment.name)
    rows = []
    for setting in dict.fromkeys(where for where, _ in printed):
        architecture, rate, change = setting.split()
        row = {"Model": f"{MODEL_NAMES[architecture]}-{float(rate):.0%}", title: change.partition("=")[2]}
        row |= _paper_ablation(setting, printed, tasks)
        if (setting, "perplexity") in printed:
            row["Perplexity, own split"] = printed[setting, "perplexity"].printed
            row["Note"] = printed[setting, "perplexity"].note
        rows.append(row)
    return Table(rows, f"{experiment.name}: {experiment.title}, as printed", folded=True)


def swap_table(outcomes: Sequence[Result]) -> Table:
    """Is the perplexity of 80-20-0 the higher one? In the paper it is for 3ML_self, and is not for 3ML_cross."""
    printed = _printed("Table 2c")
    rows = []
    for architecture in ("self", "cross"):
        split: dict[str, Result] = {
            o.run.config.mask_split: o
            for o in _named(outcomes, "Table 2c")
            if o.run.config.architecture == architecture
        }
        row = {"Model": MODEL_NAMES[architecture]}
        values = {}
        for name in ("80-20-0", "80-0-20"):
            values[name] = split[name].own_perplexity if name in split else {}
            row[name] = measured_perplexity(values[name].values())
            row[f"{name}, {PAPER}"] = printed[f"{architecture} 0.4 mask_split={name}", "perplexity"].printed
        seeds = sorted(values["80-20-0"].keys() & values["80-0-20"].keys())
        logs = [math.log(values["80-20-0"][seed] / values["80-0-20"][seed]) for seed in seeds]
        row["Difference (nats)"] = measured(logs, 3, sign=True)
        flat = any(o.on_plateau for name, o in split.items() if name in values)
        row["Verdict"] = _swap_verdict(logs, flat, architecture)
        rows.append(row)
    return Table(
        rows, "Perplexity over the kinds of the run's own split, and whether the paper's two figures are swapped"
    )


def _swap_verdict(logs: Sequence[float], flat: bool, architecture: str) -> str:
    doubt = "on the unigram plateau" if flat else ""
    found = Finding("80-20-0 against 80-0-20", "nats", 0, math.inf, tuple(logs), doubt)
    if found.verdict == SUPPORTED:
        return "80-20-0 is higher" + (": not as printed, as if swapped" if architecture == "cross" else ": as printed")
    if found.verdict == CONTRADICTED:
        return "80-0-20 is higher" + (": as printed" if architecture == "cross" else ": not as printed")
    reasons = found.reasons if found.values else ()
    return ": ".join([found.verdict, *(reason.removesuffix(": no interval") for reason in reasons[:1])])


_BASELINES = {"15%": "speedup_over_vanilla_15", "the same rate": "speedup_over_vanilla_same_rate"}
"""The vanilla model at which mask rate, and where a record has the speed-up in FLOPs over it."""


def _speedup(outcome: Result, baseline: str) -> list[float]:
    """In FLOPs, over one of `_BASELINES`; it is the same for all seeds. Empty: not run."""
    return [record.flops[_BASELINES[baseline]] for record in outcome.ended.values() if record.flops][:1]


def efficiency_table(outcomes: Sequence[Result], config: StudyConfig) -> Table:
    """Figure 5 in numbers: average score, and speed-ups in FLOPs over both baselines.

    Clocks of runs on a machine's different days are not compared: page 08 does it in turns.
    """
    named = _named(outcomes, "Figure 5")
    optima = {v.setting: v.value for v in printed_values() if v.artefact == "Figure 5"}
    rows = []
    for outcome in named:
        c = outcome.run.config
        row = {"Model": outcome.run.model, "Average": measured(averages(outcome.ablation).values())}
        for name in _BASELINES:
            row[f"Speed-up in FLOPs, {name}"] = measured(_speedup(outcome, name), 2)
        best = optima.get(c.architecture)
        row["Paper"] = "its best rate" if best is not None and math.isclose(best, 100 * c.mask_rate) else ""
        rows.append(row)
    return Table(
        rows,
        "Figure 5 in numbers: score against speed-up in FLOPs, over the vanilla model at 15% and at the same rate",
        commands=commands_of(named, config, "Figure 5"),
    )


def plot_efficiency(outcomes: Sequence[Result]) -> Figure:
    """Figure 5: average score against the speed-up in FLOPs, over both baselines."""
    found = [(outcome, list(averages(outcome.ablation).values())) for outcome in _named(outcomes, "Figure 5")]
    said = sorted({v.value for v in printed_values() if v.metric == "speedup_said"})
    with matplotlib.rc_context(RC):
        figure, axes = new_axes(2, 3.4)
        for axis, name in zip(axes, _BASELINES, strict=True):
            shown: list[float] = []
            for architecture in MODEL_NAMES:
                points: list[tuple[float, list[float]]] = []
                for outcome, values in found:
                    if outcome.run.config.architecture == architecture and values and (ups := _speedup(outcome, name)):
                        points.append((ups[0], values))
                        _label(axis, outcome, ups[0], mean_interval(values).mean)
                if points:
                    _draw_points(axis, points, architecture, MODEL_NAMES[architecture])
                    shown += [value for _, values in points for value in values]
            if not shown:
                _draw_points(axis, [], "vanilla")
            _at_least_ten(axis, shown)
            if name == "15%":
                for value in said:
                    axis.axvline(value, color=COLORS["reference"], linestyle="-.", linewidth=1)
            axis.margins(x=0.15)
            axis.set(xlabel="speed-up in FLOPs", title=f"over vanilla at {name}")
        axes[0].set_ylabel("average score")
        handles, labels = axes[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, fontsize=9, loc="outside lower center", ncols=len(labels))
    ends = [f"{o.run.model} {measured(values)} at {measured(_speedup(o, '15%'), 2)}" for o, values in found]
    grey = " and ".join(f"{value:g}" for value in said)
    return Figure(
        figure,
        "Average score against the speed-up of pre-training in FLOPs. Over the vanilla model at 15%: "
        f"{'; '.join(ends)}. Grey: the speed-ups of which the paper's text speaks ({grey}); its figure has no numbers.",
    )


_ABOVE, _BELOW, _LEFT, _RIGHT = (0, 10), (0, -10), (-14, 0), (14, 0)


def _label(axis: Any, outcome: Result, x: float, y: float, side: tuple[int, int] = _ABOVE) -> None:
    """The mask rate beside a point."""
    text = f"{outcome.run.config.mask_rate:.0%}"
    centred = {"ha": "center", "va": "center"}
    axis.annotate(text, (x, y), side, textcoords="offset points", fontsize=8, color=INK, **centred)


# -- 06: comparison -----------------------------------------------------------------------------------------------


def _parameters(outcome: Result) -> str:
    counts = {record.data["parameters"] for record in outcome.ended.values()}
    return f"{counts.pop() / 1e6:.2f} M" if len(counts) == 1 else NOT_RUN


def _task_cells(outcome: Result, task: Task) -> str:
    """All metrics of a task in Table 3, times 100; means over pre-training seeds."""
    found = [m for study in outcome.comparison.values() if (m := study.metrics(task))]
    return "/".join(measured([m[key] for m in found], scale=100) for key in task.metric_keys) if found else NOT_RUN


def comparison_of_studies(outcomes: Sequence[Result], config: StudyConfig) -> Table:
    """Table 3: our row of each model, and beneath it the paper's."""
    tasks = select_tasks(config)
    recipe = _recipe(config)
    printed = _printed("Table 3", recipe)
    named = _named(outcomes, "Table 3")
    rows = []
    for outcome in named:
        c = outcome.run.config
        equal = c.max_steps == study_steps(config)
        row = {"Model": outcome.run.model + ("" if equal else ", equal FLOPs"), "Parameters": _parameters(outcome)}
        row |= {"Updates": f"{c.max_steps:,}", "Speed-up, FLOPs": measured(_speedup(outcome, "15%"), 2)}
        row |= {task_heading(task): _task_cells(outcome, task) for task in tasks}
        values = averages(outcome.comparison)
        subset = " (subset)" if any(study.is_subset for study in outcome.comparison.values()) else ""
        rows.append({**row, "Average": measured(values.values()) + (subset if values else "")})
        rows += _paper_rows(outcome, printed, tasks, equal)
    title = "GLUE development sets" if tasks[0].name in GLUE_TASKS else "diagnostic tasks, which are not GLUE"
    caption = f"Table 3: {title}; medians over fine-tuning seeds, and the paper's rows ({recipe})"
    return Table(rows, caption, commands=commands_of(named, config, "Table 3", "max_steps"))


def _paper_rows(
    outcome: Result, printed: Mapping[tuple[str, str], PrintedValue], tasks: Sequence[Task], equal: bool
) -> list[dict[str, str]]:
    """The paper's row of the same model; of the longer recipe: with the same kind of budget."""
    c = outcome.run.config
    setting = f"{c.architecture} {c.mask_rate:g}"
    settings = dict.fromkeys(
        where for where, metric in printed if metric == "glue_average" and where.startswith(setting)
    )
    # the efficient recipe has one budget; the longer one prints 125K and, at equal FLOPs, others
    chosen = [where for where in settings if (where == setting or where.endswith(" 125")) == equal]
    rows = []
    for where in chosen:
        of = {metric: value for (place, metric), value in printed.items() if place == where}
        row = {"Model": f"{PAPER}: {of['glue_average'].model}"}
        updates = where.split()[2:]
        speed = of.get("speedup") or of.get("speedup_at_updates") or printed.get((setting, "speedup"))
        row["Updates"] = f"{updates[0]}K" if updates else ""
        row["Speed-up, FLOPs"] = speed.printed if speed else ""
        for task in tasks:
            cells = [of[f"{task.name}_{key}"].printed for key in task.metric_keys if f"{task.name}_{key}" in of]
            row[task_heading(task)] = "/".join(cells) if cells else MISSING
        same = {task.name for task in tasks} == set(GLUE_TASKS)
        rows.append({**row, "Average": of["glue_average"].printed if same else MISSING})
    return rows


def paper_comparison(recipe: str) -> Table:
    """All rows of one half of Table 3, as printed."""
    tasks = list(GLUE_TASKS.values())
    of: dict[str, dict[str, PrintedValue]] = {}
    for value in printed_values():
        if value.artefact == "Table 3" and value.recipe == recipe:
            of.setdefault(value.model, {})[value.metric] = value
    rows = []
    for model, found in of.items():
        if "glue_average" not in found:
            continue
        speed = found.get("speedup") or found.get("speedup_at_updates")
        row = {"Model": model, "Speed-up": speed.printed if speed else MISSING}
        for task in tasks:
            names = [f"{task.name}_{key}" for key in task.metric_keys]
            cells = [found[name].printed for name in names if name in found]
            row[task_heading(task)] = (
                "/".join(cells or [found[task.name].printed] if task.name in found else cells) or MISSING
            )
        rows.append({**row, "Average": found["glue_average"].printed})
    return Table(rows, f"Table 3 as printed, {recipe}", folded=True)


def difference_table(outcomes: Sequence[Result], config: StudyConfig) -> Table:
    """Each model of Table 3 against both vanilla models: average and loss."""
    named = _named(outcomes, "Table 3")
    rows = []
    for baseline in (o for o in named if o.run.config.architecture == "vanilla"):
        for outcome in named:
            if outcome is baseline:
                continue
            equal = outcome.run.config.max_steps == study_steps(config)
            rows.append(
                {
                    "Model": outcome.run.model,
                    "Budget": "equal updates" if equal else "equal FLOPs",
                    "Against": baseline.run.model,
                    "Average (points)": _difference(averages(outcome.comparison), averages(baseline.comparison)),
                    "Loss, all corrupted (nats)": _difference(
                        outcome.metric("eval_loss"), baseline.metric("eval_loss"), 3
                    ),
                }
            )
    return Table(rows, "Differences, paired by pre-training seed")


def learned_table(outcomes: Sequence[Result], config: StudyConfig, finetuning: Iterable[RunRecord]) -> Table:
    """Does pre-training help? Each task's score from every encoder of Table 3, and without pre-training.

    Without pre-training every fine-tuning seed has weights of its own, so fine-tuning seeds stand where pre-training
    seeds do. *Helps*: the 95% interval of the difference (Welch's t over seeds) is above zero.

    Args:
        outcomes: of the study.
        config: of the study.
        finetuning: records of stage `finetune`; those of `random:` encoders of this size are taken.
    """
    named = [o for o in _named(outcomes, "Table 3") if o.run.config.max_steps == study_steps(config)]
    random = _without_pretraining(named, finetuning)
    rows = []
    for task in select_tasks(config):
        base = [100 * record.metrics["score"] for record in best_of_seeds(random.get(task.name, ()))]
        row = {"Task": task.title, "Constant answer": NOT_RUN, "Without pre-training": measured(base)}
        helps = []
        for outcome in named:
            of = [d for d in outcome.comparison.values() if d.score(task) is not None]
            values = [100 * score for d in of if (score := d.score(task)) is not None]
            row[outcome.run.model] = measured(values)
            if of:
                constant = of[0].constant(task)
                row["Constant answer"] = MISSING if constant is None else f"{100 * constant:.1f}"
            gain = difference_interval(values, base)
            if gain.low is not None and gain.low > 0:
                helps.append(outcome.run.model)
        row["Pre-training helps"] = ", ".join(helps) or ("undecided" if base else NOT_RUN)
        rows.append(row)
    return Table(
        rows,
        "What pre-training brings, task by task: scores from each encoder, and without pre-training; each comparison "
        "at 95% for itself, not corrected for their number",
    )


def untrained_table(outcomes: Sequence[Result], finetuning: Iterable[RunRecord]) -> Table:
    """The runs without pre-training behind `learned_table`."""
    rows = [
        {
            "Run": record.run_id,
            "Task": record.data["task"],
            "Seed": f"{record.identity['seed']}",
            "Score": MISSING if record.failure else f"{100 * record.metrics['score']:.1f}",
        }
        for of in _without_pretraining(_named(outcomes, "Table 3"), finetuning).values()
        for record in of
    ]
    return Table(rows or [{"Run": NOT_RUN}], "Runs without pre-training", folded=True)


def _without_pretraining(outcomes: Iterable[Result], finetuning: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    """Task -> fine-tunings of encoders without their training, of these outcomes' size and fine-tuned as they were."""
    known = {
        _tuned_how(record)
        for outcome in outcomes
        for study in outcome.comparison.values()
        for of in study.records.values()
        for record in of
    }
    found: dict[str, list[RunRecord]] = {}
    for record in finetuning:
        if record.data["checkpoint"].startswith(RANDOM) and _tuned_how(record) in known:
            found.setdefault(record.data["task"], []).append(record)
    return found


def _tuned_how(record: RunRecord) -> tuple[Any, ...]:
    """Size of the encoder, task, point of the grid, and what else decides a fine-tuning."""
    point = [record.identity[name] for name in ("task", "learning_rate", "batch_size", "epochs")]
    return (record.data["encoder_parameters"], *point, *(record.parameters[name] for name in FINETUNE_MATCH))


# -- 06: scaling --------------------------------------------------------------------------------------------------


def _by_size(outcomes: Iterable[Result]) -> dict[tuple[int, int], list[Result]]:
    """(blocks, width) of the encoder -> its models, the smallest encoder first."""
    found: dict[tuple[int, int], list[Result]] = {}
    for outcome in _named(outcomes, "Scaling"):
        c = outcome.run.config
        found.setdefault((c.num_hidden_layers, c.hidden_size), []).append(outcome)
    return dict(sorted(found.items(), key=lambda item: item[0][0] * item[0][1] ** 2))


def scaling_table_of_studies(outcomes: Sequence[Result], config: StudyConfig) -> Table:
    """Table 3's models with encoders of several sizes on the same text: each against vanilla-40% of its size."""
    rows, named = [], []
    for (layers, width), models in _by_size(outcomes).items():
        key = ("vanilla", 0.4)
        vanilla = next((o for o in models if (o.run.config.architecture, o.run.config.mask_rate) == key), None)
        for outcome in models:
            row = {"Encoder": f"{layers} × {width}", "Model": outcome.run.model, "Parameters": _parameters(outcome)}
            row["Perplexity, masked"] = measured_perplexity(outcome.metric("eval_perplexity_masked").values())
            row["Average"] = measured(averages(outcome.comparison).values())
            if vanilla is not None and outcome is not vanilla:
                losses = outcome.metric("eval_loss"), vanilla.metric("eval_loss")
                scores = averages(outcome.comparison), averages(vanilla.comparison)
                row["Loss over all corrupted, against vanilla-40% (nats)"] = _difference(*losses, 3)
                row["Average against vanilla-40% (points)"] = _difference(*scores)
            else:
                row["Loss over all corrupted, against vanilla-40% (nats)"] = row[
                    "Average against vanilla-40% (points)"
                ] = MISSING
            rows.append(row)
            named.append(outcome)
    if not rows:
        return Table([{"Encoder": "one size: set study_sizes"}], "Scaling")
    commands = commands_of(named, config, "Scaling", "hidden_size")
    return Table(rows, "Scaling: the models of Table 3 at several sizes, same text and updates", commands=commands)


def plot_scaling_of_studies(outcomes: Sequence[Result]) -> Figure:
    """Masked perplexity and average score of each model against the size of the encoder."""
    by_size = _by_size(outcomes)
    lines: dict[tuple[str, float], list[Result]] = {}
    for models in by_size.values():
        for outcome in models:
            lines.setdefault((outcome.run.config.architecture, outcome.run.config.mask_rate), []).append(outcome)
    ends = []
    with matplotlib.rc_context(RC):
        figure, axes = new_axes(2, 3.4)
        for (architecture, rate), of in lines.items():
            look: dict[str, Any] = {"color": COLORS[architecture], "marker": MARKERS[architecture], "markersize": 5}
            look |= {"linestyle": STYLES[architecture], "alpha": 1 if rate == 0.4 else 0.6, "capsize": 3}
            look["label"] = f"{MODEL_NAMES[architecture]}-{rate:.0%}"
            for axis, (title, value_of) in zip(axes, _PANELS.items(), strict=True):
                interval = _interval_of(title)
                points = [
                    (next(iter(o.ended.values())).data["parameters"] / 1e6, interval(values))
                    for o in of
                    if (values := value_of(o))
                ]
                if points:
                    bars = [_bars(found) for _, found in points]
                    axis.errorbar(
                        [x for x, _ in points],
                        [found.mean for _, found in points],
                        yerr=[*zip(*bars, strict=True)],
                        **look,
                    )
            shown = [measured_perplexity(_PANELS[_PERPLEXITY](o)) for o in of]
            ends.append(f"{look['label']}: {', '.join(shown)}")
        for axis, title in zip(axes, _PANELS, strict=True):
            axis.set(xlabel="parameters in pre-training (M)", title=title)
            if not axis.containers:
                axis.annotate(NOT_RUN, (0.5, 0.5), xycoords="axes fraction", ha="center", color=INK)
        _at_least_ten(axes[1], [v for of in lines.values() for o in of for v in averages(o.comparison).values()])
        handles, labels = axes[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, fontsize=9, loc="outside lower center", ncols=3)
    sizes = ", ".join(f"{layers} × {width}" for layers, width in by_size) or NOT_RUN
    return Figure(
        figure,
        f"The models of Table 3 with encoders of several sizes ({sizes}, blocks × width) on the same text: validation "
        f"perplexity at masked positions, and average score. That perplexity from the smallest to the largest: "
        f"{'; '.join(ends) or NOT_RUN}.",
    )


_PERPLEXITY = "validation perplexity, masked"


def _interval_of(title: str) -> Callable[[Sequence[float]], Interval]:
    """How the values of a panel vary."""
    return ratio_interval if title == _PERPLEXITY else mean_interval


def _bars(found: Interval) -> tuple[float, float]:
    """Below and above the mean; nothing with one seed."""
    if found.low is None or found.high is None:
        return 0.0, 0.0
    return found.mean - found.low, found.high - found.mean


_PANELS: dict[str, Callable[[Result], list[float]]] = {
    _PERPLEXITY: lambda o: list(o.metric("eval_perplexity_masked").values()),
    "average score after fine-tuning": lambda o: list(averages(o.comparison).values()),
}


def budget_table(outcomes: Sequence[Result]) -> Table:
    """What pre-training took: tokens, FLOPs, hours, energy.

    Energy is codecarbon's where it was installed, else that of a GPU by its hours times `gpu_watts`, else not measured.
    """
    rows = []
    for outcome in _named(outcomes, "Table 3"):
        c = outcome.run.config
        row = {"Model": outcome.run.model, "Updates": f"{c.max_steps:,}"}
        row["Tokens"] = f"{c.max_steps * c.batch_size * c.sequence_length / 1e6:,.1f} M"
        records = list(outcome.ended.values())
        row["Training FLOPs"] = f"{records[0].flops['training']:.3g}" if records and records[0].flops else NOT_RUN
        hours = [record.timing["train_seconds"] / 3600 for record in records]
        row["Hours"] = measured(hours, 3)
        row["Energy (kWh)"], row["Energy by"] = _energy_cells(records, hours, c.gpu_watts)
        hardware = {f"{r.environment['hardware'].get('gpu') or r.environment['hardware']['cpu']}" for r in records}
        row["Hardware"] = ", ".join(sorted(hardware)) or NOT_RUN
        row["Threads"] = ", ".join(sorted({str(r.environment["hardware"]["threads"]) for r in records})) or NOT_RUN
        rows.append(row)
    return Table(rows, "Budget of pre-training, one seed")


def _energy_cells(records: Sequence[RunRecord], hours: Sequence[float], watts: float) -> tuple[str, str]:
    """Energy in kWh, and how it is known."""
    meant = [record.timing["energy_kwh"] for record in records if "energy_kwh" in record.timing]
    if meant and len(meant) == len(records):
        return measured(meant, 4), "codecarbon"
    if records and all("gpu" in record.environment["hardware"] for record in records):
        return measured((h * watts / 1000 for h in hours), 3), f"hours × {watts:g} W"
    return MISSING, "not measured: no codecarbon" if records else NOT_RUN


def plot_comparison(outcomes: Sequence[Result], config: StudyConfig) -> Figure:
    """The report's key figure: the models of Table 3, loss at masked positions and average score against speed-up."""
    named = [o for o in _named(outcomes, "Table 3") if o.run.config.max_steps == study_steps(config)]
    ends = []
    all_scores: list[float] = []
    with matplotlib.rc_context(RC):
        figure, axes = new_axes(2, 3.4)
        for outcome in named:
            c = outcome.run.config
            ups = _speedup(outcome, "15%")
            perplexity = list(outcome.metric("eval_perplexity_masked").values())
            scores = list(averages(outcome.comparison).values())
            look = {"color": COLORS[c.architecture], "marker": MARKERS[c.architecture], "linestyle": "none"}
            look["label"] = MODEL_NAMES[c.architecture]
            for axis, title, values in zip(axes, _PANELS, (perplexity, scores), strict=True):
                if ups and values:
                    found = _interval_of(title)(values)
                    bars = [[end] for end in _bars(found)] if found.high is not None else None
                    axis.errorbar(ups, [found.mean], yerr=bars, capsize=3, markersize=7, **look)
                    # the 3ML models lie close to each other
                    self_side = _LEFT if c.mask_rate < 0.5 else _RIGHT
                    side = {"vanilla": _RIGHT, "self": self_side, "cross": _BELOW}[c.architecture]
                    _label(axis, outcome, ups[0], found.mean, side)
            all_scores += scores
            text = f"perplexity at masked positions {measured_perplexity(perplexity)}, score {measured(scores)}"
            ends.append(f"{outcome.run.model}: speed-up {measured(ups, 2)}, {text}")
        for axis, title in zip(axes, _PANELS, strict=True):
            axis.margins(0.22)
            axis.set(xlabel="speed-up in FLOPs over vanilla at 15%", title=title)
            if not axis.containers and not axis.lines:
                axis.annotate(NOT_RUN, (0.5, 0.5), xycoords="axes fraction", ha="center", color=INK)
        _at_least_ten(axes[1], all_scores)
        handles, labels = axes[0].get_legend_handles_labels()
        one_each = dict(zip(labels, handles, strict=True))
        if one_each:
            figure.legend(one_each.values(), one_each, fontsize=9, loc="outside lower center", ncols=len(one_each))
    return Figure(
        figure,
        "The models of Table 3: validation perplexity at masked positions, and average score after fine-tuning, by "
        f"the speed-up of pre-training in FLOPs. {'; '.join(ends)}.",
    )


# -- runs and claims ----------------------------------------------------------------------------------------------


def study_runs_table(outcomes: Sequence[Result], config: StudyConfig) -> Table:
    """Every run behind a page, fine-tunings included, with its command; what is missing shows as not run."""
    rows = []
    for outcome in outcomes:
        for seed in outcome.run.seeds:
            record = outcome.pretraining.get(seed)
            row = {"Model": outcome.run.model, "For": ", ".join(outcome.run.exhibits), "Seed": f"{seed}"}
            row["Pre-training"] = NOT_RUN if record is None else record.run_id
            row["Outcome"] = NOT_RUN if record is None else f"failed: {record.failure}" if record.failure else "done"
            studies = [by_seed[seed] for by_seed in (outcome.comparison, outcome.ablation) if seed in by_seed]
            names = dict.fromkeys(r.run_id for study in studies for found in study.records.values() for r in found)
            wanted = outcome.run.finetunings(config)
            row["Fine-tuning"] = ", ".join(names) or (NOT_RUN if wanted else MISSING)
            only_ablation = "all" not in wanted
            command = finetune_command(outcome.run, config, seed, only_ablation) if wanted else ""
            row["Repeat"] = command or pretrain_command(outcome.run, seed)
            rows.append(row)
    there = sum(row["Pre-training"] != NOT_RUN for row in rows)
    return Table(rows, f"Runs behind this page: {there} of {len(rows)} pre-trainings are there", folded=True)


def claim_table(found: Sequence[Claim]) -> Table:
    """The paper's claims, each with its verdict."""
    rows = [
        {
            "Claim": claim.name,
            "The paper says": claim.text,
            "Where": claim.where,
            "Here": "; ".join(_finding(finding) for finding in claim.findings if finding.values) or NOT_RUN,
            "Verdict": claim.verdict,
            "Corrected": corrected,
            "Why not": claim.reasons,
        }
        for claim, corrected in zip(found, corrected_verdicts(found), strict=True)
    ]
    return Table(rows, f"What this study says of the paper's claims. {family_statement(found)}")


def finding_table(found: Sequence[Claim], names: Sequence[str] | None = None) -> Table:
    """Every comparison behind the verdicts, also with the spread over seeds pooled over the models of the study."""
    judged = any(finding.pooled for claim in found for finding in claim.findings)
    rows = [
        {
            "Claim": claim.name,
            "Comparison": finding.what,
            "Measured": _finding(finding),
            "The claim says": f"{finding.range} {finding.unit}".strip(),
            "Shows from": _detectable(finding),
            _POOLED[judged]: _pooled(finding),
            "Verdict": finding.verdict,
            "Why not": "" if finding.verdict == NOT_RUN else "; ".join(finding.reasons),
        }
        for claim in found
        for finding in claim.findings
        if names is None or claim.name in names
    ]
    return Table(rows, "The comparisons behind the verdicts")


_POOLED = {False: "Pooled (exploratory)", True: "Pooled"}
"""Head of the column with pooled intervals; they judge only where the study's parameters say so beforehand."""


def _pooled(finding: Finding) -> str:
    """Half the interval that follows from the spread of all models together, and its degrees of freedom."""
    found = finding.by_pool
    if found is None or found.high is None or finding.spread is None:
        return MISSING
    digits = {"points": 1, "nats": 3}.get(finding.unit, 2)
    return f"± {found.high - found.mean:.{digits}f} ({finding.spread.freedom} degrees of freedom)"


def _detectable(finding: Finding) -> str:
    """The smallest true difference that these seeds show four times in five."""
    if finding.detectable is None:
        return MISSING
    digits = {"points": 1, "nats": 3}.get(finding.unit, 2)
    return f"{finding.detectable:.{digits}f} {finding.unit}".strip()


def _finding(finding: Finding) -> str:
    """What a comparison measured, with its unit, which ratios do not have."""
    found = finding.interval
    if found is None:
        return MISSING if finding.doubt else NOT_RUN
    digits = {"points": 1, "nats": 3}.get(finding.unit, 2)
    text = f"{found.mean:{'+' if finding.unit else ''}.{digits}f}"
    half = "" if found.high is None else f" ± {found.high - found.mean:.{digits}f}"
    return f"{text}{half} {finding.unit}".strip()
