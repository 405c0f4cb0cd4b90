"""Readers of corpora: formats, separators, pieces, bad files."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
from fractions import Fraction
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from threeml_core.data.corpus import corpus_parts, corpus_weights, load_corpus
from threeml_core.data.readers import PIECE_CHARACTERS
from threeml_core.foundation.errors import CorpusError

TEXTS = ["First document.\nIts second line.\n", "Zweites Dokument, mit Umlaut: ä.\n", "Third.\n"]


def read(corpus: str | Path, **settings) -> list[str]:
    return ["".join(document) for document in load_corpus(str(corpus), **settings)]


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
        ("list.jsonl", b'{"text": ["a"]}\n', "column 'text' holds list instead of text"),
        ("bad.jsonl", b'{"text": "a"}\n{"text": \n', "line 2: not JSON"),
        ("column.jsonl", b'{"body": "a"}\n', "line 1: no column 'text' .there is: body."),
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


ROWS = [
    {"title": "One", "text": "First.", "n": 1},
    {"title": None, "text": "Second.", "n": 2},
    {"title": "Three", "text": None, "n": 3},
    {"title": None, "text": None, "n": 4},
    {"title": "", "text": "Fifth.", "n": 5},
]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "hub", "stream"])
def test_null_is_no_text_and_columns_are_joined(kind: str, tmp_path: Path) -> None:
    """A null is left out wherever the rows are, never the word None; a row of nulls is a document without text."""
    settings: dict = {}
    path = tmp_path / ("train.jsonl" if kind == "jsonl" else "train.parquet")
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    corpus = str(path)
    if kind in ("hub", "stream"):
        pytest.importorskip("datasets")
        corpus, settings = f"hub:{tmp_path}", {"shard_seed": 0} if kind == "stream" else {}
    assert read(corpus, **settings) == ["First.", "Second.", "", "", "Fifth."]
    assert read(corpus, text_column="title, text", **settings) == ["One\nFirst.", "Second.", "Three", "", "Fifth."]
    assert read(corpus, text_column="text,title", **settings)[0] == "First.\nOne"
    with pytest.raises(CorpusError, match="no column 'body', 'lead' .there is: title, text, n.; set text_column") as no:
        read(corpus, text_column="body,title,lead", **settings)
    assert "\n" not in str(no.value)
    with pytest.raises(CorpusError, match="column 'n' holds int instead of text"):
        read(corpus, text_column="n", **settings)


def test_a_column_with_a_comma_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"title,text": "whole", "title": "a", "text": "b"}\n')
    assert read(tmp_path / "a.jsonl", text_column="title,text") == ["whole"]


def test_weights_and_paths_that_look_like_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there under the whole name is a path, whatever is in it."""
    assert corpus_weights("/a, hub:b:c") == {} and corpus_parts("/a, hub:b:c") == ["/a", "hub:b:c"]
    weights = corpus_weights("/a=0.7, hub:b:c=3e-1")
    assert weights == {"/a": Fraction(7, 10), "hub:b:c": Fraction(3, 10)}
    monkeypatch.chdir(tmp_path)
    for name in ("x=0.5", "a,b", "y=0.7,z=0.3"):
        Path(name).mkdir()
        Path(name, "text.txt").write_text(f"{name}\n")
        assert corpus_parts(name) == [name] and not corpus_weights(name) and read(name) == [f"{name}\n"]
    assert corpus_weights("x=0.5=0.25,z=0.75") == {"x=0.5": Fraction(1, 4), "z": Fraction(3, 4)}


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        ("a=0.7,b=0.4", r"weights 0.7 \+ 0.4: expected numbers above 0 whose sum is 1"),
        ("a=1.5,b=-0.5", r"weights 1.5 \+ -0.5: expected numbers above 0 whose sum is 1"),
        ("a=1,b=0", r"weights 1 \+ 0: expected numbers above 0"),
        ("a=0.7,b", "b has no weight; give each corpus one"),
        ("a=0,7", "7 has no weight"),
        ("a=0.5,a=0.5", "a stands there twice"),
        ("a=nan,b=1", "a=nan has no weight"),
    ],
)
def test_bad_weights(corpus: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        corpus_weights(corpus)
