"""Probing, run: any encoder, the study's with all seeds, read again, and the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.preloaded import Preloaded
from tests.treebank_files import write_treebank
from threeml_core.config import StudyConfig, make_config, parse_arguments
from threeml_core.foundation.errors import CheckpointError, ParameterError
from threeml_core.foundation.log import no_line
from threeml_core.information.ledger import named_encoders
from threeml_core.information.probing import run_probing
from threeml_core.reporting import probing as shown
from threeml_core.study.probes import RANDOM, probe_claims
from threeml_core.study.probing import probe_study, rate_study

HALF = {"validation_fraction": 0.5, "probe_batch_size": 16}


@pytest.fixture
def asked(small: dict, tmp_path: Path) -> StudyConfig:
    ud = str(write_treebank(tmp_path / "ud"))
    return make_config({**small, **HALF, "runs_dir": str(tmp_path / "runs"), "ud": ud, "max_steps": 4})


def test_any_encoder_is_asked_the_same(asked: StudyConfig, encoders: dict[str, Path]) -> None:
    folders = [str(folder) for folder in encoders.values()]
    words, *found = run_probing(asked, [*folders, f"random:{folders[0]}"], log=no_line)
    assert [record.data["checkpoint"] for record in found] == [*folders, f"random:{folders[0]}"]
    sizes = words.metrics["tasks"]
    for record in found:
        tasks = record.metrics["tasks"]
        assert list(tasks) == list(sizes) and record.timing["seconds"] > 0
        for name, task in tasks.items():
            assert sum(task["right"]) / sum(sizes[name]["sizes"]) == pytest.approx(task["accuracy"])
            assert len(task["layers"]) == 3 and all(
                r <= s for r, s in zip(task["right"], sizes[name]["sizes"], strict=True)
            )
        assert tasks["upos"]["accuracy"] > 0.98  # random weights keep words apart, and words decide
    again = run_probing(asked, folders, log=no_line)
    assert [r.environment["finished"] for r in again] == [r.environment["finished"] for r in (words, *found[:-1])]
    first = run_probing(asked.replace(probe_pooling="first"), folders[:1], log=no_line)[1]
    assert first.run_id != found[0].run_id
    assert first.metrics["tasks"]["upos"]["accuracy"] > 0.98


def test_worker_processes_find_the_same(asked: StudyConfig, encoders: dict[str, Path]) -> None:
    names = [str(encoders["post"])]
    config = asked.replace(probe_tasks="upos,next_word")
    lines: list[str] = []
    elsewhere = config.replace(num_workers=2, runs_dir=f"{asked.runs_dir}-workers")
    for shared, alone in zip(
        run_probing(elsewhere, names, log=lines.append), run_probing(config, names, log=no_line), strict=True
    ):
        assert (shared.run_id, shared.identity, shared.data) == (alone.run_id, alone.identity, alone.data)
        assert shared.metrics == alone.metrics
    assert not [line for line in lines if ": upos" in line], "those in processes of their own say nothing"


def test_the_study_is_probed_with_all_its_seeds_and_random_weights(asked: StudyConfig) -> None:
    config = asked.replace(num_pretrain_seeds=2, probe_tasks="deprel,bigram_shift")
    results, found = probe_study(config, no_line)
    models = ["vanilla-15%", "vanilla-40%", "3ML_self-40%", "3ML_self-50%", "3ML_cross-40%", RANDOM]
    assert list(found.models) == models and {tuple(seeds) for seeds in found.models.values()} == {(0, 1)}
    random = [record.data for record in found.models[RANDOM].values()]
    assert all(data["is_random"] for data in random) and found.tasks == ["deprel", "bigram_shift"]
    one, two = found.models[RANDOM].values()
    assert one.metrics["tasks"]["bigram_shift"] != two.metrics["tasks"]["bigram_shift"]  # seeds of their own
    score, difference = found.score("vanilla-40%", "deprel"), found.difference(RANDOM, "deprel")
    accuracies = [r.metrics["tasks"]["deprel"]["accuracy"] for r in found.models["vanilla-40%"].values()]
    assert score.mean == pytest.approx(np.mean(accuracies)) and difference is not None and difference.seeds == 2
    table = shown.probe_table(found)
    assert [row[0] for row in table.rows] == ["most frequent class", "words alone", RANDOM, *models[:-1]]
    assert "Dependency label" in table.columns and "vanilla-40%" not in [
        r[0] for r in shown.difference_table(found).rows
    ]
    assert "selectivity" in repr(shown.selectivity_table(found)) and "Bigram shift" in shown.plot_layers(found).alt
    rates = rate_study(config.replace(probe_rates="0.15,0.4"), found, no_line)
    assert rates is not None and list(rates) == models[:-1]
    for model, seeds in rates.items():
        for seed, record in seeds.items():
            known = found.runs[model][seed].metrics["eval_perplexity_masked"]  # at 40%, as eval_mask_rate
            assert record.metrics["rates"]["0.4"]["eval_perplexity_masked"] == pytest.approx(known, rel=1e-5)
            assert list(record.metrics["rates"]) == ["0.15", "0.4"]
    shown_rates = shown.rate_table(rates)
    assert shown_rates.columns == ["Model", "Perplexity at 15%", "Perplexity at 40%"]
    _, read = probe_study(config.replace(plan_only=True), no_line)
    assert len(results) == 5 and len(probe_claims(config, results, found)) == 7
    assert read.models.keys() == found.models.keys() and read.words.run_id == found.words.run_id
    assert {r.run_id for s in read.models.values() for r in s.values()} == {
        r.run_id for s in found.models.values() for r in s.values()
    }


def test_the_command(asked: StudyConfig, encoders: dict[str, Path], preloaded: Preloaded) -> None:
    names = ("corpus", "validation_fraction", "ud", "runs_dir")
    given = {"probe_tasks": "upos", **{name: getattr(asked, name) for name in names}}
    done = preloaded.run("probe", {**given, "encoders": f"{encoders['bert']},{encoders['modern']}"})
    assert done.returncode == 0, done.stderr
    assert "Part of speech" in done.stdout and done.stdout.count("record: ") == 3
    missing = preloaded.run("probe", {**given, "encoders": str(encoders["bert"].parent / "nothing")})
    assert missing.returncode == 2 and missing.stderr.count("\n") == 1 and "nothing" in missing.stderr


def test_encoders_stand_on_the_command_line_by_themselves() -> None:
    config = parse_arguments("", ["a", "random:a", "-p", "ud", "trees"], "probe", "encoders")
    assert (config.encoders, config.ud) == ("a,random:a", "trees")
    assert parse_arguments("", ["-p", "encoders", "b"], "probe", "encoders").encoders == "b"


def test_what_is_wrong_shows_before_anything_is_probed(asked: StudyConfig, encoders: dict[str, Path]) -> None:
    with pytest.raises(CheckpointError):
        run_probing(asked, [str(encoders["post"]), "no/such-folder"], log=no_line)
    with pytest.raises(ParameterError, match="probe_length=100: .* takes at most 64 tokens"):
        run_probing(asked.replace(probe_length=100), [str(encoders["post"])], log=no_line)
    assert not (Path(asked.runs_dir) / "probe").exists()
    for names in ("a,,b", "a,a"):
        with pytest.raises(ParameterError, match="expected folders or hub names, each once"):
            named_encoders(asked.replace(encoders=names))
