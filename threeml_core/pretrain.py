"""Pre-training: a plain loop, saved states, one record. `python -m threeml_core.pretrain -p mask_rate 0.5`."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from threeml_core import flops
from threeml_core.checkpoint import (
    REMEDY,
    TrainingState,
    all_finite,
    export_encoder,
    kept_state,
    load_training_state,
    save_model,
    save_training_state,
)
from threeml_core.config import MODEL_NAMES, StudyConfig, identity_parameters, parse_arguments
from threeml_core.data import PreparedData, prepare_data
from threeml_core.data.blocks import batch_indices, widen
from threeml_core.device import choose_device, describe_device, keep_freed_memory, peak_memory, use_bf16
from threeml_core.energy import energy_meter
from threeml_core.errors import ParameterError, TrainingError, command_line
from threeml_core.evaluation import (
    corruption_fingerprint,
    fixed_corruption,
    masking_of,
    mlm_perplexity,
    on_unigram_plateau,
    unigram_log_probabilities,
    validation_blocks,
)
from threeml_core.files import atomic_file, exclusive, explain_full_disk
from threeml_core.log import Log, print_line
from threeml_core.masking import IGNORE_INDEX, CorruptedBatch, RaggedBatch, corrupt
from threeml_core.models import build_model
from threeml_core.optim import linear_warmup_decay, make_optimizer, set_learning_rate
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
        draw = np.random.SeedSequence((self.config.seed, step)).generate_state(2, np.uint32)
        generator = torch.Generator(self.device).manual_seed(int(draw[0]) << 32 | int(draw[1]))
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


def count_of(batch: CorruptedBatch | RaggedBatch) -> int | torch.Tensor:
    """Corrupted tokens of a batch; a tensor where their number differs from batch to batch."""
    if isinstance(batch, CorruptedBatch):
        return len(batch.input_ids) * sum(batch.kind_sizes.values())
    return (batch.labels != IGNORE_INDEX).sum()


def loss_of(model: torch.nn.Module, batch: CorruptedBatch | RaggedBatch, count: int | torch.Tensor) -> torch.Tensor:
    """Sum of cross-entropies over the batch divided by `count`, the corrupted tokens of the whole update."""
    if isinstance(batch, CorruptedBatch):
        return model(corrupted=batch, num_items_in_batch=count, return_logits=False).loss
    return model(input_ids=batch.input_ids, labels=batch.labels, num_items_in_batch=count, return_logits=False).loss


class Trainer:
    """One run: model, optimizer, where it stands, and how to move it on by one update."""

    def __init__(self, config: StudyConfig, data: PreparedData, device: torch.device) -> None:
        self.config, self.data, self.device = config, data, device
        self.batches = Batches(config, data, device)
        keep_freed_memory()
        torch.manual_seed(config.seed)
        self.model = build_model(config, data.vocab_size, **data.token_ids)
        self.model.to(device=device)  # type: ignore[call-arg]
        self.model.train()
        self.optimizer = make_optimizer(self.model, config)
        self.state = TrainingState()
        self.bf16, self.compiled = precision_of(config, device)
        self._forward: torch.nn.Module = self.model
        if self.compiled:
            # rows of unequal counts take Hugging Face's own way through the encoder, which looks at the mask's values
            whole = config.mask_counts == "exact"
            self._forward = torch.compile(  # type: ignore[assignment]
                self.model, dynamic=False, fullgraph=whole, mode=config.torch_compile_mode
            )

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """bfloat16 if the run uses it."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)

    def next_batch(self) -> CorruptedBatch | RaggedBatch:
        """The batch of the next update."""
        return self.batches[self.state.step]

    def update(self, batch: CorruptedBatch | RaggedBatch | None = None) -> torch.Tensor:
        """Do one update, with the next batch if none is given; its loss in nats, still on the device."""
        config = self.config
        set_learning_rate(self.optimizer, self.learning_rate())
        batch = self.next_batch() if batch is None else batch
        count = count_of(batch)
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        assert config.micro_batch_size is not None
        for part in batch.split(config.micro_batch_size):
            if self.compiled:
                torch.compiler.cudagraph_mark_step_begin()
            with self.autocast():
                loss = loss_of(self._forward, part, count)
            loss.backward()
            total += loss.detach()
        if config.max_grad_norm > 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.max_grad_norm)
        self.optimizer.step()
        self.state.step += 1
        return total

    def learning_rate(self) -> float:
        """Of the next update."""
        config = self.config
        return config.learning_rate * linear_warmup_decay(self.state.step, config.max_steps, config.warmup_ratio)


