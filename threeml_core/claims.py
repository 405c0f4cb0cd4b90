"""The paper's claims, and what a study says of each by a rule that no result can change. No torch.

The rule. A claim is one or more comparisons; a comparison is a difference (or ratio) that the claim says lies in a
range. Differences are paired by pre-training seed: both models of a pair have the same seed, hence the same order of
the text. Their mean has a 95% interval by Student's t over the seeds. `supported`: the interval lies in the range;
`contradicted`: it lies outside; else `undecided`. A claim of several comparisons is supported if all are, and
contradicted if one is at a level that makes this as rare as for a single one (Bonferroni: 1 - 0.05 / comparisons). One
seed gives no interval, hence no verdict. Nor is there one while a model of a pair stands on the unigram plateau, or,
downstream, while neither model is above constant answers: such a pair differs by noise alone. The clock is an
exception: its values are the rounds of a benchmark, where there is one, as runs beside each other share a machine.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from scipy import optimize, stats

from threeml_core import flops
from threeml_core.config import MODEL_NAMES, StudyConfig, identity_parameters, make_config, parse_grid
from threeml_core.information import LayerInformation
from threeml_core.ledger import has_parameters
from threeml_core.results import RunRecord
from threeml_core.speeds import conversions
from threeml_core.study import COMPARISON, Downstream, Outcome, study_steps, variant

MARGIN = 0.5
"""Points (of 100) within which two averages count as level. Ours; the paper names no bound."""

ABOVE_CHANCE = 1.0
"""Points above constant answers from which a model counts as having learned the tasks. Ours."""

FOLLOWS = 0.9
"""Share of the speed-up in FLOPs from which the wall clock follows it. Ours."""

LEVEL = 0.9
"""Share of the vanilla model's last layer from which a decoder block holds as much. Ours."""

SUPPORTED, CONTRADICTED, UNDECIDED, NOT_RUN = "supported", "contradicted", "undecided", "not run"


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95% interval by Student's t; no bounds with fewer than two seeds."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Mean and interval of independent values, one a seed."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, None, None, len(values))
    error = statistics.stdev(values) / math.sqrt(len(values))
    half = float(stats.t.ppf((1 + level) / 2, len(values) - 1)) * error
    return Interval(mean, mean - half, mean + half, len(values))


def difference_interval(first: Sequence[float], second: Sequence[float], level: float = 0.95) -> Interval:
    """Difference of two means of independent values with its interval by Welch's t; no bounds with fewer than two.

    Args:
        first: values of one kind of run; may be empty.
        second: of the other.
        level: of the interval.
    """
    seeds = min(len(first), len(second))
    if not seeds:
        return Interval(math.nan, None, None, 0)
    mean = statistics.fmean(first) - statistics.fmean(second)
    if seeds < 2:
        return Interval(mean, None, None, seeds)
    errors = [(statistics.variance(values) / len(values), len(values) - 1) for values in (first, second)]
    error = sum(squared for squared, _ in errors)
    if not error:
        return Interval(mean, mean, mean, seeds)
    # scipy's own interval warns where one side is constant, as without pre-training
    freedom = error**2 / sum(squared**2 / own for squared, own in errors)
    half = float(stats.t.ppf((1 + level) / 2, freedom)) * math.sqrt(error)
    return Interval(mean, mean - half, mean + half, seeds)


