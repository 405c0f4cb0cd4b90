"""Parameters of text, tokenizer and token sequences."""

from __future__ import annotations

import dataclasses

from threeml_core.parameters.parameter import COUNT, SEED, SHARE, at_least, one_of, parameter


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataParameters:
    """Data: what decides the token sequences. They stand in a run's identity through the fingerprint of its data."""

    STAGES = "data pretrain"

    corpus: str = parameter(
        "bundled",
        "bundled | a file or folder | hub:<dataset>[:<config>] | a prepared folder; join with commas",
    )
    validation_corpus: str | None = parameter(None, "a corpus for validation", none="documents of `corpus`")
    validation_fraction: float = parameter(0.05, "share of documents held out when validation_corpus is None", SHARE)
    document_separator: str = parameter(
        "blank-line", "what ends a document of a .txt file", one_of(("blank-line", "line", "file"))
    )
    text_column: str = parameter("text", "column with the text in jsonl, parquet and hub datasets; join with commas")
    max_tokens: int | None = parameter(
        None,
        "tokens in training sequences at most, and in those of a validation_corpus; of corpora in shares: as many",
        COUNT,
        none="all the text",
        later=True,
    )
    streaming: bool = parameter(False, "hub datasets are streamed instead of kept in the hub's cache", later=True)
    shard_seed: int = parameter(
        0, "order in which the shards of a streamed dataset are read", SEED, later=True, when=("streaming", True)
    )
    tokenizer: str = parameter("train", "train (byte-level BPE on the corpus) | a Hugging Face name or folder")
    vocab_size: int = parameter(
        50265, "tokens in a trained vocabulary; for `tokenizer: train` and the cost model", COUNT, also="plan"
    )
    tokenizer_megabytes: int = parameter(200, "at most this much text, from the start, trains the tokenizer; MB", COUNT)
    sequence_length: int = parameter(
        128, "n: tokens in a sequence, special tokens included", at_least(4, " tokens"), also="benchmark plan"
    )
