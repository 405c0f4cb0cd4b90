"""Fine-tuning by the paper's protocol. `threeml finetune -p checkpoint FOLDER -p glue FOLDER`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from threeml_core.config import StudyConfig
from threeml_core.foundation.errors import ParameterError, TrainingError
from threeml_core.foundation.files import atomic_file, exclusive, json_text, project_path
from threeml_core.foundation.log import Log, print_line
from threeml_core.glue.baselines import baseline_job
from threeml_core.glue.encode import EncodedSplit, EncodedTask, encode_task, evaluation_batches, training_batches
from threeml_core.glue.ledger import TRAINING_PARAMETERS, glue_study
from threeml_core.glue.metrics import constant_answers, task_metrics, task_score
from threeml_core.glue.predictions import FILE, Predictions
from threeml_core.glue.protocol import STAGE, FinetuneRun, GlueStudy, best_run, planned_tasks, runs_of, start_of
from threeml_core.glue.readers import TaskData, load_task, split_name
from threeml_core.glue.tasks import Task
from threeml_core.runs.jobs import Job
from threeml_core.runs.record import RunRecord, read_record, recorded, run_folder, run_id
from threeml_core.runs.sweep import run_jobs
from threeml_core.training.device import choose_device, describe_device, gpu_share, peak_memory, reset_peak_memory
from threeml_core.training.encoders import Encoder, load_classifier, save_encoder
from threeml_core.training.optim import linear_warmup_decay, make_optimizer, set_learning_rate
from threeml_core.training.precision import use_bf16

_CHECK_EVERY = 50  # steps between looks at the loss, each of which waits for a GPU
_EVAL_TOKENS = 16_384  # of a validation batch


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all runs of a study share: parameters, encoder, device, and the tokenised tasks by name."""

    config: StudyConfig
    encoder: Encoder
    device: torch.device
    data: dict[str, TaskData]
    encoded: dict[str, EncodedTask]

    def batch(self, split: EncodedSplit, index: np.ndarray) -> dict[str, np.ndarray]:
        """The examples `index`, padded as the parameters say; see `EncodedSplit.batch`."""
        pad_to = self.config.max_length if self.config.pad_to_max_length else None
        return split.batch(index, int(self.encoder.tokenizer.pad_token_id), pad_to)

    def identity(self, run: FinetuneRun, starts: Sequence[str]) -> dict[str, Any]:
        """All that determines the result of a run, which starts from the best of the runs `starts`."""
        return {
            **dataclasses.asdict(run),
            "encoder": self.encoder.fingerprint,
            "data": self.encoded[run.task].data_id,
            "starts": list(starts),
            **{name: getattr(self.config, name) for name in TRAINING_PARAMETERS},
            "device": self.device.type,
            "bf16": use_bf16(self.config, self.device),
        }

    def run_id(self, run: FinetuneRun, starts: Sequence[str]) -> str:
        """Folder name of a run."""
        return run_id(f"{run.task}-s{run.seed}", self.identity(run, starts))

    def folder(self, name: str) -> Path:
        """Of a run."""
        return run_folder(self.config.runs_dir, STAGE, name)


def load_tasks(config: StudyConfig, log: Log = print_line) -> dict[str, TaskData]:
    """The examples of all tasks of a study, by name.

    A StudyError says here, before anything is trained, what is wrong with them, or that `max_length` is more than the
    encoder to be pre-trained could take.
    """
    positions = config.max_position_embeddings
    assert positions is not None
    if config.checkpoint is None and config.max_length > positions - 2:
        raise ParameterError(
            f"max_length={config.max_length}: with max_position_embeddings={positions} the encoder takes at most "
            f"{positions - 2} tokens; lower one or raise the other"
        )
    data = {task.name: load_task(task, config) for task in planned_tasks(config)}
    for examples in data.values():
        sizes = (f"{name} {len(split):,}{' (subset)' * split.is_subset}" for name, split in examples.splits.items())
        log(f"{examples.task.title}: {', '.join(sizes)}")
    return data


