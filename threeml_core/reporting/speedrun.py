"""The speedrun: what each rung gains in time to one masked perplexity, and how its learning rate was chosen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import matplotlib.ticker
import numpy as np

from threeml_core.config import StudyConfig
from threeml_core.foundation.files import fingerprint
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.parameters.masking import rate_label
from threeml_core.reporting.performance import clock_said
from threeml_core.reporting.style import GREY, Figure, drawing, look_of
from threeml_core.reporting.table import MISSING, NOT_RUN, Table
from threeml_core.runs.record import read_metrics
from threeml_core.statistics.intervals import Interval, ratio_interval
from threeml_core.study.results import Result
from threeml_core.study.rungs import (
    TUNED,
    Climbed,
    best_of,
    clock_record,
    end_of,
    gain,
    recipe_of,
    steps_to,
    timed,
    timed_as,
    turns_of,
)


def ladder_table(found: Sequence[Climbed]) -> Table:
    """Steps and core-seconds of each rung, and how many times less that is than the rung before and than the first."""
    rows = []
    for below, of in zip([None, *found], found, strict=False):
        row = {"Switched on": of.rung.name, "Steps": _steps(of)}
        row["ms per step"] = MISSING if of.seconds is None else f"{1000 * of.seconds:.1f}"
        known = [time for time in of.times.values() if math.isfinite(time)]
        whole = bool(known) and len(known) == len(of.times)
        row["Core-seconds"] = f"{ratio_interval(known).mean:.1f}" if whole else MISSING
        row["Times less than the rung before"] = _times(below, of)
        rows.append({**row, "Times less than the first": _times(found[0] if below else None, of)})
    target, seeds = found[0].target, max(len(of.ends) for of in found)
    return Table(
        rows,
        f"Time to a masked perplexity of {target:g} on held-out text, each rung with all those above it in the table; "
        f"mean over {seeds} seed{'s' * (seeds != 1)} with its 95% interval",
    )


def _steps(of: Climbed) -> str:
    if not of.steps:
        return NOT_RUN
    if missing := [seed for seed, steps in of.steps.items() if math.isinf(steps)]:
        most = max(max(ends) for ends in of.ends.values())
        return f"not within {most:,} (seed {', '.join(map(str, missing))})"
    return "at most " * of.is_bound + _text(ratio_interval(list(of.steps.values())), 0)


def _times(slower: Climbed | None, faster: Climbed) -> str:
    found = None if slower is None else gain(slower, faster)
    return MISSING if found is None else "at least " * faster.is_bound + _text(found, 2)


def _text(found: Interval, digits: int) -> str:
    text = f"{found.mean:,.{digits}f}"
    if found.low is None or found.high is None:
        return text
    return f"{text} ({found.low:,.{digits}f} to {found.high:,.{digits}f})"


def answer(found: Sequence[Climbed]) -> list[str]:
    """The whole ladder in a few sentences: its fastest rung and its end against the first, what did not pay."""
    first, last = found[0], found[-1]
    if not first.ends:
        return ["Nothing has been run yet."]
    if math.inf in first.steps.values():
        return [f"The first rung has not reached a masked perplexity of {first.target:g}: no gain can be given."]
    if first.seconds is None:
        return ["The clock has not been measured: no gain can be given."]
    over_first = {of.rung.name: value for of in found[1:] if (value := gain(first, of))}
    said = []
    if over_first:
        best = max(over_first, key=lambda name: over_first[name].mean)
        less = f"{_text(over_first[best], 1)} times less time to a masked perplexity of {first.target:g}"
        said.append(f"The fastest is the rung “{best}”: {less} than the first, “{first.rung.name}”.")
    end = over_first.get(last.rung.name)
    if end:
        said.append(f"The last rung, “{last.rung.name}”, takes {_text(end, 1)} times less time than the first.")
    else:
        said.append(f"The last rung, “{last.rung.name}”, did not get there with all seeds.")
    lost: list[str] = []
    undecided: list[str] = []
    for below, of in zip(found, found[1:], strict=False):
        own = gain(below, of)
        if own is None or own.low is None or own.high is None or own.low > 1:
            continue
        (lost if own.high < 1 else undecided).append(f"“{of.rung.name}” {_text(own, 2)}")
    if lost:
        said.append(f"Costs more than it gains at this size (time of the rung before over its own): {'; '.join(lost)}.")
    if undecided:
        said.append(f"Undecided: {'; '.join(undecided)}.")
    return said


def target_table(found: Sequence[Climbed], targets: Sequence[float]) -> Table:
    """Core-seconds of each rung to other targets, from the same runs, which were made for one: how far it matters."""
    rows = []
    for of in found:
        row = {"Switched on": of.rung.name}
        for target in targets:
            at = dataclasses.replace(of, target=target)
            reached = at.times and max(at.times.values()) < math.inf
            mean = f"{ratio_interval(list(at.times.values())).mean:.1f}" if reached else MISSING
            row[f"Perplexity {target:g}"] = "at most " * (at.is_bound and bool(reached)) + mean
        rows.append(row)
    return Table(rows, "Core-seconds to other masked perplexities, mean over seeds, as far as the same runs tell")


def plot_ladder(found: Sequence[Climbed]) -> Figure:
    """Left: core-seconds of each rung, one dot per seed. Right: perplexity at each budget's end against its time."""
    names = [of.rung.name for of in found]
    colours = [look_of(_architecture(of))["color"] if of.rung.ours else GREY for of in found]
    with drawing(2, height=0.8 + 0.36 * len(found)) as (figure, (left, right)):
        for place, (of, colour) in enumerate(zip(found, colours, strict=True)):
            times = [time for time in of.times.values() if math.isfinite(time)]
            left.scatter(times, [-place] * len(times), s=18, alpha=0.6, color=colour)
            if times:
                left.scatter(ratio_interval(times).mean, -place, marker="|", s=160, color=colour)
            shade = 0.35 + 0.65 * place / max(1, len(found) - 1)
            for ends in of.ends.values():
                some = [(steps * (of.seconds or math.nan), end) for steps, end in ends.items() if math.isfinite(end)]
                right.plot(*zip(*some, strict=True), color=colour, alpha=shade, linewidth=1, marker=".", markersize=4)
        left.set_yticks([-place for place in range(len(names))], names, fontsize=9)
        left.set(xscale="log", xlabel="core-seconds to the target")
        right.axhline(found[0].target, color=GREY, linestyle="-.")
        right.set(xscale="log", yscale="log", xlabel="core-seconds of a run", ylabel="masked perplexity at its end")
        right.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5))
        right.minorticks_off()
        for axis in (left.xaxis, right.xaxis, right.yaxis):
            axis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
        left.grid(axis="y", visible=False)
    means = {of.rung.name: ratio_interval(list(of.times.values())).mean for of in found if _reached(of)}
    said = "; ".join(f"{name}: {mean:.0f}" for name, mean in means.items())
    return Figure(
        figure,
        f"Left: core-seconds to a masked perplexity of {found[0].target:g}, one dot per seed: {said or NOT_RUN}. "
        "Right: the runs of each rung and seed, from few steps to as many as it needs; grey Hugging Face's, later "
        "rungs darker; the line is the target.",
    )


