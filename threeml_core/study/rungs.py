"""The speedrun: time to one masked perplexity, one rung switched on at a time, every recipe tuned alike. No torch.

A rung is given more and more steps, each time from the start and with a learning rate that falls to zero, until it
reaches the perplexity asked for. The steps that it needs are read off between the last two budgets; its time is that of
a step, measured in turns with all others (`benchmark.clock`), times these. Not in the paper.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from threeml_core.benchmark.speeds import BASELINE, Timed, ratio
from threeml_core.config import DATA_PARAMETERS, StudyConfig, executed_parameters, variant
from threeml_core.foundation.errors import ParameterError
from threeml_core.foundation.files import fingerprint
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.parameters.masking import rate_label
from threeml_core.runs.ledger import find as find_records
from threeml_core.runs.record import RunRecord
from threeml_core.statistics.intervals import Interval, exponential, mean_interval
from threeml_core.study.experiment import Changes, Experiment, StudyRun
from threeml_core.study.ledger import find, results_of
from threeml_core.study.results import Result


@dataclasses.dataclass(frozen=True)
class Rung:
    """A step of the ladder.

    Attributes:
        name: what it switches on.
        changes: parameters, beside those of all rungs below it.
        ours: timed as this package trains it; else as Hugging Face's run_mlm does, which learns the same.
    """

    name: str
    changes: Changes
    ours: bool = True


_FIRST = {"architecture": "vanilla", "mask_rate": 0.15, "layer_norm": "post", "initialization": "bert"}

RUNGS = (
    Rung("Hugging Face run_mlm: RoBERTa, AdamW, 15%", {**_FIRST, "encoder": "roberta", "bf16": False}, ours=False),
    Rung("this package's step", {}),
    Rung("bfloat16", {"bf16": True}),
    Rung("mask 40%", {"mask_rate": 0.4}),
    Rung("pre-LN, scaled initialisation", {"layer_norm": "pre", "initialization": "scaled"}),
    Rung("ModernBERT: RoPE, GeGLU, no biases", {"encoder": "modernbert"}),
    Rung("Muon", {"optimizer": "muon"}),
    Rung("3ML_self, 40%", {"architecture": "self"}),
    Rung("3ML_self, 50%", {"mask_rate": 0.5}),
)

MODELS = (("vanilla", 0.15), ("vanilla", 0.4), ("self", 0.4))
"""Of the sweep, each with both encoders and both optimizers."""

TUNED = {"adamw": "learning_rate", "muon": "muon_learning_rate"}
"""Optimizer -> what is tuned. Beside Muon, AdamW keeps the preset's rate for all that is no matrix of a layer."""

RECIPE = ("architecture", "mask_rate", "layer_norm", "initialization", "encoder", "optimizer")
"""What has a learning rate of its own; a mask rate above 40% takes that of 40%."""


def recipe_of(config: StudyConfig) -> Changes:
    """What the learning rate of a run is tuned for."""
    return {name: getattr(config, name) for name in RECIPE} | {"mask_rate": min(config.mask_rate, 0.4)}


def untuned(config: StudyConfig, rungs: Sequence[Rung] = RUNGS) -> list[StudyConfig]:
    """How each rung is trained, but for its learning rate: with all that is switched on up to it.

    Raises:
        ParameterError: a rung changes what no learning rate is tuned for.
    """
    changes: Changes = {"optimizer": "adamw", "mask_rate_schedule": "constant"}
    found = []
    for rung in rungs:
        if other := sorted(rung.changes.keys() - {*RECIPE, "bf16"}):
            known = ", ".join((*RECIPE, "bf16"))
            raise ParameterError(f"rung {rung.name!r} changes {other[0]}: its rate is tuned for {known} alone")
        changes |= rung.changes
        found.append(variant(config, **changes))
    return found


def sweep(config: StudyConfig, rungs: Sequence[Rung] = RUNGS, again: Collection[str] = ()) -> list[Changes]:
    """Each recipe at as many learning rates, with one seed, which is none of the rungs'.

    The recipes `again` (fingerprints) are tuned a second time, with the most steps that a rung has.

    Raises:
        ParameterError: one optimizer has more rates than the other.
    """
    rates = {optimizer: config.listed(f"sweep_{name}s") for optimizer, name in TUNED.items()}
    if len({len(values) for values in rates.values()}) > 1:
        counts = ", ".join(f"{len(values)} for {optimizer}" for optimizer, values in rates.items())
        raise ParameterError(f"sweep_learning_rates, sweep_muon_learning_rates: {counts}; expected as many for both")
    of_rungs = [recipe_of(rung) for rung in untuned(config, rungs)]
    product = itertools.product(("roberta", "modernbert"), TUNED, MODELS)
    cells = [
        {
            "architecture": architecture,
            "mask_rate": mask_rate,
            "layer_norm": config.layer_norm if encoder == "roberta" else "pre",
            "initialization": config.initialization,
            "encoder": encoder,
            "optimizer": optimizer,
        }
        for encoder, optimizer, (architecture, mask_rate) in product
    ]
    recipes = {fingerprint(recipe): recipe for recipe in (*of_rungs, *cells)}
    budgets = [(config.sweep_steps, recipes), (max(config.listed("speedrun_steps")), again)]
    same = {"mask_rate_schedule": "constant", "num_pretrain_seeds": 1}
    return [
        {**recipes[key], **same, "max_steps": steps, TUNED[recipes[key]["optimizer"]]: rate}
        for steps, chosen in budgets
        for key in chosen
        for rate in rates[recipes[key]["optimizer"]]
    ]


