"""States of [MASK]s: which, of which layer, on disk and in memory; kills, damage, bad input; whole studies."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import weakref
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from threeml_core import mutual_information as stage
from threeml_core import states
from threeml_core.config import ARCHITECTURES, StudyConfig, make_config
from threeml_core.data import PreparedData, prepare_data
from threeml_core.errors import CheckpointError, CorpusError, DamagedFileError, ParameterError, StudyError
from threeml_core.masking import Masking, corrupt
from threeml_core.models.build import build_model
from threeml_core.models.gather import take
from threeml_core.mutual_information import mutual_information
from threeml_core.pretrain import pretrain
from threeml_core.results import read_record
from threeml_core.states import Forward, Sample, collect_states, draw_sample, states_in_memory

DiskUsage = namedtuple("DiskUsage", "total used free")


def quiet(line: str) -> None:
    pass


def model_of(config: StudyConfig, data: PreparedData) -> PreTrainedModel:
    torch.manual_seed(0)
    return build_model(config, data.vocab_size, **data.token_ids).eval()


@pytest.fixture
def data(config: StudyConfig) -> PreparedData:
    return prepare_data(config)


@pytest.fixture
def sample(config: StudyConfig, data: PreparedData) -> Sample:
    return draw_sample(config.replace(states_text="train", states_per_layer=2000), data)


@pytest.fixture
def forward(config: StudyConfig, data: PreparedData, sample: Sample) -> Forward:
    return Forward(model_of(config, data), sample, batch_size=8)


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several groups and a saved state after each."""
    monkeypatch.setattr(states, "_GROUP", 32)
    monkeypatch.setattr(states, "_SAVE_SECONDS", 0.0)


# -- layers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer_norm", ["pre", "post"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_mask_states_end_in_the_models_own_logits(architecture: str, layer_norm: str, small: dict) -> None:
    config = make_config({**small, "architecture": architecture, "layer_norm": layer_norm})
    torch.manual_seed(0)
    model = build_model(config, 120, mask_token_id=4).eval()
    generator = torch.Generator().manual_seed(0)
    batch = corrupt(torch.randint(5, 120, (3, 32), generator=generator), Masking(4, (4,), 120), generator)
    layers = model.mask_states(batch)
    n_de = batch.mask_idx.shape[1]
    width = config.hidden_size if architecture == "vanilla" else config.decoder_hidden_size
    assert [states.shape for states in layers] == [(3, n_de, width)] * 3
    logits = torch.nn.functional.linear(model.head(layers[-1]), model.get_input_embeddings().weight, model.head_bias)
    assert torch.allclose(logits, model(corrupted=batch).logits[:, :n_de], atol=1e-5)
    before = model.mask_states(batch, final_norm=False)
    assert all(torch.equal(a, b) for a, b in zip(layers[:-1], before[:-1], strict=True))
    norm = model.encoder.LayerNorm if architecture == "vanilla" and layer_norm == "pre" else torch.nn.Identity()
    norm = norm if architecture == "vanilla" else model.decoder_norm
    assert torch.allclose(norm(before[-1]), layers[-1], atol=1e-6)
    assert torch.equal(before[-1], layers[-1]) == (layer_norm == "post")


@pytest.mark.parametrize("layer_norm", ["pre", "post"])
@torch.no_grad()
def test_vanilla_states_are_transformers_hidden_states(layer_norm: str, small: dict) -> None:
    config = make_config({**small, "architecture": "vanilla", "layer_norm": layer_norm})
    model = build_model(config, 120, mask_token_id=4).eval()
    generator = torch.Generator().manual_seed(0)
    batch = corrupt(torch.randint(5, 120, (3, 32), generator=generator), Masking(4, (4,), 120), generator)
    hidden = model.encoder(batch.input_ids, output_hidden_states=True).hidden_states
    for ours, theirs in zip(model.mask_states(batch), hidden, strict=True):
        assert torch.equal(ours, take(theirs, batch.mask_idx))


# -- which [MASK]s --------------------------------------------------------------------------------------------


