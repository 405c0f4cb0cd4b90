"""What fine-tuned models answered: kept by every run, gathered by task into parquet, compared in pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from threeml_core.foundation.errors import DamagedFileError, ParameterError
from threeml_core.foundation.files import atomic_file
from threeml_core.glue.metrics import Splits
from threeml_core.glue.tasks import Task
from threeml_core.runs.record import RunRecord

FILE = "predictions.npz"


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Answers of one run: tag of a validation split -> (N,) true class ids or numbers, and (N, num_labels) outputs."""

    task: Task
    labels: Mapping[str, np.ndarray]
    logits: Mapping[str, np.ndarray]

    @property
    def splits(self) -> Splits:
        """Tag -> (labels, predictions): class ids, or the number itself for regression."""
        decide = (lambda x: x[:, 0]) if self.task.is_regression else (lambda x: x.argmax(axis=1))
        return {tag: (self.labels[tag], decide(self.logits[tag])) for tag in self.labels}

    @property
    def is_constant(self) -> bool:
        """Does the run give one and the same answer everywhere: has it collapsed?"""
        return all(bool(np.all(predicted == predicted[0])) for _, predicted in self.splits.values())

    def save(self, folder: Path) -> None:
        """Write `predictions.npz` into a run folder."""
        arrays: dict[str, Any] = {f"labels {tag}".strip(): value for tag, value in self.labels.items()}
        arrays |= {f"logits {tag}".strip(): value for tag, value in self.logits.items()}
        with atomic_file(folder / FILE) as temporary, temporary.open("wb") as handle:
            np.savez_compressed(handle, **arrays)


def load_predictions(task: Task, folder: Path) -> Predictions:
    """Read `predictions.npz` of a run folder; a DamagedFileError if it is missing or damaged."""
    try:
        with np.load(folder / FILE) as arrays:
            labels = {tag: arrays[f"labels {tag}".strip()] for tag in task.validation}
            logits = {tag: arrays[f"logits {tag}".strip()] for tag in task.validation}
    except Exception as error:  # numpy and zipfile raise many kinds for a broken archive
        raise DamagedFileError(
            f"damaged run: {folder / FILE} cannot be read ({type(error).__name__}: {error}); "
            f"remove the folder {folder} and run again"
        ) from None
    return Predictions(task, labels, logits)


def write_parquet(path: Path, task: Task, records: Sequence[RunRecord], runs_dir: str | Path) -> None:
    """All answers of a task's runs as one table; a ParameterError if pyarrow is not installed.

    Its columns: run, seed, split, example, label, prediction, logits.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ParameterError(
            f"writing {path} needs `pip install pyarrow`; all runs are finished and keep their {FILE}"
        ) from None
    tables = []
    for record in records:
        answers = load_predictions(task, record.folder(runs_dir))
        for tag, (labels, predicted) in answers.splits.items():
            same = {"run": record.run_id, "seed": record.identity["seed"], "split": tag or "validation"}
            columns: dict[str, Any] = {name: [value] * len(labels) for name, value in same.items()}
            columns |= {"example": np.arange(len(labels)), "label": labels, "prediction": predicted}
            columns |= {f"logit_{i}": answers.logits[tag][:, i] for i in range(task.num_labels)}
            tables.append(pyarrow.table(columns))
    with atomic_file(path) as temporary:
        pyarrow.parquet.write_table(pyarrow.concat_tables(tables), temporary)


def read_parquet(task: Task, path: Path) -> list[Splits]:
    """What `write_parquet` wrote: for each run, tag of a split -> (labels, predictions), for `metrics.compare`."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path, columns=["run", "split", "label", "prediction"])
    runs, splits = (np.array(table[name].to_pylist()) for name in ("run", "split"))
    labels, predicted = (table[name].to_numpy() for name in ("label", "prediction"))
    result: list[Splits] = []
    for run in dict.fromkeys(runs.tolist()):
        rows = {tag: (runs == run) & (splits == (tag or "validation")) for tag in task.validation}
        result.append({tag: (labels[rows[tag]], predicted[rows[tag]]) for tag in rows})
    return result
