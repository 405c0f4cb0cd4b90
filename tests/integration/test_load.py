"""Load: ten thousand run records, and two gigabytes of text."""

from __future__ import annotations

import dataclasses
import json
import lzma
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
import pytest

from tests.audit import audited
from tests.study_records import finetuned, pretrained
from threeml_core.config import make_config
from threeml_core.foundation.files import fingerprint
from threeml_core.glue.protocol import FinetuneRun, GlueStudy, TaskResult
from threeml_core.glue.tasks import GLUE_TASKS
from threeml_core.information import findings as information_findings
from threeml_core.information.estimate import LayerInformation
from threeml_core.reporting import pretraining
from threeml_core.reporting.claims import finding_table
from threeml_core.reporting.commands import study_runs_table
from threeml_core.reporting.figure_3 import figure_3_values
from threeml_core.reporting.figure_5 import figure_5_values
from threeml_core.reporting.finetuning import failed_table, protocol_table, runs_table
from threeml_core.reporting.information import information_cost_table
from threeml_core.reporting.pretraining import comparable, comparison_table, plot_training
from threeml_core.reporting.report import build_report
from threeml_core.reporting.table_1 import table_1
from threeml_core.reporting.table_2 import swap_table, table_2
from threeml_core.reporting.table_3 import budget_table, difference_table, table_3
from threeml_core.runs.archive import read_archive
from threeml_core.runs.record import RunRecord, runs_named
from threeml_core.study.claims import claims
from threeml_core.study.ledger import find, study_runs
from threeml_core.study.results import Result

RECORDS = 10_000
SECONDS = 30
"""For what takes 5 to 10 on two cores: a limit that holds on a slow machine, and that a quadratic loop breaks."""

LARGE = make_config({"preset": "efficient-large", "num_pretrain_seeds": 2})
SMALL = make_config({})
SCORES = dict.fromkeys(GLUE_TASKS, 0.8)


def write_records(records: Sequence[RunRecord], runs_dir: Path) -> None:
    """As `write_record`, without waiting for the disk."""
    for record in records:
        folder = record.folder(runs_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "record.json").write_text(json.dumps(vars(record)), encoding="utf-8")


@pytest.fixture(scope="module")
def records() -> list[RunRecord]:
    """The paper's whole study with two pre-training seeds: 72 pre-trainings, 10,320 fine-tunings."""
    found = []
    for run in study_runs(LARGE):
        for seed in run.seeds:
            found.append(pretrained(run, seed, eval_corruption="one"))
            found += finetuned(run, found[-1], LARGE, SCORES)
    assert len(found) > RECORDS
    return found


