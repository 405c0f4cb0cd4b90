"""Trackers of experiments (`report_to`): they get what metrics.jsonl gets, the parameters and the results."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import netrc
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from threeml_core.config import StudyConfig
from threeml_core.foundation.errors import ParameterError, StudyError
from threeml_core.foundation.files import project_path, write_json
from threeml_core.foundation.log import Log

PROJECT = "threeml"
"""Of trackio, W&B and MLflow, where the environment names no other."""

Values = dict[str, float]


@dataclasses.dataclass
class Tracker:
    """An open run of a tracker."""

    id: str
    """By which the tracker goes on with it."""
    write: Callable[[int, Values], object]
    """Takes a step and its values."""
    end: Callable[[bool], object]
    """Closes it; whether the run is finished."""


class Trackers:
    """Those of one pre-training. What fails is named once and left out: a tracker costs no run.

    `trackers.json` in the run folder says which run of a tracker goes on and what it has, so that steps done again
    after a kill are not sent again. It is written first: a kill may cost a tracker a line, and never doubles one.
    """

    def __init__(self, config: StudyConfig, folder: Path, names: Iterable[str], log: Log) -> None:
        """Open those with these names, or go on with the runs that there are."""
        self._file, self._log = folder / "trackers.json", log
        self._open: dict[str, Tracker] = {}
        self._sent: dict[str, Any] = {}
        with self._named(self._file.name), contextlib.suppress(FileNotFoundError):
            self._sent = json.loads(self._file.read_text(encoding="utf-8"))
        for name in names:
            with self._named(name):
                known = self._sent.get(name, {}).get("id")
                self._open[name] = tracker = _KINDS[name](config, folder, known)
                self._sent.setdefault(name, {"id": tracker.id, "step": -1, "keys": []})
        if self._open:
            write_json(self._file, self._sent)

    @contextlib.contextmanager
    def _named(self, name: str) -> Iterator[None]:
        try:
            yield
        except StudyError:  # SIGTERM's
            raise
        except Exception as error:  # of libraries of many kinds
            reason = " ".join(str(error).split())[:200]
            self._log(f"warning: {name} failed ({type(error).__name__}: {reason}); the run goes on without it")
            self._open.pop(name, None)

    def write(self, step: int, values: Values) -> None:
        """Send what is not sent yet of the values of a step."""
        unsent = {}
        for name in self._open:
            sent = self._sent[name]
            if step > sent["step"]:
                sent |= {"step": step, "keys": []}
            if step == sent["step"] and (new := {k: v for k, v in values.items() if k not in sent["keys"]}):
                sent["keys"] += new
                unsent[name] = new
        if unsent:
            write_json(self._file, self._sent)
        for name, new in unsent.items():
            with self._named(name):
                self._open[name].write(step, new)

    def finish(self, step: int, results: dict[str, Any]) -> None:
        """Send the numbers among the results of a finished run, as `final/<part of its record>/<name>`."""
        parts = {part: values for part, values in results.items() if isinstance(values, dict)}
        numbers = {f"final/{p}/{k}": v for p, of in parts.items() for k, v in of.items() if isinstance(v, int | float)}
        self.write(step, {name: float(value) for name, value in numbers.items()})
        self.close(finished=True)

    def close(self, finished: bool = False) -> None:
        """Close those that are open."""
        for name, tracker in list(self._open.items()):
            with self._named(name):
                tracker.end(finished)
        self._open.clear()


def check_trackers(config: StudyConfig) -> None:
    """Refuse, with a `ParameterError`, a tracker of `report_to` whose library is not there."""
    for name in config.listed("report_to"):
        # what a local store takes: mlflow-skinny leaves it out
        also = ["sqlalchemy", "alembic"] if name == "mlflow" and "MLFLOW_TRACKING_URI" not in os.environ else []
        if not all(map(importlib.util.find_spec, [name, *also])):
            packages = " ".join(["mlflow-skinny" if name == "mlflow" else name, *also])
            raise ParameterError(f"report_to={name} needs `pip install {packages}`")


def _tensorboard(config: StudyConfig, folder: Path, known: str | None) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    board = SummaryWriter(str(folder / "tensorboard"))
    if known is None:
        board.add_text("parameters", "\n".join(f"    {k}: {v}" for k, v in config.parameters().items()))

    def write(step: int, values: Values) -> None:
        for key, value in values.items():
            board.add_scalar(key, value, step)
        board.flush()

    return Tracker("tensorboard", write, lambda finished: board.close())


def _trackio(config: StudyConfig, folder: Path, known: str | None) -> Tracker:
    import trackio

    run = trackio.init(
        project=os.environ.get("TRACKIO_PROJECT", PROJECT),
        name=folder.name,
        config=config.parameters(),
        resume="allow" if known else "never",
        embed=False,
        auto_log_cpu=False,
        auto_log_gpu=False,
    )
    return Tracker(folder.name, lambda step, values: run.log(values, step=step), lambda finished: run.finish())


def _wandb(config: StudyConfig, folder: Path, known: str | None) -> Tracker:
    import wandb

    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        id=known or f"{folder.name}-{secrets.token_hex(4)}",  # a run folder that was removed had another
        name=folder.name,
        config=config.parameters(),
        resume="allow",
        dir=os.environ.get("WANDB_DIR", folder),
        mode=None if "WANDB_MODE" in os.environ or _has_wandb_key() else "offline",
        settings=wandb.Settings(console="off"),
    )
    return Tracker(
        run.id,
        lambda step, values: run.log(values, step=step),
        lambda finished: run.finish(exit_code=int(not finished)),
    )


def _has_wandb_key() -> bool:
    """Without a key W&B would ask for one, and wait."""
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return bool(os.environ.get("WANDB_API_KEY") or netrc.netrc(os.environ.get("NETRC")).authenticators(host))
    except (OSError, netrc.NetrcParseError):
        return False


def _mlflow(config: StudyConfig, folder: Path, known: str | None) -> Tracker:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    store = f"sqlite:///{project_path(config.runs_dir) / 'mlflow.db'}"
    client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", store))
    if known is None:
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = client.get_experiment_by_name(project)
        experiment = found.experiment_id if found else client.create_experiment(project)
        known = client.create_run(experiment, run_name=folder.name).info.run_id
        client.log_batch(known, params=[Param(k, str(v)) for k, v in config.parameters().items()])
    run = known
    client.update_run(run, status="RUNNING")

    def write(step: int, values: Values) -> None:
        now = int(time.time() * 1000)
        client.log_batch(run, metrics=[Metric(key, value, now, step) for key, value in values.items()])

    return Tracker(run, write, lambda finished: client.set_terminated(run, "FINISHED" if finished else "KILLED"))


_KINDS: dict[str, Callable[[StudyConfig, Path, str | None], Tracker]] = {
    "tensorboard": _tensorboard,
    "trackio": _trackio,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
