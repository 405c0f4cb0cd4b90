"""Mutual information between clusters and tokens from their joint counts: plug-in, corrected, floor, ceiling.

Source: section 4.2 and Figure 4, which show the plug-in estimate. It is biased upward: even where nothing is shared,
the counts of N pairs in a table of clusters x tokens look as if something were. All values are in nats.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.special import digamma

NATS_TO_BITS = 1 / math.log(2)


class JointCounts:
    """How often each of (N,) clusters meets each of (N,) tokens, 0 or more; only cells that occur are kept."""

    def __init__(self, clusters: np.ndarray, tokens: np.ndarray) -> None:
        self.total = len(tokens)
        table = coo_array((np.ones(self.total, np.int64), (clusters, tokens))).tocsr().tocoo()
        self._row, self._column = table.coords
        self.cells = table.data
        """Counts of the pairs."""
        self.rows, self.columns = np.bincount(clusters), np.bincount(tokens)
        """Counts of each cluster, and of each token; 0 for numbers that do not occur."""

    def _pointwise(self) -> np.ndarray:
        """Log p(cluster, token)/(p(cluster) p(token)) of each cell."""
        return np.log(self.cells * (self.total / self.rows[self._row] / self.columns[self._column]))

    def plug_in_information(self) -> float:
        """I(cluster; token) in nats as the frequencies have it: the paper's estimate."""
        return float(self.cells @ self._pointwise()) / self.total

    def standard_error(self) -> float:
        """Of the plug-in estimate in nats, as the sample varies: deviation of the pointwise information over √N."""
        values = self._pointwise()
        mean = self.cells @ values / self.total
        return math.sqrt(self.cells @ (values - mean) ** 2) / self.total

    def grassberger_information(self) -> float:
        """H(cluster) + H(token) - H(cluster, token) in nats, each by `grassberger_entropy`."""
        return grassberger_entropy(self.rows) + grassberger_entropy(self.columns) - grassberger_entropy(self.cells)


def plug_in_entropy(counts: np.ndarray) -> float:
    """Of the frequencies, in nats: no feature can tell more about what was counted."""
    n = counts[counts > 0]
    return float(np.log(n.sum()) - (n * np.log(n)).sum() / n.sum())


def grassberger_entropy(counts: np.ndarray) -> float:
    """Entropy in nats from counts, nearly unbiased where most of them are small.

    Source: Grassberger, "Entropy estimates from insufficient samplings" (2003), equations 28 and 30.
    """
    n, times = np.unique(counts[counts > 0], return_counts=True)
    total = (n * times).sum()
    g = digamma(n) + 0.5 * (-1.0) ** n * (digamma((n + 1) / 2) - digamma(n / 2))
    return float(np.log(total) - (n * times * g).sum() / total)


def corrected_information(clusters: np.ndarray, tokens: np.ndarray) -> tuple[float, float]:
    """I(cluster; token) with its bias taken out as far as the data allow, and how far that may be wrong; nats.

    Grassberger's estimate on all pairs, on halves and on quarters of them, extrapolated to infinitely many by
    I(N) = I + a/N + b/N² (Strong et al., "Entropy and information in neural spike trains", 1998); the second value is
    half of what extrapolating has changed. On synthetic tables with `MIN_PAIRS_PER_CELL` or more the truth lies
    within two errors, made of this and the sampling error, in 95% of the cases (tested); below, the estimate may be far
    too high. Subtracting the estimate on shuffled tokens instead would take away too much. The (N,) pairs have to be in
    random order.
    """
    full, half, quarter = (
        float(np.mean([JointCounts(clusters[i::n], tokens[i::n]).grassberger_information() for i in range(n)]))
        for n in (1, 2, 4)
    )
    extrapolated = (8 * full - 6 * half + quarter) / 3
    return extrapolated, abs(full - extrapolated) / 2


MIN_PAIRS_PER_CELL = 5.0
"""Pairs for each cell in use of the table of clusters and tokens, below which the bias cannot be corrected.

On tables whose tokens follow Zipf's law (exponents 1 and 1.3, 250 and 1,000 tokens) the bias left is up to 6% of the
tokens' entropy (31% of the truth) at 3 pairs per cell, and below 2% from 5 on. The paper's 500 states per cluster and
1,000 tokens have 2.4 where nothing is shared, and more where something is.
"""


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
        extrapolation: how far that may be wrong.
        floor: the plug-in estimate on shuffled tokens, where the truth is 0.
        standard_error: of the plug-in estimate.
        pairs_per_cell: states for each pair of cluster and token that occurs.
        clusters_used: clusters with at least one state.
    """

    layer: int
    width: int
    states: int
    entropy: float
    plug_in: tuple[float, ...]
    corrected: tuple[float, ...]
    extrapolation: tuple[float, ...]
    floor: tuple[float, ...]
    standard_error: tuple[float, ...]
    pairs_per_cell: tuple[float, ...]
    clusters_used: tuple[int, ...]

    def __post_init__(self) -> None:
        """Lists, as JSON has them, become tuples."""
        for field in dataclasses.fields(self):
            if isinstance(getattr(self, field.name), list):
                object.__setattr__(self, field.name, tuple(getattr(self, field.name)))

    @property
    def value(self) -> float:
        """Mean of `corrected`: the best estimate."""
        return float(np.mean(self.corrected))

    @property
    def error(self) -> float:
        """Of `value`, as one standard deviation: spread over k-means seeds, sampling and extrapolation together."""
        seeds = np.std(self.corrected, ddof=1) if len(self.corrected) > 1 else 0.0
        return math.hypot(seeds, float(np.mean(self.standard_error)), float(np.mean(self.extrapolation)))

    @property
    def has_enough_states(self) -> bool:
        """Can the bias be taken out, with these clusters and tokens?"""
        return min(self.pairs_per_cell) >= MIN_PAIRS_PER_CELL


def estimate_layer(
    assignments: Sequence[np.ndarray], tokens: np.ndarray, layer: int, width: int, seed: int = 0
) -> LayerInformation:
    """All estimates from the (N,) clusters of the states that several k-means seeds have found, and their (N,) tokens.

    `layer` and `width` of its states are for the record; `seed` is that of the shuffle.
    """
    order = np.random.default_rng(seed).permutation(len(tokens))  # halves and quarters are samples of the whole
    tokens, shuffled = tokens[order], tokens
    found = [clusters[order] for clusters in assignments]
    tables = [JointCounts(clusters, tokens) for clusters in found]
    corrected, extrapolation = zip(*(corrected_information(clusters, tokens) for clusters in found), strict=True)
    return LayerInformation(
        layer=layer,
        width=width,
        states=len(tokens),
        entropy=plug_in_entropy(tables[0].columns),
        plug_in=tuple(table.plug_in_information() for table in tables),
        corrected=corrected,
        extrapolation=extrapolation,
        floor=tuple(JointCounts(clusters, shuffled).plug_in_information() for clusters in found),
        standard_error=tuple(table.standard_error() for table in tables),
        pairs_per_cell=tuple(len(tokens) / len(table.cells) for table in tables),
        clusters_used=tuple(int(np.count_nonzero(table.rows)) for table in tables),
    )


@dataclasses.dataclass(frozen=True)
class BiasPoint:
    """What the estimates are on states of a mixture of this coupling, whose mutual information is known; nats."""

    coupling: float
    truth: float
    found: LayerInformation

    def __post_init__(self) -> None:
        """A JSON object becomes the estimates."""
        if isinstance(self.found, dict):
            object.__setattr__(self, "found", LayerInformation(**self.found))
