"""Pre-training: a plain loop, saved states, one record. `python -m threeml_core.pretrain -p mask_rate 0.5`.

On several GPUs: `torchrun --nproc-per-node 8 -m threeml_core.pretrain --config run.yaml`, or `-p num_processes 8`.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from threeml_core import flops
from threeml_core.checkpoint import (
    REMEDY,
    SMOOTHING,
    SavedStates,
    TrainingState,
    all_finite,
    export_encoder,
    load_training_state,
    save_model,
    usable_positions,
)
from threeml_core.config import (
    KINDS,
    MODEL_NAMES,
    StudyConfig,
    corruption_of,
    executed_parameters,
    executed_rate,
    executed_statement,
    given_parameters,
    parse_arguments,
    parse_mask_split,
)
from threeml_core.data import PreparedData, prepare_data
from threeml_core.data.blocks import batch_indices, widen
from threeml_core.device import choose_device, describe_device, keep_freed_memory, peak_memory, use_bf16
from threeml_core.distributed import Processes, run_with_torchrun
from threeml_core.energy import energy_meter
from threeml_core.errors import DivergedError, ParameterError, Preempted, TrainingError, command_line
from threeml_core.evaluation import (
    corruption_fingerprint,
    fixed_corruption,
    masking_of,
    mlm_perplexity,
    on_unigram_plateau,
    tokens_by_kind,
    unigram_log_probabilities,
    validation_blocks,
)
from threeml_core.files import atomic_file, exclusive, explain_full_disk, json_text
from threeml_core.ledger import pretraining
from threeml_core.log import Log, no_line, print_line
from threeml_core.masking import IGNORE_INDEX, CorruptedBatch, RaggedBatch, corrupt
from threeml_core.models.build import build_model
from threeml_core.optim import linear_warmup_decay, make_optimizer, set_learning_rate
from threeml_core.processes import LEAVE, leave_if_asked, stop_requested
from threeml_core.results import (
    RunRecord,
    describe_environment,
    describe_files,
    now,
    read_metrics,
    read_record,
    run_folder,
    run_id,
    write_record,
)

STAGE = "pretrain"


class Batches:
    """The corrupted blocks of each update: a function of step, seed and kind of device alone.

    On a CPU a batch is made when it is asked for, as a second thread would take its core from the training. On a GPU
    a thread reads the next blocks into pinned memory as they are stored (16 bits a token), and they are copied and
    corrupted on the device, without waiting for it.
    """

    AHEAD = 2
    """Batches that are read before they are asked for."""

    def __init__(self, config: StudyConfig, data: PreparedData, device: torch.device) -> None:
        self.config, self.data, self.device = config, data, device
        self.masking = masking_of(config, data)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="batches") if device.type != "cpu" else None
        self._reading: dict[int, Future[torch.Tensor]] = {}

    def __getitem__(self, step: int) -> CorruptedBatch | RaggedBatch:
        """The blocks of update `step` (from 0), corrupted, on the device."""
        blocks = widen(self._stored(step).to(self.device, non_blocking=True))
        generator = torch.Generator(self.device).manual_seed(seed_of(self.config.seed, step))
        return corrupt(blocks, self.masking, generator)

    def _stored(self, step: int) -> torch.Tensor:
        if self._reader is None:
            return self._read(step)
        for ahead in range(step, step + 1 + self.AHEAD):
            if ahead not in self._reading and ahead < max(step + 1, self.config.max_steps):
                self._reading[ahead] = self._reader.submit(self._read, ahead)
        blocks = self._reading.pop(step).result()
        self._reading = {ahead: found for ahead, found in self._reading.items() if ahead > step}
        return blocks

    def _read(self, step: int) -> torch.Tensor:
        config = self.config
        blocks = self.data.train.stored(batch_indices(len(self.data.train), config.batch_size, step, config.seed))
        return blocks.pin_memory() if self.device.type == "cuda" else blocks


def seed_of(*numbers: int) -> int:
    """64 bits that no other numbers give (zeros at the end do not count)."""
    high, low = np.random.SeedSequence(numbers).generate_state(2, np.uint32)
    return int(high) << 32 | int(low)


def count_of(batch: CorruptedBatch | RaggedBatch) -> torch.Tensor:
    """() corrupted tokens of a batch, on its device."""
    return (batch.labels != IGNORE_INDEX).sum()


def loss_of(model: torch.nn.Module, batch: CorruptedBatch | RaggedBatch, count: torch.Tensor) -> torch.Tensor:
    """Sum of cross-entropies over the batch divided by `count`, the corrupted tokens of the whole update."""
    if isinstance(batch, CorruptedBatch):
        return model(corrupted=batch, num_items_in_batch=count, return_logits=False).loss
    return model(input_ids=batch.input_ids, labels=batch.labels, num_items_in_batch=count, return_logits=False).loss


class Trainer:
    """One run: model, optimizer, where it stands, and how to move it on by one update.

    What an update does follows from its step: the blocks, their corruption, and the dropout of each micro-batch. So
    it is the same in whatever process, and however often the run was interrupted.
    """

    def __init__(
        self, config: StudyConfig, data: PreparedData, device: torch.device, processes: Processes | None = None
    ) -> None:
        """`processes`: which share each update; None: this one alone."""
        self.config, self.data, self.device = config, data, device
        self.processes = processes or Processes()
        assert config.micro_batch_size is not None
        self.processes.check(config.batch_size, config.micro_batch_size)
        self.share = config.batch_size // self.processes.count
        self.micro_batch_size = min(config.micro_batch_size, self.share)
        self.batches = Batches(config, data, device)
        keep_freed_memory()
        torch.manual_seed(config.seed)
        self.model = build_model(config, data.vocab_size, **data.token_ids)
        self.model.to(device=device)  # type: ignore[call-arg]
        self.model.train()
        self.optimizer = make_optimizer(self.model, config)
        self.state = TrainingState()
        self.bf16, self.compiled = precision_of(config, device)
        forward: torch.nn.Module = self.model
        if self.compiled:
            # rows of unequal counts take Hugging Face's own way through the encoder, which looks at the mask's values
            whole = config.mask_counts == "exact"
            forward = torch.compile(  # type: ignore[assignment]
                self.model, dynamic=False, fullgraph=whole, mode=config.torch_compile_mode
            )
        self._forward = self.processes.share(forward)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """bfloat16 if the run uses it."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)

    def next_batch(self) -> CorruptedBatch | RaggedBatch:
        """The batch of the next update, of all processes."""
        return self.batches[self.state.step]

    def update(self, batch: CorruptedBatch | RaggedBatch | None = None) -> torch.Tensor:
        """Do one update, with the next batch if none is given; its loss in nats, still on the device.

        Of several processes each gives its share; the loss is their sum.

        Raises:
            TrainingError: out of GPU memory; says which `micro_batch_size` fits.
        """
        config = self.config
        set_learning_rate(self.optimizer, self.learning_rate())
        batch = self.next_batch() if batch is None else batch
        count = count_of(batch)
        own = batch.split(self.share)[self.processes.rank]
        while True:
            try:
                total = self._gradients(own, count)
                break
            except torch.OutOfMemoryError as error:
                reason = str(error).split(". ")[0]
            self._take_smaller_parts(own, count, reason)
        if config.max_grad_norm > 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.max_grad_norm)
        self.optimizer.step()
        self.state.step += 1
        return total

    def _gradients(self, own: CorruptedBatch | RaggedBatch, count: torch.Tensor) -> torch.Tensor:
        """Accumulate the gradients of this process's share; its part of the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        parts: Sequence[CorruptedBatch | RaggedBatch] = own.split(self.micro_batch_size)
        for number, part in enumerate(parts):
            if self.compiled:
                torch.compiler.cudagraph_mark_step_begin()
            with self.processes.accumulate(self._forward, last=number == len(parts) - 1):
                total += self._part(part, count, self.processes.rank * self.share + number * self.micro_batch_size)
        return total

    def _part(self, part: CorruptedBatch | RaggedBatch, count: torch.Tensor, row: int) -> torch.Tensor:
        """Forward and backward of a micro-batch whose first block is `row` of the update."""
        torch.manual_seed(seed_of(self.config.seed, self.state.step, 1 + row))  # of dropout
        with self.autocast():
            loss = loss_of(self._forward, part, count)
        # processes' gradients are averaged, but the count is that of all
        (loss * self.processes.count if self.processes.count > 1 else loss).backward()
        return loss.detach()

    def _take_smaller_parts(self, own: CorruptedBatch | RaggedBatch, count: torch.Tensor, reason: str) -> None:
        """Out of GPU memory: find the largest smaller micro-batch that fits, and take it if that was asked for."""
        asked = self.micro_batch_size
        fits = next((size for size in _smaller_divisors(asked, self.share) if self._fits(own, count, size)), None)
        if fits is None:
            raise TrainingError(
                f"out of GPU memory with micro_batch_size={asked} ({reason}), and one block does not fit either: "
                "take a smaller model or shorter blocks"
            )
        if not self.config.auto_find_micro_batch_size or self.processes.count > 1:
            raise TrainingError(
                f"out of GPU memory with micro_batch_size={asked} ({reason}); {fits} fits: set micro_batch_size={fits}"
                + ("" if self.processes.count > 1 else ", or auto_find_micro_batch_size=True")
            )
        self.micro_batch_size = fits

    def _fits(self, own: CorruptedBatch | RaggedBatch, count: torch.Tensor, size: int) -> bool:
        """Try a micro-batch of this size; the next attempt clears its gradients."""
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        try:
            with self.processes.accumulate(self._forward, last=False):
                self._part(own.split(size)[0], count, 0)
        except torch.OutOfMemoryError:
            return False
        return True

    def learning_rate(self) -> float:
        """Of the next update."""
        config = self.config
        return config.learning_rate * linear_warmup_decay(self.state.step, config.max_steps, config.warmup_ratio)


def _smaller_divisors(size: int, share: int) -> list[int]:
    """Micro-batches of at most half of `size` that divide a share, the largest first."""
    return [part for part in range(size // 2, 0, -1) if share % part == 0]


def precision_of(config: StudyConfig, device: torch.device) -> tuple[bool, bool]:
    """(bf16, torch_compile) with None decided: both on a GPU, neither on a CPU, where they only cost time."""
    gpu = device.type == "cuda"
    return use_bf16(config, device), config.torch_compile if config.torch_compile is not None else gpu


def pretrain_identity(config: StudyConfig, data_id: str, device: torch.device) -> dict[str, Any]:
    """All that determines the result of a run."""
    bf16, compiled = precision_of(config, device)
    run = {"device": device.type, "bf16": bf16, "torch_compile": compiled}
    return {"data": data_id, **executed_parameters(config), **run}


def pretrain_run_id(config: StudyConfig, data: PreparedData, device: torch.device) -> str:
    """Folder name of a run.

    Raises:
        ParameterError: a mask rate that these blocks cannot satisfy.
    """
    for evaluation in (False, True):
        masking_of(config, data, evaluation)
    identity = pretrain_identity(config, data.data_id, device)
    return run_id(f"{config.architecture}-{100 * executed_rate(config):.0f}", identity)


def pretrain(config: StudyConfig, log: Log = print_line) -> RunRecord:
    """Pre-train one model, or return the record if that was done before, or go on where it was interrupted.

    Source: section 3.3 and Appendix A. Leaves `runs/pretrain/<run id>/` with `record.json`, `metrics.jsonl`,
    `model/` (decoder included) and `encoder/` (an ordinary RoBERTa with tokenizer).

    Args:
        config: resolved parameters.
        log: takes progress lines.

    Raises:
        StudyError: bad parameters or corpus, a damaged run folder, a full disk, a loss that is not finite.
    """
    if config.plan_only:
        return pretraining(config)
    transformers_logging.disable_progress_bar()
    processes = Processes.of_torchrun()
    device = choose_device(config, processes.local_rank)
    environment = describe_environment()
    log = log if processes.is_first else no_line
    data = prepare_data(config, log)
    log(f"{config.max_steps:,} updates of {config.batch_size:,} sequences are {_epochs(config, data):.3g} epochs")
    name = pretrain_run_id(config, data, device)
    identity = pretrain_identity(config, data.data_id, device)
    folder = run_folder(config.runs_dir, STAGE, name)
    if config.num_processes > 1 and processes.count == 1:
        return _pretrain_with_torchrun(config, folder, log)
    finished = (folder / "record.json").exists()
    if not finished or processes.count > 1:  # nothing changes in a finished run, so any number may read it at once
        lock = exclusive(folder / ".lock", f"run {name}") if processes.is_first else contextlib.nullcontext()
        with lock, processes.joined(device):
            finished = processes.first_says((folder / "record.json").exists())
            if not finished:
                try:
                    _run(config, data, device, processes, identity, environment, folder, log)
                except DivergedError as error:
                    if processes.is_first:  # what diverges would do so again
                        SavedStates(folder / "training_state", config.save_total_limit).remove()
                        record_failure(config, name, str(error), identity)
                    raise
                processes.wait()
                return read_record(folder)
    record = _finished(folder)
    log(f"run {name} is finished; its record is read")
    return record


def record_failure(config: StudyConfig, name: str, failure: str, identity: dict[str, Any] | None = None) -> RunRecord:
    """Leave a record that says why run `name` gave no model."""
    environment = {**describe_environment(), "finished": now()}
    empty: dict[str, Any] = {key: {} for key in ("metrics", "flops", "timing", "data", "files")}
    record = RunRecord(
        STAGE,
        name,
        identity=identity or {},
        parameters=config.parameters(),
        sources=dict(config.sources),
        environment=environment,
        failure=failure,
        **empty,
    )
    write_record(record, config.runs_dir)
    return record


def _epochs(config: StudyConfig, data: PreparedData) -> float:
    """How often the run sees each training sequence, in the mean."""
    return config.max_steps * config.batch_size / len(data.train)


def _finished(folder: Path) -> RunRecord:
    record = read_record(folder, check_hashes=True)
    if record.failure:
        raise TrainingError(f"run {folder.name} failed before: {record.failure}; to try again, remove {folder}")
    return record


def _pretrain_with_torchrun(config: StudyConfig, folder: Path, log: Log) -> RunRecord:
    """As `pretrain`, in `num_processes` new processes on this host."""
    Processes(count=config.num_processes).check(config.batch_size, config.micro_batch_size or config.batch_size)
    if not (folder / "record.json").exists():
        run_with_torchrun("threeml_core.pretrain", given_parameters(config), config.num_processes, log)
    return _finished(folder)


def _run(
    config: StudyConfig,
    data: PreparedData,
    device: torch.device,
    processes: Processes,
    identity: dict[str, Any],
    environment: dict[str, Any],
    folder: Path,
    log: Log,
) -> None:
    trainer = Trainer(config, data, device, processes)
    states = SavedStates(folder / "training_state", config.save_total_limit)
    saved = processes.first_says(states.newest(log) if processes.is_first else None)
    if saved is not None:
        trainer.state = load_training_state(saved, trainer.model, trainer.optimizer)
        log(f"run {folder.name} resumes after step {trainer.state.step}")
    else:
        log(f"run {folder.name} starts")
    corruption = fixed_corruption(validation_blocks(config, data), masking_of(config, data, evaluation=True))
    _say_what_is_executed(identity, config, corruption, log)
    _say_how_cross_is_normalised(config, log)
    unigram = unigram_log_probabilities(data.train_counts(), data.special_ids)

    def validate() -> dict[str, float]:
        return mlm_perplexity(trainer.model, corruption, unigram, config.eval_batch_size, trainer.autocast())

    with energy_meter(log) as energy:
        metrics = _train(trainer, folder, states, validate, log)
    if not processes.is_first:
        return
    # of a part of a run, or of one process of several, it would mean nothing
    kwh = energy.kwh if saved is None and processes.count == 1 else None
    final: dict[str, Any] = {
        **metrics,
        **{f"eval_tokens_{kind}": count for kind, count in tokens_by_kind(corruption).items()},
        "eval_blocks": len(corruption.input_ids),
        "eval_corruption": corruption_fingerprint(corruption),
    }
    if on_unigram_plateau(metrics):
        log(
            f"warning: the run ends on the unigram plateau: its perplexity at masked positions is "
            f"{metrics['eval_perplexity_masked']:.1f}, the unigram's {metrics['unigram_perplexity_masked']:.1f}; try "
            "more updates, a longer warm-up or another learning rate"
        )
    _finish(trainer, folder, identity, environment, final, kwh)
    states.remove()


def _say_what_is_executed(identity: dict[str, Any], config: StudyConfig, corruption: CorruptedBatch, log: Log) -> None:
    """Where rate or split are not as asked for, and where the validation text is too short for a kind of token."""
    for evaluation, name in ((False, "corruption"), (True, "eval_corruption")):
        if statement := executed_statement(config.parameters(), identity[name], evaluation):
            log(f"{'validation ' * evaluation}mask rate {statement} per {config.sequence_length} tokens")
    counts = tokens_by_kind(corruption)
    for kind, share in zip(KINDS, parse_mask_split(config.eval_mask_split), strict=True):
        if share and not counts[kind]:
            log(
                f"the validation corruption has no {kind} token: {len(corruption.input_ids)} sequences are too few for "
                f"{share:.0%} of the corrupted tokens; no perplexity is given for this kind"
            )


def _say_how_cross_is_normalised(config: StudyConfig, log: Log) -> None:
    """Where it is not as the preset says, or not as the paper says. Source: section 3.3."""
    if config.sources["layer_norm"] == "derived":
        log(f"layer_norm=pre instead of post, which preset {config.preset} has: post-LN does not work for 3ML_cross")
    elif (config.architecture, config.layer_norm) == ("cross", "post"):
        log("warning: layer_norm=post, as given: the paper says that it does not work for 3ML_cross; it took pre")


def _train(
    trainer: Trainer, folder: Path, states: SavedStates, validate: Callable[[], dict[str, float]], log: Log
) -> dict[str, float]:
    """Updates up to max_steps; validation and saving now and then. The last validation's metrics.

    Of several processes the first one writes, validates and saves; the others' result is empty.
    """
    config, state, processes = trainer.config, trainer.state, trainer.processes
    tokens_per_step = config.batch_size * config.sequence_length
    last: dict[str, float] = {}
    pending: list[torch.Tensor] = []  # losses not yet looked at: reading one waits for the device

    def settle() -> None:
        """Look at the pending losses; stop at the first that is not finite."""
        values = processes.sum(torch.stack(pending)).tolist()
        for step, value in enumerate(values, state.step - len(values) + 1):
            if not math.isfinite(value):
                raise TrainingError(f"the loss is not finite ({value}) at step {step}; {states.describe()}. {REMEDY}")
            if step > config.warmup_ratio * config.max_steps:
                state.smooth(value)
        state.loss_sum += sum(values)
        state.loss_count += len(values)
        pending.clear()

    def save() -> None:
        if processes.is_first:
            states.save(trainer.model, trainer.optimizer, state)

    with contextlib.ExitStack() as stack:
        stopping = stack.enter_context(stop_requested())
        writer = _metrics_writer(folder, state.step, config.tensorboard)
        write = stack.enter_context(writer) if processes.is_first else _write_nothing
        bar = stack.enter_context(_Progress(config, state.step))
        while state.step < config.max_steps:
            started = time.perf_counter()
            learning_rate = trainer.learning_rate()
            pending.append(trainer.update())
            step, end = state.step, state.step == config.max_steps
            stop = processes.any(stopping())
            logging = step % config.logging_steps == 0 or end
            validating = step % config.eval_steps == 0 or end
            saving = (step % config.save_steps == 0 or stop) and not end
            if trainer.device.type == "cpu" or logging or validating or saving:  # free on a CPU: check every step
                settle()
            state.window_seconds += time.perf_counter() - started
            bar.update(1)
            if logging:
                rate = state.loss_count * tokens_per_step / state.window_seconds
                loss = state.loss_sum / state.loss_count
                write(step, {"train_loss": loss, "learning_rate": learning_rate, "tokens_per_second": rate})
                bar.report(step, config.max_steps, loss, rate, log)
                state.start_window()
            if validating:
                if not all_finite(trainer.model):
                    raise TrainingError(f"a parameter is not finite after step {step}; {states.describe()}. {REMEDY}")
                uniform = math.log(trainer.data.vocab_size)
                if state.smoothed_count >= SMOOTHING and state.smoothed_loss > uniform:
                    if processes.is_first:
                        raise DivergedError(_diverged("training", step, state.smoothed_loss, uniform))
                    processes.wait()  # the first one leaves a record and ends
                if processes.is_first:
                    last = validate()
                    too_bad = end and last["eval_loss"] > uniform + _MUCH_WORSE  # also of a run of a few updates
                    if too_bad or not all(map(math.isfinite, last.values())):
                        raise DivergedError(_diverged("validation", step, last["eval_loss"], uniform))
                    write(step, last)
                    log(
                        f"step {step}: validation perplexity over all corrupted {last['eval_perplexity']:.1f}, "
                        f"at masked positions {last['eval_perplexity_masked']:.1f} "
                        f"(unigram {last['unigram_perplexity_masked']:.1f})"
                    )
            if saving:
                save()
            if stop and not end:
                processes.wait()  # for the state
                raise Preempted(
                    f"run {folder.name} was asked to stop (SIGTERM): its state after step {step} is saved; "
                    "the same command goes on from there"
                )
    return last or (validate() if processes.is_first else {})


_MUCH_WORSE = 1.0
"""Nats above a uniform guess that no untrained model has: a run that ends there has diverged, however short it was."""


def _diverged(which: str, step: int, loss: float, uniform: float) -> str:
    return (
        f"the run diverged: after step {step} the {which} loss over all corrupted tokens is {loss:.4g} nats, a uniform "
        f"guess over the vocabulary has {uniform:.4g}; no encoder is exported. {REMEDY}, or a higher one if the loss "
        "never fell"
    )


def _write_nothing(step: int, values: dict[str, float]) -> None:
    """The metrics are those of the first process."""


@contextlib.contextmanager
def _metrics_writer(folder: Path, done: int, tensorboard: bool) -> Iterator[Callable[[int, dict[str, float]], None]]:
    """Append lines to metrics.jsonl (and TensorBoard); lines after step `done`, of a killed run, are dropped.

    The run's lock keeps others from the file, and a finished run's is never opened for writing. Only who removes the
    folder of a run at work removes the lock too; then the run that is there now goes on, and this one stops, as its
    record would tell the size of the other's file.

    Raises:
        TrainingError: metrics.jsonl is no longer the one that was opened.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "metrics.jsonl"
    kept = [line for line in read_metrics(path) if line["step"] <= done]
    with atomic_file(path) as temporary:
        temporary.write_text("".join(json_text(line) + "\n" for line in kept), encoding="utf-8")
    board = None
    if tensorboard:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ParameterError("tensorboard=True needs `pip install tensorboard`") from None
        board = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)
    with path.open("a", encoding="utf-8") as handle:

        def write(step: int, values: dict[str, float]) -> None:
            if not (path.exists() and os.path.samestat(os.fstat(handle.fileno()), path.stat())):
                raise TrainingError(
                    f"{folder} was removed or begun anew while this process wrote to it, so it stops at step {step}; "
                    "when no other process is at this run, the same command does it again"
                )
            with explain_full_disk(path):
                handle.write(json_text({"step": step, **values}) + "\n")
                handle.flush()
            if board is not None:
                for key, value in values.items():
                    board.add_scalar(key, value, step)

        try:
            yield write
        finally:
            if board is not None:
                board.close()


