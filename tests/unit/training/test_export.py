"""Encoders as ONNX and for sentence-transformers, read by the real libraries."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from threeml_core.config import StudyConfig
from threeml_core.foundation.errors import CheckpointError, ParameterError, StudyError
from threeml_core.foundation.log import no_line
from threeml_core.training.export import NEEDS, export_command, export_encoder

TEXTS = ["The cat sees the house again.", "no", "The dog said that the bird went away to the river. " * 2]
KINDS = ("post", "pre", "modern")


def states_of(folder: Path, texts: list[str], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """By transformers: (batch, n, d), and (batch, n) bool of what is no padding."""
    given = AutoTokenizer.from_pretrained(folder)(
        texts, padding=True, truncation=True, max_length=length, return_tensors="pt"
    )
    mask = given["attention_mask"]
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder).eval()(given["input_ids"], attention_mask=mask).last_hidden_state
    return states, mask.bool()


@pytest.mark.parametrize("kind", KINDS)
def test_onnx(kind: str, encoders: dict[str, Path], tmp_path: Path) -> None:
    """Any batch and any length up to the encoder's, padded rows too, as transformers computes them."""
    for library in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(library, reason="the extra `export`")
    import onnxruntime

    said = export_command([str(encoders[kind]), str(tmp_path / "there"), "--to", "onnx"])
    assert said.endswith("model.onnx: (input_ids, attention_mask) -> last_hidden_state")
    session = onnxruntime.InferenceSession(tmp_path / "there" / "model.onnx", providers=["CPUExecutionProvider"])
    assert [part.shape for part in session.get_inputs()] == [["batch", "tokens"]] * 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "there")
    for texts in (TEXTS, TEXTS[:1], TEXTS[1:2] * 5, [TEXTS[2] * 3]):
        given = tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="np")
        (found,) = session.run(None, {name: given[name] for name in ("input_ids", "attention_mask")})
        expected, real = states_of(encoders[kind], texts, 64)
        assert (torch.tensor(found) - expected)[real].abs().max() < 5e-6
        assert expected.std() > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_sentence_transformers(kind: str, encoders: dict[str, Path], tmp_path: Path) -> None:
    """The mean of the states of a text's own tokens, cut where it was asked for."""
    library = pytest.importorskip("sentence_transformers", reason="the extra `export`")
    folder, length = tmp_path / "there", 20
    said = export_encoder(encoders[kind], folder, "sentence-transformers", length)
    assert said == f"{folder}: sentence-transformers, mean pooling, max_seq_length 20"
    model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    assert model.max_seq_length == length
    found = torch.tensor(model.encode(TEXTS))
    states, real = states_of(encoders[kind], TEXTS, length)
    assert real.shape[1] == length and not real.all()
    expected = (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)
    assert found.shape == (3, 32) and (found - expected).abs().max() < 5e-6
    assert (folder / "modules.json").is_file() and not [*folder.rglob("*.py"), *folder.rglob("*.bin")]


def test_the_length_is_that_of_pretraining(config: StudyConfig, tmp_path: Path) -> None:
    """There may be room for more, but no position behind it was ever trained."""
    library = pytest.importorskip("sentence_transformers", reason="the extra `export`")
    from threeml_core.training.loop import pretrain

    config = config.replace(max_steps=1, max_position_embeddings=50)
    encoder = pretrain(config, no_line).folder(config.runs_dir) / "encoder"
    assert AutoTokenizer.from_pretrained(encoder).model_max_length == 48
    export_encoder(encoder, tmp_path / "there", "sentence-transformers")
    model = library.SentenceTransformer(str(tmp_path / "there"), device="cpu")
    assert model.max_seq_length == config.sequence_length == 32
    assert model.tokenize(["the cat " * 100])["input_ids"].shape == (1, 32)
    export_encoder(encoder, tmp_path / "longer", "sentence-transformers", 48)
    assert library.SentenceTransformer(str(tmp_path / "longer"), device="cpu").max_seq_length == 48


def test_refusals(encoders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, there = str(encoders["pre"]), str(tmp_path / "there")
    for arguments, problem in (
        ([good], "required: FOLDER, --to; expected threeml export ENCODER FOLDER"),
        ([good, there, "--to", "tflite"], "invalid choice: 'tflite'"),
        ([good, there, "--to", "onnx", "--max-seq-length", "many"], "invalid int value: 'many'"),
    ):
        with pytest.raises(ParameterError, match=problem):
            export_command(arguments)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    with pytest.raises(ParameterError, match="'gguf' is no form: expected one of onnx, sentence-transformers"):
        export_encoder(good, Path(there), "gguf")
    for length in (0, 65):
        with pytest.raises(ParameterError, match=f"max_seq_length={length}: expected 3 to 64 tokens"):
            export_encoder(good, Path(there), "sentence-transformers", length)
    with pytest.raises(ParameterError, match="max_seq_length is for sentence-transformers"):
        export_encoder(good, Path(there), "onnx", 32)
    with pytest.raises(CheckpointError, match="has no weights of its own"):
        export_encoder(f"random:{good}", Path(there), "onnx")
    with pytest.raises(CheckpointError, match="no such folder"):
        export_encoder(tmp_path / "absent", Path(there), "onnx")
    for form in NEEDS:
        with pytest.raises(StudyError, match="pre is there already: give another folder"):
            export_encoder(good, encoders["pre"], form)
    for there_already in (Path("."), tmp_path):  # also an empty one: it may be a volume, or where the user is
        with pytest.raises(StudyError, match="is there already"):
            export_encoder(good, there_already, "onnx")
    with pytest.raises(StudyError, match="cannot be used: File name too long"):
        export_encoder(good, Path("x" * 300), "onnx")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StudyError, match="onnx and onnxscript not installed: install the extra `export`"):
        export_encoder(good, Path(there), "onnx")
    assert not Path(there).exists() and (encoders["pre"] / "config.json").is_file()


def test_what_fails_leaves_nothing(encoders: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="the extra `export`")
    spoilt = tmp_path / "spoilt"
    shutil.copytree(encoders["pre"], spoilt)
    about = json.loads((spoilt / "config.json").read_text())
    (spoilt / "config.json").write_text(json.dumps(about | {"intermediate_size": 65}))
    with pytest.raises(CheckpointError, match="its weights have other shapes"):
        export_encoder(spoilt, tmp_path / "there", "sentence-transformers")
    assert [path.name for path in tmp_path.iterdir()] == ["spoilt"]
