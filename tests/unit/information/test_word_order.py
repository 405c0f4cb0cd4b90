"""Made-up tasks on the order of words: what changes, what must not, and that a bag of words learns nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from transformers import PreTrainedTokenizerFast

from threeml_core.data.bundled import bundled_articles
from threeml_core.data.prepare import held_out
from threeml_core.foundation.errors import CorpusError, ParameterError
from threeml_core.information.word_order import Example, bigram_shift, shuffled_span, sides, split_sentences


@pytest.fixture(scope="module")
def documents() -> list[str]:
    """200 documents of 20 sentences of a grammar in which a word has but one place."""
    rng = random.Random(0)
    kinds = [
        [f"{place}{letter}" for letter in "abcdefgh"] for place in ("adjective", "noun", "verb", "colour", "thing")
    ]

    def sentence(number: int) -> str:
        return " ".join(["The", *map(rng.choice, kinds), f"{number}."])

    return ["\n".join(sentence(20 * document + i) for i in range(20)) for document in range(200)]


def as_written(*texts: str) -> list[Example]:
    return [Example(text, 0, "a") for text in texts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One two three four five. Six seven eight nine.", ["One two three four five."]),
        (
            'He said: "Are you coming or not?" She was not there! (It is a long way.) They stayed at home...',
            ['He said: "Are you coming or not?"', "(It is a long way.)"],
        ),
        (
            "«C'est la vie de Paris.» “That is how it was.” Élan is what they have.",
            ["«C'est la vie de Paris.»", "“That is how it was.”", "Élan is what they have."],
        ),
        ("Mr. J. R. Smith of the U.S. Army met Dr. Who.", ["Mr. J. R. Smith of the U.S. Army met Dr. Who."]),
        ("It costs 1.5 dollars here, e.g. in shops. No.", ["It costs 1.5 dollars here, e.g. in shops."]),
        ("A heading of a few more words\nand a line ends. It  has\ttwo blanks here.", ["It has two blanks here."]),
        (f"Word {'word ' * 38}end.", [f"Word {'word ' * 38}end."]),
        (f"Word {'word ' * 39}end.", []),
        ("", []),
    ],
)  # fmt: skip
def test_split_sentences(text: str, expected: list[str]) -> None:
    assert split_sentences(text) == expected


def test_no_document_and_no_sentence_is_on_both_sides(documents: list[str]) -> None:
    both = "This sentence stands in many of the documents."
    texts = [f"{text}\n{both} {both}" for text in documents]
    training, test = sides(texts)
    assert not {example.document for example in training} & {example.document for example in test}
    sentences = [example.text for example in training + test]
    assert sorted(sentences) == sorted({sentence for text in texts for sentence in split_sentences(text)})
    assert len(sentences) == 200 * 20 + 1
    assert len({example.document for example in training + test}) == 200
    share = len({example.document for example in test}) / 200
    assert abs(share - 0.2) < 3 * math.sqrt(0.2 * 0.8 / 200)


def test_sides_do_not_depend_on_order_copies_or_what_was_held_out_before(documents: list[str]) -> None:
    found = sides(documents)
    assert sides(random.Random(0).sample(documents, 200) + [f"\n{documents[0]}\n"]) == found
    held = [text for text in documents if held_out(text, 0.2)]
    training, test = ({example.document for example in side} for side in sides(held))
    assert len(training | test) == len(held)
    assert abs(len(test) / len(held) - 0.2) < 3 * math.sqrt(0.2 * 0.8 / len(held)), "not all, as by the same hash"
    assert test <= {example.document for example in found[1]}


def test_an_empty_side_is_one_line(documents: list[str]) -> None:
    with pytest.raises(
        CorpusError, match=r"1 held-out documents have \d+ sentences for training and \d+ for test"
    ) as error:
        sides(documents[:1])
    assert "\n" not in str(error.value)
    with pytest.raises(CorpusError, match="0 held-out documents have 0 sentences for training and 0 for test"):
        sides([])


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_half_of_the_sentences_have_one_run_out_of_order(length: int, documents: list[str]) -> None:
    sentences, _ = sides(documents)
    examples, passed_over = shuffled_span(sentences[:-1] if len(sentences) % 2 == 0 else sentences, 0, length)
    labels = [example.label for example in examples]
    assert passed_over == 0 and len(labels) % 2 == 1
    assert sum(labels) == len(labels) // 2
    starts = set()
    for before, after in zip(sentences, examples, strict=False):
        old, new = before.text.split(" "), after.text.split(" ")
        assert sorted(old) == sorted(new) and before.document == after.document
        moved = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        assert moved == (list(range(moved[0], moved[0] + length)) if after.label else [])
        starts |= {*moved[:1]}
    assert starts == set(range(1, 7 - length)), "every place is drawn, none with the first word or the last"


def test_what_may_change_places() -> None:
    """The only run of each of these sentences, or none."""
    sentences = as_written(
        "One two three 4 five.",
        "A, bb cc, dd ee 5.",
        "Aa Bb Cc d-d e.",
        "The had Had that, he it.",
        "Aa bb.",
        "Aa bb cc.",
        "Aa two  blanks' b.",
        "Aa ßß élan 5 b.",
    )
    expected = {"One three two 4 five.", "A, bb cc, ee dd 5.", "Aa Cc Bb d-d e.", "Aa élan ßß 5 b."}
    found = [bigram_shift(sentences, seed) for seed in range(20)]
    assert {passed_over for _, passed_over in found} == {4}
    assert all(sum(example.label for example in examples) == 2 for examples, _ in found)
    assert {example.text for examples, _ in found for example in examples if example.label} == expected


def test_orders_of_a_run_are_the_derangements_and_equally_frequent() -> None:
    sentence = as_written("X a b c d 5")
    counts = dict.fromkeys(["badc", "bcda", "bdac", "cadb", "cdab", "cdba", "dabc", "dcab", "dcba"], 0)
    examples, _ = shuffled_span(sentence * 18_000, 0)
    for example in examples:
        if example.label:
            counts["".join(example.text.split()[1:5])] += 1
    assert all(abs(count - 1000) < 4 * math.sqrt(1000 * 8 / 9) for count in counts.values())


def test_tokens_are_the_same_in_another_order(documents: list[str], tokenizer: PreTrainedTokenizerFast) -> None:
    sentences, _ = sides(documents[:10])
    for before, after in zip(sentences, shuffled_span(sentences, 0)[0], strict=True):
        old, new = tokenizer(before.text)["input_ids"], tokenizer(after.text)["input_ids"]
        assert sorted(old) == sorted(new) and (old != new) == after.label


def test_seeds(documents: list[str]) -> None:
    sentences, _ = sides(documents)
    assert bigram_shift(sentences, 1) == bigram_shift(sentences, 1) != bigram_shift(sentences, 2)
    changed = [np.array([example.label for example in bigram_shift(sentences, seed)[0]]) for seed in (1, 2)]
    assert abs(np.mean(changed[0] == changed[1]) - 0.5) < 4 * 0.5 / math.sqrt(len(sentences))


def test_examples_are_the_same_on_every_machine() -> None:
    """Golden values: they change only if a sentence, a side or what is drawn does."""
    texts = [f"This is the plain sentence number {i}. Another one follows it in document {i}." for i in range(6)]
    changed = [[example for example in bigram_shift(side, 0)[0] if example.label] for side in sides(texts, 0.5)]
    assert [[(example.text, example.document) for example in side] for side in changed] == [
        [
            ("Another follows one it in document 4.", "9e60ed5aa8bc"),
            ("This is the sentence plain number 1.", "ec83b13299d1"),
            ("Another one follows it document in 1.", "ec83b13299d1"),
        ],
        [
            ("Another follows one it in document 3.", "44c27f4f519c"),
            ("This is the sentence plain number 0.", "e84203a50928"),
            ("Another one follows it document in 0.", "e84203a50928"),
        ],
    ]


@pytest.mark.parametrize("task", [bigram_shift, shuffled_span])
def test_a_bag_of_words_is_at_chance_and_pairs_of_words_are_not(task, documents: list[str]) -> None:
    (training, _), (test, _) = (task(side, 0) for side in sides(documents, 0.5))
    error = 0.5 / math.sqrt(len(test))
    assert abs(accuracy((1, 1), training, test) - 0.5) < 3 * error
    assert accuracy((2, 2), training, test) > 0.95


def accuracy(words: tuple[int, int], training: Sequence[Example], test: Sequence[Example]) -> float:
    """Of a logistic regression on counts of so many neighbouring words."""
    model = make_pipeline(CountVectorizer(ngram_range=words), LogisticRegression(max_iter=1000))
    (x, y), (x_test, y_test) = ([*zip(*((e.text, e.label) for e in side), strict=True)] for side in (training, test))
    return model.fit(x, y).score(x_test, y_test)


def test_too_little_is_one_line() -> None:
    with pytest.raises(
        CorpusError, match="^1 of 2 sentences have 2 plain words in a row .* expected at least 2"
    ) as error:
        bigram_shift(as_written("One two three 4 five.", "One 2 three 4 five."), 0)
    assert "\n" not in str(error.value)
    with pytest.raises(CorpusError, match="0 of 0 sentences"):
        shuffled_span([], 0)
    with pytest.raises(ParameterError, match="length=1: expected at least 2"):
        shuffled_span(as_written("One two three."), 0, length=1)


def test_bundled_articles() -> None:
    training, test = sides(text for _, text in bundled_articles())
    assert len(training) > 10_000 and len(test) > 2_000
    for side in (training, test):
        examples, passed_over = bigram_shift(side, 0)
        assert passed_over < 0.01 * len(side)
        assert sum(example.label for example in examples) == len(examples) // 2