def detectable_difference(deviation: float, seeds: int, level: float = 0.95, power: float = 0.8) -> float:
    """The smallest true mean whose interval leaves out zero with probability `power`; inf with one seed.

    Source: the power of the two-sided t-test of one sample (here: of differences paired by seed). The noncentral t is
    integrated over the standard error's own distribution, as scipy's has no value for few seeds.

    Args:
        deviation: standard deviation of the differences over seeds.
        seeds: how many there are.
        level: of the interval.
        power: probability of seeing the difference.
    """
    if seeds < 2:
        return math.inf
    if deviation == 0:
        return 0.0
    freedom = seeds - 1
    bound = float(stats.t.ppf((1 + level) / 2, freedom))
    shares = (np.arange(2000) + 0.5) / 2000
    errors = np.sqrt(stats.chi2.ppf(shares, freedom) / freedom)  # estimated over true standard error

    def missing(shift: float) -> float:
        return float(np.mean(stats.norm.cdf(shift - bound * errors) + stats.norm.cdf(-shift - bound * errors))) - power

    return float(optimize.brentq(missing, 0, 10 * bound)) * deviation / math.sqrt(seeds)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One comparison of a claim.

    Attributes:
        what: first model minus second model, of what.
        unit: of the values.
        low: lower end of the range that the claim says; -inf: none.
        high: upper end; inf: none.
        values: one a pre-training seed, or a round of the benchmark; empty: not run.
        doubt: why the values mean nothing, or "".
    """

    what: str
    unit: str
    low: float
    high: float
    values: tuple[float, ...]
    doubt: str = ""

    @property
    def interval(self) -> Interval | None:
        """Of the values; None: not run."""
        return mean_interval(self.values) if self.values else None

    @property
    def detectable(self) -> float | None:
        """What these seeds could show, by their own spread; see `detectable_difference`. None: fewer than two."""
        if len(self.values) < 2:
            return None
        return detectable_difference(statistics.stdev(self.values), len(self.values))

    @property
    def range(self) -> str:
        """What the claim says, in words."""
        if self.high == math.inf:
            return f"above {self.low:g}"
        return f"below {self.high:g}" if self.low == -math.inf else f"{self.low:g} to {self.high:g}"

    def judge(self, level: float = 0.95) -> str:
        """See the module's rule."""
        if not self.values:
            return NOT_RUN
        found = mean_interval(self.values, level)
        if self.doubt or found.low is None or found.high is None:
            return UNDECIDED
        if self.low < found.low and found.high < self.high:
            return SUPPORTED
        return CONTRADICTED if found.high < self.low or found.low > self.high else UNDECIDED

    @property
    def verdict(self) -> str:
        """At 95%."""
        return self.judge()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why there is no verdict."""
        if not self.values:
            return ("not all is run",)
        one = "one pre-training seed: no interval" if len(self.values) == 1 else ""
        return tuple(filter(None, (one, self.doubt)))


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim of the paper with what was found.

    Attributes:
        name: C1 to C9.
        text: what it says.
        where: in the paper.
        findings: its comparisons.
    """

    name: str
    text: str
    where: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        """Of all comparisons together."""
        level = 1 - 0.05 / max(1, len(self.findings))
        if any(finding.judge(level) == CONTRADICTED for finding in self.findings):
            return CONTRADICTED
        verdicts = [finding.verdict for finding in self.findings]
        if all(verdict == NOT_RUN for verdict in verdicts):
            return NOT_RUN
        return SUPPORTED if all(verdict == SUPPORTED for verdict in verdicts) else UNDECIDED

    @property
    def reasons(self) -> str:
        """Why there is no verdict, or ""."""
        if self.verdict != UNDECIDED:
            return ""
        found = dict.fromkeys(reason for finding in self.findings for reason in finding.reasons)
        return "; ".join(found) or "the interval reaches beyond the range"


