"""The study: which runs the paper's tables and figures need, and what they gave, read from records. No torch."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from threeml_core import flops
from threeml_core.config import (
    ARCHITECTURES,
    DATA_PARAMETERS,
    KINDS,
    MODEL_NAMES,
    RANDOM,
    StudyConfig,
    executed_parameters,
    parse_grid,
    parse_mask_split,
    parse_sizes,
    study_steps,
    variant,
)
from threeml_core.foundation.errors import ParameterError
from threeml_core.foundation.files import fingerprint
from threeml_core.glue.ledger import FINETUNE_MATCH, Point, point_of, with_their_starts
from threeml_core.glue.metrics import task_score, weighted_accuracy
from threeml_core.glue.protocol import best_of_seeds, median_metrics, runs_of
from threeml_core.glue.tasks import GLUE_TASKS, Task, select_tasks
from threeml_core.runs.ledger import has_parameters, is_wanted, known_parameters, wanted_parameters
from threeml_core.runs.record import RunRecord

STUDY_MODELS = (("vanilla", 0.15), ("vanilla", 0.4), ("self", 0.4), ("self", 0.5), ("cross", 0.4))
"""The five models of Table 3's efficient recipe, with their mask rates; the longer one has no vanilla model at 40%."""

COMPARISON = "Table 3"
"""The paper's main result."""

SCALING = "Scaling"
"""Table 3's models with encoders of other sizes (`study_sizes`); not in the paper, which leaves scaling open."""

ON_ALL_TASKS = (COMPARISON, SCALING)
"""Where models are fine-tuned on all tasks; `ABLATIONS`: on those of the ablations; elsewhere: not at all."""

ABLATIONS = ("Figure 3", "Table 2a", "Table 2b", "Table 2c", "Figure 5")


# -- which runs -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class StudyRun:
    """A pre-training run of the study, to be done with each pre-training seed.

    Attributes:
        config: its parameters, with the first seed.
        artefacts: the tables and figures that show it.
    """

    config: StudyConfig
    artefacts: tuple[str, ...]

    @property
    def model(self) -> str:
        """Architecture and mask rate, as in the paper."""
        return f"{MODEL_NAMES[self.config.architecture]}-{self.config.mask_rate:.0%}"

    @property
    def seeds(self) -> range:
        """Its pre-training seeds."""
        c = self.config
        count = (set(self.artefacts) <= set(ABLATIONS) and c.ablation_pretrain_seeds) or c.pretrain_seeds
        return range(c.seed, c.seed + count)


def study_runs(config: StudyConfig, artefacts: Sequence[str] | None = None) -> list[StudyRun]:
    """The runs that tables and figures need, each once, in the order in which they are first needed.

    Source: Tables 1 to 3, Figures 3 to 5; all but Table 3 are of the large model in the paper. What an ablation does
    not vary is as in `config` (the paper's gray rows): mask rate, split, depth and width of the decoder.

    Args:
        config: model, text, optimisation, and the lists `study_*`.
        artefacts: such as `("Table 2a", "Figure 5")`; None: all.

    Raises:
        ParameterError: no such table or figure, or a value in a list that the model cannot have.
    """
    makers = _artefacts(config)
    chosen = tuple(makers) if artefacts is None else tuple(artefacts)
    if unknown := [name for name in chosen if name not in makers]:
        raise ParameterError(f"no runs are known for {unknown[0]!r}: expected one of {', '.join(makers)}")
    runs: dict[str, tuple[StudyConfig, list[str]]] = {}
    for name in chosen:
        for changes in makers[name]:
            run = variant(config, **changes)
            identity = fingerprint(executed_parameters(run))
            used = runs.setdefault(identity, (run, []))[1]
            if name not in used:
                used.append(name)
    return [StudyRun(run, tuple(used)) for run, used in runs.values()]


