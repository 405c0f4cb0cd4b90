"""Which encoders of the study are probed, and what was found of each model, seed by seed. No torch."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence

from threeml_core.config import StudyConfig, study_steps
from threeml_core.parameters.probing import WORD_TASKS
from threeml_core.runs.record import RunRecord
from threeml_core.statistics.bootstrap import ScoreInterval, score_interval
from threeml_core.statistics.intervals import Spread, pooled_spread
from threeml_core.statistics.verdicts import Claim, Finding
from threeml_core.study.evidence import Evidence, doubt_of
from threeml_core.study.experiment import Experiment
from threeml_core.study.experiments.scaling import sizes
from threeml_core.study.experiments.table_2 import TABLE_2A, TABLE_2B, TABLE_2C
from threeml_core.study.experiments.table_3 import STUDY_MODELS, equal_budget
from threeml_core.study.ledger import EXPERIMENTS, find
from threeml_core.study.results import Result

DECIDING = ("upos", "deprel", "bigram_shift")
"""Tasks whose mean accuracy judges claims, if all are asked. What else is asked is only shown."""

ABLATIONS = (TABLE_2A, TABLE_2B, TABLE_2C)
JUDGED = ("C1", "C2", "C3", "C4", "C5", "C6", "C7")
"""Claims of the paper on how good encoders are."""


PROBES = Experiment("Probes", "frozen encoders, probed", models=STUDY_MODELS, further=equal_budget)
PROBED_ABLATIONS = Experiment(
    "Probes of Table 2",
    "frozen encoders of Table 2, probed",
    models=(),
    further=lambda config: [c for table in ABLATIONS for c in table.changes(config)] if config.probe_ablations else (),
    is_ablation=True,
)
OTHER_SIZES = Experiment(
    "Probes of sizes",
    "frozen encoders of other sizes, probed",
    models=(),
    further=lambda config: sizes(config) if config.probe_sizes else (),
    is_ablation=True,
)
PROBED = (PROBES, PROBED_ABLATIONS, OTHER_SIZES)
BASELINE = "vanilla-40%"
RANDOM = "random weights"
Size = tuple[int, int]
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
        """Units of each document of the test."""
        return list(self.words.metrics["tasks"][task]["sizes"])

    def right(self, model: str, task: str, seeds: Iterable[int]) -> list[list[int]]:
        """(S, I) of them that were right."""
        return [self.models[model][seed].metrics["tasks"][task]["right"] for seed in seeds]

    def score(self, model: str, task: str) -> ScoreInterval:
        """Mean accuracy over seeds with its interval over seeds and documents."""
        return score_interval(self.right(model, task, self.models[model]), None, self.sizes(task))

    def mean(self, model: str, seed: int, tasks: Sequence[str]) -> float:
        """Mean accuracy of one seed's encoder over tasks."""
        return math.fsum(self.models[model][seed].metrics["tasks"][task]["accuracy"] for task in tasks) / len(tasks)

    @functools.cached_property
    def spreads(self) -> dict[Size, Spread | None]:
        """Of the mean accuracy of `DECIDING` over seeds, in points, pooled over the study's models of one size.

        Without models of which a seed ended on the unigram plateau: how far that one fell says nothing of the others.
        """
        means: dict[Size, list[list[float]]] = {}
        for model, of in self.runs.items():
            if any(run.metrics.get("on_unigram_plateau") for run in of.values()):
                continue
            values = [100 * self.mean(model, seed, DECIDING) for seed in self.models[model]]
            means.setdefault(self.size(model), []).append(values)
        return {size: pooled_spread(of) for size, of in means.items()}

    def size(self, model: str) -> Size:
        """Layers and width of a model of the study."""
        parameters = next(iter(self.runs[model].values())).parameters
        return parameters["num_hidden_layers"], parameters["hidden_size"]

    def difference(self, model: str, task: str, baseline: str = BASELINE) -> ScoreInterval | None:
        """Its accuracy minus the baseline's, paired by seed and document; None: they share no seed."""
        if not (seeds := [seed for seed in self.models[model] if seed in self.models.get(baseline, ())]):
            return None
        return score_interval(self.right(model, task, seeds), self.right(baseline, task, seeds), self.sizes(task))


def named(result: Result, config: StudyConfig) -> str:
    """A model of the study in a few words: with what an ablation or a budget changes."""
    c = result.run.config
    steps = {study_steps(config), config.ablation_steps}
    changed = {
        "decoder_num_hidden_layers": f"{c.decoder_num_hidden_layers} decoder layers",
        "decoder_hidden_size": f"decoder width {c.decoder_hidden_size}",
        "mask_split": c.mask_split,
    }
    named = [result.run.model, *(t for n, t in changed.items() if getattr(c, n) != getattr(config, n))]
    if (c.num_hidden_layers, c.hidden_size) != (config.num_hidden_layers, config.hidden_size):
        named = [result.run.model, f"{c.num_hidden_layers} × {c.hidden_size}"]  # its decoder is in proportion
    return ", ".join(named if c.max_steps in steps else [*named, f"{c.max_steps:,} steps"])


