"""Records as a study would leave them, with numbers chosen by a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from threeml_core.config import StudyConfig, identity_parameters
from threeml_core.foundation.files import fingerprint
from threeml_core.glue.protocol import planned_tasks, runs_of
from threeml_core.runs.record import RunRecord
from threeml_core.study.experiment import StudyRun

ENVIRONMENT = {
    "commit": None,
    "commit_changed": None,
    "versions": {},
    "hardware": {"cpu": "test", "cores": 1, "threads": 1, "system": "Linux"},
    "finished": "2026-01-01T00:00:00+00:00",
}


def record(stage: str, run_id: str, config: StudyConfig, **fields: Any) -> RunRecord:
    empty: dict[str, Any] = {name: {} for name in ("identity", "metrics", "flops", "timing", "data", "files")}
    values = {**empty, "environment": ENVIRONMENT, **fields}
    return RunRecord(stage, run_id, parameters=config.parameters(), sources=dict(config.sources), **values)


def pretrained(run: StudyRun, seed: int, tokens_per_second: float = 1000.0, **metrics: Any) -> RunRecord:
    """A pre-training record; its loss is `eval_loss` at every kind of token unless told."""
    config = run.config.replace(seed=seed)
    loss = {f"eval_perplexity{kind}": 10.0 for kind in ("", "_masked", "_replaced", "_unchanged")}
    values = {"eval_loss": 2.3, **loss, "unigram_perplexity_masked": 60.0, "on_unigram_plateau": False, **metrics}
    return record(
        "pretrain",
        f"{config.architecture}-{fingerprint(identity_parameters(config), 10)}",
        config,
        metrics=values,
        flops={"speedup_over_vanilla_15": 1.25, "speedup_over_vanilla_same_rate": 1.5, "training": 1e12},
        timing={"tokens_per_second": tokens_per_second, "train_seconds": 10.0},
        data={"parameters": 1_000_000},
    )


def starts_of(start: str | None, seed: int, found: Mapping[str, RunRecord]) -> list[str]:
    return [name for name, r in found.items() if (r.identity["task"], r.identity["seed"]) == (start, seed)]


def finetuned(
    run: StudyRun, of: RunRecord, config: StudyConfig, scores: Mapping[str, Any], chance: float = 0.3
) -> list[RunRecord]:
    """A record for every planned fine-tuning; `scores`: task -> one number for all metrics, or metric -> number."""
    found = {}
    for chosen in run.finetunings(config).values():
        for task in sorted(planned_tasks(chosen), key=lambda task: task.starts_from is not None):
            for point in runs_of(task, chosen):
                given = scores[task.name]
                metrics = {key: given[key] if isinstance(given, Mapping) else given for key in task.metric_keys}
                identity = {
                    name: getattr(point, name) for name in ("task", "seed", "learning_rate", "batch_size", "epochs")
                }
                identity["starts"] = starts_of(task.starts_from, point.seed, found) if chosen.from_mnli else []
                sizes = dict(zip(task.validation, task.official_sizes[1:] or (100,), strict=True))
                splits = {
                    f"validation_{tag}".strip("_"): {"examples": n, "is_subset": False} for tag, n in sizes.items()
                }
                name = f"{task.name}-{fingerprint([of.run_id, identity], 10)}"
                found[name] = record(
                    "finetune",
                    name,
                    chosen,
                    identity=identity,
                    metrics={
                        **metrics,
                        "score": sum(metrics.values()) / len(metrics),
                        "constant_answers": [dict.fromkeys(task.metric_keys, chance)],
                        "undefined": [],
                    },
                    data={
                        "checkpoint": f"runs/pretrain/{of.run_id}/encoder",
                        "is_subset": False,
                        "splits": {"train": {"examples": 9}, **splits},
                    },
                )
    return list(found.values())
