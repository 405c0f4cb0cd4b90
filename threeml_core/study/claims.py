"""The paper's claims, and what a study says of each by the rule of `verdicts`. No torch.

A comparison is in doubt while a model of a pair stands on the unigram plateau, or, downstream, while neither model is
above constant answers: such a pair differs by noise alone; and where one of the two was not trained on a kind of token
that its split asks for: such a pair differs by that too. The clock is an exception: its values are the sessions of a
benchmark, processes that timed the models in turns, and fewer than five of them that were quiet give no verdict. Runs
of a study share a machine and its days, so their clocks are not compared.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from threeml_core import flops
from threeml_core.benchmark.speeds import latest_sessions, realised_by_session, sessions_said
from threeml_core.config import (
    MODEL_NAMES,
    StudyConfig,
    corruption_of,
    identity_parameters,
    make_config,
    parse_grid,
    study_steps,
    variant,
)
from threeml_core.information.findings import first_block
from threeml_core.runs.ledger import has_parameters
from threeml_core.runs.record import RunRecord
from threeml_core.statistics.intervals import Spread, pooled_spread
from threeml_core.statistics.verdicts import Claim, Finding
from threeml_core.study.results import COMPARISON, Downstream, Outcome

MARGIN = 0.5
"""Points (of 100) within which two averages count as level. Ours; the paper names no bound."""

ABOVE_CHANCE = 1.0
"""Points above constant answers from which a model counts as having learned the tasks. Ours."""

FOLLOWS = 0.9
"""Share of the speed-up in FLOPs from which the wall clock follows it. Ours."""


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
        benchmarks: records of stage `benchmark`, a session each, oldest first; those of other models are left out.
    """
    look = _Lookup(config, outcomes)
    pools = _Pools.of(outcomes, config.pooled_variances)
    scores, perplexities = functools.partial(_scores, pools), functools.partial(_perplexities, pools)
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
            (scores(vanilla40, vanilla15, 0, math.inf),),
        ),
        Claim(
            "C2",
            "3ML_self at 40 and 50% loses nothing against the vanilla model.",
            "Figure 5, Table 3",
            tuple(scores(model, vanilla40, -MARGIN, math.inf) for model in (self40, self50)),
        ),
        Claim(
            "C3",
            "3ML_self is better downstream than 3ML_cross.",
            "Tables 2 and 3",
            (scores(self40, cross40, 0, math.inf),),
        ),
        Claim(
            "C4",
            "A shallow decoder is better downstream than a deep one.",
            "Table 2a",
            tuple(
                scores(
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
                scores(
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
                scores(
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
            "The vanilla model has the lower perplexity (all corrupted tokens), although it is no better downstream.",
            "Table 1",
            (
                *(perplexities(table1[a], table1["vanilla"]) for a in decoders),
                scores(self40, vanilla40, -MARGIN, math.inf),
            ),
        ),
        Claim(
            "C8",
            "After its first block the decoder knows as much of the masked tokens as the vanilla model's last layer.",
            "Figure 4",
            tuple(first_block(a, measured) for a in decoders),
        ),
        Claim(
            "C9",
            f"3ML_self at 50% needs fewer FLOPs ({_budgets()}), and the wall clock follows.",
            "Figure 5, Table 3",
            (_fewer_flops(self50), _clock(timed, config.pretrain_seeds)),
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
        names = ("architecture", "decoder_num_hidden_layers", "decoder_hidden_size")
        for outcome in self.outcomes:
            have = outcome.run.config.parameters()
            same = all(have[name] == wanted[name] for name in names)
            if (
                same
                and corruption_of(have) == corruption_of(wanted)  # in short sequences two rates may be one run
                and artefact in outcome.run.artefacts
                and have["max_steps"] == changes.get("max_steps", have["max_steps"])
            ):
                return outcome
        return None


def _paired(
    first: Mapping[int, float], second: Mapping[int, float], by: Callable[[float, float], float]
) -> tuple[float, ...]:
    return tuple(by(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys()))


def _doubt(*outcomes: Outcome) -> str:
    """Why a comparison of these models says nothing about what is compared, or ""."""
    if any(outcome.on_plateau for outcome in outcomes):
        return "on the unigram plateau"
    if len({outcome.lacks for outcome in outcomes}) < 2:
        return ""
    lacking = {f"{o.run.model} ({o.run.config.mask_split})": o.lacks for o in outcomes if o.lacks}
    return "; ".join(f"{model} was trained without {' and '.join(kinds)} tokens" for model, kinds in lacking.items())


def averages(studies: Mapping[int, Downstream]) -> dict[int, float]:
    """Macro average by pre-training seed, times 100; without seeds of which a task was not run."""
    return {seed: 100 * study.average for seed, study in studies.items() if study.average is not None}


@dataclasses.dataclass(frozen=True)
class _Pools:
    """Spreads over seeds of one model's values, pooled over the models of the study.

    Attributes:
        comparison: of the macro averages over all tasks; points.
        ablation: of those over the ablations' tasks; points.
        loss: of the validation losses; nats.
        judge: do they judge, or are they only shown?
    """

    comparison: Spread | None
    ablation: Spread | None
    loss: Spread | None
    judge: bool

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], judge: bool) -> _Pools:
        """Of all models of a study; of losses: of those whose losses are compared."""
        compared = [outcome for outcome in outcomes if "Table 1" in outcome.run.artefacts]
        return cls(
            pooled_spread([list(averages(outcome.comparison).values()) for outcome in outcomes]),
            pooled_spread([list(averages(outcome.ablation).values()) for outcome in outcomes]),
            pooled_spread([list(outcome.metric("eval_loss").values()) for outcome in compared]),
            judge,
        )


def _scores(
    pools: _Pools, first: Outcome | None, second: Outcome | None, low: float, high: float, what: str = ""
) -> Finding:
    """Difference of the macro averages; both of the same kind of fine-tuning."""
    if first is None or second is None:
        return Finding(what or "average", "points", low, high, ())
    what = what or f"{first.run.model} against {second.run.model}"
    in_table_3 = all(COMPARISON in outcome.run.artefacts for outcome in (first, second))
    studies = [outcome.comparison if in_table_3 else outcome.ablation for outcome in (first, second)]
    values = _paired(averages(studies[0]), averages(studies[1]), operator.sub)
    doubt = _doubt(first, second)
    if values and not doubt:
        above = [
            statistics.fmean(100 * (d.average - d.chance) for d in by_seed.values() if d.average is not None)
            for by_seed in studies
        ]
        if any(map(math.isnan, above)):
            doubt = "what constant answers give is not recorded"
        elif max(above) <= ABOVE_CHANCE:
            doubt = "no better than constant answers"
    spread = pools.comparison if in_table_3 else pools.ablation
    return Finding(f"{what}: average", "points", low, high, values, doubt, spread=spread, pooled=pools.judge)


def _perplexities(pools: _Pools, model: Outcome | None, vanilla: Outcome | None) -> Finding:
    """Difference of the validation losses over all corrupted tokens, on the corruption that every model sees."""
    if model is None or vanilla is None:
        return Finding("validation loss over all corrupted", "nats", 0, math.inf, ())
    values = _paired(model.metric("eval_loss"), vanilla.metric("eval_loss"), operator.sub)
    what = f"{model.run.model} against {vanilla.run.model}: loss over all corrupted"
    doubt = _doubt(model, vanilla)
    return Finding(what, "nats", 0, math.inf, values, doubt, spread=pools.loss, pooled=pools.judge)


def _budgets() -> str:
    """By the formula, for the paper's models."""
    parts = []
    for recipe in ("efficient-large", "longer-base"):
        config = make_config({"preset": recipe, "architecture": "self", "mask_rate": 0.5})
        parts.append(f"{100 / flops.config_speedup(config, 'paper', 0.15):.0f}% in {recipe}")
    return ", ".join(parts) + " by the formula"


def _clock(benchmarks: Sequence[RunRecord], seeds: int) -> Finding:
    """By the benchmark's sessions (`latest_sessions`), a value each.

    With one pre-training seed it gives no verdict either: a claim is judged as a whole.
    """
    what = "3ML_self-50% over vanilla-15%, benchmark: wall-clock speed-up as a share of the one in FLOPs"
    sessions = latest_sessions(benchmarks, "self-50")
    if not sessions:
        return Finding(what, "", FOLLOWS, math.inf, ())
    alone = "one pre-training seed: no verdict" if seeds == 1 else ""
    doubt = "; ".join(filter(None, (alone, sessions_said(sessions))))
    return Finding(what, "", FOLLOWS, math.inf, realised_by_session(sessions, "self-50"), doubt, "session")


def _fewer_flops(model: Outcome | None) -> Finding:
    """At this scale; the formula's value is the same with every seed."""
    found = [] if model is None else [record.flops for record in model.ended.values() if record.flops]
    values = tuple(1 / flops_of["speedup_over_vanilla_15"] for flops_of in found)
    return Finding("3ML_self-50%: FLOPs as a share of vanilla-15%'s", "", -math.inf, 1.0, values)


def _blocks(count: int) -> str:
    return f"{count} block{'s' * (count > 1)}"
