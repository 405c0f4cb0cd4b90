"""Sequences of tokens on disk, and the order in which they come."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from threeml_core.config import make_config
from threeml_core.data.prepare import load_prepared, prepare_data
from threeml_core.data.sequences import SequenceWriter, TokenSequences, batch_indices, epoch_order, token_dtype
from threeml_core.foundation.errors import CorpusError, DamagedFileError


def test_blocks_hold_the_stream(tmp_path: Path) -> None:
    """<s>, n-2 tokens, </s>; documents end with </s>; nothing is lost but the incomplete last block."""
    documents = [list(range(10, 10 + k)) for k in (5, 1, 13, 2, 40)]
    with SequenceWriter(tmp_path / "b.bin", 8, 0, 2, [0, 1, 2], 100) as writer:
        for ids in documents:
            writer.add(ids[:3], False)
            writer.add(ids[3:], True)
    blocks = TokenSequences(tmp_path / "b.bin", 8, writer.n_blocks, "uint16", writer.max_special_tokens)
    content = blocks[:]
    stream = [token for ids in documents for token in [*ids, 2]]
    assert (content[:, 0] == 0).all() and (content[:, -1] == 2).all()
    assert content[:, 1:-1].flatten().tolist() == stream[: 6 * len(blocks)]
    assert len(stream) - 6 * len(blocks) < 6
    assert torch.equal(torch.bincount(content.flatten(), minlength=100), torch.from_numpy(writer.counts))
    assert writer.max_special_tokens == int((content < 3).sum(1).max())


def test_integer_type_of_the_vocabulary() -> None:
    assert token_dtype(65536) == np.uint16 and token_dtype(65537) == np.uint32
    with pytest.raises(CorpusError, match="at most 2"):
        token_dtype(2**32 + 1)


def test_token_ids_beyond_the_vocabulary(small: dict, tmp_path: Path) -> None:
    """They would end in an IndexError at the embedding."""
    data = prepare_data(make_config({**small, "runs_dir": str(tmp_path)}))
    blocks = np.fromfile(data.folder / "train.bin", "uint16").reshape(-1, 32)
    blocks[3, 5] = data.vocab_size
    blocks.tofile(data.folder / "train.bin")
    train = load_prepared(data.folder).train
    assert train[np.array([2, 4])].shape == (2, 32) and len(train[np.array([], int)]) == 0
    with pytest.raises(DamagedFileError, match="train.bin holds the token id 300, but the vocabulary has 300 tokens"):
        train[np.array([2, 3])]


def test_epochs_visit_every_block_once() -> None:
    seen = np.concatenate([batch_indices(10, 4, step, seed=3) for step in range(10)])
    assert all(sorted(seen[i : i + 10]) == list(range(10)) for i in range(0, 40, 10))
    assert not np.array_equal(seen[:10], seen[10:20])
    assert np.array_equal(seen[:10], epoch_order(10, 3, 0))
    assert np.array_equal(batch_indices(10, 25, 0, 3), np.concatenate([epoch_order(10, 3, e) for e in range(3)])[:25])
