"""The paper's two statements on mutual information as comparisons that are judged like its claims. No torch.

Source: section 4.2: the vanilla model wins most of what it will know in its first few layers; 3ML knows as much after
its first decoder layer as the vanilla model in its last layer. The paper has no bounds; `MOST` and `LEVEL` are ours.
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
"""Share of the vanilla model's last layer from which a decoder layer holds as much."""

MOST = 0.5
"""Share of what the last layer has gained from which it is most of it."""


def first_block(architecture: str, records: Sequence[RunRecord]) -> Finding:
    """What the first decoder layer knows, as a share of what the vanilla model's last layer knows; the latest pairs.

    Of the records, oldest first, only those that were asked about the same [MASK]s are set against each other.
    """
    found: dict[int, tuple[float, float, str]] = {}
    references: dict[tuple[object, ...], tuple[RunRecord, LayerInformation]] = {}
    for vanilla in (record for record in records if record.parameters["architecture"] == "vanilla"):
        if last := _layer(vanilla, vanilla.parameters["num_hidden_layers"]):
            references[_measured_how(vanilla)] = vanilla, last
    for first in (record for record in records if record.parameters["architecture"] == architecture):
        block = _layer(first, 1)
        if block and (reference := references.get(_measured_how(first))):
            nothing = "vanilla's last layer says nothing about the tokens"
            found[first.parameters["seed"]] = _share((first, reference[0]), (block, reference[1]), nothing)
    return _finding(f"{ARCHITECTURES[architecture].label}, first layer, as a share of vanilla's last", LEVEL, found)


def first_layers(records: Iterable[RunRecord]) -> Finding:
    """What the first quarter of the vanilla model's layers gives, as a share of all; of records oldest first."""
    found: dict[int, tuple[float, float, str]] = {}
    for record in (record for record in records if record.parameters["architecture"] == "vanilla"):
        count = record.parameters["num_hidden_layers"]
        few = max(1, count // 4)
        start, early, last = (_layer(record, number) for number in (0, few, count))
        if few < count and start and early and last:
            nothing = "the last layer holds no more than the embedding"
            found[record.parameters["seed"]] = _share((record,), (early, last, start), nothing)
    return _finding("vanilla, first quarter of the layers, as a share of the gain of all", MOST, found)


def _share(records: Iterable[RunRecord], layers: Sequence[LayerInformation], nothing: str) -> tuple[float, float, str]:
    """What the first layer has of what the second one knows (beyond a third), its error by the delta method, and doubt.

    All seeds are taken to share the error, as they share what the correction of the bias leaves; so it is not made
    smaller by more seeds.
    """
    part, whole, *start = layers
    zero, zero_error = (start[0].value, start[0].error) if start else (0.0, 0.0)
    gain = whole.value - zero
    doubt = ""
    if any(record.data["on_unigram_plateau"] for record in records):
        doubt = "on the unigram plateau"
    elif not all(layer.has_enough_states for layer in layers):
        doubt = "too few states"
    elif any(len(layer.corrected) == 1 for layer in layers):
        doubt = "one k-means seed: no error"
    elif gain <= 2 * math.hypot(zero_error, whole.error):
        doubt = nothing
    if gain <= 0:
        return math.nan, math.nan, doubt
    share = (part.value - zero) / gain
    return share, math.hypot(part.error, share * whole.error, (1 - share) * zero_error) / gain, doubt


def _finding(what: str, bound: float, found: dict[int, tuple[float, float, str]]) -> Finding:
    """Of (share, its error, doubt) by pre-training seed."""
    in_order = [found[seed] for seed in sorted(found)]
    doubt = "; ".join(dict.fromkeys(doubt for *_, doubt in in_order if doubt))
    known = [(share, error) for share, error, _ in in_order if math.isfinite(share)]  # else the whole is nothing
    error = statistics.fmean(error for _, error in known) if known else 0.0
    return Finding(what, "", bound, math.inf, tuple(share for share, _ in known), doubt, error=error)


def _layer(record: RunRecord, number: int) -> LayerInformation | None:
    return next((LayerInformation(**of) for of in record.metrics["layers"] if of["layer"] == number), None)


def _measured_how(record: RunRecord) -> tuple[object, ...]:
    """Equal for runs of a seed that were asked about the same [MASK]s, and clustered in the same way."""
    names = ("seed", "num_clusters", "num_kmeans_seeds", "num_kmeans_passes", "kmeans_batch_size", "states_final_norm")
    return (*(record.parameters.get(name) for name in names), record.data["sample"])
