"""Hidden states of [MASK] tokens: which positions are looked at, and their states on disk or in memory.

Source: section 4.2 ("hidden representations at masked positions corresponding to the 1000 most frequent tokens",
5M a layer). Open in the paper and parameters here: the text, the seed, and whether the last layer is taken before or
behind the final LayerNorm of a pre-LN model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import json
import os
import shutil
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from threeml_core.config import StudyConfig
from threeml_core.data.prepare import PreparedData
from threeml_core.data.sequences import TokenSequences
from threeml_core.foundation.errors import CorpusError, DamagedFileError, ParameterError, StudyError
from threeml_core.foundation.files import atomic_file, explain_full_disk, fingerprint, make_folder, write_json
from threeml_core.foundation.log import Log, print_line
from threeml_core.information.clustering import Array, Rows
from threeml_core.masking import CorruptedBatch, Masking, corrupt
from threeml_core.training.evaluation import masking_of

_GROUP = 256  # sequences corrupted at once; the unit of resuming
_SAVE_SECONDS = 20.0
_HALF = np.dtype(np.float16)
_HEADER = 128  # bytes before the states in a .npy file of two dimensions


@dataclasses.dataclass(frozen=True)
class Sample:
    """The [MASK] positions that are looked at: a function of text, corruption and seed, the same for every model.

    Sequences lie evenly over the text and are visited in random order, so any run of states is itself a sample.

    Attributes:
        sequences: the text.
        order: indices of the sequences, as they are visited.
        masking: the corruption, with exact counts.
        is_top: (vocab,) bool: may this be the original token?
        seed: of order and corruption.
        limit: number of states at most.
        tokens: (N,) int32 original tokens, in the order of the states.
        offsets: number of states before each group of sequences, and of all.
    """

    sequences: TokenSequences
    order: np.ndarray
    masking: Masking
    is_top: Tensor
    seed: int
    limit: int
    tokens: np.ndarray = dataclasses.field(init=False)
    offsets: tuple[int, ...] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        tokens, offsets = [np.empty(0, np.int32)], [0]
        for group in range(-(-len(self.order) // _GROUP)):
            _, _, found = self._corrupted(group)
            tokens.append(found[: self.limit - offsets[-1]])
            offsets.append(offsets[-1] + len(tokens[-1]))
            if offsets[-1] == self.limit:
                break
        object.__setattr__(self, "tokens", np.concatenate(tokens))
        object.__setattr__(self, "offsets", tuple(offsets))

    @property
    def fingerprint(self) -> str:
        """Two models with the same one were asked about the same [MASK]s in the same corrupted text."""
        counts = repr(self.masking.counts(self.sequences.n)).encode()
        return hashlib.sha256(self.tokens.tobytes() + self.order.tobytes() + counts).hexdigest()[:12]

    def groups(self, first: int = 0) -> Iterator[tuple[int, CorruptedBatch, Tensor]]:
        """From group `first` on: states before it, corrupted sequences, (sequences, n_de) bool: which [MASK]s count."""
        for group in range(first, len(self.offsets) - 1):
            batch, chosen, _ = self._corrupted(group)
            size = self.offsets[group + 1] - self.offsets[group]
            yield self.offsets[group], batch, chosen & (chosen.flatten().cumsum(0).view_as(chosen) <= size)

    def _corrupted(self, group: int) -> tuple[CorruptedBatch, Tensor, np.ndarray]:
        """Corrupted sequences, which of their [MASK]s hide a frequent token, and those tokens."""
        draw = np.random.SeedSequence((self.seed, group)).generate_state(2, np.uint32)
        generator = torch.Generator().manual_seed(int(draw[0]) << 32 | int(draw[1]))
        batch = corrupt(self.sequences[self.order[group * _GROUP : (group + 1) * _GROUP]], self.masking, generator)
        assert isinstance(batch, CorruptedBatch)
        original = batch.labels.gather(1, batch.mask_idx)
        chosen = self.is_top[original]
        return batch, chosen, original[chosen].numpy().astype(np.int32)


def draw_sample(config: StudyConfig, data: PreparedData) -> Sample:
    """Choose sequences evenly over the text until `states_per_layer` [MASK]s of frequent tokens are found, or all.

    The corruption is that of the model's own pre-training, with exact counts; of a schedule, that of its first step.

    Raises:
        StudyError: no [MASK] hides one of the `top_tokens` most frequent tokens.
    """
    sequences = data.train if config.states_text == "train" else data.validation
    masking = dataclasses.replace(masking_of(config, data), mask_counts="exact")
    masking.check(sequences.n, sequences.max_special_tokens)
    counts = data.train_counts()
    counts[list(data.special_ids)] = 0
    top = np.argsort(-counts, kind="stable")[: config.top_tokens]
    top = top[counts[top] > 0]
    is_top = torch.zeros(data.vocab_size, dtype=torch.bool)
    is_top[top] = True
    expected = masking.counts(sequences.n).masked * counts[top].sum() / counts.sum()  # in a sequence
    blocks_wanted = 1.1 * config.states_per_layer / expected
    while True:
        count = min(len(sequences), int(blocks_wanted) + 1)
        evenly = np.linspace(0, len(sequences) - 1, count).round().astype(np.int64)
        order = np.random.default_rng(config.states_seed).permutation(evenly)
        sample = Sample(sequences, order, masking, is_top, config.states_seed, config.states_per_layer)
        if len(sample.tokens) == config.states_per_layer or count == len(sequences):
            break
        blocks_wanted *= 1.5
    if not len(sample.tokens):
        raise CorpusError(
            f"no [MASK] of the {config.states_text} text ({len(sequences)} sequences) hides one of the top_tokens="
            f"{config.top_tokens} most frequent tokens: raise top_tokens, or give more text"
        )
    return sample


@dataclasses.dataclass(frozen=True)
class Forward:
    """How one of the three models is run over a sample: so many sequences at a time, with bfloat16 autocast or not.

    With `final_norm` the last layer of a pre-LN model is taken behind the final LayerNorm.
    """

    model: PreTrainedModel
    sample: Sample
    final_norm: bool = True
    batch_size: int = 32
    bf16: bool = False

    @property
    def device(self) -> torch.device:
        """The model's."""
        return self.model.device

    def fingerprint(self) -> str:
        """Of all that determines the states: weights, sample, norm, precision."""
        weights = 0
        for tensor in self.model.state_dict().values():
            weights = zlib.crc32(tensor.float().cpu().contiguous().numpy().data, weights)
        return fingerprint([weights, self.sample.fingerprint, self.final_norm, self.bf16, self.device.type])

    @torch.no_grad()
    def _states(self, batch: CorruptedBatch) -> list[Tensor]:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            return cast(Any, self.model).mask_states(batch.to(self.device), self.final_norm)

    def widths(self) -> list[int]:
        """Width of every layer of the model; layer 0 is what comes in."""
        self.model.eval()
        _, batch, _ = next(self.sample.groups())
        return [states.shape[-1] for states in self._states(batch.map(lambda tensor: tensor[:1]))]

    def run(self, layers: Sequence[int], first: int = 0) -> Iterator[tuple[int, list[Tensor]]]:
        """For each group of sequences from `first` on: states before it, and (k, d) float16 states of `layers`."""
        self.model.eval()
        for offset, batch, chosen in self.sample.groups(first):
            parts: list[list[Tensor]] = [[] for _ in layers]
            for part, counts in zip(batch.split(self.batch_size), chosen.split(self.batch_size), strict=True):
                states = self._states(part)
                counts = counts.to(self.device)
                for found, layer in zip(parts, layers, strict=True):
                    found.append(states[layer][counts].half())
            whole = [torch.cat(found) for found in parts]
            for layer, rows in zip(layers, whole, strict=True):
                if not torch.isfinite(rows).all():
                    raise StudyError(
                        f"layer {layer}: a state is not finite in float16 (largest number: 65,504); the model has "
                        "diverged, or leave this layer out (state_layers)"
                    )
            yield offset, whole


