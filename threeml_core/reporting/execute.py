"""Run the study's notebooks by papermill, each only where it is out of date."""

from __future__ import annotations

import logging
import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import nbformat
import papermill

from threeml_core.config import StudyConfig, names_of
from threeml_core.foundation.errors import ParameterError, StudyError
from threeml_core.foundation.files import (
    CARRIED,
    PACKAGE,
    PROJECT_ROOT,
    exclusive,
    fingerprint,
    project_path,
    sha256_file,
)
from threeml_core.foundation.log import Log, print_line
from threeml_core.foundation.processes import LEAVE, available_cores, ended_with_us, leave_with
from threeml_core.parameters.report import ReportParameters
from threeml_core.reporting.notebooks import NOTEBOOKS
from threeml_core.runs.record import runs_named

AT_ONCE = 2  # notebooks: most of their time goes into importing, in one thread each
LAST = "06_comparison"  # judges what the other notebooks found
PERFORMANCE = "08_performance"  # measures time, so nothing else may run beside it
_STUDY = ("04", "05", "06")  # show the study's runs
_ALONE = ("11_speedrun", "12_rivals")  # reports by themselves, of presets that ask for them


def execute_notebooks(config: StudyConfig, log: Log = print_line) -> tuple[Path, list[str]]:
    """Execute all notebooks with the values given in `config`: the folder they lie in, and a line for each that failed.

    A notebook is executed again only if it, the package, the preset or a given value has changed, or a run that it
    shows is gone; killed or failed, it leaves no more than `unfinished/<name>`. Runs are never repeated.

    Raises:
        StudyError: the study's runs did not all end.
    """
    folder = project_path(config.runs_dir) / "notebooks" / config.preset
    # None means "not given" to a notebook, "None" is None; what decides the report alone is no notebook's
    names = [n for n in config.parameters() if config.sources[n] == "given" and n not in names_of(ReportParameters)]
    given = {n: "None" if (v := getattr(config, n)) is None else v for n in names}
    given["preset"] = config.preset
    os.environ["TQDM_DISABLE"] = "1"  # a bar would leave a line for each of its steps, and two notebooks talk at once
    # of records no page waits for what another finds
    sources = sorted(pages_of(config), key=lambda path: (path.stem == LAST and not config.plan_only, path.stem))
    failed: list[str] = []
    with exclusive(folder / ".lock", f"the notebooks folder {folder}"):
        keys = {source: _key(source, config, given) for source in sources}
        stale = [source for source in sources if not _is_current(folder / source.name, keys[source], config)]
        for path in {*folder.glob("*.ipynb")} - {folder / source.name for source in sources if source not in stale}:
            path.unlink()
        log(f"{len(sources) - len(stale)} of {len(sources)} notebooks are up to date")
        studied = any(source.stem[:2] in _STUDY for source in stale)
        if studied and not config.plan_only:
            _run_study(given)
        # of records alone nothing is measured, and no page waits for what another finds
        apart = () if config.plan_only else (PERFORMANCE, LAST, *_ALONE)
        alone = [[source] for source in stale if source.stem in apart]
        context, count = multiprocessing.get_context("spawn"), min(AT_ONCE, available_cores())
        with ProcessPoolExecutor(count, context, initializer=leave_with, initargs=(os.getpid(),)) as pool:
            for some in ([source for source in stale if [source] not in alone], *alone):
                done = [pool.submit(_execute, source, folder, given, keys[source], config) for source in some]
                for result in as_completed(done):
                    line, failure = result.result()
                    log(line)
                    failed += [failure] if failure else []
    return folder, failed


def pages_of(config: StudyConfig) -> list[Path]:
    """The notebooks of the report.

    Raises:
        ParameterError: there is no notebook of a number that `pages` names.
    """
    notebooks = sorted(NOTEBOOKS.glob("*.ipynb"))
    numbers = [path.stem[:2] for path in notebooks]
    usual = [path.stem[:2] for path in notebooks if path.stem not in _ALONE]
    parts = usual if config.pages == "all" else [part.strip() for part in config.pages.split(",")]
    wanted = {part.zfill(2) for part in parts if part}
    if "" in parts or not wanted <= set(numbers):
        unknown = min(wanted - set(numbers), default="''")
        raise ParameterError(
            f"pages={config.pages!r}: no notebook {unknown}; expected 'all' or some of {', '.join(numbers)}"
        )
    return [path for path, number in zip(notebooks, numbers, strict=True) if number in wanted]


def _run_study(given: dict[str, Any]) -> None:
    """All runs of the study in one go, which keeps its workers busier than notebook after notebook would."""
    parameters = [part for name, value in given.items() for part in ("-p", name, str(value))]
    command = [sys.executable, "-m", "threeml_core", "study", *parameters]
    study = subprocess.Popen(command, cwd=PROJECT_ROOT, env={**os.environ, LEAVE: str(os.getpid())})
    with ended_with_us(study):
        study.wait()
    if study.returncode != 0:
        raise StudyError("the study's runs did not all end, see above; the same command goes on with what is missing")


def _key(source: Path, config: StudyConfig, given: dict[str, Any]) -> str:
    """Of all that decides what an executed notebook shows, but for the runs, whose records do not change."""
    files = (source, CARRIED / f"params/{config.preset}.yaml", *sorted(PACKAGE.rglob("*.py")))
    return fingerprint([given, *map(sha256_file, (*files, PACKAGE / "paper_values.csv"))], 32)


def _is_current(path: Path, key: str, config: StudyConfig) -> bool:
    """Was it executed from the same things, and are the runs that it shows still there?"""
    if not path.exists():
        return False
    about, runs_dir = nbformat.read(path, 4).metadata.get("threeml", {}), project_path(config.runs_dir)
    return about.get("key") == key and all((runs_dir / run / "record.json").exists() for run in about["runs"])


def _execute(source: Path, folder: Path, given: dict[str, Any], key: str, config: StudyConfig) -> tuple[str, str]:
    """In a process of its own: a line for the log, and why it failed, or ""."""
    started = time.perf_counter()
    logging.getLogger("papermill").setLevel(logging.ERROR)  # it warns of what the first cell does not show
    unfinished = folder / "unfinished" / source.name
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    options = {"kernel_name": "python3", "progress_bar": False, "cwd": PROJECT_ROOT, "autosave_cell_every": 5}
    options["extra_arguments"] = ["--log-level=CRITICAL"]  # it warns of its start, calls its end an error
    try:
        papermill.execute_notebook(source, unfinished, given, **options)
    except papermill.PapermillExecutionError as error:
        failure = f"{source.stem} failed: {error.ename}: {error.evalue}"
        return f"{failure} (see {unfinished})", failure
    text = unfinished.read_text(encoding="utf-8")
    runs = [path.parent for path in project_path(config.runs_dir).glob("*/*/record.json")]
    named = runs_named(text, [run.name for run in runs])
    notebook = nbformat.reads(text, 4)
    shown = sorted(f"{run.parent.name}/{run.name}" for run in runs if run.name in named)
    notebook.metadata["threeml"] = {"key": key, "runs": shown}
    nbformat.write(notebook, unfinished)
    unfinished.replace(folder / source.name)
    return f"{source.stem}: executed ({time.perf_counter() - started:.0f} s)", ""
