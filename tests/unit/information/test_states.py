"""The [MASK]s that are looked at, and their states on disk or in memory."""

from __future__ import annotations

import dataclasses
import json
import weakref
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.combinations import WITH_ENCODERS
from threeml_core.config import StudyConfig, make_config
from threeml_core.data.prepare import PreparedData, prepare_data
from threeml_core.foundation.errors import CorpusError, DamagedFileError, ParameterError, StudyError
from threeml_core.foundation.log import no_line
from threeml_core.information import states
from threeml_core.information.states import Forward, Sample, collect_states, draw_sample, states_in_memory
from threeml_core.masking import Masking, corrupt
from threeml_core.models.build import build_model
from threeml_core.models.gather import take
from threeml_core.parameters.architectures import ARCHITECTURES

KINDS = [("roberta", "pre"), ("roberta", "post"), ("modernbert", "pre")]
DiskUsage = namedtuple("DiskUsage", "total used free")


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


@pytest.mark.parametrize(
    ("architecture", "encoder", "layer_norm"),
    [
        (architecture, *kind)
        for kind in KINDS
        for architecture in ARCHITECTURES
        if (architecture, kind[0]) in WITH_ENCODERS
    ],
)
@torch.no_grad()
def test_mask_states_end_in_the_models_own_logits(
    architecture: str, encoder: str, layer_norm: str, small: dict
) -> None:
    given = {"architecture": architecture, "encoder": encoder, "layer_norm": layer_norm, "local_attention": 8}
    config = make_config({**small, **given})
    torch.manual_seed(0)
    model = build_model(config, 120, mask_token_id=4).eval()
    generator = torch.Generator().manual_seed(0)
    batch = corrupt(torch.randint(5, 120, (3, 32), generator=generator), Masking(4, (4,), 120), generator)
    layers = model.mask_states(batch)
    n_de = batch.mask_idx.shape[1]
    width = config.decoder_hidden_size if ARCHITECTURES[architecture].has_decoder else config.hidden_size
    assert [states.shape for states in layers] == [(3, n_de, width)] * 3
    logits = torch.nn.functional.linear(model.head(layers[-1]), model.get_input_embeddings().weight, model.head_bias)
    assert torch.allclose(logits, model(corrupted=batch).logits[:, :n_de], atol=1e-5)
    before = model.mask_states(batch, final_norm=False)
    assert all(torch.equal(a, b) for a, b in zip(layers[:-1], before[:-1], strict=True))
    if not ARCHITECTURES[architecture].has_decoder:
        names = {"modernbert": "final_norm", "roberta": "LayerNorm"}
        norm = getattr(model.encoder, names[encoder], torch.nn.Identity())
    else:
        norm = model.decoder_norm
    assert torch.allclose(norm(before[-1]), layers[-1], atol=1e-6)
    assert torch.equal(before[-1], layers[-1]) == (layer_norm == "post")


@pytest.mark.parametrize(("encoder", "layer_norm"), KINDS)
@torch.no_grad()
def test_vanilla_states_are_transformers_hidden_states(encoder: str, layer_norm: str, small: dict) -> None:
    given = {"architecture": "vanilla", "encoder": encoder, "layer_norm": layer_norm, "local_attention": 8}
    config = make_config({**small, **given})
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
    files = collect_states(forward, [0, 2], tmp_path / "s", no_line)
    in_memory = dict(states_in_memory(forward, [0, 2], no_line))
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
    expected = {layer: rows.read(everything) for layer, rows in states_in_memory(forward, [0, 1, 2], no_line)}
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
        next(states_in_memory(forward, [0], no_line))


class Killed(BaseException):
    """Stands for a signal."""


@pytest.mark.usefixtures("small_groups")
def test_a_killed_collection_goes_on(forward: Forward, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = collect_states(forward, [0, 1], tmp_path / "whole", no_line)
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
    expected = collect_states(forward, [1], folder, no_line)[1].path.read_bytes()
    progress = json.loads((folder / "states.json").read_text()) | {"group": 1}
    (folder / "states.json").unlink()
    if damage == "lost":
        (folder / "layer-01.npy").write_bytes(expected[:-1])
    else:
        (folder / "layer-01.npy").write_bytes(expected[:-8] + bytes(8))
    changed = {"group": progress | {"group": 99}, "other": progress | {"states": "another"}, "lost": progress}
    (folder / "progress.json").write_text(json.dumps(changed[damage]) if damage in changed else damage)
    assert collect_states(forward, [1], folder, no_line)[1].path.read_bytes() == expected


def test_damage_is_one_line(forward: Forward, tmp_path: Path) -> None:
    file = collect_states(forward, [1], tmp_path / "s", no_line)[1]
    path = file.path
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    with pytest.raises(
        DamagedFileError, match="layer-01.npy cannot be read .it is truncated"
    ):  # while it is being read
        dataclasses.replace(file, path=path, shape=(file.shape[0] + 1, 16)).read(np.array([file.shape[0]]))
    with pytest.raises(DamagedFileError, match="layer-01.npy is missing or truncated; remove the folder"):
        collect_states(forward, [1], tmp_path / "s", no_line)
    path.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1, whole[-1]]))
    with pytest.raises(DamagedFileError, match="layer-01.npy has changed since it was written; remove"):
        collect_states(forward, [1], tmp_path / "s", no_line)
    path.write_bytes(whole)
    collect_states(forward, [1], tmp_path / "s", no_line)
    with pytest.raises(StudyError, match="holds states of another model, sample or layers"):
        collect_states(forward, [0, 1], tmp_path / "s", no_line)
    with torch.no_grad():
        next(forward.model.parameters()).add_(1.0)
    with pytest.raises(StudyError, match="holds states of another model, sample or layers"):
        collect_states(forward, [1], tmp_path / "s", no_line)
    path.unlink()
    with pytest.raises(DamagedFileError, match="layer-01.npy cannot be read"):
        file.read(np.array([0]))
    (tmp_path / "s" / "states.json").write_text("{")
    with pytest.raises(DamagedFileError, match="states.json cannot be read"):
        collect_states(forward, [1], tmp_path / "s", no_line)


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
        collect_states(forward, [0, 3], tmp_path / "s", no_line)
    assert not (tmp_path / "s").exists()


def test_states_beyond_float16(forward: Forward, tmp_path: Path) -> None:
    with torch.no_grad():
        forward.model.decoder_positions.weight.mul_(1e9)
    with pytest.raises(StudyError, match="layer 0: a state is not finite in float16"):
        collect_states(forward, [0], tmp_path / "s", no_line)
