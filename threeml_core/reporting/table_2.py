"""Tables 2a, 2b, 2c: depth and width of the decoder and the masking strategy, beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from threeml_core.config import StudyConfig
from threeml_core.glue.tasks import ABLATION_TASKS, GLUE_TASKS, select_tasks
from threeml_core.paper import reported_in
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.reporting import cells
from threeml_core.reporting.commands import commands_of
from threeml_core.reporting.table import Table, beside
from threeml_core.statistics.verdicts import Finding
from threeml_core.study.experiment import Experiment, ablation_config
from threeml_core.study.ledger import EXPERIMENTS, chosen_experiments
from threeml_core.study.results import Result

_SWAPPED = ("80-20-0", "80-0-20")
_OWN, _MASKED = "own_perplexity", "eval_perplexity_masked"


def table_2(experiment: Experiment | str, results: Sequence[Result], config: StudyConfig) -> Table:
    """A row for each value and model, with the paper's where it has that value.

    `experiment` may be an ablation of your own that varies one parameter. Of Table 2c's two perplexities one is of the
    corruption that all are validated on, the other over the kinds as in the run's own split, as the paper's must be.
    """
    (experiment,) = chosen_experiments([experiment])
    name, (key,) = experiment.name, experiment.vary
    title, reported = experiment.heading or key, reported_in(name)
    tasks = select_tasks(ablation_config(config))
    rows, shown = [], cells.shown_in(name, results)
    defaults = {o.run.config.architecture: o for o in shown if getattr(o.run.config, key) == getattr(config, key)}
    for result in shown:
        c, default = result.run.config, defaults.get(result.run.config.architecture)
        row = {"Model": result.run.model, title: f"{getattr(c, key)}", **cells.ablation(result, tasks)}
        row |= {heading: cells.perplexity(result, metric) for heading, metric in experiment.columns.items()}
        setting = f"{c.architecture} {c.mask_rate:g} {key}={getattr(c, key)}"
        said = cells.reported_ablation(setting, reported, tasks)
        if value := reported.get((setting, "perplexity")):
            said["Perplexity, own split"] = value.reported
        row = {heading: beside(text, said.get(heading)) for heading, text in row.items()}
        if result is default:
            row["Against the default"] = "default"
        elif default is not None:
            row["Against the default"] = cells.average_difference(result.ablation, default.ablation)
        rows.append({**row, "Parameters": cells.parameters(result)})
    commands = commands_of(shown, config, name, key)
    whose = "; the paper's values are of its large models" if reported else ""
    return Table(rows, f"{name}: {experiment.title}{whose}", commands=commands)


def table_2_reported(name: str) -> Table:
    """All that the paper reports in `Table 2a`, `Table 2b` or `Table 2c`."""
    rows, experiment, reported = [], EXPERIMENTS[name], reported_in(name)
    tasks = [GLUE_TASKS[task] for task in ABLATION_TASKS]
    for setting in dict.fromkeys(where for where, _ in reported):
        architecture, rate, change = setting.split()
        row = {"Model": f"{ARCHITECTURES[architecture].label}-{float(rate):.0%}"}
        row[experiment.heading] = change.partition("=")[2]
        row |= cells.reported_ablation(setting, reported, tasks)
        if value := reported.get((setting, "perplexity")):
            row |= {"Perplexity, own split": value.reported, "Note": value.note}
        rows.append(row)
    return Table(rows, f"{name}: {experiment.title}, as reported", folded=True)


def swap_table(results: Sequence[Result], masked: bool = False) -> Table:
    """Which of 80-20-0 and 80-0-20 has the higher perplexity? The paper's order for 3ML_self is not 3ML_cross's.

    Perplexity is over the kinds of corrupted tokens of a run's own split, or, with `masked`, at [MASK]s alone, of which
    the paper has none.
    """
    rows, reported = [], reported_in("Table 2c")
    for architecture in ("self", "cross"):
        shown = (o for o in cells.shown_in("Table 2c", results) if o.run.config.architecture == architecture)
        found = {split: o for o in shown if (split := o.run.config.mask_split) in _SWAPPED}
        row, own, said = {"Model": ARCHITECTURES[architecture].label}, {}, {}
        for split in _SWAPPED:
            own[split] = found[split].metric(_MASKED if masked else _OWN) if split in found else {}
            said[split] = reported[f"{architecture} 0.4 mask_split={split}", "perplexity"]
            printed = None if masked else said[split].reported
            row[split] = beside(cells.measured_perplexity(own[split].values()), printed)
        first, second = ({seed: math.log(value) for seed, value in own[split].items()} for split in _SWAPPED)
        values = tuple(first[seed] - second[seed] for seed in sorted(first.keys() & second.keys()))
        is_first = said[_SWAPPED[0]].value > said[_SWAPPED[1]].value
        doubt = "on the unigram plateau" if any(o.on_plateau for o in found.values()) else ""
        low, high = (0, math.inf) if is_first else (-math.inf, 0)
        finding = Finding(" against ".join(_SWAPPED), "nats", low, high, values, doubt)
        row["Difference (nats)"] = cells.measured(values, 3, sign=True)
        row |= {"The paper's order": f"{_SWAPPED[not is_first]} is higher", "Verdict": finding.verdict}
        rows.append({**row, "Why not": "; ".join(finding.reasons) if values else ""})
    if masked:
        return Table(rows, "The same at [MASK]s alone, of which the paper prints nothing: its order there is judged")
    judged = "its order is judged as its claims are, and contradicted it is as if they were"
    question = "Perplexity over the kinds of the run's own split, and whether the paper's two figures are swapped"
    return Table(rows, f"{question}: {judged}")
