"""A hub that cannot be reached, in processes of their own: one line in seconds, or what the cache holds."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from threeml_core.data.tokenizer import train_tokenizer

TEXTS = ["First document.\nIts second line.\n", "Zweites Dokument, mit Umlaut: ä.\n", "Third.\n"]


_NO_HUB = """
import contextlib, os, sys, time
from unittest import mock
import datasets
from huggingface_hub import constants
from transformers import AutoConfig, AutoModel, AutoTokenizer  # else they are imported at first use
from threeml_core.config import make_config
from threeml_core.data.corpus import load_corpus
from threeml_core.data.tokenizer import load_tokenizer
from threeml_core.foundation.errors import StudyError
from threeml_core.training.encoders import open_encoder
from threeml_core.glue.readers import load_task
from threeml_core.glue.tasks import GLUE_TASKS

def wait(seconds):
    raise AssertionError("it waits to try again")

with mock.patch("time.sleep", wait):
    for ask in (
        lambda: next(load_corpus("hub:no-such/dataset")),
        lambda: load_task(GLUE_TASKS["rte"], make_config({"glue": "hub"})),
        lambda: load_tokenizer("no-such/tokenizer"),
        lambda: open_encoder("no-such/encoder"),
    )[: int(sys.argv[1])]:
        started = time.monotonic()
        try:
            ask()
        except StudyError as error:
            print(f"{time.monotonic() - started:.1f} {error}")
assert not constants.HF_HUB_OFFLINE and not datasets.config.HF_HUB_OFFLINE, "afterwards the hub is asked again"
"""


def _hub(endpoint: str, home: Path) -> dict[str, str]:
    """The environment of a process with this hub and an empty cache."""
    others = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return {**others, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint, "HF_HOME": str(home)}


@pytest.mark.parametrize(
    ("endpoint", "count"), [("http://127.0.0.1:9", 4), ("http://no-such-host.invalid", 4), ("silent", 1)]
)
def test_a_hub_that_cannot_be_reached(endpoint: str, count: int, tmp_path: Path) -> None:
    """One line each for a corpus, tasks, a tokenizer and an encoder, without the half minute of trying again."""
    pytest.importorskip("datasets")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        if endpoint == "silent":
            endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-c", _NO_HUB, str(count)],
            env=_hub(endpoint, tmp_path),
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["corpus", "glue='hub':", "tokenizer", "checkpoint"][:count]
    for line in lines:
        assert endpoint in line and "nothing that fits in its cache" in line
        assert float(line.split()[0]) < 5


def test_what_the_cache_holds_is_used_without_the_hub(tmp_path: Path, corpus_file: Path) -> None:
    datasets = pytest.importorskip("datasets")
    texts = tmp_path / "set"
    texts.mkdir()
    (texts / "train.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    made = datasets.load_dataset(str(texts), split="train", cache_dir=str(tmp_path / "cache"))
    kept = tmp_path / "datasets" / "some___set" / "default" / "0.0.0" / ("0" * 40)
    shutil.copytree(Path(made.cache_files[0]["filename"]).parent, kept)
    model = tmp_path / "hub" / "models--some--words"
    snapshot = model / "snapshots" / ("0" * 40)
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(snapshot.name)
    train_tokenizer(corpus_file.read_text().splitlines(), 300).save_pretrained(snapshot)
    (snapshot / "config.json").write_text('{"model_type": "roberta"}')
    program = (
        "from threeml_core.data.corpus import load_corpus; from threeml_core.data.tokenizer import load_tokenizer; "
        "print(len(load_tokenizer('some/words')), "
        "[''.join(document) for document in load_corpus('hub:some/set')])"
    )
    environment = _hub("http://127.0.0.1:9", tmp_path)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == f"300 {TEXTS}\n", done.stderr[-2000:]
