"""Parameters of the mutual information between hidden states and tokens (07_mutual_information)."""

from __future__ import annotations

import dataclasses

from threeml_core.parameters.parameter import COUNT, SEED, Allowed, at_least, one_of, parameter, setting


def _layers(text: str) -> tuple[int, ...]:
    if text == "all":
        return ()
    parts = [part.strip() for part in text.split(",")]
    layers = sorted(int(part) for part in parts if part.isdecimal() and len(part) < 10)
    if not layers or len(layers) < len(parts) or len(set(layers)) < len(layers):
        raise ValueError(text)
    return tuple(layers)


LAYERS = Allowed("'all' or layer numbers such as '0,1,2', each once", _layers, numbers=True)
"""Read as a tuple in ascending order; empty for `all`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InformationParameters:
    """Mutual information: what decides it, given the pre-trained models."""

    STAGES = "information"

    runs: str | None = setting(
        None, "pre-trained runs to look at, ids or run folders joined with commas", none="vanilla, self and cross"
    )
    states_text: str = parameter("validation", "text whose [MASK]s are looked at", one_of(("validation", "train")))
    states_seed: int = parameter(0, "seed of the choice of sequences and of their corruption", SEED)
    states_per_layer: int = parameter(5_000_000, "at most this many states a layer", COUNT)
    top_tokens: int = parameter(1000, "only [MASK]s whose original token is among this many most frequent ones", COUNT)
    state_layers: str = parameter("all", "layers that are looked at; 0 is what comes in", LAYERS)
    states_final_norm: bool = parameter(True, "pre-LN: take the last layer behind the final LayerNorm")
    states_store: str = setting(
        "disk", "float16 files, resumable, or as many layers at once as fit", one_of(("disk", "memory"))
    )
    keep_states: bool = setting(False, "leave the files of `disk` for further runs")
    num_clusters: int = parameter(10_000, "k-means clusters", at_least(2))
    num_kmeans_seeds: int = parameter(3, "k-means is done with this many seeds, for the spread", COUNT)
    num_kmeans_passes: int = parameter(1, "times that every state moves a centre", COUNT)
    kmeans_batch_size: int = parameter(4096, "states between two moves; at least `num_clusters` are taken", COUNT)