class _Progress:
    """A bar in JupyterLab, a log line everywhere else."""

    def __init__(self, config: StudyConfig, done: int) -> None:
        self._bar: Any = None
        if "JPY_SESSION_NAME" in os.environ:  # set by a Jupyter server, not by papermill or nbval
            from tqdm.auto import tqdm

            self._bar = tqdm(total=config.max_steps, initial=done, unit="step")

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, steps: int) -> None:
        if self._bar is not None:
            self._bar.update(steps)

    def report(self, step: int, max_steps: int, loss: float, rate: float, log: Log) -> None:
        if self._bar is not None:
            self._bar.set_postfix(loss=f"{loss:.3f}", tokens_per_s=f"{rate:.0f}")
        else:
            log(f"step {step}/{max_steps}: loss over all corrupted {loss:.3f}, {rate:.0f} tokens/s")


def _flops(config: StudyConfig, vocab: int) -> dict[str, float]:
    if config.mask_counts == "probabilistic":
        return {}  # ragged rows go through the full-length forward, which Appendix C does not describe
    forward = flops.forward_flops(config, "exact", vocab)
    return {
        "forward_per_block": forward,
        "training": flops.training_flops(forward, config.batch_size, config.max_steps, "exact"),
        "speedup_over_vanilla_15": flops.config_speedup(config, "exact", 0.15, vocab),
        "speedup_over_vanilla_same_rate": flops.config_speedup(config, "exact", config.mask_rate, vocab),
        "paper_formula_speedup_over_vanilla_15": flops.config_speedup(config, "paper", 0.15, vocab),
    }


