"""Corpora, tokenizer, packing, cache: what a user's text becomes, and what bad text gets."""

from __future__ import annotations

import bz2
import gzip
import http.server
import io
import json
import lzma
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.utils import close_session
from transformers import PreTrainedTokenizerFast

from threeml_core.config import make_config
from threeml_core.data.bundled import bundled_articles, clean_line
from threeml_core.data.corpus import PIECE_CHARACTERS, corpus_files, load_corpus
from threeml_core.data.folders import HIDDEN, TWICE
from threeml_core.data.hub import hub_or_cache
from threeml_core.data.prepare import held_out, load_prepared, prepare_data
from threeml_core.data.sequences import BlockWriter, TokenBlocks, batch_indices, epoch_order, token_dtype
from threeml_core.data.tokenizer import Encoder, train_tokenizer
from threeml_core.foundation.errors import CorpusError, DamagedFileError, StudyError

TEXTS = ["First document.\nIts second line.\n", "Zweites Dokument, mit Umlaut: ä.\n", "Third.\n"]


def read(corpus: str | Path, **settings) -> list[str]:
    return ["".join(document) for document in load_corpus(str(corpus), **settings)]


# -- formats --------------------------------------------------------------------------------------------------


def compress(data: bytes, suffix: str) -> bytes:
    if suffix == ".zst":
        zstandard = pytest.importorskip("zstandard")
        return zstandard.ZstdCompressor().compress(data)
    return {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}[suffix](data)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".bz2", ".zst"])
@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".parquet"])
def test_every_format_gives_the_same_documents(kind: str, suffix: str, tmp_path: Path) -> None:
    if kind == ".txt":
        data = "\n\n".join(text.strip("\n") for text in TEXTS).encode()
    elif kind == ".jsonl":
        data = "\n".join(json.dumps({"text": text}) for text in TEXTS).encode()
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        buffer = io.BytesIO()
        parquet.write_table(pyarrow.table({"text": TEXTS, "other": [1, 2, 3]}), buffer)
        data = buffer.getvalue()
    path = tmp_path / f"corpus{kind}{suffix}"
    path.write_bytes(compress(data, suffix))
    assert [text.strip() for text in read(path)] == [text.strip() for text in TEXTS]


def test_zst_cut_at_any_byte(tmp_path: Path) -> None:
    """A cut file is refused, which zstandard's own reader takes for a whole one; several frames are one text."""
    path = tmp_path / "a.txt.zst"
    first, second = (
        compress(f"{word}\n".encode() * 50 + random.Random(0).randbytes(40).hex().encode(), ".zst") for word in "ab"
    )
    path.write_bytes(first + second)
    (whole,) = read(path)
    assert whole.count("a\n") >= 50 and whole.count("b\n") >= 50
    for size in {*range(1, len(first + second))} - {len(first)}:
        path.write_bytes((first + second)[:size])
        with pytest.raises(CorpusError, match="a.txt.zst is damaged or truncated after line"):
            read(path)


