"""The encoder folder's README, and the card of a run on the hub."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any, cast

from transformers import PreTrainedModel

from threeml_core.config import DATA_PARAMETERS, PRETRAIN_PARAMETERS, StudyConfig
from threeml_core.data.prepare import PreparedData
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.parameters.masking import KINDS, corruption_of, executed_statement
from threeml_core.parameters.model import MODERN
from threeml_core.runs.record import RunRecord
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


def command_of(record: RunRecord) -> str:
    """The command that does a pre-training again: its preset, and what was given beside it that decides the result."""
    command = ["threeml", "pretrain", "-p", "preset", str(record.parameters["preset"])]
    for name in (*DATA_PARAMETERS, *PRETRAIN_PARAMETERS):
        if record.sources.get(name) == "given":
            command += ["-p", name, str(record.parameters[name])]
    return shlex.join(command)


def hub_card(
    card: str, record: RunRecord, probes: Iterable[RunRecord], repo: str, root: str, revision: str, portable: bool
) -> str:
    """The card of a run on the hub.

    Args:
        card: the encoder folder's README.
        record: of the run.
        probes: records of what was probed in its encoder.
        repo: its name on the hub.
        root: "encoder" or "model", what lies at the repository's root.
        revision: `main`, or `step-<N>`.
        portable: whether the model brings its code.
    """
    metrics, timing = record.metrics, record.timing
    head, _, text = card.partition("\n---\n")
    title, _, text = text.partition("\n")
    task = "feature-extraction" if root == "encoder" else "fill-mask"
    where = "" if root == "encoder" else ', subfolder="encoder"'
    full = ("" if root == "model" else ', subfolder="model"') + ", trust_remote_code=True" * portable
    code = "" if portable else "import threeml_core.models.build  # of threeml-study: the model brings no code\n"
    text = text.replace('.from_pretrained("encoder"', f'.from_pretrained("{repo}"{where}')
    step = revision.removeprefix("step-")
    state = (
        "" if step == revision else f"**The state after step {step}.** All figures below are of the end of the run.\n\n"
    )
    kinds = [kind for kind in KINDS if f"eval_perplexity_{kind}" in metrics]
    perplexities = ", ".join(f"{metrics[f'eval_perplexity_{kind}']:.2f} at {kind} tokens" for kind in kinds)
    plateau = "ends on it: it shows nothing about the method" if metrics["on_unigram_plateau"] else "left it"
    rows = {
        "Text": f"{record.data['corpus']}, {record.data['train']['words']:,} words",
        "Steps": f"{record.parameters['max_steps']:,} of {record.parameters['batch_size']:,} sequences",
        "Training FLOPs": _flops_said(record.flops),
        "Energy": f"{timing['energy_kwh']:.3g} kWh (codecarbon)" if "energy_kwh" in timing else "not measured",
        "Time": f"{timing['train_seconds']:,.0f} s, {timing['tokens_per_second']:,.0f} tokens per second",
        "Validation perplexity": f"{metrics['eval_perplexity']:.2f} over all corrupted tokens, {perplexities}",
        "Unigram plateau": f"{plateau} ({metrics['unigram_perplexity_masked']:.2f} at masked tokens, by frequency)",
    }
    for probe in probes:
        tasks = {task: of for task, of in probe.metrics["tasks"].items() if "by heart" not in task}
        rows["Linear probes"] = ", ".join(f"{task} {100 * of['accuracy']:.1f}%" for task, of in tasks.items())
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"""{head}
pipeline_tag: {task}
---
{title}

{state}{text.strip()}

The model with its decoder fills masks:

```python
{code}from transformers import AutoModelForMaskedLM

model = AutoModelForMaskedLM.from_pretrained("{repo}"{full})
```

## How it was made

| | |
|---|---|
{table}

The same run again, at commit {record.environment.get("commit") or "unknown"}:

```bash
{command_of(record)}
```
"""


def _flops_said(flops: dict[str, float]) -> str:
    if not flops:
        return "not counted: mask_counts=probabilistic"
    share = 1 / flops["speedup_over_vanilla_15"]
    return f"{flops['training']:.3g}; {share:.0%} of those of a vanilla model that masks 15%"
