"""Preparation that is stopped and goes on, of so many tokens, streamed from the hub, of several corpora in shares."""

from __future__ import annotations

import collections
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tests.corpora import ROWS, SHARDS, document, files_of, write_shards, write_two
from threeml_core.config import make_config
from threeml_core.data import build, hub
from threeml_core.data.corpus import load_corpus
from threeml_core.data.prepare import PreparedData, held_out_documents, prepare_data
from threeml_core.data.sequences import SequenceWriter
from threeml_core.foundation.errors import CorpusError, ParameterError, Preempted, StudyError


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A dataset of parquet shards."""
    pytest.importorskip("datasets")
    return write_shards(tmp_path / "shards")[0].parent


@pytest.fixture
def streamed(shards: Path, small: dict, tmp_path: Path) -> dict[str, Any]:
    return {**small, "corpus": f"hub:{shards}", "streaming": True, "runs_dir": str(tmp_path / "runs")}


@pytest.fixture
def two(tmp_path: Path, small: dict) -> dict[str, Any]:
    return {**small, **write_two(tmp_path), "runs_dir": str(tmp_path / "runs")}


def order_of(data: PreparedData) -> list[str]:
    """Shards in the order in which their documents stand in the training sequences."""
    text = data.tokenizer().decode(data.train[:][:, 1:-1].flatten().tolist())
    return list(dict.fromkeys(re.findall(r"shard\d", text)))


# -- streams --------------------------------------------------------------------------------------------------


def test_a_stream_is_read_in_the_order_of_its_seed(streamed: dict, shards: Path) -> None:
    """All documents, shard after shard; the order and whether it is streamed are part of what the text is."""
    data = {seed: prepare_data(make_config({**streamed, "shard_seed": seed})) for seed in (0, 1)}
    orders = {seed: order_of(data[seed]) for seed in data}
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]) == [f"shard{i}" for i in range(SHARDS)]
    whole = prepare_data(make_config({**streamed, "streaming": False}))
    assert len({whole.data_id, data[0].data_id, data[1].data_id}) == 3
    assert order_of(whole) == [f"shard{i}" for i in range(SHARDS)]
    for other in data.values():
        for side in ("train", "validation"):
            assert {name: other.meta[side][name] for name in build.STATISTICS[:3]} == {
                name: whole.meta[side][name] for name in build.STATISTICS[:3]
            }
        assert other.meta["empty_documents"] == SHARDS * ROWS // 10
    found = collections.Counter("".join(d) for d in load_corpus(f"hub:{shards}", shard_seed=3))
    assert found == collections.Counter("".join(d) for d in load_corpus(f"hub:{shards}"))


def test_a_stream_keeps_nothing_but_the_tokens(streamed: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's cache stays without data, and what is prepared is as long as is asked for."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data = prepare_data(make_config({**streamed, "max_tokens": 4000}))
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.suffix in (".arrow", ".parquet")]
    assert len(data.train) == 4000 // 32 and (data.folder / "train.bin").stat().st_size == 125 * 32 * 2
    assert data.train_counts().sum() == 125 * 32
    read = data.meta["train"]["documents"] + data.meta["validation"]["documents"]
    assert read < ROWS, "no more is read than the first shard"
    with pytest.raises(CorpusError, match="was prepared with streaming=True, asked for False"):
        prepare_data(make_config({**streamed, "corpus": str(data.folder), "max_tokens": 4000, "streaming": False}))
    with pytest.raises(CorpusError, match="was prepared with max_tokens=4000, asked for 2000"):
        prepare_data(make_config({**streamed, "corpus": str(data.folder), "max_tokens": 2000}))


def test_a_changed_shard_is_another_text(streamed: dict, shards: Path) -> None:
    config = make_config(streamed)
    first = prepare_data(config).data_id
    assert prepare_data(config).data_id == first
    table = pyarrow.table({"id": [0], "text": [document("shard0", 999)]})
    pyarrow.parquet.write_table(table, shards / f"train-00000-of-{SHARDS:05}.parquet")
    assert prepare_data(config).data_id != first


def test_a_stream_that_breaks_off_goes_on(
    streamed: dict, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line; the shards that were read before are not opened again, and the files end equal, byte for byte."""
    whole = prepare_data(make_config({**streamed, "runs_dir": str(tmp_path / "whole")}))
    monkeypatch.setattr(build, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr("threeml_core.data.readers.PIECE_CHARACTERS", 2000)
    given = {**streamed, "tokenizer": str(whole.tokenizer_folder)}
    whole = prepare_data(make_config({**given, "runs_dir": str(tmp_path / "whole")}))
    order = [int(name[-1]) for name in order_of(whole)]
    paths = [shards / f"train-{shard:05}-of-{SHARDS:05}.parquet" for shard in order]
    good, stamp = paths[2].read_bytes(), paths[2].stat().st_mtime_ns
    cut = bytearray(good)
    cut[200:1200] = bytes(1000)  # its metadata stands at the end and stays
    paths[2].write_bytes(cut)
    os.utime(paths[2], ns=(stamp, stamp))
    config = make_config(given)
    with pytest.raises(CorpusError, match=r"shard \d of 4: the stream broke off .*goes on from what was saved") as no:
        prepare_data(config)
    assert "\n" not in str(no.value)
    paths[2].write_bytes(good)
    os.utime(paths[2], ns=(stamp, stamp))
    opened = []
    documents = hub._shard_documents

    def watched(dataset: Any, shard: int, *rest: Any) -> Any:
        opened.append(shard)
        return documents(dataset, shard, *rest)

    monkeypatch.setattr(hub, "_shard_documents", watched)
    said: list[str] = []
    assert files_of(prepare_data(config, said.append)) == files_of(whole)
    assert opened == order[-len(opened) :] and len(opened) < SHARDS
    assert any(re.match(r"the preparation goes on behind \d+\.\d M tokens", line) for line in said)


def test_sigterm_is_no_fault_of_the_hub(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error comes wherever the command is, in the libraries too."""

    def stop(*arguments: Any, **options: Any) -> NoReturn:
        raise Preempted("stopped by SIGTERM")

    (first, *_) = hub.stream_shards(f"hub:{shards}", "text", 0)
    monkeypatch.setattr("datasets.IterableDataset.__iter__", stop)
    monkeypatch.setattr("datasets.load_dataset", stop)
    with pytest.raises(Preempted):
        next(first())
    with pytest.raises(Preempted):
        hub.stream_shards(f"hub:{shards}", "text", 0)


@pytest.mark.parametrize("kind", ["streamed", "two"])
def test_a_stopped_preparation_goes_on(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stopped again and again, in the last corpus too; the files end equal, byte for byte."""
    given = request.getfixturevalue(kind) | {"runs_dir": str(tmp_path / "whole")}
    whole = prepare_data(make_config(given))
    config = make_config({**given, "runs_dir": str(tmp_path / "stopped")})
    monkeypatch.setattr(build, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr("threeml_core.data.readers.PIECE_CHARACTERS", 2000)
    total = whole.meta["empty_documents"] + sum(whole.meta[side]["documents"] for side in ("train", "validation"))
    stops, add, said = (50, total - 95, 35), build._Builder.add, []
    for stop in stops:
        left = iter(range(stop))

        def add_or_stop(*arguments: Any, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            add(*arguments)

        monkeypatch.setattr(build._Builder, "add", add_or_stop)
        with pytest.raises(KeyboardInterrupt):
            prepare_data(config, said.append)
    monkeypatch.setattr(build._Builder, "add", add)
    data = prepare_data(config, said.append)
    assert files_of(data) == files_of(whole)
    assert sum("the preparation goes on behind" in line for line in said) == len(stops)
    assert sum("training a" in line for line in said) == 1
    assert [path.name for path in data.folder.parent.iterdir() if path.is_dir()] == [data.folder.name]


def test_a_disk_that_is_full_at_the_very_end_costs_nothing(
    two: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = prepare_data(make_config({**two, "runs_dir": str(tmp_path / "whole")}))
    monkeypatch.setattr(build, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr("threeml_core.data.readers.PIECE_CHARACTERS", 2000)

    def full(*arguments: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(build, "write_json", full)
        with pytest.raises(StudyError, match="the disk is full"):
            prepare_data(make_config(two))
    said: list[str] = []
    assert files_of(prepare_data(make_config(two), said.append)) == files_of(whole)
    assert any("the preparation goes on behind" in line for line in said)


def test_what_was_written_behind_the_saved_place_is_forgotten(small: dict, tmp_path: Path) -> None:
    """Also if nothing of its side follows before the next stop."""
    tokenizer = prepare_data(make_config({**small, "runs_dir": str(tmp_path / "runs")})).tokenizer()

    def builder() -> build._Builder:
        return build._Builder(tmp_path, tokenizer, 32)

    with (first := builder()).opened():
        first.save()
        first.digests["validation"].write(bytes(8))
    for _ in range(2):
        with (again := builder()).opened():
            again.restore()
            again.save()
    assert (tmp_path / "validation.digests").read_bytes() == b""


def test_saved_progress_that_is_of_no_use_counts_for_nothing(streamed: dict, tmp_path: Path) -> None:
    whole = prepare_data(make_config({**streamed, "runs_dir": str(tmp_path / "whole")}))
    for damage in (b"", b"no archive", None):
        runs_dir = tmp_path / f"runs-{damage!r}"
        unfinished = runs_dir / "data" / f".{whole.folder.name}.part"
        unfinished.mkdir(parents=True)
        (unfinished / "train.bin").write_bytes(b"x" * 999)
        if damage is not None:
            (unfinished / build.PROGRESS).write_bytes(damage)
        assert files_of(prepare_data(make_config({**streamed, "runs_dir": str(runs_dir)}))) == files_of(whole)


# -- shares ---------------------------------------------------------------------------------------------------


def names_of_sequences(data: PreparedData) -> list[str]:
    """The one corpus that the words of each training sequence are from."""
    names = []
    for ids in data.train[:]:
        (name,) = set(re.findall("cat|dog", data.tokenizer().decode(ids.tolist())))
        names.append(name)
    return names


def test_shares_are_exact(two: dict) -> None:
    """1001 sequences, 3 to 1: 750.75 and 250.25; the short corpus is read once and its sequences are repeated."""
    said: list[str] = []
    data = prepare_data(make_config(two), said.append)
    names = names_of_sequences(data)
    assert collections.Counter(names) == {"cat": 751, "dog": 250}
    shares = {Path(share["corpus"]).stem: share for share in data.meta["shares"]}
    assert shares["cat"]["read"] == 751 and 0 < (read := shares["dog"]["read"]) < 250
    dog = data.train[:][751:]
    assert (dog[read:] == dog[np.arange(250 - read) % read]).all() and len(np.unique(dog[:read], axis=0)) == read
    assert data.train_counts().sum() == 1001 * 32
    assert any(re.search(rf"dog.txt: 250 training sequences, its text {250 / read:.1f} times over", s) for s in said)
    assert any(re.search(r"cat.txt: 751 training sequences$", s) for s in said)
    words = data.tokenizer().decode(data.validation[:].flatten().tolist())
    assert {"cat", "dog"} == set(re.findall("cat|dog", words)), "documents of both are held out"
    assert {text.split()[0] for text in held_out_documents(make_config(two))} == {"cat", "dog"}


def test_weights_are_part_of_what_the_text_is(two: dict) -> None:
    ids = [prepare_data(make_config(two)).data_id]
    ids.append(prepare_data(make_config({**two, "corpus": two["corpus"].replace("=0.75", "=0.750")})).data_id)
    assert ids[0] == ids[1]
    other = two["corpus"].replace("0.75", "0.5").replace("0.25", "0.5")
    ids += [prepare_data(make_config({**two, "corpus": other})).data_id]
    ids += [prepare_data(make_config({**two, "max_tokens": 1002 * 32})).data_id]
    assert len(set(ids)) == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_tokens": None}, "weights are shares of max_tokens, which is not set"),
        ({"max_tokens": 32}, "its weight of 0.25 is no sequence of 32 tokens in max_tokens=32; raise one"),
        ({"validation_corpus": "a=0.5,b=0.5"}, "weights are for corpus alone"),
        ({"corpus": "bundled=0.7,x=0.2"}, "weights 0.7 . 0.2: expected numbers above 0 whose sum is 1"),
        ({"corpus": "bundled=0.7,/no/such/file=0.3"}, "corpus /no/such/file: no such file or folder"),
    ],
)
def test_bad_shares(given: dict, message: str, two: dict, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=message):
        prepare_data(make_config({**two, **given}))
    folders = (tmp_path / "runs" / "data").glob("*")
    assert not [path for path in folders if path.is_dir()], "before anything is written"


def test_a_corpus_that_gives_no_sequence(two: dict, tmp_path: Path) -> None:
    (tmp_path / "dog.txt").write_text("A dog.\n")
    with pytest.raises(CorpusError, match="dog.txt: its training text is shorter than a sequence of 32 tokens"):
        prepare_data(make_config(two))


# -- so many tokens -------------------------------------------------------------------------------------------


def test_max_tokens(small: dict, tmp_path: Path) -> None:
    """The first sequences of the whole text; None leaves the identity of older text as it was."""
    given = {**small, "runs_dir": str(tmp_path)}
    whole = prepare_data(make_config(given))
    assert not {"max_tokens", "streaming", "shard_seed"} & whole.meta["identity"].keys()
    some = prepare_data(make_config({**given, "max_tokens": 50 * 32 + 31}))
    assert len(some.train) == 50 and (some.train[:] == whole.train[:50]).all()
    assert len(prepare_data(make_config({**given, "max_tokens": 10**9})).train) == len(whole.train)
    held = tmp_path / "held.txt"
    held.write_text("\n".join(document("held", i) for i in range(300)))
    both = prepare_data(make_config({**given, "max_tokens": 640, "validation_corpus": str(held)}))
    assert len(both.train) == len(both.validation) == 20
    with pytest.raises(ParameterError, match="max_tokens=31: expected at least a sequence, sequence_length=32"):
        make_config({**given, "max_tokens": 31})


def test_parameters_of_streams_without_a_stream(small: dict, tmp_path: Path) -> None:
    """They are named, and do not make another text of it."""
    said: list[str] = []
    whole = prepare_data(make_config({**small, "runs_dir": str(tmp_path)}))
    given = {**small, "runs_dir": str(tmp_path), "streaming": True, "shard_seed": 3}
    assert prepare_data(make_config(given), said.append).data_id == whole.data_id
    assert [line.split()[0] for line in said if "is not used" in line] == ["streaming", "shard_seed"]


def test_a_writer_goes_on(tmp_path: Path) -> None:
    """What is written after a state counts for nothing once it is restored, the limit is part of it."""
    arguments = (6, 0, 2, [0, 2], 100)
    rng = np.random.default_rng(0)
    first, lost, second = ([*rng.integers(3, 100, size)] for size in (30, 50, 90))
    with SequenceWriter(tmp_path / "whole", *arguments) as writer:
        writer.start(12)
        writer.add(first, True)
        writer.add(second, True)
        assert writer.is_full
        expected = writer.counts
    with SequenceWriter(tmp_path / "again", *arguments) as writer:
        writer.start(12)
        writer.add(first, True)
        state = {name: value.copy() for name, value in writer.state().items()}
        writer.add(lost, True)
    with SequenceWriter(tmp_path / "again", *arguments) as writer:
        writer.restore(state)
        writer.add(second, True)
        assert writer.is_full and (writer.counts == expected).all()
    assert (tmp_path / "again").read_bytes() == (tmp_path / "whole").read_bytes()
