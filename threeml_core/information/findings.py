"""The paper's two statements on mutual information as comparisons that are judged like its claims. No torch.

Source: section 4.2: the vanilla model wins most of what it will know in its first few layers; 3ML knows as much after
its first decoder block as the vanilla model in its last layer. The paper has no bounds; `MOST` and `LEVEL` are ours.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from threeml_core.information.estimate import LayerInformation
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.runs.record import RunRecord
from threeml_core.statistics.verdicts import Finding

LEVEL = 0.9
"""Share of the vanilla model's last layer from which a decoder block holds as much."""

MOST = 0.5
"""Share of what the last layer has gained from which it is most of it."""


def first_block(architecture: str, records: Sequence[RunRecord]) -> Finding:
    """What the first decoder block knows, as a share of what the vanilla model's last layer knows; the latest pairs.

    The error of a share follows from those of both estimates by the delta method. All seeds are taken to share it, as
    they share what the correction of the bias leaves; so it is not made smaller by more seeds.

    Args:
        architecture: self or cross.
        records: of stage `mutual_information`, oldest first. Only runs that were asked about the same [MASK]s are set
            against each other.
    """
    found: dict[int, tuple[float, float, str]] = {}
    references: dict[tuple[object, ...], tuple[RunRecord, LayerInformation]] = {}
    for vanilla in (record for record in records if record.parameters["architecture"] == "vanilla"):
        if last := _layer(vanilla, vanilla.parameters["num_hidden_layers"]):
            references[_measured_how(vanilla)] = vanilla, last
    for first in (record for record in records if record.parameters["architecture"] == architecture):
        block = _layer(first, 1)
        if block and (reference := references.get(_measured_how(first))):
            vanilla, last = reference
            doubt = _doubt((first, vanilla), (block, last))
            if not doubt and last.value <= 2 * last.error:
                doubt = "vanilla's last layer says nothing about the tokens"
            share = block.value / last.value if last.value > 0 else math.nan
            error = math.hypot(block.error, share * last.error) / last.value if last.value > 0 else math.nan
            found[first.parameters["seed"]] = share, error, doubt
    return _finding(f"{ARCHITECTURES[architecture].label}, first block, as a share of vanilla's last", LEVEL, found)


def first_layers(records: Iterable[RunRecord]) -> Finding:
    """What the first quarter of the vanilla model's blocks gives, as a share of what all give; the latest of a seed.

    Args:
        records: of stage `mutual_information`, oldest first.
    """
    found: dict[int, tuple[float, float, str]] = {}
    for record in (record for record in records if record.parameters["architecture"] == "vanilla"):
        count = record.parameters["num_hidden_layers"]
        few = max(1, count // 4)
        layers = [_layer(record, number) for number in (0, few, count)]
        start, early, last = layers
        if few == count or start is None or early is None or last is None:
            continue
        gain = last.value - start.value
        doubt = _doubt((record,), (start, early, last))
        if not doubt and gain <= 2 * math.hypot(start.error, last.error):
            doubt = "the last layer holds no more than the embedding"
        share = (early.value - start.value) / gain if gain > 0 else math.nan
        error = math.hypot(early.error, share * last.error, (1 - share) * start.error) / gain if gain > 0 else math.nan
        found[record.parameters["seed"]] = share, error, doubt
    return _finding("vanilla, first quarter of the blocks, as a share of the gain of all", MOST, found)


def _finding(what: str, bound: float, found: dict[int, tuple[float, float, str]]) -> Finding:
    """Of (share, its error, doubt) by pre-training seed."""
    in_order = [found[seed] for seed in sorted(found)]
    doubt = "; ".join(dict.fromkeys(doubt for *_, doubt in in_order if doubt))
    known = [(share, error) for share, error, _ in in_order if math.isfinite(share)]  # else the whole is nothing
    error = statistics.fmean(error for _, error in known) if known else 0.0
    return Finding(what, "", bound, math.inf, tuple(share for share, _ in known), doubt, error=error)


def _doubt(records: Iterable[RunRecord], layers: Sequence[LayerInformation]) -> str:
    """Why a share of these layers means nothing, or ""."""
    if any(record.data["on_unigram_plateau"] for record in records):
        return "on the unigram plateau"
    if not all(layer.has_enough_states for layer in layers):
        return "too few states"
    return "one k-means seed: no error" if any(len(layer.corrected) == 1 for layer in layers) else ""


def _layer(record: RunRecord, number: int) -> LayerInformation | None:
    return next((LayerInformation(**of) for of in record.metrics["layers"] if of["layer"] == number), None)


def _measured_how(record: RunRecord) -> tuple[object, ...]:
    """Equal for runs of a seed that were asked about the same [MASK]s, and clustered in the same way."""
    names = ("seed", "num_clusters", "num_kmeans_seeds", "num_kmeans_passes", "kmeans_batch_size", "states_final_norm")
    return (*(record.parameters.get(name) for name in names), record.data["sample"])
