"""Corpora: what `corpus` names, as documents in an order that can be gone on with; their shares and fingerprints."""

from __future__ import annotations

import collections
import functools
import json
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from threeml_core.config import StudyConfig
from threeml_core.data.bundled import bundled_articles, bundled_file
from threeml_core.data.folders import FORMATS, find_texts, format_of
from threeml_core.data.hub import hub_documents, hub_version, stream_shards, stream_version
from threeml_core.data.readers import Document, file_documents, pieces
from threeml_core.foundation.errors import CorpusError, StudyError
from threeml_core.foundation.files import exclusive, find_path, fingerprint, sha256_file, write_json

Shard = Callable[[], Iterator[Document]]
"""Gives the documents of a part of a corpus, such as a file; always the same ones in the same order."""


def corpus_parts(corpus: str) -> list[str]:
    """`"a,b"` or `"a=0.7,b=0.3"` -> the corpora a and b; a `CorpusError` if there is none, or a weight is wrong."""
    return [name for name, _ in _parts(corpus)]


def corpus_weights(corpus: str) -> dict[str, Fraction]:
    """`"a=0.7,b=0.3"` -> share of each in the training sequences; empty if there are no weights."""
    return {name: weight for name, weight in _parts(corpus) if weight is not None}


def _parts(corpus: str) -> list[tuple[str, Fraction | None]]:
    """Name and weight of each corpus; what is a path as it stands there is one, also with a comma or `=0.5` in it."""
    names = [corpus] if "," in corpus and _is_path(corpus) else corpus.split(",")
    parts = [_part(name.strip()) for name in names if name.strip()]
    if not parts:
        raise CorpusError("corpus is empty: expected 'bundled', a file or folder, or hub:<dataset>")
    weights = [weight for _, weight in parts if weight is not None]
    if not weights:
        return parts
    if bare := [name for name, weight in parts if weight is None]:
        raise CorpusError(f"corpus {corpus}: {bare[0]} has no weight; give each corpus one, as in a=0.7,b=0.3, or none")
    if min(weights) <= 0 or sum(weights) != 1:
        given = " + ".join(f"{float(weight):g}" for weight in weights)
        raise CorpusError(f"corpus {corpus}: weights {given}: expected numbers above 0 whose sum is 1")
    if twice := [name for name, count in collections.Counter(name for name, _ in parts).items() if count > 1]:
        raise CorpusError(f"corpus {corpus}: {twice[0]} stands there twice; give it once, with the sum of its weights")
    return parts


def _part(text: str) -> tuple[str, Fraction | None]:
    name, _, weight = text.rpartition("=")
    try:
        if name and math.isfinite(float(weight)) and not _is_path(text):
            return name, Fraction(weight)
    except ValueError:
        pass
    return text, None


def _is_path(text: str) -> bool:
    try:
        return find_path(text).exists()
    except (OSError, StudyError):  # such as a name too long
        return False


def corpus_files(part: str) -> tuple[list[Path], dict[str, int]]:
    """The files of a corpus that is a file or folder, and what is passed over (`find_texts`); else a `CorpusError`."""
    path = find_path(part)
    if path.is_dir():
        if (path / "train.bin").is_file() and (path / "meta.json").is_file():
            raise CorpusError(f"corpus {part}: a prepared folder stands alone as corpus; give the text it was made of")
        files, passed_over = find_texts(path)
        if not files:
            others = f"; there is: {counts_as_text(passed_over)}" if passed_over else ""
            raise CorpusError(
                f"corpus {part}: no .txt, .jsonl or .parquet file (plain, gz, xz, bz2 or zst) in this folder{others}"
            )
    elif not path.is_file():
        raise CorpusError(f"corpus {part}: no such file or folder; expected a path, 'bundled' or hub:<dataset>")
    elif format_of(path) not in FORMATS:
        raise CorpusError(
            f"corpus {part}: unknown format '{path.name}'; expected .txt, .jsonl or .parquet, "
            "plain or with .gz, .xz, .bz2 or .zst behind"
        )
    else:
        files, passed_over = [path], {}
    for file in files:
        if file.stat().st_size == 0:
            raise CorpusError(f"corpus file {file} is empty: remove it or fill it")
    return files, passed_over


