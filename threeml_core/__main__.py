"""The command `threeml <stage> -p NAME VALUE -f FILE`, also `python -m threeml_core` and `torchrun -m threeml_core`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from threeml_core import __version__
from threeml_core.config import StudyConfig, parse_arguments
from threeml_core.foundation.errors import BusyError, CheckpointError, ParameterError, StudyError, command_line
from threeml_core.foundation.processes import LEAVE, leave_if_asked, spin_briefly
from threeml_core.reporting.notebooks import notebooks_command
from threeml_core.runs.record import code_commit

# Each stage imports what it needs when it is called: `--help` and a report need no torch.


def pretrain(config: StudyConfig) -> None:
    """Pre-train a model, as notebooks/02_pretrain.ipynb does."""
    from threeml_core.training.distributed import Processes
    from threeml_core.training.run import pretrain

    record = pretrain(config)
    if Processes.of_torchrun().is_first and LEAVE not in os.environ:  # who started it says so
        print(f"record: {record.folder(config.runs_dir) / 'record.json'}")


def finetune(config: StudyConfig) -> None:
    """Fine-tune an encoder by the paper's protocol, as notebooks/03_finetune.ipynb does."""
    from threeml_core.glue.run import export_predictions, finetune_study

    if config.checkpoint is None:
        raise CheckpointError("checkpoint is missing: give -p checkpoint <folder, hub name or random:...>")
    study = finetune_study(config)[0]
    for result in study.results:
        if result.low is not None and result.high is not None:
            values = ", ".join(f"{key} {100 * value:.1f}" for key, value in result.metrics.items())
            undefined = f", undefined and counted as 0: {', '.join(result.undefined)}" if result.undefined else ""
            print(f"{result.title}: {values} [{100 * result.low:.1f}, {100 * result.high:.1f}]{undefined}")
        if result.failed:
            print(f"{result.title}: {len(result.failed)} of {len(result.records)} runs failed")
    for note in study.notes:
        print(f"note: {note}")
    if not config.plan_only:
        for path in export_predictions(study, config).values():
            print(f"predictions: {path}")


def study(config: StudyConfig) -> None:
    """Run the whole study, as notebooks 04 to 06 do table by table."""
    from threeml_core.study.run import run_study

    results = run_study(config)
    finished = [result for result in results if result.is_finished]
    print(f"{len(finished)} of {len(results)} runs of the study are finished, fine-tuning included")


def information(config: StudyConfig) -> None:
    """Measure mutual information, as notebooks/07_mutual_information.ipynb does."""
    from threeml_core.information.run import mutual_information

    for record in mutual_information(config):
        print(f"record: {record.folder(config.runs_dir) / 'record.json'}")


def probe(config: StudyConfig) -> None:
    """Probe frozen encoders, such as `threeml probe FOLDER ... -p ud FOLDER`; without any the study's."""
    from threeml_core.reporting.probing import difference_table, probe_table
    from threeml_core.study.probing import probe_study

    found = probe_study(config)[1]
    print(f"{probe_table(found)}\n\n{difference_table(found)}")
    for record in (found.words, *(record for seeds in found.models.values() for record in seeds.values())):
        print(f"record: {record.folder(config.runs_dir) / 'record.json'}")


def benchmark(config: StudyConfig) -> None:
    """Measure how fast the models train, as notebooks/08_performance.ipynb does; refuse a busy or noisy machine."""
    from threeml_core.benchmark.run import run_benchmark
    from threeml_core.benchmark.speeds import lines_of, session_of, why_no_speed

    records = run_benchmark(config, refuse=True)
    print("\n".join(lines_of(records)))
    for record in records:
        print(f"record: {record.folder(config.runs_dir) / 'record.json'}")
    bad = {session_of(r): why for r in records if "turns" in r.metrics and (why := why_no_speed(r))}
    if bad:
        said = "; ".join(f"session {number} is {why}" for number, why in bad.items())
        raise BusyError(f"{said}: no speed is given; let the machine idle and run the same command again")


def report(config: StudyConfig) -> None:
    """Bring the report of a preset up to date: run the notebooks that are out of date, write the HTML pages."""
    from threeml_core.reporting.report import make_report

    index, failed = make_report(config)
    print(f"The report is {index}: open it in a browser.")
    if failed:
        raise StudyError(f"{len(failed)} of its pages are missing: {'; '.join(failed)}")


def push(config: StudyConfig) -> None:
    """Push a finished pre-training to the hub: `threeml push RUN OWNER/NAME`; `-p dry_run FOLDER` needs no hub."""
    from threeml_core.training.push import push

    push(config)


def plan(config: StudyConfig) -> None:
    """Say what a study would run and what it costs, and run nothing, as notebooks/00_cost_model.ipynb does."""
    from threeml_core.reporting.cost import cost_plan, study_plan
    from threeml_core.reporting.planner import gpu_table, plan_table

    for table in (cost_plan(config), study_plan(config), plan_table(config), gpu_table(config)):
        print(f"{table}\n")


STAGES: dict[str, Callable[[StudyConfig], None]] = {
    stage.__name__: stage for stage in (pretrain, finetune, study, information, probe, benchmark, report, push, plan)
}


EXTRAS = {
    "finetune": "finetune",
    "study": "finetune",
    "information": "finetune",
    "probe": "finetune,notebooks,report",
    "report": "finetune,notebooks,report",
    "plan": "notebooks,report",
}
"""Of the installation, by the stage that needs them."""


@contextlib.contextmanager
def explain_missing(stage: str) -> Iterator[None]:
    """Turn a library that is not installed into one line with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if stage not in EXTRAS or module in ("", "threeml_core"):
            raise
        raise StudyError(
            f"threeml {stage} needs {module}, which is not installed: `pip install 'threeml-study[{EXTRAS[stage]}]'`, "
            f"or in a checkout `pip install -e '.[{EXTRAS[stage]}]'`"
        ) from None


def version_line() -> str:
    """Name, version and, as far as it is known, commit."""
    commit, changed = code_commit()
    known = f" (commit {commit[:10]}{', changed since' * bool(changed)})" if commit else ""
    return f"threeml-study {__version__}{known}"


@command_line
def main() -> None:
    """Run the stage that the command line names."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when torch is imported; else its profiler prints
    spin_briefly()
    leave_if_asked()
    names = ", ".join(STAGES)
    match sys.argv[1:]:
        case [] | ["-h" | "--help", *_]:
            lines = [f"  {name:12} {stage.__doc__}" for name, stage in STAGES.items()]
            lines += [
                "",
                "  export       Write an encoder as ONNX or for sentence-transformers, see threeml export --help",
                "  notebooks    Copy the notebooks into a folder of your own: threeml notebooks copy FOLDER",
                "  --version    Version and commit",
            ]
            print("\n".join(["usage: threeml STAGE [-f FILE] [-p NAME VALUE] ... | STAGE --help", "", *lines]))
        case ["--version", *_]:
            print(version_line())
        case ["notebooks", *arguments]:
            print(notebooks_command(arguments))
        case ["export", *arguments]:
            from threeml_core.training.export import export_command

            print(export_command(arguments))
        case [name, *arguments] if name in STAGES:
            stage = STAGES[name]
            several, each = "encoders" if stage is probe else "", ("pushed_run", "push_to_hub") if stage is push else ()
            config = parse_arguments(stage.__doc__ or "", arguments, name, several, each)
            with explain_missing(name):
                stage(config)
        case [name, *_]:
            raise ParameterError(
                f"unknown stage {name!r}: expected one of {names}, such as `threeml pretrain -p seed 1`"
            )


if __name__ == "__main__":  # worker processes import it again
    main()