def test_the_sample_holds_frequent_masked_tokens_only(config: StudyConfig, data: PreparedData) -> None:
    sample = draw_sample(config.replace(top_tokens=20, states_text="train", states_per_layer=10**6), data)
    counts = data.train_counts()
    counts[list(data.special_ids)] = 0
    frequent = set(np.argsort(-counts, kind="stable")[:20].tolist())
    assert set(sample.tokens.tolist()) <= frequent
    rows = 0
    for offset, batch, chosen in sample.groups():
        assert offset == rows
        original = batch.labels.gather(1, batch.mask_idx)
        assert chosen.tolist() == [[token in frequent for token in row] for row in original.tolist()]
        assert np.array_equal(original[chosen].numpy(), sample.tokens[offset : offset + int(chosen.sum())])
        assert bool((batch.input_ids.gather(1, batch.mask_idx) == data.token_ids["mask_token_id"]).all())
        rows += int(chosen.sum())
    assert rows == len(sample.tokens) == sample.offsets[-1]
    assert len(sample.order) == len(data.train)  # all of the text, as it holds fewer


def test_a_limited_sample_lies_evenly_over_the_text(config: StudyConfig, data: PreparedData) -> None:
    settings = {"states_text": "train", "states_per_layer": 1000}
    sample = draw_sample(config.replace(**settings), data)
    assert len(sample.tokens) == 1000 and len(sample.order) < len(data.train)
    places = np.sort(sample.order) / len(data.train)
    assert np.allclose(places, np.linspace(0, places[-1], len(places)), atol=0.02) and places[-1] > 0.98
    # as many [MASK]s, but no replaced tokens around them: another question
    pure = draw_sample(config.replace(**settings, mask_rate=10 / 32, mask_split="100-0-0"), data)
    assert np.array_equal(pure.tokens, sample.tokens) and pure.fingerprint != sample.fingerprint
    again = draw_sample(config.replace(**settings), data)
    assert again.fingerprint == sample.fingerprint
    assert draw_sample(config.replace(**settings, states_seed=1), data).fingerprint != sample.fingerprint
    architecture = draw_sample(config.replace(**settings, architecture="vanilla"), data)
    assert architecture.fingerprint == sample.fingerprint, "every model is asked about the same [MASK]s"


def test_a_model_trained_with_ragged_counts_is_asked_with_exact_ones(config: StudyConfig, data: PreparedData) -> None:
    ragged = draw_sample(config.replace(mask_counts="probabilistic", states_per_layer=500), data)
    assert ragged.fingerprint == draw_sample(config.replace(states_per_layer=500), data).fingerprint


def test_no_mask_of_a_frequent_token(config: StudyConfig, data: PreparedData, monkeypatch) -> None:
    absent = np.setdiff1d(np.arange(data.vocab_size), [*data.validation[slice(None)].unique(), *data.special_ids])
    counts = np.zeros(data.vocab_size, int)
    counts[absent[0]] = 1  # "frequent" is a token that the text does not have
    monkeypatch.setattr(PreparedData, "train_counts", lambda self: counts.copy())
    with pytest.raises(CorpusError, match="no .MASK. of the validation text"):
        draw_sample(config.replace(top_tokens=1), data)


# -- on disk and in memory ------------------------------------------------------------------------------------


def direct(forward: Forward, layer: int) -> np.ndarray:
    """All states of a layer in one piece."""
    found = []
    with torch.no_grad():
        for _, batch, chosen in forward.sample.groups():
            found.append(forward.model.mask_states(batch)[layer][chosen])
    return torch.cat(found).half().numpy()


@pytest.mark.usefixtures("small_groups")
def test_files_and_memory_hold_the_models_states(forward: Forward, tmp_path: Path) -> None:
    files = collect_states(forward, [0, 2], tmp_path / "s", quiet)
    in_memory = dict(states_in_memory(forward, [0, 2], quiet))
    assert list(files) == list(in_memory) == [0, 2]
    for layer, file in files.items():
        stored = np.load(file.path, mmap_mode="r")
        assert stored.dtype == np.float16 and stored.shape == (2000, 16)
        assert np.allclose(stored, direct(forward, layer), atol=2e-3)
        assert np.array_equal(stored, in_memory[layer].read(np.arange(2000)).numpy())
        some = np.array([5, 6, 7, 1999, 3, 4, 0, 0, 1])
        assert np.array_equal(stored[some], file.read(some).numpy())
    assert not (tmp_path / "s" / "progress.json").exists()
    assert np.array_equal(np.load(tmp_path / "s" / "tokens.npy"), forward.sample.tokens)


