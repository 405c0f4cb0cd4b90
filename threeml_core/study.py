"""Which pre-training runs the paper's tables and figures need, derived from a preset. No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from threeml_core import flops
from threeml_core.config import ARCHITECTURES, MODEL_NAMES, StudyConfig, identity_parameters, parse_grid
from threeml_core.errors import ParameterError
from threeml_core.files import fingerprint

STUDY_MODELS = (("vanilla", 0.15), ("vanilla", 0.4), ("self", 0.4), ("self", 0.5), ("cross", 0.4))
"""The five models of Table 3's efficient recipe, with their mask rates; the longer one has no vanilla model at 40%."""


@dataclasses.dataclass(frozen=True)
class StudyRun:
    """A pre-training run of the study.

    Attributes:
        config: its parameters.
        artefacts: the tables and figures that show it.
    """

    config: StudyConfig
    artefacts: tuple[str, ...]

    @property
    def model(self) -> str:
        """Architecture and mask rate, as in the paper."""
        return f"{MODEL_NAMES[self.config.architecture]}-{self.config.mask_rate:.0%}"


def study_runs(config: StudyConfig, artefacts: Sequence[str] | None = None) -> list[StudyRun]:
    """The runs that tables and figures need, each once, in the order in which they are first needed.

    Source: Tables 1 to 3, Figures 3 to 5; all but Table 3 are of the large model in the paper. What an ablation does
    not vary is as in `config` (the paper's gray rows): mask rate, split, depth and width of the decoder. 3ML_cross
    always has pre-LN (section 3.3: post-LN does not work).

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
            run = _run(config, changes)
            identity = fingerprint(identity_parameters(run))
            used = runs.setdefault(identity, (run, []))[1]
            if name not in used:
                used.append(name)
    return [StudyRun(run, tuple(used)) for run, used in runs.values()]


def _artefacts(config: StudyConfig) -> dict[str, list[dict[str, Any]]]:
    """Table or figure -> what each of its runs changes."""
    study = config.study_steps or config.max_steps
    steps = {"max_steps": config.ablation_steps or study}
    rates = parse_grid("study_mask_rates", config.study_mask_rates)
    splits = [split.strip() for split in config.study_splits.split(",")]
    varied: dict[str, tuple[str, Sequence[Any]]] = {
        "Table 2a": ("decoder_num_hidden_layers", parse_grid("study_depths", config.study_depths)),
        "Table 2b": ("decoder_hidden_size", parse_grid("study_widths", config.study_widths)),
        "Table 2c": ("mask_split", splits),
    }
    models = [
        {"architecture": architecture, "mask_rate": rate, "max_steps": study} for architecture, rate in STUDY_MODELS
    ]
    if config.equal_budget:
        models += [
            {**model, "max_steps": equal_budget_steps(_run(config, model), study)}
            for model in models
            if model["architecture"] != "vanilla"
        ]
    return {
        "Figure 3": [{"architecture": "vanilla", "mask_rate": rate, **steps} for rate in rates],
        "Table 1": [{"architecture": architecture, **steps} for architecture in ARCHITECTURES],
        "Figure 4": [{"architecture": architecture, "mask_rate": 0.4, **steps} for architecture in ARCHITECTURES],
        **{
            name: [{"architecture": a, key: value, **steps} for value in values for a in ("self", "cross")]
            for name, (key, values) in varied.items()
        },
        "Figure 5": [{"architecture": a, "mask_rate": rate, **steps} for rate in rates for a in ARCHITECTURES],
        "Table 3": models,
    }


def _run(config: StudyConfig, changes: dict[str, Any]) -> StudyConfig:
    if changes["architecture"] == "cross":
        changes = {"layer_norm": "pre", **changes}
    if "decoder_hidden_size" in changes:  # heads as wide as the encoder's, as everywhere
        changes = {"decoder_num_attention_heads": None, **changes}
    return config.replace(**changes)


def equal_budget_steps(config: StudyConfig, steps: int) -> int:
    """Updates that cost as many FLOPs as `steps` updates of the vanilla model at 15%.

    Source: Table 3, the longer recipe; for 125K this gives 152.4K, 160.0K and 156.9K, printed as 153K, 160K and 157K.
    """
    return round(steps * flops.config_speedup(config, "paper", 0.15))
