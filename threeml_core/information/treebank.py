"""Treebanks of Universal Dependencies: every word's place in the text, part of speech and dependency label; depths.

Source: https://universaldependencies.org/format.html (CoNLL-U); Nivre et al., "Universal Dependencies v2" (2020).
"""

from __future__ import annotations

import dataclasses
import graphlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from threeml_core.data.corpus import counts_as_text
from threeml_core.data.folders import find_texts
from threeml_core.data.readers import read_lines
from threeml_core.foundation.errors import CorpusError
from threeml_core.foundation.files import find_path

_ID, _FORM, _UPOS, _HEAD, _DEPREL, _MISC = 0, 1, 3, 6, 7, 9
_NUM_COLUMNS = 10
_LABELS = {"upos": _UPOS, "deprel": _DEPREL}

_NUMBER = re.compile(r"[0-9]{1,9}")
_NUMBER_OR_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_EMPTY_NODE = re.compile(r"[0-9]+\.[0-9]+")
_NEW_DOCUMENT = re.compile(r"#\s*newdoc(?:\s+id\s*=\s*(.*?))?\s*")


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence of n words with their labels.

    Words of a multi-word token stand one behind the other in it if together they spell it ("did" and "n't" in
    "didn't"); if not ("de" and "el" in "del"), each has the span of the whole token.

    Attributes:
        document: the id of the last `newdoc` before it; empty if there is none.
        text: the tokens, with a blank behind each unless `SpaceAfter=No`.
        spans: (n, 2) characters of `text` where a word starts, and where it has ended.
        labels: "upos" and "deprel" (without what follows a colon) -> (n,) labels.
        depth: arcs of the longest way from a root to a word.
    """

    document: str
    text: str
    spans: tuple[tuple[int, int], ...]
    labels: Mapping[str, tuple[str, ...]]
    depth: int


class _Row(NamedTuple):
    where: str
    columns: list[str]


def read_treebanks(folder: str | Path) -> tuple[list[Sentence], list[Sentence]]:
    """Training and test sentences of the .conllu files in and below a folder; files with "test" in their name are test.

    The folder `not-to-release` of UD's repositories, which holds the same sentences again, is passed over.

    Raises:
        CorpusError: no such folder, no file for training or none for test, or one that `read_treebank` refuses.
    """
    folder = find_path(folder)
    if not folder.is_dir():
        raise CorpusError(f"treebanks {folder}: no such folder; expected a folder of .conllu files")
    files, passed_over = find_texts(folder, {".conllu"})
    files = [file for file in files if "not-to-release" not in file.parts]  # in UD's repositories: the same text again
    test = [file for file in files if "test" in file.name.lower()]
    training = [file for file in files if file not in test]
    for side, rule in ((training, "training: a name without 'test'"), (test, "test: a name with 'test' in it")):
        if not side:
            there = counts_as_text(({".conllu": len(files)} if files else {}) | passed_over) or "nothing"
            raise CorpusError(
                f"treebanks {folder}: no .conllu file (plain, gz, xz, bz2 or zst) for {rule}; there is: {there}"
            )
    return _read_all(training), _read_all(test)


def _read_all(files: Iterable[Path]) -> list[Sentence]:
    return [sentence for file in files for sentence in read_treebank(file)]


def read_treebank(path: Path) -> list[Sentence]:
    """The sentences of a CoNLL-U file, plain or compressed; empty nodes (`8.1`) are passed over.

    Raises:
        CorpusError: not CoNLL-U, a word without a label, heads that are no tree, no sentence, not UTF-8, or truncated;
            it names the file and the line.
    """
    sentences: list[Sentence] = []
    rows: list[_Row] = []
    document = ""
    for number, line in enumerate(itertools.chain(read_lines(path), [""]), 1):  # a blank line ends the last sentence
        if line.startswith("#"):
            if match := _NEW_DOCUMENT.fullmatch(line):
                document = match[1] or ""
        elif line.strip():
            row = _Row(f"{path}, line {number}", line.rstrip("\n").split("\t"))
            filled = sum(map(bool, map(str.strip, row.columns)))
            if not filled == len(row.columns) == _NUM_COLUMNS:
                raise CorpusError(
                    f"{row.where}: {filled} columns instead of {_NUM_COLUMNS}; expected CoNLL-U: a word a line, a tab "
                    "between columns, '_' where there is no value"
                )
            rows.append(row)
        elif rows:
            sentences.append(_sentence(rows, document))
            rows = []
    if not sentences:
        raise CorpusError(f"{path}: no sentence in its {number - 1} lines; expected CoNLL-U: remove or fill it")
    return sentences


def _sentence(rows: Sequence[_Row], document: str) -> Sentence:
    words: list[_Row] = []
    tokens: list[tuple[int, str, int]] = []  # start in the text, form, number of words
    text = gap = ""
    last = 0  # word of the tokens so far
    for row in rows:
        name, form = row.columns[_ID], row.columns[_FORM]
        if _EMPTY_NODE.fullmatch(name):
            continue
        match = _NUMBER_OR_RANGE.fullmatch(name)
        first, end = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if first != len(words) + 1 or end < first or "-" in name and first <= last:
            raise CorpusError(
                f"{row.where}: id {name!r} is out of order, expected {len(words) + 1}: ids count the words of a "
                "sentence from 1, and a blank line ends it"
            )
        if first > last:
            text += gap
            tokens.append((len(text), form, end - last))
            text += form
            gap = "" if "SpaceAfter=No" in row.columns[_MISC].split("|") else " "
            last = end
        if "-" not in name:
            words.append(row)
    if last > len(words):
        raise CorpusError(f"{rows[-1].where}: the sentence ends before word {last}, which a range of ids includes")
    _refuse_no_tree(words, rows[0].where)
    labels = {kind: tuple(_label(row, kind) for row in words) for kind in _LABELS}
    return Sentence(document, text, _spans(tokens, words), labels, _depth(words))


def _spans(tokens: Sequence[tuple[int, str, int]], words: Sequence[_Row]) -> tuple[tuple[int, int], ...]:
    spans: list[tuple[int, int]] = []
    forms = (row.columns[_FORM] for row in words)
    for start, token, size in tokens:
        parts = [*itertools.islice(forms, size)]
        if "".join(parts) == token:
            spans += itertools.pairwise(itertools.accumulate(map(len, parts), initial=start))
        else:
            spans += [(start, start + len(token))] * size
    return tuple(spans)


def _refuse_no_tree(words: Sequence[_Row], where: str) -> None:
    """Raise a `CorpusError` unless following the heads leads from every word to a root."""
    heads = [row.columns[_HEAD] for row in words]
    for row, head in zip(words, heads, strict=True):
        if not _NUMBER.fullmatch(head) or int(head) > len(words):
            raise CorpusError(f"{row.where}: head {head!r}, expected 0 or a word of the sentence, 1 to {len(words)}")
    if not any(int(head) == 0 for head in heads):
        raise CorpusError(f"{where}: no word of the sentence that begins here has head 0; expected a root")
    try:
        graphlib.TopologicalSorter({number: [int(head)] for number, head in enumerate(heads, 1)}).prepare()
    except graphlib.CycleError as error:
        cycle = error.args[1]
        path = " <- ".join(map(str, cycle))
        raise CorpusError(f"{words[min(cycle) - 1].where}: the heads form a cycle, {path}; expected a tree") from None


def _depth(words: Sequence[_Row]) -> int:
    heads, level, depth = [int(row.columns[_HEAD]) for row in words], {0}, -1
    while level := {number for number, head in enumerate(heads, 1) if head in level}:
        depth += 1
    return depth


def _label(row: _Row, kind: str) -> str:
    label = row.columns[_LABELS[kind]].partition(":")[0]
    if label in ("", "_"):
        raise CorpusError(f"{row.where}: no {kind} ({row.columns[_LABELS[kind]]!r}); expected a label for every word")
    return label
