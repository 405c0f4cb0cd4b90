"""The encoder folder's README."""

from __future__ import annotations

from typing import Any, cast

from transformers import PreTrainedModel

from threeml_core.config import StudyConfig
from threeml_core.data.prepare import PreparedData
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.parameters.masking import corruption_of, executed_statement
from threeml_core.parameters.model import MODERN
from threeml_core.training.checkpoint import usable_positions


def count_parameters(module: Any) -> int:
    """Trainable numbers in a module; shared ones count once."""
    return sum(p.numel() for p in module.parameters())


def model_card(
    config: StudyConfig, name: str, data: PreparedData, metrics: dict[str, Any], model: PreTrainedModel
) -> str:
    """The encoder folder's README: what it is, how it was made, how to load it."""
    entry = ARCHITECTURES[config.architecture]
    kind = {**{a.name: a.label for a in ARCHITECTURES.values()}, "vanilla": "a vanilla masked language model"}
    text = f"{data.meta['corpus']} ({data.meta['train']['words']:,} words)"
    if "bundled" in data.meta["corpus"]:
        text += "; English Wikipedia's contributors, CC BY-SA"
    executed = executed_statement(config.parameters(), corruption_of(config.parameters()))
    length, room = config.sequence_length, usable_positions(model)
    encoder = cast(PreTrainedModel, model.encoder)
    modern = config.encoder == MODERN
    name_of_kind = "ModernBERT" if modern else f"RoBERTa ({config.layer_norm}-LN)"
    pooler = "there is no pooler" if modern else "no pooler was trained: `AutoModel` draws a new one"
    longer = (
        ""
        if room <= length
        else f""";
  the positions behind {length} were never pre-trained: longer texts need fine-tuning at their length, or else cut at
  {length} (`tokenizer.model_max_length`, sentence-transformers' `max_seq_length`)"""
    )
    schedule = config.mask_rate_schedule
    end = "" if schedule == "constant" else f" to {config.mask_rate_end:g} ({schedule})"
    removed = "; the decoder was removed" if entry.has_decoder else ""
    kind_of_score = {"none": "", "hard": "wrongly", "soft": "at a high loss"}[config.mask_adaptation]
    adapted = f", tokens that were predicted {kind_of_score} more often than others" if kind_of_score else ""
    rates = f"{config.learning_rate:g}"
    if config.optimizer == "muon":
        rates = f"{config.muon_learning_rate:g} of Muon (matrices of the layers) and {rates} of AdamW (all else)"
    return f"""---
library_name: transformers
tags: [masked-language-modeling, {config.encoder}, 3ml]
---
# Encoder of {name}

An ordinary encoder of {name_of_kind}: {config.num_hidden_layers} layers, width {config.hidden_size},
{count_parameters(encoder):,} parameters, of transformers' class `{type(encoder).__name__}`
(model type `{encoder.config.model_type}`), pre-trained as {kind[config.architecture]} with
mask_rate {config.mask_rate:g}{end} and split {config.mask_split}{adapted}{removed}.
{f"Executed: mask rate {executed} per sequence." if executed else ""}

* start: {config.init_encoder or "random weights"}
* text: {text}
* tokenizer: {data.meta["tokenizer"]}, {data.vocab_size:,} tokens
* length: pre-trained on sequences of {length} tokens; there is room for {room}, at which the tokenizer cuts{longer}
* {pooler}, so take `last_hidden_state`, not `pooler_output`
* {config.max_steps:,} steps of {config.batch_size} sequences, peak learning rate {rates},
  seed {config.seed}
* validation perplexity {metrics["eval_perplexity"]:.2f} over all corrupted tokens, at [MASK]s
  {metrics["eval_perplexity_masked"]:.2f} (token frequencies alone: {metrics["unigram_perplexity_masked"]:.2f})

```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("encoder")
model = AutoModelForSequenceClassification.from_pretrained("encoder", num_labels=2)
```

Method: {entry.source}.
"""
