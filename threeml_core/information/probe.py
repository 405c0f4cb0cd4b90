"""Linear probes on frozen states: ridge regression on all layers joined, and on each alone, in one pass over the text.

A classifier is the ridge regression on one-hot labels whose largest score is the answer (scikit-learn's
`RidgeClassifier`). All it needs of the states are their first and second moments, so memory does not grow with the
text, every layer's probe is read off the same moments, and further labels cost next to nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from threeml_core.foundation.errors import CorpusError
from threeml_core.parameters.probing import STRENGTHS

States = Callable[[str], Iterable[tuple[np.ndarray, Tensor]]]
"""Part of the text (`fit`, `tune` or `test`) -> in batches, (k,) numbers of units and (k, D) their states."""


@dataclasses.dataclass(frozen=True)
class Labels:
    """What is asked of every unit: (N,) classes from 0 on, and how many classes there are."""

    classes: np.ndarray
    count: int


@dataclasses.dataclass(frozen=True)
class Probed:
    """What a probe found of one task, on the test part.

    Attributes:
        accuracy: share of the units that are right, from all layers joined: the number that counts.
        strength: of its penalty.
        layers: accuracy from each layer alone, the embeddings first; with strengths of their own.
        right: (test units, in the order of their numbers) bool, of all layers joined.
        units: their numbers.
    """

    accuracy: float
    strength: float
    layers: tuple[float, ...]
    right: np.ndarray
    units: np.ndarray


class Moments:
    """Sums over units of states x (D,) and one-hot labels y (C,), in float64, about the first batch's mean."""

    def __init__(self) -> None:
        self.count = 0
        self.shift: Tensor | None = None
        self.sums: list[Tensor] = []

    def add(self, x: Tensor, y: Tensor) -> None:
        """Take (k, D) states and (k, C) labels."""
        x, y = x.double(), y.to(x.device).double()
        if self.shift is None:
            self.shift = x.mean(0)
            widths = ((x.shape[1],), (y.shape[1],), (x.shape[1], x.shape[1]), (x.shape[1], y.shape[1]))
            self.sums = [x.new_zeros(width) for width in widths]
        x = x - self.shift
        for total, part in zip(self.sums, (x.sum(0), y.sum(0), x.T @ x, x.T @ y), strict=True):
            total += part
        self.count += len(x)

    def solve(self, columns: slice, strength: float) -> tuple[Tensor, Tensor]:
        """Weights (d, C) and intercept (C,) of ridge regression on these columns of the states.

        As scikit-learn's `Ridge(strength * N)` on standardised states; a column that does not vary has no weight.
        """
        assert self.shift is not None
        x, y, xx, xy = (total / self.count for total in self.sums)
        mean = x[columns]
        covariance = xx[columns, columns] - mean[:, None] * mean
        scale = covariance.diagonal().clamp(min=0).sqrt()
        scale = torch.where(scale > 1e-6 * scale.max(), scale, torch.inf)
        matrix = covariance / scale[:, None] / scale
        matrix.diagonal().add_(strength)
        weights = torch.linalg.solve(matrix, (xy[columns] - mean[:, None] * y) / scale[:, None]) / scale[:, None]
        return weights, y - (mean + self.shift[columns]) @ weights