def make_setting(config: StudyConfig, encoder: Encoder, data: dict[str, TaskData]) -> Setting:
    """Tokenise all that the runs need; a StudyError: no such device, or `max_length` over the encoder's positions."""
    device = choose_device(config)
    if encoder.positions is not None and config.max_length > encoder.positions:
        raise ParameterError(
            f"max_length={config.max_length}: the encoder {encoder.checkpoint} takes at most {encoder.positions} "
            "tokens; set max_length to at most that"
        )
    how = (encoder.tokenizer, config.max_length, project_path(config.runs_dir) / "data", encoder.segments)
    encoded = {name: encode_task(examples, *how) for name, examples in data.items()}
    return Setting(config, encoder, device, data, encoded)


def plan_jobs(setting: Setting) -> list[Job]:
    """All runs of an encoder. A task that starts from another needs that task's runs of the same seed."""
    config = setting.config
    starts_from = {task: start_of(task, config) for task in planned_tasks(config)}
    jobs = []
    by_seed: dict[tuple[str | None, int], list[str]] = {}
    for task, start in sorted(starts_from.items(), key=lambda item: item[1] is not None):
        # all that a job needs, as it may be sent to another process
        data = {name: of.without_texts() for name, of in setting.data.items() if name in (task.name, start)}
        encoded = {name: setting.encoded[name] for name in data}
        own = dataclasses.replace(setting, data=data, encoded=encoded)
        for run in runs_of(task, config):
            starts = tuple(by_seed.get((start, run.seed), ()))
            work = functools.partial(finetune, own, run, starts, task.name in starts_from.values())
            name = setting.run_id(run, starts)
            jobs.append(
                Job(STAGE, name, work, starts, run.title, num_cpus=config.ray_num_cpus, num_gpus=gpu_share(config))
            )
            by_seed.setdefault((task.name, run.seed), []).append(name)
    return jobs


def finetune_glue(config: StudyConfig, encoder: Encoder, data: dict[str, TaskData], log: Log = print_line) -> GlueStudy:
    """Fine-tune an encoder on all tasks, grid points and seeds of `config`; do what is missing, read what is there.

    Source: section 3.1, Table 6. RTE, STS-B and MRPC start from the best MNLI model of the same seed (which of the
    MNLI models it is, the paper leaves open). A StudyError says what is wrong with the input before any run starts.
    """
    jobs = [baseline_job(examples, config) for examples in data.values()]
    jobs += plan_jobs(make_setting(config, encoder, data))
    records = run_jobs(jobs, config, log, config.num_workers).values()
    tuned, words = ([record for record in records if record.stage == stage] for stage in (STAGE, "baseline"))
    return glue_study(config, encoder.checkpoint, encoder.pretraining, tuned, words)


def finetune(
    setting: Setting, run: FinetuneRun, starts: Sequence[str], keep_encoder: bool, log: Log = print_line
) -> RunRecord:
    """Fine-tune once, or return the record if that was done before. A run that diverges leaves a record that says so.

    It starts from the best of the runs `starts` (none: from the encoder), and leaves `runs/finetune/<run id>/` with
    `record.json`, `metrics.jsonl`, `predictions.npz` and, if others start from it (`keep_encoder`), `encoder`.
    """
    name = setting.run_id(run, starts)
    folder = setting.folder(name)

    def work(environment: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"data": _about(setting, run)}
        try:
            trained = _train(setting, run, _start(setting, run, starts, log), keep_selected=keep_encoder)
        except TrainingError as error:
            found["failure"] = str(error)
        else:
            if keys := ", ".join(trained.metrics["undefined"]):
                log(f"{name}: one answer for every example, so {keys} is undefined and counts as 0")
            if keep_encoder:
                save_encoder(trained.model, folder / "encoder")
            trained.answers.save(folder)
            with atomic_file(folder / "metrics.jsonl") as temporary:
                temporary.write_text("".join(json_text(line) + "\n" for line in trained.lines), encoding="utf-8")
            constant = constant_answers(setting.data[run.task].task, trained.answers.splits)
            metrics = {**trained.metrics, "constant_answers": constant}
            found |= {"metrics": metrics, "timing": trained.timing, "files": ("metrics.jsonl", FILE)}
        describe_device(environment, setting.device)
        return found

    return recorded(folder, setting.identity(run, starts), setting.config, work)


