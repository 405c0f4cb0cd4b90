"""Which encoders of the study are probed, and what was found of each model, seed by seed. No torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from threeml_core.runs.record import RunRecord
from threeml_core.statistics.bootstrap import ScoreInterval, score_interval
from threeml_core.statistics.verdicts import Claim, Finding
from threeml_core.study.evidence import MARGIN
from threeml_core.study.experiment import Experiment
from threeml_core.study.experiments.table_3 import STUDY_MODELS
from threeml_core.study.results import Result

DECIDING = ("upos", "deprel", "bigram_shift")
"""Tasks that judge claims, all together; fixed before any run. What else is asked is only shown."""

PROBES = Experiment("Probes", "frozen encoders, probed", models=STUDY_MODELS)
BASELINE = "vanilla-40%"
RANDOM = "random weights"
RateMatrix = Mapping[str, Mapping[int, RunRecord]]
"""Model -> {seed -> its record of stage `rates`}."""


@dataclasses.dataclass(frozen=True)
class Probes:
    """What probing found.

    Attributes:
        words: the record of what words alone reach, without an encoder.
        models: model -> {pre-training seed (of an encoder from elsewhere: 0) -> its record}.
        architectures: model -> its architecture; models without one are not in it.
        runs: model of the study -> {seed -> the record of its pre-training}.
    """

    words: RunRecord
    models: Mapping[str, Mapping[int, RunRecord]]
    architectures: Mapping[str, str]
    runs: Mapping[str, Mapping[int, RunRecord]] = dataclasses.field(default_factory=dict)

    @property
    def tasks(self) -> list[str]:
        """What was asked, control tasks left out."""
        return [name for name in self.words.metrics["tasks"] if " " not in name]

    def sizes(self, task: str) -> list[int]:
        """Words (or 1) of each test sentence."""
        return list(self.words.metrics["tasks"][task]["sizes"])

    def right(self, model: str, task: str, seeds: Iterable[int]) -> list[list[int]]:
        """(S, I) of them that were right."""
        return [self.models[model][seed].metrics["tasks"][task]["right"] for seed in seeds]

    def score(self, model: str, task: str) -> ScoreInterval:
        """Mean accuracy over seeds with its interval over seeds and sentences."""
        return score_interval(self.right(model, task, self.models[model]), None, self.sizes(task))

    def difference(self, model: str, task: str, baseline: str = BASELINE) -> ScoreInterval | None:
        """Its accuracy minus the baseline's, paired by seed and sentence; None: they share no seed."""
        if not (seeds := [seed for seed in self.models[model] if seed in self.models.get(baseline, ())]):
            return None
        return score_interval(self.right(model, task, seeds), self.right(baseline, task, seeds), self.sizes(task))


def probes_of(results: Sequence[Result], records: Sequence[RunRecord]) -> Probes:
    """Records of `run_probing` by the models of a study; without results each encoder is a model."""
    words, *of_encoders = records
    names = {
        record.run_id: (result.run.model, seed, result.run.config.architecture)
        for result in results
        for seed, record in result.ended.items()
    }
    order = dict.fromkeys(model for model, _, _ in names.values())
    models: dict[str, dict[int, RunRecord]] = {model: {} for model in order}
    architectures: dict[str, str] = {}
    for record in of_encoders:
        of = record.data["run"] if results else None
        if results and record.data["is_random"]:
            models.setdefault(RANDOM, {})[record.identity["weights_seed"]] = record
        elif of in names:
            model, seed, architecture = names[of]
            models[model][seed] = record
            architectures[model] = architecture
        elif not results:
            models[record.data["checkpoint"]] = {0: record}
    runs = {result.run.model: result.ended for result in results if result.ended}
    return Probes(words, {model: seeds for model, seeds in models.items() if seeds}, architectures, runs)


def probe_claims(found: Probes) -> list[Claim]:
    """The paper's claims on its main models, judged by probes alone; those judged by GLUE stand on another page.

    By the rule of `verdicts`, with a comparison for each of `DECIDING`, in points. One is in doubt where neither model
    knows more than random weights do.
    """

    def findings(first: str, second: str, low: float) -> list[Finding]:
        return [_finding(found, first, second, task, low) for task in DECIDING if task in found.tasks]

    level = [f for rate in ("40%", "50%") for f in findings(f"3ML_self-{rate}", BASELINE, -MARGIN)]
    said = {
        "C1": ("Masking 40% beats 15% for the vanilla model.", findings(BASELINE, "vanilla-15%", 0)),
        "C2": (f"3ML_self at 40 and 50% loses nothing (at most {MARGIN} points) against vanilla at 40%.", level),
        "C3": ("3ML_self is better than 3ML_cross.", findings("3ML_self-40%", "3ML_cross-40%", 0)),
    }
    return [Claim(f"{name} by probes", text, "as by GLUE", tuple(of)) for name, (text, of) in said.items()]


def _finding(found: Probes, first: str, second: str, task: str, low: float) -> Finding:
    what, pair = f"{first} - {second}: {task}", (first, second)
    if not {*pair} <= found.models.keys() or not (between := found.difference(first, task, second)):
        return Finding(what, "points", low, math.inf, ())
    seeds = sorted(found.models[first].keys() & found.models[second].keys())
    one, other = ([found.models[m][s].metrics["tasks"][task]["accuracy"] for s in seeds] for m in pair)
    values = tuple(100 * (a - b) for a, b in zip(one, other, strict=True))
    above = [d for model in pair if (d := found.difference(model, task, RANDOM))]
    knows = any(d.low is not None and d.low > 0 for d in above)
    doubt = "" if knows or len(seeds) == 1 else "neither model knows more than random weights"
    error = 100 * between.item_error if len(seeds) > 1 else 0.0
    return Finding(what, "points", low, math.inf, values, doubt, error=error)
