"""Text that is streamed or mixed, in processes of their own: killed in preparation and training, the network down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chaos import checksum
from tests.corpora import COMMIT, SHARDS, files_of, hub_of_one, write_shards, write_two
from threeml_core.data.prepare import PreparedData, load_prepared

_KILLED = """
import os, signal, sys, yaml
from threeml_core.config import make_config
from threeml_core.data import build, readers
from threeml_core.training.loop import pretrain
from threeml_core.training.trainer import Trainer

def die_behind(owner, name, times):
    done = getattr(owner, name)
    def count(*arguments, **more):
        nonlocal times
        times -= 1
        if times < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done(*arguments, **more)
    setattr(owner, name, count)

build._SAVE_SECONDS, readers.PIECE_CHARACTERS = 0.0, 2000
die_behind(build._Builder, "add", int(sys.argv[2]))
die_behind(Trainer, "update", int(sys.argv[3]))
pretrain(make_config(yaml.safe_load(sys.argv[1])), print)
"""
FOREVER = 10**6


def prepared_in(runs_dir: Path) -> PreparedData:
    """The one prepared text, beside which nothing is left."""
    (folder,) = (path for path in (runs_dir / "data").iterdir() if path.is_dir())
    return load_prepared(folder)


@pytest.mark.parametrize(("kind", "documents"), [("streamed", 195), ("two", 320)])
def test_a_run_killed_in_preparation_and_in_training_goes_on(
    kind: str, documents: int, small: dict, tmp_path: Path
) -> None:
    """Text and weights end equal, bit for bit, to those of an undisturbed run."""
    if kind == "streamed":
        pytest.importorskip("datasets")
        write_shards(tmp_path / "shards")
        given: dict[str, Any] = {**small, "corpus": f"hub:{tmp_path / 'shards'}", "streaming": True, "shard_seed": 1}
    else:
        given = {**small, **write_two(tmp_path)}

    def start(name: str, documents: int, steps: int) -> tuple[int, str]:
        arguments = [yaml.safe_dump({**given, "runs_dir": str(tmp_path / name)}), str(documents), str(steps)]
        command = [sys.executable, "-c", _KILLED, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr[-2000:]
        return done.returncode, done.stdout

    assert start("whole", FOREVER, FOREVER)[0] == 0
    assert start("killed", documents, FOREVER)[0] == -signal.SIGKILL
    status, said = start("killed", FOREVER, 15)
    assert status == -signal.SIGKILL and "the preparation goes on behind" in said and "training a byte" not in said
    status, said = start("killed", FOREVER, FOREVER)
    assert status == 0 and "resumes after step 12" in said and "the preparation goes on" not in said
    assert files_of(prepared_in(tmp_path / "killed")) == files_of(prepared_in(tmp_path / "whole"))
    assert checksum(tmp_path / "killed") == checksum(tmp_path / "whole")


_FROM_HUB = """
import sys, yaml
from unittest import mock
from threeml_core.config import make_config
from threeml_core.data import build, readers
from threeml_core.data.prepare import prepare_data
from threeml_core.foundation.errors import StudyError

build._SAVE_SECONDS, readers.PIECE_CHARACTERS = 0.0, 2000
try:
    with mock.patch("time.sleep"):  # between the tries of the hub's libraries
        prepare_data(make_config(yaml.safe_load(sys.argv[1])), print)
except StudyError as error:
    sys.exit(str(error))
"""


def test_a_stream_from_a_hub_that_goes_down(small: dict, tmp_path: Path) -> None:
    """Over HTTP: no shard is kept, what is not needed is not asked for, and a line when it breaks off; it goes on."""
    pytest.importorskip("datasets")
    write_shards(tmp_path / "shards")
    given = {**small, "corpus": "hub:some/set", "streaming": True, "tokenizer_megabytes": 1}

    def prepare(name: str, **more: Any) -> subprocess.CompletedProcess[str]:
        parameters = yaml.safe_dump({**given, **more, "runs_dir": str(tmp_path / name)})
        others = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        home = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0"}
        command = [sys.executable, "-c", _FROM_HUB, parameters]
        return subprocess.run(command, env={**others, **home}, capture_output=True, text=True, timeout=300)

    with hub_of_one(tmp_path / "shards") as hub:
        done = prepare("whole")
        assert done.returncode == 0, done.stderr[-2000:]
        whole = prepared_in(tmp_path / "whole")
        kept = [path.stat().st_size for path in (tmp_path / "home").rglob("*") if path.is_file()]
        assert sum(kept) < 1000 < min(path.stat().st_size for path in (tmp_path / "shards").iterdir())
        order = list(dict.fromkeys(hub.asked[1:]))  # the first is asked for its columns
        assert len(order) == SHARDS
        tokenizer = str(whole.tokenizer_folder)
        hub.asked.clear()
        assert prepare("few", tokenizer=tokenizer, max_tokens=3200).returncode == 0
        assert order[2] not in hub.asked[1:] and order[3] not in hub.asked[1:]
        assert prepare("pinned", tokenizer=tokenizer, corpus=f"hub:some/set@{COMMIT}").returncode == 0
        hub.broken = {order[2]} if order[2] != hub.asked[0] else {order[3]}
        done = prepare("broken", tokenizer=tokenizer)
        *tries, last = done.stderr.splitlines()
        assert done.returncode == 1 and "Retrying in" in tries[1], "the hub's own client says that it tries again"
        assert all(line.startswith(("HTTP Error 500", "Retrying in")) for line in tries), done.stderr[-2000:]
        assert "the stream broke off" in last and "run the same command again" in last
        hub.broken = set()
        hub.asked.clear()
        done = prepare("broken", tokenizer=tokenizer)
        assert done.returncode == 0 and "the preparation goes on behind" in done.stdout, done.stderr[-2000:]
        assert order[0] not in hub.asked[1:], "what was read is not asked for again"
    broken, pinned = prepared_in(tmp_path / "broken"), prepared_in(tmp_path / "pinned")
    assert broken.data_id == pinned.data_id and {**broken.meta, "corpus": ""} == {**pinned.meta, "corpus": ""}
    assert {**files_of(broken), "meta.json": b""} == {**files_of(pinned), "meta.json": b""}
