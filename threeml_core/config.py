"""The parameters of a study: one flat, typed list; presets; checks. No torch here.

Every value has one of four sources, kept in `StudyConfig.sources`: `given` (papermill `-p`/`-f`, a command
line, a notebook cell), `preset <name>`, `default`, or `derived` (computed from another value because it was
left open). Standard library and PyYAML only, so a GPU host with no more than torch and transformers can use it.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import math
import re
import reprlib
import sys
import types
import typing
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn, Optional

import yaml

from threeml_core.foundation.errors import ParameterError
from threeml_core.foundation.files import PROJECT_ROOT, utf16_of
from threeml_core.foundation.processes import spin_briefly

ARCHITECTURES = ("vanilla", "self", "cross")

MODEL_NAMES = {"vanilla": "vanilla", "self": "3ML_self", "cross": "3ML_cross"}
"""Architecture -> name in tables and figures."""


def parameter(default: Any, meaning: str, choices: tuple[str, ...] = ()) -> Any:
    """A field of `StudyConfig`: its default, its one-line meaning (with unit), its allowed values."""
    metadata = {"meaning": meaning, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """All parameters of a study. Names are the field's (Hugging Face); rates are fractions, lengths are tokens."""

    # study
    preset: str = parameter("tiny", "a file in params/ that gives every value not given here")
    seed: int = parameter(0, "seed of initialisation, data order, corruption and dropout")
    runs_dir: str = parameter("runs", "folder of all run folders; relative: below the project")

    # data
    corpus: str = parameter(
        "bundled", "bundled | a file or folder | hub:<dataset>[:<config>] | a prepared folder; join with commas"
    )
    validation_corpus: Optional[str] = parameter(None, "a corpus for validation; None: documents of `corpus`")
    validation_fraction: float = parameter(0.05, "share of documents held out when validation_corpus is None")
    document_separator: str = parameter(
        "blank-line", "what ends a document in a .txt file", ("blank-line", "line", "file")
    )
    text_column: str = parameter("text", "column that holds the text in jsonl, parquet and hub datasets")
    tokenizer: str = parameter("train", "train (byte-level BPE on the corpus) | a Hugging Face name or folder")
    vocab_size: int = parameter(50265, "tokens in a trained vocabulary; for `tokenizer: train` and the cost model")
    tokenizer_megabytes: int = parameter(200, "at most this much text, from the start, trains the tokenizer; MB")
    sequence_length: int = parameter(128, "n: tokens in a block, special tokens included")

    # model
    architecture: str = parameter("self", "vanilla | self (3ML_self) | cross (3ML_cross)", ARCHITECTURES)
    layer_norm: str = parameter("pre", "pre | post: where LayerNorm stands", ("pre", "post"))
    num_hidden_layers: int = parameter(24, "l_en: encoder blocks")
    hidden_size: int = parameter(1024, "d_en: encoder width")
    num_attention_heads: int = parameter(16, "encoder attention heads")
    intermediate_size: Optional[int] = parameter(None, "encoder FFN width; None: 4 x hidden_size")
    max_position_embeddings: Optional[int] = parameter(
        None, "rows of both position tables; None: max(n, max_length) + 2"
    )
    decoder_num_hidden_layers: int = parameter(2, "l_de: decoder blocks")
    decoder_hidden_size: Optional[int] = parameter(None, "d_de: decoder width; None: hidden_size / 2")
    decoder_num_attention_heads: Optional[int] = parameter(None, "decoder heads; None: the encoder's head size")
    visible_head: str = parameter(
        "shared", "3ML_cross: head for replaced and unchanged tokens: shared | separate", ("shared", "separate")
    )
    hidden_dropout_prob: float = parameter(0.1, "dropout on hidden states")
    attention_probs_dropout_prob: float = parameter(0.1, "dropout on attention weights")
    initializer_range: float = parameter(0.02, "standard deviation of the normal initialisation")
    initialization: str = parameter(
        "bert", "bert: N(0, initializer_range) | scaled: by fan-in, sinusoidal positions", ("bert", "scaled")
    )

    # masking
    mask_rate: float = parameter(0.4, "r: share of the tokens of a block that is corrupted")
    mask_split: str = parameter("80-10-10", "percent of corrupted tokens masked-replaced-unchanged")
    mask_counts: str = parameter(
        "exact", "exact (same counts in every block) | probabilistic (fairseq's draw)", ("exact", "probabilistic")
    )
    mask_special_tokens: bool = parameter(False, "may special tokens be corrupted, as in fairseq")

    # optimisation
    max_steps: int = parameter(23000, "u: optimizer updates")
    batch_size: int = parameter(4096, "b: blocks in an update")
    micro_batch_size: Optional[int] = parameter(None, "blocks in a forward pass; None: batch_size")
    auto_find_micro_batch_size: bool = parameter(
        False, "out of GPU memory: take a micro-batch that fits; else stop and name it"
    )
    num_processes: int = parameter(1, "processes on this host, one for each GPU, that share the batch (torchrun)")
    learning_rate: float = parameter(2e-3, "peak learning rate")
    warmup_ratio: float = parameter(0.06, "share of max_steps with a rising learning rate; then linear to zero")
    weight_decay: float = parameter(0.01, "AdamW decay; biases and LayerNorm are left out")
    adam_beta1: float = parameter(0.9, "AdamW beta 1, of pre-training and fine-tuning")
    adam_beta2: float = parameter(0.98, "AdamW beta 2, of both")
    adam_epsilon: float = parameter(1e-6, "AdamW epsilon, of both")
    max_grad_norm: float = parameter(0.0, "gradient clipping, of both; 0: off (the paper: 1.0 if gradients explode)")
    device: Optional[str] = parameter(None, "cpu | cuda | cuda:1; None: the first GPU if there is one")
    bf16: Optional[bool] = parameter(None, "bfloat16 autocast; None: on a GPU")
    torch_compile: Optional[bool] = parameter(None, "compile the model; None: on a GPU")
    torch_compile_mode: str = parameter(
        "default",
        "of torch.compile: default | reduce-overhead (CUDA graphs) | max-autotune",
        ("default", "reduce-overhead", "max-autotune"),
    )

    # evaluation and records
    eval_mask_rate: float = parameter(0.4, "mask_rate of the one fixed corruption all models are validated on")
    eval_mask_split: str = parameter("80-10-10", "mask_split of that corruption")
    eval_batch_size: int = parameter(32, "blocks in a validation forward pass")
    max_eval_blocks: int = parameter(2048, "at most this many validation blocks, evenly over the text")
    eval_steps: int = parameter(1000, "updates between validations; one more at the end")
    logging_steps: int = parameter(100, "updates between metric lines")
    save_steps: int = parameter(1000, "updates between saved states, from which a run resumes")
    save_total_limit: int = parameter(2, "saved states that are kept, the newest ones")
    tensorboard: bool = parameter(False, "write TensorBoard scalars beside metrics.jsonl")

    # fine-tuning (Table 6; the grids of the large tasks QQP, MNLI and QNLI are apart)
    checkpoint: Optional[str] = parameter(
        None, "encoder to fine-tune: a folder or hub name, or random:<either>; None: what 02_pretrain makes"
    )
    pretrain_seed: Optional[int] = parameter(None, "03: seed of the encoder that 02_pretrain makes; None: seed")
    glue: str = parameter(
        "hub", "bundled (diagnostic tasks) | hub (nyu-mll/glue) | a folder of glue_data TSV files or of parquet"
    )
    tasks: str = parameter("all", "all | ablation (MNLI, QNLI, QQP) | task names joined with commas")
    from_mnli: bool = parameter(True, "RTE, STS-B and MRPC start from the MNLI model of their seed")
    seeds: int = parameter(5, "fine-tuning seeds: seed, seed + 1, ...; the score is the median over them")
    trials: Optional[int] = parameter(None, "points of a task's grid tried by each seed, drawn at random; None: all")
    finetune_learning_rates: str = parameter("1e-5,3e-5,5e-5,8e-5", "grid: peak learning rates")
    finetune_batch_sizes: str = parameter("16,32", "grid: sequences in an update")
    finetune_epochs: str = parameter("3,5,10", "grid: passes over the training set")
    finetune_large_learning_rates: str = parameter("5e-5,8e-5", "the same for QQP, MNLI and QNLI")
    finetune_large_batch_sizes: str = parameter("32", "the same for QQP, MNLI and QNLI")
    finetune_large_epochs: str = parameter("3,5", "the same for QQP, MNLI and QNLI")
    finetune_select: str = parameter("last", "whose epoch's score counts: last | best", ("last", "best"))
    finetune_warmup_ratio: float = parameter(0.06, "share of the updates with a rising learning rate")
    finetune_weight_decay: float = parameter(0.1, "AdamW decay in fine-tuning")
    max_length: int = parameter(128, "tokens of a sentence or pair, special tokens included; longer ones are cut")
    max_train_examples: Optional[int] = parameter(None, "at most this many training examples a task; None: all")
    pad_to_max_length: bool = parameter(False, "pad every batch to max_length (for comparison; slower)")
    skip_bad_rows: bool = parameter(False, "leave out TSV rows with a wrong field count, and count them")
    random_baseline: bool = parameter(
        False, "03: the same encoder without its training as well, with `pretrain_seeds` seeds"
    )

    # mutual information (07_mutual_information)
    runs: Optional[str] = parameter(
        None, "pre-trained runs to look at, ids or run folders joined with commas; None: vanilla, self and cross"
    )
    states_text: str = parameter(
        "validation", "text whose [MASK]s are looked at: validation | train", ("validation", "train")
    )
    states_seed: int = parameter(0, "seed of the choice of blocks and of their corruption")
    states_per_layer: int = parameter(5_000_000, "at most this many states a layer")
    top_tokens: int = parameter(1000, "only [MASK]s whose original token is among this many most frequent ones")
    state_layers: str = parameter("all", "all | layer numbers joined with commas; 0 is what comes in")
    states_final_norm: bool = parameter(True, "pre-LN: take the last layer behind the final LayerNorm")
    states_store: str = parameter(
        "disk", "disk (float16 files, resumable) | memory (as many layers at once as fit)", ("disk", "memory")
    )
    keep_states: bool = parameter(False, "leave the files of `disk` for further runs")
    clusters: int = parameter(10_000, "k-means clusters")
    kmeans_seeds: int = parameter(3, "k-means is done with this many seeds, for the spread")
    kmeans_passes: int = parameter(1, "times that every state moves a centre")
    kmeans_batch_size: int = parameter(4096, "states between two moves; at least `clusters` are taken")

    # the study: which runs the tables and figures need (threeml_core.study.experiments); their settings are those above
    study_mask_rates: str = parameter("0.15,0.2,0.3,0.4,0.5,0.6", "Figures 3 and 5: mask rates")
    study_depths: str = parameter("1,2,4,8", "Table 2a: decoder blocks")
    study_widths: str = parameter("256,512,768,1024", "Table 2b: decoder widths")
    study_splits: str = parameter("80-10-10,100-0-0,80-20-0,80-0-20", "Table 2c: mask splits")
    study_sizes: Optional[str] = parameter(None, "further encoders for Table 3's models: layers x width, '2x48,4x64'")
    study_steps: Optional[int] = parameter(None, "Tables 1 and 3, Figure 4: updates; None: max_steps")
    ablation_steps: Optional[int] = parameter(None, "the other tables and figures: updates; None: study_steps")
    equal_budget: bool = parameter(False, "Table 3: the 3ML models also with the FLOPs of vanilla at 15%")
    pooled_variances: bool = parameter(False, "claims are judged by the spread over seeds of all models together")
    pretrain_seeds: int = parameter(1, "pre-training seeds of each run: seed, seed + 1, ...; one gives no verdict")
    ablation_pretrain_seeds: Optional[int] = parameter(
        None, "pre-training seeds of what only ablations need; None: pretrain_seeds"
    )
    ablation_seeds: Optional[int] = parameter(None, "fine-tuning seeds of all but Table 3; None: seeds")
    plan_only: bool = parameter(False, "run nothing: 01 to 08 show what the records say, 04 to 06 with the plan")
    workers: int = parameter(1, "03 to 06: processes at once, the cores divided among them; 1: none but this")
    engine: str = parameter(
        "inline", "what does the runs of 03 to 06: inline (this host) | ray (a cluster)", ("inline", "ray")
    )
    ray_address: Optional[str] = parameter(None, "a running Ray cluster, such as auto; None: Ray is started here")
    ray_num_cpus: float = parameter(1.0, "cores that a run takes of the cluster")
    ray_num_gpus: Optional[float] = parameter(
        None, "GPUs of a fine-tuning, such as 0.25 (four share one); None: 1 if it runs on a GPU"
    )
    ray_max_retries: int = parameter(3, "how often a run starts again if its worker or host is lost")

    # benchmark (08_performance, threeml_core.benchmark); nothing here changes a result
    benchmark_parts: str = parameter(
        "all", "all | what is measured: speed, breakdown, memory, scaling, preparation; join with commas"
    )
    benchmark_arms: str = parameter(
        "all",
        "all | models beside vanilla-15%: hf, hf_bare, vanilla, self, cross; join with commas",
    )
    benchmark_rates: str = parameter("0.4,0.5", "mask rates of the models compared with vanilla-15%")
    benchmark_rounds: int = parameter(25, "rounds in which every model takes its turn")
    benchmark_sessions: int = parameter(
        1, "processes, one after the other, that measure speed; a verdict on the clock needs 5"
    )
    benchmark_megabytes: int = parameter(20, "text that both ways of preparing data are given; MB")

    # report
    pages: str = parameter("all", "notebooks of the report: all | their numbers joined with commas, such as '00,08'")

    report_from: str = parameter(
        "runs",
        "make report: runs (does what is missing) | records (those committed with the report)",
        ("runs", "records"),
    )

    # cost plan (00_cost_model); nothing here changes a result
    gpu_name: str = parameter("H100 SXM", "the GPU of the plan, a label")
    gpu_tflops: float = parameter(989.0, "its dense bf16 peak; TFLOP/s")
    gpu_watts: float = parameter(700.0, "its power draw; W")
    mfu: float = parameter(0.4, "model FLOPs utilisation assumed: share of the peak that the model gets")

    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Fill values left open, then check ranges and combinations."""
        sources = dict(self.sources)
        for name in PARAMETERS:
            sources.setdefault(name, "default")
        if self.num_attention_heads < 1:
            raise ParameterError(f"num_attention_heads={self.num_attention_heads}: expected at least 1")
        head_size = max(1, self.hidden_size // self.num_attention_heads)
        width = self.decoder_hidden_size or self.hidden_size // 2
        derived = {
            "intermediate_size": 4 * self.hidden_size,
            "max_position_embeddings": max(self.sequence_length, self.max_length) + 2,
            "decoder_hidden_size": width,
            "decoder_num_attention_heads": max(1, width // head_size),
            "micro_batch_size": self.batch_size,
        }
        for name, value in derived.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
                sources[name] = "derived"
        if (self.architecture, self.layer_norm) == ("cross", "post") and sources["layer_norm"].startswith("preset"):
            object.__setattr__(self, "layer_norm", "pre")  # section 3.3: post-LN does not work for 3ML_cross
            sources["layer_norm"] = "derived"
        object.__setattr__(self, "sources", types.MappingProxyType(sources))
        _check(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by value, so that a job can be sent to another process."""
        return functools.partial(StudyConfig, **self.parameters(), sources=dict(self.sources)), ()

    def parameters(self) -> dict[str, Any]:
        """Name -> resolved value, in the order of the class."""
        return {name: getattr(self, name) for name in PARAMETERS}

    def replace(self, **changes: Any) -> StudyConfig:
        """A copy with other values; what was derived is derived again."""
        kept = {name: getattr(self, name) for name in PARAMETERS if self.sources[name] != "derived"}
        sources = {name: source for name, source in self.sources.items() if source != "derived"}
        if self.sources["layer_norm"] == "derived":  # of 3ML_cross, instead of the preset's
            kept["layer_norm"], sources["layer_norm"] = "post", f"preset {self.preset}"
        return StudyConfig(**{**kept, **changes}, sources={**sources, **dict.fromkeys(changes, "given")})