def _artefacts(config: StudyConfig) -> dict[str, list[dict[str, Any]]]:
    """Table or figure -> what each of its runs changes."""
    steps = study_steps(config)
    study = {"max_steps": steps}
    ablation = {"max_steps": config.ablation_steps or steps}
    rates = parse_grid("study_mask_rates", config.study_mask_rates)
    splits = [split.strip() for split in config.study_splits.split(",")]
    varied: dict[str, tuple[str, Sequence[Any]]] = {
        "Table 2a": ("decoder_num_hidden_layers", parse_grid("study_depths", config.study_depths)),
        "Table 2b": ("decoder_hidden_size", parse_grid("study_widths", config.study_widths)),
        "Table 2c": ("mask_split", splits),
    }
    models = [{**study, "architecture": architecture, "mask_rate": rate} for architecture, rate in STUDY_MODELS]
    if config.equal_budget:
        models += [
            {**model, "max_steps": equal_budget_steps(variant(config, **model), study_steps(config))}
            for model in models
            if model["architecture"] != "vanilla"
        ]
    return {
        "Figure 3": [{**ablation, "architecture": "vanilla", "mask_rate": rate} for rate in rates],
        "Table 1": [{**study, "architecture": architecture} for architecture in ARCHITECTURES],
        "Figure 4": [{**study, "architecture": architecture} for architecture in ARCHITECTURES],
        **{
            name: [{**ablation, "architecture": a, key: value} for value in values for a in ("self", "cross")]
            for name, (key, values) in varied.items()
        },
        "Figure 5": [{**ablation, "architecture": a, "mask_rate": rate} for rate in rates for a in ARCHITECTURES],
        COMPARISON: models,
        SCALING: [{**size, **model} for size in _sizes(config) for model in models if model["max_steps"] == steps],
    }


def _sizes(config: StudyConfig) -> list[dict[str, Any]]:
    """What encoders of other sizes change, and the preset's own: heads as wide, the decoder's width in proportion.

    Raises:
        ParameterError: a width that no whole number of heads fills.
    """
    sizes = parse_sizes(config.study_sizes)
    head = config.hidden_size // config.num_attention_heads
    assert config.decoder_hidden_size is not None
    changes: list[dict[str, Any]] = []
    for layers, width in sizes:
        decoder = config.decoder_hidden_size * width // config.hidden_size
        if width % head or decoder % head or not decoder:
            raise ParameterError(
                f"study_sizes: {layers}x{width} with a decoder of width {decoder}: expected multiples of {head}, the "
                "width of a head"
            )
        geometry = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": width // head}
        changes.append({**geometry, "intermediate_size": None, "decoder_hidden_size": decoder})
    return [*changes, {}] if changes else []


def equal_budget_steps(config: StudyConfig, steps: int) -> int:
    """Updates that cost as many FLOPs as `steps` updates of the vanilla model at 15%.

    Source: Table 3, the longer recipe; for 125K this gives 152.4K, 160.0K and 156.9K, printed as 153K, 160K and 157K.
    """
    return round(steps * flops.config_speedup(config, "paper", 0.15))


# -- which fine-tunings -----------------------------------------------------------------------------------------


def comparison_config(config: StudyConfig) -> StudyConfig:
    """How the models of Table 3 are fine-tuned: on all tasks asked for, with all seeds."""
    return config.replace(checkpoint=None)


def ablation_config(config: StudyConfig) -> StudyConfig:
    """How the models of the ablations are fine-tuned: on MNLI, QNLI and QQP. Source: section 3.1."""
    tasks = config.tasks if config.glue == "bundled" else "ablation"
    return config.replace(checkpoint=None, tasks=tasks, seeds=config.ablation_seeds or config.seeds)


def finetune_configs(run: StudyRun, config: StudyConfig) -> list[StudyConfig]:
    """The fine-tunings that a run's tables and figures need."""
    needed = [comparison_config(config)] if set(ON_ALL_TASKS) & set(run.artefacts) else []
    return needed + ([ablation_config(config)] if set(ABLATIONS) & set(run.artefacts) else [])


