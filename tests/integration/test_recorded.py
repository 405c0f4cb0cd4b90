"""Pages from records alone: what `plan_only` finds is what the runs gave, also after the runs are gone."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
from pathlib import Path

import pytest

from threeml_core.config import identity_parameters, make_config, parse_arguments
from threeml_core.foundation.errors import DamagedFileError, ParameterError
from threeml_core.foundation.log import no_line
from threeml_core.glue.protocol import compare_results
from threeml_core.glue.run import finetune_study
from threeml_core.information.run import mutual_information
from threeml_core.parameters.parameter import RENAMED
from threeml_core.reporting.commands import finetune_command, pretrain_command
from threeml_core.reporting.finetuning import comparison_of_models, protocol_table
from threeml_core.reporting.notes import corruption_note
from threeml_core.runs.archive import CURVES, RESULTS, read_archive, restore_runs, shown_records, write_archive
from threeml_core.runs.ledger import of_pretraining
from threeml_core.runs.record import SCHEMA, STAGES, RunRecord, load_records, read_metrics, read_record, write_record
from threeml_core.study.ledger import study_runs
from threeml_core.study.run import corruption_rows, finished_results, prepare, run_study
from threeml_core.training.run import pretrain


def everything(runs_dir: str) -> list[RunRecord]:
    return [record for stage in STAGES for record in load_records(runs_dir, stage)]


def without_files(record: RunRecord) -> RunRecord:
    return dataclasses.replace(record, files={})


def test_pages_from_an_archive(study: dict, tmp_path: Path) -> None:
    """Text, tasks, weights and answers are deleted; data, runs, scores, intervals and estimates are still found."""
    corpus = shutil.copy(study["corpus"], tmp_path / "text.txt")
    config = make_config(
        {**study, "corpus": str(corpus), "random_baseline": True, "tasks": "mnli", "num_seeds": 1, "num_clusters": 20}
    )
    text = prepare(config, no_line)
    models = finetune_study(config, no_line)
    measured = [read_record(record.folder(config.runs_dir)) for record in mutual_information(config, no_line)]
    results = run_study(config, ["Table 1", "Figure 3"], no_line)
    difference = compare_results(models[0].results[0], models[1].results[0], config.runs_dir)
    tables = [repr(protocol_table(model)) for model in models]
    pairs = repr(comparison_of_models(models[0], models[1:], config.runs_dir))
    trained = pretrain(config, no_line)

    report = tmp_path / "report"
    report.mkdir()
    write_archive(everything(config.runs_dir), config.runs_dir, report)
    curve = read_metrics(trained.folder(config.runs_dir) / "metrics.jsonl")
    for gone in (config.runs_dir, config.glue, config.corpus):
        path = Path(gone)
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    there = restore_runs(report, tmp_path / "restored")
    recorded = config.replace(plan_only=True, runs_dir=str(there))
    assert prepare(recorded) == text and sum(text.metrics["train_counts"]) > 0
    assert pretrain(recorded) == without_files(trained)
    assert read_metrics(trained.folder(there) / "metrics.jsonl") == curve
    found = finetune_study(recorded)
    assert [model.name for model in found] == [model.name for model in models]
    assert [repr(protocol_table(model)) for model in found] == tables
    assert repr(comparison_of_models(found[0], found[1:], recorded.runs_dir)) == pairs
    assert compare_results(found[0].results[0], found[1].results[0], there) == difference
    assert mutual_information(recorded) == measured
    as_before = [record for record in everything(there) if record.stage == "bootstrap"]
    for record in as_before:  # without a method, under another name, as records of an older schema are
        identity = {name: value for name, value in record.identity.items() if name != "method"}
        older = dataclasses.replace(
            record, run_id=f"{record.data['task']}-bootstrap-{record.run_id[-9:]}x", identity=identity
        )
        shutil.rmtree(record.folder(there))
        write_record(older, there)
    again = compare_results(found[0].results[0], found[1].results[0], there)
    assert again == dataclasses.replace(difference, p_value=None), "its p-value is not trusted"
    assert [repr(protocol_table(model)) for model in finetune_study(recorded)] == tables, (
        "with one seed nothing changes"
    )
    for of in (
        run_study(recorded, ["Table 1", "Figure 3"], no_line),
        finished_results(recorded, ["Table 1", "Figure 3"]),
    ):
        assert [o.metric("eval_loss") for o in of] == [o.metric("eval_loss") for o in results]
        assert [[d.average for d in o.ablation.values()] for o in of] == [
            [d.average for d in o.ablation.values()] for o in results
        ]
    assert "hold no text" in str(corruption_rows(recorded))
    with pytest.raises(ParameterError, match="has no record of stage pretrain with these parameters"):
        pretrain(recorded.replace(mask_rate=0.3))


def test_an_archive_is_read_once_and_checked(study: dict, tmp_path: Path) -> None:
    config = make_config(study)
    pretrain(config, no_line)
    with pytest.raises(DamagedFileError, match=r"results.jsonl is missing: .* set report_from=runs"):
        restore_runs(tmp_path, tmp_path / "restored")
    write_archive(everything(config.runs_dir), config.runs_dir, tmp_path)
    folder = restore_runs(tmp_path, tmp_path / "restored")
    (folder / "notebooks").mkdir()
    restore_runs(tmp_path, folder)
    assert (folder / "notebooks").exists(), "nothing has changed"
    lines = (tmp_path / RESULTS).read_text()
    (tmp_path / RESULTS).write_text(lines.replace(f'"schema": {SCHEMA}', '"schema": 2'))
    with pytest.raises(DamagedFileError, match=f"holds records of schema 2, this version reads 3, 4 and {SCHEMA}"):
        restore_runs(tmp_path, folder)
    assert (folder / "notebooks").exists(), "what was restored stays"
    (tmp_path / RESULTS).write_text(lines)
    before = (folder / ".archive").read_text()
    (folder / ".archive").write_text(before.replace(f"schema {SCHEMA}", "schema 3"))
    restore_runs(tmp_path, folder)
    assert (folder / ".archive").read_text() == before and not (folder / "notebooks").exists(), "made by older code"
    (tmp_path / CURVES).write_text("{")
    with pytest.raises(DamagedFileError, match=r"curves.jsonl cannot be read .*git checkout"):
        restore_runs(tmp_path, folder)
    (tmp_path / CURVES).write_text("")
    restore_runs(tmp_path, folder)
    assert not (folder / "notebooks").exists(), "another archive"
    assert read_archive(tmp_path) == everything(config.runs_dir)


def test_bootstraps_go_with_their_runs() -> None:
    def record(stage: str, name: str, **identity: object) -> RunRecord:
        empty: dict = {key: {} for key in ("parameters", "sources", "metrics", "flops", "timing", "data", "files")}
        return RunRecord(stage, name, identity=identity, environment={}, **empty)

    shown, hidden = record("finetune", "rte-s0-aaaaaaaaaa"), record("finetune", "rte-s0-bbbbbbbbbb")
    alone = record("bootstrap", "rte-bootstrap-cccccccccc", runs=[shown.run_id])
    pair = record("bootstrap", "rte-bootstrap-dddddddddd", runs=[shown.run_id], against=[hidden.run_id])
    records = [shown, hidden, alone, pair]
    assert shown_records(records, f"the run {shown.run_id}.") == [shown, alone]
    assert shown_records(records, f"{shown.run_id} and {hidden.run_id}") == records


SMALL = make_config(
    {
        "preset": "tiny",
        "equal_budget": True,
        "study_sizes": "2x32",
        "num_pretrain_seeds": 2,
        "glue": "folder",
        "num_seeds": 2,
    }
)


def test_commands_do_the_run_again() -> None:
    """The line on a page, read by the command line's own parser, is the run: its identity, its tasks, its seeds."""
    for run in study_runs(SMALL):
        words = shlex.split(pretrain_command(run, 1))
        assert words[:3] == ["papermill", "notebooks/02_pretrain.ipynb", "out.ipynb"]
        again = parse_arguments("", words[3:])
        assert identity_parameters(again) == identity_parameters(run.config.replace(seed=1))
        for ablation in (False, True):
            words = shlex.split(finetune_command(run, SMALL, 1, ablation))
            tuned = parse_arguments("", words[3:])
            assert words[1] == "notebooks/03_finetune.ipynb" and tuned.pretrain_seed == 1 and tuned.seed == 0
            assert identity_parameters(tuned) == identity_parameters(run.config)
            assert (tuned.tasks, tuned.num_seeds) == (("ablation", 1) if ablation else ("all", 2))
            assert tuned.glue == "folder"


