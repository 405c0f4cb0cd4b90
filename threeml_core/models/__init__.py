"""The three models: vanilla, 3ML_self, 3ML_cross. Importing this registers them with Hugging Face's Auto classes."""

from threeml_core.models.configuration import ThreeMLConfig, ThreeMLCrossConfig, ThreeMLSelfConfig, VanillaConfig
from threeml_core.models.modeling import (
    MODELS,
    ThreeMLCrossForMaskedLM,
    ThreeMLOutput,
    ThreeMLSelfForMaskedLM,
    VanillaForMaskedLM,
    build_model,
)

__all__ = [
    "MODELS",
    "ThreeMLConfig",
    "ThreeMLCrossConfig",
    "ThreeMLCrossForMaskedLM",
    "ThreeMLOutput",
    "ThreeMLSelfConfig",
    "ThreeMLSelfForMaskedLM",
    "VanillaConfig",
    "VanillaForMaskedLM",
    "build_model",
]
