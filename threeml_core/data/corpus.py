"""Corpora: a stream of documents from bundled text, files, folders or the Hugging Face hub, in bounded memory."""

from __future__ import annotations

import bz2
import collections
import contextlib
import gzip
import importlib
import io
import itertools
import json
import lzma
import operator
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from threeml_core.config import StudyConfig
from threeml_core.data.bundled import bundled_articles, bundled_file
from threeml_core.data.folders import COMPRESSED, FORMATS, find_texts, format_of
from threeml_core.foundation.errors import CorpusError
from threeml_core.foundation.files import (
    exclusive,
    explain_path,
    find_path,
    fingerprint,
    sha256_file,
    utf16_of,
    write_json,
)
from threeml_core.foundation.hub import hub_or_cache, hub_reason

T = TypeVar("T")

PIECE_CHARACTERS = 1_000_000
"""A longer document is passed on in pieces, so that memory stays bounded whatever the corpus."""

Document = Iterator[str]
"""A document as a stream of pieces, none empty; the pieces joined are its text."""


def optional_library(name: str, line: str) -> Any:
    """A module of a library that not everybody has; a `CorpusError` that says `line` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise CorpusError(line) from None


def corpus_parts(corpus: str) -> list[str]:
    """`"a,b"` -> the corpora that are joined; a `CorpusError` if there is none."""
    parts = [part.strip() for part in corpus.split(",") if part.strip()]
    if not parts:
        raise CorpusError("corpus is empty: expected 'bundled', a file or folder, or hub:<dataset>")
    return parts


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


@contextlib.contextmanager
def _open_binary(path: Path) -> Iterator[IO[bytes]]:
    suffix = path.suffix.lower()
    with explain_path(path):
        if suffix == ".zst":
            pyarrow = optional_library("pyarrow", f"{path}: reading .zst needs `pip install pyarrow`")
            handle: Any = pyarrow.CompressedInputStream(str(path), "zstd")  # unlike zstandard's, it notices a cut file
        else:
            openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
            handle = openers.get(suffix, open)(path, "rb")
        with handle:
            yield handle


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a text file, plain or compressed, decoded strictly; one over `PIECE_CHARACTERS` comes in pieces.

    Raises:
        CorpusError: binary, not UTF-8, damaged or truncated; it names the last line that could be read.
    """
    number = 0
    try:
        with _open_binary(path) as binary:
            reader = io.TextIOWrapper(io.BufferedReader(binary, 1 << 20), encoding="utf-8-sig", newline=None)  # type: ignore[type-var]
            while line := reader.readline(PIECE_CHARACTERS):
                number += line.endswith("\n")
                if "\0" in line:
                    raise _not_utf8(path, f"looks binary: a NUL byte near line {number}; expected UTF-8 text")
                yield line
    except UnicodeDecodeError as error:
        advice = "convert it, for example with `iconv -f latin1 -t utf-8`"
        raise _not_utf8(path, f"is not valid UTF-8 after line {number} ({error.reason}): {advice}") from None
    except Exception as error:
        if not _is_damage(error):
            raise
        raise CorpusError(f"{path} is damaged or truncated after line {number}: {error}") from None


def _not_utf8(path: Path, why: str) -> CorpusError:
    """The error for a file that says `why`, unless it looks like UTF-16."""
    with _open_binary(path) as binary:
        encoding = utf16_of(binary.read(4096))
    if encoding:
        why = f"looks like UTF-16: convert it with `iconv -f {encoding} -t utf-8`"
    return CorpusError(f"{path} {why}")


def _is_damage(error: Exception) -> bool:
    """Does a decompressor or reader say that the file itself is broken?"""
    if isinstance(error, OSError):
        return error.errno is None  # gzip and pyarrow; an errno is the system's
    return isinstance(error, (EOFError, lzma.LZMAError, zlib.error)) or type(error).__name__ == "ZstdError"


