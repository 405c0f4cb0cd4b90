"""Data sets of the Hugging Face hub: whole in the cache of `datasets`, or streamed one shard after the other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from threeml_core.data.readers import Document, columns_of, optional_library, pieces_of
from threeml_core.foundation.errors import CorpusError, StudyError
from threeml_core.foundation.hub import hub_or_cache, hub_reason


def _open(part: str, opener: str, **options: Any) -> Any:
    """What this function of `datasets` makes of `hub:<dataset>[@<commit>][:<config>]`, or a `CorpusError`."""
    datasets = optional_library("datasets", f"corpus {part}: needs `pip install datasets`")
    name, _, config = part.removeprefix("hub:").partition(":")
    revision = None
    if "@" in name and not Path(name).exists():
        name, _, revision = name.partition("@")
    if not name or revision == "":
        raise CorpusError(f"corpus {part!r}: expected hub:<dataset>, hub:<dataset>:<config> or hub:<dataset>@<commit>")
    if name in datasets.packaged_modules._PACKAGED_DATASETS_MODULES:
        raise CorpusError(
            f"corpus {part}: {name!r} is no dataset but a reader of `datasets`, which takes all files of the working "
            "folder, pickled ones too; give a file or folder as corpus"
        )
    with hub_or_cache(name) as offline:
        try:
            return getattr(datasets, opener)(name, config or None, revision=revision, **options)
        except StudyError:  # SIGTERM's
            raise
        except Exception as error:  # the hub's errors have no common base
            raise CorpusError(
                f"corpus {part}: the hub did not give it ({hub_reason(error, offline)}); check the name and the "
                "network, or use a local file or folder as corpus"
            ) from None


def _whole(part: str) -> Any:
    """Its `train` split, kept in the cache of `datasets`."""
    return _open(part, "load_dataset", split="train")


def hub_version(part: str, text_column: str) -> str:
    """What `datasets` knows this text by; it is loaded for it. A `CorpusError` if it lacks the column."""
    dataset = _whole(part)
    columns_of(text_column, dataset.column_names, f"corpus {part}")
    return dataset._fingerprint


def hub_documents(part: str, text_column: str) -> Iterator[Document]:
    """The documents of its `train` split, from the cache."""
    dataset, where = _whole(part), f"corpus {part}"
    columns = columns_of(text_column, dataset.column_names, where)
    for row in dataset.select_columns(columns):
        yield pieces_of(row, columns, where)


def stream_version(part: str) -> list[str]:
    """Configuration, version and commit (of a local folder: its files, sizes and times); nothing is loaded for it."""
    builder = _open(part, "load_dataset_builder")
    return [builder.config_id, str(builder.config.version), str(builder.hash)]


def stream_shards(part: str, text_column: str, seed: int) -> list[Callable[[], Iterator[Document]]]:
    """Readers of the shards of its `train` split, in an order that is a function of `seed`; nothing is kept on disk.

    A shard is what `datasets` reads as one: most often a file. Memory holds the rows that the reader of its format
    takes at once: of parquet a row group.
    """
    dataset = _open(part, "load_dataset", split="train", streaming=True)
    if dataset.column_names is not None:
        columns = columns_of(text_column, dataset.column_names, f"corpus {part}")
        dataset = dataset.select_columns(columns)
    order = np.random.default_rng(seed).permutation(dataset.num_shards).tolist()
    return [functools.partial(_shard_documents, dataset, shard, part, text_column) for shard in order]


def _shard_documents(dataset: Any, shard: int, part: str, text_column: str) -> Iterator[Document]:
    where = f"corpus {part}, shard {shard} of {dataset.num_shards}"
    rows = iter(dataset.shard(num_shards=dataset.num_shards, index=shard))
    while True:
        try:
            row = next(rows, None)
        except StudyError:  # SIGTERM's
            raise
        except Exception as error:  # of the hub, the network, or the reader of the format
            raise CorpusError(
                f"{where}: the stream broke off ({hub_reason(error, '')}); run the same command again: it goes on from "
                "what was saved"
            ) from None
        if row is None:
            return
        yield pieces_of(row, columns_of(text_column, row, where), where)
