"""Downstream tasks: the official files as they are, subsets, parquet, the hub, and the diagnostic tasks."""

from __future__ import annotations

import collections
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tests.glue_files import write_glue
from threeml_core.config import StudyConfig, make_config
from threeml_core.data.bundled import bundled_articles
from threeml_core.data.prepare import held_out
from threeml_core.foundation.errors import CorpusError, ParameterError
from threeml_core.glue.baselines import bag_of_words
from threeml_core.glue.diagnostic import diagnostic_rows, shuffled
from threeml_core.glue.metrics import metric_value
from threeml_core.glue.readers import load_task
from threeml_core.glue.tasks import DIAGNOSTIC_TASKS, GLUE_TASKS, select_tasks


def config_of(folder: Path | str, **given: object) -> StudyConfig:
    return make_config({"glue": str(folder), **given})


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    return write_glue(tmp_path / "glue_data", train=6, dev=4)


# -- choosing ---------------------------------------------------------------------------------------------------


def test_choosing_tasks() -> None:
    def names(tasks: str, glue: str = "hub") -> list[str]:
        return [task.name for task in select_tasks(make_config({"tasks": tasks, "glue": glue}))]

    assert names("all") == ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"]
    assert names("RTE, SST-2,sts") == ["sst2", "stsb", "rte"], "in the paper's order and spelling"
    assert names("ablation") == ["qqp", "mnli", "qnli"]
    assert names("all", "bundled") == ["word_order", "next_sentence", "passage_relation"]


