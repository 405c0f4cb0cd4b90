"""An encoder in the form of other tools: ONNX, or a sentence-transformers folder. `threeml export ENCODER FOLDER`."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import logging
import warnings
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from threeml_core.data.tokenizer import quiet_transformers
from threeml_core.foundation.errors import CheckpointError, ParameterError, StudyError
from threeml_core.foundation.files import atomic_folder, explain_path
from threeml_core.training.encoders import Encoder, open_encoder
from threeml_core.training.start import load_pretrained

USAGE = "threeml export ENCODER FOLDER --to onnx|sentence-transformers [--max-seq-length TOKENS]"

NEEDS = {"onnx": ("onnx", "onnxscript"), "sentence-transformers": ("sentence_transformers",)}
"""Form -> modules that write it."""

_LARGEST_FILE = 2**31 - 2**27  # bytes of weights that an ONNX file of its own can hold


def export_encoder(source: str | Path, folder: Path, form: str, max_seq_length: int | None = None) -> str:
    """Write an encoder into a new folder; in words what it is.

    Args:
        source: a Hugging Face folder or hub name, as `open_encoder` takes it.
        folder: where to; it must not be there.
        form: `onnx`: `model.onnx`, (input_ids, attention_mask) -> last_hidden_state, of any batch and length, with
            config.json and tokenizer. `sentence-transformers`: the mean of the last states, not normalised.
        max_seq_length: tokens at which sentence-transformers cuts; None: see `sequence_length_of`.

    Raises:
        CheckpointError: no such encoder, or one without weights.
        ParameterError: an unknown form, or a length that the encoder does not take.
        StudyError: a library is not installed, the folder is there or cannot be made, the disk is full.
    """
    if form not in NEEDS:
        raise ParameterError(f"{form!r} is no form: expected one of {', '.join(NEEDS)}")
    if form == "onnx" and max_seq_length is not None:
        raise ParameterError("max_seq_length is for sentence-transformers: ONNX takes any length, so leave it out")
    with explain_path(folder):
        if folder.exists():
            raise StudyError(f"{folder} is there already: give another folder, or remove it")
    if missing := [name for name in NEEDS[form] if importlib.util.find_spec(name) is None]:
        raise StudyError(f"{' and '.join(missing)} not installed: install the extra `export` of threeml-study")
    encoder = open_encoder(source)
    if encoder.is_random:
        raise CheckpointError(f"checkpoint {source} has no weights of its own: give the encoder that was trained")
    length = sequence_length_of(encoder) if max_seq_length is None else max_seq_length
    most = encoder.positions or max(3, length)
    if not 3 <= length <= most:
        raise ParameterError(f"max_seq_length={length}: expected 3 to {most} tokens, as the encoder takes")
    with atomic_folder(folder) as temporary, quiet_transformers():
        if form == "onnx":
            _write_onnx(encoder, temporary)
            return f"{folder / 'model.onnx'}: (input_ids, attention_mask) -> last_hidden_state"
        _write_sentence_transformer(encoder, temporary, length)
    return f"{folder}: sentence-transformers, mean pooling, max_seq_length {length}"


def sequence_length_of(encoder: Encoder) -> int:
    """Tokens of the longest text that the encoder was trained on, as far as that is known, else that it takes."""
    known = encoder.pretraining.parameters.get("sequence_length") if encoder.pretraining else None
    limits = [n for n in (known, encoder.positions, encoder.tokenizer.model_max_length) if n]
    return min(limits)


class _States(nn.Module):
    """What an encoder gives, its last states alone."""

    def __init__(self, encoder: PreTrainedModel) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def _write_onnx(encoder: Encoder, folder: Path) -> None:
    model = load_pretrained(AutoModel, encoder.folder, "to be exported").eval()
    ids = encoder.tokenizer(["a", "a b c"], padding=True, return_tensors="pt")
    given = {name: ids[name] for name in ("input_ids", "attention_mask")}
    log, before = logging.getLogger("torch.onnx"), logging.getLogger("torch.onnx").level
    log.setLevel(logging.ERROR)  # it names libraries that nothing here needs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch about itself
            program: Any = torch.onnx.export(
                _States(model),
                tuple(given.values()),
                dynamo=True,
                input_names=list(given),
                output_names=["last_hidden_state"],
                dynamic_shapes={name: {0: "batch", 1: "tokens"} for name in given},
                verbose=False,
            )
    finally:
        log.setLevel(before)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    program.save(folder / "model.onnx", external_data=size > _LARGEST_FILE)
    model.config.save_pretrained(folder)
    encoder.tokenizer.save_pretrained(folder)


def _write_sentence_transformer(encoder: Encoder, folder: Path, length: int) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    kind = type(load_pretrained(AutoModel, encoder.folder, "to be exported"))
    pooler = {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(kind).parameters else {}
    states = Transformer(str(encoder.folder), model_kwargs={"use_safetensors": True, **pooler}, max_seq_length=length)
    pooling = Pooling(states.get_embedding_dimension(), "mean")
    SentenceTransformer(modules=[states, pooling], device="cpu").save_pretrained(str(folder))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, as for every other mistake."""
        raise ParameterError(f"{message}; expected {USAGE}")


def export_command(arguments: list[str]) -> str:
    """What `threeml export` does with these arguments, and says then; errors as `export_encoder`."""
    parser = _Parser(prog="threeml export", description="Write an encoder into a new folder.")
    parser.add_argument(
        "encoder", metavar="ENCODER", help="folder, such as runs/pretrain/<run id>/encoder, or hub name"
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="a new folder")
    parser.add_argument("--to", required=True, choices=NEEDS, help="form")
    parser.add_argument("--max-seq-length", type=int, metavar="TOKENS", help="where sentence-transformers cuts")
    given = parser.parse_args(arguments)
    return export_encoder(given.encoder, given.folder, given.to, given.max_seq_length)
