"""Files of tasks: the official layout, parquet, the hub, bad rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tests.glue_files import write_glue
from threeml_core.config import StudyConfig, make_config
from threeml_core.foundation.errors import CorpusError
from threeml_core.glue.readers import load_task
from threeml_core.glue.tasks import GLUE_TASKS


def config_of(folder: Path | str, **given: object) -> StudyConfig:
    return make_config({"glue": str(folder), **given})


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    return write_glue(tmp_path / "glue_data", train=6, dev=4)


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