def claims(
    config: StudyConfig,
    outcomes: Sequence[Outcome],
    information: Iterable[RunRecord],
    benchmarks: Iterable[RunRecord] = (),
) -> list[Claim]:
    """All nine claims, with what the runs of a study say.

    Source: the claims are those of Figures 3 to 5 and Tables 1 to 3.

    Args:
        config: of the study.
        outcomes: of all its runs.
        information: records of stage `mutual_information`, oldest first; those of other runs are left out.
        benchmarks: records of stage `benchmark`, oldest first; those of other models are left out. C9's clock is
            that of the newest, where the machine was quiet; else that of the runs.
    """
    look = _Lookup(config, outcomes)
    vanilla15, vanilla40 = look.model("vanilla", 0.15), look.model("vanilla", 0.4)
    self40, self50, cross40 = look.model("self", 0.4), look.model("self", 0.5), look.model("cross", 0.4)
    table1 = {a: look.ablation("Table 1", architecture=a) for a in ("vanilla", "self", "cross")}
    depths = parse_grid("study_depths", config.study_depths)
    deepest = max(depths)
    shallow = [d for d in depths if 1 < d < deepest] or [d for d in depths if d < deepest]
    width = config.decoder_hidden_size
    splits = [split.strip() for split in config.study_splits.split(",")]
    decoders = ("self", "cross")
    runs = {r.run_id for o in outcomes if "Figure 4" in o.run.artefacts for r in o.ended.values()}
    measured = [record for record in information if record.data["run"] in runs]
    timed = [record for record in benchmarks if has_parameters(record, config, identity_parameters(config))]
    return [
        Claim(
            "C1",
            "Masking 40% beats 15% for the vanilla model.",
            "Figure 3, Table 3",
            (_scores(vanilla40, vanilla15, 0, math.inf),),
        ),
        Claim(
            "C2",
            "3ML_self at 40 and 50% loses nothing against the vanilla model.",
            "Figure 5, Table 3",
            tuple(_scores(model, vanilla40, -MARGIN, math.inf) for model in (self40, self50)),
        ),
        Claim(
            "C3",
            "3ML_self is better downstream than 3ML_cross.",
            "Tables 2 and 3",
            (_scores(self40, cross40, 0, math.inf),),
        ),
        Claim(
            "C4",
            "A shallow decoder is better downstream than a deep one.",
            "Table 2a",
            tuple(
                _scores(
                    look.ablation("Table 2a", architecture=a, decoder_num_hidden_layers=depth),
                    look.ablation("Table 2a", architecture=a, decoder_num_hidden_layers=deepest),
                    0,
                    math.inf,
                    f"{MODEL_NAMES[a]}, {_blocks(depth)} against {deepest}",
                )
                for a in decoders
                for depth in shallow
            ),
        ),
        Claim(
            "C5",
            "The decoder's width hardly matters.",
            "Table 2b",
            tuple(
                _scores(
                    look.ablation("Table 2b", architecture=a, decoder_hidden_size=other),
                    look.ablation("Table 2b", architecture=a, decoder_hidden_size=width),
                    -MARGIN,
                    MARGIN,
                    f"{MODEL_NAMES[a]}, width {other} against {width}",
                )
                for a in decoders
                for other in parse_grid("study_widths", config.study_widths)
                if other != width
            ),
        ),
        Claim(
            "C6",
            "Unchanged tokens matter: 80-10-10 and 80-0-20 beat 100-0-0.",
            "Table 2c",
            tuple(
                _scores(
                    look.ablation("Table 2c", architecture=a, mask_split=split),
                    look.ablation("Table 2c", architecture=a, mask_split="100-0-0"),
                    0,
                    math.inf,
                    f"{MODEL_NAMES[a]}, {split} against 100-0-0",
                )
                for a in decoders
                for split in splits
                if split in ("80-10-10", "80-0-20")
            ),
        ),
        Claim(
            "C7",
            "The vanilla model has the lower perplexity, although it is no better downstream.",
            "Table 1",
            (
                *(_perplexities(table1[a], table1["vanilla"]) for a in decoders),
                _scores(self40, vanilla40, -MARGIN, math.inf),
            ),
        ),
        Claim(
            "C8",
            "After its first block the decoder knows as much of the masked tokens as the vanilla model's last layer.",
            "Figure 4",
            tuple(_information(a, measured) for a in decoders),
        ),
        Claim(
            "C9",
            f"3ML_self at 50% needs fewer FLOPs ({_budgets()}), and the wall clock follows.",
            "Figure 5, Table 3",
            (_fewer_flops(self50), _measured_clock(timed, config.pretrain_seeds) or _wall_clock(self50, vanilla15)),
        ),
    ]