PARAMETERS: dict[str, dataclasses.Field[Any]] = {
    field.name: field for field in dataclasses.fields(StudyConfig) if field.name != "sources"
}
_TYPES = typing.get_type_hints(StudyConfig)

DATA_PARAMETERS = (
    "corpus",
    "validation_corpus",
    "validation_fraction",
    "document_separator",
    "text_column",
    "tokenizer",
    "vocab_size",
    "tokenizer_megabytes",
    "sequence_length",
)
"""What decides the token blocks."""

STUDY_GRIDS = {"study_mask_rates": float, "study_depths": int, "study_widths": int}
"""Lists of numbers of the study, and the type of their items."""

GRID_PARAMETERS = {
    "finetune_learning_rates": float,
    "finetune_batch_sizes": int,
    "finetune_epochs": int,
    "finetune_large_learning_rates": float,
    "finetune_large_batch_sizes": int,
    "finetune_large_epochs": int,
}
"""Lists of numbers of fine-tuning, joined with commas, and the type of their items."""

FINETUNE_PARAMETERS = (
    "checkpoint",
    "pretrain_seed",
    "glue",
    "tasks",
    "from_mnli",
    "seeds",
    "trials",
    *GRID_PARAMETERS,
    "finetune_select",
    "finetune_warmup_ratio",
    "finetune_weight_decay",
    "max_length",
    "max_train_examples",
    "pad_to_max_length",
    "skip_bad_rows",
    "random_baseline",
)
"""What decides a fine-tuning study, given the encoder."""

