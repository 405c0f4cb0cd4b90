"""Packed token sequences in a memory map, and the order in which an epoch visits them."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch

from threeml_core.foundation.errors import CorpusError, DamagedFileError
from threeml_core.foundation.files import explain_path

_REPEATED_AT_ONCE = 4096
"""Sequences; bounds memory."""


def damaged_cache(path: Path, folder: Path, what: str) -> DamagedFileError:
    """The error that says what is wrong with a file of a prepared folder."""
    return DamagedFileError(f"damaged data cache: {path} {what}; remove the folder {folder} and run again")


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest of uint16 and uint32 that holds every id; a `CorpusError` if neither does."""
    if vocab_size > 2**32:
        raise CorpusError(f"the vocabulary has {vocab_size} tokens; sequence files hold at most 2^32 = {2**32}")
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


class SequenceWriter:
    """Packs token streams into full sequences: <s>, n-2 tokens, </s>; documents end with </s>. Appends to a file.

    The last, incomplete sequence is left out, as no padding ever enters a sequence. `state` and `restore` go on where
    another writer of the same file was.
    """

    def __init__(self, path: Path, n: int, start_id: int, end_id: int, special_ids: Iterable[int], vocab_size: int):
        self._path, self._handle = path, path.open("ab")
        self._n, self._body = n, n - 2
        self._start, self._end = start_id, end_id
        self._dtype = token_dtype(vocab_size)
        self._pending = np.empty(0, self._dtype)
        self._is_special = np.zeros(vocab_size, bool)
        self._is_special[list(special_ids)] = True
        self._limit: int | None = None
        self.n_blocks = 0
        self.counts = np.zeros(vocab_size, np.int64)
        """(vocab_size,) how often each token occurs in the sequences."""
        self.max_special_tokens = 0
        """Special tokens in the sequence that has most."""

    @property
    def is_full(self) -> bool:
        """Has it all the sequences that it may have?"""
        return self.n_blocks == self._limit

    def start(self, more: int | None) -> None:
        """Begin with text that shares no sequence with what came before; it may give `more` sequences, None: all."""
        self._pending = self._pending[:0]
        self._limit = None if more is None else self.n_blocks + more

    def add(self, ids: np.ndarray | list[int], ends_document: bool) -> None:
        """Append tokens; `ends_document` puts </s> behind them. What goes beyond the limit is dropped."""
        tail = [self._end] if ends_document else []
        self._pending = np.concatenate([self._pending, np.asarray(ids, self._dtype), np.asarray(tail, self._dtype)])
        if ends_document or len(self._pending) >= 64 * self._body:
            self._write()

    def _write(self) -> None:
        full = len(self._pending) // self._body
        if self._limit is not None:
            full = min(full, self._limit - self.n_blocks)
        if not full:
            return
        sequences = np.empty((full, self._n), self._dtype)
        sequences[:, 0], sequences[:, -1] = self._start, self._end
        sequences[:, 1:-1] = self._pending[: full * self._body].reshape(full, self._body)
        self._pending = self._pending[full * self._body :].copy()
        self._append(sequences)

    def _append(self, sequences: np.ndarray) -> None:
        self._handle.write(sequences.tobytes())
        self.counts += np.bincount(sequences.ravel(), minlength=len(self.counts))
        self.max_special_tokens = max(self.max_special_tokens, int(self._is_special[sequences].sum(1).max()))
        self.n_blocks += len(sequences)

    def repeat(self, first: int) -> None:
        """Write the sequences from `first` on once more, in their order, over and over up to the limit."""
        assert self._limit is not None and first < self.n_blocks
        self._handle.flush()
        there = np.memmap(self._path, self._dtype, "r", shape=(self.n_blocks, self._n))[first:]
        while not self.is_full:
            place = (self.n_blocks - first) % len(there)
            self._append(there[place : place + min(_REPEATED_AT_ONCE, self._limit - self.n_blocks)])

    def state(self) -> dict[str, np.ndarray]:
        """All that `restore` needs; what was written before is on the disk then."""
        self._sync()
        sizes = np.array([self.n_blocks, self.max_special_tokens, -1 if self._limit is None else self._limit])
        return {"pending": self._pending, "counts": self.counts, "sizes": sizes}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a state of a writer of this file; what was written after it is cut off."""
        self._pending, self.counts = state["pending"], state["counts"]
        self.n_blocks, self.max_special_tokens, limit = map(int, state["sizes"])
        self._limit = None if limit < 0 else limit
        self._handle.truncate(self.n_blocks * self._n * self._dtype.itemsize)

    def _sync(self) -> None:
        self._handle.flush()
        os.fsync(self._handle.fileno())

    def __enter__(self) -> SequenceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._write()
                self._sync()
        finally:
            self._handle.close()


@dataclasses.dataclass(frozen=True)
class TokenSequences:
    """Blocks of n token ids on disk, read on demand.

    Attributes:
        path: raw little-endian integers, sequences one after the other.
        n: tokens a sequence.
        n_blocks: sequences in the file.
        dtype: `uint16` or `uint32`.
        max_special_tokens: special tokens in the sequence that has most.
        vocab_size: every id that is read has to be below; None: not looked at.
    """

    path: Path
    n: int
    n_blocks: int
    dtype: str
    max_special_tokens: int
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        """Refuse a file of another type or size than recorded, by a `DamagedFileError`, or one that may not be read."""
        if self.dtype not in ("uint16", "uint32"):
            raise self._damaged(f"holds {self.dtype!r}, expected uint16 or uint32")
        expected = self.n * self.n_blocks * np.dtype(self.dtype).itemsize
        with explain_path(self.path):
            actual = self.path.stat().st_size if self.path.is_file() else None
            if actual is not None:
                self.path.open("rb").close()
        if actual != expected:
            raise self._damaged("is missing" if actual is None else f"has {actual} bytes instead of {expected}")

    def __len__(self) -> int:
        return self.n_blocks

    def _damaged(self, what: str) -> DamagedFileError:
        return damaged_cache(self.path, self.path.parent, what)

    def __getitem__(self, index: np.ndarray | slice) -> torch.Tensor:
        """(k, n) int64 token ids of the sequences at `index`."""
        return widen(self.stored(index))

    def stored(self, index: np.ndarray | slice) -> torch.Tensor:
        """(k, n) sequences in torch's signed type of the stored size (`widen`); a `DamagedFileError` for a bad id."""
        ids = np.array(np.memmap(self.path, self.dtype, "r", shape=(self.n_blocks, self.n))[index])
        if self.vocab_size is not None and (largest := ids.max(initial=0)) >= self.vocab_size:
            raise self._damaged(f"holds the token id {largest}, but the vocabulary has {self.vocab_size} tokens")
        return torch.from_numpy(ids.view(f"int{8 * ids.itemsize}"))


def widen(stored: torch.Tensor) -> torch.Tensor:
    """Token ids as `TokenSequences.stored` gives them -> int64, on any device."""
    return stored.to(torch.int64).bitwise_and_(2 ** (8 * stored.element_size()) - 1)


@functools.lru_cache(maxsize=1)  # one epoch at a time: a large corpus has a large order
def epoch_order(n_blocks: int, seed: int, epoch: int) -> np.ndarray:
    """(n_blocks,) the order of an epoch; a function of seed and epoch alone, so resuming skips nothing slowly."""
    return np.random.default_rng((seed, epoch)).permutation(n_blocks)


def batch_indices(n_blocks: int, batch_size: int, step: int, seed: int) -> np.ndarray:
    """(batch_size,) sequences of step `step` (from 0): epochs follow one another without a gap."""
    epochs, places = np.divmod(np.arange(step * batch_size, (step + 1) * batch_size), n_blocks)
    return np.concatenate([epoch_order(n_blocks, seed, int(e))[places[epochs == e]] for e in np.unique(epochs)])
