"""Tokenised tasks: as the tokenizer has them, once, in batches with little padding."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from threeml_core.config import make_config
from threeml_core.foundation.errors import StudyError
from threeml_core.glue.encode import EncodedSplit, encode_task, evaluation_batches, training_batches
from threeml_core.glue.readers import load_task
from threeml_core.glue.tasks import GLUE_TASKS
from threeml_core.training.encoders import load_classifier, open_encoder


def encoded_split(folder: Path, glue: Path, task: str, tokenizer: PreTrainedTokenizerFast) -> EncodedSplit:
    data = load_task(GLUE_TASKS[task], make_config({"glue": str(glue)}))
    return encode_task(data, tokenizer, 32, folder).splits["train"]


def test_encoding_equals_the_tokenizer(tmp_path: Path, glue: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    for task in ("sst2", "rte"):
        data = load_task(GLUE_TASKS[task], make_config({"glue": str(glue)}))
        split = encoded_split(tmp_path, glue, task, tokenizer)
        batch = split.batch(np.arange(5), tokenizer.pad_token_id)
        columns = [list(column) for column in zip(*data.train.texts[:5], strict=True)]
        expected = tokenizer(*columns, truncation=True, max_length=32, padding=True, return_tensors="np")
        assert np.array_equal(batch["input_ids"], expected["input_ids"])
        mask = batch.get("attention_mask", np.ones_like(batch["input_ids"]))
        assert np.array_equal(mask, expected["attention_mask"])


def test_a_task_is_tokenised_once(tmp_path: Path, glue: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    first = encoded_split(tmp_path, glue, "sst2", tokenizer)

    class Absent:  # noqa: D106, E306
        def __call__(self, *_: object, **__: object) -> None:
            raise AssertionError("tokenised again")

        def __getattr__(self, name: str) -> object:
            return getattr(tokenizer, name)

    second = encoded_split(tmp_path, glue, "sst2", Absent())  # type: ignore[arg-type]
    assert np.array_equal(first.ids, second.ids)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    (folder / "train" / "ids.npy").write_bytes(b"")
    with pytest.raises(StudyError, match="damaged data cache: .* remove it and run again"):
        encoded_split(tmp_path, glue, "sst2", tokenizer)


def test_batches_of_an_epoch(tmp_path: Path, glue: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Every example once; another order each epoch and seed; little padding."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 60, 4000)
    split = EncodedSplit(
        np.zeros(lengths.sum(), np.int32), None, np.concatenate([[0], np.cumsum(lengths)]), np.zeros(4000)
    )
    epochs = [list(training_batches(split, 32, seed, epoch)) for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert all(np.array_equal(np.sort(np.concatenate(batches)), np.arange(4000)) for batches in epochs)
    orders = [np.concatenate(batches) for batches in epochs]
    assert np.array_equal(orders[0], orders[3])
    assert not np.array_equal(orders[0], orders[1]) and not np.array_equal(orders[0], orders[2])
    assert all(len(batch) <= 32 for batch in epochs[0]) and len(epochs[0]) == 4000 // 32
    slots = sum(len(batch) * lengths[batch].max() for batch in epochs[0])
    assert slots / lengths.sum() < 1.05
    assert np.array_equal(np.sort(np.concatenate(list(evaluation_batches(split, 64)))), np.arange(4000))


@pytest.mark.parametrize("family", ["post", "pre", "bert"])
def test_padding_does_not_change_the_logits(
    family: str, encoders: dict[str, Path], tmp_path: Path, glue: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    """A sequence alone, without padding and mask, in a bucketed batch, and padded to max_length: the same logits."""
    split = encoded_split(tmp_path, glue, "rte", tokenizer)
    torch.manual_seed(0)
    model = load_classifier(encoders[family], 2).eval()

    def logits(index: list[int], pad_to: int | None = None) -> torch.Tensor:
        batch = split.batch(np.array(index), tokenizer.pad_token_id, pad_to)
        with torch.inference_mode():
            return model(**{name: torch.from_numpy(value) for name, value in batch.items()}).logits

    together = logits(list(range(16)))
    assert "attention_mask" not in split.batch(np.array([3]), tokenizer.pad_token_id)
    for i in range(16):
        torch.testing.assert_close(logits([i])[0], together[i], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(logits(list(range(16)), 40), together, atol=1e-6, rtol=1e-5)


def test_segment_ids_reach_a_model_that_has_them(
    tmp_path: Path, encoders: dict[str, Path], glue: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    """A BERT-like tokenizer marks the second text. BERT gets the marks; RoBERTa has one segment and gets none."""
    for family, segments in (("bert", True), ("post", False)):
        folder = tmp_path / family
        shutil.copytree(encoders[family], folder)
        marked = copy.deepcopy(tokenizer)
        marked.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<s>:0 $A:0 </s>:0", pair="<s>:0 $A:0 </s>:0 $B:1 </s>:1", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
        marked.save_pretrained(folder)
        encoder = open_encoder(folder)
        assert encoder.segments == segments
        data = load_task(GLUE_TASKS["rte"], make_config({"glue": str(glue)}))
        split = encode_task(data, encoder.tokenizer, 32, tmp_path, encoder.segments).splits["train"]
        batch = split.batch(np.arange(2), 1)
        assert ("token_type_ids" in batch) == segments
        if segments:
            end = int(np.argmax(batch["input_ids"][0] == 2))
            assert not batch["token_type_ids"][0, : end + 1].any() and batch["token_type_ids"][0, end + 1] == 1
        load_classifier(folder, 2)(**{name: torch.from_numpy(value) for name, value in batch.items()})
