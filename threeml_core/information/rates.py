"""The rate matrix: held-out loss of pre-trained models at several mask rates, the same corruptions for all of them.

A model that was trained at 15% is at a disadvantage where 40% of the tokens are missing, and the other way round; with
all rates beside each other nobody's own exam decides. It judges model and decoder together.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

from threeml_core.config import StudyConfig
from threeml_core.data.prepare import PreparedData, prepare_data
from threeml_core.foundation.errors import CheckpointError, ParameterError
from threeml_core.foundation.log import Log, print_line
from threeml_core.information.measure import load_model, merge_parameters
from threeml_core.masking import CorruptedBatch
from threeml_core.runs.jobs import Job
from threeml_core.runs.record import RunRecord, read_record, recorded, run_folder, run_id
from threeml_core.runs.sweep import run_jobs
from threeml_core.training.device import choose_device, describe_device, gpu_share
from threeml_core.training.evaluation import (
    corruption_fingerprint,
    fixed_corruption,
    masking_of,
    mlm_perplexity,
    unigram_log_probabilities,
    validation_sequences,
)

STAGE = "rates"


def rate_matrix(config: StudyConfig, runs: Sequence[RunRecord], log: Log = print_line) -> list[RunRecord]:
    """Validate runs at each of `probe_rates` with the split 80-10-10, unless that was done; a record for each run.

    Losses and perplexities by kind are those of `mlm_perplexity`, in float32.

    Raises:
        StudyError: a text that has changed since, a damaged model, a rate that these sequences do not allow.
    """
    jobs = []
    for run in runs:
        merged = merge_parameters(config, run)
        data = prepare_data(merged, log)
        if data.data_id != run.data["data_id"]:
            raise CheckpointError(f"run {run.run_id}: its text has changed since; pre-train again or bring it back")
        corruptions = {rate: _corruption(merged, data, rate) for rate in config.listed("probe_rates")}
        identity = {
            "run": run.run_id,
            "weights": [digest for name, (_, digest) in run.files.items() if name.endswith(".safetensors")],
            "rates": {f"{rate:g}": corruption_fingerprint(batch) for rate, batch in corruptions.items()},
        }
        name = run_id(run.run_id.rsplit("-", 1)[0], identity)
        work = functools.partial(_measure, merged, run, name, identity)
        title = f"{name}: rates of {run.run_id}"
        jobs.append(Job(STAGE, name, work, title=title, num_cpus=config.ray_num_cpus, num_gpus=gpu_share(config)))
    records = run_jobs(jobs, config, log, config.num_workers)
    return [records[job.run_id] for job in jobs]


def _corruption(config: StudyConfig, data: PreparedData, rate: float) -> CorruptedBatch:
    sequences = validation_sequences(config, data)
    try:
        own = config.replace(eval_mask_rate=rate, eval_mask_split="80-10-10")
    except ParameterError as error:
        raise ParameterError(f"probe_rates: {rate:g} as {error}") from None
    return fixed_corruption(sequences, masking_of(own, data, evaluation=True))


def _measure(config: StudyConfig, run: RunRecord, name: str, identity: dict[str, Any], log: Log) -> RunRecord:
    def work(environment: dict[str, Any]) -> dict[str, Any]:
        started, data, device = time.perf_counter(), prepare_data(config, log), choose_device(config)
        folder = run.folder(config.runs_dir)
        read_record(folder, check_hashes=True)
        model = load_model(folder).to(device)  # type: ignore[arg-type]
        unigram = unigram_log_probabilities(data.train_counts(), data.special_ids)
        found = {
            f"{rate:g}": mlm_perplexity(model, _corruption(config, data, rate), unigram, config.eval_batch_size)
            for rate in config.listed("probe_rates")
        }
        describe_device(environment, device)
        about = {"run": run.run_id, "data_id": data.data_id}
        return {"metrics": {"rates": found}, "data": about, "timing": {"seconds": time.perf_counter() - started}}

    return recorded(run_folder(config.runs_dir, STAGE, name), identity, config, work, wait=True)
