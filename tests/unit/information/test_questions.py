"""What encoders are asked: sides, control tasks, and what words alone reach."""

from __future__ import annotations

import collections
from pathlib import Path

import numpy as np
import pytest

from tests.treebank_files import write_treebank
from threeml_core.config import make_config
from threeml_core.data.prepare import held_out
from threeml_core.foundation.errors import ParameterError
from threeml_core.information.questions import _training_parts, questions_of, word_questions
from threeml_core.information.treebank import read_treebanks


def test_words_of_a_treebank(tmp_path: Path) -> None:
    training, test = read_treebanks(write_treebank(tmp_path))
    asked = word_questions(training, test, ("upos", "deprel"), seed=0)
    assert list(asked.tasks) == ["upos", "deprel", "upos by heart", "deprel by heart"]
    assert asked.parts.count("test") == 60 and asked.sizes == [60] * 6 and asked.passed_over == 0  # ten a document
    assert 0 < asked.parts.count("tune") < 40 and "fit" in asked.parts
    assert asked.words[:6] == ["the", *training[0].text[:-1].lower().split()[1:], "."]
    assert asked.of_unit().tolist() == np.repeat(np.arange(180), 6).tolist()
    floors = asked.floors()
    assert floors["upos"] == pytest.approx((2 / 6, 1.0))  # a word has one part of speech there
    most, words = floors["deprel"]
    assert most == pytest.approx(2 / 6) and 4 / 6 < words < 1  # a noun may be subject or object
    assert floors["upos by heart"][1] == 1.0  # by heart, it can be known


def test_word_order_is_asked_of_the_held_out_text_alone(corpus_file: Path) -> None:
    config = make_config({"corpus": str(corpus_file), "validation_fraction": 0.5, "probe_tasks": "bigram_shift"})
    lines: list[str] = []
    (asked,) = questions_of(config, lines.append).values()
    assert list(asked.tasks) == ["bigram_shift"] and lines[0].startswith("bigram_shift: ")
    labels = asked.tasks["bigram_shift"].classes
    is_test = np.array(asked.parts) == "test"
    for side in (labels[is_test], labels[~is_test]):
        assert abs(2 * side.sum() - len(side)) <= 1
    assert len(set(asked.texts)) == len(asked.texts)
    fewer = questions_of(config.replace(max_probe_sentences=100), lines.append)["bigram_shift"]
    assert len(fewer.texts) <= 100 and set(fewer.parts) == {"fit", "tune", "test"}


def test_without_a_treebank_words_are_left_out_and_that_is_said(corpus_file: Path) -> None:
    config = make_config({"corpus": str(corpus_file), "validation_fraction": 0.5, "probe_tasks": "upos,bigram_shift"})
    lines: list[str] = []
    assert list(questions_of(config, lines.append)) == ["bigram_shift"]
    assert lines[0].startswith("upos: left out, as there is no treebank")
    with pytest.raises(ParameterError, match="probe_tasks='upos' needs a treebank: give ud"):
        questions_of(config.replace(probe_tasks="upos"), lines.append)


def test_units_are_counted_by_document_and_what_stands_on_both_sides_is_passed_over(tmp_path: Path) -> None:
    training, test = read_treebanks(write_treebank(tmp_path))
    asked = word_questions([*training, *test[:5]], test, ("upos",), seed=0)
    assert asked.passed_over == 5 and asked.fingerprint == word_questions(training, test, ("upos",), 0).fingerprint
    units = np.flatnonzero(np.isin(asked.of_unit(), asked.where("test")))
    right = np.arange(len(units)) % 2 == 0
    assert asked.by_document(right, units) == [30] * 6
    shuffled = np.random.default_rng(0).permutation(len(units))
    assert asked.by_document(right[shuffled], units[shuffled]) == [30] * 6
    one = word_questions(training, test[:10], ("upos",), 0)  # of one document: sentences are the items
    assert one.sizes == [6] * 10


def test_a_document_that_is_a_sentence_is_tuned_on_like_any_other() -> None:
    """Such a document was held out of pre-training by the same hash, if that were taken for the penalty's part too."""
    documents = [f"The {a} {b} {c} {d} there." for a in "pqrstu" for b in "pqrstu" for c in "pqrstu" for d in "pqrstu"]
    kept = [text for text in documents if held_out(text, 0.5)]
    parts = collections.Counter(_training_parts(kept))
    assert 0.05 < parts["tune"] / len(kept) < 0.15


def test_other_questions_have_another_fingerprint(tmp_path: Path) -> None:
    training, test = read_treebanks(write_treebank(tmp_path))
    asked = word_questions(training, test, ("upos",), seed=0)
    assert asked.fingerprint == word_questions(training, test, ("upos",), seed=0).fingerprint
    for other in (word_questions(training, test, ("upos",), 1), word_questions(training[1:], test, ("upos",), 0)):
        assert other.fingerprint != asked.fingerprint