def sweep_of(rungs: Sequence[Rung] = RUNGS, again: Collection[str] = ()) -> Experiment:
    """`sweep` as an experiment."""
    return Experiment("Sweep", "learning rates", models=(), further=functools.partial(sweep, rungs=rungs, again=again))


def too_slow(config: StudyConfig, swept: Iterable[Result]) -> list[str]:
    """Fingerprints of the recipes that did not reach the target with any rate: they may not have left the plateau."""
    assert config.speedrun_target is not None
    best = {key: end_of(next(iter(result.ended.values()))) for key, result in best_of(swept).items()}
    return [key for key, end in best.items() if end > config.speedrun_target]


def read_sweep(config: StudyConfig, rungs: Sequence[Rung] = RUNGS) -> list[Result]:
    """What the records say of the sweep, the second tuning of slow recipes included."""
    slow = too_slow(config, find(config, [sweep_of(rungs)]))
    return find(config, [sweep_of(rungs, slow)])


SPEEDRUN = Experiment("Speedrun", "time to one masked perplexity", models=())


def best_of(swept: Iterable[Result]) -> dict[str, Result]:
    """Fingerprint of a recipe -> its run of the sweep with the lowest masked perplexity; none if all diverged."""
    found: dict[str, tuple[float, Result]] = {}
    for result in swept:
        key, perplexities = fingerprint(recipe_of(result.run.config)), result.metric("eval_perplexity_masked")
        for perplexity in perplexities.values():
            found[key] = min(found.get(key, (math.inf, result)), (perplexity, result), key=lambda pair: pair[0])
    return {key: result for key, (_, result) in found.items()}


def rung_runs(config: StudyConfig, swept: Iterable[Result], rungs: Sequence[Rung] = RUNGS) -> list[list[StudyRun]]:
    """Of each rung a run for every budget, fewest steps first, at its recipe's best rate; none without that."""
    best = best_of(swept)
    found = []
    for rung in untuned(config.replace(seed=config.seed + 1), rungs):
        result = best.get(fingerprint(recipe_of(rung)))
        rate = {} if result is None else {(name := TUNED[rung.optimizer]): getattr(result.run.config, name)}
        steps = sorted(config.listed("speedrun_steps")) if rate else ()
        found.append([StudyRun(rung.replace(**rate, max_steps=budget), (SPEEDRUN,)) for budget in steps])
    return found


def end_of(record: RunRecord) -> float:
    """Masked perplexity at the end of a run; inf: it diverged."""
    return math.inf if record.failure else float(record.metrics["eval_perplexity_masked"])


def steps_to(target: float, ends: Mapping[int, float]) -> float:
    """Steps with which a model reaches `target`, from {budget: perplexity at its end}.

    Between the last budget that misses it and the first that reaches it, on logarithmic scales. inf: none reaches it;
    the first budget itself, if that does: then fewer may be enough.
    """
    missed = None
    for steps, perplexity in sorted(ends.items()):
        if perplexity <= target:
            if missed is None:
                return float(steps)
            between = [math.log(value) for value in (perplexity, ends[missed])]
            return math.exp(np.interp(math.log(target), between, [math.log(steps), math.log(missed)]))
        missed = steps
    return math.inf


@dataclasses.dataclass(frozen=True)
class Climbed:
    """What a rung gave.

    Attributes:
        rung: what it switches on.
        results: of its budgets, fewest steps first; none: its recipe was not tuned.
        turns: (rounds,) core-seconds of a step (on a GPU seconds), in turns with the other rungs; None: not measured.
        target: masked perplexity.
    """

    rung: Rung
    results: Sequence[Result]
    turns: np.ndarray | None
    target: float

    @property
    def ends(self) -> dict[int, dict[int, float]]:
        """Seed -> {budget: masked perplexity at its end}, as far as was run."""
        found: dict[int, dict[int, float]] = {}
        for result in self.results:
            for seed, record in result.pretraining.items():
                found.setdefault(seed, {})[result.run.config.max_steps] = end_of(record)
        return found

    @property
    def steps(self) -> dict[int, float]:
        """Seed -> `steps_to`."""
        return {seed: steps_to(self.target, ends) for seed, ends in self.ends.items()}

    @property
    def is_bound(self) -> bool:
        """Did a seed reach the target with its first budget? Then it may need fewer steps."""
        return any(len(ends) == 1 and min(ends.values()) <= self.target for ends in self.ends.values())

    @property
    def seconds(self) -> float | None:
        """Core-seconds of a step: the median of the turns."""
        return None if self.turns is None else float(np.median(self.turns))

    @property
    def times(self) -> dict[int, float]:
        """Seed -> core-seconds to the target."""
        return {} if self.seconds is None else {seed: steps * self.seconds for seed, steps in self.steps.items()}