INFORMATION_PARAMETERS = (
    "runs",
    "states_text",
    "states_seed",
    "states_per_layer",
    "top_tokens",
    "state_layers",
    "states_final_norm",
    "states_store",
    "keep_states",
    "clusters",
    "kmeans_seeds",
    "kmeans_passes",
    "kmeans_batch_size",
)
"""What decides a study of mutual information, given the pre-trained models."""

STUDY_PARAMETERS = (
    *STUDY_GRIDS,
    "study_splits",
    "study_sizes",
    "study_steps",
    "ablation_steps",
    "equal_budget",
    "pooled_variances",
    "pretrain_seeds",
    "ablation_pretrain_seeds",
    "ablation_seeds",
    "plan_only",
    "workers",
    "engine",
    "ray_address",
    "ray_num_cpus",
    "ray_num_gpus",
    "ray_max_retries",
)
"""What decides which runs a study has, and how they are done."""

BENCHMARK_GRIDS = {"benchmark_rates": float}
"""Lists of numbers of the benchmark, and the type of their items."""

RANDOM = "random:"
"""Before a checkpoint: its geometry and tokenizer, without its weights."""

BENCHMARK_PARTS = ("speed", "breakdown", "memory", "scaling", "preparation")
BENCHMARK_ARMS = ("hf", "hf_bare", *ARCHITECTURES)

