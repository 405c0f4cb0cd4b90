"""From a corpus to packed sequences in a folder; a build that was stopped goes on where it was saved."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from threeml_core.config import StudyConfig
from threeml_core.data.corpus import Shard, describe_corpus, shards_of
from threeml_core.data.readers import Document, in_chunks
from threeml_core.data.sequences import SequenceWriter, token_dtype
from threeml_core.data.sides import SIDES, Source, digest, sources_of, with_side
from threeml_core.data.tokenizer import Encoder, boundary_ids, limited, load_tokenizer, train_tokenizer
from threeml_core.foundation.errors import CorpusError
from threeml_core.foundation.files import atomic_file, write_json

FORMAT = 1
"""Raised when the files of a prepared folder change their meaning; what is noted of the text may be absent."""

PROGRESS = "progress.npz"
"""In a folder that is not finished: how far it is."""

STATISTICS = ("documents", "characters", "words", "tokens")

_SAVE_SECONDS = 30.0
"""A stop loses at most so much work, and the document that is being read."""


class _Piece(NamedTuple):
    """A piece of a document, the side it is on (None: it has no text), and (shard, documents read) once it ends."""

    side: str | None
    text: str
    ends: bool
    place: tuple[int, int]


class _Builder:
    """Writers, counts and place of a build; `save` keeps all of it but the tokenizer, which stands beside."""

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerFast, n: int) -> None:
        start, end = boundary_ids(tokenizer)
        assert start is not None and end is not None
        self.folder, self.n, self.start_id, self.end_id = folder, n, start, end
        self.vocab_size = len(tokenizer)
        self.special_ids = sorted({*tokenizer.all_special_ids, start, end})
        self.source, self.place = 0, (0, 0)
        self.first = 0
        """Training sequences from before the source."""
        self.given: list[dict[str, Any]] = []
        """Of each source with a weight: its training sequences, and those before it is repeated."""
        self.statistics = {side: dict.fromkeys(STATISTICS, 0) for side in SIDES}
        self.empty_documents = 0

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Inside, its files are open; afterwards they are whole if nothing failed."""
        with contextlib.ExitStack() as stack:
            arguments = (self.n, self.start_id, self.end_id, self.special_ids, self.vocab_size)
            writers = ((side, SequenceWriter(self.folder / f"{side}.bin", *arguments)) for side in SIDES)
            self.writers = {side: stack.enter_context(writer) for side, writer in writers}
            # 64 bits of each document, by the words of its first piece
            self.digests = {side: stack.enter_context((self.folder / f"{side}.digests").open("ab")) for side in SIDES}
            yield

    def save(self) -> None:
        """Keep everything, at the end of a document."""
        for handle in self.digests.values():
            handle.flush()
            os.fsync(handle.fileno())
        names = ("source", "place", "first", "given", "statistics", "empty_documents")
        about = {name: getattr(self, name) for name in names}
        about["digests"] = {side: handle.tell() for side, handle in self.digests.items()}
        states: dict[str, Any] = {f"{side}.{k}": v for side in SIDES for k, v in self.writers[side].state().items()}
        with atomic_file(self.folder / PROGRESS) as temporary, temporary.open("wb") as file:
            np.savez(file, about=np.array(json.dumps(about)), **states)

    def restore(self) -> None:
        """Go on from what was saved."""
        with np.load(self.folder / PROGRESS) as states:
            about = json.loads(str(states["about"]))
            for side, size in about.pop("digests").items():
                self.digests[side].seek(size)  # else `tell` says where it ended before
                self.digests[side].truncate()
                self.writers[side].restore({key: states[f"{side}.{key}"] for key in ("pending", "counts", "sizes")})
        for name, value in about.items():
            setattr(self, name, value)

    def add(self, piece: _Piece, ids: np.ndarray, begins: bool) -> None:
        """Count a piece and write its tokens."""
        if piece.side is None:
            self.empty_documents += 1
            return
        words, about = piece.text.split(), self.statistics[piece.side]
        if begins:
            self.digests[piece.side].write(digest(" ".join(words)).to_bytes(8, "little"))
        about["characters"] += len(piece.text)
        about["words"] += len(words)
        about["tokens"] += len(ids)
        about["documents"] += piece.ends
        self.writers[piece.side].add(ids, piece.ends)