def _reached(of: Climbed) -> bool:
    return bool(of.times) and all(map(math.isfinite, of.times.values()))


def _architecture(of: Climbed) -> str:
    return str(of.rung.changes.get("architecture")) if not of.results else of.results[0].run.config.architecture


def sweep_table(swept: Sequence[Result], config: StudyConfig) -> Table:
    """Each recipe at each rate: perplexity, the best rate, and the time to the target on the curve of its run."""
    clock, chosen = clock_record(config, timed(config)), best_of(swept)
    seconds = {key: float(np.median(turns)) for key, turns in turns_of(clock).items()} if clock else {}
    groups: dict[tuple[str, int], list[Result]] = {}
    for result in swept:
        groups.setdefault((fingerprint(recipe_of(result.run.config)), result.run.config.max_steps), []).append(result)
    rows = []
    for (recipe, budget), results in groups.items():
        c, best = results[0].run.config, chosen.get(recipe)
        rate = TUNED[c.optimizer]
        ends = [(o, end) for o in results for end in map(end_of, o.pretraining.values())]
        place = "" if c.encoder != "roberta" else f", {c.layer_norm}-LN, {c.initialization} initialisation"
        row = {"Encoder": c.encoder + place, "Optimizer": c.optimizer}
        row["Model"] = f"{ARCHITECTURES[c.architecture].label}-{rate_label(c.parameters())}"
        row["Steps"] = f"{budget:,}"
        row["Perplexity by rate"] = ", ".join(f"{getattr(o.run.config, rate):g}: {end:.1f}" for o, end in ends)
        own = best if best in results else None
        row["Best rate"] = f"{getattr(own.run.config, rate):g}" if own else MISSING
        second, steps = seconds.get(timed_as(c)[0], math.nan), _crossing(own, config) if own else {}
        row["ms per step"] = MISSING if math.isnan(second) else f"{1000 * second:.1f}"
        reached = steps_to(config.speedrun_target or 0, steps)
        at_most = "at most " * (bool(steps) and reached == min(steps))
        row["Passes the target at"] = f"{at_most}{reached:,.0f}" if math.isfinite(reached) else MISSING
        time = reached * second
        rows.append({**row, "Core-seconds": f"{at_most}{time:.1f}" if math.isfinite(time) else MISSING})
    return Table(
        rows,
        f"Tuned alike: every recipe at {len(config.listed('sweep_learning_rates'))} rates of its optimizer, one seed; "
        f"perplexity at [MASK]s at the end, and where the curve of the best run passes {config.speedrun_target:g}. "
        "What did not get there is tuned again with the most steps",
    )


def _crossing(result: Result, config: StudyConfig) -> dict[int, float]:
    """Steps -> masked perplexity on the validation curve of a run, which was not made to be anywhere early."""
    record = next(iter(result.pretraining.values()))
    lines, key = read_metrics(record.folder(config.runs_dir) / "metrics.jsonl"), "eval_perplexity_masked"
    return {line["step"]: line[key] for line in lines if key in line}


def clock_statement(config: StudyConfig) -> str:
    """When and where the clock was measured, and how noisy it was."""
    return clock_said(clock_record(config, timed(config)), "the second rung")