BENCHMARK_PARAMETERS = (
    "benchmark_parts",
    "benchmark_arms",
    *BENCHMARK_GRIDS,
    "benchmark_rounds",
    "benchmark_megabytes",
)
"""What decides a benchmark, given the geometry."""

_LISTS = {**GRID_PARAMETERS, **STUDY_GRIDS, **BENCHMARK_GRIDS}

_NO_EFFECT_ON_RESULT = {
    *DATA_PARAMETERS,  # stand in the identity through the fingerprint of the data
    *FINETUNE_PARAMETERS,  # come after pre-training
    *INFORMATION_PARAMETERS,
    *STUDY_PARAMETERS,
    *BENCHMARK_PARAMETERS,
    "benchmark_sessions",
    "pages",
    "report_from",
    "preset",
    "runs_dir",
    "device",
    "eval_batch_size",
    "logging_steps",
    "save_steps",
    "save_total_limit",
    "num_processes",
    "auto_find_micro_batch_size",
    "tensorboard",
    "gpu_name",
    "gpu_tflops",
    "gpu_watts",
    "mfu",
}
_DECODER_ONLY = {
    "decoder_num_hidden_layers",
    "decoder_hidden_size",
    "decoder_num_attention_heads",
    "visible_head",
}


def identity_parameters(config: StudyConfig) -> dict[str, Any]:
    """The parameters that decide the result of a pre-training run, given its data."""
    dropped = set(_NO_EFFECT_ON_RESULT)
    if config.architecture == "vanilla":
        dropped |= _DECODER_ONLY
    elif config.architecture == "self":
        dropped.add("visible_head")
    return {name: value for name, value in config.parameters().items() if name not in dropped}


def executed_parameters(config: StudyConfig) -> dict[str, Any]:
    """As `identity_parameters`, with what a rate and a split execute in place of what they ask for."""
    asked = ("mask_rate", "mask_split", "eval_mask_rate", "eval_mask_split")
    kept = {name: value for name, value in identity_parameters(config).items() if name not in asked}
    parameters = config.parameters()
    return {**kept, "corruption": corruption_of(parameters), "eval_corruption": corruption_of(parameters, True)}


def executed_rate(config: StudyConfig) -> float:
    """Share of the tokens of a block that is corrupted, in the mean."""
    if config.mask_counts == "probabilistic":
        return config.mask_rate
    return float(
        corruption_counts(config.sequence_length, config.mask_rate, config.mask_split).total / config.sequence_length
    )


# -- masking arithmetic, shared by the cost model and the corruption ------------------------------------------


KINDS = ("masked", "replaced", "unchanged")
"""What can happen to a corrupted token; the order of a split and of every count."""


def parse_mask_split(mask_split: str) -> tuple[float, float, float]:
    """`"80-10-10"` -> (0.8, 0.1, 0.1): shares of corrupted tokens masked, replaced and unchanged.

    Raises:
        ParameterError: not three numbers, one is negative, or they do not sum to 100.
    """
    try:
        shares = [float(part) for part in str(mask_split).split("-")]
    except ValueError:
        shares = []
    if len(shares) != 3 or not math.isclose(sum(shares), 100.0) or min(shares) < 0:
        raise ParameterError(
            f"mask_split={mask_split!r}: expected masked-replaced-unchanged percentages that sum to 100, "
            "such as '80-10-10' or '100-0-0'"
        )
    return shares[0] / 100, shares[1] / 100, shares[2] / 100


@dataclasses.dataclass(frozen=True)
class CorruptionCounts:
    """What happens to the tokens of a block: whole [MASK]s, and the mean number of replaced and unchanged tokens.

    Every block holds the same number of [MASK]s, so that the encoder sees the same number of tokens of each. Replaced
    and unchanged tokens are spread over blocks: in the mean they have exactly the share that the split asks for.
    """

    masked: int
    replaced: Fraction
    unchanged: Fraction

    @property
    def visible(self) -> Fraction:
        """Replaced and unchanged tokens of a block, in the mean."""
        return self.replaced + self.unchanged

    @property
    def visible_slots(self) -> int:
        """The most that a block has; where a block has one less, its last slot is computed and not used."""
        return math.ceil(self.visible)

    @property
    def total(self) -> Fraction:
        """Corrupted tokens of a block, in the mean."""
        return self.masked + self.visible

    @property
    def split(self) -> str:
        """Percent masked-replaced-unchanged."""
        parts = (self.masked, self.replaced, self.unchanged)
        return "-".join(f"{float(100 * part / self.total):.3g}" for part in parts) if self.total else "0-0-0"

    def as_text(self) -> dict[str, str]:
        """For a record: exact numbers, such as `{"masked": "4", "replaced": "1/2", "unchanged": "1/2"}`."""
        return {kind: str(getattr(self, kind)) for kind in KINDS}


