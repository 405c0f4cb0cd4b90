"""What was recorded, found by its parameters alone: for `plan_only`, where text, tasks and weights are not at hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath

from threeml_core.config import StudyConfig
from threeml_core.glue.protocol import FinetuneRun, GlueStudy, planned_tasks, runs_of, start_of, task_result
from threeml_core.glue.tasks import HELD_OUT, select_tasks
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.parameters.glue import RANDOM
from threeml_core.parameters.masking import rate_label
from threeml_core.runs.ledger import find, missing, pretraining
from threeml_core.runs.record import RunRecord, load_records


def pretrain_config(config: StudyConfig) -> StudyConfig:
    """Of the encoder that is fine-tuned without `checkpoint`."""
    return config if config.pretrain_seed is None else config.replace(seed=config.pretrain_seed)


def untrained_config(config: StudyConfig) -> StudyConfig:
    """Of an encoder without its training: it has as many fine-tuning seeds as others have pre-training seeds."""
    return config.replace(num_seeds=max(config.num_seeds, config.num_pretrain_seeds))


def glue(config: StudyConfig) -> list[GlueStudy]:
    """Fine-tuning of `checkpoint` (None: of what 02_pretrain makes), and of the same without its training if asked for.

    Tasks of which runs are missing are left out; a ParameterError says that none has all its records.
    """
    trained = pretraining(pretrain_config(config)) if config.checkpoint is None else None
    given = (config.checkpoint or "").removeprefix(RANDOM)
    by_kind: dict[bool, list[RunRecord]] = {False: [], True: []}
    for record in find(config, "finetune", FINETUNE_MATCH):
        name = record.data["checkpoint"].removeprefix(RANDOM)
        if PurePath(name).parent.name == trained.run_id if trained else name == str(PurePath(given)):
            by_kind[record.data["checkpoint"].startswith(RANDOM)].append(record)
    baselines = load_records(config.runs_dir, "baseline")
    studies = []
    for is_random in (False, True) if config.random_baseline else ((config.checkpoint or "").startswith(RANDOM),):
        own = untrained_config(config) if is_random and config.random_baseline else config
        if not finished_tasks(own, by_kind[is_random]):
            what = f"{'random ' if is_random else ''}{trained.run_id if trained else config.checkpoint}"
            raise missing(config, f"fine-tuning of {what}")
        checkpoint = by_kind[is_random][-1].data["checkpoint"]
        studies.append(glue_study(own, checkpoint, trained, by_kind[is_random], baselines))
    return studies


def encoder_of(record: RunRecord) -> str | None:
    """Run id of the pre-training that a fine-tuning started from; None: from an encoder without its training."""
    checkpoint = record.data["checkpoint"]
    return None if checkpoint.startswith(RANDOM) else PurePath(checkpoint).parent.name


def finished_tasks(config: StudyConfig, records: Iterable[RunRecord]) -> dict[str, tuple[RunRecord, ...]]:
    """Task -> records of its planned runs, where all are there among the fine-tunings of one encoder, oldest first.

    RTE, STS-B and MRPC only if they started from the MNLI runs that are planned.
    """
    there = {(FinetuneRun.of(record), *record.identity["starts"]): record for record in records}
    ids: dict[tuple[str | None, int], list[str]] = {}
    finished = {}
    for task in sorted(planned_tasks(config), key=lambda task: start_of(task, config) is not None):
        runs = runs_of(task, config)
        found = []
        for run in runs:
            if record := there.get((run, *ids.get((start_of(task, config), run.seed), ()))):
                ids.setdefault((task.name, run.seed), []).append(record.run_id)
                found.append(record)
        if len(found) == len(runs):
            finished[task.name] = tuple(found)
    return finished


def glue_study(
    config: StudyConfig,
    checkpoint: str,
    pretrained: RunRecord | None,
    finetuning: Iterable[RunRecord],
    baselines: Iterable[RunRecord],
) -> GlueStudy:
    """A row of Table 3 from records alone.

    `checkpoint` is as in the encoder's records, `pretrained` its own, if this project pre-trained it. Its fine-tunings
    come oldest first; of the bags of words of one task the newest of the same examples counts.
    """
    asked = select_tasks(config)
    records = finished_tasks(config, finetuning)
    words = {f"{record.data['task']} {record.data['splits']}": record for record in baselines}
    results = [
        task_result(task, of, baseline, config.runs_dir)
        for task in planned_tasks(config)
        if (of := records.get(task.name)) and (baseline := words.get(f"{task.name} {of[0].data['splits']}"))
    ]
    return GlueStudy(
        _model_name(checkpoint, pretrained),
        pretrained.parameters["architecture"] if pretrained and not checkpoint.startswith(RANDOM) else None,
        checkpoint,
        tuple(result for result in results if result.task in asked),
        tuple(result for result in results if result.task not in asked),
        tuple(_notes(config, checkpoint, pretrained, records)),
    )


def _model_name(checkpoint: str, pretrained: RunRecord | None) -> str:
    """In tables: architecture and mask rate of our own encoders, else the checkpoint as given."""
    name = checkpoint.removeprefix(RANDOM)
    if pretrained is not None:
        name = f"{ARCHITECTURES[pretrained.parameters['architecture']].label}-{rate_label(pretrained.parameters)}"
    elif Path(name).is_absolute():
        name = Path(name).name
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
    planned = {task.name: task for task in planned_tasks(config)}
    for task in planned.values():
        if task.name not in records:
            notes.append(f"{task.title}: not all of its runs have a record")
            continue
        if subsets[task.name]:
            notes.append(f"{task.title}: a subset, not the full task ({', '.join(subsets[task.name])} examples)")
        start = start_of(task, config)
        if start and subsets.get(start):
            notes.append(f"{task.title}: starts from a model trained on a subset of {planned[start].title}")
    if config.glue == "bundled" and pretrained is not None and not checkpoint.startswith(RANDOM):
        seen = pretrained.parameters["validation_corpus"] or pretrained.parameters["validation_fraction"] < HELD_OUT
        if "bundled" in pretrained.data["corpus"] and seen:
            notes.append(f"the encoder has seen some of these articles: pre-training did not hold out {HELD_OUT:.0%}")
    return notes


TRAINING_PARAMETERS = (
    *("adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm"),
    *("finetune_warmup_ratio", "finetune_weight_decay", "finetune_select", "pad_to_max_length"),
)
FINETUNE_MATCH = ("glue", "max_length", "max_train_examples", "skip_bad_rows", "from_mnli", *TRAINING_PARAMETERS)
"""Parameters that decide a fine-tuning beside encoder, task, seed and point of the grid."""
