"""Any Hugging Face encoder as the start of fine-tuning: found, checked, and given a new head."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import snapshot_download
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from threeml_core.data.hub import hub_or_cache, hub_reason
from threeml_core.data.tokenizer import load_tokenizer, quiet_transformers
from threeml_core.foundation.errors import CheckpointError, CorpusError, DamagedFileError
from threeml_core.foundation.files import PROJECT_ROOT, atomic_folder, explain_path, find_path, fingerprint, sha256_file
from threeml_core.parameters.glue import RANDOM
from threeml_core.runs.record import RunRecord, read_record
from threeml_core.training.checkpoint import refuse_foreign_files

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "spm.model", "spiece.model", "sentencepiece.bpe.model")
_HUB_FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]


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
    with explain_path(source):
        folder, shown = _find(source)
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        raise CheckpointError(f"checkpoint {source}: no tokenizer in it; put tokenizer.json beside the weights")
    try:
        tokenizer = load_tokenizer(str(folder))
    except CorpusError as error:
        raise CheckpointError(f"checkpoint {source}: {error}") from None
    files = [folder / "config.json", *([] if is_random else sorted(folder.glob("*.safetensors")))]
    identity = fingerprint([is_random, *map(sha256_file, files)], 32)
    model = load_classifier(folder, num_labels=2, is_random=is_random)
    vocab = len(model.get_input_embeddings().weight)  # type: ignore[arg-type]
    padding = model.config.pad_token_id
    if len(tokenizer) > vocab or padding is not None and padding != tokenizer.pad_token_id:
        raise CheckpointError(
            f"checkpoint {source}: its tokenizer ({len(tokenizer):,} tokens, padding {tokenizer.pad_token_id}) does "
            f"not fit its weights ({vocab:,} tokens, padding {padding}): put the right tokenizer files beside them"
        )
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


def _find(source: str) -> tuple[Path, str]:
    """The folder of a checkpoint, and how to name it."""
    if not source:
        raise CheckpointError("checkpoint is empty: expected a folder, a hub name, or random:<either>")
    folder = find_path(source)
    if not folder.is_dir():
        if source.startswith(("/", ".", "~")) or source.count("/") > 1:
            raise CheckpointError(f"checkpoint {source}: no such folder")
        return _from_hub(source), source
    folder = folder.resolve()
    if (folder / "encoder" / "config.json").is_file():
        raise CheckpointError(f"checkpoint {folder} is a run folder: its encoder is {folder / 'encoder'}")
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"checkpoint {folder}: no config.json in it; expected a Hugging Face folder")
    return folder, str(folder.relative_to(PROJECT_ROOT) if folder.is_relative_to(PROJECT_ROOT) else folder)


def _from_hub(name: str) -> Path:
    """One commit of a hub repository, so that all runs of a study start from the same files."""
    with hub_or_cache(name) as offline:
        try:
            return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
        except Exception as error:  # the hub's errors have no common base
            why = f"no such folder, and the hub did not give it ({hub_reason(error, offline)})"
            raise CheckpointError(f"checkpoint {name}: {why}; check the name and the network") from None


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
    try:
        with quiet_transformers():
            refuse_foreign_files(folder)
            config = AutoConfig.from_pretrained(folder, num_labels=num_labels, trust_remote_code=False)
            kind: dict[str, Any] = {"config": config, "dtype": torch.float32}
            if is_random:
                return AutoModelForSequenceClassification.from_config(**kind, trust_remote_code=False)
            model, report = AutoModelForSequenceClassification.from_pretrained(
                folder, **kind, use_safetensors=True, output_loading_info=True, trust_remote_code=False
            )
    except (CheckpointError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # transformers' and safetensors' errors have no common base
        if "ignore_mismatched_sizes" in str(error):
            raise CheckpointError(f"checkpoint {folder}: its weights have other shapes than its config.json") from None
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(
            f"checkpoint {folder}: cannot be loaded for classification ({reason}); expected a Hugging Face folder or "
            "hub name with config.json and safetensors weights of an encoder"
        ) from None
    prefix = f"{model.base_model_prefix}."
    lacking = sorted(key for key in report["missing_keys"] if key.startswith(prefix) and "pooler" not in key)
    if lacking:
        raise CheckpointError(
            f"checkpoint {folder}: {len(lacking)} of the encoder's weights are missing, such as {lacking[0]}; "
            "the weights do not belong to this config.json"
        )
    return model


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
