"""A pre-training that goes on from somebody's checkpoint: its encoder and tokenizer, exactly; all else is fresh."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, PreTrainedTokenizerFast

import threeml_core.training.start
from tests.combinations import WITH_KINDS
from tests.refusals import change, one_line
from threeml_core import flops
from threeml_core.config import StudyConfig, given_parameters, identity_parameters, load_preset, make_config, variant
from threeml_core.data.prepare import prepare_data
from threeml_core.foundation.errors import ParameterError, StudyError
from threeml_core.foundation.log import no_line
from threeml_core.models.build import build_model
from threeml_core.models.counting import count_forward_flops
from threeml_core.runs.ledger import of_pretraining
from threeml_core.runs.record import load_records
from threeml_core.training.checkpoint import SavedStates, load_training_state
from threeml_core.training.loop import planned_run, pretrain
from threeml_core.training.start import start_identity
from threeml_core.training.trainer import Trainer

CPU = torch.device("cpu")
KINDS = ("post", "pre", "modern")
FOLLOWING = ("num_hidden_layers", "hidden_size", "num_attention_heads", "max_position_embeddings", "layer_norm")


@pytest.fixture
def given(small: dict) -> dict:
    """What a user gives: a run, and nothing that the checkpoint says."""
    return {name: value for name, value in small.items() if name not in (*FOLLOWING, "vocab_size")}


def start(given: dict, folder: Path, **more: object) -> StudyConfig:
    return make_config({**given, "init_encoder": str(folder), **more})


@pytest.mark.parametrize(("architecture", "kind"), WITH_KINDS)
def test_the_first_step_starts_from_its_states(
    kind: str, architecture: str, given: dict, encoders: dict[str, Path]
) -> None:
    """Of every layer, with the decoder that a fresh run of the same seed has; FLOPs as torch counts them."""
    config = start(given, encoders[kind], architecture=architecture)
    data = prepare_data(config)
    model = Trainer(config, data, CPU).model.eval()
    theirs = AutoModel.from_pretrained(encoders[kind])
    ids = torch.as_tensor(data.train[0:4]).long()
    with torch.no_grad():
        expected = theirs(input_ids=ids, output_hidden_states=True).hidden_states
        states = model.encode(ids, model.position_ids(ids), ids.shape[1], output_hidden_states=True).hidden_states
    assert type(model.encoder) is type(theirs)
    assert all(torch.equal(a, b) for a, b in zip(states, expected, strict=True))
    torch.manual_seed(config.seed)
    drawn = build_model(config, data.vocab_size, **data.token_ids)
    for (name, p), q in zip(model.named_parameters(), drawn.parameters(), strict=True):
        assert name.startswith("encoder.") or torch.equal(p, q), name
    assert model.config.decoder_norm_first == (kind != "post" or architecture == "cross")
    assert flops.forward_flops(config, "exact") == count_forward_flops(config)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_that_follow(kind: str, given: dict, encoders: dict[str, Path]) -> None:
    """The study's sizes are the checkpoint's, in every process and copy, and a comparison from scratch keeps them."""
    config = start(given, encoders[kind])
    about = json.loads((encoders[kind] / "config.json").read_text())
    sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
    for name in sizes:
        assert getattr(config, name) == about[name] and config.sources[name] == "checkpoint"
    assert config.max_position_embeddings == 66 and config.tokenizer == str(encoders[kind])
    assert (config.encoder, config.layer_norm) == {
        "post": ("roberta", "post"),
        "pre": ("roberta", "pre"),
        "modern": ("modernbert", "pre"),
    }[kind]
    if kind == "modern":
        modern = (config.local_attention, config.global_rope_theta, config.local_rope_theta)
        assert modern == (16, 160_000.0, 10_000.0) and config.global_attn_every_n_layers == 2
    for copy in (pickle.loads(pickle.dumps(config)), make_config(given_parameters(config)), config.replace(seed=0)):
        assert copy == config and copy.sources["hidden_size"] == "checkpoint"
    scratch = config.replace(init_encoder=None)
    assert [getattr(scratch, name) for name in sizes] == [getattr(config, name) for name in sizes]
    assert scratch.tokenizer == config.tokenizer
    assert variant(config, architecture="cross").layer_norm == config.layer_norm
    of_file = make_config({**load_preset("tiny"), "init_encoder": str(encoders[kind])})
    assert of_file.hidden_size == 32, "the sizes of -f params/tiny.yaml yield as those of -p preset tiny do"


def test_what_is_given_has_to_be_the_same(given: dict, encoders: dict[str, Path]) -> None:
    assert start(given, encoders["pre"], hidden_size=32, layer_norm="pre").sources["hidden_size"] == "given"
    for name, value, has in (
        ("hidden_size", 64, "32"),
        ("layer_norm", "post", "'pre'"),
        ("encoder", "modernbert", "'roberta'"),
        ("tokenizer", "train", repr(str(encoders["pre"]))),
        ("vocab_size", 299, ""),
    ):
        with pytest.raises(ParameterError) as caught:
            start(given, encoders["pre"], **{name: value})
        assert one_line(caught).startswith(f"{name}={value!r}: init_encoder={encoders['pre']} has {has}")


def test_layers_in_either_form(given: dict, encoders: dict[str, Path], tmp_path: Path) -> None:
    """Older folders of ModernBERT say how often a layer is global, newer ones name each."""
    folder = tmp_path / "copy"
    shutil.copytree(encoders["modern"], folder)
    about = json.loads((folder / "config.json").read_text())
    del about["layer_types"], about["rope_parameters"]
    (folder / "config.json").write_text(json.dumps(about))
    change(folder / "config.json", global_attn_every_n_layers=3, global_rope_theta=5000)
    config = start(given, folder)
    assert (config.global_attn_every_n_layers, config.global_rope_theta) == (3, 5000.0)
    assert build_model(config, config.vocab_size).config.rope_theta == 5000.0
    change(folder / "config.json", layer_types=["sliding_attention", "full_attention"])
    with pytest.raises(StudyError, match="its global layers are not the first and one of so many"):
        start(given, folder)


def test_identity_is_the_content(given: dict, encoders: dict[str, Path], tmp_path: Path) -> None:
    """A copy elsewhere is the same start; another weight is another; without a start nothing has changed."""
    folders = [encoders["pre"], tmp_path / "copy", tmp_path / "other"]
    for folder in folders[1:]:
        shutil.copytree(encoders["pre"], folder)
    weights = load_file(folders[2] / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][5, 0] += 1
    save_file(weights, folders[2] / "model.safetensors", {"format": "pt"})
    configs = [start(given, folder) for folder in folders]
    data = prepare_data(configs[0])
    assert all(prepare_data(config).data_id == data.data_id for config in configs)
    same, copy, other = (planned_run(config, data, CPU)[0].name for config in configs)
    assert same == copy != other
    later = {"init_encoder", "decoder_warmup_steps"}
    assert not later & identity_parameters(make_config(given)).keys()
    assert start_identity(make_config(given)) == {}


def test_run_and_export(given: dict, encoders: dict[str, Path], tmp_path: Path) -> None:
    """The encoder's folder keeps class and tokenizer, the record is found by the parameters, and its FLOPs fit."""
    for kind in KINDS:
        config = start(given, encoders[kind], max_steps=2, decoder_warmup_steps=1, runs_dir=str(tmp_path))
        record = pretrain(config, no_line)
        folder = record.folder(config.runs_dir) / "encoder"
        saved = AutoModel.from_pretrained(folder)
        assert type(saved) is type(AutoModel.from_pretrained(encoders[kind]))
        own, theirs = (AutoTokenizer.from_pretrained(path) for path in (folder, encoders[kind]))
        text = "The cat sees <mask> again."
        assert own(text) == theirs(text) and type(own) is type(theirs) and own.model_max_length == 64
        assert record.identity["init_encoder"] != record.parameters["init_encoder"] == str(encoders[kind])
        assert of_pretraining(load_records(tmp_path, "pretrain"), config) == [record]
        assert record.flops["forward_per_block"] == flops.forward_flops(config, "exact")
        assert f"* start: {encoders[kind]}\n" in (folder / "README.md").read_text()
        again = start(given, folder, max_steps=1, runs_dir=str(tmp_path))
        assert again.hidden_size == config.hidden_size, "and it can be gone on from again"


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"optimizer": "muon", "max_grad_norm": 1.0}], ids=str)
def test_warm_up_of_the_decoder(options: dict, given: dict, encoders: dict[str, Path], tmp_path: Path) -> None:
    """The encoder stays to the last bit, whatever decays; a state saved before its end goes on exactly."""
    config = start(given, encoders["post"], decoder_warmup_steps=3, max_steps=6, weight_decay=0.1, **options)
    data = prepare_data(config)
    trainer, resumed = (Trainer(config, data, CPU) for _ in range(2))
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    for step in range(6):
        trainer.update()
        moved = {name for name, p in trainer.model.named_parameters() if not torch.equal(p, before[name])}
        of_encoder = {name for name in moved if name.startswith("encoder.")}
        assert {"projection.weight", "mask_embedding", "head.dense.weight", "head_bias"} <= moved
        assert bool(of_encoder) == (step >= 3), f"step {step}"
        if step == 1:
            states = SavedStates(tmp_path, 1)
            states.save(trainer.model, trainer.optimizer, trainer.state)
            resumed.state = load_training_state(states.files()[0], resumed.model, resumed.optimizer)
    while resumed.state.step < 6:
        resumed.update()
    for (name, p), q in zip(trainer.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(p, q), name


def test_weights_of_a_masked_language_model(given: dict, encoders: dict[str, Path], tmp_path: Path) -> None:
    """In half precision, with a head and with rows behind the tokenizer's: the encoder in float32, a fresh head."""
    tokenizer = AutoTokenizer.from_pretrained(encoders["pre"])
    about = AutoModel.from_pretrained(encoders["pre"]).config
    about.vocab_size += 9
    AutoModelForMaskedLM.from_config(about).bfloat16().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = start(given, tmp_path, architecture="vanilla")
    trainer = Trainer(config, prepare_data(config), CPU)
    weights = load_file(tmp_path / "model.safetensors")
    model = trainer.model
    assert len(model.head_bias) == len(model.word_embedding) == config.vocab_size == len(tokenizer) + 9
    assert all(p.dtype == torch.float32 for p in model.parameters())
    stem = next(name for name in weights if name.endswith("word_embeddings.weight")).removesuffix(
        "embeddings.word_embeddings.weight"
    )
    for name, value in model.encoder.state_dict().items():
        assert torch.equal(value, weights[f"{stem}{name}"].float()), name
    assert not torch.equal(model.head.dense.weight, weights["lm_head.dense.weight"].float())
    assert torch.isfinite(trainer.update())


def test_dropout_is_the_study_s(given: dict, encoders: dict[str, Path]) -> None:
    for kind in KINDS:
        config = start(given, encoders[kind], hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3)
        encoder = build_model(config, config.vocab_size).config
        assert (encoder.hidden_dropout_prob, encoder.attention_probs_dropout_prob) == (0.2, 0.3)


def test_refusals(given: dict, encoders: dict[str, Path], tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    def refused(folder: Path | str, **more: object) -> str:
        with pytest.raises(StudyError) as caught:
            pretrain(start({**given, "runs_dir": str(tmp_path / "runs")}, folder, **more), no_line)
        return one_line(caught)

    assert "a checkpoint of the kind 'bert'; expected one of roberta, roberta-pre" in refused(encoders["bert"])
    assert "no such folder" in refused(tmp_path / "absent")
    assert "and the hub did not give it" in refused("no-such/hub-name")
    assert "has positions for 64 tokens; take shorter sequences" in refused(encoders["pre"], sequence_length=65)
    assert "expected fewer than max_steps=20" in refused(encoders["pre"], decoder_warmup_steps=20)
    copy = tmp_path / "copy"

    def spoilt() -> Path:
        shutil.rmtree(copy, ignore_errors=True)
        return shutil.copytree(encoders["pre"], copy)

    (spoilt() / "tokenizer.json").unlink()
    assert "no tokenizer in it" in refused(copy)
    change(spoilt() / "tokenizer_config.json", mask_token=None)
    assert "has no mask_token" in refused(copy)
    tokenizer.save_pretrained(copy)
    change(spoilt() / "config.json", vocab_size=270)
    assert "does not fit its weights (270 tokens" in refused(copy)
    change(spoilt() / "config.json", pad_token_id=3)
    assert "does not fit its weights" in refused(copy)
    (spoilt() / "model.safetensors").unlink()
    assert "no weights in it" in refused(copy)
    change(spoilt() / "config.json", intermediate_size=96)
    assert "its weights have other shapes than its config.json" in refused(copy)
    change(spoilt() / "config.json", num_hidden_layers=3)
    assert "of the encoder's weights are missing" in refused(copy)
    change(spoilt() / "config.json", hidden_size="wide")
    assert "its config.json has no whole number for hidden_size" in refused(copy)
    with pytest.raises(ParameterError, match="a fresh encoder has to learn; give init_encoder"):
        make_config({**given, "decoder_warmup_steps": 5})


def test_prepared_text_of_another_tokenizer(given: dict, small: dict, encoders: dict[str, Path]) -> None:
    folder = prepare_data(make_config(small)).folder
    with pytest.raises(StudyError, match="was prepared with tokenizer='train', asked for"):
        prepare_data(start({**given, "corpus": str(folder)}, encoders["pre"]))
    own = prepare_data(start(given, encoders["pre"]))
    assert prepare_data(start({**given, "corpus": str(own.folder)}, encoders["pre"])).data_id == own.data_id


def test_a_hub_name(given: dict, encoders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """To know its sizes no more than config.json is fetched, once; the weights come when a run starts."""
    asked = []

    def snapshot(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, "*.safetensors" in allow_patterns))
        return str(encoders["modern"])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    config = make_config({**given, "init_encoder": "some/modernbert"}).replace(seed=3)
    assert (config.encoder, config.tokenizer, config.hidden_size) == ("modernbert", "some/modernbert", 32)
    assert asked == [("some/modernbert", False)]
    same = start_identity(start(given, encoders["modern"]))
    assert start_identity(config) == same and asked[1:] == [("some/modernbert", True)]


def test_weights_are_read_once(
    given: dict, encoders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study asks for the identity of each of its runs; weights may be gigabytes."""
    folder = shutil.copytree(encoders["pre"], tmp_path / "start")
    config, read = start(given, folder), list[str]()
    known = start_identity(config)
    monkeypatch.setattr(threeml_core.training.start, "sha256_file", lambda path: read.append(path.name) or "0")
    assert start_identity(config.replace(seed=1)) == known and read == []
    os.utime(folder / "model.safetensors", ns=(0, 0))
    assert start_identity(config) != known and "model.safetensors" in read