def test_separators(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n\none\ntwo\n\n\n\nthree\n")
    assert read(path) == ["one\ntwo\n", "three\n"]
    assert read(path, separator="line") == ["one\n", "two\n", "three\n"]
    assert read(path, separator="file") == ["\n\none\ntwo\n\n\n\nthree\n"]


def test_folders_and_several_corpora_are_joined_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "b.txt").write_text("b\n")
    (folder / "a.txt").write_text("a\n")
    (folder / "sub" / "c.jsonl").write_text('{"text": "c"}\n')
    (folder / "README.md").write_text("not a corpus")
    (tmp_path / "d.txt").write_text("d\n")
    joined = read(f"{folder}, {tmp_path / 'd.txt'}")
    assert [text.strip() for text in joined] == ["a", "b", "c", "d"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """60 documents, and all that lies about in such folders."""
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    for i in range(60):
        text = f"Document {i} says {i * 7919}, and goes on for a while about the cat, the dog and the garden.\n" * 3
        (folder / ("more" if i % 2 else "") / f"{i:02}.txt").write_text(text)
    for copies in (folder / ".ipynb_checkpoints", folder / "more" / ".ipynb_checkpoints"):
        shutil.copytree(folder / "more", copies)
    (folder / "._00.txt").write_text("a Macintosh's own\n")
    (folder / "README.md").write_text("no text to train on\n")
    (folder / "notes.tar.gz").write_bytes(b"")
    (folder / "LICENSE").write_text("none\n")
    return folder


def test_what_is_passed_over_in_a_folder(folder: Path) -> None:
    files, passed_over = corpus_files(str(folder))
    assert len(files) == len(read(folder)) == 60
    assert passed_over == {HIDDEN: 1 + 30 + 30, ".md": 1, ".tar.gz": 1, "without extension": 1}
    hidden_itself = folder / ".ipynb_checkpoints"
    assert len(read(hidden_itself)) == 30, "a hidden folder that is given is read"
    assert len(read(hidden_itself / "01.txt")) == 1


def test_a_folder_of_hidden_texts_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (folder / "00.txt").rename(tmp_path / "hidden" / ".00.txt")
    with pytest.raises(CorpusError, match="file .* in this folder; there is: 1 below a name with a dot in front"):
        read(tmp_path / "hidden")


def test_links_are_followed_and_nothing_is_read_twice(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "deep" / "linked.txt").write_text("Linked.\n")
    (elsewhere / "back").symlink_to(folder)
    (folder / "a-link").symlink_to(elsewhere)
    (folder / "more" / "loop").symlink_to(folder)
    (folder / "upwards").symlink_to(tmp_path)
    (folder / "again").symlink_to(folder / "more")
    (folder / "0.txt").symlink_to(folder / "00.txt")
    (folder / "hard.txt").hardlink_to(folder / "02.txt")
    files, passed_over = corpus_files(str(folder))
    texts = read(folder)
    assert len(files) == len(texts) == 61 and len(set(texts)) == 61
    assert sum("Linked" in text for text in texts) == 1
    assert folder / "00.txt" in files and folder / "0.txt" not in files, "a text has its own name"
    assert folder / "more" / "01.txt" in files
    assert passed_over[TWICE] == 6


def test_a_text_that_is_a_link_to_nothing(folder: Path) -> None:
    (folder / "gone.md").symlink_to("/no/such/file")
    assert len(read(folder)) == 60
    (folder / "gone.txt").symlink_to("/no/such/file")
    with pytest.raises(CorpusError, match="gone.txt leads to no file: remove it"):
        read(folder)


def test_a_file_in_two_corpora(folder: Path, small: dict, tmp_path: Path) -> None:
    twice = f"{folder},{folder / 'more' / '01.txt'}"
    with pytest.raises(CorpusError, match="01.txt would be read twice, as part of .*texts and of .*01.txt; give it"):
        prepare_data(make_config({**small, "corpus": twice, "runs_dir": str(tmp_path / "runs")}))


def test_a_reader_may_skip_documents(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\nmore\n\ntwo\nmore\n")
    assert [next(document) for document in load_corpus(str(path))][1].startswith("two")


def test_long_documents_come_in_pieces_and_lose_nothing(tmp_path: Path) -> None:
    text = "word " * (PIECE_CHARACTERS // 2)
    path = tmp_path / "long.txt"
    path.write_text(text)
    (document,) = [list(document) for document in load_corpus(str(path))]
    assert len(document) > 2 and "".join(document) == text and max(map(len, document)) <= PIECE_CHARACTERS


def test_hub_goes_through_datasets(tmp_path: Path) -> None:
    """A local folder is a dataset to `datasets` too, so the path can be tested without a network."""
    pytest.importorskip("datasets")
    (tmp_path / "train.jsonl").write_text("\n".join(json.dumps({"content": text}) for text in TEXTS))
    assert read(f"hub:{tmp_path}", text_column="content") == TEXTS
    with pytest.raises(CorpusError, match="no column 'text' .there is: content."):
        read(f"hub:{tmp_path}")


_NO_HUB = """
import contextlib, os, sys, time
from unittest import mock
import datasets
from huggingface_hub import constants
from transformers import AutoConfig, AutoModel, AutoTokenizer  # else they are imported at first use
from threeml_core.config import make_config
from threeml_core.data.corpus import load_corpus
from threeml_core.data.tokenizer import load_tokenizer
from threeml_core.glue.readers import load_task
from threeml_core.glue.encoders import open_encoder
from threeml_core.foundation.errors import StudyError
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
        "from threeml_core.data.corpus import load_corpus; "
        "from threeml_core.data.tokenizer import load_tokenizer; print(len(load_tokenizer('some/words')), "
        "[''.join(document) for document in load_corpus('hub:some/set')])"
    )
    environment = _hub("http://127.0.0.1:9", tmp_path)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == f"300 {TEXTS}\n", done.stderr[-2000:]


def test_a_hub_that_answers_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it says."""

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        close_session()
        with hub_or_cache("some/name") as offline:
            assert offline == "" and not constants.HF_HUB_OFFLINE
        server.shutdown()
    with hub_or_cache("some/name") as offline:
        assert "cannot be reached" in offline and constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE
    with hub_or_cache(Path(__file__).parent) as offline:
        assert offline == "" and not constants.HF_HUB_OFFLINE, "for a folder nothing is asked"


def test_no_network_for_the_hub() -> None:
    pytest.importorskip("datasets")
    with pytest.raises(CorpusError, match="corpus hub:no-such/dataset: the hub did not give it.*local file") as caught:
        read("hub:no-such/dataset")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", "is empty"),
        ("binary.txt", b"abc\n\0\1\2\n", "looks binary"),
        ("latin.txt", "gut\nschön\n".encode("latin1"), "not valid UTF-8 after line"),
        ("bom.txt", "gut\nschön\n".encode("utf-16"), "looks like UTF-16: convert it with `iconv -f utf-16 -t utf-8`"),
        ("little.txt", "gut\nschön\n".encode("utf-16-le"), "looks like UTF-16: .*-f utf-16le"),
        (
            "big.jsonl.gz",
            gzip.compress('{"text": "a"}\n'.encode("utf-16-be"), mtime=0),
            "looks like UTF-16: .*-f utf-16be",
        ),
        ("cut.txt.gz", gzip.compress(b"x" * 100_000, mtime=0)[:-20], "damaged or truncated"),
        ("cut.txt.xz", lzma.compress(b"some text\n" * 5000)[:-40], "damaged or truncated"),
        ("not.txt.gz", b"this is no gzip", "damaged or truncated"),
        ("flipped.txt.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + b"\xff" * 60, "damaged or truncated"),
        ("cut.parquet.gz", gzip.compress(b"PAR1" * 9000, mtime=0)[:-30], "not a readable parquet"),
        ("null.jsonl", b'{"text": null}\n', "column 'text' holds NoneType instead of text"),
        ("bad.jsonl", b'{"text": "a"}\n{"text": \n', "line 2: not JSON"),
        ("column.jsonl", b'{"body": "a"}\n', "no text in column 'text' .there is: body."),
        ("bad.parquet", b"PAR1 but not really", "not a readable parquet"),
        ("story.doc", b"text", "unknown format"),
    ],
)
def test_bad_files(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=message) as caught:
        read(path)
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_half_a_character_does_not_stop_a_run(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a \\ud800 b"}\n')
    assert read(tmp_path / "a.jsonl") == ["a ? b"]


def test_missing_corpora(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no such file or folder"):
        read(tmp_path / "nowhere")
    with pytest.raises(CorpusError, match="no .txt, .jsonl or .parquet"):
        read(tmp_path)
    with pytest.raises(CorpusError, match="corpus is empty"):
        read(" , ")


# -- the bundled text -----------------------------------------------------------------------------------------


def test_bundled_text_is_clean_prose() -> None:
    pytest.importorskip("gensim")
    articles = dict(bundled_articles())
    assert len(articles) > 95 and "Albedo" in articles and "Abraham Lincoln" in articles
    text = "\n".join(articles.values())
    assert len(text.split()) > 380_000
    for mark in ("'''", "''", "[[", "]]", "{{", "}}", "<ref", "File:", "|", "==", "&nbsp;"):
        assert mark not in text, mark


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "  '''Autism''' is a ''developmental'' disorder , seen early in life. ",
            "Autism is a developmental disorder, seen early in life.",
        ),
        (
            "Aristotle (; , 384-322 BC) was a philosopher born in Stagira.",
            "Aristotle (384-322 BC) was a philosopher born in Stagira.",
        ),
        ("* a list item that is quite long, but it is a list item.", ""),
        ("File:Kabylie.jpg|The range in snow, seen from the north side.", ""),
        ("A caption without a full stop that is more than forty long", ""),
        ("Short.", ""),
    ],
)
def test_clean_line(line: str, expected: str) -> None:
    assert clean_line(line) == expected


# -- tokenizer ------------------------------------------------------------------------------------------------


def test_tokenizer_is_robertas_kind(corpus_file: Path) -> None:
    text = corpus_file.read_text().splitlines()
    tokenizer = train_tokenizer(text, 300)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert tokenizer.convert_tokens_to_ids(special) == [0, 1, 2, 3, 4] and len(tokenizer) == 300
    strange = "The cat, naïvely: 猫 \t\n<x> & 12"
    assert tokenizer.decode(tokenizer(strange, add_special_tokens=False).input_ids) == strange
    ids = tokenizer("The cat.").input_ids
    assert ids[0] == 0 and ids[-1] == 2
    assert tokenizer("a", "b").input_ids.count(2) == 3
    assert train_tokenizer(text, 300).get_vocab() == tokenizer.get_vocab()


def test_vocabulary_too_small() -> None:
    with pytest.raises(CorpusError, match="vocab_size=200: a byte-level tokenizer needs at least 261"):
        train_tokenizer(["text"], 200)


def test_tokenizer_without_mask(small: dict, tmp_path: Path, corpus_file: Path) -> None:
    tokenizer = train_tokenizer(corpus_file.read_text().splitlines(), 300)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    with pytest.raises(CorpusError, match="has no mask_token"):
        prepare_data(make_config({**small, "tokenizer": str(tmp_path / "tokenizer")}))


def test_tokenizer_settings_are_part_of_the_data(small: dict, tmp_path: Path, corpus_file: Path) -> None:
    tokenizer = train_tokenizer(corpus_file.read_text().splitlines(), 300)
    tokenizer.save_pretrained(tmp_path / "t")
    config = make_config({**small, "tokenizer": str(tmp_path / "t")})
    first = prepare_data(config)
    tokenizer.sep_token = "<unk>"
    tokenizer.save_pretrained(tmp_path / "t")
    assert prepare_data(config).data_id != first.data_id


def test_unknown_tokenizer(small: dict) -> None:
    with pytest.raises(CorpusError, match="tokenizer no-such/tokenizer: cannot be loaded") as caught:
        prepare_data(make_config({**small, "tokenizer": "no-such/tokenizer"}))
    assert "\n" not in str(caught.value)


# -- packing --------------------------------------------------------------------------------------------------


def test_blocks_hold_the_stream(tmp_path: Path) -> None:
    """<s>, n-2 tokens, </s>; documents end with </s>; nothing is lost but the incomplete last block."""
    documents = [list(range(10, 10 + k)) for k in (5, 1, 13, 2, 40)]
    with BlockWriter(tmp_path / "b.bin", 8, 0, 2, [0, 1, 2], 100) as writer:
        for ids in documents:
            writer.add(ids[:3], False)
            writer.add(ids[3:], True)
    blocks = TokenBlocks(tmp_path / "b.bin", 8, writer.n_blocks, "uint16", writer.max_special_tokens)
    content = blocks[:]
    stream = [token for ids in documents for token in [*ids, 2]]
    assert (content[:, 0] == 0).all() and (content[:, -1] == 2).all()
    assert content[:, 1:-1].flatten().tolist() == stream[: 6 * len(blocks)]
    assert len(stream) - 6 * len(blocks) < 6
    assert torch.equal(torch.bincount(content.flatten(), minlength=100), torch.from_numpy(writer.counts))
    assert writer.max_special_tokens == int((content < 3).sum(1).max())


def test_integer_type_of_the_vocabulary() -> None:
    assert token_dtype(65536) == np.uint16 and token_dtype(65537) == np.uint32
    with pytest.raises(CorpusError, match="at most 2"):
        token_dtype(2**32 + 1)


def test_prepared_data(small: dict, corpus_file: Path) -> None:
    data = prepare_data(make_config(small))
    meta = data.meta
    assert meta["train"]["documents"] + meta["validation"]["documents"] == 300
    assert meta["train"]["words"] + meta["validation"]["words"] == len(corpus_file.read_text().split())
    tokenizer = data.tokenizer()
    text = corpus_file.read_text()
    for blocks in (data.train, data.validation):
        for piece in tokenizer.decode(blocks[0:1][0, 1:-1].tolist()).split("</s>"):
            assert piece in text
    first = {"".join(document).strip() for document in load_corpus(str(corpus_file))}
    held = [document for document in first if held_out(document, 0.1)]
    assert meta["validation"]["documents"] >= len(held) > 0
    assert data.train_counts().sum() == len(data.train) * 32


def test_validation_text_is_not_in_training(small: dict, tmp_path: Path) -> None:
    """Equal documents, even twice in a corpus, fall on the same side."""
    path = tmp_path / "twice.txt"
    documents = [f"Document number {i} says {i * 7919}.\nIt has a second line." for i in range(200)]
    path.write_text("\n\n".join(documents + documents))
    data = prepare_data(make_config({**small, "corpus": str(path), "validation_fraction": 0.2}))
    tokenizer = data.tokenizer()

    def numbers(blocks: TokenBlocks) -> set[str]:
        whole = tokenizer.decode(blocks[:][:, 1:-1].flatten().tolist())
        return {part.split(" says")[0].split()[-1] for part in whole.split("Document")[2:-1] if " says" in part}

    assert numbers(data.train).isdisjoint(numbers(data.validation)) and numbers(data.validation)


def test_cache_is_used_and_follows_content(small: dict, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(f"Some text, number {i}.\nAnd more text, of which there is a lot." for i in range(200)))
    config = make_config({**small, "corpus": str(path)})
    first = prepare_data(config)
    stamp = (first.folder / "meta.json").stat().st_mtime_ns
    assert prepare_data(config).folder == first.folder
    assert (first.folder / "meta.json").stat().st_mtime_ns == stamp
    copy = tmp_path / "elsewhere" / "text.txt"
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    assert prepare_data(make_config({**small, "corpus": str(copy)})).data_id == first.data_id
    assert prepare_data(config.replace(mask_rate=0.5)).data_id == first.data_id
    assert prepare_data(config.replace(sequence_length=16)).data_id != first.data_id
    path.write_text(path.read_text() + "\n\nOne more document.")
    assert prepare_data(config).data_id != first.data_id


def test_prepared_folder_as_corpus(small: dict) -> None:
    data = prepare_data(make_config(small))
    again = prepare_data(make_config({**small, "corpus": str(data.folder)}))
    assert again.data_id == data.data_id
    with pytest.raises(CorpusError, match="was prepared with sequence_length=32, asked for 16"):
        prepare_data(make_config({**small, "corpus": str(data.folder), "sequence_length": 16}))


def test_what_was_read_is_said(small: dict, folder: Path, tmp_path: Path) -> None:
    """When it is prepared, and when it is there already; it is kept beside the blocks."""
    (folder / "rows.jsonl").write_text('{"text": "Row."}\n{"text": " "}\n\n{"text": "Row."}\n')
    config = make_config({**small, "corpus": str(folder), "runs_dir": str(tmp_path / "runs")})
    said: list[list[str]] = [[], [], []]
    data = prepare_data(config, said[0].append)
    prepare_data(config, said[1].append)
    prepare_data(config.replace(corpus=str(data.folder)), said[2].append)
    train, validation = data.meta["train"], data.meta["validation"]
    assert data.meta["read"]["corpus"]["files"] == 61 and data.meta["read"]["validation_corpus"] is None
    assert train["documents"] + validation["documents"] == 62 and data.meta["empty_documents"] == 1
    assert train["repeated"] == 1 and validation["also_in_training"] == 0
    for lines in said:
        text = "\n".join(lines)
        assert f"corpus: 61 files read; passed over: {data.meta['read']['corpus']['passed_over'][HIDDEN]} below" in text
        assert "1 .md" in text and "passed over: 1 document without text" in text
        assert f"text: {train['documents']} + {validation['documents']} documents, {train['words']:,} + " in text
        assert f"{train['blocks']} + {validation['blocks']} sequences of 32 tokens" in text
        assert f"1 of {train['documents']} training documents are copies of others" in text
        assert "warning" not in text


def test_validation_documents_that_are_in_training_too(small: dict, folder: Path, tmp_path: Path) -> None:
    """They are counted and warned of, however their lines are broken, and in whatever format they are."""
    held = tmp_path / "held.jsonl"
    shared = [(folder / f"{i:02}.txt").read_text().replace("\n", " ") for i in (0, 2, 4)]
    held.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*shared, "Another one. " * 40]))
    config = make_config({**small, "corpus": str(folder), "validation_corpus": str(held)} | {"runs_dir": str(tmp_path)})
    for _ in range(2):
        said: list[str] = []
        data = prepare_data(config, said.append)
        (warning,) = (line for line in said if line.startswith("warning"))
        assert "3 of 4 validation documents are training documents too" in warning
        assert data.meta["validation"]["also_in_training"] == 3
        assert data.meta["read"]["validation_corpus"] == {"files": 1, "hub_datasets": 0, "passed_over": {}}