def test_memory_takes_as_many_layers_as_fit(forward: Forward, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    everything = np.arange(2000)
    expected = {layer: rows.read(everything) for layer, rows in states_in_memory(forward, [0, 1, 2], quiet)}
    monkeypatch.setattr(states, "_free_memory", lambda device: int(2.1 * 2000 * 16 * 2 / 0.6))
    alive: list[weakref.ref] = []
    for layer, rows in states_in_memory(forward, [0, 1, 2], lines.append):
        assert torch.equal(rows.read(everything), expected[layer])
        assert sum(one() is not None for one in alive) <= 1, "a layer that was read makes room"
        alive.append(weakref.ref(rows))
        del rows
    assert [line.split(" in memory")[0] for line in lines] == ["states: layers 0, 1", "states: layers 2"]
    monkeypatch.setattr(states, "_free_memory", lambda device: 1000)
    with pytest.raises(StudyError, match="too little memory: the states of a layer take 0.00 GB"):
        next(states_in_memory(forward, [0], quiet))


class Killed(BaseException):
    """Stands for a signal."""


@pytest.mark.usefixtures("small_groups")
def test_a_killed_collection_goes_on(forward: Forward, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = collect_states(forward, [0, 1], tmp_path / "whole", quiet)
    original, calls = Forward.run, []

    def stops(self: Forward, layers, first: int = 0):
        for number, found in enumerate(original(self, layers, first)):
            if number == 2:
                raise Killed
            calls.append(first + number)
            yield found

    monkeypatch.setattr(Forward, "run", stops)
    folder, lines = tmp_path / "killed", []
    for _ in range(20):
        try:
            files = collect_states(forward, [0, 1], folder, lines.append)
            break
        except Killed:
            assert not (folder / "states.json").exists()
    assert calls == list(range(len(forward.sample.offsets) - 1)), "no group twice, none left out"
    assert any(line.startswith("states: resuming after") for line in lines)
    for layer, file in files.items():
        assert file.path.read_bytes() == expected[layer].path.read_bytes()
    assert json.loads((folder / "states.json").read_text()) == json.loads((tmp_path / "whole/states.json").read_text())


@pytest.mark.parametrize("damage", ["[]", "{", '{"checksums": []}', "null", "group", "lost", "other"])
def test_progress_that_is_of_no_use_counts_for_nothing(forward: Forward, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "s"
    expected = collect_states(forward, [1], folder, quiet)[1].path.read_bytes()
    progress = json.loads((folder / "states.json").read_text()) | {"group": 1}
    (folder / "states.json").unlink()
    if damage == "lost":
        (folder / "layer-01.npy").write_bytes(expected[:-1])
    else:
        (folder / "layer-01.npy").write_bytes(expected[:-8] + bytes(8))
    changed = {"group": progress | {"group": 99}, "other": progress | {"states": "another"}, "lost": progress}
    (folder / "progress.json").write_text(json.dumps(changed[damage]) if damage in changed else damage)
    assert collect_states(forward, [1], folder, quiet)[1].path.read_bytes() == expected


def test_damage_is_one_line(forward: Forward, tmp_path: Path) -> None:
    file = collect_states(forward, [1], tmp_path / "s", quiet)[1]
    path = file.path
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    with pytest.raises(
        DamagedFileError, match="layer-01.npy cannot be read .it is truncated"
    ):  # while it is being read
        dataclasses.replace(file, path=path, shape=(file.shape[0] + 1, 16)).read(np.array([file.shape[0]]))
    with pytest.raises(DamagedFileError, match="layer-01.npy is missing or truncated; remove the folder"):
        collect_states(forward, [1], tmp_path / "s", quiet)
    path.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1, whole[-1]]))
    with pytest.raises(DamagedFileError, match="layer-01.npy has changed since it was written; remove"):
        collect_states(forward, [1], tmp_path / "s", quiet)
    path.write_bytes(whole)
    collect_states(forward, [1], tmp_path / "s", quiet)
    with pytest.raises(StudyError, match="holds states of another model, sample or layers"):
        collect_states(forward, [0, 1], tmp_path / "s", quiet)
    with torch.no_grad():
        next(forward.model.parameters()).add_(1.0)
    with pytest.raises(StudyError, match="holds states of another model, sample or layers"):
        collect_states(forward, [1], tmp_path / "s", quiet)
    path.unlink()
    with pytest.raises(DamagedFileError, match="layer-01.npy cannot be read"):
        file.read(np.array([0]))
    (tmp_path / "s" / "states.json").write_text("{")
    with pytest.raises(DamagedFileError, match="states.json cannot be read"):
        collect_states(forward, [1], tmp_path / "s", quiet)


