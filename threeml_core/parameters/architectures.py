"""The architectures, one entry each: its name, how it is drawn, what it costs and where its model is. No torch.

An architecture of your own is one file: a model class, its FLOPs, and `register(Architecture(...))`.
"""

from __future__ import annotations

import dataclasses
import math
import pkgutil
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What the package has to know of an architecture.

    Attributes:
        name: value of the parameter `architecture`.
        label: name in tables and figures.
        model: class of the model, whose `config_class` is its configuration, or "module:name" of it.
        forward_flops: (config, mode, vocab) -> forward FLOPs of one sequence, or "module:name" of it.
        decoder_parameters: config -> parameters that fine-tuning throws away (no head), or "module:name" of it.
        colour: in figures.
        marker: matplotlib's name of it.
        linestyle: matplotlib's name of it.
        has_decoder: is there a decoder whose width the head reads, and whose states are looked at?
        pre_layer_norm_only: post-LN does not work for it, so a preset's `layer_norm: post` is not followed.
        source: where it comes from, for the card of an encoder.
        full_layers: encoder layers -> how many of them all tokens pass, where `full_layers` is left open; None: all do.
            An architecture that has it runs parts of RoBERTa's layers, and no ModernBERT's.
        unused: parameters that mean nothing to it and are no part of its runs' identity.
    """

    name: str
    label: str
    model: type | str
    forward_flops: Callable[..., float] | str
    decoder_parameters: Callable[..., int] | str
    colour: str
    marker: str
    linestyle: str
    has_decoder: bool = True
    pre_layer_norm_only: bool = False
    source: str = 'Liao et al., "Mask More and Mask Later", EMNLP 2022'
    full_layers: Callable[[int], int] | None = None
    unused: tuple[str, ...] = ()

    def load(self, attribute: str) -> Any:
        """The class or function that an attribute names; its module is imported now."""
        value = getattr(self, attribute)
        return pkgutil.resolve_name(value) if isinstance(value, str) else value


ARCHITECTURES: dict[str, Architecture] = {}
"""Name -> entry, in the order of tables and figures."""


def register(architecture: Architecture) -> None:
    """Make an architecture known, before the first configuration that names it.

    Raises:
        ValueError: another one has its name.
    """
    if ARCHITECTURES.setdefault(architecture.name, architecture) != architecture:
        raise ValueError(f"architecture {architecture.name!r} is registered already: give another name")


def narrowbert_full_layers(num_hidden_layers: int) -> int:
    """A sixth of the layers, rounded half up, at least 1: 2 of 12, as Li et al. (2023), arXiv:2301.04761, have it."""
    return max(1, math.floor(num_hidden_layers / 6 + 0.5))


def token_dropping_full_layers(num_hidden_layers: int) -> int:
    """Half of the layers, rounded down, less one, at least 0: 5 of 12. Source: Hou et al. (2022), section 3."""
    return max(0, num_hidden_layers // 2 - 1)


DECODER = ("decoder_num_hidden_layers", "decoder_hidden_size", "decoder_num_attention_heads", "visible_head")
"""Parameters of a decoder."""

for _architecture in (
    Architecture(
        "vanilla",
        "vanilla",
        "threeml_core.models.vanilla:VanillaForMaskedLM",
        "threeml_core.flops:vanilla_forward",
        "threeml_core.flops:no_decoder",
        colour="#2f8fd8",
        marker="s",
        linestyle=":",
        has_decoder=False,
        unused=DECODER,
    ),
    Architecture(
        "self",
        "3ML_self",
        "threeml_core.models.threeml_self:ThreeMLSelfForMaskedLM",
        "threeml_core.flops:threeml_self_forward",
        "threeml_core.flops:threeml_self_decoder",
        colour="#e0701a",
        marker="o",
        linestyle="-",
        unused=("visible_head",),
    ),
    Architecture(
        "cross",
        "3ML_cross",
        "threeml_core.models.threeml_cross:ThreeMLCrossForMaskedLM",
        "threeml_core.flops:threeml_cross_forward",
        "threeml_core.flops:threeml_cross_decoder",
        colour="#1a9e77",
        marker="D",
        linestyle="--",
        pre_layer_norm_only=True,
    ),
):
    register(_architecture)

PAPER_ARCHITECTURES = tuple(ARCHITECTURES)
"""Those of the paper, which its tables and figures compare."""

for _architecture in (
    Architecture(
        "sparse_queries",
        "NarrowBERT SparseQueries",
        "threeml_core.models.narrowbert:SparseQueriesForMaskedLM",
        "threeml_core.flops:sparse_queries_forward",
        "threeml_core.flops:no_decoder",
        colour="#7a5195",
        marker="v",
        linestyle="-.",
        has_decoder=False,
        source='Li et al., "NarrowBERT: Accelerating Masked Language Model Pretraining and Inference", ACL 2023',
        full_layers=narrowbert_full_layers,
        unused=DECODER,
    ),
    Architecture(
        "context_first",
        "NarrowBERT ContextFirst",
        "threeml_core.models.narrowbert:ContextFirstForMaskedLM",
        "threeml_core.flops:context_first_forward",
        "threeml_core.flops:no_decoder",
        colour="#5e7d1b",
        marker="^",
        linestyle="-.",
        has_decoder=False,
        source='Li et al., "NarrowBERT: Accelerating Masked Language Model Pretraining and Inference", ACL 2023',
        full_layers=narrowbert_full_layers,
        unused=DECODER,
    ),
    Architecture(
        "token_dropping",
        "token dropping",
        "threeml_core.models.token_dropping:TokenDroppingForMaskedLM",
        "threeml_core.flops:token_dropping_forward",
        "threeml_core.flops:no_decoder",
        colour="#8a6d3b",
        marker="P",
        linestyle="-.",
        has_decoder=False,
        source='Hou et al., "Token Dropping for Efficient BERT Pretraining", ACL 2022',
        full_layers=token_dropping_full_layers,
        unused=DECODER,
    ),
):
    register(_architecture)
