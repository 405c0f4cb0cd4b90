"""The optimizer, AdamW or Muon with AdamW, and the learning-rate schedule. Source: Table 5 (Appendix A).

Muon: Jordan et al. (2024), https://kellerjordan.github.io/posts/muon/; `match_rms_adamw`: Liu et al. (2025),
arXiv:2502.16982.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from threeml_core.config import StudyConfig
from threeml_core.foundation.errors import ParameterError

FUSED = {"in_proj_weight": 3, "Wqkv.weight": 3, "Wi.weight": 2}
"""Ends of the names of matrices that stand for several -> how many, one below the other: queries, keys and values of
the 3ML decoder and of ModernBERT, input and gate of ModernBERT's FFN."""


def parameter_groups(
    model: nn.Module, weight_decay: float, without: Collection[Tensor] = frozenset()
) -> list[dict[str, Any]]:
    """Two groups: matrices decay; biases, norms, and the [MASK] vector (everything of one axis) do not."""
    trained = [p for p in model.parameters() if p.requires_grad and p not in without]
    decayed, others = [p for p in trained if p.ndim >= 2], [p for p in trained if p.ndim < 2]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def hidden_matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """Name -> trainable matrix, of all that are no table of an embedding; they are what Muon is for.

    Those of encoder and decoder layers, the projection between, and the head's first layer. The head's output matrix is
    the word embedding, and so is left out with it; input and output are AdamW's (Jordan et al.).
    """
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    return {n: p for n, p in model.named_parameters() if p.requires_grad and p.ndim == 2 and p not in tables}


class ProductsInFloat32(TorchFunctionMode):
    """Within it, matrix products of bfloat16 tensors are done in float32 and rounded at their end.

    That is what hardware for bfloat16 does. On a CPU without it (AVX2 alone) torch has plain loops: orthogonalising
    96 x 256 takes 26 ms with them and 1.8 ms with this, a step of `small-modern` three times as long.
    """

    _PRODUCTS = (Tensor.matmul, torch.addmm)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Of each call of torch."""
        if func in self._PRODUCTS and args[0].dtype is torch.bfloat16:
            return func(*(tensor.float() for tensor in args), **(kwargs or {})).bfloat16()
        return func(*args, **(kwargs or {}))


def fast_products(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """In which Muon, whose iterations torch does in bfloat16, is to do its step: `ProductsInFloat32` where it helps."""
    has_bf16 = device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return contextlib.nullcontext() if has_bf16 else ProductsInFloat32()


class FusedMuon(torch.optim.Muon):
    """torch's Muon, to which each parameter of a group is as many matrices as the group's `parts` says.

    Each is orthogonalised, and its learning rate adjusted, by itself, so that a fused projection trains as separate
    ones do, which Jordan et al. found better than orthogonalising queries, keys and values together. Gradients,
    momentum and so the saved state are of the whole parameter.
    """

    def _init_group(self, group: Any, *tensors: list[Tensor]) -> bool:
        has_complex = super()._init_group(group, *tensors)
        for whole in tensors:
            whole[:] = [part for tensor in whole for part in tensor.chunk(group["parts"])]
        return has_complex

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """As torch's, with `fast_products`."""
        with fast_products(self.param_groups[0]["params"][0].device):
            return super().step(closure)


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for some parameters and AdamW for the others, as one optimizer with the groups and the state of both."""

    def __init__(self, adamw: torch.optim.AdamW, muon: torch.optim.Muon) -> None:
        """Of optimizers that have done no step yet."""
        self.both = adamw, muon
        super().__init__([*adamw.param_groups, *muon.param_groups], {})
        self._share()

    def _share(self) -> None:
        groups = iter(self.param_groups)
        for optimizer in self.both:
            optimizer.param_groups = [next(groups) for _ in optimizer.param_groups]
            optimizer.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, which makes new groups and a new state."""
        super().load_state_dict(state_dict)
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """A step of both; the loss, where a closure gives it."""
        loss = closure() if closure else None
        for optimizer in self.both:
            optimizer.step()
        return loss


def make_optimizer(model: nn.Module, config: StudyConfig) -> torch.optim.Optimizer:
    """AdamW with the study's values, in its fused form; with `optimizer: muon` Muon for the `hidden_matrices`.

    All matrices have the same `weight_decay`, times their own learning rate.

    Raises:
        ParameterError: Muon, and a model that has no such matrix.
    """
    matrices = hidden_matrices(model) if config.optimizer == "muon" else {}
    adamw = torch.optim.AdamW(
        parameter_groups(model, config.weight_decay, set(matrices.values())),
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        fused=True,
    )
    if config.optimizer == "adamw":
        return adamw
    if not matrices:
        raise ParameterError("optimizer='muon': the model has no matrix besides embeddings; take optimizer=adamw")
    groups: dict[int, dict[str, Any]] = {}
    for name, matrix in matrices.items():
        parts = next((count for end, count in FUSED.items() if name.endswith(end)), 1)
        ratio = config.muon_learning_rate / config.learning_rate
        groups.setdefault(parts, {"params": [], "parts": parts, "lr_ratio": ratio})["params"].append(matrix)
    muon = FusedMuon(
        groups.values(),
        lr=config.muon_learning_rate,
        weight_decay=config.weight_decay,
        momentum=config.muon_momentum,
        adjust_lr_fn=config.adjust_lr_fn,
    )
    return MuonWithAdamW(adamw, muon)


def linear_warmup_decay(step: int, max_steps: int, warmup_ratio: float) -> float:
    """Factor on the peak learning rate at step `step` (from 0): linear up, then linear down to zero.

    The first step already moves (factor 1/warm-up steps), the last has one step's worth left. Source: Table 5.
    """
    warmup = math.ceil(warmup_ratio * max_steps)
    if step < warmup:
        return (step + 1) / warmup
    return (max_steps - step) / max(1, max_steps - warmup)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """The same learning rate for every group of AdamW; Muon's keep the ratio of their peak to AdamW's."""
    for group in optimizer.param_groups:
        group["lr"] = group.get("lr_ratio", 1.0) * learning_rate