@dataclasses.dataclass(frozen=True)
class LayerFile:
    """States of one layer on disk: a `.npy` file of float16, which `numpy.load(path, mmap_mode="r")` opens as well.

    It is read in pieces instead of mapped, as mapped pages would count as this process's memory. Neighbours come from
    the same few sequences of text, whose order is random.
    """

    path: Path
    shape: tuple[int, int]
    neighbours: int = 64

    def read(self, index: np.ndarray) -> Tensor:
        """(k, d) float16; places in a row are read at once."""
        width = self.shape[1]
        rows = np.empty((len(index), width), _HALF)
        ends = [*(np.flatnonzero(np.diff(index) != 1) + 1).tolist(), len(index)]
        start = 0
        try:
            with self.path.open("rb") as handle:
                for end in ends:
                    handle.seek(self.place(int(index[start])))
                    if handle.readinto(rows[start:end].data.cast("B")) < rows[start:end].nbytes:
                        raise OSError("it is truncated")
                    start = end
        except OSError as error:
            raise DamagedFileError(
                f"damaged states: {self.path} cannot be read ({error}); remove its folder and run again"
            ) from None
        return torch.from_numpy(rows)

    def place(self, row: int) -> int:
        """Byte at which a row begins."""
        return _HEADER + row * self.shape[1] * _HALF.itemsize

    def create(self) -> None:
        """Make the file in its full length, without contents."""
        np.lib.format.open_memmap(self.path, "w+", _HALF, self.shape)

    def is_whole(self) -> bool:
        """Has the file the shape and the length it should have?"""
        try:
            header = np.load(self.path, mmap_mode="r")
        except (OSError, ValueError):
            return False
        return (header.shape, header.dtype, header.offset) == (self.shape, _HALF, _HEADER)

    def checksum(self) -> int:
        """CRC-32 of the states."""
        value, rows = 0, max(1, 2**24 // (self.shape[1] * _HALF.itemsize))
        for start in range(0, self.shape[0], rows):
            some = self.read(np.arange(start, min(start + rows, self.shape[0])))
            value = zlib.crc32(some.numpy().data, value)
        return value


def collect_states(
    forward: Forward, layers: Sequence[int], folder: Path, log: Log = print_line
) -> dict[int, LayerFile]:
    """Write the states of `layers` to disk, one file per layer; go on where an interrupted call stopped.

    Memory stays bounded by one group of sequences, whatever N is. The folder is of this model and sample alone; it
    holds `layer-<number>.npy`, the tokens in `tokens.npy`, and checksums in `states.json`, which are checked if they
    were there before.

    Raises:
        ParameterError: the model has no such layer.
        DamagedFileError: a file is truncated or was changed.
        StudyError: the folder holds states of another model or sample; too little disk, before anything is written.
    """
    size, widths = len(forward.sample.tokens), forward.widths()
    refuse_absent(layers, len(widths) - 1, type(forward.model).__name__)
    identity = {"states": forward.fingerprint(), "layers": list(layers)}
    files = {layer: LayerFile(folder / f"layer-{layer:02d}.npy", (size, widths[layer])) for layer in layers}
    done = folder / "states.json"
    if done.exists():
        _verify(done, files, identity)
        return files
    make_folder(folder)
    progress_file = folder / "progress.json"
    group, checksums = _progress(progress_file, files, identity, len(forward.sample.offsets) - 1)
    _check_disk(folder, files, log)
    if group == 0:
        for file in files.values():
            with explain_full_disk(file.path):
                file.create()
    else:
        log(f"states: resuming after {forward.sample.offsets[group]:,} of {size:,}")
    with contextlib.ExitStack() as stack:
        handles = {k: stack.enter_context(file.path.open("r+b")) for k, file in files.items()}
        for layer, file in files.items():
            handles[layer].seek(file.place(forward.sample.offsets[group]))
        saved = time.monotonic()
        for offset, states in forward.run(layers, group):
            for layer, rows in zip(layers, states, strict=True):
                content = rows.cpu().numpy().data
                with explain_full_disk(files[layer].path):
                    handles[layer].write(content)
                checksums[layer] = zlib.crc32(content, checksums[layer])
            group += 1
            last = group == len(forward.sample.offsets) - 1
            if time.monotonic() - saved > _SAVE_SECONDS or last:
                for layer, handle in handles.items():
                    with explain_full_disk(files[layer].path):
                        handle.flush()
                        os.fsync(handle.fileno())
                write_json(progress_file, {**identity, "group": group, "checksums": checksums})
                log(f"states: {offset + len(states[0]):,} of {size:,}")
                saved = time.monotonic()
    with atomic_file(folder / "tokens.npy") as temporary, temporary.open("wb") as tokens:
        np.save(tokens, forward.sample.tokens)
    write_json(done, {**identity, "checksums": checksums})
    progress_file.unlink()
    return files


def refuse_absent(layers: Sequence[int], last: int, model: str) -> None:
    """Raise a `ParameterError` if one of `layers` is behind the model's last."""
    if absent := [layer for layer in layers if layer > last]:
        raise ParameterError(
            f"state_layers: the [MASK]s of {model} pass layers 0 to {last}, there is no layer {absent[0]}; those of a "
            "3ML model are its decoder's, 0 is what comes in"
        )


def _progress(
    path: Path, files: dict[int, LayerFile], identity: dict[str, Any], groups: int
) -> tuple[int, dict[int, int]]:
    """Groups done and checksums so far; from the start if what is there is of no use."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        content = json.loads(path.read_text(encoding="utf-8"))
        checksums = {int(layer): int(value) for layer, value in content["checksums"].items()}
        same = all(content[key] == value for key, value in identity.items())
        if same and 0 <= content["group"] <= groups and all(file.is_whole() for file in files.values()):
            return int(content["group"]), {layer: checksums[layer] for layer in files}
    return 0, dict.fromkeys(files, 0)


def _check_disk(folder: Path, files: dict[int, LayerFile], log: Log) -> None:
    needed = sum(rows * width * _HALF.itemsize for rows, width in (file.shape for file in files.values()))
    log(f"states: {len(files)} layers, {next(iter(files.values())).shape[0]:,} states each, {needed / 1e9:.2f} GB")
    # files of an interrupted call are as long as they will be, but only what was written takes disk
    there = sum(512 * file.path.stat().st_blocks for file in files.values() if file.path.exists())
    free = shutil.disk_usage(folder).free
    if needed > free + there:
        raise StudyError(
            f"too little disk: the states take {needed / 1e9:.2f} GB and {folder} has {free / 1e9:.2f} GB free; lower "
            "states_per_layer, choose state_layers, set runs_dir to another disk, or states_store to memory"
        )


def _verify(done: Path, files: dict[int, LayerFile], identity: dict[str, Any]) -> None:
    advice = f"remove the folder {done.parent} and run again"
    try:
        content = json.loads(done.read_text(encoding="utf-8"))
        expected = {int(layer): value for layer, value in content["checksums"].items()}
        found = {key: content[key] for key in identity}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DamagedFileError(f"damaged states: {done} cannot be read ({reason}); {advice}") from None
    if found != identity:
        raise StudyError(f"{done.parent} holds states of another model, sample or layers: give another folder")
    for layer, file in files.items():
        if not file.is_whole():
            raise DamagedFileError(f"damaged states: {file.path} is missing or truncated; {advice}")
        if file.checksum() != expected[layer]:
            raise DamagedFileError(f"damaged states: {file.path} has changed since it was written; {advice}")


def states_in_memory(forward: Forward, layers: Sequence[int], log: Log = print_line) -> Iterator[tuple[int, Rows]]:
    """Layer after layer, from the memory of the model's device: as many at once as fit, the model run again for more.

    Nothing is written. The states are the same as those of `collect_states`.

    Raises:
        ParameterError: the model has no such layer.
        StudyError: the states of a single layer do not fit.
    """
    size, widths = len(forward.sample.tokens), forward.widths()
    refuse_absent(layers, len(widths) - 1, type(forward.model).__name__)
    needed = max(size * widths[layer] * _HALF.itemsize for layer in layers)
    free = _free_memory(forward.device)
    at_once = int(0.6 * free / needed)  # the rest is for the model and for clustering
    if at_once == 0:
        raise StudyError(
            f"too little memory: the states of a layer take {needed / 1e9:.2f} GB and 60% of the {free / 1e9:.2f} GB "
            f"free on {forward.device} are used; lower states_per_layer, or set states_store to disk"
        )
    for start in range(0, len(layers), at_once):
        some = layers[start : start + at_once]
        log(f"states: layers {', '.join(map(str, some))} in memory, {size:,} states each")
        store = [torch.empty(size, widths[k], dtype=torch.float16, device=forward.device) for k in some]
        for offset, states in forward.run(some):
            for place, found in enumerate(states):
                store[place][offset : offset + len(found)] = found
        del states, found
        for layer in some:
            yield layer, Array(store.pop(0), LayerFile.neighbours)


def _free_memory(device: torch.device) -> int:
    """Bytes."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()  # what earlier models have left counts as taken otherwise
        return torch.cuda.mem_get_info(device)[0]
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable")))
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # not Linux: what is installed
