"""The rivals: quality at equal FLOPs, what a step costs, and how each was tuned."""

from __future__ import annotations

import collections
import math
from typing import Any

import matplotlib.ticker
import numpy as np

from threeml_core.config import StudyConfig
from threeml_core.reporting import cells
from threeml_core.reporting.performance import clock_said
from threeml_core.reporting.style import GREY, Figure, drawing, hover, legend_below, look_of
from threeml_core.reporting.table import MISSING, NOT_RUN, Table
from threeml_core.statistics.intervals import mean_interval
from threeml_core.statistics.verdicts import (
    CONTRADICTED,
    SUPPORTED,
    UNDECIDED,
    Finding,
    corrected_verdicts,
    family_statement,
)
from threeml_core.study.probes import DECIDING, RANDOM
from threeml_core.study.rivals import (
    LOSSES,
    RIVALS,
    Race,
    Raced,
    best_rate,
    budgets,
    mean_loss,
    share_of_flops,
    step_flops,
    timed,
)
from threeml_core.study.rungs import TUNED, clock_record

_SAID = {SUPPORTED: "better", CONTRADICTED: "worse", UNDECIDED: "undecided"}


def answer(race: Race) -> list[str]:
    """Who is better or worse than the baseline at the largest budget, by the rule of the design; a sentence each."""
    if not any(result.pretraining for of in race.raced for result in (*of.swept, *of.results)):
        return ["Nothing has been run yet."]
    judged, said = _judged(race), []
    for name in dict.fromkeys(name for _, name in judged):
        parts: list[str] = []
        for word in (*_SAID.values(), NOT_RUN):
            if found := [rival for (rival, what), (verdict, _) in judged.items() if what == name and verdict == word]:
                rest = word == "undecided" and parts and len(found) > 3
                who = f"the other {len(found)}" if rest else cells.joined(found)
                parts.append(f"{who} {'is' if len(found) == 1 else 'are'} {word}")
        said.append(f"By {name}, at equal FLOPs and against {race.raced[0].rival.name}: {'; '.join(parts)}.")
    certain = [
        f"{rival} ({what}: {word})" for (rival, what), (_, word) in judged.items() if word in ("better", "worse")
    ]
    said.append(f"Corrected for all comparisons together: {'; '.join(certain) or 'none is decided'}.")
    return said


def _judged(race: Race) -> dict[tuple[str, str], tuple[str, str]]:
    """(rival, what is compared) -> verdict, and the corrected one, in words."""
    claims = race.claims
    corrected = corrected_verdicts(list(claims.values()))
    pairs = zip(claims.items(), corrected, strict=True)
    return {key: (_SAID.get(claim.verdict, NOT_RUN), _SAID.get(of, NOT_RUN)) for (key, claim), of in pairs}


def comparison_table(race: Race) -> Table:
    """Each rival at the largest budget, and minus the baseline with its verdicts."""
    judged, rows = _judged(race), []
    for of in race.raced:
        row = {"Rival": of.rival.name, "Probes, %": cells.measured(_scores(race, of.rival.name))}
        for rate in LOSSES:
            row[f"Loss at {float(rate):.0%}, nats"] = cells.measured(of.loss(-1, rate).values(), 3)
        if of is not race.raced[0]:
            for name, finding in race.findings(of, race.raced[0]).items():
                word, certain = judged[of.rival.name, name]
                verdict = f"{word}, also corrected" if word == certain in ("better", "worse") else word
                row[f"{name.capitalize()}, minus the baseline"] = f"{_difference(finding)}: {verdict}"
        rows.append({**row, "Seeds": _seeds(of)})
    if floor := _scores(race, RANDOM):
        rows.append({"Rival": RANDOM, "Probes, %": cells.measured(floor), "Seeds": f"{len(floor)}"})
    return Table(
        rows,
        f"The largest budget, the FLOPs of {race.raced[0].rival.name} for all; mean over seeds with its 95% interval. "
        f"Probes: mean accuracy of {', '.join(DECIDING)}. Loss: at [MASK]s of common corruptions. "
        f"{family_statement(list(race.claims.values()))}",
    )


