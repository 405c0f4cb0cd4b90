"""Parameters of pre-training: optimisation, evaluation and records."""

from __future__ import annotations

import dataclasses

from threeml_core.parameters.masking import MASK_RATE, MASK_SPLIT
from threeml_core.parameters.parameter import (
    COUNT,
    COUNTS,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    one_of,
    parameter,
    setting,
    some_of,
)

TRACKERS = ("tensorboard", "trackio", "wandb", "mlflow")
_MUON = ("optimizer", "muon")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingParameters:
    """Training: optimisation, evaluation and records."""

    STAGES = "pretrain"

    max_steps: int = parameter(23000, "u: optimizer steps", COUNT, also="plan")
    batch_size: int = parameter(4096, "b: sequences in a step", COUNT, also="benchmark plan")
    micro_batch_size: int | None = parameter(
        None, "sequences in a forward pass", COUNT, none="batch_size", also="benchmark"
    )
    auto_find_micro_batch_size: bool = setting(
        False, "out of GPU memory: take a micro-batch that fits; else stop and name it"
    )
    num_processes: int = setting(1, "processes on this host, one for each GPU, that share the batch (torchrun)", COUNT)
    optimizer: str = parameter(
        "adamw",
        "AdamW, or Muon for the matrices of layers and AdamW for all else",
        one_of(("adamw", "muon")),
        later=True,
    )
    learning_rate: float = parameter(2e-3, "AdamW's peak learning rate", POSITIVE)
    muon_learning_rate: float = parameter(0.02, "Muon's peak learning rate", POSITIVE, later=True, when=_MUON)
    muon_momentum: float = parameter(0.95, "Muon's (Nesterov) momentum", SHARE, later=True, when=_MUON)
    adjust_lr_fn: str = parameter(
        "original",
        "factor on Muon's rate: sqrt(max(1, rows / columns)), or 0.2 sqrt(max(rows, columns)), as AdamW steps",
        one_of(("original", "match_rms_adamw")),
        later=True,
        when=_MUON,
    )
    warmup_ratio: float = parameter(0.06, "share of max_steps with a rising learning rate; then linear to zero", SHARE)
    decoder_warmup_steps: int = parameter(
        0, "with init_encoder: first steps in which its encoder stays and all else learns", NOT_NEGATIVE, later=True
    )
    weight_decay: float = parameter(0.01, "decay, of both optimizers; biases and LayerNorm are left out", NOT_NEGATIVE)
    adam_beta1: float = parameter(0.9, "AdamW beta 1, of pre-training and fine-tuning", SHARE, also="finetune")
    adam_beta2: float = parameter(0.98, "AdamW beta 2, of both", SHARE, also="finetune")
    adam_epsilon: float = parameter(1e-6, "AdamW epsilon, of both", POSITIVE, also="finetune")
    max_grad_norm: float = parameter(
        0.0, "gradient clipping, of both; 0: off (the paper: 1.0 if gradients explode)", NOT_NEGATIVE, also="finetune"
    )
    device: str | None = setting(
        None, "cpu | cuda | cuda:1", none="the first GPU if there is one", also="finetune information benchmark"
    )
    bf16: bool | None = parameter(
        None,
        "compute in bfloat16",
        none="on a GPU; in pre-training also on a CPU that is faster with it",
        also="finetune information benchmark",
    )
    torch_compile: bool | None = parameter(None, "compile the model", none="on a GPU", also="benchmark")
    torch_compile_mode: str = parameter(
        "default",
        "of torch.compile; reduce-overhead takes CUDA graphs",
        one_of(("default", "reduce-overhead", "max-autotune")),
        also="benchmark",
    )

    eval_mask_rate: float = parameter(
        0.4, "mask_rate of the one fixed corruption all models are validated on", MASK_RATE
    )
    eval_mask_split: str = parameter("80-10-10", "mask_split of that corruption", MASK_SPLIT)
    eval_batch_size: int = setting(32, "sequences in a validation forward pass", COUNT, also="finetune information")
    max_eval_sequences: int = parameter(2048, "at most this many validation sequences, evenly over the text", COUNT)
    eval_steps: int = parameter(1000, "steps between validations; one more at the end", COUNT)
    logging_steps: int = setting(100, "steps between metric lines", COUNT)
    save_steps: int = setting(1000, "steps between saved states, from which a run resumes", COUNT)
    save_total_limit: int = setting(2, "saved states that are kept, the newest ones", COUNT)
    checkpoint_steps: str | None = setting(
        None, "steps after which encoder and model are kept, and pushed as revisions", COUNTS, none="the last one alone"
    )
    report_to: str | None = setting(
        None, "trackers that get what metrics.jsonl gets, joined with commas", some_of(TRACKERS), none="none of them"
    )
