"""Three small tasks made from held-out bundled articles, so that fine-tuning runs offline. They are not GLUE.

* word_order: is this sentence as written, or are its plain words shuffled?
* next_sentence: does B follow A, or does it stand elsewhere in A's article?
* passage_relation: does B follow A, stand elsewhere in A's article, or in another article?

Every sentence takes part in every class equally often: the two versions of a sentence hold the same words and marks
in the same number, and every A and every B of a pair stands once in each class. So neither length nor punctuation
nor any single word tells the class; a test holds a bag-of-words model to chance. Training and validation examples
come from different articles.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

import numpy as np

from threeml_core.data.bundled import bundled_articles
from threeml_core.data.prepare import held_out
from threeml_core.glue.tasks import DIAGNOSTIC_TASKS, HELD_OUT

_VALIDATION = 0.1  # articles below this share are validation, the others training

_SENTENCE_END = re.compile(r'(?<=[a-z0-9)"\]][.!?])\s+(?=[A-Z"])')
_PLAIN_WORD = re.compile(r"[a-z]+")

Rows = tuple[list[tuple[str, ...]], list[int]]
"""Texts and class ids."""


def _sentences(article: str, longest: int) -> list[str | None]:
    """Sentences of an article; None for one of fewer than 5 or more than `longest` words, and behind a paragraph."""
    found = [sentence for paragraph in article.split("\n") for sentence in (*_SENTENCE_END.split(paragraph), "")]
    return [sentence if 5 <= len(sentence.split()) <= longest else None for sentence in found]


def shuffled(sentence: str, rng: np.random.Generator) -> str | None:
    """The sentence with its all-lowercase words permuted among their places; None if there are fewer than 4.

    Capitals, numbers and whatever carries a mark stay where they are.
    """
    words = sentence.split(" ")
    places = [i for i, word in enumerate(words) if _PLAIN_WORD.fullmatch(word)]
    if len({words[i] for i in places}) < 4:
        return None
    moved = list(words)
    while moved == words:
        for place, source in zip(places, rng.permutation(places), strict=True):
            moved[place] = words[source]
    return " ".join(moved)


def _word_order(articles: Iterable[str], rng: np.random.Generator) -> Rows:
    texts: list[tuple[str, ...]] = []
    for article in articles:
        for sentence in _sentences(article, 16):
            if sentence and (other := shuffled(sentence, rng)):
                texts += [(other,), (sentence,)]
    return texts, [0, 1] * (len(texts) // 2)


def _consecutive(article: str) -> list[tuple[str, str]]:
    """(A, B) of neighbouring sentences; no sentence stands in two pairs."""
    pairs, before = [], None
    for sentence in _sentences(article, 25):
        if before and sentence:
            pairs.append((before, sentence))
            before = None
        else:
            before = sentence
    return pairs


def _moved_on(pairs: list[tuple[str, str]], rng: np.random.Generator) -> list[tuple[str, str]]:
    """Every A with the B of another pair; every B once."""
    order = rng.permutation(len(pairs))
    partner = dict(zip(order.tolist(), np.roll(order, 1).tolist(), strict=True))
    return [(a, pairs[partner[i]][1]) for i, (a, _) in enumerate(pairs)]


def _pairs(articles: Iterable[str], rng: np.random.Generator, names: tuple[str, ...]) -> Rows:
    """The classes `names` of: next, same_article (or elsewhere), other_article."""
    groups = [pairs for article in articles if len(pairs := _consecutive(article)) >= 2]
    everything = [pair for group in groups for pair in group]
    moved = [pair for group in groups for pair in _moved_on(group, rng)]
    # moving by half of all pairs in article order leaves the article, unless one article holds more than half of them
    half = len(everything) // 2
    assert max(map(len, groups)) <= half, "one article holds most of the sentences"
    others = [(a, b) for (a, _), (_, b) in zip(everything, everything[half:] + everything[:half], strict=True)]
    by_class = {"next": everything, "same_article": moved, "elsewhere": moved, "other_article": others}
    texts: list[tuple[str, ...]] = [pair for name in names for pair in by_class[name]]
    return texts, [label for label, name in enumerate(names) for _ in by_class[name]]


@functools.cache
def diagnostic_rows(name: str) -> dict[str, Rows]:
    """Training and validation examples of one of `DIAGNOSTIC_TASKS`, always the same ones."""
    rows = {}
    texts = [text for _, text in bundled_articles() if held_out(text, HELD_OUT)]
    for number, split in enumerate(("train", "validation")):
        articles = [text for text in texts if held_out(text, _VALIDATION) == (split == "validation")]
        rng = np.random.default_rng(number)
        is_pair = name != "word_order"
        rows[split] = _pairs(articles, rng, DIAGNOSTIC_TASKS[name].labels) if is_pair else _word_order(articles, rng)
    return rows
