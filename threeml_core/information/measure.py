"""How much the states of [MASK]s say about the tokens that stood there. `threeml information`.

Source: section 4.2, Figure 4, after Voita et al., "The Bottom-up Evolution of Representations in the Transformer"
(2019): the [MASK]s of frequent tokens, mini-batch k-means, plug-in estimate from the joint counts.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForMaskedLM, PreTrainedModel

import threeml_core.models  # noqa: F401  (registers the three models)
from threeml_core.config import INFORMATION_PARAMETERS, PARAMETERS, PROBING_PARAMETERS, StudyConfig
from threeml_core.data.prepare import PreparedData, prepare_data
from threeml_core.data.tokenizer import quiet_transformers
from threeml_core.foundation.checkpoints import refuse_foreign_files
from threeml_core.foundation.errors import CheckpointError, DamagedFileError, ParameterError
from threeml_core.foundation.files import exclusive, find_path, fingerprint, project_path, refuse_locked, write_json
from threeml_core.foundation.log import Log, print_line
from threeml_core.information.clustering import Rows, cluster
from threeml_core.information.estimate import LayerInformation, estimate_layer
from threeml_core.information.ledger import information_configs
from threeml_core.information.states import (
    Forward,
    Sample,
    collect_states,
    draw_sample,
    refuse_absent,
    states_in_memory,
)
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.runs.jobs import Job
from threeml_core.runs.record import RunRecord, read_record, recorded, run_folder, run_id
from threeml_core.training.device import choose_device, describe_device, peak_memory, reset_peak_memory
from threeml_core.training.loop import pretrain
from threeml_core.training.precision import use_bf16

STAGE = "mutual_information"


def layer_mutual_information(
    states: Rows | np.ndarray | Tensor,
    tokens: np.ndarray,
    clusters: int = 10_000,
    seeds: Sequence[int] = (0, 1, 2),
    passes: int = 1,
    batch_size: int = 4096,
    device: torch.device | str = "cpu",
    layer: int = 0,
) -> LayerInformation:
    """Mutual information between states and tokens: k-means with several seeds, then the estimates from the counts.

    What clusters say is at most what the states say: every value estimates a lower bound, which grows with `clusters`.

    Args:
        states: (N, d), in any order; N of at least 500 * `clusters` keeps the bias small.
        tokens: (N,) int, 0 or more; token i stands where state i was.
        clusters: K.
        seeds: of k-means, for the spread.
        passes: over the states, in each clustering.
        batch_size: states between two moves of the centres.
        device: a CPU clusters with scikit-learn, a GPU with torch.
        layer: its number, for the record.

    Returns:
        All estimates in nats; `value` is the corrected one, if it `has_enough_states`.

    Raises:
        ParameterError: fewer states than clusters, not one token for each state, a state that is not finite.
    """
    if len(tokens) != states.shape[0]:
        raise ParameterError(f"{states.shape[0]:,} states and {len(tokens):,} tokens: expected a token for each state")
    found = [cluster(states, clusters, seed, passes, batch_size, device) for seed in seeds]
    return estimate_layer(found, tokens, layer, states.shape[1])


def chosen_runs(config: StudyConfig, log: Log = print_line) -> list[Path]:
    """Folders of the pre-trained runs to look at: those of `runs`, or vanilla, 3ML_self and 3ML_cross, all seeds.

    The latter are pre-trained now if they are not there yet, after their samples were checked.

    Raises:
        CheckpointError: there is no such finished run.
        StudyError: see `checked_sample`.
    """
    if config.runs is None:
        configs = information_configs(config)
        data = prepare_data(config, log)
        for each in configs:
            checked_sample(each, data)
        return [pretrain(each, log).folder(config.runs_dir) for each in configs]
    names = [part.strip() for part in config.runs.split(",") if part.strip()]
    if not names:
        raise CheckpointError("runs is empty: expected run ids or run folders joined with commas, or None")
    return [_find_run(config, name) for name in names]


def _find_run(config: StudyConfig, name: str) -> Path:
    folder = refuse_locked(run_folder(config.runs_dir, "pretrain", name))
    if not folder.is_dir():
        folder = find_path(name).resolve()
    if not (folder / "record.json").is_file():
        known = sorted(p.parent.name for p in (project_path(config.runs_dir) / "pretrain").glob("*/record.json"))
        hint = f"there are: {', '.join(known) or 'none'}"
        if (folder.parent / "record.json").is_file():  # its encoder/ has no decoder; its model/ has no record
            hint = f"that is {folder.parent}"
        raise CheckpointError(
            f"runs: {name} is no finished run; expected the id or folder of a pre-training run: {hint}"
        )
    record = read_record(folder)
    if record.stage != "pretrain":
        raise CheckpointError(f"runs: {name} is a run of stage {record.stage}, expected one of pre-training")
    if record.failure:
        raise CheckpointError(f"runs: {name} has no model: {record.failure}")
    return folder


def merge_parameters(config: StudyConfig, record: RunRecord) -> StudyConfig:
    """Text and corruption of the pre-trained run, with the parameters of this analysis."""
    own = (*INFORMATION_PARAMETERS, *PROBING_PARAMETERS, "runs_dir", "device", "bf16", "eval_batch_size")
    trained = {name: value for name, value in record.parameters.items() if name in PARAMETERS}
    values = {**trained, **{name: getattr(config, name) for name in own}}
    sources = {**config.sources, **record.sources, **{name: config.sources[name] for name in own}}
    return StudyConfig(**values, sources=sources)


def checked_sample(config: StudyConfig, data: PreparedData) -> Sample:
    """The [MASK]s that a model of this configuration is asked about.

    Raises:
        StudyError: no frequent [MASK], fewer states than clusters, layers that the model does not have.
    """
    entry = ARCHITECTURES[config.architecture]
    last = config.decoder_num_hidden_layers if entry.has_decoder else config.num_hidden_layers
    refuse_absent(config.listed("state_layers"), last, entry.label)
    sample = draw_sample(config, data)
    if len(sample.tokens) < config.num_clusters:
        raise ParameterError(
            f"num_clusters={config.num_clusters:,}, but there are only {len(sample.tokens):,} states (states_per_layer="
            f"{config.states_per_layer:,}, states_text={config.states_text}): lower num_clusters (a tenth of the "
            "states or less makes sense), or look at more states"
        )
    return sample


def load_model(folder: Path) -> PreTrainedModel:
    """The pre-training model of a run, decoder included.

    Raises:
        CheckpointError: missing, not one of the three models, or its weights do not fit.
    """
    path = folder / "model"
    try:
        with quiet_transformers():
            refuse_foreign_files(path)
            model, report = AutoModelForMaskedLM.from_pretrained(
                path,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                dtype=torch.float32,
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path} cannot be loaded ({reason}); pre-train this run again") from None
    if not hasattr(model, "mask_states"):
        raise CheckpointError(f"{path} is a {model.config.model_type} without a 3ML decoder; expected a run's model/")
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise CheckpointError(f"{path}: {len(missing)} weights are missing, such as {missing[0]}")
    return model


@dataclasses.dataclass(frozen=True)
class _Setting:
    """One pre-trained run and how it is looked at."""

    config: StudyConfig
    record: RunRecord
    folder: Path
    sample: Sample
    device: torch.device

    def states_identity(self) -> dict[str, Any]:
        """All that determines the states."""
        c = self.config
        return {
            "run": self.record.run_id,
            "weights": [digest for name, (_, digest) in self.record.files.items() if name.endswith(".safetensors")],
            "sample": self.sample.fingerprint,
            "states_final_norm": c.states_final_norm,
            "state_layers": list(c.listed("state_layers")) or "all",
            "device": self.device.type,
            "bf16": use_bf16(c, self.device),
        }

    def identity(self) -> dict[str, Any]:
        """All that determines the result."""
        clustering = ("num_clusters", "num_kmeans_seeds", "num_kmeans_passes", "kmeans_batch_size")
        names = (*clustering, "top_tokens", "states_text")
        return {**self.states_identity(), **{name: getattr(self.config, name) for name in names}}


def plan_jobs(config: StudyConfig, runs: Sequence[Path], log: Log = print_line) -> list[Job]:
    """A job for each pre-trained run; what is wrong with text or parameters shows here.

    Raises:
        StudyError: data that are no longer those of the run; see `checked_sample`.
    """
    device = choose_device(config)
    jobs = []
    for folder in runs:
        record = read_record(folder, check_hashes=True)
        merged = merge_parameters(config, record)
        data = prepare_data(merged, log)
        if data.data_id != record.data["data_id"]:
            raise CheckpointError(
                f"run {record.run_id} was pre-trained on data {record.data['data_id']}, its corpus now gives "
                f"{data.data_id}: the text has changed since; pre-train again or bring the old text back"
            )
        sample = checked_sample(merged, data)
        setting = _Setting(merged, record, folder, sample, device)
        name = run_id(record.run_id.rsplit("-", 1)[0], setting.identity())
        jobs.append(
            Job(STAGE, name, functools.partial(_measure, setting, name), title=f"information of {record.run_id}")
        )
    return jobs


def _measure(setting: _Setting, name: str, log: Log = print_line) -> RunRecord:
    folder = run_folder(setting.config.runs_dir, STAGE, name)
    unfinished = folder / "layers.json"

    def work(environment: dict[str, Any]) -> dict[str, Any]:
        progress = _Progress(unfinished)
        layers = _measure_layers(setting, progress, log)
        describe_device(environment, setting.device)
        trained, sample = setting.record, setting.sample
        return {
            "metrics": {"layers": [dataclasses.asdict(progress.measured[layer]) for layer in layers]},
            "timing": {**progress.seconds, "peak_memory_bytes": peak_memory(setting.device)},
            "data": {
                "run": trained.run_id,
                "sample": sample.fingerprint,
                "data_id": trained.data["data_id"],
                "corpus": trained.data["corpus"],
                "perplexity_masked": trained.metrics["eval_perplexity_masked"],
                "unigram_perplexity_masked": trained.metrics["unigram_perplexity_masked"],
                "on_unigram_plateau": trained.metrics["on_unigram_plateau"],
                "states": len(sample.tokens),
                "frequent_tokens": int(sample.is_top.sum()),
                "blocks": len(sample.order),
                "text_blocks": len(sample.sequences),
            },
        }

    record = recorded(folder, setting.identity(), setting.config, work)
    unfinished.unlink(missing_ok=True)
    return record


def _measure_layers(setting: _Setting, progress: _Progress, log: Log) -> Sequence[int]:
    """Measure the layers that are not measured yet; all layers asked for."""
    config, sample = setting.config, setting.sample
    reset_peak_memory(setting.device)
    model = load_model(setting.folder).to(setting.device)  # type: ignore[arg-type]
    bf16 = use_bf16(config, setting.device)
    forward = Forward(model, sample, config.states_final_norm, config.eval_batch_size, bf16)
    layers = config.listed("state_layers") or tuple(range(len(forward.widths())))
    missing = [layer for layer in layers if layer not in progress.measured]
    started = time.perf_counter()
    for layer, rows in _states(setting, forward, layers, missing, log):
        before = time.perf_counter()
        found = layer_mutual_information(
            rows,
            sample.tokens,
            config.num_clusters,
            range(config.num_kmeans_seeds),
            config.num_kmeans_passes,
            config.kmeans_batch_size,
            setting.device,
            layer,
        )
        del rows  # a layer in memory makes room for the next
        after = time.perf_counter()
        progress.add(found, before - started, after - before)
        log(f"{setting.record.run_id} layer {layer}: {found.value:.3f} nats, bias taken out ({after - before:.1f} s)")
        started = after
    return layers


class _Progress:
    """Layers measured so far, and the seconds they took, also over interruptions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        nothing: dict[str, Any] = {"layers": [], "states_seconds": 0.0, "clustering_seconds": 0.0}
        try:
            content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else nothing
            self.measured = {values["layer"]: LayerInformation(**values) for values in content["layers"]}
            self.seconds = {name: float(content[name]) for name in ("states_seconds", "clustering_seconds")}
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DamagedFileError(f"damaged run: {path} cannot be read ({error}); remove it and run again") from None

    def add(self, found: LayerInformation, states: float, clustering: float) -> None:
        self.measured[found.layer] = found
        self.seconds["states_seconds"] += states
        self.seconds["clustering_seconds"] += clustering
        layers = [dataclasses.asdict(layer) for layer in self.measured.values()]
        write_json(self.path, {"layers": layers, **self.seconds})


def _states(
    setting: _Setting, forward: Forward, layers: Sequence[int], missing: Sequence[int], log: Log
) -> Iterator[tuple[int, Rows]]:
    """The states of the layers that are still to be measured; afterwards the files go, unless they are to be kept."""
    runs_dir, identity = project_path(setting.config.runs_dir), setting.states_identity()
    folder = runs_dir / "states" / f"{setting.record.run_id}-{fingerprint(identity, 10)}"
    with exclusive(folder.parent / f".{folder.name}.lock", f"the states folder {folder}", wait=True):
        if missing and setting.config.states_store == "memory":
            yield from states_in_memory(forward, missing, log)
        elif missing:
            files = collect_states(forward, layers, folder, log)
            for layer in missing:
                yield layer, files[layer]
        if not setting.config.keep_states:
            shutil.rmtree(folder, ignore_errors=True)
