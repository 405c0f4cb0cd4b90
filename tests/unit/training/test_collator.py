"""The data collator, and the models in Hugging Face's `Trainer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

from threeml_core.config import make_config
from threeml_core.foundation.errors import ParameterError
from threeml_core.masking import CorruptedBatch, corrupt
from threeml_core.models.base import MaskedLanguageModel
from threeml_core.models.build import build_model
from threeml_core.parameters.architectures import PAPER_ARCHITECTURES
from threeml_core.training.collator import CorruptingCollator, masking_for
from threeml_core.training.encoders import save_encoder
from threeml_core.training.trainer import count_of, loss_of

N = 32
TEXTS = ["The cat sees the house again and went away.", "A dog", "The bird said no to the river and the cat again."]


def make(architecture: str, tokenizer: PreTrainedTokenizerFast) -> MaskedLanguageModel:
    size = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "sequence_length": N}
    without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.1}
    torch.manual_seed(0)
    config = make_config({"architecture": architecture, **size, **without})
    return build_model(config, len(tokenizer), mask_token_id=tokenizer.mask_token_id)


def sequences_for(tokenizer: PreTrainedTokenizerFast, count: int = 16) -> list[dict[str, list[int]]]:
    """Joined text of one length, as run_mlm's `group_texts` gives it."""
    ids = tokenizer(" ".join(TEXTS) * 40)["input_ids"][1:-1]
    return [{"input_ids": [0, *ids[i : i + N - 2], 2]} for i in range(count)]


def test_fast_batches_are_those_of_corrupt(tokenizer: PreTrainedTokenizerFast) -> None:
    masking = masking_for(tokenizer, 0.5)
    examples = sequences_for(tokenizer)
    given = CorruptingCollator(tokenizer, masking, generator=torch.Generator().manual_seed(3))(examples)
    ids = torch.tensor([example["input_ids"] for example in examples])
    expected = corrupt(ids, masking, torch.Generator().manual_seed(3))
    for name, value in vars(expected).items():
        assert torch.equal(getattr(given["corrupted"], name), value), name
    assert given["labels"] is given["corrupted"].labels and given["return_logits"] is False
    assert (given["corrupted"].input_ids == tokenizer.mask_token_id).sum(1).tolist() == [13] * 16
    assert {0, 1, 2, 3, tokenizer.mask_token_id} <= set(masking.special_ids)


def test_padded_batches(tokenizer: PreTrainedTokenizerFast) -> None:
    """Each sequence loses its own share; special tokens and padding none; what is not predicted is as it was."""
    masking = masking_for(tokenizer, 0.3, mask_split="100-0-0")
    examples = [dict(tokenizer(text)) for text in [*TEXTS, *TEXTS]]
    given = CorruptingCollator(tokenizer, masking, fast=False)(examples)
    assert given.keys() == {"input_ids", "attention_mask", "labels"}
    for row, example in enumerate(examples):
        ids, n = torch.tensor(example["input_ids"]), len(example["input_ids"])
        predicted = given["labels"][row] != -100
        assert given["attention_mask"][row].tolist() == [1] * n + [0] * (len(predicted) - n)
        assert int(predicted.sum()) == masking.counts(n).masked and not predicted[n:].any()
        assert (given["input_ids"][row, n:] == tokenizer.pad_token_id).all()
        assert torch.equal(given["labels"][row, :n].where(predicted[:n], given["input_ids"][row, :n]), ids)
        assert not predicted[0] and not predicted[n - 1]


def test_refusals(tokenizer: PreTrainedTokenizerFast) -> None:
    masking = masking_for(tokenizer, 0.4)
    short = [{"input_ids": [0, 9, 2]}]
    with pytest.raises(ParameterError, match="sequences of 3 to 4 tokens: the fast path needs one length"):
        CorruptingCollator(tokenizer, masking)([*short, {"input_ids": [0, 9, 9, 2]}])
    with pytest.raises(ParameterError, match="corrupts 2 of 3 tokens"):
        CorruptingCollator(tokenizer, masking, fast=False)(short)
    ragged = masking_for(tokenizer, 0.4, mask_counts="probabilistic")
    with pytest.raises(ParameterError, match="the fast path needs 'exact'"):
        CorruptingCollator(tokenizer, ragged)
    assert (CorruptingCollator(tokenizer, ragged, fast=False)(short)["labels"] == torch.tensor([-100, 9, -100])).all()
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    with pytest.raises(ParameterError, match="no mask token"):
        masking_for(bare)


