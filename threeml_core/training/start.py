"""Somebody's checkpoint: opened, checked and loaded, for fine-tuning or as the start of a pre-training."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerFast

from threeml_core.config import StudyConfig
from threeml_core.data.tokenizer import load_tokenizer, quiet_transformers
from threeml_core.foundation.checkpoints import (
    find_checkpoint,
    read_json_object,
    refuse_foreign_files,
    refuse_no_tokenizer,
)
from threeml_core.foundation.errors import CheckpointError, CorpusError
from threeml_core.foundation.files import fingerprint, sha256_file
from threeml_core.models.base import MaskedLanguageModel


def open_checkpoint(source: str) -> tuple[Path, str, PreTrainedTokenizerFast]:
    """Folder, name and tokenizer of a checkpoint (see `find_checkpoint`).

    Raises:
        CheckpointError: there is none, or its tokenizer is missing or lacks a token, such as the mask.
    """
    folder, shown = find_checkpoint(source)
    refuse_no_tokenizer(folder, source)
    try:
        return folder, shown, load_tokenizer(str(folder))
    except CorpusError as error:
        raise CheckpointError(f"checkpoint {source}: {error}") from None


def refuse_other_vocabulary(
    source: str, tokenizer: PreTrainedTokenizerFast, vocab_size: int, padding: int | None
) -> None:
    """Refuse, with a `CheckpointError`, a tokenizer of more tokens than the embedding has, or of another padding."""
    if len(tokenizer) > vocab_size or padding is not None and padding != tokenizer.pad_token_id:
        raise CheckpointError(
            f"checkpoint {source}: its tokenizer ({len(tokenizer):,} tokens, padding {tokenizer.pad_token_id}) does "
            f"not fit its weights ({vocab_size:,} tokens, padding {padding}): put the right tokenizer files beside them"
        )


def load_pretrained(auto: Any, folder: Path, purpose: str, is_random: bool = False, **options: Any) -> PreTrainedModel:
    """A model of a folder in float32, as the class `auto` of transformers loads it, with all weights of its encoder.

    With `is_random` all weights are drawn, as `config.json` says; `options` go into that configuration.

    Raises:
        CheckpointError: weights that are missing, damaged, pickled, or of other shapes; `purpose` says what for.
    """
    try:
        with quiet_transformers():
            refuse_foreign_files(folder)
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False, **options)
            if is_random:
                return auto.from_config(config, dtype=torch.float32, trust_remote_code=False)
            model, report = auto.from_pretrained(
                folder,
                config=config,
                use_safetensors=True,
                output_loading_info=True,
                dtype=torch.float32,
                trust_remote_code=False,
            )
    except (CheckpointError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # transformers' and safetensors' errors have no common base
        if "ignore_mismatched_sizes" in str(error):
            raise CheckpointError(f"checkpoint {folder}: its weights have other shapes than its config.json") from None
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(
            f"checkpoint {folder}: cannot be loaded {purpose} ({reason}); expected a Hugging Face folder or "
            "hub name with config.json and safetensors weights of an encoder"
        ) from None
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    lacking = sorted(key for key in report["missing_keys"] if key.startswith(prefix) and "pooler" not in key)
    if lacking:
        raise CheckpointError(
            f"checkpoint {folder}: {len(lacking)} of the encoder's weights are missing, such as {lacking[0]}; "
            "the weights do not belong to this config.json"
        )
    return model


def start_identity(config: StudyConfig) -> dict[str, str]:
    """What a run says of its start: `init_encoder` by content, config.json and weights; empty without one.

    Raises:
        CheckpointError: what can be seen to be wrong with it before its weights are loaded.
    """
    if config.init_encoder is None:
        return {}
    folder = find_checkpoint(config.init_encoder)[0]
    files = tuple((path, (about := path.stat()).st_size, about.st_mtime_ns) for path in sorted(folder.iterdir()))
    return {"init_encoder": _checked_content(config.init_encoder, config.vocab_size, files)}


@functools.cache
def _checked_content(source: str, vocab_size: int, files: tuple[tuple[Path, int, int], ...]) -> str:
    """Fingerprint of a checkpoint; read once as long as its `files` stay as they are, as a study asks for each run."""
    folder, _, tokenizer = open_checkpoint(source)
    refuse_other_vocabulary(source, tokenizer, vocab_size, read_json_object(folder / "config.json").get("pad_token_id"))
    weights = [path for path, *_ in files if path.suffix == ".safetensors"]
    if not weights:
        raise CheckpointError(f"checkpoint {source}: no weights in it; expected safetensors files")
    return fingerprint([sha256_file(path) for path in (folder / "config.json", *weights)], 32)


def load_start(model: MaskedLanguageModel, config: StudyConfig) -> None:
    """Give the encoder of a fresh model, embeddings included, the weights of `init_encoder`, if there is one.

    Decoder, projection, [MASK] vector and head stay as they were drawn, also where the checkpoint has a head.

    Raises:
        CheckpointError: see `load_pretrained`.
    """
    if config.init_encoder is not None:
        start = load_pretrained(AutoModel, find_checkpoint(config.init_encoder)[0], "as init_encoder")
        own = model.encoder.state_dict()
        model.encoder.load_state_dict({name: value for name, value in start.state_dict().items() if name in own})
