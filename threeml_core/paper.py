"""Figures that the paper prints, as one tidy table: artefact, recipe, model, setting, metric, value."""

from __future__ import annotations

import csv
import dataclasses
import functools
from pathlib import Path

_FILE = Path(__file__).with_name("paper_values.csv")


@dataclasses.dataclass(frozen=True)
class PrintedValue:
    """One printed number.

    Attributes:
        artefact: table, figure or section it stands in.
        recipe: `efficient-large` or `longer-base`, as the presets are called.
        model: as printed, such as `3ML_self-40%`.
        setting: architecture and mask rate, such as `self 0.4`; with thousands of updates where they matter, and with
            the parameter that an ablation varies, such as `self 0.4 decoder_hidden_size=256`. `bert` and `electra` are
            the baselines whose masking is not ours.
        metric: `speedup` (ratio), `speedup_at_updates` (ratio of total FLOPs to 125K baseline updates), `speedup_said`
            (ratio, in the text only), `parameters` (millions), `budget` (percent), `updates` (thousands),
            `encoder_share` (percent), `v100_hours`, `perplexity`, `best_mask_rate` and `<task>_best_mask_rate`
            (percent; figures without numbers, what the text says of them), `glue_average`, `ablation_average` and
            `<task>_<metric>` with the names of `threeml_core.glue.tasks` (all times 100, as printed; MNLI's accuracy in
            ablations is weighted over its two sets).
        printed: the figure as printed; its decimals say how it was rounded.
        note: what is known about a figure that the formula does not give.
    """

    artefact: str
    recipe: str
    model: str
    setting: str
    metric: str
    printed: str
    note: str

    @property
    def value(self) -> float:
        """The printed figure as a number."""
        return float(self.printed)

    @property
    def decimals(self) -> int:
        """Decimals printed."""
        return len(self.printed.partition(".")[2])


@functools.cache
def printed_values() -> tuple[PrintedValue, ...]:
    """All transcribed figures, in the order of the file."""
    with _FILE.open(encoding="utf-8", newline="") as handle:
        return tuple(PrintedValue(**row) for row in csv.DictReader(handle))
