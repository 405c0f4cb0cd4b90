"""Run folders and run records: identity, schema, reading and writing. Every number of a report comes from a record."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from threeml_core.config import StudyConfig
from threeml_core.foundation.errors import DamagedFileError
from threeml_core.foundation.files import (
    INSTALLED,
    PACKAGE,
    PROJECT_ROOT,
    exclusive,
    fingerprint,
    project_path,
    sha256_file,
    write_json,
)
from threeml_core.foundation.processes import available_cores

SCHEMA = 5
"""Raised when the code would give another result for the same identity, or the record's fields change meaning."""

STAGES = tuple(
    "data precision pretrain baseline finetune bootstrap mutual_information bias probe rates benchmark clock".split()
)
"""Folders below `runs_dir` that hold runs; `data` also holds the text itself, prepared."""

_HASH_LENGTH = 10
_HASH = re.compile(rf"-([0-9a-f]{{{_HASH_LENGTH}}})")  # the end of a run id


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """What a finished run leaves behind: `runs/<stage>/<run_id>/record.json`.

    Attributes:
        stage: of `STAGES`.
        run_id: a readable head and a hash of `identity`.
        identity: all that determines the result.
        parameters: every resolved parameter.
        sources: where each parameter came from: given, preset, default or derived.
        metrics: results (losses in nats, perplexities, scores).
        flops: forward FLOPs of a block, total training FLOPs, speed-ups.
        timing: seconds, tokens/s (original tokens), peak memory in bytes, energy in kWh where it was measured.
        data: fingerprint, corpus and sizes of the text.
        environment: commit, versions, hardware, time.
        files: path inside the folder -> [bytes, SHA-256].
        failure: why the run gave no result (it diverged), or None.
    """

    stage: str
    run_id: str
    identity: dict[str, Any]
    parameters: dict[str, Any]
    sources: dict[str, str]
    metrics: dict[str, Any]
    flops: dict[str, float]
    timing: dict[str, float]
    data: dict[str, Any]
    environment: dict[str, Any]
    files: dict[str, list[Any]]
    failure: str | None = None
    schema: int = SCHEMA

    def folder(self, runs_dir: str | Path) -> Path:
        """The run's folder."""
        return run_folder(runs_dir, self.stage, self.run_id)


def run_id(head: str, identity: dict[str, Any]) -> str:
    """`<head>-<hash>`; the same identity gives the same id on every machine."""
    return f"{head}-{fingerprint({'schema': SCHEMA, **identity}, _HASH_LENGTH)}"


def run_folder(runs_dir: str | Path, stage: str, run: str) -> Path:
    """`<runs_dir>/<stage>/<run>`."""
    return project_path(runs_dir) / stage / run


def describe_files(folder: Path, names: Iterable[str]) -> dict[str, list[Any]]:
    """Size and SHA-256 of the files in the sub-folders (or the files) `names` of `folder`."""
    described = {}
    for name in names:
        path = folder / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                described[str(file.relative_to(folder))] = [file.stat().st_size, sha256_file(file)]
    return described


def write_record(record: RunRecord, runs_dir: str | Path) -> Path:
    """Write the record, atomically and last: a folder with a record is a finished run."""
    path = record.folder(runs_dir) / "record.json"
    write_json(path, dataclasses.asdict(record))
    return path


def leave_record(
    folder: Path,
    identity: Mapping[str, Any],
    config: StudyConfig | RunRecord,
    environment: Mapping[str, Any],
    files: Iterable[str] = (),
    **fields: Any,
) -> RunRecord:
    """Write the record of a run that has just ended.

    Args:
        folder: of the run, see `run_folder`.
        identity: all that determines the result.
        config: its parameters; a run that has none of its own takes those of another's record.
        environment: where it was done, see `describe_environment`.
        files: what it leaves in its folder, see `describe_files`.
        fields: the other fields of the record; those left out are empty.
    """
    empty: dict[str, Any] = {name: {} for name in ("metrics", "flops", "timing", "data")}
    record = RunRecord(
        folder.parent.name,
        folder.name,
        identity=dict(identity),
        parameters=config.parameters if isinstance(config, RunRecord) else config.parameters(),
        sources=dict(config.sources),
        environment={**environment, "finished": now()},
        files=describe_files(folder, files),
        **{**empty, **fields},
    )
    write_record(record, folder.parents[1])
    return record


def recorded(
    folder: Path,
    identity: Mapping[str, Any],
    config: StudyConfig | RunRecord,
    work: Callable[[dict[str, Any]], Mapping[str, Any]],
    wait: bool = False,
    again: bool = False,
) -> RunRecord:
    """Do a run and leave its record (see `leave_record`), or read the record if that was done before.

    Args:
        folder: of the run.
        identity: all that determines the result.
        config: its parameters.
        work: does it; takes the record's environment, to which it may add, and returns the other fields of the record.
        wait: for another process that does the same run.
        again: do it although there is a record, which is replaced.

    Raises:
        LockedError: another process does the same run, and this one does not `wait`.
    """
    with exclusive(folder / ".lock", f"run {folder.name}", wait):
        if not again and (folder / "record.json").exists():
            return read_record(folder)
        environment = describe_environment()
        return leave_record(folder, identity, config, environment, **work(environment))


