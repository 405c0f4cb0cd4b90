"""What was recorded, found by its parameters alone: for `plan_only`, where text, tasks and weights are not at hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from threeml_core.config import MODEL_NAMES, RANDOM, StudyConfig
from threeml_core.glue.protocol import (
    TRAINING_PARAMETERS,
    FinetuneRun,
    GlueStudy,
    planned_tasks,
    runs_of,
    start_of,
    task_result,
)
from threeml_core.glue.tasks import HELD_OUT, select_tasks
from threeml_core.runs.ledger import find, missing, pretraining
from threeml_core.runs.record import RunRecord, load_records


def of_pretraining(config: StudyConfig) -> StudyConfig:
    """Of the encoder that is fine-tuned without `checkpoint`."""
    return config if config.pretrain_seed is None else config.replace(seed=config.pretrain_seed)


def of_untrained(config: StudyConfig) -> StudyConfig:
    """Of an encoder without its training: it has as many fine-tuning seeds as others have pre-training seeds."""
    return config.replace(seeds=max(config.seeds, config.pretrain_seeds))


def glue(config: StudyConfig) -> list[GlueStudy]:
    """Fine-tuning of `checkpoint` (None: of what 02_pretrain makes), and of the same without its training if asked for.

    Tasks of which runs are missing are left out.

    Raises:
        ParameterError: no task has records of all its runs.
    """
    trained = pretraining(of_pretraining(config)) if config.checkpoint is None else None
    given = (config.checkpoint or "").removeprefix(RANDOM)
    tuned = [
        record
        for record in find(config, "finetune", FINETUNE_MATCH)
        if (_folder_of(record) == trained.run_id if trained else _encoder_name(record) == str(PurePath(given)))
    ]
    baselines = load_records(config.runs_dir, "baseline")
    studies = []
    for is_random in (False, True) if config.random_baseline else ((config.checkpoint or "").startswith(RANDOM),):
        own = of_untrained(config) if is_random and config.random_baseline else config
        of_encoder = [record for record in tuned if record.data["checkpoint"].startswith(RANDOM) == is_random]
        found = finished_tasks(own, of_encoder)
        if not found:
            what = f"{'random ' if is_random else ''}{trained.run_id if trained else config.checkpoint}"
            raise missing(config, f"fine-tuning of {what}")
        words = {name: _baseline(baselines, records[0]) for name, records in found.items()}
        checkpoint = of_encoder[-1].data["checkpoint"]
        studies.append(glue_study(own, checkpoint, trained, found, {n: r for n, r in words.items() if r}))
    return studies


def _encoder_name(record: RunRecord) -> str:
    """Checkpoint of a fine-tuning, with or without its training."""
    return str(record.data["checkpoint"].removeprefix(RANDOM))


def _folder_of(record: RunRecord) -> str:
    """Run id of the pre-training whose encoder a fine-tuning took, if it was one of this project's."""
    return PurePath(_encoder_name(record)).parent.name


def encoder_of(record: RunRecord) -> str | None:
    """Run id of the pre-training that a fine-tuning started from; None: from an encoder without its training."""
    return None if record.data["checkpoint"].startswith(RANDOM) else _folder_of(record)


def finished_tasks(config: StudyConfig, records: Sequence[RunRecord]) -> dict[str, tuple[RunRecord, ...]]:
    """Task -> records of its planned runs, where all are there.

    Args:
        config: what was planned.
        records: fine-tunings of one encoder, oldest first.
    """
    there = _with_their_starts(records, config)
    planned = {task.name: [point_of(run) for run in runs_of(task, config)] for task in planned_tasks(config)}
    return {
        name: tuple(there[point] for point in points)
        for name, points in planned.items()
        if all(point in there for point in points)
    }


def _baseline(baselines: Iterable[RunRecord], record: RunRecord) -> RunRecord | None:
    """The newest bag of words of the same examples."""
    same = [b for b in baselines if b.data["task"] == record.data["task"] and b.data["splits"] == record.data["splits"]]
    return same[-1] if same else None


