"""What encoders are asked: words of treebanks, whether words have changed places, and how long or deep a sentence is.

Training text is for fitting and, a tenth of its sentences, for choosing how strong the ridge penalty is. No document of
a text is in training and test; a treebank's sides are its files'.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from threeml_core.config import StudyConfig
from threeml_core.data.prepare import held_out, held_out_documents
from threeml_core.foundation.errors import CorpusError, ParameterError
from threeml_core.foundation.files import fingerprint
from threeml_core.foundation.log import Log
from threeml_core.information.probe import Labels, control_labels
from threeml_core.information.treebank import Sentence, read_treebanks
from threeml_core.information.word_order import Example, bigram_shift, shuffled_span, sides
from threeml_core.parameters.probing import CONTROL, TREEBANK_TASKS, WORD_TASKS

_TUNE, _TEST = 0.1, 0.4  # shares of training sentences, and of a text's documents: few have many sentences
_OF_A_DOCUMENT = 300
FREQUENT, BINS = 32, 6
"""Words that `next_word` tells apart; classes of numbers, as many as SentEval's of lengths."""

_ORDER_TASKS = {"bigram_shift": bigram_shift, "shuffled_span": shuffled_span}


@dataclasses.dataclass(frozen=True)
class Questions:
    """Texts, their units, and what is asked of these.

    Attributes:
        texts: sentences.
        spans: of each text, of each unit: its first character and the one behind its last.
        documents: of each text: what it is from; texts of one document are no independent items.
        parts: of each text: `fit`, `tune` or `test`.
        tasks: name -> labels of all units, which are numbered through.
        words: of each unit of a task on words; empty for tasks on sentences, whose one unit is the text.
        passed_over: sentences that no question could be made of.
    """

    texts: Sequence[str]
    spans: Sequence[Sequence[tuple[int, int]]]
    documents: Sequence[str]
    parts: Sequence[str]
    tasks: Mapping[str, Labels]
    words: Sequence[str] = ()
    passed_over: int = 0

    @property
    def fingerprint(self) -> str:
        """Of all of it."""
        labels = {name: [of.classes.tolist(), of.count] for name, of in self.tasks.items()}
        spans = [list(map(list, of_text)) for of_text in self.spans]
        return fingerprint([list(self.texts), spans, list(self.documents), list(self.parts), labels])

    def where(self, part: str) -> list[int]:
        """Places of its texts."""
        return [i for i, of in enumerate(self.parts) if of == part]

    @property
    def sizes(self) -> list[int]:
        """Units of each document of the test part."""
        return self.by_document(np.ones(len(self.of_unit())), np.arange(len(self.of_unit())))

    def by_document(self, values: np.ndarray, units: np.ndarray) -> list[int]:
        """Sum of whole numbers of units (0 for all others) over each document of the test part, in its order."""
        sums: dict[str, int] = dict.fromkeys((self.documents[i] for i in self.where("test")), 0)
        for text, value in zip(self.of_unit()[units], values, strict=True):
            if self.parts[text] == "test":
                sums[self.documents[text]] += int(value)
        return list(sums.values())

    def of_unit(self) -> np.ndarray:
        """(N,) the text of each unit."""
        return np.repeat(np.arange(len(self.texts)), [len(spans) for spans in self.spans])

    def floors(self) -> dict[str, tuple[float, float]]:
        """Task -> accuracy on the test part of the most frequent class, and of the words alone, without an encoder.

        On words: the most frequent class of the word in training (of none: of all words); on sentences: logistic
        regression on which words it has.
        """
        is_test = np.isin(self.of_unit(), self.where("test"))
        found = {}
        for name, of in self.tasks.items():
            train, test = of.classes[~is_test], of.classes[is_test]
            most = int(np.bincount(train).argmax())
            alone = _by_word if self.words else _by_bag
            answers = alone(self.words or self.texts, is_test, train, most)
            found[name] = float((test == most).mean()), float((answers == test).mean())
        return found


def _by_word(words: Sequence[str], is_test: np.ndarray, train: np.ndarray, most: int) -> np.ndarray:
    counts: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for word, label in zip(itertools.compress(words, ~is_test), train, strict=True):
        counts[word][int(label)] += 1
    best = {word: of.most_common(1)[0][0] for word, of in counts.items()}
    return np.array([best.get(word, most) for word in itertools.compress(words, is_test)])