def precision_of(config: StudyConfig, device: torch.device) -> tuple[bool, bool]:
    """(bf16, torch_compile) with None decided: both on a GPU, neither on a CPU, where they only cost time."""
    gpu = device.type == "cuda"
    return use_bf16(config, device), config.torch_compile if config.torch_compile is not None else gpu


def pretrain_identity(config: StudyConfig, data_id: str, device: torch.device) -> dict[str, Any]:
    """All that determines the result of a run."""
    bf16, compiled = precision_of(config, device)
    run = {"device": device.type, "bf16": bf16, "torch_compile": compiled}
    return {"data": data_id, **identity_parameters(config), **run}


def pretrain_run_id(config: StudyConfig, data: PreparedData, device: torch.device) -> str:
    """Folder name of a run.

    Raises:
        ParameterError: a mask rate that these blocks cannot satisfy.
    """
    for evaluation in (False, True):
        masking_of(config, data, evaluation)
    identity = pretrain_identity(config, data.data_id, device)
    return run_id(f"{config.architecture}-{config.mask_rate * 100:g}", identity)


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
    config.refuse_plan_only()
    transformers_logging.disable_progress_bar()
    device = choose_device(config)
    environment = describe_environment()
    data = prepare_data(config, log)
    name = pretrain_run_id(config, data, device)
    identity = pretrain_identity(config, data.data_id, device)
    folder = run_folder(config.runs_dir, STAGE, name)
    with exclusive(folder / ".lock", f"run {name}"):
        if (folder / "record.json").exists():
            record = read_record(folder, check_hashes=True)
            if record.failure:
                raise TrainingError(f"run {name} failed before: {record.failure}; to try again, remove {folder}")
            log(f"run {name} is finished; its record is read")
            return record
        return _run(config, data, device, identity, environment, folder, log)


def _run(
    config: StudyConfig,
    data: PreparedData,
    device: torch.device,
    identity: dict[str, Any],
    environment: dict[str, Any],
    folder: Path,
    log: Log,
) -> RunRecord:
    trainer = Trainer(config, data, device)
    state_file = folder / "training_state.pt"
    resumed = state_file.exists()
    if resumed:
        trainer.state = load_training_state(state_file, trainer.model, trainer.optimizer)
        log(f"run {folder.name} resumes after step {trainer.state.step}")
    else:
        log(f"run {folder.name} starts")
    corruption = fixed_corruption(validation_blocks(config, data), masking_of(config, data, evaluation=True))
    unigram = unigram_log_probabilities(data.train_counts(), data.special_ids)

    def validate() -> dict[str, float]:
        return mlm_perplexity(trainer.model, corruption, unigram, config.eval_batch_size, trainer.autocast())

    with energy_meter(log) as energy:
        metrics = _train(trainer, folder, validate, log)
    kwh = None if resumed else energy.kwh  # of a part of a run it would mean nothing
    final = {**metrics, "eval_blocks": len(corruption.input_ids), "eval_corruption": corruption_fingerprint(corruption)}
    record = _finish(trainer, folder, identity, environment, final, kwh)
    state_file.unlink(missing_ok=True)
    return record


