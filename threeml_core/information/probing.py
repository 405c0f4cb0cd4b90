"""Probing, run: each encoder is asked everything, and leaves a record; so do the words alone, without an encoder."""

from __future__ import annotations

import collections
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from threeml_core.config import StudyConfig
from threeml_core.data.tokenizer import tokenizer_fingerprint
from threeml_core.foundation.errors import ParameterError
from threeml_core.foundation.log import Log, print_line
from threeml_core.information.probe import Probed, place_units, probe, unit_states
from threeml_core.information.questions import Questions, questions_of
from threeml_core.runs.jobs import Job
from threeml_core.runs.record import RunRecord, recorded, run_folder, run_id
from threeml_core.runs.sweep import run_jobs
from threeml_core.training.device import choose_device, describe_device, gpu_share, peak_memory, reset_peak_memory
from threeml_core.training.encoders import Encoder, open_encoder
from threeml_core.training.start import load_pretrained

STAGE = "probe"
USUAL_LENGTH = 128
"""Tokens that an encoder from elsewhere is given at once."""


def run_probing(
    config: StudyConfig, checkpoints: Sequence[str], seeds: Sequence[int] = (), log: Log = print_line
) -> list[RunRecord]:
    """Probe encoders that were not probed before: the record of the words alone, then one for each.

    Args:
        config: what is asked, and of which text.
        checkpoints: as `open_encoder` takes them.
        seeds: of the weights of those that are random; () : `probe_seed` for all.
        log: takes progress lines.

    Raises:
        StudyError: a bad treebank, text or checkpoint, before anything is probed.
    """
    asked = questions_of(config, log)
    jobs = [_floor_job(config, asked)]
    for checkpoint, seed in zip(checkpoints, seeds or [config.probe_seed] * len(checkpoints), strict=True):
        jobs.append(_job(config, open_encoder(checkpoint), asked, seed))
    records = run_jobs(jobs, config, log, config.num_workers)
    return [records[job.run_id] for job in jobs]


def _floor_job(config: StudyConfig, asked: Mapping[str, Questions]) -> Job:
    identity = {"words_alone": {name: of.fingerprint for name, of in asked.items()}}
    name = run_id("words-alone", identity)
    work = functools.partial(_floors, config, asked, name, identity)
    return Job(STAGE, name, work, title=f"{name}: without an encoder")


def _floors(
    config: StudyConfig, asked: Mapping[str, Questions], name: str, identity: dict[str, Any], log: Log
) -> RunRecord:
    def work(environment: dict[str, Any]) -> dict[str, Any]:
        started = time.perf_counter()
        tasks = {}
        for of in asked.values():
            for task, (most, words) in of.floors().items():
                classes, trained = of.tasks[task].count, len(of.of_unit()) - sum(of.sizes)
                known = {"most_frequent": most, "words": words, "classes": classes, "training_units": trained}
                tasks[task] = {**known, "sizes": of.sizes}
        counts = {
            group: {**collections.Counter(of.parts), "passed_over": of.passed_over} for group, of in asked.items()
        }
        seconds = time.perf_counter() - started
        return {"metrics": {"tasks": tasks}, "data": {"questions": counts}, "timing": {"seconds": seconds}}

    return recorded(run_folder(config.runs_dir, STAGE, name), identity, config, work, wait=True)


def length_of(config: StudyConfig, encoder: Encoder) -> int:
    """Tokens that an encoder is given at once, see `probe_length`.

    Raises:
        ParameterError: it does not take as many.
    """
    trained = encoder.pretraining and encoder.pretraining.parameters["sequence_length"]
    length = config.probe_length or trained or min(USUAL_LENGTH, encoder.positions or USUAL_LENGTH)
    if encoder.positions is not None and length > encoder.positions:
        raise ParameterError(f"probe_length={length}: {encoder.checkpoint} takes at most {encoder.positions} tokens")
    return int(length)


def _job(config: StudyConfig, encoder: Encoder, asked: Mapping[str, Questions], seed: int) -> Job:
    length = length_of(config, encoder)
    identity = {
        "encoder": encoder.fingerprint,
        "tokenizer": tokenizer_fingerprint(encoder.tokenizer),
        "weights_seed": seed if encoder.is_random else None,
        "questions": {name: of.fingerprint for name, of in asked.items()},
        "probe_pooling": config.probe_pooling,
        "probe_length": length,
    }
    trained = encoder.pretraining.run_id.rsplit("-", 1)[0] if encoder.pretraining else "encoder"
    name = run_id("random" if encoder.is_random else trained, identity)
    work = functools.partial(_probe, config, encoder, asked, seed, name, identity)
    title = f"{name}: probes of {encoder.checkpoint}"
    return Job(STAGE, name, work, title=title, num_cpus=config.ray_num_cpus, num_gpus=gpu_share(config))


def _probe(
    config: StudyConfig,
    encoder: Encoder,
    asked: Mapping[str, Questions],
    seed: int,
    name: str,
    identity: dict[str, Any],
    log: Log,
) -> RunRecord:
    def work(environment: dict[str, Any]) -> dict[str, Any]:
        started = time.perf_counter()
        device = choose_device(config)
        reset_peak_memory(device)
        torch.manual_seed(seed)
        model = load_pretrained(AutoModel, encoder.folder, "for probing", encoder.is_random).to(device)  # type: ignore[arg-type]
        tasks: dict[str, Any] = {}
        about = {}
        for group, of in asked.items():
            found, tokens, long = _answers(config, model, encoder, of, identity["probe_length"])
            about[group] = {"tokens": tokens, "long": long}
            for task, answer in found.items():
                tasks[task] = _described(answer, of)
                log(f"{encoder.checkpoint}: {task} {100 * answer.accuracy:.1f}%")
        describe_device(environment, device)
        own = encoder.pretraining
        return {
            "metrics": {"tasks": tasks},
            "timing": {"seconds": time.perf_counter() - started, "peak_memory_bytes": peak_memory(device)},
            "data": {
                "checkpoint": encoder.checkpoint,
                "is_random": encoder.is_random,
                "run": own and own.run_id,
                "parameters": encoder.parameters,
                "texts": about,
            },
        }

    return recorded(run_folder(config.runs_dir, STAGE, name), identity, config, work, wait=True)


def _answers(
    config: StudyConfig, model: PreTrainedModel, encoder: Encoder, asked: Questions, length: int
) -> tuple[dict[str, Probed], int, int]:
    """What the probes found, how many tokens the texts have, and how many texts went in windows."""
    tokens = place_units(encoder.tokenizer, asked.texts, asked.spans, length)

    def states(part: str) -> Iterator[tuple[np.ndarray, Tensor]]:
        return unit_states(model, tokens, asked.where(part), config.probe_pooling, config.probe_batch_size)

    count = model.config.num_hidden_layers + 1
    _, first = next(unit_states(model, tokens, [0], config.probe_pooling, 1))
    widths = [first.shape[1] // count] * count
    return probe(states, asked.tasks, widths), sum(map(len, tokens.ids)), tokens.long


def _described(answer: Probed, asked: Questions) -> dict[str, Any]:
    """For the record; `right` counts the units of each document of the test part that are."""
    return {
        "accuracy": answer.accuracy,
        "strength": answer.strength,
        "layers": list(answer.layers),
        "right": asked.by_document(answer.right, answer.units),
    }