def can_go_on(folder: Path) -> bool:
    """Was a build of this folder saved, and is what it needs there?"""
    try:
        with zipfile.ZipFile(folder / PROGRESS) as saved:
            return saved.testzip() is None and (folder / "tokenizer" / "tokenizer.json").is_file()
    except (OSError, zipfile.BadZipFile):
        return False


def build(
    config: StudyConfig, identity: dict[str, Any], data_id: str, folder: Path, log: Callable[[str], None]
) -> None:
    """Fill a folder with tokenizer, sequences, counts and `meta.json`; go on if a build of it was saved."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    begun = time.monotonic()
    corpora = {"corpus": config.corpus, "validation_corpus": config.validation_corpus}
    read = {name: corpus and describe_corpus(corpus) for name, corpus in corpora.items()}
    sources, goes_on = sources_of(config), can_go_on(folder)
    if not goes_on:
        _make_tokenizer(config, sources, log).save_pretrained(folder / "tokenizer")
    tokenizer = load_tokenizer(folder / "tokenizer")
    builder = _Builder(folder, tokenizer, config.sequence_length)
    with builder.opened():
        if goes_on:
            builder.restore()
            log(f"the preparation goes on behind {_tokens(builder) / 1e6:.1f} M tokens")
        else:
            builder.writers[sources[0].side].start(sources[0].limit)
        _read(config, sources, builder, Encoder(tokenizer), begun, log)
    statistics, writers = builder.statistics, builder.writers
    for side in SIDES:
        if writers[side].n_blocks == 0:
            (folder / PROGRESS).unlink(missing_ok=True)  # there is nothing to go on to
            _refuse_empty(config, side, statistics[side])
        more = {"blocks": writers[side].n_blocks, "max_special_tokens": writers[side].max_special_tokens}
        statistics[side] |= more
    train, validation = (np.fromfile(folder / f"{side}.digests", "<u8") for side in SIDES)
    statistics["train"]["repeated"] = len(train) - len(np.unique(train))
    statistics["validation"]["also_in_training"] = int(np.isin(validation, train).sum())
    np.save(folder / "train_counts.npy", writers["train"].counts)
    meta = {
        "format": FORMAT,
        "data_id": data_id,
        "identity": identity,
        **corpora,
        "tokenizer": config.tokenizer,
        "vocab_size": builder.vocab_size,
        "sequence_length": builder.n,
        "dtype": token_dtype(builder.vocab_size).name,
        "special_ids": builder.special_ids,
        "mask_token_id": tokenizer.mask_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": builder.start_id,
        "eos_token_id": builder.end_id,
        "read": read,
        "empty_documents": builder.empty_documents,
        **statistics,
        **({"shares": builder.given} if builder.given else {}),
    }
    write_json(folder / "meta.json", meta)
    for name in (PROGRESS, *(f"{side}.digests" for side in SIDES)):
        (folder / name).unlink(missing_ok=True)


def _make_tokenizer(config: StudyConfig, sources: Sequence[Source], log: Callable[[str], None]) -> Any:
    """The tokenizer that is named, or one trained on the start of the training text, of weighted corpora by weight."""
    if config.tokenizer != "train":
        return load_tokenizer(config.tokenizer)
    log(f"training a byte-level BPE tokenizer of {config.vocab_size} tokens")

    def sample(source: Source) -> Iterator[str]:
        documents = (document for shard in shards_of(config, source.corpus) for document in shard())
        text = (p for side, d in with_side(config, source, documents) if side == "train" for p in d)
        return limited(text, config.tokenizer_megabytes * (source.weight or 1))

    texts = itertools.chain.from_iterable(sample(source) for source in sources if source.side == "train")
    return train_tokenizer(texts, config.vocab_size, config.sequence_length)


def _read(
    config: StudyConfig,
    sources: Sequence[Source],
    builder: _Builder,
    encode: Encoder,
    begun: float,
    log: Callable[[str], None],
) -> None:
    """Read every source from the builder's place on, to its end or limit."""
    saved, reported = begun, time.monotonic()
    while builder.source < len(sources):
        source = sources[builder.source]
        writer, begins = builder.writers[source.side], True
        for chunk in in_chunks(_pieces(config, source, builder.place), lambda piece: len(piece.text) + 1):
            for piece, ids in zip(chunk, encode([piece.text for piece in chunk]), strict=True):
                builder.add(piece, ids, begins)
                begins = piece.ends
                if writer.is_full:
                    break
            if writer.is_full:
                break
            if begins and time.monotonic() > saved + _SAVE_SECONDS:
                builder.place = chunk[-1].place
                builder.save()
                saved = time.monotonic()
            if time.monotonic() > reported + 10:
                log(f"tokenised {_tokens(builder) / 1e6:.1f} M tokens")
                reported = time.monotonic()
        if source.weight is not None:
            if writer.n_blocks == builder.first:
                raise CorpusError(
                    f"corpus {source.corpus}: its training text is shorter than a sequence of {builder.n} tokens; "
                    "leave it out, or give more text"
                )
            own = writer.n_blocks - builder.first
            writer.repeat(builder.first)
            about = {"corpus": source.corpus, "sequences": source.limit, "read": own}
            builder.given.append(about | {"weight": float(source.weight)})
        builder.source, builder.place, builder.first = builder.source + 1, (0, 0), builder.writers["train"].n_blocks
        if builder.source < len(sources):
            following = sources[builder.source]
            builder.writers[following.side].start(following.limit)