def probe(states: States, tasks: Mapping[str, Labels], widths: Sequence[int]) -> dict[str, Probed]:
    """Probe every task from the same states.

    Strengths are chosen on the part `tune`, for each task, and each layer, by itself; then the probe is fitted to both
    parts of the training text. Nothing is chosen on `test`.

    Args:
        states: asked for each part in turn.
        tasks: name -> labels of all units.
        widths: of the layers, whose states stand side by side.
    """
    ends = np.cumsum([0, *widths]).tolist()
    probes = [slice(0, ends[-1]), *(slice(*pair) for pair in zip(ends, ends[1:], strict=False))]
    moments = Moments()
    for units, x in states("fit"):
        moments.add(x, _one_hot(tasks, units))
    solved = {(p, s): moments.solve(columns, s) for p, columns in enumerate(probes) for s in STRENGTHS}
    right: dict[tuple[int, float], np.ndarray] = {place: np.zeros(len(tasks)) for place in solved}
    for units, x in states("tune"):
        x = x.double()
        moments.add(x, _one_hot(tasks, units))
        for (p, s), linear in solved.items():
            right[p, s] += _right(x[:, probes[p]], linear, tasks, units).sum(1)
    best = [[max(STRENGTHS, key=lambda s: right[p, s][t]) for t in range(len(tasks))] for p in range(len(probes))]
    chosen = {(p, s): moments.solve(probes[p], s) for p, strengths in enumerate(best) for s in dict.fromkeys(strengths)}
    numbers: list[np.ndarray] = []
    found: dict[tuple[int, float], list[np.ndarray]] = {place: [] for place in chosen}
    for units, x in states("test"):
        x = x.double()
        numbers.append(units)
        for (p, s), linear in chosen.items():
            found[p, s].append(_right(x[:, probes[p]], linear, tasks, units))
    units = np.concatenate(numbers)
    order = np.argsort(units)
    answers = {place: np.concatenate(parts, 1)[:, order] for place, parts in found.items()}
    result = {}
    for t, name in enumerate(tasks):
        whole, *layers = (answers[p, best[p][t]][t] for p in range(len(probes)))
        shares = tuple(float(layer.mean()) for layer in layers)
        result[name] = Probed(float(whole.mean()), best[0][t], shares, whole, units[order])
    return result


def _one_hot(tasks: Mapping[str, Labels], units: np.ndarray) -> Tensor:
    """(units, classes of all tasks, side by side)."""
    return torch.from_numpy(np.concatenate([np.eye(of.count)[of.classes[units]] for of in tasks.values()], 1))


