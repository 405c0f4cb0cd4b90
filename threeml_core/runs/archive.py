"""The records and learning curves that a report carries, from which its pages can be made again without the runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from threeml_core.config import StudyConfig
from threeml_core.foundation.errors import DamagedFileError
from threeml_core.foundation.files import atomic_file, atomic_folder, json_text, project_path, sha256_file
from threeml_core.parameters.masking import KINDS, parse_mask_split
from threeml_core.parameters.parameter import RENAMED
from threeml_core.runs.record import SCHEMA, RunRecord, read_metrics, runs_named

RESULTS, CURVES = "results.jsonl", "curves.jsonl"
"""First what most records share, then one line a record with what it has else; one line for each learning curve."""

COMMON, ABSENT = "common", "absent"
_LIKE = ("parameters", "sources", "environment")  # parts of a record that are much the same in all

SESSIONS = "sessions.jsonl"
"""One line for each session of a benchmark that timed its models in turns; written by hand.

Other files of such lines, as `tuning.jsonl` of the runs that a design's choices rest on, no page shows; they are kept.
"""

_ABOUT = ".archive"  # in a folder of restored runs: the hashes of what it was restored from


def shown_records(records: Iterable[RunRecord], text: str) -> list[RunRecord]:
    """Those that a text names, and the bootstraps over runs that it names."""
    records = list(records)
    named = runs_named(text, [record.run_id for record in records])
    needed = (
        [*r.identity["runs"], *r.identity.get("against", ())] if r.stage == "bootstrap" else [r.run_id] for r in records
    )
    return [record for record, runs in zip(records, needed, strict=True) if named.issuperset(runs)]


def write_archive(records: Sequence[RunRecord], runs_dir: str | Path, folder: Path) -> None:
    """Leave the records, and the `metrics.jsonl` of their runs, in a report's folder."""
    curves = (
        {"stage": record.stage, "run_id": record.run_id, "lines": lines}
        for record in records
        if (lines := read_metrics(record.folder(runs_dir) / "metrics.jsonl"))
    )
    for name, items in ((RESULTS, _compact([vars(record) for record in records])), (CURVES, curves)):
        with atomic_file(folder / name) as temporary, temporary.open("w", encoding="utf-8") as handle:
            handle.writelines(json_text(item) + "\n" for item in items)