def _exact_shares(mask_split: str) -> tuple[Fraction, ...]:
    """As `parse_mask_split`, without the rounding of binary fractions."""
    parse_mask_split(mask_split)
    shares = [Fraction(part.strip()) for part in str(mask_split).split("-")]
    return tuple(share / sum(shares) for share in shares)


def corruption_counts(n: int, mask_rate: float, mask_split: str) -> CorruptionCounts:
    """Tokens masked, replaced and unchanged in blocks of `n` tokens.

    The [MASK]s are `mask_rate * n` times their share, rounded half up; the other kinds follow from them, so that the
    split is exact and the rate is off by at most half a [MASK]. Settings that give the same counts are the same.
    """
    masked, replaced, unchanged = _exact_shares(mask_split)
    if not masked:
        return CorruptionCounts(0, Fraction(0), Fraction(0))
    count = math.floor(Fraction(str(mask_rate)) * n * masked + Fraction(1, 2))
    return CorruptionCounts(count, count * replaced / masked, count * unchanged / masked)


def smallest_mask_rate(n: int, mask_split: str) -> float:
    """The smallest rate, to three digits, at which a block of `n` tokens has a [MASK]."""
    rate = Fraction(1, 2) / n / _exact_shares(mask_split)[0]
    return math.ceil(rate * 1000) / 1000


def largest_mask_rate(n: int, mask_split: str, candidates: int) -> float:
    """The largest rate, to three digits, that corrupts at most `candidates` of a block's `n` tokens; 0: none does."""
    share = _exact_shares(mask_split)[0]
    masked = math.floor(candidates * share)
    while masked and masked + math.ceil(masked * (1 - share) / share) > candidates:
        masked -= 1
    rate = (masked + Fraction(1, 2)) / n / share if masked else Fraction(0)
    return max(0, min(999, math.ceil(rate * 1000) - 1)) / 1000


def corruption_of(parameters: Mapping[str, Any], evaluation: bool = False) -> dict[str, Any]:
    """What is executed of a rate and split: equal for settings that do the same.

    Args:
        parameters: of a run, by name.
        evaluation: the corruption of validation instead of training.
    """
    rate, split = (parameters[f"{'eval_' * evaluation}{name}"] for name in ("mask_rate", "mask_split"))
    if parameters["mask_counts"] == "exact" or evaluation:
        return dict(corruption_counts(parameters["sequence_length"], rate, split).as_text())
    return {"mask_rate": rate, "mask_split": split}


def executed_statement(parameters: Mapping[str, Any], executed: Mapping[str, Any], evaluation: bool = False) -> str:
    """What a run's corruption executes, where that is not what was asked for; else "".

    Args:
        parameters: of a run, by name.
        executed: its corruption, as in the identity of its record; see `corruption_of`.
        evaluation: the corruption of validation instead of training.
    """
    if "masked" not in executed:
        return ""
    counts = CorruptionCounts(int(executed["masked"]), *(Fraction(executed[kind]) for kind in KINDS[1:]))
    rate, split = (parameters[f"{'eval_' * evaluation}{name}"] for name in ("mask_rate", "mask_split"))
    n = parameters["sequence_length"]
    parts = (counts.masked, counts.replaced, counts.unchanged)
    same_split = all(part == share * counts.total for part, share in zip(parts, _exact_shares(split), strict=True))
    if same_split and counts.total / n == Fraction(str(rate)):
        return ""
    means = f"{counts.masked} [MASK]s, {float(counts.replaced):g} replaced, {float(counts.unchanged):g} unchanged"
    return (
        f"{rate:.4g} as {float(counts.total / n):.4f}{'' if same_split else f', {split} as {counts.split}'} ({means})"
    )


def parse_grid(name: str, text: str) -> tuple[Any, ...]:
    """`"16,32"` -> (16, 32): the values of a parameter that holds a list of numbers, in the order given.

    Raises:
        ParameterError: not positive numbers of the right type, or one stands there twice.
    """
    kind = _LISTS[name]
    try:
        values = tuple(kind(part) for part in text.split(","))
    except ValueError:
        values = ()
    largest = _LARGEST if kind is int else sys.float_info.max
    if not values or not all(0 < value <= largest for value in values) or len(set(values)) < len(values):
        rates = "mask rates such as '0.15,0.4'" if name not in GRID_PARAMETERS else "learning rates such as '1e-5,3e-5'"
        what = rates if kind is float else "whole numbers such as '16,32'"
        raise ParameterError(f"{name}={text!r}: expected {what}, each above 0 and given once")
    return values


def parse_names(name: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """`"speed,memory"` -> ("speed", "memory"), in the order of `known`; `all` is all of them.

    Raises:
        ParameterError: a name that is not known, or one stands there twice.
    """
    if text == "all":
        return known
    parts = [part.strip() for part in text.split(",")]
    if not set(parts) <= set(known) or len(set(parts)) < len(parts):
        raise ParameterError(f"{name}={text!r}: expected 'all' or some of {', '.join(known)}, each once")
    return tuple(part for part in known if part in parts)


def parse_sizes(value: str | None) -> list[tuple[int, int]]:
    """`"2x48,4x64"` -> `[(2, 48), (4, 64)]`, blocks and width of an encoder.

    Raises:
        ParameterError: not of this form, or a size twice.
    """
    if value is None:
        return []
    found = [re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,5})", part.strip()) for part in value.split(",")]
    sizes = [(int(match[1]), int(match[2])) for match in found if match]
    if len(sizes) < len(found) or len(set(sizes)) < len(sizes):
        raise ParameterError(
            f"study_sizes={value!r}: expected layers x width of encoders, each once, such as '2x48,4x64', or None"
        )
    return sizes