def gain(slower: Climbed, faster: Climbed) -> Interval | None:
    """How many times less time `faster` takes, with its 95% interval: steps paired by seed, the clock round by round.

    None: the clock was not measured, a seed of one of the two did not reach the target or was not run, or the slower
    one may need fewer steps than it was given.
    """
    first, second = slower.steps, faster.steps
    known = first and first.keys() == second.keys() and max(*first.values(), *second.values()) < math.inf
    known = known and not slower.is_bound
    if not known or slower.turns is None or faster.turns is None:
        return None
    clock = ratio(slower.turns, faster.turns)
    error = math.log(clock.high / clock.low) / (2 * _NORMAL)
    steps = [math.log(first[seed] / second[seed] * clock.value) for seed in first]
    return exponential(mean_interval(steps, shared=error))


_NORMAL = 1.96  # an interval of 95% reaches so many standard errors to each side


def timed_as(config: StudyConfig, ours: bool = True) -> tuple[str, StudyConfig]:
    """Key of what is timed, and the configuration: learning rates do not matter.

    Hugging Face's has the precision in which it is faster.
    """
    same = {"learning_rate": 1.0, "muon_learning_rate": 1.0, "max_steps": 1, "seed": 0}
    of = config.replace(**same, **({} if ours else {"bf16": None}))
    return fingerprint([ours, executed_parameters(of)]), of


def timed_name(config: StudyConfig, ours: bool = True) -> str:
    """What is timed, in words."""
    model = f"{ARCHITECTURES[config.architecture].label}-{rate_label(config.parameters())}"
    precision = {True: "bf16", False: "fp32", None: "own precision"}[config.bf16]
    place = f" {config.layer_norm}-LN, {config.initialization}" if config.encoder == "roberta" else ""
    return f"{'' if ours else 'Hugging Face '}{model}, {config.encoder}{place}, {config.optimizer}, {precision}"


def timed(config: StudyConfig, rungs: Sequence[Rung] = RUNGS) -> dict[str, Timed]:
    """Name -> what is timed, each once: the rungs, and the recipes of the sweep.

    The second rung, whose turns are repeated to show the noise, has the benchmark's name for that.
    """
    of_rungs = [(rung.ours, of) for rung, of in zip(rungs, untuned(config, rungs), strict=True)]
    recipes = [(True, variant(config, **changes)) for changes in sweep(config, rungs)]
    found: dict[str, Timed] = {}
    names: dict[str, str] = {}
    for number, (ours, of) in enumerate([*of_rungs, *recipes]):
        key, at = timed_as(of, ours)
        if key not in names:
            names[key] = BASELINE if number == 1 else timed_name(at, ours)
            found[names[key]] = Timed(key, at, ours)
    return found


def clock_record(config: StudyConfig, asked: Mapping[str, Timed]) -> RunRecord | None:
    """The newest measurement in which all of these were timed, by these names; None: there is none."""
    keys = {(name, of.key) for name, of in asked.items()}
    there = find_records(config, "clock", DATA_PARAMETERS)
    return next((record for record in reversed(there) if keys <= record.identity["variants"].items()), None)


def turns_of(record: RunRecord) -> dict[str, np.ndarray]:
    """Key of what was timed -> (rounds,) core-seconds of a step (on a GPU seconds)."""
    kind = "seconds" if "gpu" in record.environment["hardware"] else "cpu_seconds"
    return {key: np.array(record.metrics["turns"][name][kind]) for name, key in record.identity["variants"].items()}


def climbed(
    config: StudyConfig,
    swept: Iterable[Result],
    rungs: Sequence[Rung] = RUNGS,
    records: Iterable[RunRecord] | None = None,
    clock: RunRecord | None = None,
) -> list[Climbed]:
    """What the records say of each rung; without any given, those in `runs_dir`."""
    assert config.speedrun_target is not None
    of_rungs, clock = rung_runs(config, swept, rungs), clock or clock_record(config, timed(config, rungs))
    results = iter(results_of(config, itertools.chain(*of_rungs), records, any_text=records is not None))
    turns = turns_of(clock) if clock else {}
    keys = [timed_as(of, rung.ours)[0] for rung, of in zip(rungs, untuned(config, rungs), strict=True)]
    return [
        Climbed(rung, list(itertools.islice(results, len(runs))), turns.get(key), config.speedrun_target)
        for rung, runs, key in zip(rungs, of_rungs, keys, strict=True)
    ]