def test_plan_only_needs_no_weights(study: dict, tmp_path: Path) -> None:
    """A given checkpoint is known by its name, and tasks of which runs are missing are left out and named."""
    config = make_config({**study, "num_seeds": 1})
    (model,) = finetune_study(config, no_line)
    given = config.replace(checkpoint=model.checkpoint, plan_only=True)
    (found,) = finetune_study(given)
    assert found.average == model.average
    fewer = config.replace(plan_only=True, tasks="mnli,rte,cola")
    (found,) = finetune_study(fewer)
    assert [result.task.name for result in found.results] == ["mnli", "rte"]
    assert "CoLA: not all of its runs have a record" in found.notes
    record = load_records(config.runs_dir, "finetune")[0]
    assert json.loads((record.folder(config.runs_dir) / "record.json").read_text())["schema"] == SCHEMA


def test_records_of_the_schema_before_keep_the_corruption_that_they_executed(study: dict, tmp_path: Path) -> None:
    """Then 15% of 32 tokens were 4-1-0, without unchanged tokens; they still answer who asks for 15%, and say so."""
    config = make_config({**study, "architecture": "vanilla", "mask_rate": 0.15})
    trained = pretrain(config, no_line)
    assert trained.identity["corruption"] == {"masked": "4", "replaced": "1/2", "unchanged": "1/2"}
    write_archive([trained], config.runs_dir, tmp_path)
    values = dict(vars(trained))
    asked = {name: values["parameters"][name] for name in ("mask_rate", "mask_split")}
    values["identity"] = {k: v for k, v in values["identity"].items() if not k.endswith("corruption")} | asked
    (tmp_path / RESULTS).write_text(json.dumps({**values, "schema": 3}) + "\n")
    [older] = read_archive(tmp_path)
    assert older.identity["corruption"] == {"masked": "4", "replaced": "1", "unchanged": "0"}
    assert older.run_id == trained.run_id and older.schema == SCHEMA
    old_names = {new: old for old, new in RENAMED.items()}
    for part in ("parameters", "sources", "identity"):
        values[part] = {old_names.get(name, name): value for name, value in values[part].items()}
    assert "seeds" in values["parameters"] and "max_eval_blocks" in values["identity"]
    (tmp_path / RESULTS).write_text(json.dumps({**values, "schema": 3}) + "\n")
    assert read_archive(tmp_path) == [older], "names of then are those of today"
    values["identity"] |= {"corruption": trained.identity["corruption"]}
    (tmp_path / RESULTS).write_text(json.dumps({**values, "schema": 4}) + "\n")
    assert read_archive(tmp_path)[0].identity["corruption"] == trained.identity["corruption"]
    assert of_pretraining([older], config) and not of_pretraining([older], config.replace(mask_rate=0.16))
    assert of_pretraining([trained], config.replace(mask_rate=0.16))
    assert "0.15 as 0.1562, 80-10-10 as 80-20-0 (4 [MASK]s, 1 replaced, 0 unchanged)" in corruption_note([older])