def _right(x: Tensor, linear: tuple[Tensor, Tensor], tasks: Mapping[str, Labels], units: np.ndarray) -> np.ndarray:
    """(tasks, units) bool: is the class with the largest score the right one?"""
    weights, intercept = linear
    scores = x @ weights + intercept
    answers = [part.argmax(1).cpu().numpy() for part in scores.split([of.count for of in tasks.values()], 1)]
    return np.array([answer == of.classes[units] for answer, of in zip(answers, tasks.values(), strict=True)])


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Texts as token ids, and which tokens stand for each unit.

    Attributes:
        ids: (m,) token ids of each text, without special tokens.
        units: of each text: (k, 2) first token and the one behind the last of each of its units.
        first: number of the first unit of each text; units are numbered through.
        before: special tokens that an encoder wants before its tokens.
        behind: and behind them.
        padding: id of the padding token.
        length: most tokens that the encoder takes at once, special ones included.
    """

    ids: Sequence[np.ndarray]
    units: Sequence[np.ndarray]
    first: np.ndarray
    before: list[int]
    behind: list[int]
    padding: int
    length: int

    @property
    def room(self) -> int:
        """Tokens of a text that the encoder takes at once."""
        return self.length - len(self.before) - len(self.behind)

    @property
    def long(self) -> int:
        """Texts that are longer: they are taken in windows of equal size, one after the other."""
        return sum(len(ids) > self.room for ids in self.ids)


def place_units(
    tokenizer: Any, texts: Sequence[str], spans: Sequence[Sequence[tuple[int, int]]], length: int
) -> Tokens:
    """Find the tokens of each unit by characters, whatever the tokenizer.

    A token stands for a unit if it has a character of it; blanks before a word are nobody's.

    Args:
        tokenizer: a fast one of transformers.
        texts: any texts.
        spans: of each text, of each unit: its first character and the one behind its last.
        length: see `Tokens`.

    Raises:
        CorpusError: the tokenizer has no token for a unit.
    """
    encoded = tokenizer(list(texts), return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
    rows = (encoded[name] for name in ("input_ids", "offset_mapping", "special_tokens_mask"))
    units, kept_ids = [], []
    for text, of_text, ids, offsets, special in zip(texts, spans, *rows, strict=True):
        own = np.flatnonzero(np.array(special) == 0)
        kept_ids.append(np.array(ids)[own])
        begins, ends = np.array(offsets)[own].T
        real = np.flatnonzero(ends > begins)
        characters = np.array(of_text)
        start = real[np.searchsorted(ends[real], characters[:, 0], "right").clip(max=len(real) - 1)]
        stop = real[np.searchsorted(begins[real], characters[:, 1], "left") - 1] + 1
        if (lost := np.flatnonzero((stop <= start) | (ends[start] <= characters[:, 0]))).size:
            word = text[slice(*characters[lost[0]])]
            raise CorpusError(f"the tokenizer has no token for {word!r} in {text[:60]!r}: it cannot be probed there")
        units.append(np.stack([start, stop], 1))
    edge = np.array(encoded["special_tokens_mask"][0])
    inner = np.flatnonzero(edge == 0)
    ids = encoded["input_ids"][0]
    first = np.cumsum([0, *map(len, units)])[:-1]
    before, behind = ids[: inner[0]], ids[inner[-1] + 1 :]
    return Tokens(kept_ids, units, first, before, behind, tokenizer.pad_token_id, length)


@torch.no_grad()
def unit_states(
    model: PreTrainedModel, tokens: Tokens, which: Sequence[int], pooling: str, batch_size: int
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """States of the units of the texts `which`, every layer behind the other: numbers (k,) and (k, D) in float32.

    Layer 0 are the embeddings; the last one is what the encoder gives, behind its final norm. A unit's state is that of
    its `first` token or the `mean` over its tokens. Texts of like length are run together.
    """
    model.eval()
    order = sorted(which, key=lambda i: -len(tokens.ids[i]))
    for start in range(0, len(order), batch_size):
        texts = order[start : start + batch_size]
        rows: list[list[int]] = []
        places = []  # of each text's tokens: rows and columns
        for i in texts:
            windows = np.array_split(tokens.ids[i], -(-len(tokens.ids[i]) // tokens.room))
            sizes = [len(part) for part in windows]
            columns = np.concatenate([len(tokens.before) + np.arange(size) for size in sizes])
            places.append((len(rows) + np.repeat(np.arange(len(sizes)), sizes), columns))
            rows += [[*tokens.before, *part.tolist(), *tokens.behind] for part in windows]
        width = max(map(len, rows))
        ids = torch.tensor([row + [tokens.padding] * (width - len(row)) for row in rows])
        used = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        out = model(ids.to(model.device), attention_mask=used.to(model.device), output_hidden_states=True)
        states = torch.cat([*out.hidden_states[:-1], out.last_hidden_state], -1).flatten(0, 1)
        of_units = [
            flat[begin : begin + 1 if pooling == "first" else end]
            for i, flat in zip(texts, (row * width + column for row, column in places), strict=True)
            for begin, end in tokens.units[i]
        ]
        counts = np.array(list(map(len, of_units)))
        owner = torch.from_numpy(np.repeat(np.arange(len(counts)), counts)).to(states.device)
        summed = states.new_zeros(len(counts), states.shape[1])
        summed.index_add_(0, owner, states[torch.from_numpy(np.concatenate(of_units)).to(states.device)])
        numbers = np.concatenate([tokens.first[i] + np.arange(len(tokens.units[i])) for i in texts])
        yield numbers, summed / torch.from_numpy(counts).to(states.device)[:, None]


def control_labels(words: Sequence[str], labels: Labels, seed: int) -> Labels:
    """A class for each word type, drawn as often as the real classes are: what a probe can learn by heart.

    Source: Hewitt and Liang (2019), "Designing and interpreting probes with control tasks".
    """
    types = {word: number for number, word in enumerate(sorted(set(words)))}
    shares = np.bincount(labels.classes, minlength=labels.count) / len(labels.classes)
    drawn = np.random.default_rng(seed).choice(labels.count, size=len(types), p=shares)
    return Labels(drawn[[types[word] for word in words]], labels.count)