def parse_layers(text: str) -> tuple[int, ...] | None:
    """`"0,2"` -> (0, 2): the layers of `state_layers` in ascending order; None for `all`.

    Raises:
        ParameterError: not layer numbers, or one stands there twice.
    """
    if text == "all":
        return None
    parts = [part.strip() for part in text.split(",")]
    layers = sorted(int(part) for part in parts if part.isdecimal() and len(part) < 10)
    if not layers or len(layers) < len(parts) or len(set(layers)) < len(layers):
        raise ParameterError(f"state_layers={text!r}: expected 'all' or layer numbers such as '0,1,2', each once")
    return tuple(layers)


# -- checks ---------------------------------------------------------------------------------------------------


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ParameterError(message)


def _check(c: StudyConfig) -> None:
    for name, field in PARAMETERS.items():
        value, choices = getattr(c, name), field.metadata["choices"]
        if choices:
            _require(value in choices, f"{name}={value!r}: expected one of {', '.join(choices)}")
        if isinstance(value, float):
            _require(math.isfinite(value), f"{name}={value}: expected a finite number")
        if isinstance(value, str) and name not in _LISTS:  # these say what they expect
            _require(value.strip() != "", f"{name}={value!r} is empty: give a value, or leave {name} out")
    for name in (
        "vocab_size",
        "tokenizer_megabytes",
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "decoder_num_hidden_layers",
        "decoder_hidden_size",
        "decoder_num_attention_heads",
        "max_steps",
        "batch_size",
        "micro_batch_size",
        "eval_batch_size",
        "max_eval_blocks",
        "eval_steps",
        "logging_steps",
        "save_steps",
        "save_total_limit",
        "num_processes",
        "seeds",
        "pretrain_seeds",
        "workers",
        "benchmark_sessions",
        "benchmark_megabytes",
        "states_per_layer",
        "top_tokens",
        "kmeans_seeds",
        "kmeans_passes",
        "kmeans_batch_size",
    ):
        _require(getattr(c, name) >= 1, f"{name}={getattr(c, name)}: expected at least 1")
    for name in ("seed", "states_seed", "pretrain_seed"):
        _require(0 <= (getattr(c, name) or 0) < 2**32, f"{name}={getattr(c, name)}: expected 0 to 2^32 - 1")
    _require(c.clusters >= 2, f"clusters={c.clusters}: expected at least 2")
    parse_layers(c.state_layers)
    for name in ("mask_rate", "eval_mask_rate"):
        rate = getattr(c, name)
        _require(
            0 < rate < 1,
            f"{name}={rate}: expected a fraction above 0 and below 1, such as 0.4 (40% of the tokens)",
        )
    for name in (
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "warmup_ratio",
        "finetune_warmup_ratio",
        "validation_fraction",
    ):
        _require(0 <= getattr(c, name) < 1, f"{name}={getattr(c, name)}: expected 0 or more and below 1")
    for name in ("adam_beta1", "adam_beta2"):
        _require(0 <= getattr(c, name) < 1, f"{name}={getattr(c, name)}: expected 0 or more and below 1")
    for name in ("learning_rate", "adam_epsilon", "initializer_range", "gpu_tflops", "gpu_watts"):
        _require(getattr(c, name) > 0, f"{name}={getattr(c, name)}: expected more than 0")
    for name in ("trials", "max_train_examples"):
        value = getattr(c, name)
        _require(value is None or value >= 1, f"{name}={value}: expected at least 1, or None for all")
    _require(
        not (c.random_baseline and (c.checkpoint or "").startswith(RANDOM)),
        f"checkpoint={c.checkpoint!r} is random already: leave random_baseline out, or give the trained checkpoint",
    )
    for name in _LISTS:
        parse_grid(name, getattr(c, name))
    _require(
        c.benchmark_rounds >= 6,
        f"benchmark_rounds={c.benchmark_rounds}: expected at least 6, as the median of fewer has no 95% interval",
    )
    _require(
        "speed" in parse_names("benchmark_parts", c.benchmark_parts, BENCHMARK_PARTS) or c.benchmark_sessions == 1,
        f"benchmark_parts={c.benchmark_parts!r}: expected speed in it, as benchmark_sessions={c.benchmark_sessions}",
    )
    parse_names("benchmark_arms", c.benchmark_arms, BENCHMARK_ARMS)
    for split in c.study_splits.split(","):
        parse_mask_split(split.strip())
    parse_sizes(c.study_sizes)
    for name in ("study_steps", "ablation_steps", "ablation_pretrain_seeds", "ablation_seeds"):
        value = getattr(c, name)
        _require(value is None or value >= 1, f"{name}={value}: expected at least 1, or None")
    _require(c.ray_num_cpus > 0, f"ray_num_cpus={c.ray_num_cpus}: expected more than 0")
    gpus = c.ray_num_gpus
    _require(
        gpus is None or 0 <= gpus <= 1 or gpus.is_integer() and gpus > 0,
        f"ray_num_gpus={gpus}: expected a fraction of a GPU, such as 0.25, or a whole number, or None",
    )
    _require(c.ray_max_retries >= 0, f"ray_max_retries={c.ray_max_retries}: expected 0 or more")
    _require(c.max_length >= 8, f"max_length={c.max_length}: expected at least 8 tokens")
    for name in ("weight_decay", "finetune_weight_decay", "max_grad_norm"):
        _require(getattr(c, name) >= 0, f"{name}={getattr(c, name)}: expected 0 or more")
    _require(0 < c.mfu <= 1, f"mfu={c.mfu}: expected a fraction above 0, at most 1")
    _require(c.sequence_length >= 4, f"sequence_length={c.sequence_length}: expected at least 4 tokens")
    _require(
        c.max_position_embeddings is None or c.max_position_embeddings >= c.sequence_length + 2,
        f"max_position_embeddings={c.max_position_embeddings}: expected at least sequence_length + 2 = "
        f"{c.sequence_length + 2}",
    )
    for width, heads in (
        ("hidden_size", "num_attention_heads"),
        ("decoder_hidden_size", "decoder_num_attention_heads"),
    ):
        d, h = getattr(c, width), getattr(c, heads)
        _require(d % h == 0, f"{heads}={h} does not divide {width}={d}: choose heads that divide the width")
    assert c.micro_batch_size is not None
    _require(
        c.batch_size % c.micro_batch_size == 0,
        f"micro_batch_size={c.micro_batch_size} does not divide batch_size={c.batch_size}",
    )
    for rate_name, split_name in (("mask_rate", "mask_split"), ("eval_mask_rate", "eval_mask_split")):
        rate, split, n = getattr(c, rate_name), getattr(c, split_name), c.sequence_length
        _require(
            parse_mask_split(split)[0] > 0,
            f"{split_name}={split!r} masks nothing: 3ML restores [MASK] tokens, give the first number above 0",
        )
        counts = corruption_counts(n, rate, split)
        _require(
            counts.masked >= 1,
            f"{rate_name}={rate} masks no token in a block of {n}: raise it to at least "
            f"{smallest_mask_rate(n, split):.3f} or take longer blocks",
        )
        # two special tokens a block are never corrupted
        most = counts.masked + counts.visible_slots
        _require(
            most <= n - 2 or c.mask_special_tokens and counts.masked < n and most <= n,
            f"{rate_name}={rate} corrupts {most} of {n} tokens, but 2 are special tokens "
            f"and stay: lower it to at most {largest_mask_rate(n, split, n - 2):.3f}",
        )


