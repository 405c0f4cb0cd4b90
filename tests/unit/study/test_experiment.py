"""An ablation of your own is one file: this one, which the package does not know."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from tests.study_records import finetuned, pretrained
from threeml_core.config import make_config
from threeml_core.foundation.errors import ParameterError
from threeml_core.reporting.table_2 import table_2
from threeml_core.runs.record import write_record
from threeml_core.statistics.verdicts import Claim
from threeml_core.study import experiments
from threeml_core.study.evidence import Evidence
from threeml_core.study.experiment import Experiment
from threeml_core.study.ledger import EXPERIMENTS, discovered, find, study_runs


def dropout_helps(study: Evidence) -> Claim:
    """It is made up."""
    models = (study.of("Dropout", architecture="self", hidden_dropout_prob=rate) for rate in (0.1, 0.0))
    return Claim("D1", "3ML_self likes dropout.", "nowhere", (study.scores(*models, 0, math.inf),))


DROPOUT = Experiment(
    "Dropout",
    "dropout on hidden states",
    models=("self", "cross"),
    vary={"hidden_dropout_prob": (0.0, 0.1)},
    tasks="ablation",
    heading="Dropout",
    columns={"Perplexity, all corrupted": "eval_perplexity"},
    claims=(dropout_helps,),
)


def test_its_records_are_found_and_shown(tmp_path: Path) -> None:
    given = {"preset": "tiny", "glue": "folder", "num_pretrain_seeds": 2, "num_ablation_seeds": 1, "num_trials": 1}
    config = make_config({**given, "runs_dir": str(tmp_path)})
    runs = study_runs(config, [DROPOUT])
    assert [(run.model, run.config.hidden_dropout_prob) for run in runs] == [
        *(("3ML_self-40%", 0.0), ("3ML_cross-40%", 0.0)),
        *(("3ML_self-40%", 0.1), ("3ML_cross-40%", 0.1)),
    ]
    scores = {0.0: 0.7, 0.1: 0.8}
    for run in runs:
        for seed in run.seeds:
            trained = pretrained(run, seed)
            score = scores[run.config.hidden_dropout_prob] + 0.01 * seed
            tuned = finetuned(run, trained, config, dict.fromkeys(("mnli", "qnli", "qqp"), score))
            for record in (trained, *tuned):
                write_record(record, tmp_path)
    results = find(config, [DROPOUT])
    assert all(result.is_finished and list(result.ablation) == [0, 1] for result in results)
    table = table_2(DROPOUT, results, config)
    assert [row[:2] for row in table.rows] == [
        *(["3ML_self-40%", "0.0"], ["3ML_self-40%", "0.1"]),
        *(["3ML_cross-40%", "0.0"], ["3ML_cross-40%", "0.1"]),
    ]
    averages = [row[table.columns.index("Average")] for row in table.rows]
    assert [text.split(" ")[0] for text in averages] == ["70.5", "80.5", "70.5", "80.5"]
    assert "Perplexity, all corrupted" in table.columns and len(table.commands) == 8
    assert DROPOUT.claims[0](Evidence(config, results)).verdict == "supported"
    with pytest.raises(ParameterError, match="no runs are known for 'Dropout': expected one of Figure 3"):
        find(config, ["Dropout"])
    assert "Dropout" not in EXPERIMENTS and find(config, [*EXPERIMENTS, DROPOUT])[-1].ended


def test_a_file_beside_the_papers_is_part_of_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "from threeml_core.study.experiment import Experiment",
        "WARMUP = Experiment('Warm-up', 'longer', ('self',), {'warmup_ratio': (0.06, 0.2)}, tasks='ablation')",
    ]
    (tmp_path / "warmup.py").write_text("\n".join(lines))
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(tmp_path)])
    there = discovered()
    assert list(there) == [*EXPERIMENTS, "Warm-up"]
    runs = study_runs(make_config({"preset": "tiny"}), [there["Warm-up"]])
    assert [run.config.warmup_ratio for run in runs] == [0.06, 0.2]
    del sys.modules[f"{experiments.__name__}.warmup"]