def _compact(records: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """First what the first record has in the parts `_LIKE`; then the records, with what they have else there."""
    common = {part: records[0][part] for part in _LIKE} if records else {}
    if records:
        yield {COMMON: common}
    for record in records:
        own = {part: {n: v for n, v in record[part].items() if not _same(v, common[part].get(n))} for part in _LIKE}
        absent = {part: missing for part in _LIKE if (missing := sorted(common[part].keys() - record[part].keys()))}
        yield {**record, **own, **({ABSENT: absent} if absent else {})}


def _same(value: Any, other: Any) -> bool:
    """As JSON; a None is written out, as it may stand where the first record has nothing."""
    return value is not None and type(value) is type(other) and bool(value == other)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file as they were before `_compact`; those written before there was such a thing as they are."""
    common: dict[str, dict[str, Any]] = {}
    for line in _lines(path):
        if COMMON in line:
            common = line[COMMON]
            continue
        absent = line.pop(ABSENT, {})
        for part, values in common.items():
            left = values.keys() - absent.get(part, ())
            line[part] = {**{name: value for name, value in values.items() if name in left}, **line[part]}
        yield line


def read_archive(folder: Path, name: str = RESULTS) -> list[RunRecord]:
    """The records of a report, or those of another file beside them.

    Raises:
        DamagedFileError: they cannot be read, or were written in another schema.
    """
    found = []
    for values in _records(folder / name):
        if values.get("schema") not in (*_OLDER, SCHEMA):
            raise DamagedFileError(
                f"{folder / name} holds records of schema {values.get('schema')}, this version reads "
                f"{', '.join(map(str, _OLDER))} and {SCHEMA}: run the study again (report_from=runs)"
            )
        found.append(RunRecord(**_upgraded(values)))
    return found


_OLDER = (3, 4)
"""Schemas before: in both some parameters have other names, in 3 the corruption is another, see `rounded_counts`."""


def _upgraded(values: dict[str, Any]) -> dict[str, Any]:
    """A record in the schema of today: with today's names and the corruption that it executed. It keeps its run id."""
    if values["schema"] == SCHEMA:
        return values
    named = ("parameters", "sources", "identity")
    new = {part: {RENAMED.get(name, name): value for name, value in values[part].items()} for part in named}
    parameters, identity = new["parameters"], new["identity"]
    if values["schema"] == 3 and values["stage"] == "pretrain" and identity and parameters["mask_counts"] == "exact":
        for prefix in ("", "eval_"):
            rate, split = (parameters[f"{prefix}{name}"] for name in ("mask_rate", "mask_split"))
            counts = rounded_counts(parameters["sequence_length"], rate, split)
            identity[f"{prefix}corruption"] = dict(zip(KINDS, map(str, counts), strict=True))
    return {**values, **new, "schema": SCHEMA}


def rounded_counts(n: int, mask_rate: float, mask_split: str) -> tuple[int, int, int]:
    """Tokens masked, replaced and unchanged in every block, as records of schema 3 have it: all whole numbers.

    The total was `mask_rate * n` rounded half up, the split rounded down, and what was left went to the largest
    remainders, the first of equal ones: 4-1-0 for 15% of 32 tokens and 80-10-10, without unchanged tokens.
    """
    total = math.floor(mask_rate * n + 0.5)
    exact = [round(share * total, 9) for share in parse_mask_split(mask_split)]
    counts = [math.floor(value) for value in exact]
    order = sorted(range(3), key=lambda i: (-(exact[i] - counts[i]), i))
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    return counts[0], counts[1], counts[2]


def restore_runs(folder: Path, runs_dir: Path) -> Path:
    """Make run folders of a report's archive, without weights and predictions; return `runs_dir`.

    It is replaced, unless it was restored from the same archive before.

    Raises:
        DamagedFileError: the archive is missing or cannot be read.
    """
    for name in (RESULTS, CURVES):
        if not (folder / name).is_file():
            raise DamagedFileError(
                f"{folder / name} is missing: this preset's report is made of the records that were committed with it; "
                "bring it back (git checkout; a wheel has none), or set report_from=runs to run the study"
            )
    hashes = "\n".join([f"schema {SCHEMA}", *(sha256_file(folder / name) for name in (RESULTS, CURVES))])
    about = runs_dir / _ABOUT
    if about.is_file() and about.read_text(encoding="utf-8") == hashes:
        return runs_dir
    curves = {(of["stage"], of["run_id"]): of["lines"] for of in _lines(folder / CURVES)}
    with atomic_folder(runs_dir) as temporary:
        for record in read_archive(folder):
            run = temporary / record.stage / record.run_id
            run.mkdir(parents=True)
            (run / "record.json").write_text(json_text({**vars(record), "files": {}}), encoding="utf-8")
            if lines := curves.get((record.stage, record.run_id)):
                text = "".join(json_text(line) + "\n" for line in lines)
                (run / "metrics.jsonl").write_text(text, encoding="utf-8")
        (temporary / _ABOUT).write_text(hashes, encoding="utf-8")
    return runs_dir


def from_records(config: StudyConfig, folder: Path) -> StudyConfig:
    """`config` that shows the records of a report's folder, see `restore_runs`, and runs nothing."""
    runs_dir = f"build/records/{config.preset}"
    restore_runs(folder, project_path(runs_dir))
    return config.replace(plan_only=True, runs_dir=runs_dir)


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise DamagedFileError(
            f"{path} cannot be read ({error}); bring the committed file back (git checkout)"
        ) from None