def _seeds(of: Raced) -> str:
    """How many there are, and of how many if not all ended."""
    if not of.results:
        return NOT_RUN
    ended, planned = len(of.results[-1].ended), len(of.results[-1].run.seeds)
    return f"{ended}" if ended == planned else f"{ended} of {planned}"


def contrast_table(race: Race) -> Table:
    """Each rival minus others that it may be set against: the vanilla model at its own mask rate, and 3ML."""
    rows, ours = [], race.of("3ML_self-40%")
    for of in race.raced[1:]:
        same = _vanilla_alike(race, of)
        row = {"Rival": of.rival.name, "Vanilla alike": same.rival.name if same else MISSING}
        for words, other in (("it", same), ("3ML_self-40%", ours)):
            found = race.findings(of, other) if other and other is not of else {}
            row |= {f"{name.capitalize()}, minus {words}": _difference(finding) for name, finding in found.items()}
        rows.append(row)
    return Table(
        rows, "Shown, not judged: minus the vanilla model that masks alike, and minus 3ML_self-40%; paired by seed"
    )


def _vanilla_alike(race: Race, of: Raced) -> Raced | None:
    """The vanilla model with a rival's rate and schedule, if it takes part and is not the rival itself."""

    def rate(raced: Raced) -> tuple[float, str]:
        config = raced.swept[0].run.config
        return config.mask_rate, config.mask_rate_schedule

    alike = [raced for raced in race.raced if raced.rival.name.startswith("vanilla") and rate(raced) == rate(of)]
    return alike[0] if alike and alike[0] is not of else None


def _scores(race: Race, name: str) -> list[float]:
    """Mean accuracy of the deciding probes, %, a value a seed; empty: not probed, or not all was asked."""
    found = race.probes
    if found is None or name not in found.models or not set(DECIDING) <= set(found.tasks):
        return []
    return [100 * found.mean(name, seed, DECIDING) for seed in found.models[name]]


def _difference(finding: Finding) -> str:
    found, digits = finding.interval, 1 if finding.unit == "points" else 3
    if found is None:
        return NOT_RUN
    half = "" if found.high is None else f" ± {found.high - found.mean:.{digits}f}"
    return f"{found.mean:+.{digits}f}{half}"


def cost_table(race: Race, config: StudyConfig) -> Table:
    """What a step costs: FLOPs, time in turns, memory; and the steps that a budget's FLOPs are enough for."""
    rows, base = [], race.raced[0]
    for of in race.raced:
        row = {"Rival": of.rival.name, "Proposed by": of.rival.source}
        row["FLOPs of a step"] = f"{100 * of.share:.1f}%"
        row["Steps"] = ", ".join(f"{result.run.config.max_steps:,}" for result in of.results) or NOT_RUN
        own, of_base = (step_flops(config, raced.rival, optimizer=True) for raced in (of, base))
        row["Of a budget, with the optimizer"] = f"{100 * own / of.share / of_base:.1f}%"
        row["ms per step"] = MISSING if of.turns is None else f"{1000 * float(np.median(of.turns)):.1f}"
        row["Time of a step"] = MISSING
        if of.turns is not None and base.turns is not None:
            row["Time of a step"] = f"{100 * float(np.median(of.turns / base.turns)):.0f}%"
        row["Peak memory, MiB"] = MISSING if of.memory is None else f"{of.memory / 2**20:.0f}"
        rows.append(row)
    return Table(
        rows,
        f"What a step costs; percent of {base.rival.name}'s. Budgets are equal without the optimizer's FLOPs, which "
        "favours cheap steps. Time in turns, on a CPU core-seconds of one thread; a schedule at its mean rate",
    )


