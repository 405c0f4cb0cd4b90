"""From corpus to token sequences on disk: split, tokenizer, packing; cached under a fingerprint, written atomically."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from threeml_core.config import DATA_PARAMETERS, LATER, StudyConfig
from threeml_core.data.build import FORMAT, PROGRESS, STATISTICS, build, can_go_on
from threeml_core.data.corpus import corpus_fingerprint, corpus_parts, counts_as_text
from threeml_core.data.sequences import TokenSequences, damaged_cache
from threeml_core.data.sides import SIDES, sources_of
from threeml_core.data.sides import held_out as held_out
from threeml_core.data.sides import held_out_documents as held_out_documents
from threeml_core.data.tokenizer import load_tokenizer
from threeml_core.foundation.errors import CorpusError, DamagedFileError, StudyError
from threeml_core.foundation.files import (
    exclusive,
    explain_full_disk,
    explain_path,
    find_path,
    fingerprint,
    make_folder,
    project_path,
)

_TOKEN_IDS = ("mask_token_id", "pad_token_id", "bos_token_id", "eos_token_id")


@dataclasses.dataclass(frozen=True)
class PreparedData:
    """Token sequences of a corpus, and all that models need to know of their vocabulary."""

    folder: Path
    meta: dict[str, Any]
    train: TokenSequences
    validation: TokenSequences

    @property
    def data_id(self) -> str:
        """Fingerprint of content and settings."""
        return self.meta["data_id"]

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary."""
        return self.meta["vocab_size"]

    @property
    def special_ids(self) -> tuple[int, ...]:
        """Ids that are never corrupted."""
        return tuple(self.meta["special_ids"])

    @property
    def token_ids(self) -> dict[str, int]:
        """Ids of mask, pad, bos (<s>) and eos (</s>), by name, such as `mask_token_id`."""
        return {key: self.meta[key] for key in _TOKEN_IDS}

    @property
    def tokenizer_folder(self) -> Path:
        """The tokenizer, as a Hugging Face folder."""
        return self.folder / "tokenizer"

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer itself."""
        return load_tokenizer(self.tokenizer_folder)

    def train_counts(self) -> np.ndarray:
        """(vocab_size,) occurrences of each token in the training sequences; a `DamagedFileError` if not as written."""
        path = self.folder / "train_counts.npy"
        try:
            counts = np.load(path)
            if counts.shape != (self.vocab_size,) or counts.dtype.kind not in "iu":
                raise ValueError(f"{counts.dtype} of shape {counts.shape}, expected {self.vocab_size} whole numbers")
            return counts
        except (OSError, ValueError, EOFError) as error:
            raise damaged_cache(path, self.folder, f"cannot be read ({error})") from None


def load_prepared(folder: Path) -> PreparedData:
    """Open a prepared folder; a `DamagedFileError` if a file is missing, truncated or not of this format."""
    path = folder / "meta.json"
    try:
        meta = _read_json(path)
        if meta["format"] != FORMAT:
            raise DamagedFileError(
                f"{folder} was prepared in format {meta['format']}, this version reads {FORMAT}: "
                "remove the folder and run again"
            )
        _check_meta(meta)
        list(_was_read(meta))
        shared = {"n": meta["sequence_length"], "dtype": meta["dtype"], "vocab_size": meta["vocab_size"]}
        sequences = {}
        for name in SIDES:
            own = {"n_blocks": meta[name]["blocks"], "max_special_tokens": meta[name]["max_special_tokens"]}
            sequences[name] = TokenSequences(folder / f"{name}.bin", **shared, **own)
        path = folder / "tokenizer" / "tokenizer.json"
        _read_json(path)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged_cache(path, folder, f"cannot be read ({type(error).__name__}: {error})") from None
    return PreparedData(folder, meta, **sequences)


def _read_json(path: Path) -> Any:
    with explain_path(path):
        if not path.is_file():
            raise FileNotFoundError("it is missing")
        return json.loads(path.read_text(encoding="utf-8"))


def _check_meta(meta: dict[str, Any]) -> None:
    """Raise a KeyError, TypeError or ValueError if what is read later is missing, of another kind or out of range."""
    for name in ("data_id", "corpus", "tokenizer"):
        if not isinstance(meta[name], str):
            raise TypeError(f"{name} is no text")
    sizes = {name: meta[name] for name in ("vocab_size", "sequence_length")}
    sizes |= {f"{side} blocks": meta[side]["blocks"] for side in SIDES}
    counts = {f"{side} {name}": meta[side][name] for side in SIDES for name in (*STATISTICS, "max_special_tokens")}
    ids = {name: meta[name] for name in _TOKEN_IDS} | {f"special id {i}": i for i in meta["special_ids"]}
    for name, value in (sizes | counts | ids).items():
        if not isinstance(value, int):
            raise TypeError(f"{name} is no whole number")
        if value < (1 if name in sizes else 0) or name in ids and value >= meta["vocab_size"]:
            raise ValueError(f"{name} is {value}")


def _data_identity(config: StudyConfig, cache: Path) -> dict[str, Any]:
    values = {name: getattr(config, name) for name in DATA_PARAMETERS}
    for name in ("streaming", "shard_seed") if not _streams(config) else ():
        values[name] = LATER[name]
    identity = {"format": FORMAT} | {name: v for name, v in values.items() if name not in LATER or v != LATER[name]}
    identity["corpus"] = corpus_fingerprint(config, config.corpus, cache)
    if config.validation_corpus:
        identity["validation_corpus"] = corpus_fingerprint(config, config.validation_corpus, cache)
        del identity["validation_fraction"]
    if config.tokenizer != "train":
        identity["tokenizer"] = _tokenizer_identity(config.tokenizer)
        del identity["vocab_size"], identity["tokenizer_megabytes"]
    return identity


def _streams(config: StudyConfig) -> bool:
    parts = corpus_parts(config.corpus) + (corpus_parts(config.validation_corpus) if config.validation_corpus else [])
    return config.streaming and any(part.startswith("hub:") for part in parts)


def _tokenizer_identity(name: str) -> str:
    tokenizer = load_tokenizer(name)
    return fingerprint([tokenizer.backend_tokenizer.to_str(), sorted(tokenizer.special_tokens_map.items())], 32)


def prepare_data(
    config: StudyConfig, log: Callable[[str], None] = lambda line: None, any_vocabulary: bool = False
) -> PreparedData:
    """Token sequences of `config.corpus`: from the cache, `<runs_dir>/data/<fingerprint>`, or built in bounded memory.

    Source: section 3.3 (packed full sequences, byte-level BPE). With `any_vocabulary` a prepared folder may have
    another `vocab_size` than is given, as models are built for either. A `CorpusError` says that the corpus or
    tokenizer cannot be used, that a side gets no sequence, or that a prepared folder was made with other settings; a
    `DamagedFileError` that the cache is truncated.
    """
    cache = project_path(config.runs_dir) / "data"
    if is_prepared(config.corpus):
        given = find_path(config.corpus)
        data = load_prepared(given)
        if data.train.n != config.sequence_length:
            raise CorpusError(
                f"{given} was prepared with sequence_length={data.train.n}, asked for {config.sequence_length}: "
                f"set sequence_length to {data.train.n} or prepare the corpus again"
            )
        _refuse_other_settings(config, data, cache, ("vocab_size",) if any_vocabulary else ())
        for line in _was_read(data.meta):
            log(line)
        return data
    sources_of(config)  # bad weights show before anything is read
    identity = _data_identity(config, cache)
    folder = cache / fingerprint(identity)
    with exclusive(cache / f".{folder.name}.lock", f"the data folder {folder}", wait=True):
        if not folder.exists():
            started = time.perf_counter()
            _build(config, identity, folder, log)
            log(f"prepared {folder.name} in {time.perf_counter() - started:.1f} s")
    data = load_prepared(folder)
    for line in itertools.chain(_was_read(data.meta), _without_effect(config, data)):
        log(line)
    return data


def _build(config: StudyConfig, identity: dict[str, Any], folder: Path, log: Callable[[str], None]) -> None:
    """Make the folder in one step; what a stopped build has saved beside it is gone on with, other leftovers go."""
    unfinished = folder.with_name(f".{folder.name}.part")
    if not can_go_on(unfinished):
        shutil.rmtree(unfinished, ignore_errors=True)
    make_folder(unfinished)
    try:
        with explain_full_disk(folder):
            build(config, identity, folder.name, unfinished, log)
            os.replace(unfinished, folder)
    finally:
        if not (unfinished / PROGRESS).exists():
            shutil.rmtree(unfinished, ignore_errors=True)


def _without_effect(config: StudyConfig, data: PreparedData) -> Iterator[str]:
    """Parameters that are given and that others make useless."""
    given = [name for name in DATA_PARAMETERS if config.sources[name] == "given"]
    if "validation_fraction" in given and config.validation_corpus:
        yield f"validation_fraction is not used: the validation text is validation_corpus={config.validation_corpus}"
    if "streaming" in given and config.streaming and not _streams(config):
        yield "streaming is not used: it is for hub datasets"
    if "shard_seed" in given and not _streams(config):
        yield "shard_seed is not used: it is for streamed hub datasets"
    if config.tokenizer != "train":
        if "tokenizer_megabytes" in given:
            yield f"tokenizer_megabytes is not used: the tokenizer is {config.tokenizer}"
        if "vocab_size" in given and config.vocab_size != data.vocab_size:
            yield f"vocab_size is not used for text: the tokenizer {config.tokenizer} has {data.vocab_size:,} tokens"


def _was_read(meta: dict[str, Any]) -> Iterator[str]:
    """Lines for the log: files, documents, words and sequences; what was passed over; documents that repeat."""
    if (read := meta.get("read")) is None:
        read = {}
        yield "the text was prepared by an earlier version, which did not note what files it read"
    for name, about in read.items():
        if about is not None:
            read_of = [_counted(about["files"], "file")] if about["files"] or not about["hub_datasets"] else []
            if about["hub_datasets"]:
                read_of.append(f"the train split of {_counted(about['hub_datasets'], 'hub data set')}")
            over = counts_as_text(about["passed_over"]) or "nothing"
            yield f"{name}: {' and '.join(read_of)} read; passed over: {over}"
    sides = [meta[name] for name in SIDES]
    parts = (" + ".join(f"{side[name]:,}" for side in sides) for name in ("documents", "words", "blocks"))
    counts = "{} documents, {} words, {} sequences".format(*parts)
    yield f"text: {counts} of {meta['sequence_length']} tokens (training + validation)"
    for share in meta.get("shares", ()):
        times = share["sequences"] / share["read"]
        repeats = f", its text {times:.1f} times over" if times > 1 else ""
        yield f"corpus {share['corpus']}: {_counted(share['sequences'], 'training sequence')}{repeats}"
    if empty := meta.get("empty_documents"):
        yield f"passed over: {_counted(empty, 'document')} without text (empty, blank or null)"
    if repeated := sides[0].get("repeated"):
        yield f"{repeated:,} of {sides[0]['documents']:,} training documents are copies of others"
    asked = meta.get("identity", {}).get("vocab_size", 0)  # of a trained tokenizer
    if asked > meta["vocab_size"]:
        yield f"vocabulary: {meta['vocab_size']:,} tokens, as the text gives no more; asked for {asked:,}"
    if also := sides[1].get("also_in_training"):
        yield (
            f"warning: {also:,} of {sides[1]['documents']:,} validation documents are training documents too, so "
            "perplexity is better than it is on new text: take them out of one of the two"
        )


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _refuse_other_settings(config: StudyConfig, data: PreparedData, cache: Path, accepted: tuple[str, ...]) -> None:
    """Parameters given with a prepared folder, but for those `accepted`, have to be those it was made with."""
    meta, identity = data.meta, data.meta.get("identity", {})
    asked_size = (identity.get("vocab_size"),) if meta["tokenizer"] == "train" else ()
    made_with = {
        "validation_corpus": (meta.get("validation_corpus"),),
        "tokenizer": (meta["tokenizer"],),
        "vocab_size": (*asked_size, meta["vocab_size"]),
    }
    names = {**made_with, **dict.fromkeys(DATA_PARAMETERS)}.keys() - {"corpus", "sequence_length"}
    for name in sorted(names, key=[*made_with, *DATA_PARAMETERS].index):
        value, values = getattr(config, name), made_with.get(name) or (identity.get(name, LATER.get(name)),)
        asked = config.sources[name] == "given" or name == "tokenizer" and config.init_encoder
        if not asked or value in values or name in accepted:
            continue
        # the same thing may have two names
        if name == "tokenizer" and "train" not in (value, *values) and _tokenizer_identity(value) == identity.get(name):
            continue
        if name == "validation_corpus" and value and corpus_fingerprint(config, value, cache) == identity.get(name):
            continue
        made = "without it" if values[0] is None else f"with {name}={values[0]!r}"
        raise CorpusError(
            f"{data.folder} was prepared {made}, asked for {value!r}: leave {name} out or prepare the corpus again"
        )


def is_prepared(corpus: str) -> bool:
    """Is it a folder of sequences, instead of text?"""
    try:
        folder = find_path(corpus)
        others = (folder / f"{name}.bin" for name in SIDES)
        return (folder / "meta.json").is_file() and any(path.is_file() for path in others)
    except (OSError, StudyError):  # several corpora are no path; what is wrong with one alone shows when it is read
        return False
