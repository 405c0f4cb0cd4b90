"""Downstream tasks from TSV files, parquet files, the Hugging Face hub or the bundled articles: one schema for all."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from threeml_core.config import StudyConfig
from threeml_core.data.readers import optional_library
from threeml_core.foundation.errors import CorpusError
from threeml_core.foundation.files import find_path, fingerprint, refuse_locked, utf16_of
from threeml_core.foundation.hub import hub_or_cache, hub_reason
from threeml_core.glue.diagnostic import diagnostic_rows
from threeml_core.glue.tasks import Task

HUB_DATASET = "nyu-mll/glue"
_NUMBERS = "numbers from 0 to 5"


@dataclasses.dataclass(frozen=True)
class Split:
    """Examples of one side of a task.

    Attributes:
        texts: for each example, its one or two texts.
        labels: (N,) class ids (int64) or numbers (float32).
        source: the file or the hub's split they came from.
        is_subset: fewer than the official examples, or named a subset: never to be reported as the official split.
        skipped: rows left out because they were malformed.
    """

    texts: list[tuple[str, ...]]
    labels: np.ndarray
    source: str
    is_subset: bool = False
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.texts)


@dataclasses.dataclass(frozen=True)
class TaskData:
    """A task with its examples: `train`, and a validation split for each tag of `task.validation`."""

    task: Task
    train: Split
    validation: dict[str, Split]

    @property
    def splits(self) -> dict[str, Split]:
        """Name -> split: `train`, `validation` or `validation_<tag>`."""
        return {"train": self.train} | {split_name(tag): split for tag, split in self.validation.items()}

    @property
    def is_subset(self) -> bool:
        """Is any split a subset of the official one?"""
        return any(split.is_subset for split in self.splits.values())

    def describe(self) -> dict[str, Any]:
        """For a record: where the examples came from, how many, and what is not official about them."""
        return {
            name: {"source": of.source, "examples": len(of), "is_subset": of.is_subset, "skipped_rows": of.skipped}
            for name, of in self.splits.items()
        }

    def without_texts(self) -> TaskData:
        """Labels and counts alone, for where the texts are tokenised already."""
        train, *others = (dataclasses.replace(s, texts=[()] * len(s)) for s in (self.train, *self.validation.values()))
        return TaskData(self.task, train, dict(zip(self.validation, others, strict=True)))

    def fingerprint(self) -> str:
        """Of all texts and labels."""
        return fingerprint([[split.texts, split.labels.tolist()] for split in self.splits.values()], 32)


def split_name(tag: str) -> str:
    """`""` -> `validation`, `matched` -> `validation_matched`."""
    return f"validation_{tag}" if tag else "validation"


def load_task(task: Task, config: StudyConfig) -> TaskData:
    """The examples of a task from the source `config.glue`, at most `max_train_examples` of them for training.

    A CorpusError names the place where the source or a split is missing, empty or malformed, or a label is unknown.
    """
    if config.glue == "bundled":
        splits = {name: _split(task, *rows, "bundled articles") for name, rows in diagnostic_rows(task.name).items()}
    else:
        names = ["train", *map(split_name, task.validation)]
        splits = _from_hub(task, names) if config.glue == "hub" else _from_folder(task, names, config)
    for name, official in zip(splits, task.official_sizes, strict=False):
        if len(splits[name]) < official:
            splits[name] = dataclasses.replace(splits[name], is_subset=True)
    splits["train"] = _limited(splits["train"], config.max_train_examples)
    return TaskData(task, splits["train"], {tag: splits[split_name(tag)] for tag in task.validation})


def _limited(split: Split, limit: int | None) -> Split:
    """A fixed random subset of at most `limit` examples, in their order."""
    if limit is None or limit >= len(split):
        return split
    kept = np.sort(np.random.default_rng(0).permutation(len(split))[:limit])
    texts, source = [split.texts[i] for i in kept], f"{split.source} ({limit:,} of {len(split):,})"
    return dataclasses.replace(split, texts=texts, labels=split.labels[kept], source=source, is_subset=True)


def _split(
    task: Task, texts: list[tuple[str, ...]], labels: Sequence[Any], source: str, subset: bool = False, skipped: int = 0
) -> Split:
    if not texts:
        raise CorpusError(f"{task.title}: no example in {source}; give a split with rows")
    kind = np.float32 if task.is_regression else np.int64
    return Split(texts, np.array(labels, kind), source, subset, skipped)


def _from_folder(task: Task, names: list[str], config: StudyConfig) -> dict[str, Split]:
    folder = find_path(config.glue)
    if not folder.is_dir():
        raise CorpusError(f"glue={str(folder)!r}: no such folder; expected 'bundled', 'hub' or a folder of the tasks")
    tsv, parquet = refuse_locked(folder / task.title), refuse_locked(folder / task.name)
    if any(tsv.glob("*.tsv")):
        return {name: _read_tsv(task, _tsv_file(tsv, name), config.skip_bad_rows) for name in names}
    if any(parquet.glob("*.parquet")):
        return {name: _read_parquet(task, parquet, name) for name in names}
    there = ", ".join(sorted(p.name for p in folder.iterdir() if p.is_dir())[:20]) or "no folder"
    is_start = task.name == "mnli"
    advice = f"{task.title} is where other tasks start: add it, or set from_mnli=False"
    raise CorpusError(
        f"glue={str(folder)!r} has neither {task.title}/*.tsv nor {task.name}/*.parquet (there is: {there}); "
        f"{advice if is_start else 'add it, or leave the task out of `tasks`'}"
    )


# -- TSV ----------------------------------------------------------------------------------------------------------


def _tsv_file(folder: Path, name: str) -> Path:
    official = name.replace("validation", "dev")
    names = [f"{official}.tsv", f"{official}.subset.tsv", *(["heldout.subset.tsv"] if name == "validation" else [])]
    for path in map(folder.joinpath, names):
        if path.is_file():
            return path
    raise CorpusError(f"{folder} has no {' or '.join(names)}; add the file, or leave the task out of `tasks`")


def _read_tsv(task: Task, path: Path, skip_bad_rows: bool) -> Split:
    """Quoting off: the official files hold stray quotation marks. Columns by name; CoLA alone has no header."""
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        encoding = utf16_of(path.read_bytes()[:4096])
        how = f"`iconv -f {encoding or 'latin1'} -t utf-8`"
        looks = "looks like UTF-16: convert it with " if encoding else ""
        what = f"is not valid UTF-8 ({error.reason} at byte {error.start}): convert it, for example with "
        raise CorpusError(f"{path} {looks or what}{how}") from None
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}") from None
    rows = [line.removesuffix("\r").split("\t") for line in lines]
    while rows and rows[-1] == [""]:
        rows.pop()
    header = ["source", "label", "original label", "sentence"] if task.name == "cola" else rows[0] if rows else []
    first = 0 if task.name == "cola" else 1
    if missing := [name for name in (*task.columns, task.label_column) if name not in header]:
        raise CorpusError(
            f"{path}: no column {', '.join(map(repr, missing))} in its first line (there is: {', '.join(header)}); "
            f"expected the official layout of {task.title}"
        )
    text_columns, label_column = [header.index(name) for name in task.columns], header.index(task.label_column)
    texts: list[tuple[str, ...]] = []
    labels: list[float] = []
    skipped = 0
    for number, row in enumerate(rows[first:], first + 1):
        if len(row) != len(header):
            if skip_bad_rows:
                skipped += 1
                continue
            raise CorpusError(
                f"{path}, line {number}: {len(row)} fields instead of {len(header)}; mend the line, or set "
                "skip_bad_rows=True to leave such lines out (they are counted in the record)"
            )
        texts.append(tuple(row[column].strip() for column in text_columns))
        labels.append(_label(task, row[label_column], f"{path}, line {number}"))
    return _split(task, texts, labels, f"{path.parent.name}/{path.name}", ".subset" in path.name, skipped)


def _label(task: Task, text: str, where: str) -> float:
    if text in task.labels:
        return task.labels.index(text)
    with contextlib.suppress(ValueError):
        if task.is_regression and 0 <= float(text) <= 5:
            return float(text)
    raise CorpusError(f"{where}: unknown label {text!r}; {task.title} has {', '.join(task.labels) or _NUMBERS}")


# -- parquet and the hub: columns and class ids of nyu-mll/glue ------------------------------------------------


def _read_parquet(task: Task, folder: Path, name: str) -> Split:
    why = f"{folder}: reading .parquet needs `pip install pyarrow`"
    pyarrow, parquet = optional_library("pyarrow", why), optional_library("pyarrow.parquet", why)
    files = sorted(folder.glob(f"{name}-*.parquet")) or sorted(folder.glob(f"{name}.parquet"))
    if not files:
        raise CorpusError(f"{folder} has no {name}-*.parquet; add the file, or leave the task out of `tasks`")
    try:
        table = pyarrow.concat_tables(parquet.read_table(path) for path in files)
    except (pyarrow.ArrowException, OSError) as error:
        raise CorpusError(f"{files[0]} is not a readable parquet file: {str(error).splitlines()[0]}") from None
    about = json.loads((table.schema.metadata or {}).get(b"huggingface") or "{}")
    names = about.get("info", {}).get("features", {}).get("label", {}).get("names") or []
    return _from_columns(task, table.column_names, lambda c: table[c].to_pylist(), names, f"{task.name}/{name}")


def _from_hub(task: Task, names: list[str]) -> dict[str, Split]:
    datasets = optional_library("datasets", "glue='hub' needs `pip install datasets`, or set glue to a folder")
    splits = {}
    for name in names:
        with hub_or_cache(HUB_DATASET) as offline:
            try:
                data = datasets.load_dataset(HUB_DATASET, task.name, split=name)
            except Exception as error:  # the hub's errors have no common base
                raise CorpusError(
                    f"glue='hub': {HUB_DATASET} did not come ({hub_reason(error, offline)}); check the network, or "
                    "set glue to a folder with the official files, or to 'bundled' for the diagnostic tasks"
                ) from None
        classes = getattr(data.features.get("label"), "names", None) or []
        where = f"{HUB_DATASET} {task.name}/{name}"
        splits[name] = _from_columns(task, data.column_names, data.__getitem__, classes, where)
    return splits


def _from_columns(
    task: Task, there: Iterable[str], column: Callable[[str], list[Any]], names: list[str], where: str
) -> Split:
    columns = task.hub_columns or task.columns
    if missing := [name for name in (*columns, "label") if name not in there]:
        raise CorpusError(
            f"{where}: no column {', '.join(map(repr, missing))} (there is: {', '.join(there)}); "
            f"expected the layout of {HUB_DATASET}"
        )
    texts: list[tuple[str, ...]] = []
    for number, row in enumerate(zip(*map(column, columns), strict=True), 1):
        if not all(isinstance(text, str) for text in row):
            raise CorpusError(f"{where}, row {number}: a text is missing; drop such rows")
        texts.append(tuple(text.strip() for text in row))
    expected = task.hub_labels or task.labels
    if names and set(names) != set(expected):
        raise CorpusError(f"{where}: its labels are {', '.join(names)}; {task.title} has {', '.join(expected)}")
    # class ids by name where the file carries names, else the hub's own order
    ids = {i: expected.index(name) for i, name in enumerate(names or expected)}
    labels = []
    for number, value in enumerate(column("label"), 1):
        if value not in ids if task.labels else value is None or not 0 <= value <= 5:
            known = ", ".join(f"{i} ({name})" for i, name in enumerate(names or expected)) or _NUMBERS
            raise CorpusError(f"{where}, row {number}: unknown label {value}; {task.title} has {known}")
        labels.append(ids[value] if task.labels else value)
    return _split(task, texts, labels, where)