def test_blank_text_longer_than_a_piece_loses_nothing(tmp_path: Path, small: dict) -> None:
    path = tmp_path / "a.jsonl"
    texts = [" " * PIECE_CHARACTERS + "The cat sees the dog. " * 60, "The dog sees the cat. " * 60]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    held = tmp_path / "held.txt"
    held.write_text("The bird sees the fish. " * 60)
    given = {"corpus": str(path), "validation_corpus": str(held), "runs_dir": str(tmp_path / "runs")}
    assert prepare_data(make_config({**small, **given})).meta["train"]["documents"] == 2


def test_text_prepared_by_an_earlier_version_can_be_used(small: dict, tmp_path: Path) -> None:
    """It says that it does not know what was read."""
    data = prepare_data(make_config({**small, "runs_dir": str(tmp_path)}))
    meta = {name: value for name, value in data.meta.items() if name not in ("read", "empty_documents")}
    del meta["train"]["repeated"], meta["validation"]["also_in_training"]
    (data.folder / "meta.json").write_text(json.dumps(meta))
    said: list[str] = []
    prepare_data(make_config({**small, "runs_dir": str(tmp_path)}), said.append)
    assert "an earlier version, which did not note what files it read" in said[0] and len(said) == 2


def test_notes_that_are_no_notes(small: dict, tmp_path: Path) -> None:
    data = prepare_data(make_config({**small, "runs_dir": str(tmp_path)}))
    for read in ([], 3, "no", {"corpus": 1}, {"corpus": {}}):
        (data.folder / "meta.json").write_text(json.dumps({**data.meta, "read": read}))
        with pytest.raises(DamagedFileError, match="meta.json cannot be read"):
            load_prepared(data.folder)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"vocab_size": 400}, "was prepared with vocab_size=300, asked for 400: leave vocab_size out or prepare"),
        ({"validation_fraction": 0.2}, "with validation_fraction=0.1, asked for 0.2"),
        ({"document_separator": "line"}, "with document_separator='blank-line', asked for 'line'"),
        ({"text_column": "body"}, "with text_column='text', asked for 'body'"),
        ({"tokenizer": "roberta-base"}, "with tokenizer='train', asked for 'roberta-base'"),
        ({"tokenizer_megabytes": 7}, "with tokenizer_megabytes=200, asked for 7"),
        ({"validation_corpus": "bundled"}, "was prepared without it, asked for 'bundled': leave validation_corpus out"),
    ],
)
def test_a_prepared_folder_and_other_settings(given: dict, message: str, small: dict) -> None:
    data = prepare_data(make_config(small))
    names = ("vocab_size", "validation_fraction")
    bare = {name: value for name, value in small.items() if name not in names} | {"corpus": str(data.folder)}
    assert prepare_data(make_config(bare)).data_id == data.data_id, "what is not given does not matter"
    same = {name: data.meta["identity"].get(name) for name in given}
    assert prepare_data(make_config({**bare, **same})).data_id == data.data_id
    with pytest.raises(CorpusError, match=message):
        prepare_data(make_config({**bare, **given}))