def curve_table(race: Race, config: StudyConfig, rate: str) -> Table:
    """Masked loss at every budget."""
    rows = []
    for of in race.raced:
        columns = {
            f"{budget:,} steps": cells.measured(of.loss(i, rate).values(), 3) if of.results else NOT_RUN
            for i, budget in enumerate(budgets(config))
        }
        rows.append({"Rival": of.rival.name, **columns})
    if float(rate) == config.eval_mask_rate and (unigram := _unigram_loss(race)) is not None:
        rows.append({"Rival": "unigram"} | {f"{budget:,} steps": f"{unigram:.3f}" for budget in budgets(config)})
    return Table(
        rows,
        f"Masked loss at {float(rate):.0%}, nats, with the FLOPs of so many steps of {race.raced[0].rival.name}; mean "
        "over seeds with its 95% interval",
    )


def _unigram_loss(race: Race) -> float | None:
    """Masked loss of the unigram on the corruption that runs are validated on, nats; None: nothing was run."""
    known = [of for raced in race.raced for result in raced.swept for of in result.metric(_UNIGRAM).values()]
    return math.log(known[0]) if known else None


_UNIGRAM = "unigram_perplexity_masked"


def tuning_table(race: Race) -> Table:
    """Each rival at each rate, and the best, marked where it is the smallest or the largest that was tried."""
    rows = []
    for of in race.raced:
        name = TUNED[of.swept[0].run.config.optimizer]
        rates = [getattr(result.run.config, name) for result in of.swept]
        ends = [
            f"{rate:g}: {'diverged' if record.failure else f'{mean_loss(of.losses, record):.3f}'}"
            for rate, result in zip(rates, of.swept, strict=True)
            for record in result.pretraining.values()
        ]
        best = best_rate(of.swept, of.losses)
        edge = " (edge)" if best in (min(rates), max(rates)) else ""
        row = {"Rival": of.rival.name, "Steps": f"{of.swept[0].run.config.max_steps:,}"}
        row["Masked loss by rate"] = ", ".join(ends) or NOT_RUN
        rows.append({**row, "Best rate": MISSING if best is None else f"{best:g}{edge}"})
    return Table(
        rows,
        "Tuned alike: as many learning rates for each, one seed, none of the comparison's; masked loss in nats, "
        f"the mean of those at {' and '.join(f'{float(rate):.0%}' for rate in LOSSES)}",
    )


def plot_curves(race: Race, config: StudyConfig) -> Figure:
    """Masked loss against FLOPs, and against core-seconds by the clock in turns; a row for each common corruption."""
    looks, said = _looks(race), []
    with drawing(2 * len(LOSSES), height=3.2, per_row=2) as (figure, axes):
        for row, rate in enumerate(LOSSES):
            by_flops, by_time = axes[2 * row : 2 * row + 2]
            for of in race.raced:
                losses = [of.loss(i, rate) for i in range(len(of.results))]
                known = [(result, values) for result, values in zip(of.results, losses, strict=True) if values]
                if not known:
                    continue
                means = [math.fsum(values.values()) / len(values) for _, values in known]
                look = {**looks[of.rival.name], "label": of.rival.name, "linewidth": 1.2, "markersize": 4}
                spent = [next(iter(result.ended.values())).flops["training"] for result, _ in known]
                by_flops.plot(spent, means, **look)
                if of.turns is not None:
                    second = float(np.median(of.turns))
                    by_time.plot([second * result.run.config.max_steps for result, _ in known], means, **look)
                said.append(f"{of.rival.name} at {float(rate):.0%}: {means[0]:.2f} to {means[-1]:.2f}")
            if float(rate) == config.eval_mask_rate and (unigram := _unigram_loss(race)) is not None:
                for axis in (by_flops, by_time):
                    axis.axhline(unigram, color=GREY, linestyle=":")
            by_flops.set(xscale="log", xlabel="training FLOPs", ylabel=f"masked loss at {float(rate):.0%}, nats")
            by_time.set(xscale="log", xlabel="core-seconds, by the clock in turns")
            for axis in (by_flops, by_time):
                axis.xaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
                axis.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(_tick))
                axis.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        legend_below(axes[:1], 3)
    caption = (
        "Masked loss on held-out text, with the same corruption for all, against training FLOPs and against time; mean "
        "over seeds; dotted the unigram's."
    )
    ends = f"From the smallest to the largest budget: {'; '.join(said) or NOT_RUN}."
    return Figure(figure, f"{caption} {ends}", f"{caption} The tables below have the numbers.")