def probes_of(config: StudyConfig, results: Sequence[Result], records: Sequence[RunRecord]) -> Probes:
    """Records of `run_probing` (the words alone, then encoders) by the models of a study."""
    words, *of_encoders = records
    by_run = {record.data["run"]: record for record in of_encoders if not record.data["is_random"]}
    models: dict[str, dict[int, RunRecord]] = {}
    runs: dict[str, dict[int, RunRecord]] = {}
    architectures: dict[str, str] = {}
    baseline: set[str] = set()
    for result in results:
        if found := {s: by_run[run.run_id] for s, run in result.ended.items() if run.run_id in by_run}:
            name = named(result, config)
            models[name], runs[name] = found, result.ended
            architectures[name] = result.run.config.architecture
            baseline |= {run.run_id for run in result.ended.values()} if name == BASELINE else set()
    random = {r.identity["weights_seed"]: r for r in of_encoders if r.data["is_random"] and r.data["run"] in baseline}
    return Probes(words, models | ({RANDOM: random} if random else {}), architectures, runs)


def probes_by_name(names: Sequence[str], records: Sequence[RunRecord]) -> Probes:
    """Records of `run_probing`, of encoders by the names that were asked for."""
    words, *of_encoders = records
    return Probes(words, {name: {0: record} for name, record in zip(names, of_encoders, strict=True)}, {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbeEvidence(Evidence):
    """As `Evidence`, with the mean accuracy of `DECIDING` in place of GLUE's average: the claims are the same."""

    probes: Probes

    def scores(
        self, first: Result | None, second: Result | None, low: float, high: float, what: str = "", varied: str = ""
    ) -> Finding:
        """Difference of the mean accuracies; see `compared`, and `Evidence.scores`."""
        if first is None or second is None:
            return Finding(what or "mean accuracy", "points", low, high, (), planned=False)
        one, other = named(first, self.config), named(second, self.config)
        found = compared(self.probes, one, other, low, high, what or f"{one} against {other}")
        if found.values and (doubt := doubt_of(first, second)):
            return dataclasses.replace(found, doubt=doubt)
        if not found.values or found.doubt:
            return found
        spread = self.probes.spreads[self.probes.size(one)]
        return dataclasses.replace(found, spread=spread, pooled=self.config.pooled_variances)


def compared(found: Probes, first: str, second: str, low: float, high: float, what: str) -> Finding:
    """Mean accuracy of the `DECIDING` tasks, of one model minus another, in points, paired by seed.

    Its error of measurement is that of the documents: tasks on the same ones add up, others in quadrature. In doubt
    where neither model knows more than random weights do.
    """
    tasks = DECIDING
    if missing := [task for task in tasks if task not in found.tasks]:
        return Finding(what, "points", low, high, (), f"not asked: {', '.join(missing)}")
    seeds = sorted(found.models.get(first, {}).keys() & found.models.get(second, {}).keys())
    values = tuple(100 * (found.mean(first, seed, tasks) - found.mean(second, seed, tasks)) for seed in seeds)
    if len(seeds) < 2:
        return Finding(what, "points", low, high, values)
    errors: dict[bool, float] = {}
    for task in tasks:
        between = found.difference(first, task, second)
        assert between is not None
        errors[task in WORD_TASKS] = errors.get(task in WORD_TASKS, 0.0) + between.item_error
    knows = any(
        difference.low is not None and difference.low > 0
        for name in (first, second)
        for task in tasks
        if (difference := found.difference(name, task, RANDOM))
    )
    doubt = "" if knows else "neither model knows more than random weights"
    doubt = doubt if RANDOM in found.models else "random weights were not probed"
    error = 100 * math.hypot(*errors.values()) / len(tasks)
    return Finding(what, "points", low, high, values, doubt, error=error)


def better_for_its_flops(study: Evidence) -> Claim:
    """E1, what who has a budget asks; the paper says so of its longer recipe (3ML_self-40%-153K), beside C1 to C9."""
    models = [changes for changes in equal_budget(study.config) if changes["architecture"] == "self"]
    vanilla = study.model("vanilla", 0.15)
    found = (study.scores(study.of("Table 3", **model), vanilla, 0, math.inf) for model in models)
    text = "With the FLOPs of the vanilla model at 15%, 3ML_self is better."
    return Claim("E1", text, "Section 4, Table 3", tuple(found))


def probe_claims(config: StudyConfig, results: Sequence[Result], found: Probes) -> list[Claim]:
    """The paper's claims on how good encoders are (`JUDGED`), by probes alone; by GLUE they stand on another page.

    Behind them E1, if the study has models with equal FLOPs.
    """
    evidence = ProbeEvidence(config, results, probes=found)
    claims = [claim(evidence) for experiment in EXPERIMENTS.values() for claim in experiment.claims]
    chosen = sorted((claim for claim in claims if claim.name in JUDGED), key=lambda claim: claim.name)
    chosen += [better_for_its_flops(evidence)] if config.equal_budget else []
    return [dataclasses.replace(claim, name=f"{claim.name} by probes") for claim in chosen]


def results_to_probe(config: StudyConfig, trained: Sequence[Result] | None = None) -> list[Result]:
    """The study's models that are probed, with the exhibits that they belong to.

    `trained`: what their pre-training gave; None: as far as there are records of it.
    """
    records = None if trained is None else [record for result in trained for record in result.pretraining.values()]
    experiments: list[Experiment | str] = [*PROBED, "Table 1", "Table 3", *ABLATIONS]
    results = find(config, experiments, records, any_text=records is not None)
    return [result for result in results if {*PROBED} & {*result.run.experiments}]
