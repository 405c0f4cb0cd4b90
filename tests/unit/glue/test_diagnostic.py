"""Diagnostic tasks: every text in every class alike, held out, split by article."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from threeml_core.data.bundled import bundled_articles
from threeml_core.data.prepare import held_out
from threeml_core.glue.diagnostic import diagnostic_rows, shuffled
from threeml_core.glue.tasks import DIAGNOSTIC_TASKS


@pytest.mark.parametrize("name", DIAGNOSTIC_TASKS)
def test_every_text_stands_in_every_class_alike(name: str) -> None:
    """Of pairs, each A and each B once in each class; of single sentences, the same words in both."""
    task = DIAGNOSTIC_TASKS[name]
    for texts, labels in diagnostic_rows(name).values():
        for column in range(len(task.columns)):
            by_class = [collections.Counter() for _ in task.labels]
            for row, label in zip(texts, labels, strict=True):
                text = row[column] if len(row) == 2 else " ".join(sorted(row[0].split()))
                by_class[label][text] += 1
            assert all(counter == by_class[0] for counter in by_class)


@pytest.mark.parametrize("name", DIAGNOSTIC_TASKS)
def test_diagnostic_texts_are_held_out_and_split_by_article(name: str) -> None:
    """Every text stands in a held-out article, and no article gives examples to both sides."""
    articles = [text for _, text in bundled_articles() if held_out(text, 0.2)]
    homes = {}
    for split, (texts, labels) in diagnostic_rows(name).items():
        assert len(texts) >= 300 and len(texts) == len(labels)
        whole = [row[-1] for row, label in zip(texts, labels, strict=True) if name != "word_order" or label]
        found = [{i for i, text in enumerate(articles) if part in text} for part in whole]
        assert all(found)
        homes[split] = {min(where) for where in found if len(where) == 1}
    assert homes["train"] and homes["validation"] and not homes["train"] & homes["validation"]


def test_shuffling_keeps_capitals_numbers_and_marks_in_place() -> None:
    sentence = "In 1969, the first people walked on the Moon and came back home."
    moved = shuffled(sentence, np.random.default_rng(0))
    assert moved is not None and moved != sentence and sorted(moved.split()) == sorted(sentence.split())
    for old, new in zip(sentence.split(), moved.split(), strict=True):
        assert old == new or (old.isalpha() and old.islower() and new.isalpha() and new.islower())
    assert shuffled("The the the The.", np.random.default_rng(0)) is None
