"""Pre-training: a plain loop, saved states, one record. `threeml pretrain -p mask_rate 0.5`.

On several GPUs: `torchrun --nproc-per-node 8 -m threeml_core pretrain --config run.yaml`, or `-p num_processes 8`.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from threeml_core import flops
from threeml_core.config import StudyConfig, executed_parameters, executed_rate, given_parameters
from threeml_core.data.prepare import PreparedData, prepare_data
from threeml_core.foundation.errors import DivergedError, ParameterError, Preempted, TrainingError
from threeml_core.foundation.files import atomic_folder, exclusive
from threeml_core.foundation.log import Log, no_line, print_line
from threeml_core.foundation.processes import LEAVE, stop_requested
from threeml_core.masking import CorruptedBatch
from threeml_core.models.portable import portable_source
from threeml_core.parameters.masking import KINDS, executed_statement, parse_mask_split
from threeml_core.parameters.model import MODERN
from threeml_core.runs.record import (
    RunRecord,
    describe_environment,
    leave_record,
    read_metrics,
    read_record,
    run_folder,
    run_id,
)
from threeml_core.training.callbacks import metrics_writer
from threeml_core.training.checkpoint import (
    CHECKPOINTS,
    REMEDY,
    SMOOTHING,
    SavedStates,
    load_training_state,
    save_model,
    usable_positions,
)
from threeml_core.training.device import choose_device, describe_device, peak_memory
from threeml_core.training.distributed import Processes, run_with_torchrun
from threeml_core.training.energy import energy_meter
from threeml_core.training.evaluation import (
    corruption_fingerprint,
    fixed_corruption,
    masking_of,
    mlm_perplexity,
    on_unigram_plateau,
    tokens_by_kind,
    unigram_log_probabilities,
    validation_sequences,
)
from threeml_core.training.model_card import count_parameters, model_card
from threeml_core.training.push import check_push, push
from threeml_core.training.start import start_identity
from threeml_core.training.trackers import Trackers, check_trackers
from threeml_core.training.trainer import Trainer, precision_of

STAGE = "pretrain"


def planned_run(config: StudyConfig, data: PreparedData, device: torch.device) -> tuple[Path, dict[str, Any]]:
    """Folder of a run, and all that determines its result; refuses a mask rate that these sequences cannot satisfy."""
    for evaluation in (False, True):
        masking_of(config, data, evaluation)
    bf16, compiled = precision_of(config, device)
    run = {"device": device.type, "bf16": bf16, "torch_compile": compiled}
    identity = {"data": data.data_id, **executed_parameters(config), **run, **start_identity(config)}
    name = run_id(f"{config.architecture}-{100 * executed_rate(config):.0f}", identity)
    return run_folder(config.runs_dir, STAGE, name), identity


def pretrain(config: StudyConfig, log: Log = print_line) -> RunRecord:
    """Pre-train one model, or return the record if that was done before, or go on where it was interrupted.

    Whatever `plan_only` says; `run.pretrain` heeds it. Source: section 3.3 and Appendix A. Leaves
    `runs/pretrain/<run id>/` with `record.json`, `metrics.jsonl`, `model/` (decoder included) and `encoder/` (an
    ordinary RoBERTa or ModernBERT with tokenizer). With `push_to_hub` it goes to the hub, also if it was done before.

    Raises:
        StudyError: bad parameters or corpus, a damaged run folder, a full disk, a loss that is not finite.
    """
    # a process that another one has started leaves it to that one
    pushes = config.push_to_hub is not None and Processes.of_torchrun().is_first and LEAVE not in os.environ
    if pushes:
        check_push(config)
    record = _pretrained(config, log)
    if pushes:
        push(config.replace(pushed_run=str(record.folder(config.runs_dir))), log)
    return record


def _pretrained(config: StudyConfig, log: Log) -> RunRecord:
    """The same, without the hub."""
    transformers_logging.disable_progress_bar()
    processes = Processes.of_torchrun()
    device = choose_device(config, processes.local_rank)
    environment = describe_environment()
    log = log if processes.is_first else no_line
    start_identity(config)  # what is wrong with it shows before hours of preparation
    check_trackers(config)
    data = prepare_data(config, log)
    epochs = config.max_steps * config.batch_size / len(data.train)
    log(f"{config.max_steps:,} steps of {config.batch_size:,} sequences are {epochs:.3g} epochs")
    folder, identity = planned_run(config, data, device)
    if config.num_processes > 1 and processes.count == 1:
        Processes(count=config.num_processes).check(config.batch_size, config.micro_batch_size or config.batch_size)
        if not (folder / "record.json").exists():
            run_with_torchrun(STAGE, given_parameters(config), config.num_processes, log)
        return _finished(folder)
    finished = (folder / "record.json").exists()
    if not finished or processes.count > 1:  # nothing changes in a finished run, so any number may read it at once
        lock = exclusive(folder / ".lock", f"run {folder.name}") if processes.is_first else contextlib.nullcontext()
        with lock, processes.joined(device):
            finished = processes.first_says((folder / "record.json").exists())
            if not finished:
                trainer = Trainer(config, data, device, processes)
                states = SavedStates(folder / "training_state", config.save_total_limit)
                fields: dict[str, Any] = {}
                reported = config.listed("report_to") if processes.is_first else ()
                try:
                    with contextlib.closing(Trackers(config, folder, reported, log)) as trackers:
                        fields = _run(trainer, folder, identity, states, trackers, log)
                        trackers.finish(config.max_steps, fields)
                except DivergedError as error:  # what diverges would do so again
                    fields = {"failure": str(error)}
                    raise
                finally:
                    if fields and processes.is_first:
                        environment |= {"processes": processes.count, "micro_batch_size": trainer.micro_batch_size}
                        describe_device(environment, device)
                        leave_record(folder, identity, config, environment, **fields)
                        states.remove()
                # before the group of processes: DDP's reducer, as the group's last owner, may wait for the group's
                # threads for ever, as it holds the interpreter's lock that they need
                del trainer
                processes.wait()
                return read_record(folder)
    record = _finished(folder)
    log(f"run {folder.name} is finished; its record is read")
    return record


def _finished(folder: Path) -> RunRecord:
    record = read_record(folder, check_hashes=True)
    if record.failure:
        raise TrainingError(f"run {folder.name} failed before: {record.failure}; to try again, remove {folder}")
    return record


def _run(
    trainer: Trainer, folder: Path, identity: dict[str, Any], states: SavedStates, trackers: Trackers, log: Log
) -> dict[str, Any]:
    """Train, validate, export; the fields of the record, of which all processes but the first have none."""
    config, data, processes = trainer.config, trainer.data, trainer.processes
    saved = processes.first_says(states.newest(log) if processes.is_first else None)
    if saved is not None:
        trainer.state = load_training_state(saved, trainer.model, trainer.optimizer, trainer.mask_weights)
    log(f"run {folder.name} {f'resumes after step {trainer.state.step}' if saved else 'starts'}")
    corruption = fixed_corruption(validation_sequences(config, data), masking_of(config, data, evaluation=True))
    _say_what_is_executed(identity, config, corruption, log)
    unigram = unigram_log_probabilities(data.train_counts(), data.special_ids)

    def validate() -> dict[str, float]:
        return mlm_perplexity(trainer.model, corruption, unigram, config.eval_batch_size, trainer.autocast())

    with energy_meter(log) as energy:
        metrics = _train(trainer, folder, states, validate, trackers, log)
    if not processes.is_first:
        return {}
    # of a part of a run, or of one process of several, it would mean nothing
    energy = energy if saved is None and processes.count == 1 else {}
    final: dict[str, Any] = {
        **metrics,
        **{f"eval_tokens_{kind}": count for kind, count in tokens_by_kind(corruption).items()},
        "eval_blocks": len(corruption.input_ids),
        "eval_corruption": corruption_fingerprint(corruption),
    }
    if config.mask_rate_schedule != "constant":
        final["mean_mask_rate"] = executed_rate(config)
    if trainer.mask_weights is not None:
        final["mask_weights"] = trainer.mask_weights.summary(data)
    if on_unigram_plateau(metrics):
        log(
            f"warning: the run ends on the unigram plateau: its perplexity at masked positions is "
            f"{metrics['eval_perplexity_masked']:.1f}, the unigram's {metrics['unigram_perplexity_masked']:.1f}; try "
            "more steps, a longer warm-up or another learning rate"
        )
    return _exported(trainer, folder, final, energy, log)


def _say_what_is_executed(identity: dict[str, Any], config: StudyConfig, corruption: CorruptedBatch, log: Log) -> None:
    """Where rate, split, adaptation or layer_norm (section 3.3) are not as asked for, or a kind cannot be validated."""
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
    if config.mask_adaptation != "none" and config.mask_adaptation_steps >= config.max_steps:
        log(
            f"warning: mask_adaptation={config.mask_adaptation} changes nothing in {config.max_steps:,} steps: "
            f"mask_adaptation_steps={config.mask_adaptation_steps:,}; expected fewer"
        )
    if config.sources["layer_norm"] == "derived":
        what = "ModernBERT" if config.encoder == MODERN else "3ML_cross"
        log(f"layer_norm=pre instead of post, which preset {config.preset} has: post-LN does not work for {what}")
    elif (config.architecture, config.layer_norm, config.init_encoder) == ("cross", "post", None):
        log("warning: layer_norm=post, as given: the paper says that it does not work for 3ML_cross; it took pre")


def _train(
    trainer: Trainer,
    folder: Path,
    states: SavedStates,
    validate: Callable[[], dict[str, float]],
    trackers: Trackers,
    log: Log,
) -> dict[str, float]:
    """Steps up to max_steps; validation and saving now and then. The last validation's metrics.

    Of several processes the first one writes, validates and saves; the others' result is empty.
    """
    config, state, processes = trainer.config, trainer.state, trainer.processes
    tokens_per_step = config.batch_size * config.sequence_length
    last: dict[str, float] = {}
    pending: list[torch.Tensor] = []  # losses not yet looked at: reading one waits for the device
    kept = set(config.listed("checkpoint_steps"))
    if gone := sorted(n for n in kept if n <= state.step and not (folder / CHECKPOINTS / f"step-{n}").is_dir()):
        log(f"warning: checkpoint_steps: the run is at step {state.step}, nothing is kept of {gone}")

    def settle() -> None:
        """Look at the pending losses; stop at the first that is not finite."""
        values = processes.sum(torch.stack(pending)).tolist()
        for step, value in enumerate(values, state.step - len(values) + 1):
            if not math.isfinite(value):
                states.stop(f"the loss is not finite ({value}) at step {step}")
            if step > config.warmup_ratio * config.max_steps:
                state.smooth(value)
        state.loss_sum += sum(values)
        state.loss_count += len(values)
        pending.clear()

    with contextlib.ExitStack() as stack:
        stopping = stack.enter_context(stop_requested())
        writer = metrics_writer(folder, state.step, trackers.write)
        write = stack.enter_context(writer) if processes.is_first else lambda step, values: None
        in_jupyter = "JPY_SESSION_NAME" in os.environ  # set by a Jupyter server, not by papermill or nbval
        bar = stack.enter_context(tqdm(total=config.max_steps, initial=state.step, unit="step", disable=not in_jupyter))
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
            bar.update()
            if logging:
                rate = state.loss_count * tokens_per_step / state.window_seconds
                loss = state.loss_sum / state.loss_count
                write(step, {"train_loss": loss, "learning_rate": learning_rate, "tokens_per_second": rate})
                if bar.disable:
                    log(f"step {step}/{config.max_steps}: loss over all corrupted {loss:.3f}, {rate:.0f} tokens/s")
                else:
                    bar.set_postfix(loss=f"{loss:.3f}", tokens_per_s=f"{rate:.0f}")
                state.start_window()
            if validating:
                states.check(trainer.model, step)
                uniform = math.log(trainer.model.config.vocab_size)
                if state.smoothed_count >= SMOOTHING and state.smoothed_loss > uniform:
                    if processes.is_first:
                        raise DivergedError(_diverged("training", step, state.smoothed_loss, uniform))
                    processes.wait()  # the first one leaves a record and ends
                if processes.is_first:
                    last = validate()
                    too_bad = end and last["eval_loss"] > uniform + _MUCH_WORSE  # also of a run of a few steps
                    if too_bad or not all(map(math.isfinite, last.values())):
                        raise DivergedError(_diverged("validation", step, last["eval_loss"], uniform))
                    write(step, last)
                    log(
                        f"step {step}: validation perplexity over all corrupted {last['eval_perplexity']:.1f}, "
                        f"at masked positions {last['eval_perplexity_masked']:.1f} "
                        f"(unigram {last['unigram_perplexity_masked']:.1f})"
                    )
            if step in kept and processes.is_first:
                states.check(trainer.model, step)
                with atomic_folder(folder / CHECKPOINTS / f"step-{step}") as temporary:
                    _save(trainer, temporary, no_line)
            if saving and processes.is_first:
                states.save(trainer.model, trainer.optimizer, state, trainer.mask_weights)
            if stop and not end:
                processes.wait()  # for the state
                raise Preempted(
                    f"run {folder.name} was asked to stop (SIGTERM): its state after step {step} is saved; "
                    "the same command goes on from there"
                )
    return last


_MUCH_WORSE = 1.0
"""Nats above a uniform guess that no untrained model has: a run that ends there has diverged, however short it was."""


def _diverged(which: str, step: int, loss: float, uniform: float) -> str:
    return (
        f"the run diverged: after step {step} the {which} loss over all corrupted tokens is {loss:.4g} nats, a uniform "
        f"guess over the vocabulary has {uniform:.4g}; no encoder is exported. {REMEDY}, or a higher one if the loss "
        "never fell"
    )


def _flops(config: StudyConfig, vocab: int) -> dict[str, float]:
    if config.mask_counts == "probabilistic":
        return {}  # ragged rows go through the full-length forward, which Appendix C does not describe
    forward = flops.forward_flops(config, "exact", vocab)
    return {
        "forward_per_block": forward,
        "training": flops.training_flops(forward, config.batch_size, config.max_steps, "exact"),
        "speedup_over_vanilla_15": flops.config_speedup(config, "exact", 0.15, vocab),
        "speedup_over_vanilla_same_rate": flops.config_speedup(config, "exact", None, vocab),
        "paper_formula_speedup_over_vanilla_15": flops.config_speedup(config, "paper", 0.15, vocab),
    }


def _is_portable(model: PreTrainedModel, log: Log) -> bool:
    """Can its code go with it? An architecture of one's own may be written so that it cannot, which ends no run."""
    try:
        portable_source(type(model))
    except ParameterError as error:
        log(f"warning: model/ holds no code, so it loads where its architecture is registered alone: {error}")
        return False
    return True


