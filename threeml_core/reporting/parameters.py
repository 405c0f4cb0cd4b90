"""The parameters behind a page, and the page docs/parameters.md: `python -m threeml_core.reporting.parameters`."""

from __future__ import annotations

from pathlib import Path

from threeml_core import config as known
from threeml_core.config import StudyConfig
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.reporting.table import Table

_SHARED = ("seed", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "device", "bf16")


def parameter_table(config: StudyConfig, stage: str = "pretrain") -> Table:
    """Every parameter that decides the result of a stage (`pretrain`, `finetune`, `study`, `information`, `probe`...).

    Beside it stands where its value is from: given, the preset, a default, `init_encoder`'s checkpoint, or derived.
    """
    pretraining = tuple(known.deciding_parameters(config))
    names = {
        "pretrain": (*known.DATA_PARAMETERS, *pretraining),
        "finetune": (*known.FINETUNE_PARAMETERS, *_SHARED),
        "study": (*known.STUDY_PARAMETERS, *pretraining),
        "information": known.INFORMATION_PARAMETERS,
        "probe": (*known.DATA_PARAMETERS, *known.PROBING_PARAMETERS),
        "benchmark": (*pretraining, *known.BENCHMARK_PARAMETERS, "num_benchmark_sessions"),
    }[stage]
    values, of = config.parameters(), config.sources
    shown = dict.fromkeys(("preset", *names))
    rows = [{"Parameter": name, "Value": f"{values[name]}", "Source": of[name]} for name in shown]
    return Table(rows, "Resolved parameters")


PAGE: Path = PROJECT_ROOT / "docs" / "parameters.md"

_HEAD = """# Parameters

Every parameter by section. Give it as `-p NAME VALUE` or in a file as `-f FILE`, to papermill or to `threeml STAGE`.
A preset, `-p preset NAME`, is a file of such values in `params/`; what it does not say has the default below.
A parameter that changes no result is no part of a run's identity.

The first cell of a notebook shows the parameters that its page is about. All others are accepted as well: papermill
then says "Passed unknown parameter" and passes it. A misspelt name is refused.
"""


def parameters_page() -> str:
    """The whole page: of each section the parameters with type, default, allowed values, stages and meaning."""
    parts, code = [_HEAD], ("Name", "Type", "Default")
    for section in known.SECTIONS:
        described = known.describe(section)
        rows = [{k: f"`{v}`" if k in code else v.replace("<", "&lt;") for k, v in of.items()} for of in described]
        parts.append(f"## {section.__doc__.rstrip('.')}\n\n{Table(rows, '').markdown()}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(parameters_page(), encoding="utf-8")
