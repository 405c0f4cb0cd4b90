"""Figures that the paper reports, as one tidy table: artefact, recipe, model, setting, metric, value."""

from __future__ import annotations

import csv
import dataclasses
import functools
from pathlib import Path

RECIPES = ("efficient-large", "longer-base")
"""The paper's two, as the presets are called."""

_FILE = Path(__file__).with_name("paper_values.csv")


@dataclasses.dataclass(frozen=True)
class ReportedValue:
    """One number that the paper reports.

    Attributes:
        artefact: table, figure or section it stands in.
        recipe: `efficient-large` or `longer-base`, as the presets are called.
        model: as the paper names it, such as `3ML_self-40%`.
        setting: architecture and mask rate, such as `self 0.4`; with thousands of steps where they matter, and with
            the parameter that an ablation varies, such as `self 0.4 decoder_hidden_size=256`. `bert` and `electra` are
            the baselines whose masking is not ours.
        metric: `speedup` (ratio), `speedup_at_steps` (ratio of total FLOPs to 125K baseline steps), `speedup_said`
            (ratio, in the text only), `parameters` (millions), `budget` (percent), `steps` (thousands),
            `encoder_share` (percent), `v100_hours`, `perplexity`, `best_mask_rate` and `<task>_best_mask_rate`
            (percent; figures without numbers, what the text says of them), `glue_average`, `ablation_average` and
            `<task>_<metric>` with the names of `threeml_core.glue.tasks` (all times 100, as reported; MNLI's accuracy
            in ablations is weighted over its two sets).
        reported: the figure as it is written; its decimals say how it was rounded.
        note: what is known about a figure that the formula does not give.
    """

    artefact: str
    recipe: str
    model: str
    setting: str
    metric: str
    reported: str
    note: str

    @property
    def value(self) -> float:
        """The reported figure as a number."""
        return float(self.reported)

    @property
    def decimals(self) -> int:
        """The number of decimals that are written."""
        return len(self.reported.partition(".")[2])


@functools.cache
def reported_values() -> tuple[ReportedValue, ...]:
    """All transcribed figures, in the order of the file."""
    with _FILE.open(encoding="utf-8", newline="") as handle:
        return tuple(ReportedValue(**row) for row in csv.DictReader(handle))


def reported_in(artefact: str, recipe: str = "efficient-large") -> dict[tuple[str, str], ReportedValue]:
    """(setting, metric) -> value, of one table or figure and one recipe."""
    return {(v.setting, v.metric): v for v in reported_values() if v.artefact == artefact and v.recipe == recipe}