def _save(trainer: Trainer, folder: Path, log: Log, card: str = "") -> None:
    """Model and encoder, as folders."""
    model, tokenizer, room = trainer.model, trainer.data.tokenizer_folder, usable_positions(trainer.model)
    save_model(model, folder / "model", tokenizer, room, portable=_is_portable(model, log))
    # section 2.2, "Fine-tuning and Inference": the decoder is removed
    save_model(cast(PreTrainedModel, model.encoder), folder / "encoder", tokenizer, room, card)


def _exported(
    trainer: Trainer, folder: Path, metrics: dict[str, Any], energy: dict[str, float], log: Log
) -> dict[str, Any]:
    """Save model and encoder; the fields of the record."""
    config, data, state, model = trainer.config, trainer.data, trainer.state, trainer.model
    losses = [line["train_loss"] for line in read_metrics(folder / "metrics.jsonl") if "train_loss" in line]
    _save(trainer, folder, log, model_card(config, folder.name, data, metrics, model))
    return {
        "metrics": {"train_loss": losses[-1], **metrics, "on_unigram_plateau": on_unigram_plateau(metrics)},
        "flops": _flops(config, model.config.vocab_size),
        "timing": {
            "train_seconds": state.seconds,
            "tokens_per_second": config.max_steps * config.batch_size * config.sequence_length / state.seconds,
            "peak_memory_bytes": peak_memory(trainer.device),
            **energy,
        },
        "data": {
            "data_id": data.data_id,
            "vocab_size": data.vocab_size,
            "parameters": count_parameters(model),
            "encoder_parameters": count_parameters(model.encoder),
            **{name: data.meta[name] for name in ("corpus", "tokenizer", "train", "validation")},
        },
        "files": ("metrics.jsonl", "model", "encoder", CHECKPOINTS),
    }
