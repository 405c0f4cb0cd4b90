"""The rivals: ways of making masked-LM pre-training cheaper, tuned alike and compared at equal FLOPs. No torch.

Each is given the FLOPs of the baseline at several budgets, with the best of as many learning rates, and is judged by
what its frozen encoder knows (`study.probes`) and by masked loss on common corruptions. Not in the paper.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from threeml_core import flops
from threeml_core.benchmark.speeds import BASELINE as TURNS_BASELINE
from threeml_core.benchmark.speeds import Timed
from threeml_core.config import (
    DATA_PARAMETERS,
    StudyConfig,
    at_constant_rate,
    executed_parameters,
    executed_rate,
    variant,
)
from threeml_core.foundation.errors import ParameterError
from threeml_core.foundation.files import fingerprint
from threeml_core.information.ledger import probe_records
from threeml_core.runs.ledger import find
from threeml_core.runs.record import RunRecord
from threeml_core.statistics.verdicts import Claim, Finding
from threeml_core.study.experiment import Changes, Experiment, StudyRun
from threeml_core.study.ledger import results_of
from threeml_core.study.probes import RANDOM, Probes, compared
from threeml_core.study.results import Result
from threeml_core.study.rungs import TUNED, clock_record, turns_of


@dataclasses.dataclass(frozen=True)
class Rival:
    """A way of pre-training.

    Attributes:
        name: in tables.
        source: who proposed it.
        changes: of a study, to the parameters of the runs.
        colour: in figures; "": its architecture's.
    """

    name: str
    source: str
    changes: Callable[[StudyConfig], Changes]
    colour: str = ""


_PLAIN: Changes = {"mask_rate_schedule": "constant", "mask_adaptation": "none", "mask_split": "80-10-10"}
_PLAIN |= {"full_layers": None, "kept_share": 0.5}
"""What a rival has unless it says otherwise, whatever the study's configuration has."""


def _of(architecture: str, mask_rate: float, **changes: object) -> Callable[[StudyConfig], Changes]:
    return lambda config: {**_PLAIN, "architecture": architecture, "mask_rate": mask_rate, **changes}


def _mae_lm(mask_rate: float) -> Callable[[StudyConfig], Changes]:
    """A decoder as wide as the encoder, of a third of its layers, and nothing but [MASK]s."""

    def changes(config: StudyConfig) -> Changes:
        decoder = {
            "decoder_hidden_size": config.hidden_size,
            "decoder_num_hidden_layers": max(1, round(config.num_hidden_layers / 3)),
        }
        return {**_of("self", mask_rate, mask_split="100-0-0")(config), **decoder}

    return changes


_FALLING = {"mask_rate_schedule": "linear", "mask_rate_end": 0.15}
_ADAPTED = {"mask_adaptation": "hard", "mask_adaptation_steps": 50}  # theirs is 200, of longer runs
_3ML, _NARROW, _DROPPING = "Liao et al., EMNLP 2022", "Li et al., ACL 2023", "Hou et al., ACL 2022"
_MAE, _ADAPTIVE = "Meng et al., ICLR 2024", "Edman and Fraser, BabyLM 2025"
_SCHEDULE = "Ankner et al., EACL 2024"

RIVALS = (
    Rival("vanilla-40%", "Wettig et al., EACL 2023", _of("vanilla", 0.4)),
    Rival("vanilla-15%", "Liu et al., 2019", _of("vanilla", 0.15)),
    Rival("vanilla-40 to 15%", f"{_SCHEDULE}; rates of {_ADAPTIVE}", _of("vanilla", 0.4, **_FALLING)),
    Rival("3ML_self-40%", _3ML, _of("self", 0.4)),
    Rival("3ML_self-50%", _3ML, _of("self", 0.5)),
    Rival("MAE-LM-15%", _MAE, _mae_lm(0.15), "#8c6bb1"),
    Rival("MAE-LM-40%", f"{_MAE}; rate ours", _mae_lm(0.4), "#8c6bb1"),
    Rival("SparseQueries-15%", _NARROW, _of("sparse_queries", 0.15)),
    Rival("SparseQueries-40%", f"{_NARROW}; rate ours", _of("sparse_queries", 0.4)),
    Rival("ContextFirst-15%", _NARROW, _of("context_first", 0.15)),
    Rival("token dropping-15%", _DROPPING, _of("token_dropping", 0.15)),
    Rival("token dropping-40%", f"{_DROPPING}; rate ours", _of("token_dropping", 0.4)),
    Rival("adaptive-40 to 15%", _ADAPTIVE, _of("vanilla", 0.4, **_ADAPTED, **_FALLING), "#c2477f"),
    Rival("3ML_self-40 to 15%", f"{_3ML}, with {_SCHEDULE}", _of("self", 0.4, **_FALLING)),
    Rival(
        "3ML_self adaptive-40 to 15%",
        f"{_3ML}, with {_ADAPTIVE}",
        _of("self", 0.4, **_ADAPTED, **_FALLING),
        "#a6611a",
    ),
)
"""The first is the baseline, whose FLOPs all are given."""

