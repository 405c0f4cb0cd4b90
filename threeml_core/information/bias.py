"""How far the estimates of mutual information are from a known truth, as a recorded run: `runs/bias/<run id>`."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Any

from threeml_core.config import StudyConfig
from threeml_core.foundation.log import Log, print_line
from threeml_core.information.estimate import BiasPoint
from threeml_core.information.mixtures import Mixture
from threeml_core.runs.record import RunRecord, load_records, recorded, run_folder, run_id

STAGE = "bias"

_STUDY: dict[str, Any] = {
    "num_clusters": 200,
    "tokens": 50,
    "couplings": (0.0, 0.5, 1.0),
    "states_per_cluster": (5, 20, 100, 500),
    "seed": 0,
}


def bias_points(
    num_clusters: int, tokens: int, couplings: Sequence[float], states_per_cluster: Sequence[int], seed: int
) -> list[BiasPoint]:
    """Estimates and truth on mixtures of so many tokens and these couplings (see `Mixture`), as the states grow.

    A quarter as many components as clusters, so that k-means finds each of them.
    """
    from threeml_core.information.measure import layer_mutual_information  # the record needs no torch

    points = []
    for coupling in couplings:
        mixture = Mixture(tokens * max(1, num_clusters // (4 * tokens)), tokens, coupling)
        for each in states_per_cluster:
            states, labels = mixture.sample(each * num_clusters, seed)
            found = layer_mutual_information(states, labels, num_clusters, seeds=(seed,))
            points.append(BiasPoint(coupling, mixture.mutual_information, found))
    return points


def bias_study(config: StudyConfig, log: Log = print_line) -> RunRecord | None:
    """The record of `bias_points`, measured now if there is none; None: `plan_only`, and there is none.

    Of `config` only `runs_dir` and `plan_only` matter: the mixtures are the same in every study.
    """
    identity = json.loads(json.dumps(_STUDY))  # as a record has it
    if config.plan_only:
        found = [record for record in load_records(config.runs_dir, STAGE) if record.identity == identity]
        return found[-1] if found else None

    def work(environment: dict[str, Any]) -> dict[str, Any]:
        started = time.perf_counter()
        points = bias_points(**_STUDY)
        seconds = time.perf_counter() - started
        log(f"{name}: {len(points)} points ({seconds:.1f} s)")
        return {"metrics": {"points": [dataclasses.asdict(point) for point in points]}, "timing": {"seconds": seconds}}

    name = run_id(STAGE, identity)
    return recorded(run_folder(config.runs_dir, STAGE, name), identity, config, work, wait=True)