def test_a_vocabulary_that_the_text_does_not_fill(small: dict, tmp_path: Path) -> None:
    """It is said; the folder can be given with the number asked for, with that of its tokens, and to a benchmark."""
    given = {**small, "vocab_size": 5000, "runs_dir": str(tmp_path)}
    said: list[str] = []
    data = prepare_data(make_config(given), said.append)
    assert any(line.startswith(f"vocabulary: {data.vocab_size} tokens, as the text gives no more") for line in said)
    given["corpus"] = str(data.folder)
    for size in (5000, data.vocab_size):
        assert prepare_data(make_config({**given, "vocab_size": size})).data_id == data.data_id
    assert prepare_data(make_config({**given, "vocab_size": 9000}), any_vocabulary=True).data_id == data.data_id


def test_a_prepared_folder_and_the_same_things_by_other_names(small: dict, tmp_path: Path, corpus_file: Path) -> None:
    tokenizer, held = tmp_path / "tokenizer", tmp_path / "held.txt"
    train_tokenizer(corpus_file.read_text().splitlines(), 300).save_pretrained(tokenizer)
    shutil.copy(corpus_file, held)
    small |= {"tokenizer": str(tokenizer), "validation_corpus": str(held), "runs_dir": str(tmp_path / "runs")}
    del small["validation_fraction"]
    data = prepare_data(make_config(small))
    shutil.copytree(tokenizer, tmp_path / "elsewhere")
    (tmp_path / "other").mkdir()
    shutil.copy(held, tmp_path / "other" / "held.txt")
    names = {"tokenizer": str(tmp_path / "elsewhere"), "validation_corpus": str(tmp_path / "other" / "held.txt")}
    prepared = {**small, "corpus": str(data.folder)}
    assert prepare_data(make_config({**prepared, **names})).data_id == data.data_id
    held.write_text(held.read_text() + "\n\nMore.\n")
    changed = {**prepared, **names, "validation_corpus": "bundled"}
    with pytest.raises(CorpusError, match="was prepared with validation_corpus='.*held.txt', asked for 'bundled'"):
        prepare_data(make_config(changed))
    with pytest.raises(CorpusError, match="was prepared with tokenizer='.*', asked for 'train'"):
        prepare_data(make_config({**prepared, "tokenizer": "train"}))


