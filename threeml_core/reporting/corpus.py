"""The prepared text: how much there is, and how often its tokens occur."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from threeml_core.reporting.style import Figure, color_of, drawing
from threeml_core.reporting.table import Table


def corpus_table(meta: Mapping[str, Any]) -> Table:
    """Documents, words, tokens and sequences of both sides of prepared data."""
    rows = []
    for side in ("train", "validation"):
        about = meta[side]
        row = {"Side": side, **{name.capitalize(): f"{about[name]:,}" for name in ("documents", "words", "tokens")}}
        row["Sequences"] = f"{about['blocks']:,}"
        rows.append({**row, "Words per token": f"{about['words'] / about['tokens']:.2f}"})
    size = f"{meta['vocab_size']:,} tokens, sequences of {meta['sequence_length']}"
    return Table(rows, f"Corpus {', '.join(meta['corpus'].split(','))}: {size}")


def size_sentence(meta: Mapping[str, Any]) -> str:
    """Sequences for training and validation, their length, and the vocabulary."""
    train, validation = (f"{meta[side]['blocks']:,}" for side in ("train", "validation"))
    return (
        f"{train} sequences of {meta['sequence_length']} tokens for training, {validation} for validation, over a "
        f"vocabulary of {meta['vocab_size']:,} tokens."
    )


def plot_token_frequencies(counts: Sequence[int] | np.ndarray) -> Figure:
    """Rank against frequency of the training tokens, both logarithmic, with the unigram entropy."""
    ordered = np.sort(np.asarray(counts)[np.asarray(counts) > 0])[::-1]
    shares = ordered / ordered.sum()
    perplexity = np.exp(-(shares * np.log(shares)).sum())
    with drawing() as (figure, (axis,)):
        axis.loglog(np.arange(1, len(ordered) + 1), ordered, color=color_of("vanilla"), linewidth=2)
        axis.set(xlabel="rank of the token", ylabel="occurrences in the training sequences")
    return Figure(
        figure,
        f"Frequency of the {len(ordered):,} tokens that occur, by rank, on logarithmic axes; the unigram perplexity of "
        f"the training tokens is {perplexity:.0f}: what a model reaches that knows frequencies and nothing else.",
    )