class _Lookup:
    """Outcomes by what is varied."""

    def __init__(self, config: StudyConfig, outcomes: Sequence[Outcome]) -> None:
        self.config, self.outcomes = config, outcomes

    def model(self, architecture: str, mask_rate: float) -> Outcome | None:
        """A model of Table 3, at equal updates."""
        changes = {"architecture": architecture, "mask_rate": mask_rate, "max_steps": study_steps(self.config)}
        return self.ablation(COMPARISON, **changes)

    def ablation(self, artefact: str, **changes: object) -> Outcome | None:
        """The run of a table with these values; what is not given is the default's, but for the updates."""
        wanted = variant(self.config, **changes).parameters()
        names = ("architecture", "mask_rate", "mask_split", "decoder_num_hidden_layers", "decoder_hidden_size")
        for outcome in self.outcomes:
            have = outcome.run.config.parameters()
            same = all(have[name] == wanted[name] for name in names)
            if (
                same
                and artefact in outcome.run.artefacts
                and have["max_steps"] == changes.get("max_steps", have["max_steps"])
            ):
                return outcome
        return None


def _paired(
    first: Mapping[int, float], second: Mapping[int, float], by: Callable[[float, float], float]
) -> tuple[float, ...]:
    return tuple(by(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys()))


def _plateau(*outcomes: Outcome) -> str:
    return "on the unigram plateau" if any(outcome.on_plateau for outcome in outcomes) else ""


def averages(studies: Mapping[int, Downstream]) -> dict[int, float]:
    """Macro average by pre-training seed, times 100; without seeds of which a task was not run."""
    return {seed: 100 * study.average for seed, study in studies.items() if study.average is not None}


def _scores(first: Outcome | None, second: Outcome | None, low: float, high: float, what: str = "") -> Finding:
    """Difference of the macro averages; both of the same kind of fine-tuning."""
    if first is None or second is None:
        return Finding(what or "average", "points", low, high, ())
    what = what or f"{first.run.model} against {second.run.model}"
    in_table_3 = all(COMPARISON in outcome.run.artefacts for outcome in (first, second))
    studies = [outcome.comparison if in_table_3 else outcome.ablation for outcome in (first, second)]
    values = _paired(averages(studies[0]), averages(studies[1]), operator.sub)
    doubt = _plateau(first, second)
    if values and not doubt:
        above = [
            statistics.fmean(100 * (d.average - d.chance) for d in by_seed.values() if d.average is not None)
            for by_seed in studies
        ]
        if any(map(math.isnan, above)):
            doubt = "what constant answers give is not recorded"
        elif max(above) <= ABOVE_CHANCE:
            doubt = "no better than constant answers"
    return Finding(f"{what}: average", "points", low, high, values, doubt)


def _perplexities(model: Outcome | None, vanilla: Outcome | None) -> Finding:
    """Difference of the validation losses over all corrupted tokens, on the corruption that every model sees."""
    if model is None or vanilla is None:
        return Finding("validation loss", "nats", 0, math.inf, ())
    values = _paired(model.metric("eval_loss"), vanilla.metric("eval_loss"), operator.sub)
    what = f"{model.run.model} against {vanilla.run.model}: loss"
    return Finding(what, "nats", 0, math.inf, values, _plateau(model, vanilla))


def _information(architecture: str, records: Sequence[RunRecord]) -> Finding:
    """What the first decoder block knows, as a share of what the vanilla model's last layer knows; the latest pairs."""
    values: dict[int, float] = {}
    doubts: dict[int, str] = {}
    references: dict[tuple[object, ...], tuple[RunRecord, LayerInformation]] = {}
    for vanilla in (record for record in records if record.parameters["architecture"] == "vanilla"):
        if last := _layer(vanilla, vanilla.parameters["num_hidden_layers"]):
            references[_measured_how(vanilla)] = vanilla, last
    for first in (record for record in records if record.parameters["architecture"] == architecture):
        block = _layer(first, 1)
        if block and (reference := references.get(_measured_how(first))):
            vanilla, last = reference
            seed = first.parameters["seed"]
            values[seed] = block.value / last.value if last.value > 0 else math.nan
            flat = first.data["on_unigram_plateau"] or vanilla.data["on_unigram_plateau"]
            few = not (block.has_enough_states and last.has_enough_states)
            doubts[seed] = "on the unigram plateau" if flat else "too few states" if few else ""
    what = f"{MODEL_NAMES[architecture]}, first block, as a share of vanilla's last"
    doubt = "; ".join(dict.fromkeys(filter(None, doubts.values())))
    return Finding(what, "", LEVEL, math.inf, tuple(values[seed] for seed in sorted(values)), doubt)


