"""Any encoder under a new head; bad checkpoints are refused, and nothing in one runs."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast, RobertaConfig, RobertaModel

from tests.refusals import Payload, change, one_line
from threeml_core.config import StudyConfig
from threeml_core.data.tokenizer import load_tokenizer, train_tokenizer
from threeml_core.foundation.errors import CheckpointError, ParameterError, StudyError
from threeml_core.foundation.log import no_line
from threeml_core.glue.finetune import Setting, load_tasks, make_setting
from threeml_core.information import measure as mutual_information
from threeml_core.training.encoders import load_classifier, max_positions, open_encoder


def setting_of(config: StudyConfig, checkpoint: Path | str) -> Setting:
    return make_setting(config, open_encoder(checkpoint), load_tasks(config, no_line))


def refused(checkpoint: str | Path) -> str:
    with pytest.raises(StudyError) as caught:
        open_encoder(str(checkpoint))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_bad_checkpoints(encoders: dict[str, Path], tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    good = encoders["pre"]
    spoilt = tmp_path / "copy"
    shutil.copytree(good, spoilt)
    (spoilt / "model.safetensors").unlink()
    assert "cannot be loaded for classification" in refused(spoilt) and "safetensors" in refused(spoilt)
    shutil.copy(good / "model.safetensors", spoilt)
    shutil.copy(encoders["bert"] / "model.safetensors", spoilt)
    assert "its weights have other shapes than its config.json" in refused(spoilt)
    weights = load_file(good / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "query" not in k}, spoilt / "model.safetensors", {"format": "pt"})
    assert "4 of the encoder's weights are missing, such as " in refused(spoilt)
    (spoilt / "model.safetensors").write_bytes((good / "model.safetensors").read_bytes()[:-100])
    assert "cannot be loaded for classification" in refused(spoilt)
    shutil.copy(good / "model.safetensors", spoilt)
    train_tokenizer(["The cat dog bird sees the house again and went away to the river " * 9], 340).save_pretrained(
        spoilt
    )
    assert "does not fit its weights" in refused(spoilt) and "put the right tokenizer files" in refused(spoilt)
    shutil.rmtree(spoilt)
    shutil.copytree(good, spoilt)
    change(spoilt / "tokenizer_config.json", pad_token="<unk>")
    assert "padding 3) does not fit its weights (" in refused(spoilt)
    for file in spoilt.glob("tokenizer*"):
        file.unlink()
    assert f"checkpoint {spoilt}: no tokenizer in it" in refused(spoilt)
    assert "no config.json in it" in refused(tmp_path)
    assert "/absent: no such folder" in refused(tmp_path / "absent")
    assert "expected a folder, a hub name, or random:<either>" in refused("random:")
    assert "no such folder, and the hub did not give it" in refused("no-such/hub-name")
    assert "checkpoint runs/pretrain/typo/encoder: no such folder" in refused("runs/pretrain/typo/encoder")
    (tmp_path / "run" / "encoder").mkdir(parents=True)
    (tmp_path / "run" / "encoder" / "config.json").write_text("{}")
    assert f"is a run folder: its encoder is {tmp_path / 'run' / 'encoder'}" in refused(tmp_path / "run")


def test_the_whole_pretraining_model_is_refused(config: StudyConfig) -> None:
    """`model/` holds the decoder as well; what to fine-tune is `encoder/` beside it."""
    from threeml_core.training.loop import pretrain

    record = pretrain(config.replace(max_steps=1), no_line)
    folder = record.folder(config.runs_dir)
    assert "cannot be loaded for classification" in refused(folder / "model")
    assert f"its encoder is {folder / 'encoder'}" in refused(folder)
    encoder = open_encoder(str(folder / "encoder"))
    assert encoder.positions == config.max_position_embeddings - 2 == 32
    with pytest.raises(ParameterError, match="max_length=33: the encoder .* takes at most 32 tokens"):
        setting_of(config.replace(glue="bundled", max_length=33, checkpoint="x"), folder / "encoder")


def test_positions_of_the_families(encoders: dict[str, Path]) -> None:
    """RoBERTa's tables hold two rows that no token uses; at the limit a model still runs. ModernBERT has no table."""
    for family, expected in (("post", 64), ("pre", 64), ("bert", 64), ("modern", 64)):
        model = load_classifier(encoders[family], 2)
        assert max_positions(model) == expected
        model(input_ids=torch.full((1, expected), 7))
        if family == "modern":
            continue
        with pytest.raises((IndexError, RuntimeError)):
            model(input_ids=torch.full((1, expected + 1), 7))