def test_an_archive_says_once_what_records_share(tmp_path: Path) -> None:
    """What comes back is what was written, to the type; also from a file that says everything in every line."""
    empty: dict = {key: {} for key in ("metrics", "flops", "timing", "data", "files")}
    environment = {"finished": "2026", "hardware": {"cores": 2}}

    def record(name: str, **parameters: object) -> RunRecord:
        sources = dict.fromkeys(parameters, "preset")
        return RunRecord(
            "pretrain", name, {}, parameters, sources, environment={**environment, "commit": name}, **empty
        )

    same = {f"parameter_{i}": i for i in range(100)}
    records = [record("a", x=1, y=None, **same), record("b", x=True, **same), record("c", x=1.0, z=None, **same)]
    write_archive(records, tmp_path, tmp_path)
    lines = (tmp_path / RESULTS).read_text().splitlines()
    assert len(lines) == 4 and [line.count("parameter_99") for line in lines] == [2, 0, 0, 0]

    def told(of: list[RunRecord]) -> list[str]:
        return [json.dumps(vars(record), sort_keys=True) for record in of]

    assert told(read_archive(tmp_path)) == told(records)
    (tmp_path / RESULTS).write_text("\n".join(told(records)))
    assert told(read_archive(tmp_path)) == told(records)
    write_archive([], tmp_path, tmp_path)
    assert read_archive(tmp_path) == []