def _layer(record: RunRecord, number: int) -> LayerInformation | None:
    return next((LayerInformation(**of) for of in record.metrics["layers"] if of["layer"] == number), None)


def _measured_how(record: RunRecord) -> tuple[object, ...]:
    """Equal for runs of a seed that were asked about the same [MASK]s, and clustered in the same way."""
    names = ("seed", "clusters", "kmeans_seeds", "kmeans_passes", "kmeans_batch_size", "states_final_norm")
    return (*(record.parameters[name] for name in names), record.data["sample"])


def _budgets() -> str:
    """By the formula, for the paper's models."""
    parts = []
    for recipe in ("efficient-large", "longer-base"):
        config = make_config({"preset": recipe, "architecture": "self", "mask_rate": 0.5})
        parts.append(f"{100 / flops.config_speedup(config, 'paper', 0.15):.0f}% in {recipe}")
    return ", ".join(parts) + " by the formula"


def wall_clock_speedup(model: Outcome, baseline: Outcome) -> tuple[float, ...]:
    """Tokens a second of a model over those of the baseline, by pre-training seed, where both had the same machine.

    That includes threads and `workers`: what shares a machine with others is slower.
    """
    speeds = [
        {
            seed: record.timing["tokens_per_second"]
            for seed, record in outcome.ended.items()
            if _alike(seed, model, baseline)
        }
        for outcome in (model, baseline)
    ]
    return _paired(speeds[0], speeds[1], operator.truediv)


def _alike(seed: int, *outcomes: Outcome) -> bool:
    records = [outcome.ended[seed] for outcome in outcomes if seed in outcome.ended]
    machines = {str((record.environment["hardware"], record.parameters["workers"])) for record in records}
    return len(machines) == 1


_CLOCK = "wall-clock speed-up as a share of the one in FLOPs"


def _measured_clock(benchmarks: Sequence[RunRecord], seeds: int) -> Finding | None:
    """By the newest benchmark, round by round; None: there is none that gives speeds.

    With one pre-training seed it gives no verdict either: a claim is judged as a whole.
    """
    what = f"3ML_self-50% over vanilla-15%, benchmark: {_CLOCK}"
    values = conversions(benchmarks[-1], "self-50") if benchmarks else ()
    doubt = "one pre-training seed: no verdict" if seeds == 1 else ""
    return Finding(what, "", FOLLOWS, math.inf, values, doubt) if values else None


def _wall_clock(model: Outcome | None, baseline: Outcome | None) -> Finding:
    """By the runs themselves, seed by seed."""
    what = _CLOCK
    if model is None or baseline is None:
        return Finding(what, "", FOLLOWS, math.inf, ())
    expected = [record.flops["speedup_over_vanilla_15"] for record in model.ended.values() if record.flops]
    values = tuple(value / expected[0] for value in wall_clock_speedup(model, baseline)) if expected else ()
    return Finding(f"{model.run.model} over {baseline.run.model}: {what}", "", FOLLOWS, math.inf, values)


def _fewer_flops(model: Outcome | None) -> Finding:
    """At this scale; the formula's value is the same with every seed."""
    found = [] if model is None else [record.flops for record in model.ended.values() if record.flops]
    values = tuple(1 / flops_of["speedup_over_vanilla_15"] for flops_of in found)
    return Finding("3ML_self-50%: FLOPs as a share of vanilla-15%'s", "", -math.inf, 1.0, values)


def _blocks(count: int) -> str:
    return f"{count} block{'s' * (count > 1)}"