# -- resolving ------------------------------------------------------------------------------------------------


def _type_of(name: str) -> tuple[type, bool]:
    hint = _TYPES[name]
    args = [a for a in typing.get_args(hint) if a is not type(None)]
    return (args[0], True) if args else (hint, False)


_LARGEST = 2**53
"""Whole numbers up to it are exact as floats."""


def _shown(value: Any) -> str:
    """A value in an error message, cut to a line's length."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 2, 100, 100
    try:
        return short.repr(value)
    except ValueError:  # a number of thousands of digits
        return type(value).__name__


def _expected(name: str, kind: type) -> str:
    """What a parameter takes, in words."""
    if kind is bool:
        return "True or False"
    default = PARAMETERS[name].default
    if kind is int:
        return f"a whole number such as {default or 16}"
    if kind is float:
        return f"a number such as {default or 0.4:g}"
    return f"values joined with commas such as '{default}'" if name in (*_LISTS, "state_layers", "pages") else "text"


def _meant(kind: type, value: Any) -> str:
    """How a number is written that stands there with a comma or in percent; empty for anything else."""
    text = value.strip() if isinstance(value, str) else ""
    percent = text.endswith("%")
    try:
        number = float(text.rstrip("% ").replace(",", ".")) / (100 if percent else 1)
    except ValueError:
        return ""
    written = f"{number:.10g}"
    return f"; write {written}" if kind is float and (percent or "," in text) and math.isfinite(number) else ""


def _coerce(name: str, value: Any, where: str) -> Any:
    """A value from YAML or from papermill's `-p` as the parameter's type. `2e-3` may arrive as a string."""
    kind, optional = _type_of(name)
    if optional and (value is None or isinstance(value, str) and value.lower() in ("none", "null")):
        return None
    expected = f"{_expected(name, kind)}{', or None' if optional else ''}{_meant(kind, value)}"
    wrong = ParameterError(f"{name}={_shown(value)}{where}: expected {expected}")
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, int) and abs(item) > _LARGEST for item in items):
        raise ParameterError(f"{name}{where}: a number beyond {_LARGEST:,}; give a smaller one")
    if name in (*_LISTS, "state_layers", "pages"):  # papermill turns `-p finetune_epochs 3` into a number
        if items and all(isinstance(item, (int, float, str)) and not isinstance(item, bool) for item in items):
            return ",".join(str(item) for item in items)
        raise wrong
    if kind is str:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return ",".join(value)
        if not isinstance(value, str):
            raise wrong
        return value
    if kind is bool:
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise wrong
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise wrong
    if isinstance(value, int):
        return kind(value)
    try:
        number = float(value)
    except ValueError:
        raise wrong from None
    if kind is int:
        if not number.is_integer() or abs(number) > _LARGEST:
            raise wrong
        return int(number)
    return number


def _known(name: str, where: str) -> None:
    if name in PARAMETERS:
        return
    close = difflib.get_close_matches(name, PARAMETERS, 1) if isinstance(name, str) else []
    hint = f"did you mean {close[0]!r}?" if close else f"known parameters: {', '.join(PARAMETERS)}"
    raise ParameterError(f"unknown parameter {_shown(name)}{where}: {hint}")


def preset_names() -> list[str]:
    """Names of the files in params/."""
    return sorted(path.stem for path in (PROJECT_ROOT / "params").glob("*.yaml"))


_YAML_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def _refuse_surprises(node: yaml.Node | None, path: Path) -> None:
    """Of a name that stands there twice YAML's reader would take the last, and `010` would be 8, `1:30` would be 90.

    Raises:
        ParameterError: there is such a thing.
    """
    lines: dict[str, int] = {}
    for key, value in node.value if isinstance(node, yaml.MappingNode) else []:
        name, line = _shown(key.value), key.start_mark.line + 1
        if isinstance(key, yaml.ScalarNode):
            if key.value in lines:
                raise ParameterError(
                    f"{path}: {name} stands there twice, in lines {lines[key.value]} and {line}; keep one"
                )
            lines[key.value] = line
        if value.tag in _YAML_NUMBERS and re.match(r"[-+]?(0[0-9_]+$|[0-9_]+:)", value.value):
            raise ParameterError(
                f"{path}, line {line}: {name}: {value.value} is a number of base 8 or 60 in YAML; write it without "
                "zeros in front and without colons, or in quotes"
            )


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
        if encoding := utf16_of(content[:4096]):
            raise ParameterError(f"{path} looks like UTF-16: convert it with `iconv -f {encoding} -t utf-8`")
        loader = yaml.SafeLoader(content.decode("utf-8-sig"))
        node = loader.get_single_node()
        _refuse_surprises(node, path)
        values = None if node is None else loader.construct_document(node)
    except ParameterError:
        raise
    except Exception as error:  # values that are no number or date raise errors of many kinds
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ParameterError(
            f"cannot read parameters from {path}: {reason}; expected lines 'name: value', one for each parameter"
        ) from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ParameterError(f"{path}: expected lines 'name: value', one for each parameter")
    return values


def load_preset(name: str) -> dict[str, Any]:
    """Values of the preset `name`, coerced to their types.

    Raises:
        ParameterError: no such preset, or it holds an unknown or badly typed parameter.
    """
    names = preset_names()
    if name not in names:
        close = difflib.get_close_matches(str(name), names, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}"
        raise ParameterError(f"unknown preset {name!r}: {hint}")
    where = f" in params/{name}.yaml"
    values = _read_yaml(PROJECT_ROOT / "params" / f"{name}.yaml")
    for key in values:
        _known(key, where)
    return {key: _coerce(key, value, where) for key, value in values.items()}


def make_config(given: Mapping[str, Any]) -> StudyConfig:
    """Preset values overlaid with `given`, where None means "not given"; a given corpus brings its own validation text.

    A preset's post-LN is not for 3ML_cross, which gets pre-LN, with `-f params/x.yaml` as with `-p preset x`; given by
    itself, `layer_norm` is obeyed.

    Raises:
        ParameterError: unknown name (with the nearest known one), wrong type, out of range.
    """
    for name in given:
        _known(name, "")
    given = {name: _coerce(name, value, "") for name, value in given.items() if value is not None}
    preset = given.get("preset", "tiny")
    values = load_preset(preset)
    if "corpus" in given:
        values.pop("validation_corpus", None)  # it belongs to the preset's own text
    is_file = values.keys() <= given.keys()  # -f params/<preset>.yaml gives all that the preset does
    own = {"layer_norm"} if is_file and given.get("layer_norm") == values.get("layer_norm") else set()
    sources = dict.fromkeys(values, f"preset {preset}") | {name: "given" for name in given if name not in own}
    return StudyConfig(**{**values, **given, "preset": preset}, sources=sources)


def given_parameters(config: StudyConfig) -> dict[str, Any]:
    """What `make_config` has to be given in another process for the same values from the same sources."""
    deciding = ("corpus", "architecture")  # whether and how others follow from the preset
    given = {"preset": config.preset} | {n: getattr(config, n) for n in deciding if config.sources[n] == "given"}
    others = make_config(given)
    for name, value in config.parameters().items():
        source = config.sources[name]
        follows = source == others.sources[name] == "derived" or source != "given" and value == getattr(others, name)
        if not follows:
            given[name] = "None" if value is None else value
    return given


def resolve_parameters(namespace: Mapping[str, Any]) -> StudyConfig:
    """The parameters of a notebook: call it as `resolve_parameters(globals())` before anything else is defined.

    Whatever plain value stands in the notebook's globals at that point came from the `parameters` cell or from
    papermill, so a name we do not know is a misspelt parameter and is refused. Objects (modules, records,
    figures) are passed over, so the cell can be run again in JupyterLab after the rest of the notebook.

    It is what a notebook does first, so the way its threads wait is set here, before torch is imported.
    """
    spin_briefly()
    plain = (str, int, float, bool, type(None))
    given = {
        name: value
        for name, value in namespace.items()
        if not name.startswith("_") and (name in PARAMETERS or isinstance(value, plain))
    }
    return make_config(given)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, as for every other mistake.

        Raises:
            ParameterError: always.
        """
        raise ParameterError(
            f"{message}; parameters are given as -p NAME VALUE, such as -p mask_rate 0.5, or in a file as -f FILE; "
            "--help lists them"
        )


