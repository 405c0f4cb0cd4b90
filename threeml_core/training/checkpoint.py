"""Saved states for exact resume, and the export of the encoder as an ordinary Hugging Face folder."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import NoReturn, cast

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from threeml_core.foundation.errors import DamagedFileError, NotFiniteError
from threeml_core.foundation.files import atomic_file, atomic_folder, fits_digest, json_text
from threeml_core.foundation.log import Log
from threeml_core.models.portable import carry_source

CHECKPOINTS = "checkpoints"
"""Folder of a run with what `checkpoint_steps` keeps, as `step-<N>/encoder` and `step-<N>/model`."""

SMOOTHING = 20
"""Updates over which the loss is smoothed, to see whether a run has diverged."""


@dataclasses.dataclass
class TrainingState:
    """Where a run stands, apart from weights and moments. Order, corruption and dropout follow from the step."""

    step: int = 0
    """Updates done."""
    seconds: float = 0.0
    """Wall clock of the steps before the current logging window; validation and saving left out."""
    window_seconds: float = 0.0
    """The same, of the current logging window."""
    loss_sum: float = 0.0
    """Of the losses in the window."""
    loss_count: int = 0
    smoothed_loss: float = 0.0
    """Moving average of the losses of the steps after the warm-up; nats."""
    smoothed_count: int = 0
    """Updates in it."""

    def smooth(self, loss: float) -> None:
        """Take the loss of another step after the warm-up into the average."""
        self.smoothed_count += 1
        self.smoothed_loss += (loss - self.smoothed_loss) / min(self.smoothed_count, SMOOTHING)

    def start_window(self) -> None:
        """Begin the next logging window."""
        self.seconds += self.window_seconds
        self.window_seconds, self.loss_sum, self.loss_count = 0.0, 0.0, 0


REMEDY = "The paper's remedy: max_grad_norm=1.0 (gradient clipping); a lower learning_rate helps too"


class SavedStates:
    """The last states of a run: `<folder>/<step>-<first digits of the file's SHA-256>.safetensors`.

    A file appears under its name when it is complete, so a kill leaves the states before it as they were; the digits
    tell whether it is still what was written.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        """`keep`: the older ones are removed when a state is saved."""
        self.folder, self.keep = folder, keep

    def files(self) -> list[Path]:
        """Newest first."""
        return sorted(self.folder.glob("*-*.safetensors"), reverse=True)

    def stop(self, problem: str) -> NoReturn:
        """End a run that cannot go on, and say where its last good state is.

        Raises:
            NotFiniteError: always.
        """
        files = self.files()
        last = f"the last good state is kept in {files[0]}" if files else "no state was saved before"
        raise NotFiniteError(f"{problem}; {last}. {REMEDY}")

    def check(self, model: nn.Module, step: int) -> None:
        """Stop a run of which a parameter is not finite after this step."""
        norms = torch._foreach_norm([p.detach() for p in model.parameters()])
        if not torch.isfinite(torch.stack(norms)).all():
            self.stop(f"a parameter is not finite after step {step}")

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        state: TrainingState,
        mask_weights: nn.Module | None = None,
    ) -> None:
        """Write model, moments, weights of the masking and where the run stands; older states stay until it is whole.

        Raises:
            NotFiniteError: a parameter is not finite; the states before it are kept.
            StudyError: the disk is full; the states before it are kept.
        """
        self.check(model, state.step)
        tensors = {name: tensor.detach().contiguous() for name, tensor in _kept(model, mask_weights).items()}
        for name, parameter in model.named_parameters():
            for key, value in optimizer.state[parameter].items():
                tensors[f"optimizer.{key}.{name}"] = value.contiguous()
        about = {"state": json_text(dataclasses.asdict(state))}
        with atomic_file(self.folder / f"{state.step:09d}.safetensors", digest=True) as temporary:
            save_file(tensors, temporary, about)
        for old in self.files()[self.keep :]:
            old.unlink(missing_ok=True)

    def newest(self, log: Log) -> Path | None:
        """The newest state that is as it was written; None: none was saved.

        A damaged one is named in the log and put aside (`.damaged` behind its name), for the one before it.

        Raises:
            DamagedFileError: all are damaged.
        """
        files = self.files()
        for path in files:
            if fits_digest(path):
                return path
            log(f"warning: damaged state {path}: it is not what was written; put aside, the one before it is taken")
            path.replace(path.with_name(f"{path.name}.damaged"))
        if files:
            raise DamagedFileError(
                f"damaged checkpoint: none of the {len(files)} states in {self.folder} is what was written; "
                f"remove {self.folder.parent} to start this run again"
            )
        return None

    def remove(self) -> None:
        """Remove them all: the run is finished."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _kept(model: nn.Module, mask_weights: nn.Module | None) -> dict[str, Tensor]:
    """What a state holds beside moments: parameters, tied ones once, and persistent buffers, by name."""
    found: dict[str, Tensor] = {}
    for prefix, module in {"model": model, "masking": mask_weights}.items():
        if module is not None:
            names, parameters = module.state_dict().keys(), dict(module.named_parameters())
            kept = parameters | {name: buffer for name, buffer in module.named_buffers() if name in names}
            found |= {f"{prefix}.{name}": tensor for name, tensor in kept.items()}
    return found


def load_training_state(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, mask_weights: nn.Module | None = None
) -> TrainingState:
    """Put a saved state back into model, optimizer and weights of the masking, whose tensors stay the same ones.

    Raises:
        DamagedFileError: the file cannot be read or is of another model.
    """
    try:
        with safe_open(path, "pt") as file:
            saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            state = TrainingState(**json.loads(file.metadata()["state"]))
        moments: dict[str, dict[str, Tensor]] = {}
        for name in [name for name in saved if name.startswith("optimizer.")]:
            _, key, parameter = name.split(".", 2)
            moments.setdefault(parameter, {})[key] = saved.pop(name)
        kept = _kept(model, mask_weights)
        if kept.keys() != saved.keys():
            raise ValueError("it is of another model")
        with torch.no_grad():
            for name, tensor in kept.items():
                tensor.copy_(saved[name])
            for name, parameter in model.named_parameters():
                optimizer.state[parameter] = {k: v.to(parameter.device) for k, v in moments.get(name, {}).items()}
        return state
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # safetensors and torch raise many kinds
        reason = str(error).split("\n")[0][:200]
        raise DamagedFileError(
            f"damaged checkpoint: {path} cannot be loaded ({type(error).__name__}: {reason}); "
            f"remove {path.parent.parent} to start this run again"
        ) from None


def save_model(
    model: PreTrainedModel,
    folder: Path,
    tokenizer_folder: Path,
    positions: int,
    card: str = "",
    portable: bool = False,
) -> None:
    """A model as a Hugging Face folder (safetensors) with its card, and a tokenizer that cuts at `positions` tokens.

    If it is `portable`, its code lies beside it, see `carry_source`.
    """
    with atomic_folder(folder) as temporary:
        model.save_pretrained(temporary)
        if portable:
            carry_source(temporary, type(model))
        shutil.copytree(tokenizer_folder, temporary, dirs_exist_ok=True)
        path = temporary / "tokenizer_config.json"
        settings = json.loads(path.read_text(encoding="utf-8")) | {"model_max_length": positions}
        path.write_text(json_text(settings, indent=2), encoding="utf-8")
        if card:
            (temporary / "README.md").write_text(card, encoding="utf-8")


def usable_positions(model: PreTrainedModel) -> int:
    """Tokens that there are positions for: RoBERTa's first one stands behind the padding's, ModernBERT has no table."""
    return model.config.encoder.max_position_embeddings - cast(int, model.first_position)
