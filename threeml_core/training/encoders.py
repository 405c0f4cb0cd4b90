"""Any Hugging Face encoder, found and checked; under a new head for fine-tuning."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from threeml_core.data.tokenizer import quiet_transformers
from threeml_core.foundation.errors import CheckpointError, DamagedFileError
from threeml_core.foundation.files import atomic_folder, fingerprint, sha256_file
from threeml_core.parameters.glue import RANDOM
from threeml_core.runs.record import RunRecord, read_record
from threeml_core.training.start import load_pretrained, open_checkpoint, refuse_other_vocabulary


@dataclasses.dataclass(frozen=True)
class Encoder:
    """A checked encoder.

    Attributes:
        checkpoint: as given; a folder inside the project relative to it.
        folder: where its files lie; of a hub name, one commit in the hub's cache.
        is_random: its geometry and tokenizer are used, its weights are not.
        fingerprint: of weights and configuration.
        positions: longest sequence it takes, in tokens; None: no limit.
        segments: does it tell the two texts of a pair apart by segment ids?
        parameters: trainable numbers, without a task's head.
        pretraining: the record, if this project pre-trained it.
    """

    checkpoint: str
    folder: Path
    is_random: bool
    fingerprint: str
    positions: int | None
    segments: bool
    parameters: int
    tokenizer: PreTrainedTokenizerFast
    pretraining: RunRecord | None


def open_encoder(checkpoint: str | Path) -> Encoder:
    """Find an encoder and load it once, so that whatever is wrong with it shows before a run starts.

    Args:
        checkpoint: a Hugging Face folder (relative: below the caller's folder or the project), a hub name, or
            `random:<either>`, which keeps geometry and tokenizer but draws new weights as `config.json` says.

    Raises:
        CheckpointError: no such checkpoint, no weights, weights of something else, another tokenizer's vocabulary.
        StudyError: a file of it may not be read.
    """
    name = str(checkpoint)
    is_random = name.startswith(RANDOM)
    source = name.removeprefix(RANDOM)
    if not source:
        raise CheckpointError("checkpoint is empty: expected a folder, a hub name, or random:<either>")
    folder, shown, tokenizer = open_checkpoint(source)
    files = [folder / "config.json", *([] if is_random else sorted(folder.glob("*.safetensors")))]
    identity = fingerprint([is_random, *map(sha256_file, files)], 32)
    model = load_classifier(folder, num_labels=2, is_random=is_random)
    vocab = len(model.get_input_embeddings().weight)  # type: ignore[arg-type]
    refuse_other_vocabulary(source, tokenizer, vocab, model.config.pad_token_id)
    return Encoder(
        f"{RANDOM if is_random else ''}{shown}",
        folder,
        is_random,
        identity,
        max_positions(model),
        (getattr(model.config, "type_vocab_size", None) or 0) > 1,
        sum(p.numel() for p in model.base_model.parameters()),
        tokenizer,
        _pretraining_record(folder.parent),
    )


def _pretraining_record(folder: Path) -> RunRecord | None:
    """Of a run folder that holds an encoder; None for encoders from elsewhere, or if it is no longer whole."""
    try:
        record = read_record(folder)
    except DamagedFileError:
        return None
    return record if record.stage == "pretrain" else None


def load_classifier(folder: Path, num_labels: int, is_random: bool = False) -> PreTrainedModel:
    """The encoder under a new classification (or, with one output, regression) head, drawn from torch's generator.

    With `is_random` the encoder's weights are drawn too, as its configuration says. A CheckpointError as in
    `open_encoder` says what is wrong with the files.
    """
    auto: Any = AutoModelForSequenceClassification
    return load_pretrained(auto, folder, "for classification", is_random, num_labels=num_labels)


def save_encoder(model: PreTrainedModel, folder: Path) -> None:
    """Leave the encoder of a classifier, without its head, in one step."""
    with atomic_folder(folder) as temporary, quiet_transformers():
        cast(PreTrainedModel, model.base_model).save_pretrained(temporary)


def max_positions(model: PreTrainedModel) -> int | None:
    """Longest sequence in tokens: what a position table has room for, or with RoPE the length it was made for.

    RoBERTa's position ids start behind the padding id. None: neither of them.
    """
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return model.config.max_position_embeddings if getattr(model.config, "rope_parameters", None) else None