def _start(setting: Setting, run: FinetuneRun, starts: Sequence[str], log: Log) -> PreTrainedModel:
    """The model a run starts from, under a new head: the encoder, or the best of the models `starts`."""
    num_labels = setting.data[run.task].task.num_labels
    if not starts:
        torch.manual_seed(run.seed)
        return load_classifier(setting.encoder.folder, num_labels, setting.encoder.is_random)
    best = best_run([read_record(setting.folder(name)) for name in starts])
    if best is None:
        raise TrainingError(f"all runs it could start from failed ({', '.join(starts)})")
    for name in {*starts} - {best.run_id}:
        with exclusive(setting.folder(name) / ".lock", f"run {name}", wait=True):
            shutil.rmtree(setting.folder(name) / "encoder", ignore_errors=True)
    folder = setting.folder(best.run_id)
    with exclusive(folder / ".lock", f"run {best.run_id}", wait=True):
        if not (folder / "encoder").is_dir():
            log(f"{best.run_id} did not keep its encoder: it is fine-tuned again")
            again = FinetuneRun.of(best)
            model = _train(setting, again, _start(setting, again, (), log), keep_selected=True).model
            save_encoder(model, folder / "encoder")
        torch.manual_seed(run.seed)
        return load_classifier(folder / "encoder", num_labels)


@dataclasses.dataclass
class Trained:
    """What training leaves: metrics and answers of the epoch that counts, and a line of metrics for every epoch."""

    model: PreTrainedModel  # of the epoch that counts, if its weights were asked for; else of the last
    metrics: dict[str, Any]
    answers: Predictions
    lines: list[dict[str, Any]]
    timing: dict[str, float]


def _train(setting: Setting, run: FinetuneRun, model: PreTrainedModel, keep_selected: bool) -> Trained:
    """All epochs of a run, a validation after each; a TrainingError if a loss or an output is not finite."""
    config, device = setting.config, setting.device
    task = setting.data[run.task].task
    train = setting.encoded[run.task].splits["train"]
    reset_peak_memory(device)
    model.to(device)  # type: ignore[arg-type]
    optimizer = make_optimizer(model, config.replace(optimizer="adamw", weight_decay=config.finetune_weight_decay))
    steps = math.ceil(len(train) / run.batch_size)
    step, seconds, slots = 0, 0.0, 0
    lines: list[dict[str, Any]] = []
    selected: tuple[dict[str, Any], Predictions] | None = None
    weights: dict[str, torch.Tensor] | None = None
    for epoch in range(1, run.epochs + 1):
        model.train()
        started = time.perf_counter()
        losses: list[torch.Tensor] = []
        loss_sum = 0.0
        for index in training_batches(train, run.batch_size, run.seed, epoch):
            inputs = setting.batch(train, index)
            slots += inputs["input_ids"].size
            factor = linear_warmup_decay(step, run.epochs * steps, config.finetune_warmup_ratio)
            set_learning_rate(optimizer, run.learning_rate * factor)
            optimizer.zero_grad(set_to_none=True)
            logits, labels = _logits(setting, model, inputs), torch.from_numpy(train.labels[index]).to(device)
            loss = F.mse_loss(logits[:, 0], labels) if task.is_regression else F.cross_entropy(logits, labels)
            loss.backward()
            if config.max_grad_norm > 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
            optimizer.step()
            step += 1
            losses.append(loss.detach())
            if len(losses) == _CHECK_EVERY:
                loss_sum += _settle(losses, step)
        loss_sum += _settle(losses, step)
        seconds += time.perf_counter() - started
        answers = _predict(setting, model, task)
        values, undefined = task_metrics(task, answers.splits)
        line = {"epoch": epoch, "step": step, "train_loss": loss_sum / steps, "score": task_score(task, values)}
        lines.append({**line, **values})
        if selected is None or config.finetune_select == "last" or line["score"] > selected[0]["score"]:
            selected = {**lines[-1], "undefined": undefined, "is_constant": answers.is_constant}, answers
            if keep_selected and config.finetune_select == "best":
                weights = {name: value.to("cpu", copy=True) for name, value in model.state_dict().items()}
    assert selected is not None
    if weights is not None:
        model.load_state_dict(weights)
    tokens = run.epochs * int(train.offsets[-1])
    timing = {
        "train_seconds": seconds,
        "sequences_per_second": run.epochs * len(train) / seconds,
        "tokens_per_second": tokens / seconds,
        "padding_share": 1 - tokens / slots,
        "peak_memory_bytes": peak_memory(device),
    }
    return Trained(model, *selected, lines, timing)


