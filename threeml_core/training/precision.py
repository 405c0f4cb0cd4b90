"""bfloat16: by autocast, or on a CPU by a copy of the model whose matrices are cast once per step.

Autocast casts every weight and many activations again in every layer, which on a CPU costs more than narrow products
save. Here states are bfloat16 from the embeddings on; embeddings, norms, moments, gradients and the loss stay float32.
"""

from __future__ import annotations

import copy
import functools
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threeml_core.config import StudyConfig
from threeml_core.models.decoder import Attention
from threeml_core.runs.record import recorded, run_folder, run_id

FASTER = 1.5
"""A layer so many times faster makes a step faster, by what was measured (docs/performance.md)."""

_TOKENS, _TURNS = 1024, 7


def use_bf16(config: StudyConfig, device: torch.device) -> bool:
    """Is bfloat16 used: as given, else on a GPU that has it; on a CPU no."""
    if config.bf16 is not None:
        return config.bf16
    return device.type == "cuda" and torch.cuda.is_bf16_supported()


def train_in_bf16(config: StudyConfig, device: torch.device) -> bool:
    """As `use_bf16`, but yes on a CPU where that is faster in pre-training, as `layer_speedup` says.

    It is measured once on a kind of machine for a width, and recorded: runs, workers and resumed runs agree.
    """
    if config.bf16 is not None or device.type != "cpu" or config.torch_compile:
        return use_bf16(config, device)
    cpu = dict(getattr(torch.cpu, "get_capabilities", dict)())
    identity = {"width": config.hidden_size, "torch": torch.__version__, "cpu": cpu}
    folder = run_folder(config.runs_dir, "precision", run_id("bf16", identity))

    def work(environment: dict[str, Any]) -> dict[str, Any]:
        return {"metrics": {"speedup": layer_speedup(config.hidden_size)}}

    return recorded(folder, identity, config, work, wait=True).metrics["speedup"] >= FASTER


@functools.cache
def layer_speedup(width: int) -> float:
    """How many times faster this CPU does LayerNorm and FFN of a layer in bfloat16, forward and backward, in turns.

    Weights are cast on the way, as a step casts them. A whole step gains less, as the optimizer and the loss do not.
    """
    seconds: dict[torch.dtype, list[float]] = {torch.float32: [], torch.bfloat16: []}
    draw = functools.partial(torch.randn, generator=torch.Generator().manual_seed(0))  # the caller's seed stays
    states, scale = draw(_TOKENS, width), torch.ones(width)
    up, down = (draw(shape, requires_grad=True) for shape in ((4 * width, width), (width, 4 * width)))
    for _ in range(_TURNS):
        for dtype, turns in seconds.items():
            started = time.perf_counter()
            x = states.to(dtype).requires_grad_()
            hidden = F.gelu(F.linear(F.layer_norm(x, (width,), scale), up.to(dtype)))
            (x + F.linear(hidden, down.to(dtype))).backward(states.to(dtype))
            turns.append(time.perf_counter() - started)
    return min(seconds[torch.float32]) / min(seconds[torch.bfloat16])


class HalfCopy:
    """A copy of a model that computes in bfloat16; the gradients arrive, in float32, at the parameters of the model.

    Linear layers and the [MASK] vector have a copy of their parameters, all else, buffers too, is the model's own.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model)
        own, buffers = dict(model.named_parameters()), dict(model.named_buffers(remove_duplicate=False))
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        for path, module in self.model.named_modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                original = own[f"{path}.{name}".lstrip(".")]
                if isinstance(module, nn.Linear | Attention) or name == "mask_embedding":
                    half = nn.Parameter(parameter.detach().bfloat16())
                    half.register_post_accumulate_grad_hook(functools.partial(_hand_over, original))
                    self._pairs.append((original, half))
                    original = half
                setattr(module, name, original)
            for name, _ in list(module.named_buffers(recurse=False)):
                setattr(module, name, buffers[f"{path}.{name}".lstrip(".")])
            if isinstance(module, nn.Embedding):
                module.register_forward_hook(lambda module, inputs, output: output.bfloat16())

    @torch.no_grad()
    def refresh(self) -> None:
        """Cast the model's parameters of now."""
        originals, halves = zip(*self._pairs, strict=True)
        torch._foreach_copy_(halves, originals)


def _hand_over(original: nn.Parameter, half: Tensor) -> None:
    assert half.grad is not None
    gradient, half.grad = half.grad.float(), None
    original.grad = gradient if original.grad is None else original.grad.add_(gradient)