def test_too_little_disk_is_seen_before_anything_is_written(forward: Forward, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(states.shutil, "disk_usage", lambda path: DiskUsage(10**6, 0, 10**5))
    lines: list[str] = []
    with pytest.raises(StudyError, match="too little disk: the states take 0.00 GB"):
        collect_states(forward, [0, 1], tmp_path / "s", lines.append)
    assert list((tmp_path / "s").iterdir()) == [] and "2 layers, 2,000 states each" in lines[0]
    states.LayerFile(tmp_path / "s" / "layer-00.npy", (2000, 16)).create()  # as long as it will be, but empty
    with pytest.raises(StudyError, match="too little disk"):
        collect_states(forward, [0, 1], tmp_path / "s", lines.append)


def test_layers_that_are_not_there(forward: Forward, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"pass layers 0 to 2, there is no layer 3"):
        collect_states(forward, [0, 3], tmp_path / "s", quiet)
    assert not (tmp_path / "s").exists()


def test_states_beyond_float16(forward: Forward, tmp_path: Path) -> None:
    with torch.no_grad():
        forward.model.decoder_positions.weight.mul_(1e9)
    with pytest.raises(StudyError, match="layer 0: a state is not finite in float16"):
        collect_states(forward, [0], tmp_path / "s", quiet)


# -- the stage ------------------------------------------------------------------------------------------------


@pytest.fixture
def study(small: dict, tmp_path: Path) -> StudyConfig:
    return make_config({**small, "runs_dir": str(tmp_path), "clusters": 20, "kmeans_seeds": 2, "max_steps": 4})


def test_a_study_of_the_three_models(study: StudyConfig, tmp_path: Path) -> None:
    records = mutual_information(study, quiet)
    assert [record.parameters["architecture"] for record in records] == list(ARCHITECTURES)
    assert len({record.data["sample"] for record in records}) == 1
    for record in records:
        layers = record.metrics["layers"]
        assert [layer["layer"] for layer in layers] == [0, 1, 2]
        assert {layer["width"] for layer in layers} == {32 if record.parameters["architecture"] == "vanilla" else 16}
        for layer in layers:
            assert len(layer["plug_in"]) == len(layer["corrected"]) == len(layer["floor"]) == 2
            assert max(layer["plug_in"]) <= layer["entropy"]
            assert layer["states"] == record.data["states"]
        assert record.timing["peak_memory_bytes"] > 0
    assert list((tmp_path / "states").glob("*/")) == [] or not any((tmp_path / "states").glob("*/*.npy"))
    lines: list[str] = []
    again = mutual_information(study, lines.append)
    assert [r.run_id for r in again] == [r.run_id for r in records]
    assert [r.environment for r in again] == [r.environment for r in records], "read, not measured again"
    assert "3 of 3 runs are finished; their records are read" in lines


def test_memory_and_disk_give_the_same(study: StudyConfig, tmp_path: Path) -> None:
    run = pretrain(study, quiet).run_id
    (kept,) = mutual_information(study.replace(runs=run, keep_states=True), quiet)
    assert len(list((tmp_path / "states").glob("*/layer-*.npy"))) == 3
    folder = kept.folder(tmp_path)
    (folder / "record.json").unlink()
    (other,) = mutual_information(study.replace(runs=run, states_store="memory"), quiet)
    assert other.run_id == kept.run_id and other.metrics == kept.metrics


def test_the_named_runs_and_layers(study: StudyConfig, tmp_path: Path) -> None:
    vanilla = pretrain(study.replace(architecture="vanilla"), quiet)
    cross = pretrain(study.replace(architecture="cross"), quiet)
    names = f"{vanilla.run_id}, {cross.folder(tmp_path)}"
    elsewhere = study.replace(runs=names, state_layers="2,0", sequence_length=16, hidden_size=64, mask_rate=0.2)
    records = mutual_information(elsewhere, quiet)
    assert [record.data["run"] for record in records] == [vanilla.run_id, cross.run_id]
    for record in records:  # text and corruption are those of the runs, not of the parameters given here
        assert [layer["layer"] for layer in record.metrics["layers"]] == [0, 2]
        assert record.parameters["mask_rate"] == 0.4 and record.parameters["sequence_length"] == 32


def test_a_killed_study_keeps_its_layers(study: StudyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pretrain(study, quiet).run_id
    original, seen = stage.layer_mutual_information, []

    def stops(*arguments):
        layer = arguments[-1]
        if layer == 1 and 1 not in seen:
            seen.append(1)
            raise Killed
        seen.append(layer)
        return original(*arguments)

    monkeypatch.setattr(stage, "layer_mutual_information", stops)
    with pytest.raises(Killed):
        mutual_information(study.replace(runs=run), quiet)
    (record,) = mutual_information(study.replace(runs=run), quiet)
    assert seen == [0, 1, 1, 2] and [layer["layer"] for layer in record.metrics["layers"]] == [0, 1, 2]
    assert not (record.folder(tmp_path) / "layers.json").exists()


def test_bad_input_is_one_line_before_anything_is_measured(study: StudyConfig, tmp_path: Path) -> None:
    record = pretrain(study, quiet)
    folder = record.folder(tmp_path)
    for settings, kind, message in (
        ({"runs": "self-40-0000000000"}, CheckpointError, f"is no finished run.*there are: {record.run_id}"),
        ({"runs": str(folder / "encoder")}, CheckpointError, f"is no finished run.*that is {folder}"),
        ({"runs": " , "}, CheckpointError, "runs is empty"),
        ({"runs": record.run_id, "state_layers": "0,3"}, ParameterError, "pass layers 0 to 2, there is no layer 3"),
        ({"runs": record.run_id, "clusters": 10**6}, ParameterError, "clusters=1,000,000, but there are only"),
    ):
        with pytest.raises(kind, match=message):
            mutual_information(study.replace(**settings), quiet)
    assert not (tmp_path / "mutual_information").exists() and not (tmp_path / "states").exists()
    for settings, message in (
        ({"state_layers": "1,1"}, "expected 'all' or layer numbers"),
        ({"state_layers": "last"}, "expected 'all' or layer numbers"),
        ({"clusters": 1}, "clusters=1: expected at least 2"),
        ({"states_per_layer": 0}, "states_per_layer=0: expected at least 1"),
    ):
        with pytest.raises(ParameterError, match=message):
            study.replace(**settings)


def test_a_run_without_its_decoder_or_with_another_text(study: StudyConfig, tmp_path: Path, corpus_file: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(corpus_file.read_text())
    study = study.replace(corpus=str(text))
    record = pretrain(study, quiet)
    study = study.replace(runs=record.run_id)
    folder = record.folder(tmp_path)
    (folder / "model").rename(folder / "kept")
    with pytest.raises(DamagedFileError, match="model/.* is missing"):
        mutual_information(study, quiet)
    (folder / "encoder").rename(folder / "model")
    with pytest.raises(CheckpointError, match="without a 3ML decoder"):
        stage.load_model(folder)
    (folder / "model").rename(folder / "encoder")
    (folder / "kept").rename(folder / "model")
    assert read_record(folder, check_hashes=True) == record
    text.write_text(corpus_file.read_text() + "\n\nOne more document.\n")
    with pytest.raises(CheckpointError, match="the text has changed since"):
        mutual_information(study, quiet)


def test_the_command(study: StudyConfig, small: dict, tmp_path: Path) -> None:
    record = pretrain(study, quiet)
    command = [sys.executable, "-m", "threeml_core.mutual_information"]
    given = {"runs_dir": tmp_path, "runs": record.run_id, "clusters": 20, "kmeans_seeds": 1}
    arguments = [part for name, value in given.items() for part in ("-p", name, str(value))]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.splitlines()[-1].removeprefix("record: "))
    assert dataclasses.asdict(read_record(path.parent))["data"]["run"] == record.run_id
    wrong = subprocess.run([*command, *arguments, "-p", "clusters", "9999999"], capture_output=True, text=True)
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: clusters=9,999,999, but there are only")
    assert len(wrong.stderr.splitlines()) == 1
