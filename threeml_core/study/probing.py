"""The study's encoders, probed: pre-trained if need be, each beside its like with random weights. `threeml probe`."""

from __future__ import annotations

from threeml_core.config import StudyConfig
from threeml_core.foundation.log import Log, print_line
from threeml_core.information.probing import named_encoders, run_probing
from threeml_core.parameters.glue import RANDOM as RANDOM_WEIGHTS
from threeml_core.study.probes import BASELINE, PROBES, Probes, probes_of
from threeml_core.study.run import run_study


def probe_study(config: StudyConfig, log: Log = print_line) -> Probes:
    """Probe `encoders`, or the study's models with all their seeds and random weights with as many.

    Raises:
        StudyError: see `run_probing` and `run_study`.
    """
    if config.encoders is not None:
        return probes_of([], run_probing(config, named_encoders(config), log=log))
    results = run_study(config, [PROBES], log)
    checkpoints, seeds = [], []
    for result in results:
        for seed, record in result.ended.items():
            encoder = f"{config.runs_dir}/{record.stage}/{record.run_id}/encoder"
            for checkpoint in (encoder, *([RANDOM_WEIGHTS + encoder] if result.run.model == BASELINE else [])):
                checkpoints.append(checkpoint)
                seeds.append(seed)
    return probes_of(results, run_probing(config, checkpoints, seeds, log))
