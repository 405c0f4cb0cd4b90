"""One run over several processes that torchrun started: what each one does of a step, what all agree on."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import yaml
from torch import Tensor, nn

from threeml_core.foundation.errors import NotFiniteError, ParameterError, TrainingError
from threeml_core.foundation.log import Log
from threeml_core.foundation.processes import LEAVE, available_cores, ended_with_us

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes that share a run's steps; alone, everything here does nothing.

    Attributes:
        rank: number of this one, from 0.
        count: of all.
        local_rank: number of this one on its host: which of the host's GPUs it takes.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @classmethod
    def of_torchrun(cls) -> Processes:
        """As torchrun says in the environment; without torchrun this process is alone."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        return cls(*(int(os.environ[name]) for name in names)) if "TORCHELASTIC_RUN_ID" in os.environ else cls()

    @property
    def is_first(self) -> bool:
        """The one that validates, logs and saves."""
        return self.rank == 0

    def check(self, batch_size: int, micro_batch_size: int) -> None:
        """Refuse, with a `ParameterError`, a batch of which sequences or micro-batches would be left over."""
        if batch_size % self.count:
            raise ParameterError(
                f"batch_size={batch_size} cannot be shared by {self.count} processes: choose a multiple of "
                f"{self.count}, or another number of processes"
            )
        share = batch_size // self.count
        if share % min(share, micro_batch_size):
            raise ParameterError(
                f"micro_batch_size={micro_batch_size} does not divide the {share} sequences that each of {self.count} "
                f"processes has of batch_size={batch_size}"
            )

    @contextlib.contextmanager
    def joined(self, device: torch.device) -> Iterator[None]:
        """Within it the processes can talk to each other: gloo between CPUs, NCCL between GPUs.

        Raises:
            TrainingError: another process is gone.
        """
        if self.count == 1:
            yield
            return
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        try:
            yield
            dist.destroy_process_group()  # after an error it might wait for the others
        except RuntimeError as error:
            lost = any(mark in str(error) for mark in ("gloo", "NCCL", "Connection"))
            if not lost and not isinstance(error, dist.DistError):
                raise
            reason = str(error).split("\n")[0][:200]
            raise TrainingError(
                f"process {self.rank} of {self.count} lost another process of this run ({reason}); the error of that "
                "one tells why. The same command goes on from the last saved state, with any number of processes"
            ) from error

    def share(self, model: nn.Module) -> nn.Module:
        """The model to train with: its gradients are averaged over all processes."""
        return nn.parallel.DistributedDataParallel(model, broadcast_buffers=False) if self.count > 1 else model

    def accumulate(self, model: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Gradients of a micro-batch are sent round with the last one only."""
        if isinstance(model, nn.parallel.DistributedDataParallel) and not last:
            return model.no_sync()
        return contextlib.nullcontext()

    def average(self, gradients: Iterable[Tensor]) -> None:
        """Average over all processes, in place: of a model that `share` has not got."""
        for gradient in gradients if self.count > 1 else ():
            dist.all_reduce(gradient)
            gradient /= self.count

    def sum(self, values: Tensor) -> Tensor:
        """Sum over all processes."""
        if self.count > 1:
            dist.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Is it true of any process? Does not wait for a GPU."""
        if self.count == 1:
            return flag
        value = torch.tensor([float(flag)])
        dist.all_reduce(value, dist.ReduceOp.MAX)
        return bool(value.item())

    def first_says(self, value: T) -> T:
        """What the first process has as `value`, on all of them."""
        if self.count == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]

    def wait(self) -> None:
        """Until all have come here."""
        self.any(False)


def run_with_torchrun(stage: str, parameters: Mapping[str, Any], count: int, log: Log) -> None:
    """Start `threeml <stage> --config <file>` as `count` processes on this host, one for each GPU, and follow its log.

    Never a fork of this process, which may have used a GPU. If this process ends, however it does, so do they. The
    parameters are written into the file and never reach a shell.

    Raises:
        TrainingError: it failed; with its own line. A `NotFiniteError` where that says so.
    """
    threads = max(1, available_cores() // count)
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ, LEAVE: str(os.getpid())}
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "errors", "w+", encoding="utf-8") as errors:
        file = Path(folder) / "run.yaml"
        file.write_text(yaml.safe_dump(dict(parameters)), encoding="utf-8")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        command = [*torchrun, "-m", "threeml_core", stage, "--config", str(file)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None
        with process.stdout, ended_with_us(process):
            for line in process.stdout:
                log(line.rstrip("\n"))
        errors.seek(0)
        lines = errors.read().splitlines()
    if process.returncode:
        own = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        own.sort(key=lambda line: "lost another process" in line)  # that is a consequence
        reason = own[0] if own else " ".join(line.strip() for line in lines[-5:]) or "it said nothing"
        kind = NotFiniteError if "not finite" in reason else TrainingError
        raise kind(f"{reason} (one of {count} processes started by torchrun)")
