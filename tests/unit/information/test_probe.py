"""Linear probes: parity with scikit-learn, labels that can and cannot be read off, units found among tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.preprocessing import StandardScaler
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from threeml_core.information.probe import Labels, Moments, control_labels, place_units, probe, unit_states
from threeml_core.parameters.probing import STRENGTHS

PARTS = {"fit": slice(0, 600), "tune": slice(600, 800), "test": slice(800, 1200)}


def served(x: np.ndarray) -> Callable[[str], Iterator[tuple[np.ndarray, Tensor]]]:
    """States of 1,200 units in batches of 64, not in the order of their numbers."""

    def states(part: str) -> Iterator[tuple[np.ndarray, Tensor]]:
        numbers = np.random.default_rng(1).permutation(np.arange(1200)[PARTS[part]])
        for start in range(0, len(numbers), 64):
            some = numbers[start : start + 64]
            yield some, torch.from_numpy(x[some]).float()

    return states


def drawn(width: int) -> tuple[np.random.Generator, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng, rng.normal(3.0, rng.uniform(0.1, 10, width), (1200, width))  # means and scales apart


def test_the_moments_give_scikit_learns_ridge() -> None:
    rng, x = drawn(12)
    x[:, 5] = 7.0  # does not vary
    y = rng.normal(size=(1200, 3))
    moments = Moments()
    for start in range(0, 1200, 100):
        moments.add(torch.from_numpy(x[start : start + 100]), torch.from_numpy(y[start : start + 100]))
    for columns in (slice(0, 12), slice(4, 9)):
        for strength in STRENGTHS:
            weights, intercept = moments.solve(columns, strength)
            scaler = StandardScaler().fit(x[:, columns])
            theirs = Ridge(alpha=strength * 1200).fit(scaler.transform(x[:, columns]), y)
            expected = theirs.predict(scaler.transform(x[:, columns]))
            np.testing.assert_allclose(x[:, columns] @ weights.numpy() + intercept.numpy(), expected, atol=1e-8)


def test_the_answers_are_those_of_a_ridge_classifier() -> None:
    rng, x = drawn(8)
    labels = (x @ rng.normal(size=(8, 5)) + rng.normal(0, 10, (1200, 5))).argmax(1)
    found = probe(served(x), {"task": Labels(labels, 5)}, [8])["task"]
    train, test = slice(0, 800), PARTS["test"]
    scaler = StandardScaler().fit(x[train])
    theirs = RidgeClassifier(alpha=found.strength * 800).fit(scaler.transform(x[train]), labels[train])
    right = theirs.predict(scaler.transform(x[test])) == labels[test]
    assert found.units.tolist() == list(range(800, 1200)) and (found.right == right).mean() > 0.995
    assert found.accuracy == found.right.mean() and found.layers == (found.accuracy,)


def test_what_stands_in_a_layer_is_found_and_shuffled_labels_are_not() -> None:
    rng, x = drawn(24)
    labels = (x[:, 8] > 3).astype(int)  # in the second of three layers
    shuffled = rng.permutation(labels)
    found = probe(served(x), {"real": Labels(labels, 2), "shuffled": Labels(shuffled, 2)}, [8, 8, 8])
    hundred = probe(served(np.sign(x - 3)), {"real": Labels(labels, 2)}, [8, 8, 8])["real"]
    assert hundred.accuracy == 1.0 and hundred.layers[1] == 1.0
    real = found["real"].layers
    assert real[1] > 0.95 and max(real[0], real[2]) < 0.6 and found["real"].accuracy > 0.95
    chance = max(shuffled.mean(), 1 - shuffled.mean())
    error = np.sqrt(0.25 / 400)
    assert found["shuffled"].accuracy < chance + 3 * error


TEXTS = ["The dog said no.", "She sees the house again and again", "no"]
SPANS = [[(0, 3), (4, 7), (8, 12), (13, 15), (15, 16)], [(0, 3), (4, 8), (9, 12), (29, 34)], [(0, 2)]]


def test_units_are_found_whatever_the_tokenizer(tokenizer: PreTrainedTokenizerFast, encoders: dict[str, Path]) -> None:
    for folder in (None, *encoders.values()):
        own = tokenizer if folder is None else AutoTokenizer.from_pretrained(folder)
        tokens = place_units(own, TEXTS, SPANS, 64)
        assert tokens.long == 0 and tokens.first.tolist() == [0, 5, 9]
        assert [*tokens.before, *tokens.ids[0], *tokens.behind] == own(TEXTS[0])["input_ids"]
        for text, ids, units, of in zip(TEXTS, tokens.ids, tokens.units, SPANS, strict=True):
            for (start, stop), (begin, end) in zip(units, of, strict=True):
                assert own.decode(ids[start:stop]).strip().lower() == text[begin:end].lower()


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_states_are_the_models(encoders: dict[str, Path], pooling: str) -> None:
    """A long text is run in windows; they are as if each stood alone."""
    texts, spans = [*TEXTS, "dog " * 20], [*SPANS, [(0, 3), (36, 39), (76, 79), (0, 79)]]
    for folder in encoders.values():
        model, own = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
        tokens = place_units(own, texts, spans, 16)
        assert tokens.long >= 1
        found = dict[int, Tensor]()
        for numbers, x in unit_states(model, tokens, [3, 0, 1, 2], pooling, 2):
            assert not found.keys() & set(numbers.tolist())
            found |= dict(zip(numbers.tolist(), x, strict=True))
        number = 0
        for ids, units in zip(tokens.ids, tokens.units, strict=True):
            parts = []
            for part in np.array_split(ids, -(-len(ids) // tokens.room)):
                with torch.no_grad():
                    out = model(torch.tensor([[*tokens.before, *part, *tokens.behind]]), output_hidden_states=True)
                states = torch.cat([*out.hidden_states[:-1], out.last_hidden_state], -1)[0]
                parts.append(states[len(tokens.before) :][: len(part)])
            states = torch.cat(parts)
            for start, stop in units:
                expected = states[start] if pooling == "first" else states[start:stop].mean(0)
                torch.testing.assert_close(found[number], expected, atol=1e-5, rtol=1e-4)
                number += 1
        assert number == len(found)


def test_control_labels_are_of_the_word_and_as_frequent_as_the_real_ones() -> None:
    words = [f"w{i % 700}" for i in range(7000)]
    labels = Labels(np.array([0, 0, 0, 1, 2] * 1400), 4)
    control = control_labels(words, labels, seed=0)
    by_word = {word: set(control.classes[i::700].tolist()) for i, word in enumerate(words[:700])}
    assert all(len(found) == 1 for found in by_word.values()) and control.count == 4
    shares = np.bincount(control.classes, minlength=4) / 7000
    np.testing.assert_allclose(shares, [0.6, 0.2, 0.2, 0], atol=0.06)
