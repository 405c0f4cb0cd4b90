"""What encoders are asked: sides, control tasks, and what words alone reach."""

from __future__ import annotations

import collections
import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.treebank_files import write_treebank
from threeml_core.config import make_config
from threeml_core.data.prepare import held_out
from threeml_core.foundation.errors import CorpusError, ParameterError
from threeml_core.information.questions import (
    BINS,
    FREQUENT,
    _training_parts,
    depth_questions,
    length_questions,
    questions_of,
    word_questions,
)
from threeml_core.information.treebank import Sentence, read_treebanks
from threeml_core.information.word_order import Example


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


def sentence(text: str, depth: int = 0, document: str = "a") -> Sentence:
    """Words with a blank between them; each is its own label."""
    words = text.split(" ")
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    spans = tuple((int(end) - len(word), int(end)) for word, end in zip(words, ends, strict=True))
    return Sentence(document, text, spans, {"upos": tuple(words)}, depth)


def test_the_next_word_if_training_has_it_often() -> None:
    often = " ".join(f"often{n}" for n in range(FREQUENT))
    training = [sentence(f"{often} rare{n} {often}") for n in range(20)]
    test = [sentence("often31 rare0 OFTEN0 often1 new", 0, f"{n}") for n in range(2)]
    asked = word_questions(training, test, ("upos", "next_word"), seed=0)
    of = asked.tasks["next_word"]
    classes = np.unique([*(f"often{n}" for n in range(FREQUENT)), ""])
    assert of.count == FREQUENT + 1 and list(asked.tasks)[2:] == ["upos by heart", "next_word by heart"]
    assert classes[of.classes[-5:]].tolist() == ["", "often0", "often1", "", ""]
    assert classes[of.classes[FREQUENT - 1]] == "" and classes[of.classes[FREQUENT]] == "often0"
    _, words = asked.floors()["next_word"]
    assert words == pytest.approx(4 / 5)  # behind often1 often2 is usual


def test_lengths_and_depths_in_bins_of_training_sentences() -> None:
    rng = np.random.default_rng(0)

    def prose(count: int, *lengths: int) -> list[Example]:
        words = [[f"w{n}" for n in rng.integers(0, 50, lengths[i % len(lengths)])] for i in range(count)]
        return [Example(" ".join(of), 0, f"{i}") for i, of in enumerate(words)]

    asked = length_questions(prose(600, *range(5, 35)), prose(3, 1, 9, 40))
    classes = asked.tasks["sentence_length"].classes
    assert np.bincount(classes[:600]).tolist() == [100] * BINS and classes[600:].tolist() == [0, 0, BINS - 1]
    assert [len(text.split(" ")) for text in np.array(asked.texts)[:600][classes[:600] == 1]][:5] == [*range(10, 15)]
    assert asked.spans[601] == ((0, len(asked.texts[601])),) and asked.sizes == [1, 1, 1]
    depths = np.repeat([1, 2, 3, 4], [10, 60, 20, 10])
    training = [sentence(f"one {n}", int(depth)) for n, depth in enumerate(depths)]
    asked = depth_questions(training, [training[0], *(sentence(f"two {n}", n, "b") for n in range(8))])
    assert asked.passed_over == 1 and asked.tasks["depth"].count == 4  # 1 | 2 | 3 | 4 and more
    assert asked.tasks["depth"].classes[-9:].tolist() == [0, 0, 0, 1, 2, 3, 3, 3, 3] and asked.sizes == [1, 8]
    with pytest.raises(CorpusError, match="depth is 3 for all 5 training sentences, .* leave it out of probe_tasks"):
        depth_questions([sentence(f"one {n}", 3) for n in range(5)], [sentence("two", 1)])
    with pytest.raises(CorpusError, match="all 100 training sentences of the treebanks stand in the test too"):
        depth_questions(training, training)


def test_a_bag_of_words_knows_the_length_by_them_alone() -> None:
    """Of 26 words, each at most once: the more of them, the longer. Of the same five words again and again: nothing."""
    rng = np.random.default_rng(0)

    def floor(words: str, repeats: bool) -> tuple[float, float]:
        sides = [
            [Example(" ".join(rng.choice([*words], 6 + i % 18, repeats)), 0, f"{side}{i}") for i in range(count)]
            for side, count in (("a", 900), ("b", 360))
        ]
        return length_questions(*sides).floors()["sentence_length"]

    most, words = floor("abcdefghijklmnopqrstuvwxyz", False)
    assert most == pytest.approx(1 / BINS) and words > 0.6
    most, words = floor("abcde", True)
    assert most == pytest.approx(1 / BINS) and words < 0.4


def test_what_is_asked_by_name_alone(tmp_path: Path) -> None:
    names = itertools.product("bcdfghjklmnpqrs", "aeiou", "xyz")
    documents = [f"The {'very ' * (n % 9)}old {''.join(name)} sees one there." for n, name in enumerate(names)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    ud = str(write_treebank(tmp_path / "ud"))
    config = make_config({"corpus": str(tmp_path / "text.txt"), "validation_fraction": 0.5, "ud": ud})
    lines: list[str] = []
    assert list(questions_of(config, lines.append)) == ["words", "bigram_shift", "shuffled_span"]
    named = config.replace(probe_tasks="sentence_length,next_word")
    asked = questions_of(named, lines.append)
    assert list(asked) == ["words", "sentence_length"] and "next_word" in asked["words"].tasks
    assert list(questions_of(named.replace(ud=None), lines.append)) == ["sentence_length"]
    with pytest.raises(CorpusError, match="depth is 2 for all 120 training sentences"):
        questions_of(config.replace(probe_tasks="depth"), lines.append)
    with pytest.raises(ParameterError, match="shuffled_span, next_word, sentence_length, depth, each once"):
        config.replace(probe_tasks="dept")