def _tick(value: float, _: int) -> str:
    return f"{value:.0e}".replace("+", "") if value >= 1e5 else f"{value:g}"


def plot_scores(race: Race, config: StudyConfig) -> Figure:
    """Figure 5's idea with everybody in it: what the encoder knows against the FLOPs of a step."""
    looks, said = _looks(race), []
    fifteen = share_of_flops(config, RIVALS[1])
    with drawing(1, height=4) as (figure, axes):
        axis = axes[0]
        for of in race.raced:
            if not (values := _scores(race, of.rival.name)):
                continue
            interval, speedup = mean_interval(values), fifteen / of.share
            look = {**looks[of.rival.name], "linestyle": "none", "label": of.rival.name, "markersize": 7}
            half = 0 if interval.high is None else interval.high - interval.mean
            drawn = axis.errorbar(speedup, interval.mean, yerr=half, elinewidth=0.8, **look)
            hover(drawn[0], [f"{of.rival.name}: {speedup:.2f} times, {cells.measured(values)}%"])
            said.append(f"{of.rival.name}: {speedup:.2f} times, {interval.mean:.1f}%")
        if floor := _scores(race, RANDOM):
            axis.axhline(math.fsum(floor) / len(floor), color=GREY, linestyle=":", label=RANDOM)
        axis.set(xlabel="speed-up of a step in FLOPs over vanilla at 15%", ylabel="probes, mean accuracy, %")
        legend_below([axis], 3)
    return Figure(
        figure,
        "Mean accuracy of probes on frozen encoders of equal training FLOPs against the speed-up of a step, with 95% "
        f"intervals over seeds: {'; '.join(said) or NOT_RUN}.",
    )


def _looks(race: Race) -> dict[str, dict[str, Any]]:
    """A colour for each method, another line and mark for each of its rates."""
    looks: dict[str, dict[str, Any]] = {}
    counts: collections.Counter[str] = collections.Counter()
    for of in race.raced:
        look = look_of(of.swept[0].run.config.architecture)
        colour = of.rival.colour or look["color"]
        number = counts[colour] % len(_STYLES)
        looks[of.rival.name] = {"color": colour, "linestyle": _STYLES[number], "marker": _MARKS[number]}
        counts[colour] += 1
    return looks


_STYLES, _MARKS = ("-", "--", ":", "-."), ("o", "s", "^", "D")


def clock_statement(race: Race, config: StudyConfig) -> str:
    """When and where the clock was measured, and how noisy it was."""
    return clock_said(clock_record(config, timed(config, [of.rival for of in race.raced])), "the baseline")


def exams_table(race: Race) -> Table:
    """The records of losses and probes behind the page."""
    rows = []
    for of in race.raced:
        ended = [run.run_id for result in (*of.swept, *of.results) for run in result.ended.values()]
        losses = ", ".join(race.examined[run] for run in ended if run in race.examined)
        rows.append({"Rival": of.rival.name, "Losses": losses or NOT_RUN, "Probes": _probed(race, of.rival.name)})
    if race.probes:
        rows.append({"Rival": RANDOM, "Probes": _probed(race, RANDOM)})
        rows.append({"Rival": "words alone", "Probes": race.probes.words.run_id})
    return Table(rows, "Records of losses and probes", folded=True)


def _probed(race: Race, name: str) -> str:
    found = race.probes.models.get(name, {}) if race.probes else {}
    return ", ".join(record.run_id for record in found.values()) or NOT_RUN


def runs(race: Race) -> list[Any]:
    """All results, for `commands.study_runs_table`."""
    return [result for of in race.raced for result in (*of.swept, *of.results)]