def _finish(
    trainer: Trainer,
    folder: Path,
    identity: dict[str, Any],
    environment: dict[str, Any],
    metrics: dict[str, Any],
    kwh: float | None,
) -> None:
    config, data, state, model = trainer.config, trainer.data, trainer.state, trainer.model
    losses = [line["train_loss"] for line in read_metrics(folder / "metrics.jsonl") if "train_loss" in line]
    environment |= {"processes": trainer.processes.count, "micro_batch_size": trainer.micro_batch_size}
    environment["finished"] = now()
    describe_device(environment, trainer.device)
    save_model(model, folder / "model", data.tokenizer_folder)
    card = model_card(config, folder.name, data, metrics, model)
    export_encoder(model, folder / "encoder", data.tokenizer_folder, card)
    record = RunRecord(
        stage=STAGE,
        run_id=folder.name,
        identity=identity,
        parameters=config.parameters(),
        sources=dict(config.sources),
        metrics={"train_loss": losses[-1], **metrics, "on_unigram_plateau": on_unigram_plateau(metrics)},
        flops=_flops(config, data.vocab_size),
        timing={
            "train_seconds": state.seconds,
            "tokens_per_second": config.max_steps * config.batch_size * config.sequence_length / state.seconds,
            "peak_memory_bytes": peak_memory(trainer.device),
            **({} if kwh is None else {"energy_kwh": kwh}),
        },
        data={
            "data_id": data.data_id,
            "vocab_size": data.vocab_size,
            "parameters": count_parameters(model),
            "encoder_parameters": count_parameters(model.encoder),
            **{name: data.meta[name] for name in ("corpus", "tokenizer", "train", "validation")},
        },
        environment=environment,
        files=describe_files(folder, ("metrics.jsonl", "model", "encoder")),
    )
    write_record(record, config.runs_dir)


