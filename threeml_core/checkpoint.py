"""Saved states for exact resume, and the export of the encoder as an ordinary Hugging Face folder."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from threeml_core.errors import DamagedFileError, TrainingError
from threeml_core.files import atomic_file, atomic_folder


@dataclasses.dataclass
class TrainingState:
    """Where a run stands, apart from weights and moments. Order and corruption follow from the step."""

    step: int = 0
    """Updates done."""
    seconds: float = 0.0
    """Wall clock of the updates before the current logging window; validation and saving left out."""
    window_seconds: float = 0.0
    """The same, of the current logging window."""
    loss_sum: float = 0.0
    """Of the losses in the window."""
    loss_count: int = 0

    def start_window(self) -> None:
        """Begin the next logging window."""
        self.seconds += self.window_seconds
        self.window_seconds, self.loss_sum, self.loss_count = 0.0, 0.0, 0


REMEDY = "The paper's remedy: max_grad_norm=1.0 (gradient clipping); a lower learning_rate helps too"


def kept_state(path: Path) -> str:
    """What a run that has to stop can say about its last good state."""
    return f"the last good state is kept in {path}" if path.exists() else "no state was saved before"


def all_finite(model: nn.Module) -> bool:
    """Is every parameter a finite number?"""
    norms = torch._foreach_norm([p.detach() for p in model.parameters()])
    return bool(torch.isfinite(torch.stack(norms)).all())


def save_training_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: TrainingState) -> None:
    """Write weights, moments and random states in one step; the previous file stays until the new one is whole.

    Raises:
        TrainingError: a parameter is not finite; the previous state is kept.
        StudyError: the disk is full; the previous state is kept.
    """
    if not all_finite(model):
        raise TrainingError(f"a parameter is not finite after step {state.step}; {kept_state(path)}. {REMEDY}")
    content = {
        "state": dataclasses.asdict(state),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
    with atomic_file(path) as temporary, temporary.open("wb") as handle:
        torch.save(content, handle)


def load_training_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingState:
    """Put a saved state back into model, optimizer and torch's random generators.

    Raises:
        DamagedFileError: the file is truncated or of another model.
    """
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        torch.set_rng_state(content["rng"])
        if content["cuda_rng"] and len(content["cuda_rng"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(content["cuda_rng"])
        return TrainingState(**content["state"])
    except MemoryError:
        raise
    except Exception as error:  # torch raises many kinds for a broken archive
        if isinstance(error, torch.OutOfMemoryError):
            raise
        reason = str(error).split("\n")[0][:200]
        raise DamagedFileError(
            f"damaged checkpoint: {path} cannot be loaded ({type(error).__name__}: {reason}); "
            f"remove {path.parent} to start this run again"
        ) from None


def save_model(model: PreTrainedModel, folder: Path, tokenizer_folder: Path) -> None:
    """The whole pre-training model, decoder included, as a Hugging Face folder (safetensors) with its tokenizer."""
    with atomic_folder(folder) as temporary:
        model.save_pretrained(temporary)
        shutil.copytree(tokenizer_folder, temporary, dirs_exist_ok=True)


def export_encoder(model: PreTrainedModel, folder: Path, tokenizer_folder: Path, card: str) -> None:
    """The encoder alone: an ordinary RoBERTa folder that `AutoModel` loads, with tokenizer and model card.

    Source: section 2.2, "Fine-tuning and Inference": the decoder is removed.
    """
    with atomic_folder(folder) as temporary:
        cast(PreTrainedModel, model.encoder).save_pretrained(temporary)
        shutil.copytree(tokenizer_folder, temporary, dirs_exist_ok=True)
        (temporary / "README.md").write_text(card, encoding="utf-8")