def test_a_new_head_of_the_right_size(encoders: dict[str, Path]) -> None:
    for labels in (1, 2, 3):
        model = load_classifier(encoders["pre"], labels)
        assert model.config.num_labels == labels
        assert isinstance(model, type(AutoModelForSequenceClassification.from_pretrained(encoders["pre"])))
    with pytest.raises(CheckpointError):
        load_classifier("no-such/name", 2)


@pytest.fixture
def encoder(tmp_path: Path, marker: Path) -> Path:
    """A checkpoint with a file of code in it."""
    tokenizer = train_tokenizer(["the cat sees the dog"], 270)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = RobertaConfig(**size, vocab_size=len(tokenizer), max_position_embeddings=40, pad_token_id=1)
    folder = tmp_path / "encoder"
    RobertaModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "evil.py").write_text(
        f"from pathlib import Path\nPath({str(marker)!r}).touch()\n"
        "from transformers import RobertaConfig as Config, RobertaForSequenceClassification as Model\n"
    )
    return folder


def test_the_encoder_of_these_tests_loads(encoder: Path) -> None:
    assert open_encoder(encoder).positions == 38


@pytest.mark.parametrize("start", ["", "random:"])
def test_pickled_weights_are_refused(encoder: Path, marker: Path, start: str) -> None:
    """`random:` needs no weights and takes none."""
    (encoder / "model.safetensors").unlink()
    (encoder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(marker)))
    if start:
        assert open_encoder(f"{start}{encoder}").is_random
        return
    with pytest.raises(CheckpointError) as caught:
        open_encoder(encoder)
    assert "expected a Hugging Face folder or hub name with config.json and safetensors weights" in one_line(caught)


def test_a_pickle_called_safetensors_is_refused(encoder: Path, marker: Path) -> None:
    (encoder / "model.safetensors").write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(CheckpointError, match="cannot be loaded") as caught:
        open_encoder(encoder)
    one_line(caught)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "../outside.safetensors", "/outside.safetensors", 1])
@pytest.mark.parametrize("index", [True, False])
def test_names_of_weights_stay_in_the_folder(encoder: Path, marker: Path, name: object, index: bool) -> None:
    """transformers follows the names of the index, be they of safetensors or not."""
    shutil.copy(encoder / "model.safetensors", encoder.parent / "outside.safetensors")
    (encoder / "model.safetensors").unlink()
    (encoder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(marker)))
    if index:
        content = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": name}}
        (encoder / "model.safetensors.index.json").write_text(json.dumps(content))
    else:
        change(encoder / "config.json", transformers_weights=name)
    with pytest.raises(
        CheckpointError, match="names the weights .*expected safetensors files of this folder"
    ) as caught:
        open_encoder(encoder)
    one_line(caught)
    shutil.copytree(encoder, encoder.parent / "run" / "model")  # of a run, as 07 reads it
    with pytest.raises(CheckpointError, match="names the weights") as caught:
        mutual_information.load_model(encoder.parent / "run")
    one_line(caught)


CODE = {
    f"Auto{kind}": f"evil.{name}" for kind, name in (("Config", "Config"), ("ModelForSequenceClassification", "Model"))
}


@pytest.mark.parametrize("start", ["", "random:"])
@pytest.mark.parametrize("model_type", ["roberta", "evil"])
def test_code_of_a_checkpoint_is_not_run(
    encoder: Path, marker: Path, monkeypatch: pytest.MonkeyPatch, start: str, model_type: str
) -> None:
    """Nor is the user asked whether it should be. A known model type is loaded by transformers' own code."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    change(encoder / "config.json", auto_map=CODE, model_type=model_type)
    if model_type == "roberta":
        assert open_encoder(f"{start}{encoder}").parameters > 0
        return
    with pytest.raises(CheckpointError, match="contains custom code") as caught:
        open_encoder(f"{start}{encoder}")
    one_line(caught)


def test_code_of_a_tokenizer_is_not_run(encoder: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    change(
        encoder / "tokenizer_config.json",
        auto_map={"AutoTokenizer": ["evil.Model", "evil.Model"]},
        tokenizer_class="Evil",
    )
    assert len(load_tokenizer(encoder)) == 270  # by the library's own class


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_code_of_the_hub_is_not_fetched(encoder: Path, key: str) -> None:
    """An attention that is named like a repository would be downloaded and run, where `kernels` is installed."""
    change(encoder / "config.json", **{key: "someone/attention"})
    for start in ("", "random:"):
        with pytest.raises(CheckpointError, match="asks for code from someone/attention") as caught:
            open_encoder(f"{start}{encoder}")
        one_line(caught)


def test_what_needs_another_package_is_refused(encoder: Path) -> None:
    change(encoder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(CheckpointError, match="cannot be loaded for classification") as caught:
        open_encoder(encoder)
    one_line(caught)
