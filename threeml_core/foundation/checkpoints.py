"""Hugging Face folders of others: where they are found, and what in them is refused unread. No torch."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from threeml_core.foundation.errors import CheckpointError
from threeml_core.foundation.files import PROJECT_ROOT, explain_path, find_path

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "spm.model", "spiece.model", "sentencepiece.bpe.model")
_HUB_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")


def find_checkpoint(source: str, files: tuple[str, ...] = _HUB_FILES) -> tuple[Path, str]:
    """The folder of a checkpoint, and how to name it: inside the project relative to it.

    Args:
        source: a folder (relative: below the caller's folder or the project), or a hub name: then the folder is of one
            commit in the hub's cache, so that all runs of a study start from the same files.
        files: what is fetched from the hub.

    Raises:
        CheckpointError: there is none, or it has no `config.json`.
        StudyError: a folder that may not be read.
    """
    with explain_path(source):
        folder = find_path(source)
        if not folder.is_dir():
            if source.startswith(("/", ".", "~")) or source.count("/") > 1:
                raise CheckpointError(f"checkpoint {source}: no such folder")
            return _from_hub(source, files), source
        folder = folder.resolve()
        if (folder / "encoder" / "config.json").is_file():
            raise CheckpointError(f"checkpoint {folder} is a run folder: its encoder is {folder / 'encoder'}")
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"checkpoint {folder}: no config.json in it; expected a Hugging Face folder")
    return folder, str(folder.relative_to(PROJECT_ROOT) if folder.is_relative_to(PROJECT_ROOT) else folder)


@functools.cache
def _from_hub(name: str, files: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download

    from threeml_core.foundation.hub import hub_or_cache, hub_reason

    with hub_or_cache(name) as offline:
        try:
            return Path(snapshot_download(name, allow_patterns=list(files)))
        except Exception as error:  # the hub's errors have no common base
            raise CheckpointError(
                f"checkpoint {name}: no such folder, and the hub did not give it ({hub_reason(error, offline)}); check "
                "the name and the network"
            ) from None


def refuse_no_tokenizer(folder: Path, source: str) -> None:
    """Refuse, with a `CheckpointError`, a checkpoint without a tokenizer, for which transformers would make one up."""
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        raise CheckpointError(f"checkpoint {source}: no tokenizer in it; put tokenizer.json beside the weights")


def refuse_foreign_files(folder: Path) -> None:
    """Refuse a model folder whose own files lead out of it: to weights elsewhere, to pickled ones, to code of others.

    transformers follows the names in `config.json` and in the weights' index, be they of safetensors or not, and
    fetches an attention that is named like a repository if `kernels` is installed. Code that `auto_map` names is never
    run, as every call says `trust_remote_code=False`.

    Raises:
        CheckpointError: a name that leads out of the folder.
    """
    config, index = (read_json_object(folder / name) for name in ("config.json", "model.safetensors.index.json"))
    for key in ("attn_implementation", "_attn_implementation", "_attn_implementation_internal"):
        if "/" in str(config.get(key)):
            raise CheckpointError(
                f"checkpoint {folder}: its config.json asks for code from {config[key]}; remove {key}"
            )
    shards = index.get("weight_map") or {}
    names = {"model.safetensors.index.json": [*shards.values()] if isinstance(shards, dict) else [shards]}
    names["config.json"] = [config["transformers_weights"]] if config.get("transformers_weights") else []
    for file, weights in names.items():
        for name in weights:
            if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
                raise CheckpointError(
                    f"checkpoint {folder}: its {file} names the weights {name!r}; expected safetensors files of this "
                    "folder"
                )


def read_json_object(path: Path) -> dict[str, Any]:
    """An object; empty if there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # transformers says what is wrong with it
    return content if isinstance(content, dict) else {}