def glue_study(
    config: StudyConfig,
    checkpoint: str,
    pretrained: RunRecord | None,
    records: Mapping[str, Sequence[RunRecord]],
    baselines: Mapping[str, RunRecord],
) -> GlueStudy:
    """A row of Table 3 from records alone.

    Args:
        config: of the study.
        checkpoint: of the encoder, as in its records.
        pretrained: the encoder's record, if this project pre-trained it.
        records: task -> all its runs.
        baselines: task -> its bag of words.
    """
    asked = [task.name for task in select_tasks(config)]
    there = [task for task in planned_tasks(config) if task.name in records and task.name in baselines]
    results = [task_result(task, records[task.name], baselines[task.name], config.runs_dir) for task in there]
    is_random = checkpoint.startswith(RANDOM)
    return GlueStudy(
        _model_name(checkpoint, pretrained),
        pretrained.parameters["architecture"] if pretrained and not is_random else None,
        checkpoint,
        tuple(result for result in results if result.task.name in asked),
        tuple(result for result in results if result.task.name not in asked),
        tuple(_notes(config, checkpoint, pretrained, records)),
    )


def _model_name(checkpoint: str, pretrained: RunRecord | None) -> str:
    """In tables: architecture and mask rate of our own encoders, else the checkpoint as given."""
    if pretrained is not None:
        name = f"{MODEL_NAMES[pretrained.parameters['architecture']]}-{pretrained.parameters['mask_rate']:.0%}"
    else:
        name = checkpoint.removeprefix(RANDOM)
        name = Path(name).name if Path(name).is_absolute() else name
    return f"random ({name})" if checkpoint.startswith(RANDOM) else name


def _notes(
    config: StudyConfig, checkpoint: str, pretrained: RunRecord | None, records: Mapping[str, Sequence[RunRecord]]
) -> list[str]:
    """What a reader has to know about these numbers."""
    notes = []
    subsets = {
        name: [f"{split} {about['examples']:,}" for split, about in of[0].data["splits"].items() if about["is_subset"]]
        for name, of in records.items()
    }
    titles = {task.name: task.title for task in planned_tasks(config)}
    for task in planned_tasks(config):
        if task.name not in records:
            notes.append(f"{task.title}: not all of its runs have a record")
            continue
        if subsets[task.name]:
            notes.append(f"{task.title}: a subset, not the full task ({', '.join(subsets[task.name])} examples)")
        start = start_of(task, config)
        if start and subsets.get(start):
            notes.append(f"{task.title}: starts from a model trained on a subset of {titles[start]}")
    if config.glue == "bundled" and pretrained is not None and not checkpoint.startswith(RANDOM):
        seen = pretrained.parameters["validation_corpus"] or pretrained.parameters["validation_fraction"] < HELD_OUT
        if "bundled" in pretrained.data["corpus"] and seen:
            notes.append(f"the encoder has seen some of these articles: pre-training did not hold out {HELD_OUT:.0%}")
    return notes


Point = tuple[Any, ...]
"""Of a fine-tuning: task, seed and point of the grid."""


def point_of(run: FinetuneRun | Mapping[str, Any]) -> Point:
    """Of a planned run, or of a record's identity."""
    if isinstance(run, Mapping):
        return tuple(run[name] for name in _POINT)
    return tuple(getattr(run, name) for name in _POINT)


_POINT = ("task", "seed", "learning_rate", "batch_size", "epochs")


FINETUNE_MATCH = ("glue", "max_length", "max_train_examples", "skip_bad_rows", "from_mnli", *TRAINING_PARAMETERS)
"""Parameters that decide a fine-tuning beside encoder, task, seed and point of the grid."""


def _with_their_starts(records: Sequence[RunRecord], config: StudyConfig) -> dict[Point, RunRecord]:
    """By point; RTE, STS-B and MRPC only if they started from the MNLI runs that this configuration plans."""
    at_point: dict[Point, list[RunRecord]] = {}
    for record in records:
        at_point.setdefault(point_of(record.identity), []).append(record)
    found = {
        point: without[-1]
        for point, there in at_point.items()
        if (without := [record for record in there if not record.identity["starts"]])
    }
    planned = {task.name: runs_of(task, config) for task in planned_tasks(config)}
    for task in planned_tasks(config):
        if (start := start_of(task, config)) is None:
            continue
        starts: dict[int, list[str]] = {}
        for first in planned[start]:
            if (point := point_of(first)) in found:
                starts.setdefault(first.seed, []).append(found[point].run_id)
        for run in planned[task.name]:
            for record in at_point.get(point_of(run), ()):
                if record.identity["starts"] == starts.get(run.seed, []):
                    found[point_of(run)] = record
    return found
