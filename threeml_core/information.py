"""Mutual information between clusters and tokens from their joint counts: plug-in, corrected, floor, ceiling.

Source: section 4.2 and Figure 4, which show the plug-in estimate. It is biased upward: even where nothing is shared,
the counts of N pairs in a table of clusters x tokens look as if something were. All values are in nats.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy.special import digamma
from sklearn.metrics import mutual_info_score

NATS_TO_BITS = 1 / math.log(2)


def plug_in_information(clusters: np.ndarray, tokens: np.ndarray) -> float:
    """I(cluster; token) in nats as the frequencies have it: the paper's estimate.

    Args:
        clusters: (N,) int.
        tokens: (N,) int.
    """
    return float(mutual_info_score(clusters, tokens))


def entropy(values: np.ndarray) -> float:
    """Of the frequencies of (N,) ints, in nats: no feature can tell more about them."""
    counts = np.unique(values, return_counts=True)[1]
    return float(np.log(len(values)) - (counts * np.log(counts)).sum() / len(values))


def grassberger_entropy(counts: np.ndarray) -> float:
    """Entropy in nats from counts, nearly unbiased where most of them are small.

    Source: Grassberger, "Entropy estimates from insufficient samplings" (2003), equations 28 and 30.
    """
    n = counts[counts > 0].astype(float)
    total = n.sum()
    g = digamma(n) + 0.5 * (-1.0) ** n * (digamma((n + 1) / 2) - digamma(n / 2))
    return float(np.log(total) - (n * g).sum() / total)


def grassberger_information(clusters: np.ndarray, tokens: np.ndarray) -> float:
    """H(cluster) + H(token) - H(cluster, token), each by `grassberger_entropy`; nats."""
    pairs = clusters.astype(np.int64) * (int(tokens.max()) + 1) + tokens
    counts = [np.unique(values, return_counts=True)[1] for values in (clusters, tokens, pairs)]
    return grassberger_entropy(counts[0]) + grassberger_entropy(counts[1]) - grassberger_entropy(counts[2])


def corrected_information(clusters: np.ndarray, tokens: np.ndarray) -> float:
    """I(cluster; token) in nats with its bias taken out as far as the data allow.

    Grassberger's estimate on all pairs, on halves and on quarters of them, extrapolated to infinitely many by
    I(N) = I + a/N + b/N² (Strong et al., "Entropy and information in neural spike trains", 1998). On synthetic tables
    with the paper's 500 states a cluster the error is about 1%, where the plug-in estimate is 3 to 200% too high; with
    10 states a cluster it is still too high (`bias_study`). Subtracting the estimate on shuffled tokens instead would
    take away too much: the more is shared, the fewer cells of the table are in use.

    Args:
        clusters: (N,) int, in random order.
        tokens: (N,) int.
    """
    full, half, quarter = (
        np.mean([grassberger_information(clusters[i::parts], tokens[i::parts]) for i in range(parts)])
        for parts in (1, 2, 4)
    )
    return float((8 * full - 6 * half + quarter) / 3)


def information_standard_error(clusters: np.ndarray, tokens: np.ndarray) -> float:
    """Standard error in nats of the plug-in estimate as the sample varies: the pointwise information's deviation/√N."""
    _, of_pair, pairs = np.unique(
        clusters.astype(np.int64) * (int(tokens.max()) + 1) + tokens, return_inverse=True, return_counts=True
    )
    pointwise = np.log(pairs[of_pair] * len(tokens) / np.bincount(clusters)[clusters] / np.bincount(tokens)[tokens])
    return float(pointwise.std() / math.sqrt(len(tokens)))


@dataclasses.dataclass(frozen=True)
class LayerInformation:
    """What the states of a layer say about the tokens that stood there; nats, one value for each k-means seed.

    Attributes:
        layer: 0 is what comes in.
        width: of a state.
        states: N.
        entropy: of the tokens: the ceiling.
        plug_in: the paper's estimate.
        corrected: see `corrected_information`.
        floor: the plug-in estimate on shuffled tokens, where the truth is 0.
        standard_error: of the plug-in estimate.
        clusters_used: clusters with at least one state.
    """

    layer: int
    width: int
    states: int
    entropy: float
    plug_in: tuple[float, ...]
    corrected: tuple[float, ...]
    floor: tuple[float, ...]
    standard_error: tuple[float, ...]
    clusters_used: tuple[int, ...]

    def __post_init__(self) -> None:
        """Lists, as JSON has them, become tuples."""
        for name in ("plug_in", "corrected", "floor", "standard_error", "clusters_used"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def value(self) -> float:
        """Mean of `corrected`: the best estimate."""
        return float(np.mean(self.corrected))

    @property
    def error(self) -> float:
        """Of `value`: the spread over k-means seeds and the sampling error together, as one standard deviation."""
        seeds = np.std(self.corrected, ddof=1) if len(self.corrected) > 1 else 0.0
        return math.hypot(seeds, float(np.mean(self.standard_error)))


def estimate_layer(
    assignments: Sequence[np.ndarray], tokens: np.ndarray, layer: int, width: int, seed: int = 0
) -> LayerInformation:
    """All estimates from the clusters that several k-means seeds have found.

    Args:
        assignments: for each k-means seed (N,) cluster of each state.
        tokens: (N,) token of each state.
        layer: its number, for the record.
        width: of its states, for the record.
        seed: of the shuffle.
    """
    tokens = np.unique(tokens, return_inverse=True)[1]
    order = np.random.default_rng(seed).permutation(len(tokens))  # halves and quarters are samples of the whole
    tokens, shuffled = tokens[order], tokens
    found = [clusters[order] for clusters in assignments]
    return LayerInformation(
        layer=layer,
        width=width,
        states=len(tokens),
        entropy=entropy(tokens),
        plug_in=tuple(plug_in_information(clusters, tokens) for clusters in found),
        corrected=tuple(corrected_information(clusters, tokens) for clusters in found),
        floor=tuple(plug_in_information(clusters, shuffled) for clusters in found),
        standard_error=tuple(information_standard_error(clusters, tokens) for clusters in found),
        clusters_used=tuple(len(np.unique(clusters)) for clusters in found),
    )