def _train(trainer: Trainer, folder: Path, validate: Callable[[], dict[str, float]], log: Log) -> dict[str, float]:
    """Updates up to max_steps; validation and saving now and then. The last validation's metrics."""
    config, state = trainer.config, trainer.state
    tokens_per_step = config.batch_size * config.sequence_length
    state_file = folder / "training_state.pt"
    last: dict[str, float] = {}
    pending: list[torch.Tensor] = []  # losses not yet looked at: reading one waits for the device

    def settle() -> None:
        """Look at the pending losses; stop at the first that is not finite."""
        values = torch.stack(pending).tolist()
        for step, value in enumerate(values, state.step - len(values) + 1):
            if not math.isfinite(value):
                raise TrainingError(
                    f"the loss is not finite ({value}) at step {step}; {kept_state(state_file)}. {REMEDY}"
                )
        state.loss_sum += sum(values)
        state.loss_count += len(values)
        pending.clear()

    with _metrics_writer(folder, state.step, config.tensorboard) as write, _Progress(config, state.step) as bar:
        while state.step < config.max_steps:
            started = time.perf_counter()
            learning_rate = trainer.learning_rate()
            pending.append(trainer.update())
            step, end = state.step, state.step == config.max_steps
            logging = step % config.logging_steps == 0 or end
            validating = step % config.eval_steps == 0 or end
            saving = step % config.save_steps == 0 and not end
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
                    raise TrainingError(
                        f"a parameter is not finite after step {step}; {kept_state(state_file)}. {REMEDY}"
                    )
                last = validate()
                write(step, last)
                log(
                    f"step {step}: validation perplexity {last['eval_perplexity']:.1f}, at masked positions "
                    f"{last['eval_perplexity_masked']:.1f} (unigram {last['unigram_perplexity_masked']:.1f})"
                )
            if saving:
                save_training_state(state_file, trainer.model, trainer.optimizer, state)
    return last or validate()


@contextlib.contextmanager
def _metrics_writer(folder: Path, done: int, tensorboard: bool) -> Iterator[Callable[[int, dict[str, float]], None]]:
    """Append lines to metrics.jsonl (and TensorBoard); lines after step `done`, of a killed run, are dropped."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "metrics.jsonl"
    kept = [line for line in read_metrics(path) if line["step"] <= done]
    with atomic_file(path) as temporary:
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    board = None
    if tensorboard:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ParameterError("tensorboard=True needs `pip install tensorboard`") from None
        board = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)
    with path.open("a", encoding="utf-8") as handle:

        def write(step: int, values: dict[str, float]) -> None:
            with explain_full_disk(path):
                handle.write(json.dumps({"step": step, **values}) + "\n")
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
            log(f"step {step}/{max_steps}: loss {loss:.3f}, {rate:.0f} tokens/s")


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
) -> RunRecord:
    config, data, state, model = trainer.config, trainer.data, trainer.state, trainer.model
    losses = [line["train_loss"] for line in read_metrics(folder / "metrics.jsonl") if "train_loss" in line]
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
    return record


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
    return f"""---
library_name: transformers
tags: [masked-language-modeling, roberta, 3ml]
---
# Encoder of {name}

An ordinary RoBERTa encoder ({config.layer_norm}-LN, {config.num_hidden_layers} layers, width {config.hidden_size},
{count_parameters(model.encoder):,} parameters), pre-trained as {kind[config.architecture]} with
mask_rate {config.mask_rate:g} and split {config.mask_split}; the decoder was removed.

* text: {text}
* tokenizer: {data.meta["tokenizer"]}, {data.vocab_size:,} tokens; sequence length {config.sequence_length}
* {config.max_steps:,} updates of {config.batch_size} blocks, peak learning rate {config.learning_rate:g},
  seed {config.seed}
* validation perplexity {metrics["eval_perplexity"]:.2f}; at masked positions {metrics["eval_perplexity_masked"]:.2f}
  (unigram {metrics["unigram_perplexity_masked"]:.2f})

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
    config = parse_arguments("Pre-train a model, as notebooks/02_pretrain.ipynb does.")
    record = pretrain(config)
    print(f"record: {record.folder(config.runs_dir) / 'record.json'}")


if __name__ == "__main__":
    main()
