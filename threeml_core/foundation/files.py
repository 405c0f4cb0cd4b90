"""Writing without half-written files, hashing, locking, and where the project lies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from threeml_core.foundation.errors import LockedError, StudyError
from threeml_core.foundation.processes import is_running

PACKAGE = Path(__file__).resolve().parents[1]

INSTALLED = (PACKAGE / "params").is_dir()
"""Is this a wheel's copy? Such a one carries notebooks/ and params/ (setup.py), which lie beside it in a checkout."""

PROJECT_ROOT = Path.cwd() if INSTALLED else PACKAGE.parent
"""Where relative paths begin: the checkout, or for an installed package the folder in which it was started."""

CARRIED = PACKAGE if INSTALLED else PROJECT_ROOT
"""Where notebooks/ and params/ lie."""

_DIGITS = 16  # of a SHA-256 in a file's name
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextlib.contextmanager
def explain_path(path: str | Path) -> Iterator[None]:
    """Turn the system's refusal of a path into one line that names it; a full disk is left to `explain_full_disk`."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.errno in _NO_SPACE:
            raise
        reason = " ".join(str(error.strerror).split())[:200]
        raise StudyError(
            f"{error.filename or path} cannot be used: {reason}; give another path, or the permission for this one"
        ) from None


def refuse_locked(path: Path) -> Path:
    """The path itself; a `StudyError` if it cannot be looked at, or is a folder that may not be listed and entered."""
    with explain_path(path):
        if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return path


def _expanded(path: str | Path) -> Path:
    if "\0" in str(path):
        raise StudyError(f"{str(path)!r} cannot be used: a path has no zero byte in it")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise StudyError(f"{path}: there is no home folder of that user; give the whole path") from None


def project_path(path: str | Path) -> Path:
    """The path, if it is relative below the project, see `PROJECT_ROOT`; errors as `refuse_locked`."""
    return refuse_locked(PROJECT_ROOT / _expanded(path))


def find_path(path: str | Path) -> Path:
    """Something a user names: as seen from the caller's folder if it is there, else see `project_path`."""
    path = refuse_locked(_expanded(path))
    return path if path.exists() else project_path(path)


@contextlib.contextmanager
def explain_full_disk(path: Path) -> Iterator[None]:
    """Turn "no space left" into one line that names the place."""
    try:
        yield
    except Exception as error:
        if isinstance(error, StudyError) or not _is_full_disk(error):
            raise
        raise StudyError(
            f"the disk is full or a file size limit is reached: could not write {path}; "
            "what was there before is untouched. Free some space or write to another disk (runs: set runs_dir), "
            "then run the same command again"
        ) from error


def _is_full_disk(error: BaseException | None) -> bool:
    """Does the error, or one it came from, mean "no space left"? Rust's libraries give the number as text only."""
    while error is not None:
        if getattr(error, "errno", None) in _NO_SPACE or any(f"os error {code}" in str(error) for code in _NO_SPACE):
            return True
        error = error.__cause__ or error.__context__
    return False


def make_folder(folder: Path) -> None:
    """Create a folder; a `StudyError` if a file is in the way, or it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StudyError(
            f"cannot make the folder {folder} ({error.strerror}); give one that can be written (for runs: runs_dir)"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StudyError(f"the folder {folder} cannot be written; give one that can (for runs: runs_dir)")


@contextlib.contextmanager
def atomic_file(path: Path, digest: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path` in one step.

    With `digest` the first digits of its SHA-256 go into the name, `<stem>-<digits><suffix>`; see `fits_digest`.
    """
    make_folder(path.parent)
    _remove_leftovers(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with explain_full_disk(path):
            yield temporary
            with temporary.open("rb") as handle:
                os.fsync(handle.fileno())
            name = f"{path.stem}-{sha256_file(temporary)[:_DIGITS]}{path.suffix}" if digest else path.name
            os.replace(temporary, path.with_name(name))
    finally:
        temporary.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Remove what writers of `path` that were killed have begun; what a living process writes stays."""
    start = f".{path.name}."
    for leftover in path.parent.glob(f"{start}*.part"):
        pid = leftover.name.removeprefix(start).partition(".")[0]
        if pid.isdecimal() and int(pid) != os.getpid() and is_running(int(pid)):
            continue
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success it becomes `path`, else it is removed.

    A kill between the two steps that put it there leaves the old folder aside; the next call puts it back.
    """
    make_folder(path.parent)
    previous = path.with_name(f".{path.name}.previous.part")
    if previous.exists() and not path.exists():
        os.replace(previous, path)
    _remove_leftovers(path)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.{os.getpid()}.", suffix=".part", dir=path.parent))
    temporary.chmod(0o755)
    try:
        with explain_full_disk(path):
            yield temporary
            if path.exists():
                os.replace(path, previous)
            os.replace(temporary, path)
            shutil.rmtree(previous, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON that every reader takes; a `StudyError` for `Infinity` and `NaN`, which Python would write as well."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise StudyError(f"a result is not finite, and not written ({error}): the run that gave it failed") from None


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, see `json_text`."""
    text = json_text(value, indent=2)
    with atomic_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def utf16_of(start: bytes) -> str:
    """The kind of UTF-16 that a file with these first bytes seems to hold, as `iconv` calls it; else empty."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    half = len(start) // 2
    for first, kind in ((0, "utf-16be"), (1, "utf-16le")):  # of letters of European languages one byte is zero
        if half and start[first::2].count(0) > 0.6 * half and start[1 - first :: 2].count(0) < 0.1 * half:
            return kind
    return ""


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file, read in bounded memory; a `StudyError` if it cannot be read."""
    with explain_path(path), path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def fits_digest(path: Path) -> bool:
    """Is a file whose name holds its SHA-256 (`atomic_file`) still what was written?"""
    return path.is_file() and path.stem.rpartition("-")[2] == sha256_file(path)[:_DIGITS]


def fingerprint(value: Any, length: int = 12) -> str:
    """A short hash of a JSON-able value; equal values give equal hashes on every machine."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


@contextlib.contextmanager
def exclusive(lock: Path, what: str, wait: bool = False) -> Iterator[None]:
    """Hold the lock file, so that no two processes write the same; a `LockedError` if it is held, unless to `wait`."""
    make_folder(lock.parent)
    with explain_path(lock):
        handle = lock.open("w")
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            raise LockedError(
                f"{what} is being written by another process (it holds {lock}); "
                "wait until it ends, or stop it, then run the same command again"
            ) from error
        yield