# -- what they gave ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Downstream:
    """What one pre-trained encoder gave downstream by the paper's protocol: medians over fine-tuning seeds.

    Attributes:
        tasks: all tasks that were planned.
        records: of each task whose runs are all finished.
        accuracies: the ablations' number of a task is an accuracy, in Table 3 it is the mean of all its metrics.
    """

    tasks: tuple[Task, ...]
    records: Mapping[str, tuple[RunRecord, ...]]
    accuracies: bool

    def metrics(self, task: Task) -> dict[str, float] | None:
        """Metric -> median over seeds of the best of the grid; None: not run, or every run failed."""
        best = best_of_seeds(self.records.get(task.name, ()))
        return median_metrics(task, best) if best else None

    def score(self, task: Task) -> float | None:
        """The task's one number, a fraction; None: not run, or every run failed."""
        metrics = self.metrics(task)
        return None if metrics is None else self._number(task, metrics)

    def _number(self, task: Task, metrics: Mapping[str, float]) -> float:
        if not self.accuracies or task.name not in GLUE_TASKS:
            return task_score(task, metrics)
        keys = [key for key in task.metric_keys if key.endswith("accuracy")]
        splits = self.records[task.name][0].data["splits"]
        sizes = [about["examples"] for name, about in splits.items() if name != "train"]
        return weighted_accuracy([metrics[key] for key in keys], sizes)

    @property
    def average(self) -> float | None:
        """Macro average; None: a task has no number. Source: section 3.1."""
        scores = [self.score(task) for task in self.tasks]
        known = [score for score in scores if score is not None]
        return statistics.fmean(known) if known and len(known) == len(scores) else None

    @property
    def is_subset(self) -> bool:
        """Were the examples of a task fewer than the official ones?"""
        return any(record.data["is_subset"] for records in self.records.values() for record in records)

    @property
    def chance(self) -> float:
        """What the best constant answer to each task gives as the average; nan: the records do not say."""
        values = [self.constant(task) for task in self.tasks]
        return math.nan if None in values else statistics.fmean(value for value in values if value is not None)

    def constant(self, task: Task) -> float | None:
        """`score` of the best constant answer to a task; None: the records do not say."""
        ended = [record for record in self.records.get(task.name, ()) if record.failure is None]
        answers = ended[0].metrics.get("constant_answers") if ended else None
        return max(self._number(task, answer) for answer in answers) if answers else None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run of the study gave, seed by seed. A seed that was not run is not in it.

    Attributes:
        run: what was asked for.
        pretraining: pre-training seed -> its record, failed ones included.
        comparison: seed -> fine-tuning on all tasks, of a run of `ON_ALL_TASKS`.
        ablation: seed -> fine-tuning on the tasks of the ablations, of a run of `ABLATIONS`.
    """

    run: StudyRun
    pretraining: Mapping[int, RunRecord]
    comparison: Mapping[int, Downstream]
    ablation: Mapping[int, Downstream]

    @property
    def ended(self) -> dict[int, RunRecord]:
        """Pre-training records that did not fail."""
        return {seed: record for seed, record in self.pretraining.items() if record.failure is None}

    def metric(self, name: str) -> dict[int, float]:
        """A metric of pre-training by seed, such as `eval_perplexity_masked`; without seeds that do not have it."""
        return {seed: record.metrics[name] for seed, record in self.ended.items() if name in record.metrics}

    @property
    def on_plateau(self) -> bool:
        """Has a seed not left the unigram plateau?"""
        return any(self.metric("on_unigram_plateau").values())

    @property
    def lacks(self) -> tuple[str, ...]:
        """Kinds of corrupted tokens that its split asks for and that it was never trained on."""
        shares = zip(KINDS, parse_mask_split(self.run.config.mask_split), strict=True)
        executed = [record.identity.get("corruption", {}) for record in self.ended.values()]
        return tuple(kind for kind, share in shares if share and any(of.get(kind) == "0" for of in executed))

    @property
    def is_finished(self) -> bool:
        """Is there everything that the run's tables and figures need?"""
        if set(self.pretraining) != set(self.run.seeds):
            return False
        found = [self.comparison] * bool(set(ON_ALL_TASKS) & set(self.run.artefacts))
        found += [self.ablation] * bool(set(ABLATIONS) & set(self.run.artefacts))
        return all(
            seed in studies and len(studies[seed].records) == len(studies[seed].tasks)
            for studies in found
            for seed in self.ended
        )

    @property
    def own_perplexity(self) -> dict[int, float]:
        """Perplexity over the kinds of corrupted tokens in the proportions of the run's own split, by seed.

        All models are validated on one corruption; this weighs its kinds (in nats) as the run's `mask_split` does.
        What a model's own corruption would give differs in its context alone. Without seeds whose validation has no
        token of a kind.
        """
        shares = zip(KINDS, parse_mask_split(self.run.config.mask_split), strict=True)
        parts = [(share, self.metric(f"eval_perplexity_{kind}")) for kind, share in shares if share]
        return {
            seed: math.exp(sum(share * math.log(of[seed]) for share, of in parts))
            for seed in self.ended
            if all(seed in of for _, of in parts)
        }