def test_a_prepared_folder_beside_the_caller(small: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As any corpus it is looked for in the caller's folder first."""
    data = prepare_data(make_config(small))
    shutil.copytree(data.folder, tmp_path / "blocks")
    monkeypatch.chdir(tmp_path)
    assert prepare_data(make_config({**small, "corpus": "blocks"})).data_id == data.data_id


def test_parameters_without_effect_are_named(small: dict, tmp_path: Path, corpus_file: Path) -> None:
    train_tokenizer(corpus_file.read_text().splitlines(), 300).save_pretrained(tmp_path / "words")
    shutil.copy(corpus_file, tmp_path / "held.txt")
    others = {"tokenizer": str(tmp_path / "words"), "validation_corpus": str(tmp_path / "held.txt")}
    for given, count in ({**small, **others, "vocab_size": 400, "tokenizer_megabytes": 1}, 3), (small, 0):
        said: list[str] = []
        prepare_data(make_config({**given, "runs_dir": str(tmp_path / "runs")}), said.append)
        named = [line for line in said if "is not used" in line]
        assert len(named) == count
    assert not any("is not used" in line for line in said)


def test_a_prepared_folder_is_no_text(small: dict, corpus_file: Path, tmp_path: Path) -> None:
    folder = prepare_data(make_config(small)).folder
    (folder.parent / "x.txt").write_text("text\n")
    for given in ({"corpus": f"{corpus_file},{folder}"}, {"validation_corpus": str(folder)}):
        with pytest.raises(CorpusError, match="a prepared folder stands alone as corpus"):
            prepare_data(make_config({**small, **given}))


def test_a_folder_of_texts_with_a_meta_json_of_its_own(small: dict, folder: Path, tmp_path: Path) -> None:
    (folder / "meta.json").write_text("{}")
    data = prepare_data(make_config({**small, "corpus": str(folder), "runs_dir": str(tmp_path / "runs")}))
    assert data.meta["read"]["corpus"]["files"] == 60


def test_damaged_cache(small: dict, tmp_path: Path) -> None:
    data = prepare_data(make_config({**small, "runs_dir": str(tmp_path)}))
    with (data.folder / "train.bin").open("r+b") as handle:
        handle.truncate(1000)
    with pytest.raises(DamagedFileError, match="train.bin has 1000 bytes instead of .*remove the folder"):
        prepare_data(make_config({**small, "runs_dir": str(tmp_path)}))
    (data.folder / "meta.json").write_text("{")
    with pytest.raises(DamagedFileError, match="meta.json cannot be read"):
        load_prepared(data.folder)


def test_token_ids_beyond_the_vocabulary(small: dict, tmp_path: Path) -> None:
    """They would end in an IndexError at the embedding."""
    data = prepare_data(make_config({**small, "runs_dir": str(tmp_path)}))
    blocks = np.fromfile(data.folder / "train.bin", "uint16").reshape(-1, 32)
    blocks[3, 5] = data.vocab_size
    blocks.tofile(data.folder / "train.bin")
    train = load_prepared(data.folder).train
    assert train[np.array([2, 4])].shape == (2, 32) and len(train[np.array([], int)]) == 0
    with pytest.raises(DamagedFileError, match="train.bin holds the token id 300, but the vocabulary has 300 tokens"):
        train[np.array([2, 3])]


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("One short document.", {}, "validation set is empty|train text is shorter"),
        ("a b c d e f g h i j k l m n o p\n\n" * 30, {"validation_fraction": 0.0}, "the validation set is empty"),
        ("\n\n \n", {}, "validation set is empty|no text in it"),
        ("\n\n".join(f"Text {i}." for i in range(400)), {"validation_fraction": 0.002}, "validation"),
    ],
)
def test_too_little_text(text: str, settings: dict, message: str, small: dict, tmp_path: Path) -> None:
    path = tmp_path / "few.txt"
    path.write_text(text)
    config = make_config({**small, "corpus": str(path), "runs_dir": str(tmp_path / "runs"), **settings})
    with pytest.raises(CorpusError, match=message):
        prepare_data(config)
    left = [p for p in (tmp_path / "runs" / "data").iterdir() if p.is_dir()]
    assert not left, "a refused corpus leaves no folder behind"