def _logits(setting: Setting, model: PreTrainedModel, inputs: dict[str, np.ndarray]) -> torch.Tensor:
    """(B, num_labels) in float32."""
    tensors = {name: torch.from_numpy(value).to(setting.device) for name, value in inputs.items()}
    bf16 = use_bf16(setting.config, setting.device)
    with torch.autocast(setting.device.type, torch.bfloat16) if bf16 else contextlib.nullcontext():
        return model(**tensors).logits.float()


def _settle(losses: list[torch.Tensor], step: int) -> float:
    """Sum of the losses not yet looked at; a TrainingError if one is not finite."""
    values = torch.stack(losses).tolist() if losses else []
    losses.clear()
    for number, value in enumerate(values, step - len(values) + 1):
        if not math.isfinite(value):
            raise TrainingError(f"it diverged: the loss is not finite ({value}) at update {number}")
    return sum(values)


def _predict(setting: Setting, model: PreTrainedModel, task: Task) -> Predictions:
    model.eval()
    labels, logits = {}, {}
    for tag in task.validation:
        split = setting.encoded[task.name].splits[split_name(tag)]
        labels[tag] = split.labels
        logits[tag] = predict_split(setting, model, split, task.num_labels)
        if not np.isfinite(logits[tag]).all():
            raise TrainingError("it diverged: an output on the validation set is not finite")
    return Predictions(task, labels, logits)


@torch.inference_mode()
def predict_split(setting: Setting, model: PreTrainedModel, split: EncodedSplit, num_labels: int) -> np.ndarray:
    """(N, num_labels) outputs in the order of the examples; the model must be in evaluation mode."""
    logits = np.empty((len(split), num_labels), np.float32)
    for index in evaluation_batches(split, max(1, _EVAL_TOKENS // setting.config.max_length)):
        logits[index] = _logits(setting, model, setting.batch(split, index)).cpu().numpy()
    return logits


def _about(setting: Setting, run: FinetuneRun) -> dict[str, Any]:
    """What a record says of a run's encoder and examples."""
    data, encoded = setting.data[run.task], setting.encoded[run.task]
    start = start_of(data.task, setting.config)
    lengths = encoded.splits["train"].lengths
    return {
        "task": run.task,
        "checkpoint": setting.encoder.checkpoint,
        "encoder_parameters": setting.encoder.parameters,
        "data_id": encoded.data_id,
        "is_subset": data.is_subset or (start is not None and setting.data[start].is_subset),
        "splits": data.describe(),
        "share_at_max_length": float(np.mean(lengths >= setting.config.max_length)),
    }
