"""What the comparisons of the paper's claims are made of: differences between models of a study. No torch.

A comparison is in doubt while a model of a pair stands on the unigram plateau, or, downstream, while neither model is
above constant answers: such a pair differs by noise alone; and where one of the two was not trained on a kind of token
that its split asks for: such a pair differs by that too.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from threeml_core.config import StudyConfig, executed_parameters, study_steps, variant
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.runs.record import RunRecord
from threeml_core.statistics.intervals import pooled_spread
from threeml_core.statistics.verdicts import Finding
from threeml_core.study.results import Downstream, Result, averages

MARGIN = 0.5
"""Points (of 100) within which two averages count as level. Ours; the paper names no bound."""

ABOVE_CHANCE = 1.0
"""Points above constant answers from which a model counts as having learned the tasks. Ours."""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """All that was run of a study: results of its runs, and records, oldest first.

    Those are of stage `mutual_information` for the runs of Figure 4, and of stage `benchmark` (a session each).
    """

    config: StudyConfig
    results: Sequence[Result]
    information: Sequence[RunRecord] = ()
    benchmarks: Sequence[RunRecord] = ()

    def model(self, architecture: str, mask_rate: float) -> Result | None:
        """A model of Table 3, at equal steps."""
        return self.of("Table 3", architecture=architecture, mask_rate=mask_rate, max_steps=study_steps(self.config))

    def of(self, exhibit: str, **changes: object) -> Result | None:
        """The run of a table or figure with these values; what is not given is the study's, but for the steps."""
        wanted = executed_parameters(variant(self.config, **changes))  # in short sequences two rates may be one run
        steps = {} if "max_steps" in changes else {"max_steps": wanted["max_steps"]}
        there = (result for result in self.results if exhibit in result.run.exhibits)
        return next((r for r in there if {**executed_parameters(r.run.config), **steps} == wanted), None)

    def scores(
        self, first: Result | None, second: Result | None, low: float, high: float, what: str = "", varied: str = ""
    ) -> Finding:
        """Difference of the macro averages (None: not in the study), which the claim says lies from `low` to `high`.

        Both are of the same kind of fine-tuning; in points. `what` says the two in words, else by their names;
        `varied` is the parameter in which they differ, if they have architecture and mask rate in common.
        """
        if first is None or second is None:
            return Finding(what or "average", "points", low, high, (), planned=False)
        pair = (first, second)
        kind = "comparison" if all("Table 3" in result.run.exhibits for result in pair) else "ablation"
        studies = [getattr(result, kind) for result in pair]
        values = _paired(averages(studies[0]), averages(studies[1]))
        doubt = doubt_of(*pair) or (_no_learning(studies) if values else "")
        what = f"{what or f'{first.run.model} against {second.run.model}'}: average"
        settings = tuple(_setting(result, varied) for result in pair)
        return Finding(what, "points", low, high, values, doubt, settings=settings, **self._pooled[kind])

    def variants(
        self, exhibit: str, parameter: str, words: Mapping[Any, str], other: Any, low: float, high: float
    ) -> tuple[Finding, ...]:
        """`scores` of 3ML_self and 3ML_cross with each value of a parameter, in words, against another value."""
        return tuple(
            self.scores(
                self.of(exhibit, architecture=architecture, **{parameter: value}),
                self.of(exhibit, architecture=architecture, **{parameter: other}),
                low,
                high,
                f"{ARCHITECTURES[architecture].label}, {said} against {other}",
                parameter,
            )
            for architecture in ("self", "cross")
            for value, said in words.items()
        )

    def losses(self, model: Result | None, vanilla: Result | None) -> Finding:
        """Difference of the validation losses over all corrupted tokens, on the corruption that every model sees."""
        if model is None or vanilla is None:
            return Finding("validation loss over all corrupted", "nats", 0, math.inf, (), planned=False)
        values = _paired(model.metric("eval_loss"), vanilla.metric("eval_loss"))
        what = f"{model.run.model} against {vanilla.run.model}: loss over all corrupted"
        settings, doubt = (_setting(model), _setting(vanilla)), doubt_of(model, vanilla)
        return Finding(what, "nats", 0, math.inf, values, doubt, settings=settings, **self._pooled["loss"])

    @functools.cached_property
    def _pooled(self) -> dict[str, dict[str, Any]]:
        """Of a `Finding`: how one model's values vary over seeds, pooled over the models, and whether that judges."""
        values = {
            "comparison": [averages(result.comparison) for result in self.results],
            "ablation": [averages(result.ablation) for result in self.results],
            "loss": [r.metric("eval_loss") for r in self.results if "Table 1" in r.run.exhibits],
        }
        spreads = {kind: pooled_spread([list(by_seed.values()) for by_seed in of]) for kind, of in values.items()}
        return {kind: {"spread": of, "pooled": self.config.pooled_variances} for kind, of in spreads.items()}


def _setting(result: Result, varied: str = "") -> str:
    c = result.run.config
    setting = f"{c.architecture} {c.mask_rate:g}"
    return f"{setting} {varied}={getattr(c, varied)}" if varied else setting


def _paired(first: Mapping[int, float], second: Mapping[int, float]) -> tuple[float, ...]:
    """First minus second, seed by seed."""
    return tuple(first[seed] - second[seed] for seed in sorted(first.keys() & second.keys()))


def doubt_of(*results: Result) -> str:
    """Why a comparison of these models says nothing about what is compared, or ""."""
    if any(result.on_plateau for result in results):
        return "on the unigram plateau"
    if len({result.lacks for result in results}) < 2:
        return ""
    lacking = {f"{r.run.model} ({r.run.config.mask_split})": r.lacks for r in results if r.lacks}
    return "; ".join(f"{model} was trained without {' and '.join(kinds)} tokens" for model, kinds in lacking.items())


def _no_learning(studies: Sequence[Mapping[int, Downstream]]) -> str:
    """Why their scores say nothing of what was learned, or ""."""
    above = [
        statistics.fmean(100 * (d.average - d.chance) for d in by_seed.values() if d.average is not None)
        for by_seed in studies
    ]
    if any(map(math.isnan, above)):
        return "what constant answers give is not recorded"
    return "no better than constant answers" if max(above) <= ABOVE_CHANCE else ""