RIVALRY = Experiment("Rivals", "ways of cheaper pre-training at equal FLOPs", models=())

LOSSES = ("0.15", "0.4")
"""Mask rates of the common corruptions on which masked loss is compared."""

Losses = dict[str, dict[str, float]]
"""Run -> {mask rate of the common corruption: masked loss in nats}."""


def chosen_rivals(config: StudyConfig) -> list[Rival]:
    """Those that `rivals` names, the baseline first.

    Raises:
        ParameterError: there is none of a name.
    """
    by_name = {rival.name: rival for rival in RIVALS}
    if config.rivals == "all":
        return list(RIVALS)
    names = [part.strip() for part in config.rivals.split(",")]
    if unknown := [name for name in names if name not in by_name]:
        raise ParameterError(f"rivals: no {unknown[0]!r}; expected all, or some of {', '.join(by_name)}")
    return [rival for rival in RIVALS if rival is RIVALS[0] or rival.name in names]


def share_of_flops(config: StudyConfig, rival: Rival) -> float:
    """FLOPs of a step of it, as a share of the baseline's; executed ones, those of the optimizer left out."""
    return step_flops(config, rival) / step_flops(config, RIVALS[0])


def step_flops(config: StudyConfig, rival: Rival, optimizer: bool = False) -> float:
    """FLOPs of a step of it, as executed; with those of Muon or without."""
    own = variant(config, **rival.changes(config))
    step = flops.training_flops(flops.forward_flops(own, "exact"), config.batch_size, 1, "exact")
    return step + flops.optimizer_flops(own) * optimizer


def _run(config: StudyConfig, rival: Rival, budget: int, **changes: object) -> StudyRun:
    """With the FLOPs of `budget` steps of the baseline."""
    steps = max(1, round(budget / share_of_flops(config, rival)))
    return StudyRun(variant(config, **rival.changes(config), **changes, max_steps=steps), (RIVALRY,))


def sweep_runs(config: StudyConfig, rival: Rival) -> list[StudyRun]:
    """Each learning rate of the optimizer, with a seed that is none of the comparison's."""
    name = TUNED[config.optimizer]
    same = config.replace(num_pretrain_seeds=1)
    return [_run(same, rival, config.sweep_steps, **{name: rate}) for rate in config.listed(f"sweep_{name}s")]


def best_rate(swept: Sequence[Result], losses: Losses) -> float | None:
    """The rate of the lowest masked loss, the mean of those at `LOSSES`.

    None: not all of the sweep has been run and examined, or all diverged.
    """
    found = []
    for result in swept:
        for record in result.pretraining.values():
            rate = getattr(result.run.config, TUNED[result.run.config.optimizer])
            loss = math.inf if record.failure else mean_loss(losses, record)
            found.append((loss, rate))
    if len(found) < len(swept) or any(math.isnan(loss) for loss, _ in found):
        return None
    loss, rate = min(found, default=(math.inf, None))
    return rate if loss < math.inf else None


def mean_loss(losses: Losses, record: RunRecord) -> float:
    """Masked loss of a run in nats, the mean of those at `LOSSES`; nan: not examined."""
    return (
        math.fsum(losses[record.run_id][rate] for rate in LOSSES) / len(LOSSES) if record.run_id in losses else math.nan
    )


