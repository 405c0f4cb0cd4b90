"""Shared fixtures: a small corpus of real sentences made here, a config of seconds, temporary run folders."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from threeml_core.config import StudyConfig, make_config
from threeml_core.foundation.files import PROJECT_ROOT

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

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
        "max_steps": 20,
        "batch_size": 8,
        "eval_steps": 10,
        "logging_steps": 5,
        "save_steps": 6,
        "max_eval_blocks": 16,
    }


@pytest.fixture
def config(small: dict[str, object]) -> StudyConfig:
    """The same, resolved."""
    return make_config(small)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The founders' folder of real data, which users do not have."""
    if not (SHARED / "data").is_dir():
        pytest.skip("../shared/data is not here")
    return SHARED / "data"
