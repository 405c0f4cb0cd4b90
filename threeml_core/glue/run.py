"""Fine-tuning by the paper's protocol, or its records. `threeml finetune -p checkpoint FOLDER -p glue FOLDER`."""

from __future__ import annotations

from pathlib import Path

from threeml_core.config import StudyConfig
from threeml_core.foundation.files import fingerprint, project_path
from threeml_core.foundation.log import Log, print_line
from threeml_core.glue.ledger import glue, pretrain_config, untrained_config
from threeml_core.glue.predictions import write_parquet
from threeml_core.glue.protocol import GlueStudy
from threeml_core.parameters.glue import RANDOM


def finetune_study(config: StudyConfig, log: Log = print_line) -> list[GlueStudy]:
    """Fine-tune `checkpoint` by the protocol, and with `random_baseline` the same encoder without its training.

    Without `checkpoint` it is the encoder that `02_pretrain` makes with the same parameters; if it is not there yet, it
    is pre-trained now. With `plan_only` the records are read. A StudyError: bad input, before anything is trained, or
    no record to read.
    """
    if config.plan_only:
        return glue(config)
    from threeml_core.glue.finetune import finetune_glue, load_tasks
    from threeml_core.training.encoders import open_encoder
    from threeml_core.training.loop import pretrain

    data = load_tasks(config, log)
    checkpoint = config.checkpoint or pretrain(pretrain_config(config), log).folder(config.runs_dir) / "encoder"
    encoder = open_encoder(checkpoint)
    log(f"{encoder.checkpoint}: {encoder.parameters:,} parameters, at most {encoder.positions} tokens")
    studies = [finetune_glue(config, encoder, data, log)]
    if config.random_baseline:
        untrained = open_encoder(f"{RANDOM}{encoder.checkpoint}")
        studies.append(finetune_glue(untrained_config(config), untrained, data, log))
    return studies


def export_predictions(study: GlueStudy, config: StudyConfig) -> dict[str, Path]:
    """Write the answers of each task's best runs as `<runs_dir>/predictions/<task>-<hash>.parquet`; task -> file."""
    files = {}
    for result in (result for result in study.results if result.best):
        names = [record.run_id for record in result.best]
        path = project_path(config.runs_dir) / "predictions" / f"{result.task.name}-{fingerprint(names)}.parquet"
        if not path.exists():
            write_parquet(path, result.task, result.best, config.runs_dir)
        files[result.task.name] = path
    return files