def in_chunks(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Items gathered until together they have `PIECE_CHARACTERS`."""
    chunk: list[T] = []
    room = PIECE_CHARACTERS
    for item in items:
        chunk.append(item)
        room -= size(item)
        if room <= 0:
            yield chunk
            chunk, room = [], PIECE_CHARACTERS
    if chunk:
        yield chunk


def _split_lines(path: Path, separator: str) -> Iterator[tuple[int, Iterator[str]]]:
    """(number, lines) of each document; of a single line its number, from 0. Blank lines between them are left out."""

    def numbered() -> Iterator[tuple[int, str]]:
        number, is_inside = 0, separator == "file"
        for line in read_lines(path):
            if is_inside or line.strip():
                yield number, line
            if separator == "line":
                is_inside = not line.endswith("\n")  # a long line comes in pieces
                number += not is_inside
            elif separator == "blank-line":
                number += not line.strip()

    for number, lines in itertools.groupby(numbered(), operator.itemgetter(0)):
        yield number, (line for _, line in lines)


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), PIECE_CHARACTERS):
        yield text[start : start + PIECE_CHARACTERS]


def _checked_text(row: Any, column: str, where: str) -> str:
    if not isinstance(row, dict) or column not in row:
        known = ", ".join(row) if isinstance(row, dict) else type(row).__name__
        raise CorpusError(
            f"{where}: no text in column {column!r} (there is: {known}); set text_column to the column with the text"
        )
    if not isinstance(text := row[column], str):
        raise CorpusError(f"{where}: column {column!r} holds {type(text).__name__} instead of text; drop such rows")
    # JSON can escape half a character, which no encoding can write
    return text.encode("utf-8", "replace").decode("utf-8")


def _jsonl_documents(path: Path, column: str) -> Iterator[Document]:
    for number, line in _split_lines(path, "line"):
        text, where = "".join(line), f"{path}, line {number + 1}"
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", None) or str(error)
            raise CorpusError(f"{where}: not JSON ({reason}); expected an object a line") from None
        yield _pieces(_checked_text(row, column, where))


def _parquet_documents(path: Path, column: str) -> Iterator[Document]:
    why = f"{path}: reading .parquet needs `pip install pyarrow`"
    pyarrow, parquet = optional_library("pyarrow", why), optional_library("pyarrow.parquet", why)
    try:
        with explain_path(path), contextlib.ExitStack() as stack:
            if path.suffix.lower() in COMPRESSED:
                binary = stack.enter_context(_open_binary(path))
                source: Any = pyarrow.BufferReader(binary.read())
            else:
                source = path
            file = stack.enter_context(parquet.ParquetFile(source))
            if column not in file.schema_arrow.names:
                raise CorpusError(
                    f"{path}: no column {column!r} (there is: {', '.join(file.schema_arrow.names)}); set text_column"
                )
            for batch in file.iter_batches(batch_size=256, columns=[column]):
                for value in batch.column(0).to_pylist():
                    yield _pieces(_checked_text({column: value}, column, str(path)))
    except Exception as error:
        if not isinstance(error, pyarrow.ArrowException) and not _is_damage(error):
            raise
        raise CorpusError(f"{path} is not a readable parquet file: {str(error).splitlines()[0]}") from None


def _load_hub(part: str, column: str) -> Any:
    """The `train` split of `hub:<dataset>[:<config>]` through `datasets`, kept in its cache."""
    datasets = optional_library("datasets", f"corpus {part}: needs `pip install datasets`")
    name, _, config = part.removeprefix("hub:").partition(":")
    if not name:
        raise CorpusError(f"corpus {part!r}: expected hub:<dataset> or hub:<dataset>:<config>")
    if name in datasets.packaged_modules._PACKAGED_DATASETS_MODULES:
        raise CorpusError(
            f"corpus {part}: {name!r} is no dataset but a reader of `datasets`, which takes all files of the working "
            "folder, pickled ones too; give a file or folder as corpus"
        )
    with hub_or_cache(name) as offline:
        try:
            dataset = datasets.load_dataset(name, config or None, split="train")
        except Exception as error:  # the hub's errors have no common base
            raise CorpusError(
                f"corpus {part}: the hub did not give it ({hub_reason(error, offline)}); check the name and the "
                "network, or use a local file or folder as corpus"
            ) from None
    if column not in dataset.column_names:
        raise CorpusError(
            f"corpus {part}: no column {column!r} (there is: {', '.join(dataset.column_names)}); set text_column"
        )
    return dataset


def load_corpus(corpus: str, separator: str = "blank-line", text_column: str = "text") -> Iterator[Document]:
    """The documents of a corpus, one after the other, each a stream of text pieces.

    Args:
        corpus: `bundled`, a file or folder, `hub:<dataset>[:<config>]`; several joined by commas.
        separator: what ends a document in a .txt file: `blank-line`, `line` or `file`.
        text_column: column of the text in jsonl, parquet and hub datasets.

    Raises:
        CorpusError: missing, empty, binary, badly encoded or damaged; the line names the file.
    """
    for part in corpus_parts(corpus):
        if part == "bundled":
            for _, text in bundled_articles():
                yield _pieces(text)
        elif part.startswith("hub:"):
            for row in _load_hub(part, text_column).select_columns(text_column):
                yield _pieces(_checked_text(row, text_column, f"corpus {part}"))
        else:
            for path in corpus_files(part)[0]:
                kind = format_of(path)
                if kind == ".txt":
                    for _, lines in _split_lines(path, separator):
                        yield map("".join, in_chunks(lines, len))
                else:
                    read = _jsonl_documents if kind == ".jsonl" else _parquet_documents
                    yield from read(path, text_column)


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
    for part in corpus_parts(corpus):
        if part == "bundled":
            content.append(["bundled", _file_hash(bundled_file(), known)])
        elif part.startswith("hub:"):
            content.append(["hub", _load_hub(part, config.text_column)._fingerprint])
        else:
            content.append([[path.name, _file_hash(path, known)] for path in corpus_files(part)[0]])
    if len(known) > before:
        with exclusive(cache / ".file_hashes.lock", str(memory), wait=True):
            write_json(memory, _remembered(memory) | known)
    return fingerprint(content, 32)
