"""Mini-batch k-means over states that need not fit in memory: scikit-learn on a CPU, torch on a GPU.

Source: section 4.2 ("cluster them using mini-batch k-means into 10,000 clusters"); Sculley, "Web-scale k-means
clustering" (2010): every centre is the running mean of the rows it has won. Both back ends give the same clusters up to
rounding (tested).

The start is drawn in four rounds, a quarter of the centres each, the later ones by their squared distance from those
there are (after k-means||, Bahmani et al., "Scalable k-means++", 2012, without its reweighting). k-means++ itself costs
several times the clustering; rows drawn at random leave rare kinds of rows without a centre, which on hidden states of
trained models took 1 to 2% off the information.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from threeml_core.foundation.errors import ParameterError

START_ROUNDS = 4
START_ROWS = 5
"""Rows for each centre among which the start is drawn."""

_CHUNK_BYTES = {"cpu": 2**26, "cuda": 2**30}  # of distances or rows at a time


class Rows(Protocol):
    """(N, d) numbers of which some are read at a time: an array, a file, a tensor on a GPU."""

    @property
    def neighbours(self) -> int:
        """Rows that are best read together; a batch is made of so many neighbours from many places."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, d)."""

    def read(self, index: np.ndarray) -> Tensor:
        """(k, d) rows at (k,) places, any float type, on any device."""


class Array:
    """A numpy array or a tensor as `Rows`; with `neighbours=1` they may be in any order."""

    def __init__(self, array: np.ndarray | Tensor, neighbours: int = 1) -> None:
        self._array, self.neighbours = array, neighbours
        self.shape = array.shape[0], array.shape[1]

    def read(self, index: np.ndarray) -> Tensor:
        """(k, d); a tensor's places in a row without a copy."""
        part = self._array[slice(index[0], index[-1] + 1) if np.all(np.diff(index) == 1) else index]
        return torch.from_numpy(part.copy()) if isinstance(part, np.ndarray) else part  # a file is mapped read-only


class _OnCPU:
    """scikit-learn's MiniBatchKMeans, fed batch by batch."""

    def __init__(self, centres: Tensor) -> None:
        try:
            from sklearn.cluster import MiniBatchKMeans
        except ImportError:
            raise ParameterError("clustering on a CPU needs `pip install scikit-learn`") from None
        self._model = MiniBatchKMeans(
            len(centres), init=centres.numpy(), n_init=1, compute_labels=False, reassignment_ratio=0.0
        )

    def update(self, batch: Tensor) -> None:
        self._model.partial_fit(batch.numpy())

    def assign(self, rows: Tensor) -> np.ndarray:
        return self._model.predict(rows.numpy())


class _OnTorch:
    """The same in torch, for a GPU, which does not fix the order in which sums are added: last digits may differ."""

    def __init__(self, centres: Tensor) -> None:
        self._centres = centres
        self._counts = torch.zeros(len(centres), device=centres.device)

    def update(self, batch: Tensor) -> None:
        labels = _best_score(batch, self._centres)[1]
        sums = (self._centres * self._counts[:, None]).index_add_(0, labels, batch)
        self._counts += torch.bincount(labels, minlength=len(self._counts))
        self._centres = torch.where(self._counts[:, None] > 0, sums / self._counts[:, None].clamp(min=1), self._centres)

    def assign(self, rows: Tensor) -> np.ndarray:
        return _best_score(rows, self._centres)[1].cpu().numpy()


def cluster(
    rows: Rows | np.ndarray | Tensor,
    clusters: int,
    seed: int,
    passes: int,
    batch_size: int,
    device: torch.device | str = "cpu",
    back_end: type[_OnCPU | _OnTorch] | None = None,
) -> np.ndarray:
    """(N,) int32: each row's nearest centre, found by mini-batch k-means.

    Memory stays bounded: beside the centres it holds a batch, or the `START_ROWS` * K rows of which the start is drawn.

    Args:
        rows: (N, d); an array, a tensor, or `Rows`.
        clusters: K.
        seed: of the start and of the order of the batches.
        passes: times that every row moves a centre.
        batch_size: rows between two moves; at least K are taken.
        device: of the centres.
        back_end: None: scikit-learn on a CPU, torch on a GPU.

    Raises:
        ParameterError: fewer rows than clusters, or a row is not finite.
    """
    device = torch.device(device)
    back_end = back_end or (_OnCPU if device.type == "cpu" else _OnTorch)
    rows = Array(rows) if isinstance(rows, (np.ndarray, Tensor)) else rows
    n, width = rows.shape
    if n < clusters:
        raise ParameterError(
            f"clusters={clusters:,}, but there are only {n:,} states to cluster: lower clusters (to a tenth of the "
            "states or less), or raise states_per_layer, or give more text"
        )
    rng = np.random.default_rng(seed)
    candidates = next(_batches(rows, START_ROWS * clusters, rng))
    model = back_end(_start(_read(rows, candidates, device), clusters, rng))
    for _ in range(passes):
        for index in _batches(rows, max(batch_size, clusters), rng):
            model.update(_read(rows, index, device))
    labels = np.empty(n, np.int32)
    size = max(1, _CHUNK_BYTES[device.type] // (4 * width))
    for first in range(0, n, size):
        index = np.arange(first, min(first + size, n))
        labels[index] = model.assign(_read(rows, index, device))
    return labels


def _read(rows: Rows, index: np.ndarray, device: torch.device) -> Tensor:
    """(k, d) float32 on the device."""
    found = rows.read(index).to(device).float()
    if not math.isfinite(found.sum()):
        raise ParameterError("a state is not a finite number: nothing can be clustered")
    return found


def _start(rows: Tensor, clusters: int, rng: np.random.Generator) -> Tensor:
    """(clusters, d): rows drawn in `START_ROUNDS` rounds, after the first by squared distance from those drawn."""
    sizes = [len(part) for part in np.array_split(np.arange(clusters), START_ROUNDS)]
    drawn = new = rng.choice(len(rows), sizes[0], replace=False)
    distances = np.full(len(rows), np.inf)
    norms = rows.square().sum(1)
    for size in sizes[1:]:
        nearest = norms - 2 * _best_score(rows, rows[new])[0]
        distances = np.minimum(distances, nearest.clamp(min=0).double().cpu().numpy())
        distances[drawn] = 0
        # rounding leaves something between equal rows; where too few differ, any will do
        far = np.where(distances > 1e-6 * norms.double().cpu().numpy(), distances, 0)
        if np.count_nonzero(far) < size:
            far = np.ones(len(rows))
            far[drawn] = 0
        new = rng.choice(len(rows), size, replace=False, p=far / far.sum())
        drawn = np.concatenate([drawn, new])
    return rows[drawn]


def _best_score(rows: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """(k,) largest x·c - |c|²/2, which is where |x - c|² is smallest, and (k,) the centre."""
    bias = -0.5 * centres.square().sum(1)
    size = max(1, _CHUNK_BYTES[rows.device.type] // (4 * len(centres)))
    parts = [torch.addmm(bias, part, centres.T).max(1) for part in rows.split(size)]
    return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])


def _batches(rows: Rows, batch_size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Every row once, in batches of at least `batch_size`, the last one excepted, from all over the rows."""
    n, run = rows.shape[0], rows.neighbours
    firsts = run * rng.permutation(-(-n // run))
    runs = -(-batch_size // run) + (run > 1)  # one more than needed: the run at the end of the rows may be short
    for i in range(0, len(firsts), runs):
        index = (firsts[i : i + runs, None] + np.arange(run)).ravel()
        yield index[index < n]