def _by_bag(texts: Sequence[str], is_test: np.ndarray, train: np.ndarray, most: int) -> np.ndarray:
    counter, of = CountVectorizer(token_pattern=r"\S+", binary=True), np.array(texts, object)
    model = LogisticRegression(max_iter=2000).fit(counter.fit_transform(of[~is_test]), train)
    answers: np.ndarray = model.predict(counter.transform(of[is_test]))
    return answers


def questions_of(config: StudyConfig, log: Log) -> dict[str, Questions]:
    """What `probe_tasks` asks for: `words` (all tasks on them, from the same states), and each task on sentences.

    Without `ud` the tasks on treebanks are left out, which is said.

    Raises:
        StudyError: bad treebanks, too little text, or nothing to ask.
    """
    wanted = config.listed("probe_tasks")
    found: dict[str, Questions] = {}
    of_treebanks = [name for name in wanted if name in TREEBANK_TASKS]
    if config.ud is not None and of_treebanks:
        treebanks = read_treebanks(config.ud)
        if words := [name for name in of_treebanks if name in WORD_TASKS]:
            found["words"] = word_questions(*treebanks, words, config.probe_seed)
        if "depth" in wanted:
            found["depth"] = depth_questions(*treebanks)
    elif of_treebanks:
        log(f"{', '.join(of_treebanks)}: left out, as there is no treebank (ud: a folder of Universal Dependencies)")
    if set(wanted) - {*TREEBANK_TASKS}:
        training, test = map(_few_of_each, sides(held_out_documents(config), _TEST))
        share = min(1.0, config.max_probe_sentences / (len(training) + len(test)))
        training, test = (_evenly(side, share) for side in (training, test))
        for name in filter(_ORDER_TASKS.__contains__, wanted):
            found[name] = order_questions(name, _ORDER_TASKS[name], training, test, config.probe_seed)
        if "sentence_length" in wanted:
            found["sentence_length"] = length_questions(training, test)
    if not found:
        raise ParameterError(f"probe_tasks={config.probe_tasks!r} needs a treebank: give ud, a folder of .conllu files")
    for name, of in found.items():
        counts = collections.Counter(of.parts)
        asked = ", ".join(f"{counts[part]:,} {part}" for part in ("fit", "tune", "test"))
        documents = len(set(of.documents))
        log(f"{name}: {asked} sentences of {documents:,} documents; passed over: {of.passed_over:,}")
    return found


def _few_of_each(side: Sequence[Example]) -> list[Example]:
    """At most `_OF_A_DOCUMENT` sentences of each document, the first ones: a long one would be most of a side."""
    counts: collections.Counter[str] = collections.Counter()
    kept = []
    for example in side:
        counts[example.document] += 1
        if counts[example.document] <= _OF_A_DOCUMENT:
            kept.append(example)
    return kept


def _evenly(side: Sequence[Example], share: float) -> list[Example]:
    places = np.linspace(0, len(side) - 1, max(1, round(share * len(side)))).round().astype(int)
    return [side[i] for i in dict.fromkeys(places.tolist())]


def _training_parts(texts: Sequence[str]) -> list[str]:
    # with words before them, as the bare text may be a document that the same hash has held out of pre-training
    return ["tune" if held_out(f"tune {text}", _TUNE) else "fit" for text in texts]


def word_questions(
    training: Sequence[Sentence], test: Sequence[Sentence], tasks: Sequence[str], seed: int
) -> Questions:
    """Of treebanks: each task and its control task. Training sentences that stand in the test too are passed over."""
    kept = _not_in_test(training, test)
    passed_over, training = len(training) - len(kept), kept
    sentences = [*training, *test]
    by_sentence = [[s.text[begin:end].lower() for begin, end in s.spans] for s in sentences]
    words = list(itertools.chain(*by_sentence))
    labels: dict[str, Labels] = {}
    for name in tasks:
        if name == "next_word":
            asked = _next_words(by_sentence, len(training))
        else:
            asked = [label for s in sentences for label in s.labels[name]]
        classes, numbers = np.unique(asked, return_inverse=True)
        labels[name] = Labels(numbers, len(classes))
    controls = {CONTROL.format(name): control_labels(words, of, seed) for name, of in labels.items()}
    parts = [*_training_parts([s.text for s in training]), *["test"] * len(test)]
    documents = _documents([(s.document or s.text, s.text) for s in sentences], len(training))
    spans = [s.spans for s in sentences]
    return Questions([s.text for s in sentences], spans, documents, parts, labels | controls, words, passed_over)


