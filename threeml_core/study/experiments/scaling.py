"""Table 3's models with encoders of other sizes (`study_sizes`); not in the paper, which leaves scaling open."""

from __future__ import annotations

from typing import Any

from threeml_core import flops
from threeml_core.config import StudyConfig, study_steps, variant
from threeml_core.foundation.errors import ParameterError
from threeml_core.study.experiment import Experiment
from threeml_core.study.experiments.table_3 import STUDY_MODELS


def sizes(config: StudyConfig) -> list[dict[str, Any]]:
    """The models at each size and the preset's own: heads as wide, the decoder's width in proportion.

    With `equal_size_flops` each takes the steps that cost what the vanilla model at 15% does at the preset's size.

    Raises:
        ParameterError: a width that no whole number of heads fills.
    """
    head = config.hidden_size // config.num_attention_heads
    assert config.decoder_hidden_size is not None
    changes: list[dict[str, Any]] = []
    for layers, width in config.listed("study_sizes"):
        decoder = config.decoder_hidden_size * width // config.hidden_size
        if width % head or decoder % head or not decoder:
            raise ParameterError(
                f"study_sizes: {layers}x{width} with a decoder of width {decoder}: expected multiples of {head}, the "
                "width of a head"
            )
        geometry = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": width // head}
        changes.append({**geometry, "intermediate_size": None, "decoder_hidden_size": decoder})
    if changes:
        changes.append({})
    models = [{**size, "architecture": a, "mask_rate": rate} for size in changes for a, rate in STUDY_MODELS]
    if not config.equal_size_flops:
        return models
    budget = flops.forward_flops(variant(config, architecture="vanilla", mask_rate=0.15), "exact") * study_steps(config)
    costs = [flops.forward_flops(variant(config, **model), "exact") for model in models]
    return [{**model, "max_steps": round(budget / cost)} for model, cost in zip(models, costs, strict=True)]


SCALING = Experiment("Scaling", "the models of Table 3 at several sizes", models=(), further=sizes, tasks="all")