def count_parameters(module: Any) -> int:
    """Trainable numbers in a module; shared ones count once."""
    return sum(p.numel() for p in module.parameters())


def model_card(
    config: StudyConfig, name: str, data: PreparedData, metrics: dict[str, Any], model: PreTrainedModel
) -> str:
    """The encoder folder's README: what it is, how it was made, how to load it."""
    kind = {**MODEL_NAMES, "vanilla": "a vanilla masked language model"}
    text = f"{data.meta['corpus']} ({data.meta['train']['words']:,} words)"
    if "bundled" in data.meta["corpus"]:
        text += "; English Wikipedia's contributors, CC BY-SA"
    executed = executed_statement(config.parameters(), corruption_of(config.parameters()))
    length, room = config.sequence_length, usable_positions(model)
    encoder = cast(PreTrainedModel, model.encoder)
    longer = (
        ""
        if room <= length
        else f""";
  the positions behind {length} were never pre-trained: longer texts need fine-tuning at their length, or else cut at
  {length} (`tokenizer.model_max_length`, sentence-transformers' `max_seq_length`)"""
    )
    return f"""---
library_name: transformers
tags: [masked-language-modeling, roberta, 3ml]
---
# Encoder of {name}

An ordinary RoBERTa encoder ({config.layer_norm}-LN, {config.num_hidden_layers} layers, width {config.hidden_size},
{count_parameters(encoder):,} parameters) of transformers' class `{type(encoder).__name__}`
(model type `{encoder.config.model_type}`), pre-trained as {kind[config.architecture]} with
mask_rate {config.mask_rate:g} and split {config.mask_split}; the decoder was removed.
{f"Executed: mask rate {executed} per sequence." if executed else ""}

* text: {text}
* tokenizer: {data.meta["tokenizer"]}, {data.vocab_size:,} tokens
* length: pre-trained on sequences of {length} tokens; there is room for {room}, at which the tokenizer cuts{longer}
* no pooler was trained: `AutoModel` draws a new one, so take `last_hidden_state`, not `pooler_output`
* {config.max_steps:,} updates of {config.batch_size} blocks, peak learning rate {config.learning_rate:g},
  seed {config.seed}
* validation perplexity {metrics["eval_perplexity"]:.2f} over all corrupted tokens, at [MASK]s
  {metrics["eval_perplexity_masked"]:.2f} (token frequencies alone: {metrics["unigram_perplexity_masked"]:.2f})

```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("encoder")
model = AutoModelForSequenceClassification.from_pretrained("encoder", num_labels=2)
```

Method: Liao et al., "Mask More and Mask Later", EMNLP 2022.
"""


@command_line
def main() -> None:
    """The command `python -m threeml_core.pretrain`."""
    leave_if_asked()
    config = parse_arguments("Pre-train a model, as notebooks/02_pretrain.ipynb does.")
    record = pretrain(config)
    if Processes.of_torchrun().is_first and LEAVE not in os.environ:  # who started it says so
        print(f"record: {record.folder(config.runs_dir) / 'record.json'}")


if __name__ == "__main__":
    main()
