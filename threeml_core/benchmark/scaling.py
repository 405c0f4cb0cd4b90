"""How the cost of a step grows with the geometry, beside Appendix C: the FLOPs are checked by the clock."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from threeml_core import flops
from threeml_core.benchmark.variants import wait_for
from threeml_core.config import StudyConfig
from threeml_core.data.prepare import PreparedData
from threeml_core.data.sequences import TokenSequences, widen
from threeml_core.foundation.log import Log
from threeml_core.parameters.architectures import PAPER_ARCHITECTURES
from threeml_core.training.trainer import Trainer

TURNS = 3
"""Times that each point takes its turn with the geometry itself, after one step each that is not timed."""

TURN_SECONDS = 0.1
"""A turn has as many steps as this takes, at least one."""


@dataclasses.dataclass(frozen=True)
class ScalingPoint:
    """One geometry: its axis and value, its FLOPs by the exact formula, the seconds of its step (median).

    `base_flops` are those of the geometry itself, beside which a step takes `relative` times as long (median of the
    ratios of neighbouring turns, so that a machine's drift is not taken for a cost).
    """

    axis: str
    value: float
    architecture: str
    flops: float
    base_flops: float
    seconds: float
    relative: float


def points_of(config: StudyConfig) -> Iterator[tuple[str, float, StudyConfig]]:
    """(axis, value, parameters): half and twice the geometry, six mask rates; each axis has the geometry itself.

    Widths keep the size of a head, and a decoder width of its own stays when the encoder's is varied.
    """
    head = config.hidden_size // config.num_attention_heads
    d_de = config.decoder_hidden_size
    assert d_de is not None

    def halves(value: int, unit: int = 1) -> list[int]:
        return [v for v in (value // 2, value, 2 * value) if v >= 1 and v % unit == 0]

    def width(d: int) -> dict[str, int | None]:
        return {"num_attention_heads": d // head, "intermediate_size": None, "decoder_hidden_size": d_de}

    axes: dict[str, tuple[Iterable[float], Callable[[Any], dict[str, Any]]]] = {
        "sequence_length": (
            halves(config.sequence_length),
            lambda n: {"max_position_embeddings": 2 * config.sequence_length + 2},
        ),
        "hidden_size": (halves(config.hidden_size, head), width),
        "num_hidden_layers": (halves(config.num_hidden_layers), lambda layers: {}),
        "mask_rate": (sorted({0.15, 0.3, 0.4, 0.5, 0.6, config.mask_rate}), lambda rate: {}),
        "decoder_num_hidden_layers": ((1, 2, 4), lambda layers: {}),
        "decoder_hidden_size": (halves(d_de, head), lambda d: {"decoder_num_attention_heads": d // head}),
    }
    for architecture in PAPER_ARCHITECTURES:
        base = config.replace(architecture=architecture)
        for axis, (values, others) in axes.items():
            if architecture != "vanilla" or not axis.startswith("decoder"):
                yield from ((axis, value, base.replace(**{axis: value}, **others(value))) for value in values)


class _Cut(TokenSequences):
    """The tokens of other blocks, cut into blocks of n in memory."""

    def __init__(self, blocks: TokenSequences, n: int, special_ids: tuple[int, ...]) -> None:
        stored = blocks.stored(slice(None)).flatten()
        stored = stored[: len(stored) // n * n].view(-1, n)
        special = int(torch.isin(widen(stored), torch.tensor(special_ids)).sum(1).max())
        shape = {"n": n, "n_blocks": len(stored), "dtype": blocks.dtype, "max_special_tokens": special}
        vars(self).update(shape, _stored=stored)  # the class is frozen

    def stored(self, index: Any) -> torch.Tensor:
        return self._stored[torch.from_numpy(np.asarray(index))]  # type: ignore[attr-defined]


def measure_scaling(config: StudyConfig, data: PreparedData, device: torch.device, log: Log) -> list[ScalingPoint]:
    """Time a few steps at every point of `points_of`, in turns with the geometry itself.

    The text is the same everywhere; where the sequence length differs, it is cut anew.
    """
    wanted = list(points_of(config))
    log(f"{len(wanted)} geometries, {TURNS} turns each")
    others = {point.sequence_length for _, _, point in wanted} - {data.train.n}
    cut = {n: dataclasses.replace(data, train=_Cut(data.train, n, data.special_ids)) for n in others}
    cut[data.train.n] = data

    def cost(point: StudyConfig) -> float:
        return flops.training_flops(flops.forward_flops(point, "exact", data.vocab_size), point.batch_size, 1, "exact")

    found = []
    for architecture in PAPER_ARCHITECTURES:
        itself = config.replace(architecture=architecture)
        base = Trainer(itself, data, device)
        base.update()
        for axis, value, point in (w for w in wanted if w[2].architecture == architecture):
            trainer = Trainer(point, cut[point.sequence_length], device)
            trainer.update()
            pairs = np.array([(_turn(base, device), _turn(trainer, device)) for _ in range(TURNS)])
            relative = float(np.median(pairs[:, 1] / pairs[:, 0]))
            seconds = float(np.median(pairs[:, 1]))
            found.append(ScalingPoint(axis, float(value), architecture, cost(point), cost(itself), seconds, relative))
    return found


def _turn(trainer: Trainer, device: torch.device) -> float:
    """Seconds of a step."""
    wait_for(device)
    started, steps = time.perf_counter(), 0
    while steps == 0 or time.perf_counter() - started < TURN_SECONDS:
        trainer.update()
        wait_for(device)
        steps += 1
    return (time.perf_counter() - started) / steps