def budget_runs(config: StudyConfig, rival: Rival, swept: Sequence[Result], losses: Losses) -> list[StudyRun]:
    """One for each of `rival_steps`, fewest first, at the best rate; none without that."""
    rate = best_rate(swept, losses)
    if rate is None:
        return []
    further = config.replace(seed=config.seed + 1)
    return [_run(further, rival, budget, **{TUNED[config.optimizer]: rate}) for budget in budgets(config)]


def budgets(config: StudyConfig) -> list[int]:
    """Steps of the baseline, fewest first."""
    return sorted(config.listed("rival_steps"))


@dataclasses.dataclass(frozen=True)
class Raced:
    """What a rival gave.

    Attributes:
        rival: which.
        share: FLOPs of its step, as a share of the baseline's.
        swept: its runs at each learning rate.
        results: of the budgets, fewest steps first.
        losses: of its runs.
        turns: (rounds,) core-seconds of a step (on a GPU seconds), in turns with the others; None: not measured.
        memory: peak bytes of training; None: not measured.
    """

    rival: Rival
    share: float
    swept: Sequence[Result]
    results: Sequence[Result]
    losses: Losses
    turns: np.ndarray | None = None
    memory: int | None = None

    def loss(self, number: int, rate: str) -> dict[int, float]:
        """Seed -> masked loss of the model of a budget (0: the smallest, -1: the largest) at a rate, in nats."""
        ended = self.results[number].ended if self.results else {}
        return {seed: self.losses[r.run_id][rate] for seed, r in ended.items() if r.run_id in self.losses}


@dataclasses.dataclass(frozen=True)
class Race:
    """What the rivals gave.

    Attributes:
        raced: each of them, the baseline first.
        probes: what was found of their encoders at the largest budget; None: not probed.
        examined: run -> the record of its masked losses.
    """

    raced: Sequence[Raced]
    probes: Probes | None
    examined: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def of(self, name: str) -> Raced | None:
        """That of a rival; None: it does not take part."""
        return next((raced for raced in self.raced if raced.rival.name == name), None)

    def findings(self, raced: Raced, other: Raced) -> dict[str, Finding]:
        """What is compared -> one rival minus another at the largest budget, paired by seed; a gain is in range."""
        found = {}
        what = f"{raced.rival.name} - {other.rival.name}"
        if self.probes is not None:
            found["probes"] = compared(self.probes, raced.rival.name, other.rival.name, 0, math.inf, what)
        for rate in LOSSES:
            own, others = raced.loss(-1, rate), other.loss(-1, rate)
            values = tuple(own[seed] - others[seed] for seed in own if seed in others)
            found[f"loss at {float(rate):.0%}"] = Finding(what, "nats", -math.inf, 0, values)
        return found

    @property
    def claims(self) -> dict[tuple[str, str], Claim]:
        """(rival, what is compared) -> that it is better than the baseline, each a claim of its own."""
        return {
            (raced.rival.name, name): Claim(raced.rival.name, name, "", (finding,))
            for raced in self.raced[1:]
            for name, finding in self.findings(raced, self.raced[0]).items()
        }


def timed(config: StudyConfig, rivals: Sequence[Rival]) -> dict[str, Timed]:
    """Name -> what is timed; the baseline has the benchmark's name for that.

    A schedule is timed at the constant rate that it has in the mean.
    """
    same = {"learning_rate": 1.0, "muon_learning_rate": 1.0, "max_steps": 1000, "seed": 0}
    found = {}
    for rival in rivals:
        at = variant(config, **rival.changes(config), **same)
        if at.mask_rate_schedule != "constant":
            at = at_constant_rate(at, executed_rate(at))
        name = TURNS_BASELINE if rival is RIVALS[0] else rival.name
        found[name] = Timed(fingerprint([True, executed_parameters(at)]), at, True)
    return found


def losses_of(rates: Iterable[RunRecord]) -> Losses:
    """Of records of the rate matrix, those at `LOSSES`."""
    return {
        of.data["run"]: {rate: math.log(of.metrics["rates"][rate]["eval_perplexity_masked"]) for rate in LOSSES}
        for of in rates
        if set(LOSSES) <= of.metrics["rates"].keys()
    }


