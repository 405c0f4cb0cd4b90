"""Readers of text files: .txt, .jsonl and .parquet, plain or compressed, as documents in bounded memory."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import importlib
import io
import itertools
import json
import lzma
import operator
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from threeml_core.data.folders import COMPRESSED, format_of
from threeml_core.foundation.errors import CorpusError
from threeml_core.foundation.files import explain_path, utf16_of

T = TypeVar("T")

PIECE_CHARACTERS = 1_000_000
"""A longer document is passed on in pieces, so that memory stays bounded whatever the corpus."""

Document = Iterator[str]
"""A document as a stream of pieces, none empty; the pieces joined are its text. Of one without text there is none."""


def optional_library(name: str, line: str) -> Any:
    """A module of a library that not everybody has; a `CorpusError` that says `line` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise CorpusError(line) from None


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


def pieces(text: str) -> Document:
    """A text as pieces; none if it is empty."""
    for start in range(0, len(text), PIECE_CHARACTERS):
        yield text[start : start + PIECE_CHARACTERS]


def columns_of(text_column: str, known: Collection[str], where: str) -> list[str]:
    """`"title,text"` -> the columns that are joined, unless one is called so itself; a `CorpusError` if one is missing.

    Args:
        text_column: the parameter.
        known: the columns that there are.
        where: the file or corpus, and the line in it.
    """
    columns = [text_column] if text_column in known else [name.strip() for name in text_column.split(",")]
    if missing := [name for name in columns if name not in known]:
        raise CorpusError(
            f"{where}: no column {', '.join(map(repr, missing))} (there is: {', '.join(known)}); "
            "set text_column to the column with the text, or to several joined by commas"
        )
    return columns


def pieces_of(row: dict[str, Any], columns: list[str], where: str) -> Document:
    """The texts in these columns with a newline between them; null and empty ones are left out."""
    for name in columns:
        if not isinstance(row[name], str | None):
            kind = type(row[name]).__name__
            raise CorpusError(f"{where}: column {name!r} holds {kind} instead of text; set text_column to one of text")
    text = "\n".join(row[name] for name in columns if row[name])
    # JSON can escape half a character, which no encoding can write
    return pieces(text.encode("utf-8", "replace").decode("utf-8"))


def _jsonl_documents(path: Path, text_column: str) -> Iterator[Document]:
    for number, line in _split_lines(path, "line"):
        text, where = "".join(line), f"{path}, line {number + 1}"
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", None) or str(error)
            raise CorpusError(f"{where}: not JSON ({reason}); expected an object a line") from None
        known = row if isinstance(row, dict) else [type(row).__name__]
        yield pieces_of(row, columns_of(text_column, known, where), where)


def _parquet_documents(path: Path, text_column: str) -> Iterator[Document]:
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
            columns = columns_of(text_column, file.schema_arrow.names, str(path))
            for batch in file.iter_batches(batch_size=256, columns=columns):
                for row in batch.to_pylist():
                    yield pieces_of(row, columns, str(path))
    except Exception as error:
        if not isinstance(error, pyarrow.ArrowException) and not _is_damage(error):
            raise
        raise CorpusError(f"{path} is not a readable parquet file: {str(error).splitlines()[0]}") from None


def file_documents(path: Path, separator: str, text_column: str) -> Iterator[Document]:
    """The documents of one file, see `load_corpus`."""
    kind = format_of(path)
    if kind == ".txt":
        for _, lines in _split_lines(path, separator):
            yield map("".join, in_chunks(lines, len))
    else:
        yield from (_jsonl_documents if kind == ".jsonl" else _parquet_documents)(path, text_column)
