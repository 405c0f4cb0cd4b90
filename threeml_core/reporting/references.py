"""What scores stand against: constant answers, a bag of words, an encoder without pre-training."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from threeml_core.glue.ledger import FINETUNE_MATCH
from threeml_core.parameters.glue import RANDOM
from threeml_core.runs.record import RunRecord, load_records
from threeml_core.study.results import Downstream, Result

CONSTANT, WORDS, UNTRAINED = "constant answers", "bag of words", "random weights"
AVERAGE = "average"


def references(
    results: Sequence[Result], kind: str, records: Sequence[RunRecord] | None = None
) -> dict[str, dict[str, float]]:
    """What is known of `CONSTANT`, `WORDS` and `UNTRAINED`: task or `AVERAGE` -> score, times 100.

    Args:
        results: models whose scores are shown.
        kind: field of `Result` that has these: `comparison` or `ablation`.
        records: of all stages; None: those of the run folders.
    """
    studies = [study for result in results for study in getattr(result, kind).values() if study.average is not None]
    if not studies:
        return {}
    first, runs_dir = studies[0], results[0].run.config.runs_dir
    if records is None:
        records = [record for stage in ("baseline", "finetune") for record in load_records(runs_dir, stage)]
    baselines, tuned = ([record for record in records if record.stage == stage] for stage in ("baseline", "finetune"))
    splits = {name: of[0].data["splits"] for name, of in first.records.items()}
    words = {
        task: (dataclasses.replace(record, identity={**record.identity, "seed": 0}),)
        for record in baselines
        if record.failure is None and splits.get(task := record.data["task"]) == record.data["splits"]
    }
    random = {task: tuple(of) for task, of in untrained(studies, tuned).items()}
    found: dict[str, dict[str, float | None]] = {CONSTANT: {t.name: first.constant(t) for t in first.tasks}}
    for label, by_task in ((WORDS, words), (UNTRAINED, random)):
        alone = Downstream(first.tasks, by_task, first.accuracies)
        found[label] = {task.name: alone.score(task) for task in first.tasks}
    return {
        label: {**{task: 100 * score for task, score in known.items()}, AVERAGE: 100 * statistics.fmean(known.values())}
        for label, of in found.items()
        if len(known := {task: score for task, score in of.items() if score is not None}) == len(first.tasks)
    }


def untrained(studies: Iterable[Downstream], finetuning: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    """Task -> fine-tunings of encoders without their training, of the same size and fine-tuned as in `studies`."""
    candidates = [record for record in finetuning if record.data["checkpoint"].startswith(RANDOM)]
    if not candidates:
        return {}
    known = {_tuned_how(record) for study in studies for of in study.records.values() for record in of}
    found: dict[str, list[RunRecord]] = {}
    for record in candidates:
        if _tuned_how(record) in known:
            found.setdefault(record.data["task"], []).append(record)
    return found


def _tuned_how(record: RunRecord) -> tuple[Any, ...]:
    """Size of the encoder, task, point of the grid, and what else decides a fine-tuning."""
    point = [record.identity[name] for name in ("task", "learning_rate", "batch_size", "epochs")]
    return (record.data["encoder_parameters"], *point, *(record.parameters[name] for name in FINETUNE_MATCH))
