"""Tokenised tasks: each is tokenised once, kept on disk, and read as a memory map; length-bucketed batches."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from threeml_core.data.tokenizer import tokenizer_fingerprint
from threeml_core.foundation.errors import DamagedFileError
from threeml_core.foundation.files import atomic_folder, exclusive, fingerprint, write_json
from threeml_core.glue.readers import Split, TaskData

FORMAT = 1
"""Raised when the files of an encoded task change their meaning."""

_ROWS_AT_ONCE = 10_000
_BUCKET_BATCHES = 50  # batches whose examples are sorted by length together


@dataclasses.dataclass(frozen=True)
class EncodedSplit:
    """Token ids of N examples, one behind the other.

    Attributes:
        ids: (tokens,) token ids.
        type_ids: (tokens,) segment ids, or None where all are 0.
        offsets: (N + 1,) example i is `ids[offsets[i] : offsets[i + 1]]`.
        labels: (N,) class ids or numbers.
    """

    ids: np.ndarray
    type_ids: np.ndarray | None
    offsets: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to another process by the name of its folder."""
        if isinstance(self.ids, np.memmap) and self.ids.filename is not None:
            return _open, (Path(self.ids.filename).parent,)
        return EncodedSplit, (self.ids, self.type_ids, self.offsets, self.labels)

    @property
    def lengths(self) -> np.ndarray:
        """(N,) tokens of each example."""
        return np.diff(self.offsets)

    def batch(self, index: np.ndarray, pad_token_id: int, pad_to: int | None = None) -> dict[str, np.ndarray]:
        """The (B,) examples `index`, padded to the longest of them (and to `pad_to`), as a model takes them.

        Returns:
            (B, longest) `input_ids`; `attention_mask` if anything is padded; `token_type_ids` if not all are 0.
        """
        lengths = self.offsets[index + 1] - self.offsets[index]
        width = max(int(lengths.max()), pad_to or 0)
        used = np.arange(width) < lengths[:, None]
        tokens = np.concatenate([np.arange(self.offsets[i], self.offsets[i + 1]) for i in index])
        result = {"input_ids": np.full((len(index), width), pad_token_id, np.int64)}
        result["input_ids"][used] = self.ids[tokens]
        if not used.all():
            result["attention_mask"] = used.astype(np.int64)
        if self.type_ids is not None:
            result["token_type_ids"] = np.zeros((len(index), width), np.int64)
            result["token_type_ids"][used] = self.type_ids[tokens]
        return result


@dataclasses.dataclass(frozen=True)
class EncodedTask:
    """A tokenised task: splits by name (`train`, `validation`, `validation_<tag>`) and their fingerprint."""

    data_id: str
    splits: dict[str, EncodedSplit]


def encode_task(
    data: TaskData, tokenizer: PreTrainedTokenizerFast, max_length: int, cache: Path, segments: bool = False
) -> EncodedTask:
    """Tokenise all splits of a task into the folder `cache`, or open them if the same was done before.

    A text has at most `max_length` tokens, special ones included; of a pair the longer one is cut first. With
    `segments` the tokenizer's segment ids are kept, for a model that tells the two texts of a pair apart by them. A
    DamagedFileError: the cached files cannot be read.
    """
    identity = {"format": FORMAT, "text": data.fingerprint(), "tokenizer": tokenizer_fingerprint(tokenizer)}
    identity |= {"max_length": max_length, "segments": segments}
    folder = cache / f"{data.task.name}-{fingerprint(identity)}"
    with exclusive(cache / f".{folder.name}.lock", f"the data folder {folder}", wait=True):
        if not folder.exists():
            with atomic_folder(folder) as temporary:
                for name, split in data.splits.items():
                    _encode(split, tokenizer, max_length, segments, temporary / name)
                write_json(temporary / "meta.json", {**identity, "task": data.task.name})
    try:
        json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        splits = {name: _open(folder / name) for name in data.splits}
    except (OSError, ValueError, EOFError) as error:
        raise DamagedFileError(
            f"damaged data cache: {folder} cannot be read ({type(error).__name__}: {error}); remove it and run again"
        ) from None
    return EncodedTask(fingerprint(identity), splits)


def _encode(split: Split, tokenizer: PreTrainedTokenizerFast, max_length: int, segments: bool, folder: Path) -> None:
    folder.mkdir()
    ids: list[np.ndarray] = []
    type_ids: list[np.ndarray] = []
    lengths: list[int] = []
    for start in range(0, len(split), _ROWS_AT_ONCE):
        columns = [list(column) for column in zip(*split.texts[start : start + _ROWS_AT_ONCE], strict=True)]
        encoded = tokenizer(*columns, truncation=True, max_length=max_length, return_token_type_ids=True)
        lengths += [len(row) for row in encoded["input_ids"]]
        ids.append(np.concatenate([np.array(row, np.int32) for row in encoded["input_ids"]]))
        type_ids.append(np.concatenate([np.array(row, np.int8) for row in encoded["token_type_ids"]]))
    np.save(folder / "ids.npy", np.concatenate(ids))
    if segments and any(part.any() for part in type_ids):
        np.save(folder / "type_ids.npy", np.concatenate(type_ids))
    np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(lengths)]))
    np.save(folder / "labels.npy", split.labels)


def _open(folder: Path) -> EncodedSplit:
    ids, offsets, labels = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("ids", "offsets", "labels"))
    path = folder / "type_ids.npy"
    type_ids = np.load(path, mmap_mode="r") if path.exists() else None
    split = EncodedSplit(ids, type_ids, np.array(offsets), np.array(labels))
    if len(split.offsets) != len(split) + 1 or split.offsets[-1] != len(split.ids):
        raise ValueError("its arrays do not fit each other")
    return split


def training_batches(split: EncodedSplit, batch_size: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
    """Indices of the batches of an epoch: shuffled, then neighbours of similar length, batches in random order.

    Examples are sorted by length inside chunks of 50 batches only, so what meets in a batch still varies by epoch.
    """
    rng = np.random.default_rng((seed, epoch))
    order = rng.permutation(len(split))
    chunk = batch_size * _BUCKET_BATCHES
    lengths = split.lengths
    batches = []
    for start in range(0, len(order), chunk):
        part = order[start : start + chunk]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += [part[i : i + batch_size] for i in range(0, len(part), batch_size)]
    yield from (batches[place] for place in rng.permutation(len(batches)))


def evaluation_batches(split: EncodedSplit, batch_size: int) -> Iterator[np.ndarray]:
    """Indices of all examples, longest first, so that memory runs out at once or never."""
    order = np.argsort(-split.lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
