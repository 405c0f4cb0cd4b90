"""Preparing data: this package's way beside run_mlm's, on the same text with the same tokenizer."""

from __future__ import annotations

import dataclasses
import itertools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from threeml_core.benchmark.memory import in_own_process
from threeml_core.config import StudyConfig
from threeml_core.data.corpus import shards_of
from threeml_core.data.prepare import PreparedData, is_prepared, prepare_data
from threeml_core.foundation.log import Log
from threeml_core.training.device import peak_memory


@dataclasses.dataclass(frozen=True)
class Preparation:
    """One way: tokens that went into sequences, seconds by the clock and of all CPUs, peak bytes above the imports."""

    tokens: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def compare_preparation(config: StudyConfig, data: PreparedData, log: Log) -> dict[str, Preparation] | str:
    """`ours` and `run_mlm` on the first `benchmark_megabytes`, each in a process; or why they were not compared."""
    try:
        import datasets  # noqa: F401
    except ImportError:
        return "not compared: datasets is not installed here"
    if is_prepared(config.corpus):
        return "not compared: the corpus was prepared elsewhere, its text is not here"
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        megabytes = write_text(config, text)
        log(f"preparing {megabytes:.1f} MB of text in both ways")
        arguments = (config, str(text), str(data.tokenizer_folder), folder)
        ours = in_own_process(_measured, _ours, arguments)
        theirs = in_own_process(_measured, _run_mlm, arguments)
    return {"ours": ours, "run_mlm": theirs}


def write_text(config: StudyConfig, path: Path) -> float:
    """Write the start of the corpus as lines of text, an empty one between documents; MB written."""
    left = config.benchmark_megabytes * 1_000_000
    with path.open("w", encoding="utf-8") as handle:
        for document in (document for shard in shards_of(config, config.corpus) for document in shard()):
            for piece in itertools.chain(document, ["\n\n"]):
                left -= handle.write(piece)
            if left <= 0:
                break
    return path.stat().st_size / 1e6


def _measured(way: Callable[..., int], arguments: tuple[Any, ...]) -> Preparation:
    import datasets  # noqa: F401  (its import is not part of either)
    import torch

    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    device = torch.device("cpu")
    before, cpu, started = peak_memory(device), time.process_time(), time.perf_counter()
    tokens = way(*arguments)
    return Preparation(tokens, time.perf_counter() - started, time.process_time() - cpu, peak_memory(device) - before)


def _ours(config: StudyConfig, text: str, tokenizer: str, folder: str) -> int:
    given = {"corpus": text, "tokenizer": tokenizer, "runs_dir": str(Path(folder) / "ours")}
    data = prepare_data(config.replace(document_separator="blank-line", max_tokens=None, **given))
    return (len(data.train) + len(data.validation)) * config.sequence_length


def _run_mlm(config: StudyConfig, text: str, tokenizer: str, folder: str) -> int:
    """`datasets.map` with the tokenizer, then once more with the joining of texts, as the example does it."""
    import datasets
    from transformers import AutoTokenizer
    from transformers.utils import logging as transformers_logging

    datasets.disable_progress_bars()
    transformers_logging.set_verbosity_error()  # lines longer than a sequence are what it is for
    loaded = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
    n = config.sequence_length

    def tokenize(examples: dict[str, list[str]]) -> Any:
        return loaded(examples["text"], return_special_tokens_mask=True)

    def group(examples: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {name: list(itertools.chain(*rows)) for name, rows in examples.items()}
        total = len(joined["input_ids"]) // n * n
        return {name: [values[i : i + n] for i in range(0, total, n)] for name, values in joined.items()}

    options: dict[str, Any] = {"batched": True, "load_from_cache_file": False}
    raw = datasets.load_dataset("text", data_files=text, split="train", cache_dir=str(Path(folder) / "cache"))
    sequences = raw.map(tokenize, remove_columns=["text"], **options).map(group, **options)
    return len(sequences) * n
