"""Which files of a folder are read: no hidden ones, none twice, links followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from threeml_core.config import make_config
from threeml_core.data.corpus import corpus_files, load_corpus
from threeml_core.data.folders import HIDDEN, TWICE
from threeml_core.data.prepare import prepare_data
from threeml_core.foundation.errors import CorpusError


def read(corpus: str | Path, **settings) -> list[str]:
    return ["".join(document) for document in load_corpus(str(corpus), **settings)]


def test_what_is_passed_over_in_a_folder(folder: Path) -> None:
    files, passed_over = corpus_files(str(folder))
    assert len(files) == len(read(folder)) == 60
    assert passed_over == {HIDDEN: 1 + 30 + 30, ".md": 1, ".tar.gz": 1, "without extension": 1}
    hidden_itself = folder / ".ipynb_checkpoints"
    assert len(read(hidden_itself)) == 30, "a hidden folder that is given is read"
    assert len(read(hidden_itself / "01.txt")) == 1


def test_a_folder_of_hidden_texts_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (folder / "00.txt").rename(tmp_path / "hidden" / ".00.txt")
    with pytest.raises(CorpusError, match="file .* in this folder; there is: 1 below a name with a dot in front"):
        read(tmp_path / "hidden")


def test_links_are_followed_and_nothing_is_read_twice(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "deep" / "linked.txt").write_text("Linked.\n")
    (elsewhere / "back").symlink_to(folder)
    (folder / "a-link").symlink_to(elsewhere)
    (folder / "more" / "loop").symlink_to(folder)
    (folder / "upwards").symlink_to(tmp_path)
    (folder / "again").symlink_to(folder / "more")
    (folder / "0.txt").symlink_to(folder / "00.txt")
    (folder / "hard.txt").hardlink_to(folder / "02.txt")
    files, passed_over = corpus_files(str(folder))
    texts = read(folder)
    assert len(files) == len(texts) == 61 and len(set(texts)) == 61
    assert sum("Linked" in text for text in texts) == 1
    assert folder / "00.txt" in files and folder / "0.txt" not in files, "a text has its own name"
    assert folder / "more" / "01.txt" in files
    assert passed_over[TWICE] == 6


def test_a_text_that_is_a_link_to_nothing(folder: Path) -> None:
    (folder / "gone.md").symlink_to("/no/such/file")
    assert len(read(folder)) == 60
    (folder / "gone.txt").symlink_to("/no/such/file")
    with pytest.raises(CorpusError, match="gone.txt leads to no file: remove it"):
        read(folder)


def test_a_file_in_two_corpora(folder: Path, small: dict, tmp_path: Path) -> None:
    twice = f"{folder},{folder / 'more' / '01.txt'}"
    with pytest.raises(CorpusError, match="01.txt would be read twice, as part of .*texts and of .*01.txt; give it"):
        prepare_data(make_config({**small, "corpus": twice, "runs_dir": str(tmp_path / "runs")}))