def test_memory_is_bounded(tmp_path: Path, small: dict) -> None:
    """Eight times the text takes hardly more memory."""
    program = (
        "import re, sys, yaml; from threeml_core.config import make_config; "
        "from threeml_core.data.prepare import prepare_data; prepare_data(make_config(yaml.safe_load(sys.argv[1]))); "
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024)"
    )
    peaks = []
    for megabytes in (10, 80):
        path = tmp_path / f"{megabytes}.txt"
        document = "The text of this document goes on and on. " * 25
        path.write_text("\n\n".join(f"{document}{i}" for i in range(megabytes * 1000)))
        settings = {**small, "corpus": str(path), "runs_dir": str(tmp_path / "runs"), "tokenizer_megabytes": 1}
        done = subprocess.run(
            [sys.executable, "-c", program, json.dumps(settings)], capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout))
    assert peaks[1] < peaks[0] + 40, f"peak memory in MiB: {peaks}"


def test_disk_full_leaves_nothing(small: dict, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(StudyError, match="the disk is full or a file size limit is reached"):
            prepare_data(make_config({**small, "runs_dir": str(tmp_path)}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p for p in (tmp_path / "data").iterdir() if p.is_dir()] == []


# -- order ----------------------------------------------------------------------------------------------------


def test_epochs_visit_every_block_once() -> None:
    seen = np.concatenate([batch_indices(10, 4, step, seed=3) for step in range(10)])
    assert all(sorted(seen[i : i + 10]) == list(range(10)) for i in range(0, 40, 10))
    assert not np.array_equal(seen[:10], seen[10:20])
    assert np.array_equal(seen[:10], epoch_order(10, 3, 0))
    assert np.array_equal(batch_indices(10, 25, 0, 3), np.concatenate([epoch_order(10, 3, e) for e in range(3)])[:25])


# -- the founders' corpus -------------------------------------------------------------------------------------


def test_real_sample(shared_data: Path, small: dict) -> None:
    data = prepare_data(
        make_config({**small, "corpus": str(shared_data / "corpus" / "sample.txt.gz"), "vocab_size": 2000})
    )
    assert data.meta["train"]["documents"] + data.meta["validation"]["documents"] == 607
    assert data.meta["train"]["words"] + data.meta["validation"]["words"] == 1_866_573


def test_words_looked_up_are_the_tokenizers_own(corpus_file: Path) -> None:
    """Every kind of character between letters, digits, blanks and line ends; all 1.1 M of them agree (checked once)."""
    tokenizer = train_tokenizer(corpus_file.read_text(encoding="utf-8").splitlines(), 300)
    encoder, backend = Encoder(tokenizer), tokenizer.backend_tokenizer
    points = [c for c in [*range(0x3100), *range(0x3100, 0x110000, 211)] if not 0xD800 <= c <= 0xDFFF]
    characters = [chr(c) for c in points]
    texts = [
        "".join(f"a{c}b {c}1 {c}{c} \n{c}  {c}'s" for c in characters[i : i + 500]) for i in range(0, len(points), 500)
    ]
    texts += ["", " ", "  \n\n ", "we'll I'M don't", corpus_file.read_text(encoding="utf-8")]
    expected = [e.ids for e in backend.encode_batch(texts, add_special_tokens=False)]
    for again in range(2):  # from the tokenizer, then from memory
        for text, found, ids in zip(texts, encoder(texts), expected, strict=True):
            assert found.tolist() == ids, (again, text[:40])


def test_text_with_a_special_token_written_out_goes_to_the_tokenizer(corpus_file: Path) -> None:
    tokenizer = train_tokenizer(corpus_file.read_text(encoding="utf-8").splitlines(), 300)
    text = "the cat <mask> sees </s>the dog"
    (found,) = Encoder(tokenizer)([text])
    assert found.tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.mask_token_id in found.tolist()


def test_more_words_than_are_kept(corpus_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threeml_core.data.tokenizer._MOST_WORDS", 20)
    tokenizer = train_tokenizer(corpus_file.read_text(encoding="utf-8").splitlines(), 300)
    encoder = Encoder(tokenizer)
    texts = [f"word{i} the cat x{i}y" for i in range(40)]
    for part in (texts[:3], texts[3:], texts):
        expected = tokenizer(part, add_special_tokens=False)["input_ids"]
        assert [ids.tolist() for ids in encoder(part)] == expected


def test_another_kind_of_tokenizer_is_asked_itself() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"the": 0, "cat": 1, "?": 2}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    encoder = Encoder(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?"))
    assert [ids.tolist() for ids in encoder(["the cat", "cat dog the"])] == [[0, 1], [1, 2, 0]]
