"""What word counts alone reach on a task: a bag of words, beside which a fine-tuned encoder has to stand."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler

from threeml_core.config import StudyConfig
from threeml_core.foundation.log import Log
from threeml_core.glue.metrics import task_metrics, task_score
from threeml_core.glue.predictions import FILE, Predictions
from threeml_core.glue.readers import TaskData
from threeml_core.runs.jobs import Job
from threeml_core.runs.record import RunRecord, recorded, run_folder, run_id

STAGE = "baseline"
MAX_EXAMPLES = 20_000
"""Training examples used at most, evenly spaced, so that the baseline takes seconds on every task."""

_TOKENS = r"\w+|[^\w\s]"  # words and marks


def bag_of_words(data: TaskData) -> Predictions:
    """Logistic (for a regression: ridge) regression on which words and marks each text holds, and on its length.

    Trained on at most `MAX_EXAMPLES` of the training examples. The texts of a pair have features of their own; nothing
    in it sees order, or one text in the light of the other.
    """
    task = data.task
    step = max(1, -(-len(data.train) // MAX_EXAMPLES))
    targets = data.train.labels[::step]
    words, lengths = CountVectorizer(token_pattern=_TOKENS, binary=True), FunctionTransformer(_lengths)
    parts = [(part, column) for column in range(len(task.columns)) for part in (words, lengths)]
    if task.is_regression:
        regression: Any = Ridge()
    else:  # of a single class there is nothing to tell apart: it is the answer
        regression = LogisticRegression(max_iter=2000) if len(np.unique(targets)) > 1 else DummyClassifier()
    model = make_pipeline(make_column_transformer(*parts, sparse_threshold=1), MaxAbsScaler(), regression)
    model.fit(np.array(data.train.texts[::step], object), targets)
    logits = {}
    for tag, split in data.validation.items():
        texts = np.array(split.texts, object)
        if task.is_regression:
            logits[tag] = model.predict(texts)[:, None]
        else:  # classes that do not occur in training can never be predicted
            logits[tag] = np.full((len(split), task.num_labels), -np.inf)
            logits[tag][:, model.classes_] = model.predict_log_proba(texts)
    return Predictions(task, {tag: split.labels for tag, split in data.validation.items()}, logits)


def _lengths(column: np.ndarray) -> np.ndarray:
    return np.array([[len(text), len(text.split()), sum(not c.isalnum() for c in text)] for text in column], float)


def baseline_job(data: TaskData, config: StudyConfig) -> Job:
    """The bag of words as a run with a record, done once for the same examples."""
    identity = {"task": data.task.name, "text": data.fingerprint(), "max_examples": MAX_EXAMPLES}
    name = run_id(f"bag-of-words-{data.task.name}", identity)
    work = functools.partial(_run, data, config, identity, run_folder(config.runs_dir, STAGE, name))
    return Job(STAGE, name, work, title=f"{data.task.name} bag of words")


def _run(data: TaskData, config: StudyConfig, identity: dict, folder: Path, log: Log) -> RunRecord:
    def work(environment: dict[str, Any]) -> dict[str, Any]:
        started = time.perf_counter()
        answers = bag_of_words(data)
        answers.save(folder)
        values, undefined = task_metrics(data.task, answers.splits)
        return {
            "metrics": {"score": task_score(data.task, values), **values, "undefined": undefined},
            "timing": {"seconds": time.perf_counter() - started},
            "data": {"task": data.task.name, "is_subset": data.is_subset, "splits": data.describe()},
            "files": (FILE,),
        }

    return recorded(folder, identity, config, work, wait=True)