@pytest.mark.parametrize("architecture", PAPER_ARCHITECTURES)
def test_the_loss_is_ours(architecture: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """Bit for bit on the fast path; with labels through the ordinary forward within rounding."""
    model = make(architecture, tokenizer)
    given = CorruptingCollator(tokenizer, masking_for(tokenizer, 0.5))(sequences_for(tokenizer))
    batch = given["corrupted"]
    assert isinstance(batch, CorruptedBatch)
    ours = loss_of(model, batch, count_of(batch))
    assert torch.equal(model(**given).loss, ours)
    ordinary = model(input_ids=batch.input_ids, labels=batch.labels)
    assert ordinary.loss.item() == pytest.approx(ours.item(), abs=2e-6)
    half = batch.labels.clone()
    half[:8] = -100
    chosen = model(corrupted=batch, labels=half).loss  # labels of one's own count, not the batch's
    assert chosen.item() == pytest.approx(model(corrupted=batch.split(8)[1]).loss.item(), abs=2e-6)


@pytest.mark.parametrize("architecture", PAPER_ARCHITECTURES)
def test_the_collator_of_transformers(architecture: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """Any number of [MASK]s per row, and padding: the mean cross-entropy at the labels, row by row the same."""
    model = make(architecture, tokenizer).eval()
    torch.manual_seed(1)
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.4)
    examples = [dict(tokenizer(text)) for text in TEXTS]
    given = collate(examples)
    found = model(**given)
    logits = torch.cat(
        [
            model(row[None, : int(seen.sum())]).logits[0]
            for row, seen in zip(given["input_ids"], given["attention_mask"], strict=True)
        ]
    )
    labels = given["labels"][given["attention_mask"].bool()]
    assert (labels != -100).sum() > 3
    assert found.loss.item() == pytest.approx(F.cross_entropy(logits, labels).item(), abs=2e-6)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("architecture", PAPER_ARCHITECTURES)
def test_trainer(architecture: str, fast: bool, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """Steps of two micro-batches learn, losses are those of all tokens of a step, what is saved loads."""
    accelerate = pytest.importorskip("accelerate", reason="Trainer needs it: the extra `trainer`")
    model, data = make(architecture, tokenizer), sequences_for(tokenizer, 32)
    seen: list[dict[str, Any]] = []
    collator = CorruptingCollator(tokenizer, masking_for(tokenizer, 0.4), fast)

    def collate(examples: Any) -> dict[str, Any]:
        seen.append(collator(examples))
        if len(seen) == 1:  # so that a step's micro-batches have counts of their own
            seen[0]["labels"][0] = -100
        return seen[-1]

    moved = accelerate.utils.send_to_device(collator(data[:2]), torch.device("meta"))
    tensors = (vars(moved["corrupted"]) if fast else moved).values()
    assert {tensor.device.type for tensor in tensors} == {"meta"}, "a batch goes to the device as a whole"
    arguments = TrainingArguments(
        str(tmp_path / "trainer"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=0.0,
        max_steps=1,
        eval_strategy="no",
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, collate, data, data[:8], processing_class=tokenizer)
    before = [p.clone() for p in model.parameters()]
    loss = trainer.train().training_loss
    assert all(map(torch.equal, before, model.parameters())), "a learning rate of zero"
    seen = seen[:2]
    counts = [int((batch["labels"] != -100).sum()) for batch in seen]
    assert counts[1] > 1.2 * counts[0] > 0
    with torch.no_grad():
        sums = [model(**batch).loss.item() * count for batch, count in zip(seen, counts, strict=True)]
    assert loss == pytest.approx(sum(sums) / sum(counts), abs=1e-5), counts

    arguments.learning_rate, arguments.max_steps, arguments.per_device_train_batch_size = 3e-3, 12, 8
    trainer = Trainer(model, arguments, collator, data, data[:8], processing_class=tokenizer)
    first = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < first - 0.3
    trainer.save_model(str(tmp_path / "saved"))
    ids = torch.tensor([example["input_ids"] for example in data[:4]]).index_fill(1, torch.tensor([5]), 4)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "saved").eval()
    assert torch.equal(again(ids).logits, model.eval()(ids).logits)
    save_encoder(again, tmp_path / "encoder")
    encoder = AutoModel.from_pretrained(tmp_path / "encoder")
    assert encoder.config.model_type == "roberta-prelayernorm"
    states = model.encoder(ids).last_hidden_state
    assert torch.allclose(encoder.eval()(ids).last_hidden_state, states, atol=1e-5)
