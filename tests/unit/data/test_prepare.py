"""Prepared text: the cache, what was read, what is refused, a prepared folder given as corpus."""

from __future__ import annotations

import json
import resource
import shutil
import signal
from pathlib import Path

import pytest

from threeml_core.config import make_config
from threeml_core.data.corpus import load_corpus
from threeml_core.data.folders import HIDDEN
from threeml_core.data.prepare import held_out, load_prepared, prepare_data
from threeml_core.data.readers import PIECE_CHARACTERS
from threeml_core.data.sequences import TokenSequences
from threeml_core.data.tokenizer import train_tokenizer
from threeml_core.foundation.errors import CorpusError, DamagedFileError, StudyError


def read(corpus: str | Path, **settings) -> list[str]:
    return ["".join(document) for document in load_corpus(str(corpus), **settings)]


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

    def numbers(blocks: TokenSequences) -> set[str]:
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


# -- the founders' corpus -------------------------------------------------------------------------------------


def test_real_sample(shared_data: Path, small: dict) -> None:
    data = prepare_data(
        make_config({**small, "corpus": str(shared_data / "corpus" / "sample.txt.gz"), "vocab_size": 2000})
    )
    assert data.meta["train"]["documents"] + data.meta["validation"]["documents"] == 607
    assert data.meta["train"]["words"] + data.meta["validation"]["words"] == 1_866_573