def parse_arguments(description: str, arguments: list[str] | None = None) -> StudyConfig:
    """A command line with papermill's own `-f FILE` and `-p NAME VALUE` -> `StudyConfig`.

    Raises:
        ParameterError: anything else on it; see `make_config`.
    """
    listing = "\n".join(f"  {name:30} {field.metadata['meaning']}" for name, field in PARAMETERS.items())
    parser = _Parser(
        description=description,
        epilog=f"parameters:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-f", "--parameters-file", "--config", action="append", default=[], metavar="FILE", help="YAML file"
    )
    parser.add_argument(
        "-p", "--parameter", action="append", default=[], nargs=2, metavar=("NAME", "VALUE"), help="one parameter"
    )
    options = parser.parse_args(arguments)
    given: dict[str, Any] = {}
    for file in options.parameters_file:
        given |= _read_yaml(Path(file))
    given |= dict(options.parameter)
    return make_config(given)


def variant(config: StudyConfig, **changes: Any) -> StudyConfig:
    """`config` with other values; 3ML_cross always with pre-LN (section 3.3: post-LN does not work).

    A decoder of another width has heads as wide as the encoder's.
    """
    if changes.get("architecture", config.architecture) == "cross":
        changes = {"layer_norm": "pre", **changes}
    if "decoder_hidden_size" in changes:
        changes = {"decoder_num_attention_heads": None, **changes}
    return config.replace(**changes)


def study_steps(config: StudyConfig) -> int:
    """Updates of the models of Tables 1 and 3 and Figure 4."""
    return config.study_steps or config.max_steps
