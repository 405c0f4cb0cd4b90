"""Any Hugging Face encoder as the start of fine-tuning: found, checked, and given a new head."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from threeml_core.data.tokenizer import load_tokenizer
from threeml_core.errors import CheckpointError
from threeml_core.files import PROJECT_ROOT, fingerprint, project_path, sha256_file

RANDOM = "random:"


@dataclasses.dataclass(frozen=True)
class Encoder:
    """A checked encoder.

    Attributes:
        checkpoint: as given; a folder inside the project relative to it.
        source: folder or hub name, without `random:`.
        is_random: its geometry and tokenizer are used, its weights are not.
        fingerprint: of weights and configuration (for a hub name, of its commit).
        positions: longest sequence it takes, in tokens; None: no limit.
        parameters: trainable numbers, without a task's head.
        tokenizer: its own.
    """

    checkpoint: str
    source: str
    is_random: bool
    fingerprint: str
    positions: int | None
    parameters: int
    tokenizer: PreTrainedTokenizerFast


def open_encoder(checkpoint: str) -> Encoder:
    """Find an encoder and load it once, so that whatever is wrong with it shows before a run starts.

    Args:
        checkpoint: a Hugging Face folder (relative: below the caller's folder or the project), a hub name, or
            `random:<either>`, which keeps geometry and tokenizer but draws new weights.

    Raises:
        CheckpointError: no such checkpoint, no weights, weights of something else, a vocabulary that does not fit
            the tokenizer.
    """
    is_random = checkpoint.startswith(RANDOM)
    source = checkpoint.removeprefix(RANDOM)
    if not source:
        raise CheckpointError(f"checkpoint={checkpoint!r}: expected random:<folder or hub name>")
    folder = Path(source).expanduser()
    if not folder.is_absolute() and not folder.exists():
        folder = project_path(source)
    if folder.is_dir():
        folder = folder.resolve()
        _check_folder(folder)
        source = str(folder)
        inside = folder.relative_to(PROJECT_ROOT) if folder.is_relative_to(PROJECT_ROOT) else folder
        checkpoint = f"{RANDOM if is_random else ''}{inside}"
    elif source.startswith(("/", ".", "~")):
        raise CheckpointError(f"checkpoint {source}: no such folder")
    tokenizer = load_tokenizer(source)
    model = load_classifier(source, num_labels=2, is_random=is_random)
    vocab = model.config.get_text_config().vocab_size
    if len(tokenizer) > vocab:
        raise CheckpointError(
            f"checkpoint {source}: its tokenizer has {len(tokenizer):,} tokens, its embedding {vocab:,}; "
            "they belong to different models: put the right tokenizer files beside the weights"
        )
    if folder.is_dir():
        files = [folder / "config.json", *([] if is_random else sorted(folder.glob("*.safetensors")))]
        content: Any = [sha256_file(file) for file in files]
    else:
        content = [source, getattr(model.config, "_commit_hash", None)]
    return Encoder(
        checkpoint,
        source,
        is_random,
        fingerprint([is_random, content], 32),
        max_positions(model),
        sum(p.numel() for p in model.base_model.parameters()),
        tokenizer,
    )


def _check_folder(folder: Path) -> None:
    if (folder / "encoder" / "config.json").is_file():
        raise CheckpointError(f"checkpoint {folder} is a run folder: its encoder is {folder / 'encoder'}")
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"checkpoint {folder}: no config.json in it; expected a Hugging Face folder")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' report on the new head."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)


def load_classifier(source: str | Path, num_labels: int, is_random: bool = False) -> PreTrainedModel:
    """The encoder under a new classification (or, with one output, regression) head, drawn from torch's generator.

    Args:
        source: folder or hub name.
        num_labels: outputs of the head.
        is_random: draw the encoder's weights too, as its configuration says.

    Raises:
        CheckpointError: see `open_encoder`.
    """
    try:
        with _quiet():
            config = AutoConfig.from_pretrained(source, num_labels=num_labels)
            if is_random:
                return AutoModelForSequenceClassification.from_config(config)
            model, report = AutoModelForSequenceClassification.from_pretrained(
                source, config=config, use_safetensors=True, output_loading_info=True, dtype=torch.float32
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        if "ignore_mismatched_sizes" in str(error):
            raise CheckpointError(f"checkpoint {source}: its weights have other shapes than its config.json") from None
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(
            f"checkpoint {source}: cannot be loaded for classification ({reason}); expected a Hugging Face folder or "
            "hub name with config.json and safetensors weights of an encoder"
        ) from None
    prefix = f"{model.base_model_prefix}."
    lacking = sorted(key for key in report["missing_keys"] if key.startswith(prefix) and "pooler" not in key)
    if lacking:
        raise CheckpointError(
            f"checkpoint {source}: {len(lacking)} of the encoder's weights are missing, such as {lacking[0]}; "
            "the weights do not belong to this config.json"
        )
    return model


def max_positions(model: PreTrainedModel) -> int | None:
    """Longest sequence in tokens; RoBERTa's position ids start behind the padding id. None: no position table."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            offset = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - offset
    return None