def _pieces(config: StudyConfig, source: Source, place: Sequence[int]) -> Iterator[_Piece]:
    """The pieces of a source behind so many documents of its shard `place[0]`."""
    shards: list[Shard] = shards_of(config, source.corpus)
    for index in range(place[0], len(shards)):
        done = place[1] if index == place[0] else 0
        documents = itertools.islice(shards[index](), done, None)
        for number, (side, document) in enumerate(with_side(config, source, documents), done + 1):
            is_empty = True
            for text, ends in _with_ends(document):
                is_empty = False
                yield _Piece(side, text, ends, (index, number))
            if is_empty:
                yield _Piece(None, "", True, (index, number))


def _with_ends(document: Document) -> Iterator[tuple[str, bool]]:
    """(piece, ends its document) of each."""
    for piece, following in itertools.pairwise(itertools.chain(document, [""])):
        yield (piece, False) if following else (piece.rstrip("\n"), True)  # </s> ends the document


def _tokens(builder: _Builder) -> int:
    return sum(about["tokens"] for about in builder.statistics.values())


def _refuse_empty(config: StudyConfig, name: str, statistics: dict[str, int]) -> None:
    if statistics["documents"] == 0 and name == "validation":
        raise CorpusError(
            f"the validation set is empty: no document fell into validation_fraction={config.validation_fraction}; "
            "raise it, set validation_corpus, or set document_separator so that there are more documents"
            + (f" than in max_tokens={config.max_tokens}" if config.max_tokens else "")
        )
    if statistics["documents"] == 0:
        raise CorpusError(f"corpus {config.corpus}: no text in it")
    raise CorpusError(
        f"the {name} text is shorter than a sequence: {statistics['tokens']} tokens in {statistics['documents']} "
        f"documents, sequence_length={config.sequence_length}; give more text or shorter blocks"
        + (", or raise validation_fraction" if name == "validation" else "")
    )