def raced(
    config: StudyConfig,
    rivals: Sequence[Rival],
    losses: Losses,
    clock: RunRecord | None,
    records: Iterable[RunRecord] | None = None,
) -> list[Raced]:
    """What the records say; None of pre-training: those in `runs_dir`.

    Args:
        config: the study.
        rivals: which.
        losses: of all their runs.
        clock: of `measure_steps`, with all of `timed`.
        records: of pre-training.
    """
    records = None if records is None else list(records)
    turns = turns_of(clock) if clock else {}
    memory = clock.metrics.get("peak_memory_bytes", {}) if clock else {}
    swept = swept_results(config, rivals, records)
    found = []
    for rival, of, (name, at) in zip(rivals, swept, timed(config, rivals).items(), strict=True):
        results = results_of(config, budget_runs(config, rival, of, losses), records, any_text=records is not None)
        share = share_of_flops(config, rival)
        found.append(Raced(rival, share, of, results, losses, turns.get(at.key), memory.get(name)))
    return found


def swept_results(
    config: StudyConfig, rivals: Sequence[Rival], records: Iterable[RunRecord] | None = None
) -> list[list[Result]]:
    """Of each rival what the sweep gave."""
    of_rivals = [sweep_runs(config, rival) for rival in rivals]
    results = iter(results_of(config, itertools.chain(*of_rivals), records, any_text=records is not None))
    return [list(itertools.islice(results, len(runs))) for runs in of_rivals]


def check_rates(config: StudyConfig) -> None:
    """Refuse `probe_rates` that lack one of `LOSSES`, with a `ParameterError`."""
    if missing := [rate for rate in LOSSES if float(rate) not in config.listed("probe_rates")]:
        raise ParameterError(f"probe_rates={config.probe_rates!r}: {missing[0]} is compared here, put it among them")


Asked = tuple[str, int, RunRecord]
"""A model (a rival, or random weights), a seed, and the pre-training whose encoder is probed, or has its size."""


def encoders_of(found: Sequence[Raced]) -> list[Asked]:
    """What is probed: the encoders of the largest budget, and the baseline's with random weights."""
    asked: list[Asked] = []
    for of in found:
        ended = of.results[-1].ended if of.results else {}
        for name in (of.rival.name, *([RANDOM] if of is found[0] else [])):
            asked += [(name, seed, run) for seed, run in ended.items()]
    return asked


def probes_of_encoders(words: RunRecord, asked: Sequence[Asked], answers: Sequence[RunRecord | None]) -> Probes:
    """What the probes found; None: that encoder was not probed."""
    models: dict[str, dict[int, RunRecord]] = {}
    for (name, seed, _), answer in zip(asked, answers, strict=True):
        if answer is not None:
            models.setdefault(name, {})[seed] = answer
    return Probes(words, models, {})


def read_race(config: StudyConfig) -> Race:
    """What the records say, as far as there are any.

    Raises:
        ParameterError: see `chosen_rivals`, `check_rates`.
    """
    rivals = chosen_rivals(config)
    check_rates(config)
    rates = find(config, "rates", (*DATA_PARAMETERS, "probe_rates"))
    examined = {record.data["run"]: record.run_id for record in rates}
    found = raced(config, rivals, losses_of(rates), clock_record(config, timed(config, rivals)))
    asked = encoders_of(found)
    try:
        words, *there = probe_records(config)
    except ParameterError:
        return Race(found, None, examined)
    answers = [_answer(there, run, seed if name == RANDOM else None) for name, seed, run in asked]
    return Race(found, probes_of_encoders(words, asked, answers) if asked else None, examined)


def _answer(there: Sequence[RunRecord], run: RunRecord, weights_seed: int | None) -> RunRecord | None:
    """The newest record of a run's encoder, or of one of its size with the random weights of a seed."""
    if weights_seed is None:
        found = [record for record in there if record.data["run"] == run.run_id and not record.data["is_random"]]
    else:
        size = run.data["encoder_parameters"]
        alike = [record for record in there if record.data["parameters"] == size]
        found = [record for record in alike if record.identity["weights_seed"] == weights_seed]
    return found[-1] if found else None