def make_outcome(
    run: StudyRun,
    config: StudyConfig,
    pretraining: Mapping[int, RunRecord],
    finetuning: Mapping[int, Mapping[Point, RunRecord]],
) -> Outcome:
    """What a run gave; of fine-tuning only tasks whose planned runs are all there.

    Args:
        run: of the study.
        config: of the study.
        pretraining: pre-training seed -> record.
        finetuning: pre-training seed -> its fine-tunings.
    """
    studies: list[dict[int, Downstream]] = [
        {
            seed: _downstream(chosen, records, accuracies)
            for seed, records in finetuning.items()
            if artefacts & set(run.artefacts)
        }
        for chosen, accuracies, artefacts in (
            (comparison_config(config), False, set(ON_ALL_TASKS)),
            (ablation_config(config), True, set(ABLATIONS)),
        )
    ]
    return Outcome(run, pretraining, *studies)


def find_outcomes(
    config: StudyConfig,
    artefacts: Sequence[str] | None,
    pretraining: Iterable[RunRecord],
    finetuning: Iterable[RunRecord],
) -> list[Outcome]:
    """What the runs of tables and figures gave, found among records by their parameters; what has none is left out.

    `experiments.run_study` knows its runs by id; this is for where text and tasks are not at hand. It may overlook a
    run whose text or tasks were given by another path.

    Args:
        config: see `study_runs`.
        artefacts: see `study_runs`.
        pretraining: records of stage `pretrain`, oldest first; of two that answer the same the later one counts.
        finetuning: records of stage `finetune`, oldest first.
    """
    trained = [record for record in pretraining if has_parameters(record, config, DATA_PARAMETERS)]
    tuned: dict[str, list[RunRecord]] = {}
    for record in finetuning:
        encoder = record.data["checkpoint"]
        if not encoder.startswith(RANDOM) and has_parameters(record, config, FINETUNE_MATCH):
            tuned.setdefault(PurePath(encoder).parent.name, []).append(record)
    of_seed: dict[str, list[tuple[RunRecord, dict[str, Any]]]] = {}
    for record in trained:
        of_seed.setdefault(f"{record.parameters['seed']}", []).append((record, known_parameters(record)))
    outcomes = []
    for run in study_runs(config, artefacts):
        found: dict[int, RunRecord] = {}
        wanted = wanted_parameters(run.config)
        for seed in run.seeds:
            wanted["seed"] = seed
            for record, known in of_seed.get(f"{seed}", ()):
                if is_wanted(known, wanted):
                    found[seed] = record
        of_seeds = {seed: with_their_starts(tuned.get(r.run_id, ()), config) for seed, r in found.items()}
        outcomes.append(make_outcome(run, config, found, {seed: of for seed, of in of_seeds.items() if of}))
    return outcomes


def _downstream(config: StudyConfig, records: Mapping[Point, RunRecord], accuracies: bool) -> Downstream:
    """The tasks whose planned runs are all there."""
    tasks = tuple(select_tasks(config))
    done = {}
    for task in tasks:
        points = [point_of(run) for run in runs_of(task, config)]
        if all(point in records for point in points):
            done[task.name] = tuple(records[point] for point in points)
    return Downstream(tasks, done, accuracies)
