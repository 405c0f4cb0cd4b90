"""Going on from an encoder at equal FLOPs: vanilla, 3ML_self at 40 and 50%, and the same from random weights.

    python tests/measurements/going_on.py -p preset small -p corpus bundled -p init_encoder FOLDER -p tokenizer FOLDER

`max_steps` are those of vanilla-15%; the others have as many as its FLOPs pay for (Appendix C, corrected). Prints
masked perplexity on the common corruption over `num_pretrain_seeds` seeds. Runs are left in `runs_dir`, and read if
repeated.
"""

from __future__ import annotations

import sys

from threeml_core import flops
from threeml_core.config import StudyConfig, parse_arguments, variant
from threeml_core.foundation.errors import command_line
from threeml_core.reporting import cells
from threeml_core.reporting.table import Table
from threeml_core.study.experiment import Changes, Experiment
from threeml_core.study.run import run_study

MODELS = (("vanilla", 0.15), ("vanilla", 0.4), ("self", 0.4), ("self", 0.5))


def equal_flops(config: StudyConfig) -> list[Changes]:
    """Each model, in steps that cost the FLOPs of vanilla at 15%."""
    runs = []
    for architecture, rate in MODELS:
        model = {"architecture": architecture, "mask_rate": rate}
        speedup = flops.config_speedup(variant(config, **model), "exact", 0.15)
        runs.append({**model, "max_steps": round(config.max_steps * speedup)})
    return runs


GOING_ON = Experiment("Going on", "an encoder goes on at equal FLOPs", models=(), further=equal_flops)


@command_line
def main() -> None:
    """Run what is missing, and print."""
    config = parse_arguments(__doc__ or "", sys.argv[1:])
    scratch = config.replace(init_encoder=None, decoder_warmup_steps=0)
    rows = []
    for gone_on, fresh in zip(run_study(config, [GOING_ON]), run_study(scratch, [GOING_ON]), strict=True):
        row = {"Model": gone_on.run.model, "Steps": f"{gone_on.run.config.max_steps:,}"}
        row |= {"FLOPs": f"{next(iter(gone_on.ended.values())).flops['training']:.3g}"}
        row |= {"Perplexity, masked": cells.perplexity(gone_on), "from random weights": cells.perplexity(fresh)}
        rows.append(row)
    print(Table(rows, f"Going on from {config.init_encoder}").markdown())


if __name__ == "__main__":
    main()