def test_the_study_from_ten_thousand_records(
    records: list[RunRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tables, and the report from the run folders; each record is opened once, each run looked at a few times."""
    write_records(records, tmp_path)
    calls = 0
    of = FinetuneRun.of

    def counted(record):
        nonlocal calls
        calls += 1
        return of(record)

    monkeypatch.setattr(FinetuneRun, "of", counted)
    started = time.perf_counter()
    outcomes = find(LARGE, None, records)
    assert all(outcome.is_finished for outcome in outcomes)
    assert calls < 10 * len(records), "a loop over runs within a loop over records"
    tables = [
        study_runs_table(outcomes, LARGE),
        figure_3_values(outcomes, LARGE),
        table_1(outcomes, LARGE),
        *(table_2(name, outcomes, LARGE) for name in ("Table 2a", "Table 2b", "Table 2c")),
        swap_table(outcomes),
        figure_5_values(outcomes, LARGE),
        table_3(outcomes, LARGE),
        difference_table(outcomes, LARGE),
        budget_table(outcomes),
        finding_table(claims(LARGE, outcomes, ())),
    ]
    shown = "".join(table._repr_html_() for table in tables)
    assert runs_named(shown, [record.run_id for record in records]) == {record.run_id for record in records}
    page = nbformat.v4.new_code_cell("shown", outputs=[nbformat.v4.new_output("display_data", {"text/html": shown})])
    (tmp_path / "notebooks").mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=[page]), tmp_path / "notebooks" / "06_comparison.ipynb")
    config = LARGE.replace(runs_dir=str(tmp_path))
    with audited("open") as opened:
        index = build_report(tmp_path / "notebooks", tmp_path / "report", config)
    paths = [str(path) for _, (path, *_) in opened if str(path).endswith("record.json")]
    assert len(paths) == len(set(paths)) == len(records)
    assert len(read_archive(index.parent)) == len(records)
    assert time.perf_counter() - started < SECONDS


@pytest.fixture(scope="module")
def seeds() -> list[RunRecord]:
    """One model with ten thousand seeds, oldest first."""
    run = next(run for run in study_runs(SMALL, ["Table 3"]) if run.config.architecture == "self")
    first = pretrained(run, 0, eval_corruption="one")
    return [
        dataclasses.replace(
            first,
            run_id=f"self-{fingerprint(seed, 10)}",
            parameters={**first.parameters, "seed": seed},
            environment={**first.environment, "finished": f"2026-01-01T00:00:00.{seed:06}+00:00"},
        )
        for seed in range(RECORDS)
    ]


def test_one_run_beside_ten_thousand(seeds: list[RunRecord], monkeypatch: pytest.MonkeyPatch) -> None:
    """Notebook 02: the table has all of them; the figure draws the run and the newest others, and says so."""
    started = time.perf_counter()
    here = seeds[RECORDS // 2]
    found = comparable(here, seeds)
    assert len(found) == len(comparison_table(here, found).rows) == RECORDS
    read: list[Path] = []

    def metrics(path: Path) -> list[dict[str, float]]:
        read.append(path)
        return [{"step": step, "train_loss": 3.0, "eval_perplexity_masked": 20.0} for step in (1, 2)]

    monkeypatch.setattr(pretraining, "read_metrics", metrics)
    figure = plot_training(here, found, "runs")
    newest = [record.run_id for record in seeds[1 - pretraining.MOST_CURVES :]]
    assert sorted(path.parent.name for path in read) == sorted([here.run_id, *newest])
    assert f"; {RECORDS - pretraining.MOST_CURVES:,} older ones are not." in figure.alt
    assert time.perf_counter() - started < SECONDS


def test_a_study_of_hundreds_of_seeds(seeds: list[RunRecord]) -> None:
    """Runs are looked up by seed: 300 of them among 10,000 records take no 3,000,000 comparisons."""
    config = SMALL.replace(num_pretrain_seeds=300)
    started = time.perf_counter()
    outcomes = find(config, ["Table 3"], seeds)
    assert sorted(len(outcome.pretraining) for outcome in outcomes) == [0, 0, 0, 0, 300]
    tables = [study_runs_table(outcomes, config), table_3(outcomes, config)]
    assert len(tables[0].rows) == 5 * 300
    assert time.perf_counter() - started < SECONDS


def test_every_run_of_a_fine_tuning(records: list[RunRecord]) -> None:
    """Notebook 03: a study of 10,320 fine-tunings."""
    started = time.perf_counter()
    tuned = [
        dataclasses.replace(
            record, timing={"sequences_per_second": 1.0}, metrics={**record.metrics, "is_constant": False}
        )
        for record in records
        if record.stage == "finetune"
    ]
    of_task: dict[str, list[RunRecord]] = {}
    for record in tuned:
        of_task.setdefault(record.identity["task"], []).append(record)
    results = [
        TaskResult(GLUE_TASKS[name], tuple(of), tuple(of[:5]), {}, 0.8, 0.7, 0.9, 0.3, {}, of[0])
        for name, of in of_task.items()
    ]
    found = GlueStudy("model", "self", "model", tuple(results))
    assert len(runs_table(found).rows) == len(tuned) + len(results)
    assert failed_table([found]).rows[0][1] == f"all {len(tuned)} runs ended, none with one answer for everything"
    assert len(protocol_table(found).rows) == len(results)
    assert time.perf_counter() - started < SECONDS


def test_mutual_information_of_ten_thousand_runs(seeds: list[RunRecord], monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim of Figure 4 pairs them without looking at every pair."""
    looked = 0
    layer = information_findings._layer

    def counted(record: RunRecord, number: int) -> LayerInformation | None:
        nonlocal looked
        looked += 1
        return layer(record, number)

    monkeypatch.setattr(information_findings, "_layer", counted)
    values = {
        "plug_in": (0.5,),
        "corrected": (0.4,),
        "extrapolation": (0.0,),
        "floor": (0.1,),
        "standard_error": (0.01,),
    }
    last = LayerInformation(SMALL.num_hidden_layers, 8, 9_999, 1.0, **values, pairs_per_cell=(9.0,), clusters_used=(9,))
    layers = [dataclasses.asdict(dataclasses.replace(last, layer=number)) for number in (1, last.layer)]
    runs = study_runs(SMALL, ["Figure 4"])
    outcomes = [Result(run, dict(enumerate(seeds[start::3])), {}, {}) for start, run in enumerate(runs)]
    measured = [
        dataclasses.replace(
            record,
            stage="mutual_information",
            parameters={**record.parameters, "architecture": outcome.run.config.architecture, "seed": seed},
            metrics={"layers": layers},
            timing={"states_seconds": 1.0, "clustering_seconds": 1.0, "peak_memory_bytes": 1},
            data={"run": record.run_id, "sample": "one", "on_unigram_plateau": False},
        )
        for outcome in outcomes
        for seed, record in outcome.pretraining.items()
    ]
    started = time.perf_counter()
    claim = next(claim for claim in claims(SMALL, outcomes, measured) if claim.name == "C8")
    assert [len(finding.values) for finding in claim.findings] == [RECORDS // 3] * 2
    assert looked <= 2 * RECORDS
    assert len(information_cost_table(measured).rows) == RECORDS
    assert time.perf_counter() - started < SECONDS


def test_run_ids_in_a_text() -> None:
    """As `name in text` for each of them."""
    text = "a-0123456789 aa-0123456789x\n`b-1-abcdef0123` c-ABCDEF0123 plain c-0123456789"
    names = ["a-0123456789", "aa-0123456789", "b-1-abcdef0123", "1-abcdef0123", "c-ABCDEF0123", "plain", "none"]
    names += ["d-0123456789", "c-012345678", "0123456789", ""]
    assert runs_named(text, names) == {name for name in names if name in text}


# -- text ----------------------------------------------------------------------------------------------------

GIGABYTES = 2.0
LIMIT_MIB = 1536

# not `ru_maxrss`, which begins in a child with the memory of its parent
PREPARE = """
import json, re, sys
from threeml_core.config import make_config
from threeml_core.data.prepare import prepare_data
data = prepare_data(make_config(json.loads(sys.argv[1])))
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
print(json.dumps({"peak_mib": int(peak) / 1024, **{side: data.meta[side] for side in ("train", "validation")}}))
"""


def write_corpus(shards: list[Path], path: Path, size: int) -> int:
    """Write documents of the shards, over and over in new orders, until there are `size` bytes; their number."""
    documents = [d.strip() for shard in shards for d in lzma.decompress(shard.read_bytes()).split(b"\n\n") if d.strip()]
    rng = random.Random(0)
    written = count = 0
    with path.open("wb") as handle:
        while written < size:
            rng.shuffle(documents)
            for document in documents:
                written += handle.write(document + b"\n\n")
                count += 1
                if written >= size:
                    break
    return count


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_gigabytes_of_text_in_bounded_memory(shared_data: Path, tmp_path: Path) -> None:
    """Prepared at a vocabulary like RoBERTa's; measured once: 439 M tokens, 653 MiB."""
    shards = sorted((shared_data / "corpus").glob("train-*.txt.xz"))
    if not shards:
        pytest.skip("../shared/data/corpus has no shards")
    size = int(GIGABYTES * 1e9)
    if shutil.disk_usage(tmp_path).free < 2 * size:
        pytest.skip(f"{tmp_path} has less than {2 * size / 1e9:g} GB free")
    path = tmp_path / "text.txt"
    documents = write_corpus(shards, path, size)
    settings = {
        "corpus": str(path),
        "runs_dir": str(tmp_path / "runs"),
        "tokenizer": "train",
        "vocab_size": 50265,
        "tokenizer_megabytes": 200,
        "sequence_length": 128,
        "validation_fraction": 0.005,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", PREPARE, json.dumps(settings)], capture_output=True, text=True, check=True
        )
        found = json.loads(done.stdout.splitlines()[-1])
    finally:  # pytest keeps the folders of the last runs
        path.unlink()
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    assert found["train"]["documents"] + found["validation"]["documents"] == documents
    print(f"{found['train']['tokens'] / 1e6:.0f} M tokens, peak {found['peak_mib']:.0f} MiB")
    assert found["peak_mib"] < LIMIT_MIB


def test_memory_is_bounded(tmp_path: Path, small: dict) -> None:
    """Eight times the text takes hardly more memory."""
    program = (
        "import re, sys, yaml; from threeml_core.config import make_config; "
        "from threeml_core.data.prepare import prepare_data; prepare_data(make_config(yaml.safe_load(sys.argv[1]))); "
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024)"
    )
    peaks = []
    for megabytes in (10, 80):
        path = tmp_path / f"{megabytes}.txt"
        document = "The text of this document goes on and on. " * 25
        path.write_text("\n\n".join(f"{document}{i}" for i in range(megabytes * 1000)))
        settings = {**small, "corpus": str(path), "runs_dir": str(tmp_path / "runs"), "tokenizer_megabytes": 1}
        done = subprocess.run(
            [sys.executable, "-c", program, json.dumps(settings)], capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout))
    assert peaks[1] < peaks[0] + 40, f"peak memory in MiB: {peaks}"
