"""Made-up tasks on the order of words: are the words of this sentence where they stood, or have some changed places?

How the sentences are chosen:

* `sides` splits prose into sentences (`split_sentences`) and deals its documents, not its sentences, to training and
  test; a sentence that occurs twice anywhere is used once.
* A sentence is used if it has a run of plain words that may change places: letters alone, no word twice (whatever its
  case), neither the first nor the last word of the sentence. So its marks and its first capital stay in their places.
* Half of those, drawn at random, are changed. Every sentence is there once, as written or changed, and with the same
  words and tokens either way, as every plain word keeps the blank before it; so a bag of words is at chance (tested).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import regex

from threeml_core.data.prepare import held_out
from threeml_core.foundation.errors import CorpusError, ParameterError
from threeml_core.foundation.files import fingerprint

SHORTEST, LONGEST = 5, 40
"""Words of a sentence, of which blanks are the borders."""

_SENTENCE_END = regex.compile(
    r"""(?<=[^\p{Lu}\s][.!?][\p{Pe}\p{Pf}"']*)(?<!\b(?:Mr|Mrs|Ms|Dr|St)\.)\s+(?=[\p{Ps}\p{Pi}"']*\p{Lu})"""
)
_SENTENCE = regex.compile(r"""[\p{Ps}\p{Pi}"']*\p{Lu}.*[.!?][\p{Pe}\p{Pf}"']*""")


@dataclasses.dataclass(frozen=True)
class Example:
    """A sentence, and the fingerprint of the document it is from.

    Attributes:
        text: its words with a blank between them.
        label: 0 as written, 1 with words that have changed places; of other tasks what is asked, in whole numbers.
        document: equal for sentences of the same document alone.
    """

    text: str
    label: int
    document: str


def split_sentences(document: str) -> list[str]:
    """Sentences of `SHORTEST` to `LONGEST` words of prose that has a paragraph a line.

    A sentence ends with `.`, `!` or `?`, and closing quotes or brackets if any, before a blank and a capital, which may
    have opening ones before it; but not behind a capital ("J. Smith", "U.S. Army") nor behind Mr., Mrs., Ms., Dr. or
    St. What does not begin with a capital or end with such a mark, as a heading, is left out.
    """
    found = (" ".join(part.split()) for line in document.split("\n") for part in _SENTENCE_END.split(line))
    return [text for text in found if SHORTEST <= len(text.split(" ")) <= LONGEST and _SENTENCE.fullmatch(text)]


def sides(documents: Iterable[str], test_share: float = 0.2) -> tuple[list[Example], list[Example]]:
    """Sentences as written, for training and for test; no document is in both.

    A document's text alone says on which side it is and where its sentences stand there: neither the order of the
    documents nor whether they are held out from pre-training, which is another hash, has a part in it.

    Args:
        documents: texts, a paragraph a line; of two equal ones the second changes nothing.
        test_share: fraction of the documents in test, on average.

    Raises:
        CorpusError: a side has no sentence.
    """
    texts = {fingerprint(text): text for text in map(str.strip, documents)}
    source: dict[str, str] = {}  # sentence -> the first document that has it
    for name, text in sorted(texts.items()):
        for sentence in split_sentences(text):
            source.setdefault(sentence, name)
    training: list[Example] = []
    test: list[Example] = []
    for sentence, name in source.items():
        (test if held_out(name, test_share) else training).append(Example(sentence, 0, name))
    if not training or not test:
        raise CorpusError(
            f"{len(texts):,} held-out documents have {len(training):,} sentences for training and {len(test):,} for "
            "test, expected some on each side: give more validation text (validation_fraction, validation_corpus)"
        )
    return training, test


def bigram_shift(sentences: Sequence[Example], seed: int) -> tuple[list[Example], int]:
    """In half of the sentences two neighbouring plain words have changed places; see `shuffled_span`.

    Source: Conneau et al., "What you can cram into a single vector" (2018), BShift.
    """
    return shuffled_span(sentences, seed, length=2)


def shuffled_span(sentences: Sequence[Example], seed: int, length: int = 4) -> tuple[list[Example], int]:
    """In half of the sentences, drawn at random, no word of a run stands where it stood; which run is drawn too.

    Args:
        sentences: as written, see `sides`.
        seed: equal ones give equal examples of equal sentences.
        length: plain words in the run.

    Returns:
        The examples in the order of the sentences, of label 1 as many as of label 0 or one fewer; and how many
        sentences were passed over, as they have no such run.

    Raises:
        CorpusError: fewer than two sentences have one.
        ParameterError: `length` is below 2.
    """
    if length < 2:
        raise ParameterError(f"length={length}: expected at least 2 words that change places")
    rng = np.random.default_rng(seed)
    usable = [(sentence, runs) for sentence in sentences if (runs := _runs(sentence.text.split(" "), length))]
    if len(usable) < 2:
        raise CorpusError(
            f"{len(usable)} of {len(sentences):,} sentences have {length} plain words in a row that may change places, "
            "expected at least 2: give more text"
        )
    is_changed = rng.permutation(len(usable)) < len(usable) // 2
    examples = [
        Example(_changed(sentence.text.split(" "), rng.choice(runs), length, rng), 1, sentence.document)
        if changed
        else sentence
        for (sentence, runs), changed in zip(usable, is_changed, strict=True)
    ]
    return examples, len(sentences) - len(usable)


def _runs(words: Sequence[str], length: int) -> list[int]:
    """Where runs of `length` inner words begin that are letters alone and all different."""
    starts = range(1, len(words) - length)
    runs = ((start, words[start : start + length]) for start in starts)
    return [start for start, run in runs if all(map(str.isalpha, run)) and len({*map(str.casefold, run)}) == length]


def _changed(words: list[str], start: int, length: int, rng: np.random.Generator) -> str:
    places = np.arange(length)
    order = rng.permutation(length)
    while (order == places).any():
        order = rng.permutation(length)
    return " ".join([*words[:start], *(words[start + place] for place in order), *words[start + length :]])