@pytest.mark.parametrize(
    ("tasks", "glue", "message"),
    [
        ("colla", "hub", "unknown task 'colla': did you mean 'cola'?"),
        ("cola", "bundled", "unknown task 'cola': glue='bundled' has: word_order"),
        ("wnli", "hub", "WNLI is left out, as in the paper"),
        (" , ", "hub", "expected all, or names from cola"),
    ],
)
def test_unknown_tasks(tasks: str, glue: str, message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        select_tasks(make_config({"tasks": tasks, "glue": glue}))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_papers_exceptions() -> None:
    assert "wnli" not in GLUE_TASKS
    assert {name for name, task in GLUE_TASKS.items() if task.starts_from == "mnli"} == {"rte", "stsb", "mrpc"}
    assert {name for name, task in GLUE_TASKS.items() if task.large} == {"qqp", "mnli", "qnli"}


# -- TSV --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GLUE_TASKS)
def test_official_layout(name: str, glue: Path) -> None:
    task = GLUE_TASKS[name]
    data = load_task(task, config_of(glue))
    assert len(data.train) == 6 and set(data.validation) == set(task.validation)
    assert all(len(texts) == len(task.columns) for texts in data.train.texts)
    for texts, label in zip(data.train.texts, data.train.labels, strict=True):
        word = ["cat", "dog", "bird"][{0.0: 0, 2.5: 1, 5.0: 2}[float(label)] if task.is_regression else label]
        assert f'The {word} said "no' in texts[-1]
    assert data.is_subset, "6 rows are not the official split, whatever the file is called"
    assert data.train.labels.dtype == (np.float32 if name == "stsb" else np.int64)


def test_columns_by_name_marks_line_ends(tmp_path: Path) -> None:
    """A byte-order mark, CRLF, columns in another order, quotation marks without partner, odd line separators."""
    folder = tmp_path / "RTE"
    folder.mkdir()
    text = '\ufefflabel\tsentence2\tindex\tsentence1\r\nentailment\tB "x\t0\tA\u2028b\r\nnot_entailment\tD\t1\t"C \r\n'
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_bytes(text.encode())
    data = load_task(GLUE_TASKS["rte"], config_of(tmp_path))
    assert data.train.texts == [("A\u2028b", 'B "x'), ('"C', "D")] and data.train.labels.tolist() == [0, 1]


def test_a_subset_is_taken_only_where_the_official_file_is_missing_and_labelled(glue: Path) -> None:
    folder = glue / "QQP"
    (folder / "train.tsv").rename(folder / "train.subset.tsv")
    (folder / "dev.tsv").rename(folder / "heldout.subset.tsv")
    about = load_task(GLUE_TASKS["qqp"], config_of(glue)).describe()
    assert about["train"] == {"source": "QQP/train.subset.tsv", "examples": 6, "is_subset": True, "skipped_rows": 0}
    assert about["validation"]["source"] == "QQP/heldout.subset.tsv"
    (folder / "train.tsv").write_bytes((folder / "train.subset.tsv").read_bytes())
    assert load_task(GLUE_TASKS["qqp"], config_of(glue)).train.source == "QQP/train.tsv"


def test_max_train_examples_is_a_labelled_fixed_subset(glue: Path) -> None:
    whole = load_task(GLUE_TASKS["sst2"], config_of(glue)).train
    part = load_task(GLUE_TASKS["sst2"], config_of(glue, max_train_examples=3)).train
    assert len(part) == 3 and part.is_subset and "(3 of 6)" in part.source
    pairs = list(zip(whole.texts, whole.labels.tolist(), strict=True))
    assert all(pair in pairs for pair in zip(part.texts, part.labels.tolist(), strict=True))
    assert part.texts == load_task(GLUE_TASKS["sst2"], config_of(glue, max_train_examples=3)).train.texts


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_bad_tsv_files_are_named_with_their_line(glue: Path) -> None:
    def message(task: str) -> str:
        with pytest.raises(CorpusError) as caught:
            load_task(GLUE_TASKS[task], config_of(glue))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    edit(glue / "RTE" / "train.tsv", "sentence2", "hypothesis")
    assert "RTE/train.tsv: no column 'sentence2' in its first line (there is: index, sentence1, hyp" in message("rte")
    path = glue / "SST-2" / "dev.tsv"
    lines = path.read_text().split("\n")
    path.write_text("\n".join([*lines[:3], "one field", *lines[3:]]))
    assert "SST-2/dev.tsv, line 4: 1 fields instead of 2" in message("sst2") and "skip_bad_rows" in message("sst2")
    edit(glue / "QNLI" / "train.tsv", "\tnot_entailment", "\tcontradiction")
    assert "unknown label 'contradiction'; QNLI has entailment, not_entailment" in message("qnli")
    assert "QNLI/train.tsv, line " in message("qnli")
    (glue / "STS-B" / "dev.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t5.5\n")
    assert "STS-B/dev.tsv, line 2: unknown label '5.5'; STS-B has numbers from 0 to 5" in message("stsb")
    (glue / "QQP" / "dev.tsv").write_text("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n")
    assert "QQP: no example in QQP/dev.tsv" in message("qqp")
    (glue / "CoLA" / "train.tsv").write_bytes(b"gj04\t1\t\tcaf\xe9\n")
    assert "CoLA/train.tsv is not valid UTF-8" in message("cola")
    (glue / "MNLI" / "dev_mismatched.tsv").unlink()
    assert "MNLI has no dev_mismatched.tsv or dev_mismatched.subset.tsv" in message("mnli")


def test_missing_folders(glue: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no such folder; expected 'bundled', 'hub' or a folder"):
        load_task(GLUE_TASKS["rte"], config_of(tmp_path / "absent"))
    for path in (glue / "MNLI").iterdir():
        path.unlink()
    with pytest.raises(CorpusError, match=r"neither MNLI/\*.tsv nor mnli/\*.parquet .* or set from_mnli=False"):
        load_task(GLUE_TASKS["mnli"], config_of(glue))


def test_bad_rows_can_be_left_out_and_are_counted(glue: Path) -> None:
    path = glue / "QQP" / "train.tsv"
    path.write_text(path.read_text() + "broken\tline\n")
    data = load_task(GLUE_TASKS["qqp"], config_of(glue, skip_bad_rows=True))
    assert len(data.train) == 6 and data.describe()["train"]["skipped_rows"] == 1


# -- parquet and the hub ----------------------------------------------------------------------------------------


def write_parquet(path: Path, columns: dict, names: list[str] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table(columns)
    if names:
        info = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pyarrow.parquet.write_table(table, path)


MNLI_COLUMNS = {"premise": ["a", "b", "c"], "hypothesis": ["d", "e", "f"], "label": [0, 1, 2], "idx": [0, 1, 2]}


def test_parquet_with_the_hubs_names(tmp_path: Path) -> None:
    """Class ids follow the names in the file, not the order someone else gave them."""
    order = ["contradiction", "entailment", "neutral"]
    for name in ("train", "validation_matched", "validation_mismatched"):
        write_parquet(tmp_path / "mnli" / f"{name}-00000-of-00001.parquet", MNLI_COLUMNS, order)
    data = load_task(GLUE_TASKS["mnli"], config_of(tmp_path))
    assert data.train.texts == [("a", "d"), ("b", "e"), ("c", "f")]
    assert [data.task.labels[i] for i in data.train.labels] == order
    assert set(data.validation) == {"matched", "mismatched"}


def test_parquet_without_names_takes_the_hubs_order(tmp_path: Path) -> None:
    columns = {"sentence": ["good", "bad"], "label": [1, 0]}
    for name in ("train", "validation"):
        write_parquet(tmp_path / "sst2" / f"{name}-00000-of-00001.parquet", columns)
    assert load_task(GLUE_TASKS["sst2"], config_of(tmp_path)).train.labels.tolist() == [1, 0]


def test_bad_parquet(tmp_path: Path) -> None:
    folder = tmp_path / "mnli"

    def message(columns: dict, names: list[str] | None = None) -> str:
        write_parquet(folder / "train-0.parquet", columns, names)
        with pytest.raises(CorpusError) as caught:
            load_task(GLUE_TASKS["mnli"], config_of(tmp_path))
        return str(caught.value)

    assert "mnli/train: its labels are yes, no; MNLI has entailment, neutral" in message(MNLI_COLUMNS, ["yes", "no"])
    assert "mnli/train, row 3: unknown label -1" in message({**MNLI_COLUMNS, "label": [0, 1, -1]})
    assert "mnli/train, row 2: a text is missing" in message({**MNLI_COLUMNS, "premise": ["a", None, "c"]})
    assert "mnli/train: no column 'hypothesis' (there is: premise, label)" in message({"premise": ["a"], "label": [0]})
    assert "has no validation_matched-*.parquet" in message(MNLI_COLUMNS)
    (folder / "train-0.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(CorpusError, match="is not a readable parquet file"):
        load_task(GLUE_TASKS["mnli"], config_of(tmp_path))


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of `datasets`, and what comes of it, with a dataset in memory in place of the network."""
    import datasets

    asked = []

    def load_dataset(path: str, name: str, split: str) -> datasets.Dataset:
        asked.append((path, name, split))
        features = datasets.Features(
            {
                "sentence1": datasets.Value("string"),
                "sentence2": datasets.Value("string"),
                "label": datasets.ClassLabel(names=["not_equivalent", "equivalent"]),
                "idx": datasets.Value("int32"),
            }
        )
        rows = {"sentence1": ["a", "b "], "sentence2": ["c", "d"], "label": [1, 0], "idx": [0, 1]}
        return datasets.Dataset.from_dict(rows, features=features)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = load_task(GLUE_TASKS["mrpc"], config_of("hub"))
    assert asked == [("nyu-mll/glue", "mrpc", "train"), ("nyu-mll/glue", "mrpc", "validation")]
    assert data.train.texts == [("a", "c"), ("b", "d")] and data.train.labels.tolist() == [1, 0]

    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(CorpusError, match="did not come .ConnectionError: no network.; check the network, or set glue"):
        load_task(GLUE_TASKS["mrpc"], config_of("hub"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(CorpusError, match="needs `pip install datasets`"):
        load_task(GLUE_TASKS["mrpc"], config_of("hub"))


def test_real_files(shared_data: Path) -> None:
    """The official files, with their stray quotation marks: row for row, label for label."""
    config = config_of(shared_data / "glue").replace(max_train_examples=None)
    sizes = {"cola": (8551, 1043), "sst2": (67349, 872), "mrpc": (3668, 408), "stsb": (5749, 1500), "rte": (2490, 277)}
    for name, (train, dev) in sizes.items():
        data = load_task(GLUE_TASKS[name], config)
        assert (len(data.train), len(data.validation[""])) == (train, dev) and not data.is_subset, name
    counts = {"qqp": [17976, 10524], "mnli": [3217, 3136, 3115], "qnli": [4669, 4624]}
    for name, expected in counts.items():
        data = load_task(GLUE_TASKS[name], config)
        assert data.is_subset and np.bincount(data.train.labels).tolist() == expected, name
    assert np.bincount(load_task(GLUE_TASKS["cola"], config).train.labels).tolist() == [
        2528,
        6023,
    ]


# -- diagnostic tasks -------------------------------------------------------------------------------------------


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
def test_a_bag_of_words_stays_at_chance(name: str) -> None:
    """No word, mark or length tells the answer: word counts stay inside the chance interval of the validation set."""
    task = DIAGNOSTIC_TASKS[name]
    data = load_task(task, config_of("bundled"))
    labels, predictions = bag_of_words(data).splits[""]
    accuracy = metric_value("accuracy", labels, predictions)[0]
    chance = 1 / len(task.labels)
    assert abs(accuracy - chance) < 2.6 * (chance * (1 - chance) / len(labels)) ** 0.5


def test_the_bag_of_words_finds_what_a_word_tells(tmp_path: Path) -> None:
    """The same baseline reads an answer off a word: it would have noticed a leak."""
    data = load_task(GLUE_TASKS["qnli"], config_of(write_glue(tmp_path, train=60, dev=30)))
    labels, predictions = bag_of_words(data).splits[""]
    assert np.array_equal(labels, predictions)
    data = load_task(GLUE_TASKS["stsb"], config_of(tmp_path))
    labels, predictions = bag_of_words(data).splits[""]
    assert np.corrcoef(labels, predictions)[0, 1] > 0.95


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


def test_the_bag_of_words_with_one_class(tmp_path: Path) -> None:
    data = load_task(GLUE_TASKS["qnli"], config_of(write_glue(tmp_path, train=1, dev=6)))
    assert (bag_of_words(data).splits[""][1] == data.train.labels[0]).all()