def describe_corpus(corpus: str) -> dict[str, Any]:
    """Number of `files` and `hub_datasets` in it, and what is `passed_over`; a `CorpusError` for a file read twice."""
    first: dict[str, str] = {}
    passed_over: collections.Counter[str] = collections.Counter()
    hub_datasets = 0
    for part in corpus_parts(corpus):
        if part.startswith("hub:"):
            hub_datasets += 1
            names = [part]
        elif part == "bundled":
            names = [str(bundled_file())]
        else:
            paths, others = corpus_files(part)
            names = [str(path.resolve()) for path in paths]
            passed_over.update(others)
        for name in names:
            if name in first:
                raise CorpusError(
                    f"corpus: {name} would be read twice, as part of {first[name]} and of {part}; give it once"
                )
            first[name] = part
    files = len(first) - hub_datasets
    return {"files": files, "hub_datasets": hub_datasets, "passed_over": dict(passed_over.most_common())}


def counts_as_text(counts: dict[str, int]) -> str:
    """`{".md": 2}` -> "2 .md"."""
    return ", ".join(f"{count:,} {what}" for what, count in counts.items())


def _bundled_documents() -> Iterator[Document]:
    for _, text in bundled_articles():
        yield pieces(text)


def corpus_shards(
    corpus: str, separator: str = "blank-line", text_column: str = "text", shard_seed: int | None = None
) -> list[Shard]:
    """The files of a corpus, and shards of streamed hub datasets, in the order in which they are read.

    Arguments and errors are those of `load_corpus`.
    """
    shards: list[Shard] = []
    for part in corpus_parts(corpus):
        if part == "bundled":
            shards.append(_bundled_documents)
        elif not part.startswith("hub:"):
            files = corpus_files(part)[0]
            shards += [functools.partial(file_documents, path, separator, text_column) for path in files]
        elif shard_seed is None:
            shards.append(functools.partial(hub_documents, part, text_column))
        else:
            shards += stream_shards(part, text_column, shard_seed)
    return shards


def load_corpus(
    corpus: str, separator: str = "blank-line", text_column: str = "text", shard_seed: int | None = None
) -> Iterator[Document]:
    """The documents of a corpus, one after the other, each a stream of text pieces; none of a document without text.

    Args:
        corpus: `bundled`, a file or folder, `hub:<dataset>[@<commit>][:<config>]`; several joined by commas, whose
            weights do not matter here.
        separator: what ends a document in a .txt file: `blank-line`, `line` or `file`.
        text_column: column of the text in jsonl, parquet and hub datasets, or several joined by commas.
        shard_seed: hub datasets are streamed, their shards in the order of this seed; None: they are kept in its cache.

    Raises:
        CorpusError: missing, empty, binary, badly encoded or damaged; the line names the file.
    """
    for shard in corpus_shards(corpus, separator, text_column, shard_seed):
        yield from shard()


def shards_of(config: StudyConfig, corpus: str) -> list[Shard]:
    """`corpus_shards` as the configuration has it."""
    seed = config.shard_seed if config.streaming else None
    return corpus_shards(corpus, config.document_separator, config.text_column, seed)


def _file_hash(path: Path, known: dict[str, Any]) -> str:
    stat = path.stat()
    key = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
    if key not in known:
        known[key] = sha256_file(path)
    return known[key]


def _remembered(memory: Path) -> dict[str, Any]:
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def corpus_fingerprint(config: StudyConfig, corpus: str, cache: Path) -> str:
    """A hash of the text that `corpus` stands for: of the files' content, or of the hub's dataset version."""
    memory = cache / "file_hashes.json"  # by path, size and time, so that a big corpus is read once
    known = _remembered(memory)
    before = len(known)
    content: list[Any] = []
    weights = {name: str(weight) for name, weight in corpus_weights(corpus).items()}
    for part in corpus_parts(corpus):
        if part == "bundled":
            content.append(["bundled", _file_hash(bundled_file(), known)])
        elif part.startswith("hub:"):
            version = stream_version(part) if config.streaming else hub_version(part, config.text_column)
            content.append(["hub", version])
        else:
            content.append([[path.name, _file_hash(path, known)] for path in corpus_files(part)[0]])
    if len(known) > before:
        with exclusive(cache / ".file_hashes.lock", str(memory), wait=True):
            write_json(memory, _remembered(memory) | known)
    return fingerprint([content, [*weights.values()]] if weights else content, 32)