def read_record(folder: Path, check_hashes: bool = False) -> RunRecord:
    """The record of a finished run, with its files checked (sizes; contents too with `check_hashes`).

    Raises:
        DamagedFileError: the record cannot be read, or a file it names is missing, changed or not in the folder.
    """
    return _checked(folder, _parsed(folder), check_hashes)


def load_records(runs_dir: str | Path, stage: str) -> list[RunRecord]:
    """Records of all finished runs of a stage, oldest first; unfinished folders and older schemas are passed over.

    A run of an older schema has another id now and is done again.

    Raises:
        DamagedFileError: a finished run is damaged.
    """
    folders = [path.parent for path in (project_path(runs_dir) / stage).glob("*/record.json")]
    parsed = {folder: _parsed(folder) for folder in folders}
    records = [_checked(folder, values) for folder, values in parsed.items() if values["schema"] >= SCHEMA]
    for record in records:
        if record.stage != stage:
            folder = run_folder(runs_dir, stage, record.run_id)
            raise _damaged(folder, f"{folder / 'record.json'} is of stage {record.stage}")
    return sorted(records, key=lambda record: record.environment["finished"])


def _damaged(folder: Path, what: str) -> DamagedFileError:
    return DamagedFileError(f"damaged run: {what}; remove the folder {folder} and run again")


@contextlib.contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        path = folder / "record.json"
        raise _damaged(folder, f"{path} cannot be read ({type(error).__name__}: {error})") from None


def _parsed(folder: Path) -> dict[str, Any]:
    """What stands in a record, its schema as a whole number."""
    with _readable(folder):
        values = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        return {**values, "schema": int(values["schema"])}


def _checked(folder: Path, values: dict[str, Any], check_hashes: bool = False) -> RunRecord:
    """A record made of what was parsed; see `read_record`."""
    path = folder / "record.json"
    if values["schema"] != SCHEMA:
        raise DamagedFileError(
            f"{path} was written in schema {values['schema']}, this version reads {SCHEMA}; remove the folder {folder} "
            "and run again"
        )
    with _readable(folder):
        record = RunRecord(**values)
        if record.stage not in STAGES:
            raise ValueError(f"unknown stage {record.stage!r}")
        for name, value in vars(record).items():
            if name not in ("stage", "run_id", "failure", "schema") and not isinstance(value, dict):
                raise TypeError(f"{name} is no object")
        if not isinstance(record.environment["finished"], str):
            raise TypeError("finished is no text")
        files = [(name, int(size), digest) for name, (size, digest) in record.files.items()]
    if record.run_id != folder.name:
        raise _damaged(folder, f"{path} belongs to run {record.run_id}")
    for name, size, digest in files:
        if name.startswith("/") or ".." in name.split("/"):
            raise _damaged(folder, f"{path} names {name!r}, which is not in its folder")
        file = folder / name
        if not file.is_file():
            raise _damaged(folder, f"{file} is missing")
        if (actual := file.stat().st_size) != size:
            raise _damaged(folder, f"{file} has {actual} bytes instead of {size}")
        if check_hashes and sha256_file(file) != digest:
            raise _damaged(folder, f"{file} has changed since it was written")
    return record


def runs_named(text: str, names: Iterable[str]) -> set[str]:
    """Those of the run ids `names` that stand in a text, found in one pass over it."""
    found: set[str] = set()
    by_hash: dict[str, list[str]] = {}
    for name in names:
        if _HASH.fullmatch(name[-_HASH_LENGTH - 1 :]):
            by_hash.setdefault(name[-_HASH_LENGTH:], []).append(name)
        elif name in text:
            found.add(name)
    for match in _HASH.finditer(text):
        found.update(name for name in by_hash.get(match[1], ()) if text.endswith(name, 0, match.end()))
    return found


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Lines of a metrics.jsonl; an incomplete last line (of a killed run) is passed over.

    Raises:
        DamagedFileError: another line is not the JSON of a step.
    """
    found = []
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            if line:
                values = json.loads(line)
                if not isinstance(values["step"], int):
                    raise TypeError
                found.append(values)
        except (ValueError, TypeError, KeyError):
            if number < len(lines):
                raise _damaged(path.parent, f"line {number} of {path} is not the JSON of a step") from None
    return found


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(PROJECT_ROOT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def now() -> str:
    """The time, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def code_commit() -> tuple[str | None, bool | None]:
    """The commit of the code, and whether the code was changed since; None: unknown. A wheel has a note of both."""
    if INSTALLED:
        note = PACKAGE / "commit.txt"
        commit, *changes = note.read_text(encoding="utf-8").split() if note.is_file() else (None,)
        return commit, bool(changes) if commit else None
    commit = _git("rev-parse", "HEAD")
    # the report itself is rewritten by a run and says nothing about the code
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!reports")
    return commit, bool(changed) if commit else None


def describe_environment() -> dict[str, Any]:
    """Commit, versions, hardware and time, for a record."""
    versions = {"python": platform.python_version()}
    for package in ("torch", "transformers", "tokenizers", "numpy", "safetensors", "scikit-learn", "scipy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    commit, changed = code_commit()
    return {
        "commit": commit,
        "commit_changed": changed,
        "versions": versions,
        "hardware": {"cpu": _cpu_name(), "cores": available_cores(), "system": platform.system()},
        "finished": now(),
    }
