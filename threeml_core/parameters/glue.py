"""Parameters of fine-tuning; Table 6's grids, those of the large tasks QQP, MNLI and QNLI apart."""

from __future__ import annotations

import dataclasses

from threeml_core.parameters.parameter import (
    COUNT,
    COUNTS,
    NOT_NEGATIVE,
    RATES,
    SEED,
    SHARE,
    at_least,
    one_of,
    parameter,
)

RANDOM = "random:"
"""Stands before a checkpoint for its geometry and tokenizer without its weights."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueParameters:
    """Fine-tuning: what decides it, given the encoder."""

    STAGES = "finetune"

    checkpoint: str | None = parameter(
        None, "encoder to fine-tune: a folder or hub name, or random:<either>", none="what 02_pretrain makes"
    )
    pretrain_seed: int | None = parameter(None, "03: seed of the encoder that 02_pretrain makes", SEED, none="seed")
    glue: str = parameter(
        "hub", "bundled (diagnostic tasks) | hub (nyu-mll/glue) | a folder of glue_data TSV files or of parquet"
    )
    tasks: str = parameter("all", "all | ablation (MNLI, QNLI, QQP) | task names joined with commas")
    from_mnli: bool = parameter(True, "RTE, STS-B and MRPC start from the MNLI model of their seed")
    num_seeds: int = parameter(5, "fine-tuning seeds: seed, seed + 1, ...; the score is the median over them", COUNT)
    num_trials: int | None = parameter(
        None, "points of a task's grid tried by each seed, drawn at random", COUNT, none="all"
    )
    finetune_learning_rates: str = parameter("1e-5,3e-5,5e-5,8e-5", "grid: peak learning rates", RATES)
    finetune_batch_sizes: str = parameter("16,32", "grid: sequences in a step", COUNTS)
    finetune_epochs: str = parameter("3,5,10", "grid: passes over the training set", COUNTS)
    finetune_large_learning_rates: str = parameter("5e-5,8e-5", "the same for QQP, MNLI and QNLI", RATES)
    finetune_large_batch_sizes: str = parameter("32", "the same for QQP, MNLI and QNLI", COUNTS)
    finetune_large_epochs: str = parameter("3,5", "the same for QQP, MNLI and QNLI", COUNTS)
    finetune_select: str = parameter("last", "the epoch whose score counts", one_of(("last", "best")))
    finetune_warmup_ratio: float = parameter(0.06, "share of the steps with a rising learning rate", SHARE)
    finetune_weight_decay: float = parameter(0.1, "AdamW decay in fine-tuning", NOT_NEGATIVE)
    max_length: int = parameter(
        128, "tokens of a sentence or pair, special tokens included; longer ones are cut", at_least(8, " tokens")
    )
    max_train_examples: int | None = parameter(None, "at most this many training examples a task", COUNT, none="all")
    pad_to_max_length: bool = parameter(False, "pad every batch to max_length (for comparison; slower)")
    skip_bad_rows: bool = parameter(False, "leave out TSV rows with a wrong field count, and count them")
    random_baseline: bool = parameter(
        False, "03: the same encoder without its training as well, with `num_pretrain_seeds` seeds"
    )