def _not_in_test(training: Sequence[Sentence], test: Sequence[Sentence]) -> list[Sentence]:
    known = {sentence.text for sentence in test}
    if kept := [sentence for sentence in training if sentence.text not in known]:
        return kept
    raise CorpusError(f"all {len(training):,} training sentences of the treebanks stand in the test too: give others")


def _documents(sentences: Sequence[tuple[str, str]], trained: int) -> list[str]:
    """Of (document, text), the `trained` first of them for training; of one document in test: each text is its own."""
    several = len({document for document, _ in sentences[trained:]}) > 1  # one says nothing of how documents vary
    return [document if several else text for document, text in sentences]


def _next_words(sentences: Sequence[Sequence[str]], trained: int) -> list[str]:
    """Of each word the next one of its sentence if that is among the `FREQUENT` of the `trained` first ones, or ""."""
    counts = collections.Counter(itertools.chain(*sentences[:trained]))
    frequent = {word for word, _ in counts.most_common(FREQUENT)}
    return [word if word in frequent else "" for words in sentences for word in [*words[1:], ""]]


def order_questions(
    name: str,
    task: Callable[[Sequence[Example], int], tuple[list[Example], int]],
    training: Sequence[Example],
    test: Sequence[Example],
    seed: int,
) -> Questions:
    """Of sentences as written: half of them are changed, on each side."""
    (fitted, lost), (judged, further) = task(training, seed), task(test, seed + 1)
    return _of_sentences(name, fitted, judged, 2, lost + further)


def length_questions(training: Sequence[Example], test: Sequence[Example]) -> Questions:
    """How many words does a sentence as written have? In `BINS` bins. Source: Conneau et al. (2018), SentLen."""

    def counted(side: Sequence[Example]) -> list[Example]:
        return [dataclasses.replace(example, label=len(example.text.split(" "))) for example in side]

    return _in_bins("sentence_length", counted(training), counted(test))


def depth_questions(training: Sequence[Sentence], test: Sequence[Sentence]) -> Questions:
    """How deep is a sentence's dependency tree? In `BINS` bins. As TreeDepth of Conneau et al. (2018), of other trees.

    Theirs are chosen so that depth does not go with length; here it does.
    """

    def measured(side: Sequence[Sentence]) -> list[Example]:
        return [Example(s.text, s.depth, s.document or s.text) for s in side]

    kept = _not_in_test(training, test)
    return _in_bins("depth", measured(kept), measured(test), len(training) - len(kept))


def _in_bins(name: str, training: Sequence[Example], test: Sequence[Example], passed_over: int = 0) -> Questions:
    """Numbers (labels) in bins that hold as many training sentences each as whole numbers allow; at most `BINS`."""
    values, counts = np.unique([example.label for example in training], return_counts=True)
    if len(values) < 2:
        raise CorpusError(
            f"{name} is {values[0]} for all {len(training):,} training sentences, expected sentences that differ: give "
            "other text, or leave it out of probe_tasks"
        )
    shares = counts.cumsum()[:-1] / counts.sum()
    edges = values[np.unique(np.abs(shares[:, None] - np.arange(1, BINS) / BINS).argmin(0))]  # last ones of their bins

    def binned(side: Sequence[Example]) -> list[Example]:
        return [dataclasses.replace(example, label=int(np.searchsorted(edges, example.label))) for example in side]

    return _of_sentences(name, binned(training), binned(test), len(edges) + 1, passed_over)


def _of_sentences(
    name: str, fitted: Sequence[Example], judged: Sequence[Example], count: int, passed_over: int
) -> Questions:
    examples = [*fitted, *judged]
    parts = [*_training_parts([e.text for e in fitted]), *["test"] * len(judged)]
    labels = Labels(np.array([example.label for example in examples]), count)
    spans = [((0, len(example.text)),) for example in examples]
    documents = _documents([(e.document, e.text) for e in examples], len(fitted))
    return Questions([e.text for e in examples], spans, documents, parts, {name: labels}, (), passed_over)
