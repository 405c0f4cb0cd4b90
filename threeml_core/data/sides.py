"""Which text is read, how much of it, and on which side a document falls: training or validation."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from threeml_core.config import StudyConfig
from threeml_core.data.corpus import corpus_weights, shards_of
from threeml_core.data.readers import Document
from threeml_core.foundation.errors import CorpusError

SIDES = ("train", "validation")


class Source(NamedTuple):
    """A corpus that is read from its start until it ends or has given `limit` sequences.

    Attributes:
        side: where its documents go that are not held out, and the side whose sequences are counted.
        corpus: as `load_corpus` takes it.
        limit: sequences, at most; None: all.
        weight: share of the training sequences that it gives, repeated if it has to be; None: it gives what it has.
    """

    side: str
    corpus: str
    limit: int | None
    weight: Fraction | None = None


def sources_of(config: StudyConfig) -> list[Source]:
    """What is read for training, corpora with weights one by one, then for validation; a `CorpusError` for bad weights.

    Of K = `max_tokens` // n sequences a corpus of weight w gives w K, rounded so that they are K together (largest
    remainders first).
    """
    n = config.sequence_length
    limit = None if config.max_tokens is None else config.max_tokens // n
    sources = [Source("train", config.corpus, limit)]
    if weights := corpus_weights(config.corpus):
        if limit is None:
            raise CorpusError(
                f"corpus {config.corpus}: weights are shares of max_tokens, which is not set; set it to the tokens of "
                "training text wanted"
            )
        counts = {name: int(weight * limit) for name, weight in weights.items()}
        by_remainder = sorted(weights, key=lambda name: counts[name] - weights[name] * limit)
        for name in by_remainder[: limit - sum(counts.values())]:
            counts[name] += 1
        if none := [name for name, count in counts.items() if not count]:
            raise CorpusError(
                f"corpus {none[0]}: its weight of {float(weights[none[0]]):g} is no sequence of {n} tokens in "
                f"max_tokens={config.max_tokens}; raise one of them"
            )
        sources = [Source("train", name, counts[name], weight) for name, weight in weights.items()]
    if config.validation_corpus:
        if corpus_weights(config.validation_corpus):
            raise CorpusError(f"validation_corpus={config.validation_corpus}: weights are for corpus alone; give none")
        sources.append(Source("validation", config.validation_corpus, limit))
    return sources


def digest(text: str) -> int:
    """64 bits of it."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def held_out(text: str, fraction: float) -> bool:
    """Is the document with this (first piece of) text held out? Equal texts always fall on the same side."""
    return digest(text.strip()) / 2**64 < fraction


def with_side(config: StudyConfig, source: Source, documents: Iterator[Document]) -> Iterator[tuple[str, Document]]:
    """(side, document) of each document of a source; one without text comes without a piece."""
    fraction = 0.0 if config.validation_corpus else config.validation_fraction
    for document in documents:
        first = [*itertools.islice(filter(str.strip, document), 1)]
        is_held_out = bool(first) and held_out(first[0], fraction)
        yield "validation" if is_held_out else source.side, itertools.chain(first, document)


def held_out_documents(config: StudyConfig) -> Iterator[str]:
    """The texts of the validation documents, in their order; a `CorpusError` as `load_corpus` raises it.

    With `max_tokens` a source is read for as many words as it may give tokens: preparation stops near there.
    """
    for source in sources_of(config):
        if config.validation_corpus and source.side == "train":
            continue
        left = None if source.limit is None else source.limit * config.sequence_length
        documents = (document for shard in shards_of(config, source.corpus) for document in shard())
        for side, document in with_side(config, source, documents):
            text = "".join(document)
            if text and side == "validation":
                yield text
            if left is not None:
                left -= len(text.split())
                if left <= 0:
                    break
