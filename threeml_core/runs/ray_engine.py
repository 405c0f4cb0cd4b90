"""The jobs of a study on Ray: a running cluster, or Ray started on this host. Needs the extra `cluster`."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from threeml_core.foundation.errors import LockedError, ParameterError, Preempted, StudyError, TrainingError
from threeml_core.foundation.log import Log, no_line
from threeml_core.runs.engines import Done, Engine, do
from threeml_core.runs.jobs import Job
from threeml_core.runs.record import RunRecord

_LOCK_WAIT = 60.0  # seconds: a process of a lost host may hold a run's lock a little longer than the host is there


class Ray(Engine):
    """The cluster's workers; see `ray_cluster`."""

    def __init__(self, ray: Any, runs_dir: str | Path, log: Log, max_retries: int, joined: bool) -> None:
        super().__init__(runs_dir)
        self.ray, self.log, self.joined, self.max_retries = ray, log, joined, max_retries
        self._do = ray.remote(_do_remotely)
        self._warned: set[tuple[float, float]] = set()

    def _start(self, job: Job) -> Any:
        self._check(job)
        options = {"num_cpus": job.num_cpus, "num_gpus": job.num_gpus, "max_retries": self.max_retries}
        return self._do.options(**options, name=job.run_id).remote(job.alone(), str(self.runs_dir))

    def _check(self, job: Job) -> None:
        """Refuse a job for which no host is large enough, or warn if one may still join."""
        wanted = {"CPU": job.num_cpus, "GPU": job.num_gpus}
        hosts = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if any(all(host.get(name, 0) >= number for name, number in wanted.items()) for host in hosts):
            return
        largest = ", ".join(f"{max(host.get(name, 0) for host in hosts):g} {name}s" for name in wanted)
        needed = (job.num_cpus, job.num_gpus)
        problem = f"a run needs {needed[0]:g} CPUs and {needed[1]:g} GPUs on one host, but the largest has {largest}"
        if not self.joined:
            raise ParameterError(f"{problem}: lower ray_num_cpus, ray_num_gpus or num_processes")
        if needed not in self._warned:
            self._warned.add(needed)
            self.log(f"warning: {problem}; it waits for such a host to join")

    def ended(self, timeout: float) -> list[Done]:
        """See `Engine`."""
        ended, _ = self.ray.wait(list(self._running), num_returns=1, timeout=timeout)
        done = []
        for reference in ended:
            job = self._running.pop(reference)
            try:
                result = self.ray.get(reference)
            except self.ray.exceptions.RayTaskError:
                raise
            except self.ray.exceptions.RayError as error:
                raise TrainingError(
                    f"run {job.run_id} lost its worker {self.max_retries + 1} times ({type(error).__name__}), perhaps "
                    "for want of memory; finished runs stay. Run again, with more ray_num_cpus or ray_num_gpus for "
                    "a run, so that fewer share a host"
                ) from None
            if isinstance(result, StudyError):
                raise result
            done.append((job, *result))
        return done


def _do_remotely(job: Job, runs_dir: str) -> tuple[RunRecord, float] | StudyError:
    """In a worker; what a user has to know comes back as a value, as Ray would wrap it in a traceback."""
    deadline = time.monotonic() + _LOCK_WAIT
    while True:
        try:
            return do(job, runs_dir, no_line)
        except LockedError as error:
            if time.monotonic() > deadline:
                return error
            time.sleep(1)
        except Preempted as error:  # this host is being taken away: Ray starts the run again elsewhere
            os._exit(error.exit_status)
        except StudyError as error:
            return error


@contextlib.contextmanager
def ray_cluster(runs_dir: str | Path, log: Log, address: str | None, max_retries: int) -> Iterator[Ray]:
    """Join the cluster at `address`, or start Ray here and stop it at the end; a `ParameterError` if there is none."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise ParameterError("engine='ray' needs Ray: `pip install ray`") from None
    own = not ray.is_initialized()
    if own:
        quiet: dict[str, Any] = {"log_to_driver": False, "include_dashboard": None if address else False}
        try:
            ray.init(address=address or "local", logging_level=logging.ERROR, **quiet)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            reason = str(error).split("\n")[0]
            raise ParameterError(
                f"ray_address={address!r}: no Ray cluster answers there ({reason}); start one with `ray start --head`, "
                "or leave ray_address out to start Ray on this host"
            ) from None
    total = ray.cluster_resources()
    hosts = sum(node["Alive"] for node in ray.nodes())
    log(f"Ray: {hosts} host{'s' * (hosts > 1)}, {total.get('CPU', 0):g} CPUs, {total.get('GPU', 0):g} GPUs")
    engine = Ray(ray, runs_dir, log, max_retries, joined=address is not None or not own)
    try:
        yield engine
    except BaseException:
        for reference in list(engine._running):
            ray.cancel(reference)
        raise
    finally:
        if own:
            ray.shutdown()
