"""The prediction head: its first layer, logits over the tied embedding, and the loss without keeping the logits."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threeml_core.masking import IGNORE_INDEX
from threeml_core.models.tally import TokenTally

CHUNK_BYTES = 16 * 2**20
"""Logits that the chunked loss holds at once; smaller chunks make narrow products, which take longer."""


class PredictionTransform(nn.Module):
    """The first layer of the head: LayerNorm(GELU(Linear(h))), to the width of the word embedding.

    Source: section 2.2 ("the first prediction layer projects ... back to the encoder dimension").
    """

    def __init__(self, d_in: int, d_en: int, eps: float, bias: bool = True) -> None:
        super().__init__()
        self.dense = nn.Linear(d_in, d_en, bias=bias)
        self.layer_norm = nn.LayerNorm(d_en, eps=eps, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., d_in) -> (..., d_en)."""
        return self.layer_norm(F.gelu(self.dense(hidden)))


def vocabulary_multiple(device: torch.device) -> int:
    """What the head's width is filled up to: a GPU's tensor cores wait if it is no multiple of 64."""
    return 64 if device.type == "cuda" else 1


def padded_logits(transformed: Tensor, weight: Tensor, bias: Tensor, multiple: int) -> Tensor:
    """Logits (..., vocab + added) of (..., d_en) over a vocabulary filled up to a multiple, -inf at what is added.

    Softmax and cross-entropy are those of the vocabulary itself, and the padding is no parameter: nothing of it is
    trained, saved or exported.
    """
    if added := -len(weight) % multiple:
        weight, bias = F.pad(weight, (0, 0, 0, added)), F.pad(bias, (0, added), value=-torch.inf)
    return F.linear(transformed, weight, bias)


def summed_cross_entropy(
    transformed: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, tally: TokenTally | None = None
) -> Tensor:
    """Sum of cross-entropies of `transformed @ weight.T + bias` in nats: (..., d_en), targets (...) -> ().

    On a CPU the logits are made, turned into their gradient in place and used up some rows at a time, so that they are
    never all held, and of rows with a target alone. Compiled, or on a GPU, it is `F.cross_entropy` over the padded
    vocabulary. The predictions are added to `tally`.
    """
    rows, ids = transformed.flatten(0, -2), targets.flatten()
    if rows.device.type == "cpu" and not torch.compiler.is_compiling() and not torch.is_autocast_enabled("cpu"):
        if not (predicted := ids != IGNORE_INDEX).all():
            rows, ids = rows[predicted], ids[predicted]
        return _ChunkedCrossEntropy.apply(rows, weight, bias, ids, tally)
    logits = padded_logits(rows, weight, bias, vocabulary_multiple(rows.device))
    return cross_entropy_of(logits, ids, tally)


def cross_entropy_of(logits: Tensor, ids: Tensor, tally: TokenTally | None = None) -> Tensor:
    """Sum of cross-entropies in nats: (rows, vocab), targets (rows,) -> (); the predictions are added to `tally`."""
    logits = logits.float()
    if tally is None:
        return F.cross_entropy(logits, ids, reduction="sum", ignore_index=IGNORE_INDEX)
    losses = F.cross_entropy(logits, ids, reduction="none", ignore_index=IGNORE_INDEX)
    with torch.no_grad():
        correct = logits.gather(1, ids.clamp(min=0)[:, None])[:, 0] == logits.amax(1)
        tally.add(ids, losses.detach(), correct)
    return losses.sum()


class _ChunkedCrossEntropy(torch.autograd.Function):
    """(rows, d_en), (vocab, d_en), (vocab,), (rows,) -> the sum; the gradients are made on the way forward.

    Rows may be bfloat16: so are the products then; softmax, the sum and the gradient of the weight are float32.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, ids: Tensor, tally: TokenTally | None) -> Tensor:
        total, matrix, offset = weight.new_zeros(()), weight.to(rows.dtype), bias.to(rows.dtype)
        by_rows, by_weight, by_bias = torch.empty_like(rows), torch.zeros_like(weight), torch.zeros_like(bias)
        size = max(1, CHUNK_BYTES // (len(weight) * weight.element_size()))
        for start in range(0, len(rows), size):
            some, wanted = rows[start : start + size], ids[start : start + size, None]
            logits = torch.addmm(offset, some, matrix.t()).float()
            largest = logits.amax(1, keepdim=True)
            at_wanted = logits.gather(1, wanted).sub_(largest)
            odds = logits.sub_(largest).exp_()
            normaliser = odds.sum(1, keepdim=True)
            losses = normaliser.log() - at_wanted
            total += losses.sum()
            if tally is not None:
                tally.add(wanted[:, 0], losses[:, 0], at_wanted[:, 0] == 0)
            exact = odds.div_(normaliser).scatter_add_(1, wanted, logits.new_full(wanted.shape, -1.0))
            by_bias += exact.sum(0)
            gradient = exact.to(rows.dtype)
            torch.mm(gradient, matrix, out=by_rows[start : start + size])
            if rows.dtype == weight.dtype:
                torch.addmm(by_weight, gradient.t(), some, out=by_weight)
            else:  # the sum over chunks stays exact
                by_weight += gradient.t() @ some
        ctx.save_for_backward(by_rows, by_weight, by_bias)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return *(saved * gradient for saved in ctx.saved_tensors), None, None
