"""Shared fixtures: a corpus made here, a config of seconds, run folders, tasks, encoders."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.glue_files import write_glue
from threeml_core.config import StudyConfig, make_config
from threeml_core.foundation.files import PROJECT_ROOT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # files run side by side, and numbers do not depend on who runs them

SHARED = PROJECT_ROOT.parent / "shared"


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 documents of a small grammar: enough structure to learn from, no text of others."""
    rng = random.Random(0)
    nouns, verbs = ["cat", "dog", "bird", "fish", "horse"], ["sees", "hears", "follows", "likes"]
    places = ["garden", "house", "river", "forest"]
    path = tmp_path_factory.mktemp("corpus") / "grammar.txt"
    documents = [
        "\n".join(
            f"The {rng.choice(nouns)} {rng.choice(verbs)} the {rng.choice(nouns)} in the {rng.choice(places)}."
            for _ in range(rng.randint(3, 12))
        )
        for _ in range(300)
    ]
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder shared by a session, so that data is prepared once."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def small(corpus_file: Path, runs_dir: Path) -> dict[str, object]:
    """Parameters of a run that takes about a second."""
    return {
        "corpus": str(corpus_file),
        "runs_dir": str(runs_dir),
        "vocab_size": 300,
        "sequence_length": 32,
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "decoder_num_hidden_layers": 2,
        "decoder_hidden_size": 16,
        "decoder_num_attention_heads": 1,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": 34,
        "initialization": "scaled",
        "layer_norm": "pre",
        "learning_rate": 4e-3,
        "validation_fraction": 0.1,
        "bf16": False,
        "max_steps": 20,
        "batch_size": 8,
        "eval_steps": 10,
        "logging_steps": 5,
        "save_steps": 6,
        "max_eval_sequences": 16,
    }


@pytest.fixture
def config(small: dict[str, object]) -> StudyConfig:
    """The same, resolved."""
    return make_config(small)


@pytest.fixture
def own_runs(small: dict[str, object], runs_dir: Path, tmp_path: Path) -> dict[str, object]:
    """The small parameters with a run folder of its own (the prepared data is linked in)."""
    from threeml_core.data.prepare import prepare_data

    prepare_data(make_config(small))
    os.symlink(runs_dir / "data", tmp_path / "data")
    return {**small, "runs_dir": str(tmp_path)}


@pytest.fixture(scope="session")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All eight tasks, with labels that can be read off a word."""
    return write_glue(tmp_path_factory.mktemp("glue") / "glue_data")


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer for the texts of `glue`."""
    from threeml_core.data.tokenizer import train_tokenizer

    text = "The cat dog bird sees the house again and again. said no went away " * 20
    return train_tokenizer([text], 300, 64)


@pytest.fixture(scope="session")
def encoders(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> dict[str, Path]:
    """Untrained encoders of four families, as folders."""
    import torch
    import transformers

    size = {
        "vocab_size": len(tokenizer),
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.1,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
    }
    roberta = {**size, "max_position_embeddings": 66, "type_vocab_size": 1}
    modern = {name: value for name, value in size.items() if not name.endswith("dropout_prob")}
    modern |= {"max_position_embeddings": 64, "local_attention": 16, "cls_token_id": 0, "sep_token_id": 2}
    torch.manual_seed(0)
    models = {
        "post": transformers.RobertaModel(transformers.RobertaConfig(**roberta)),
        "pre": transformers.RobertaPreLayerNormModel(transformers.RobertaPreLayerNormConfig(**roberta)),
        "bert": transformers.BertModel(transformers.BertConfig(**size, max_position_embeddings=64)),
        "modern": transformers.ModernBertModel(transformers.ModernBertConfig(**modern)),
    }
    folders = {}
    for name, model in models.items():
        folders[name] = tmp_path_factory.mktemp("encoders") / name
        model.save_pretrained(folders[name])
        tokenizer.save_pretrained(folders[name])
    return folders


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """What code of others would leave; it must not be there in the end."""
    path = tmp_path / "marker"
    yield path
    assert not path.exists()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The founders' folder of real data, which users do not have."""
    if not (SHARED / "data").is_dir():
        pytest.skip("../shared/data is not here")
    return SHARED / "data"
