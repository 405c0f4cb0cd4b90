"""Bad input and faults, as data: what is done, what comes out, what is kept, which test shows it.

A row of `BAD_INPUTS` is run by `tests/integration/test_faults.py`; a row of `FAULTS` names the test that has it.
After a new row `python -m tests.faults` renews the table of docs/reliability.md.
"""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import json
import lzma
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from threeml_core.foundation.files import PROJECT_ROOT

DOCUMENT = PROJECT_ROOT / "docs" / "reliability.md"
START, END = "<!-- faults: start -->", "<!-- faults: end -->"

Parameters = dict[str, object]
Prepare = Callable[[Path], Parameters | list[str]]

NEW: Parameters = {"seed": 7}
PLAN: Parameters = {"plan_only": True}


@dataclasses.dataclass(frozen=True)
class BadInput:
    """What a user gives to a command by mistake; it is refused before anything is trained or measured.

    Attributes:
        id: of the test.
        done: what was given, in a few words.
        given: parameters; or a function that prepares files in the test's folder and returns parameters or arguments.
            In that folder lie `text.txt`, `glue_data/`, and `runs/` with prepared text and one finished run.
        says: a part of the one line that has to come out.
        command: stage of `threeml`.
    """

    id: str
    done: str
    given: Parameters | Prepare
    says: str
    command: str = "pretrain"


@dataclasses.dataclass(frozen=True)
class Fault:
    """What goes wrong while something runs, or was damaged in between.

    Attributes:
        done: what was done to it.
        outcome: what comes out.
        kept: what is not lost.
        test: pytest's node id.
    """

    done: str
    outcome: str
    kept: str
    test: str


# -- how files are prepared -----------------------------------------------------------------------------------


def run_of(folder: Path) -> Path:
    """The finished pre-training run."""
    (run,) = (folder / "runs" / "pretrain").iterdir()
    return run


def prepared_of(folder: Path) -> Path:
    """The prepared text."""
    (data,) = (path for path in (folder / "runs" / "data").iterdir() if path.is_dir())
    return data


def hidden_corpus(folder: Path) -> Parameters:
    (folder / "texts" / ".ipynb_checkpoints").mkdir(parents=True)
    shutil.copy(folder / "text.txt", folder / "texts" / ".ipynb_checkpoints")
    return {"corpus": folder / "texts"}


def linked_corpus(folder: Path) -> Parameters:
    (folder / "texts").mkdir()
    shutil.copy(folder / "text.txt", folder / "texts" / "a.txt")
    (folder / "texts" / "b.txt").symlink_to("/no/such/file")
    return {"corpus": folder / "texts"}


def corpus(name: str, content: bytes | str, **more: object) -> Prepare:
    """A corpus of one file."""

    def prepare(folder: Path) -> Parameters:
        path = folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return {"corpus": path, **more}

    return prepare


ROW = "1\tdog\t_\tNOUN\t_\t_\t0\troot\t_\t_\n"


def treebank(content: bytes | str, **more: object) -> Prepare:
    """An encoder to be probed on a good training file and this test file."""

    def prepare(folder: Path) -> Parameters:
        (folder / "ud").mkdir()
        (folder / "ud" / "a-train.conllu").write_text(ROW)
        (folder / "ud" / "a-test.conllu").write_bytes(content.encode() if isinstance(content, str) else content)
        return {"encoders": run_of(folder) / "encoder", "ud": folder / "ud", "probe_tasks": "upos", **more}

    return prepare


def parquet_corpus(columns: dict[str, list[Any]]) -> Prepare:
    def prepare(folder: Path) -> Parameters:
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / "text.parquet")
        return {"corpus": folder / "text.parquet"}

    return prepare


def unreadable_corpus(folder: Path) -> Parameters:
    path = folder / "secret.txt"
    path.write_text("secret\n")
    return {"corpus": locked(path)}


def locked(path: Path) -> Path:
    """Take all permissions of a file or folder away."""
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    return path


def locked_folder(name: str, copied: str = "") -> Prepare:
    """A folder that may not be entered, with a copy of what lies at `copied` in it, given as the parameter `name`."""

    def prepare(folder: Path) -> Parameters:
        (folder / "locked").mkdir()
        if copied:
            shutil.copytree(folder / copied, folder / "locked" / Path(copied).name)
        return {name: locked(folder / "locked")}

    return prepare


def locked_below(folder: Path) -> Parameters:
    (folder / "texts" / "more").mkdir(parents=True)
    shutil.copy(folder / "text.txt", folder / "texts")
    locked(folder / "texts" / "more")
    return {"corpus": folder / "texts"}


def locked_task(folder: Path) -> Parameters:
    locked(folder / "glue_data" / "CoLA")
    return {}


def empty_folder(name: str) -> Prepare:
    """A folder without files, given as the parameter `name`."""

    def prepare(folder: Path) -> Parameters:
        (folder / "empty").mkdir()
        return {name: folder / "empty"}

    return prepare


def prepared_corpus(change: Callable[[Path], object], **more: object) -> Prepare:
    """The prepared folder as a corpus, after a change."""

    def prepare(folder: Path) -> Parameters:
        data = prepared_of(folder)
        change(data)
        return {"corpus": data, **more}

    return prepare


def tokenizer(change: Callable[[Path], object]) -> Prepare:
    """A copy of the run's tokenizer, after a change."""

    def prepare(folder: Path) -> Parameters:
        copy = folder / "tokenizer"
        shutil.copytree(run_of(folder) / "encoder", copy)
        for name in ("config.json", "model.safetensors"):
            (copy / name).unlink()
        change(copy)
        return {"tokenizer": copy}

    return prepare


def run(change: Callable[[Path], object], **given: object) -> Prepare:
    """The finished run, after a change."""

    def prepare(folder: Path) -> Parameters:
        change(run_of(folder))
        return given

    return prepare


def encoder(change: Callable[[Path], object], **given: object) -> Prepare:
    """A copy of the run's encoder as the checkpoint, after a change."""

    def prepare(folder: Path) -> Parameters:
        copy = folder / "encoder"
        shutil.copytree(run_of(folder) / "encoder", copy)
        change(copy)
        return {"checkpoint": copy, **given}

    return prepare


def glue(file: str, content: bytes | str | None, **given: object) -> Prepare:
    """The downstream tasks with other content in one file; None: without the file."""

    def prepare(folder: Path) -> Parameters:
        path = folder / "glue_data" / file
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return {"tasks": Path(file).parent.name, "from_mnli": False, **given}

    return prepare


def damaged_parquet_task(folder: Path) -> Parameters:
    (folder / "tasks" / "cola").mkdir(parents=True)
    (folder / "tasks" / "cola" / "train.parquet").write_bytes(b"PAR1 no")
    return {"glue": folder / "tasks"}


def no_mnli(folder: Path) -> Parameters:
    shutil.rmtree(folder / "glue_data" / "MNLI")
    return {"tasks": "rte"}


def parameters_file(content: bytes | str) -> Prepare:
    """A file given with `-f`."""

    def prepare(folder: Path) -> list[str]:
        path = folder / "parameters.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return ["-f", str(path)]

    return prepare


def cut(path: Path, share: float = 0.5) -> None:
    """Leave the first part of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def zstd(text: str) -> bytes:
    """One frame."""
    return pyarrow.compress(text.encode(), "zstd", asbytes=True)


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def edit_json(path: Path, **values: object) -> None:
    """Change values of a JSON file; None removes one."""
    content = {**json.loads(path.read_text(encoding="utf-8")), **values}
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def unfinished_and_damaged(run: Path) -> None:
    """The run before it ended, with a line of its metrics broken."""
    (run / "record.json").unlink()
    (run / "metrics.jsonl").write_text("{\n{}\n")


def start(change: Callable[[Path], object], **given: object) -> Prepare:
    """The same as what a pre-training goes on from."""

    def prepare(folder: Path) -> Parameters:
        values = encoder(change)(folder)
        path = Path(str(values["checkpoint"]))
        vocabulary = json.loads((run_of(folder) / "encoder" / "config.json").read_text())["vocab_size"]
        return {"init_encoder": path, "vocab_size": vocabulary, **given}

    return prepare


def pickled(encoder: Path) -> None:
    """Weights as PyTorch's pickle, which can run code when it is loaded."""
    (encoder / "model.safetensors").rename(encoder / "pytorch_model.bin")


def foreign_ids(data: Path) -> None:
    """Blocks of the right size whose token ids are beyond any vocabulary."""
    path = data / "validation.bin"
    path.write_bytes(b"\xff" * path.stat().st_size)


def fewer_counts(data: Path) -> None:
    np.save(data / "train_counts.npy", np.load(data / "train_counts.npy")[:-1])


def without(key: str) -> Callable[[Path], None]:
    """Prepared text whose meta.json lacks a value."""
    return lambda data: edit_json(data / "meta.json", **{key: None})


def another_text(folder: Path) -> Parameters:
    (folder / "text.txt").write_text(SENTENCES)
    return {}


SENTENCES = "\n\n".join(f"The cat number {i} sees the dog in the garden of the house." for i in range(200))

# -- bad input ------------------------------------------------------------------------------------------------

BAD_INPUTS = [
    # names and types
    BadInput("misspelt", "a misspelt parameter", {"mask_ratee": 0.5}, "did you mean 'mask_rate'?"),
    BadInput("unknown", "a parameter that does not exist", {"xyzzy": 1}, "unknown parameter 'xyzzy': known parameters"),
    BadInput("preset", "a misspelt preset", {"preset": "tinny"}, "unknown preset 'tinny': did you mean 'tiny'?"),
    BadInput(
        "word-for-number", "a word where a number is expected", {"mask_rate": "half"}, "expected a number such as 0.4"
    ),
    BadInput(
        "broken-number",
        "a fraction where a whole number is expected",
        {"max_steps": 1.5},
        "max_steps='1.5': expected a whole number such as",
    ),
    BadInput("comma", "a number with a comma", {"mask_rate": "0,5"}, "expected a number such as 0.4; write 0.5"),
    BadInput("percent-sign", "a number with a percent sign", {"mask_rate": "40%"}, "such as 0.4; write 0.4"),
    BadInput("true-number", "true where a number is expected", {"mask_rate": "true"}, "expected a number such as 0.4"),
    BadInput(
        "not-bool", "neither true nor false", {"keep_states": "maybe"}, "keep_states='maybe': expected True or False"
    ),
    BadInput("nan", "a learning rate that is not a number", {"learning_rate": "nan"}, "expected a finite number"),
    BadInput("infinite", "an infinite learning rate", {"learning_rate": "1e999"}, "expected a finite number"),
    BadInput(
        "full-layers",
        "NarrowBERT with more full layers than layers",
        {"architecture": "sparse_queries", "full_layers": 99},
        "full_layers=99: expected at most num_hidden_layers=",
    ),
    BadInput(
        "parts-of-modern",
        "token dropping with ModernBERT's layers",
        {"architecture": "token_dropping", "encoder": "modernbert"},
        "runs parts of RoBERTa's layers; take encoder=roberta",
    ),
    BadInput(
        "kept-share",
        "token dropping that would have to drop [MASK]s",
        {"architecture": "token_dropping", "kept_share": 0.2},
        "which always stay: raise it to at least",
    ),
    BadInput("choice", "an architecture that does not exist", {"architecture": "selff"}, "one of vanilla, self, cross"),
    # ranges
    BadInput("percent", "a mask rate in percent", {"mask_rate": 40}, "expected a fraction above 0 and below 1"),
    BadInput("rate-zero", "a mask rate of 0", {"mask_rate": 0}, "mask_rate=0.0: expected a fraction"),
    BadInput(
        "rate-small", "a mask rate that masks no token", {"mask_rate": 0.001}, "masks no token in a sequence of 32"
    ),
    BadInput("rate-large", "a mask rate that leaves no token", {"mask_rate": 0.99}, "2 are special tokens and stay"),
    BadInput(
        "schedule",
        "a mask-rate schedule that does not exist",
        {"mask_rate_schedule": "linaer"},
        "mask_rate_schedule='linaer': expected one of constant, linear, cosine, steps",
    ),
    BadInput(
        "schedule-small",
        "a schedule that ends without a masked token",
        {"mask_rate_schedule": "linear", "mask_rate_end": 0.001},
        "mask_rate_end=0.001 masks no token in a sequence of 32",
    ),
    BadInput(
        "schedule-large",
        "a schedule that leaves no token",
        {"mask_rate_schedule": "steps", "mask_rate_end": 0.99},
        "mask_rate_end=0.99 corrupts 32 of 32 tokens",
    ),
    BadInput("learning-rate", "a negative learning rate", {"learning_rate": -1e-3}, "expected more than 0"),
    BadInput("dropout", "a dropout of 1", {"hidden_dropout_prob": 1}, "expected 0 or more and below 1"),
    BadInput("seed", "a negative seed", {"seed": -1}, "seed=-1: expected 0 to 2^32 - 1"),
    BadInput("no-updates", "no steps", {"max_steps": 0}, "max_steps=0: expected at least 1"),
    BadInput("block", "sequences of 2 tokens", {"sequence_length": 2}, "sequence_length=2: expected at least 4 tokens"),
    BadInput("bytes", "a vocabulary smaller than the bytes", {"vocab_size": 200}, "needs at least 261"),
    # combinations
    BadInput("split-sum", "a mask split of 110%", {"mask_split": "80-10-20"}, "percentages that sum to 100"),
    BadInput("split-two", "a mask split of two numbers", {"mask_split": "80-20"}, "expected masked-replaced-unchanged"),
    BadInput("split-no-mask", "a mask split without [MASK]", {"mask_split": "0-50-50"}, "masks nothing"),
    BadInput(
        "heads", "heads that do not divide the width", {"num_attention_heads": 3}, "does not divide hidden_size=32"
    ),
    BadInput(
        "decoder-heads",
        "decoder heads that do not divide its width",
        {"decoder_num_attention_heads": 3},
        "does not divide decoder_hidden_size=16",
    ),
    BadInput(
        "micro-batch",
        "a micro batch that does not divide the batch",
        {"micro_batch_size": 3},
        "micro_batch_size=3 does not divide batch_size=8",
    ),
    BadInput(
        "positions",
        "sequences longer than the position table",
        {"max_position_embeddings": 16},
        "expected at least sequence_length + 2 = 34",
    ),
    BadInput("device", "a GPU that is not there", {"device": "cuda:99"}, "device='cuda:99': not available here"),
    BadInput("device-name", "a device that does not exist", {"device": "gpu"}, "device='gpu': not available here"),
    BadInput("device-meta", "torch's device without memory", {"device": "meta"}, "device='meta': not available here"),
    BadInput("device-cpu", "a CPU with a number", {"device": "cpu:99999"}, "device='cpu:99999': not available here"),
    BadInput("device-none", "an empty device", {"device": ""}, "device='' is empty: give a value, or leave device out"),
    BadInput("huge-number", "a number of 400 digits", {"max_steps": "1" * 400}, "expected a whole number"),
    BadInput("huge-model", "a width of 2^40", {"hidden_size": 2**40, "seed": 1}, "there is no memory for a model of"),
    BadInput("huge-grid", "a number of 400 digits in a list", {"study_depths": "1" * 400}, "whole numbers such as"),
    # the command line
    BadInput(
        "no-value", "-p with a name alone", lambda folder: ["-p", "mask_rate"], "expected 2 arguments; parameters"
    ),
    BadInput("option", "a parameter as an option", lambda folder: ["--mask_rate", "0.5"], "such as -p mask_rate 0.5"),
    BadInput(
        "bare", "a parameter without -p", lambda folder: ["mask_rate=0.5"], "unrecognized arguments: mask_rate=0.5"
    ),
    BadInput("plan", "plan_only for a run without a record", NEW | PLAN, "has no record of stage pretrain with"),
    BadInput("no-plan", "the same for a fine-tuning", NEW | PLAN, "has no record of fine-tuning of", "finetune"),
    BadInput("no-plan-mi", "the same for an analysis", NEW | PLAN, "has no record of stage", "information"),
    BadInput("no-plan-speed", "the same for a benchmark", NEW | PLAN, "has no record of stage benchmark", "benchmark"),
    BadInput("sizes", "a list of sizes that is none", {"study_sizes": "4"}, "expected layers x width of encoders"),
    BadInput("size-heads", "a size that no heads fill", {"study_sizes": "1x17"}, "expected multiples of", "study"),
    # parameters in a file
    BadInput(
        "yaml-broken", "a parameters file with an open bracket", parameters_file("a: [\n"), "cannot read parameters"
    ),
    BadInput("yaml-list", "a parameters file that is a list", parameters_file("- 1\n"), "expected lines 'name: value'"),
    BadInput(
        "yaml-python",
        "a parameters file with a Python object that would run a command",
        parameters_file("corpus: !!python/object/apply:os.system ['touch harm']\n"),
        "could not determine a constructor for the tag",
    ),
    BadInput("yaml-bytes", "a parameters file in Latin-1", parameters_file(b"corpus: caf\xe9\n"), "can't decode byte"),
    BadInput(
        "yaml-unknown",
        "an unknown name in a parameters file",
        parameters_file("mask_rat: 0.5\n"),
        "unknown parameter 'mask_rat'",
    ),
    BadInput(
        "yaml-nested",
        "a mapping as a value in a parameters file",
        parameters_file("seed: {a: 1}\n"),
        "seed={'a': 1}: expected a whole number",
    ),
    BadInput("yaml-date", "no date in a parameters file", parameters_file("seed: 2020-13-45\n"), "month must be in"),
    BadInput("yaml-int", "no number tagged as one", parameters_file("seed: !!int abc\n"), "invalid literal for int()"),
    BadInput("yaml-stamp", "no date tagged as one", parameters_file("seed: !!timestamp x\n"), "cannot read parameters"),
    BadInput(
        "yaml-digits",
        "a number of 5,000 digits in a parameters file",
        parameters_file(f"seed: {'1' * 5000}\n"),
        "Exceeds the limit",
    ),
    BadInput(
        "yaml-hex",
        "a number of 5,000 hexadecimal digits in a parameters file",
        parameters_file(f"seed: 0x{'1' * 5000}\n"),
        "seed: a number beyond 9,007,199,254,740,992",
    ),
    BadInput(
        "yaml-large",
        "a number of 400 digits for a fraction in a parameters file",
        parameters_file(f"mask_rate: {'1' * 400}\n"),
        "mask_rate: a number beyond 9,007,199,254,740,992",
    ),
    BadInput(
        "yaml-deep", "5,000 open brackets in a parameters file", parameters_file("a: " + "[" * 5000), "recursion depth"
    ),
    BadInput(
        "yaml-twice",
        "a name twice in a parameters file",
        parameters_file("seed: 1\nmax_steps: 3\nseed: 2\n"),
        "'seed' stands there twice, in lines 1 and 3; keep one",
    ),
    BadInput(
        "yaml-octal",
        "a number with a zero in front in a parameters file, which YAML reads in base 8",
        parameters_file("seed: 010\n"),
        "010 is a number of base 8 or 60 in YAML",
    ),
    BadInput(
        "yaml-utf16",
        "a parameters file in UTF-16",
        parameters_file("seed: 1\n".encode("utf-16")),
        "looks like UTF-16: convert it with `iconv -f utf-16 -t utf-8`",
    ),
    BadInput("yaml-zero", "a parameters file of one 0", parameters_file("0\n"), "one for each parameter"),
    BadInput("yaml-absent", "a parameters file that is not there", lambda folder: ["-f", "no.yaml"], "No such file"),
    # the corpus
    BadInput("corpus-absent", "a corpus that is not there", {"corpus": "/no/such.txt"}, "no such file or folder"),
    BadInput("corpus-none", "a comma and no corpus", {"corpus": " , "}, "corpus is empty"),
    BadInput(
        "corpus-folder", "a folder without text as corpus", empty_folder("corpus"), "no .txt, .jsonl or .parquet file"
    ),
    BadInput(
        "corpus-format", "a word processor's file as corpus", corpus("text.doc", "text"), "unknown format 'text.doc'"
    ),
    BadInput("corpus-empty", "an empty file as corpus", corpus("a.txt", b""), "is empty: remove it or fill it"),
    BadInput("corpus-blank", "a corpus of blank lines", corpus("a.txt", "\n \n\n"), "no text in it"),
    BadInput(
        "corpus-binary",
        "a binary file called .txt",
        corpus("a.txt", b"abc\n\0\1\2\n"),
        "looks binary: a NUL byte near line 2",
    ),
    BadInput(
        "corpus-latin", "a corpus in Latin-1", corpus("a.txt", b"gut\nsch\xf6n\n"), "is not valid UTF-8 after line"
    ),
    BadInput(
        "corpus-utf16",
        "a corpus in UTF-16",
        corpus("a.txt", SENTENCES.encode("utf-16")),
        "looks like UTF-16: convert it with `iconv -f utf-16 -t utf-8`",
    ),
    BadInput(
        "corpus-twice",
        "a file that two of the corpora hold",
        lambda folder: {"corpus": f"{folder / 'text.txt'},{folder / 'runs'}/../text.txt"},
        "text.txt would be read twice, as part of",
    ),
    BadInput("corpus-hidden", "a folder of hidden files as corpus", hidden_corpus, "with a dot in front"),
    BadInput("corpus-link", "a text that is a link to nothing", linked_corpus, "b.txt leads to no file: remove it"),
    BadInput(
        "corpus-secret",
        "a corpus without permission to read it",
        unreadable_corpus,
        "cannot be used: Permission denied",
    ),
    BadInput(
        "corpus-locked", "a folder as corpus that may not be entered", locked_folder("corpus"), "Permission denied"
    ),
    BadInput("corpus-inner", "a corpus with a folder that may not be entered", locked_below, "Permission denied"),
    BadInput("corpus-long", "a corpus with a name of 400 characters", {"corpus": "a" * 400}, "File name too long"),
    BadInput("corpus-user", "a corpus of an unknown user", {"corpus": "~nosuchuser/x"}, "no home folder of that user"),
    BadInput(
        "corpus-second", "a second corpus that is not there", {"corpus": "bundled,no.txt"}, "corpus no.txt: no such"
    ),
    BadInput(
        "corpus-small", "a corpus shorter than a sequence", corpus("a.txt", "One. " * 9), "train text is shorter than"
    ),
    BadInput(
        "corpus-no-validation",
        "a corpus of which nothing is held out",
        corpus("a.txt", SENTENCES, validation_fraction=0),
        "the validation set is empty: no document fell into validation_fraction=0.0",
    ),
    BadInput(
        "validation-absent",
        "a validation corpus that is not there",
        {"validation_corpus": "/no/such.jsonl"},
        "corpus /no/such.jsonl: no such file or folder",
    ),
    BadInput(
        "validation-none",
        "an empty validation corpus",
        {"validation_corpus": ""},
        "validation_corpus='' is empty: give a value, or leave validation_corpus out",
    ),
    BadInput(
        "gzip-cut",
        "a gzip file cut short",
        corpus("a.txt.gz", gzip.compress(SENTENCES.encode(), mtime=0)[:-20]),
        "damaged",
    ),
    BadInput("gzip-not", "text called .gz", corpus("a.txt.gz", SENTENCES), "is damaged or truncated after line 0"),
    BadInput("xz-cut", "an xz file cut short", corpus("a.txt.xz", lzma.compress(SENTENCES.encode())[:-30]), "damaged"),
    BadInput("bz2-cut", "a bz2 file cut short", corpus("a.txt.bz2", bz2.compress(SENTENCES.encode())[:-30]), "damaged"),
    BadInput("zst-cut", "a zst file cut short", corpus("a.txt.zst", zstd(SENTENCES)[:-20]), "is damaged or truncated"),
    BadInput("zst-not", "text called .zst", corpus("a.txt.zst", SENTENCES), "is damaged or truncated after line 0"),
    BadInput(
        "parquet-not", "a damaged parquet file", corpus("a.parquet", b"PAR1 no"), "is not a readable parquet file"
    ),
    BadInput("parquet-column", "parquet without a text column", parquet_corpus({"body": ["a"]}), "no column 'text'"),
    BadInput(
        "parquet-number",
        "parquet with numbers instead of text",
        parquet_corpus({"text": [1, 2]}),
        "holds int instead of text",
    ),
    BadInput(
        "jsonl-broken", "jsonl with a broken line", corpus("a.jsonl", '{"text": "a"}\n{"text": \n'), "line 2: not JSON"
    ),
    BadInput("jsonl-column", "jsonl without a text column", corpus("a.jsonl", '{"body": "a"}\n'), "no column 'text'"),
    BadInput(
        "columns-missing",
        "text columns of which one is missing",
        corpus("a.jsonl", '{"title": "a", "body": "b"}\n', text_column="title,text"),
        "line 1: no column 'text' (there is: title, body); set text_column",
    ),
    BadInput(
        "weights-sum",
        "corpora whose weights are not 1 together",
        {"corpus": "text.txt=0.7,bundled=0.2", "max_tokens": 1000},
        "weights 0.7 + 0.2: expected numbers above 0 whose sum is 1",
    ),
    BadInput(
        "weights-some",
        "a weight for one of two corpora",
        {"corpus": "text.txt=0.7,bundled", "max_tokens": 1000},
        "bundled has no weight; give each corpus one",
    ),
    BadInput(
        "weights-of-nothing",
        "corpora in shares, without the tokens that they are shares of",
        {"corpus": "text.txt=0.7,bundled=0.3"},
        "weights are shares of max_tokens, which is not set",
    ),
    BadInput("max-tokens", "fewer tokens than a sequence", {"max_tokens": 3}, "expected at least a sequence"),
    BadInput(
        "jsonl-null",
        "jsonl with null alone instead of text",
        corpus("a.jsonl", '{"text": null}\n'),
        "a.jsonl: no text in it",
    ),
    BadInput(
        "jsonl-list",
        "jsonl with lists instead of objects",
        corpus("a.jsonl", "[1]\n"),
        "no column 'text' (there is: list)",
    ),
    BadInput(
        "jsonl-deep",
        "jsonl with a line of 100,000 brackets",
        corpus("a.jsonl", "[" * 100_000 + "\n"),
        "line 1: not JSON (maximum recursion depth",
    ),
    BadInput(
        "jsonl-digits",
        "jsonl with a number of 6,000 digits",
        corpus("a.jsonl", f'{{"text": "a", "n": {"1" * 6000}}}\n'),
        "line 1: not JSON (Exceeds the limit",
    ),
    # the tokenizer
    BadInput(
        "tokenizer-absent", "an unknown tokenizer", {"tokenizer": "no-such/name"}, "tokenizer no-such/name: cannot"
    ),
    BadInput("tokenizer-empty", "a folder without a tokenizer", empty_folder("tokenizer"), "cannot be loaded"),
    BadInput(
        "tokenizer-broken",
        "a damaged tokenizer.json",
        tokenizer(lambda copy: cut(copy / "tokenizer.json")),
        "cannot be loaded",
    ),
    BadInput(
        "tokenizer-mask",
        "a tokenizer without [MASK]",
        tokenizer(lambda copy: edit_json(copy / "tokenizer_config.json", mask_token=None)),
        "has no mask_token",
    ),
    # prepared text
    BadInput(
        "prepared-length",
        "text prepared in sequences of another length",
        prepared_corpus(lambda data: None, sequence_length=16),
        "was prepared with sequence_length=32, asked for 16",
    ),
    BadInput(
        "prepared-vocabulary",
        "text prepared with another vocabulary",
        prepared_corpus(lambda data: None, vocab_size=400),
        "was prepared with vocab_size=300, asked for 400: leave vocab_size out or prepare the corpus again",
    ),
    BadInput(
        "prepared-joined",
        "prepared text joined with another corpus",
        lambda folder: {"corpus": f"{folder / 'text.txt'},{prepared_of(folder)}"},
        "a prepared folder stands alone as corpus",
    ),
    BadInput(
        "prepared-notes",
        "prepared text with damaged notes of what was read",
        prepared_corpus(lambda data: edit_json(data / "meta.json", read=[])),
        "meta.json cannot be read",
    ),
    BadInput(
        "prepared-cut",
        "prepared sequences cut short",
        prepared_corpus(lambda data: cut(data / "train.bin")),
        "bytes instead",
    ),
    BadInput(
        "prepared-meta",
        "prepared text with a damaged meta.json",
        prepared_corpus(lambda data: cut(data / "meta.json")),
        "damaged data cache",
    ),
    BadInput(
        "prepared-format",
        "text prepared by a later version",
        prepared_corpus(lambda data: edit_json(data / "meta.json", format=99)),
        "was prepared in format 99",
    ),
    BadInput(
        "prepared-counts",
        "prepared text with its token counts cut short",
        prepared_corpus(lambda data: cut(data / "train_counts.npy"), seed=1),
        "train_counts.npy cannot be read",
    ),
    BadInput(
        "prepared-counts-empty",
        "prepared text with an empty file of token counts",
        prepared_corpus(lambda data: (data / "train_counts.npy").write_bytes(b""), seed=1),
        "train_counts.npy cannot be read",
    ),
    BadInput(
        "prepared-counts-few",
        "prepared text with a token count too few",
        prepared_corpus(fewer_counts, seed=1),
        "of shape (299,), expected 300 whole numbers",
    ),
    BadInput(
        "prepared-tokenizer",
        "prepared text without its tokenizer",
        prepared_corpus(lambda data: shutil.rmtree(data / "tokenizer")),
        "tokenizer.json cannot be read (FileNotFoundError: it is missing)",
    ),
    BadInput(
        "prepared-tokenizer-cut",
        "prepared text with its tokenizer cut short",
        prepared_corpus(lambda data: cut(data / "tokenizer" / "tokenizer.json")),
        "tokenizer.json cannot be read (JSONDecodeError",
    ),
    BadInput(
        "prepared-ids",
        "prepared validation sequences with token ids beyond the vocabulary",
        prepared_corpus(foreign_ids, seed=1),
        "holds the token id 65535, but the vocabulary has 300 tokens",
    ),
    BadInput(
        "prepared-id", "a meta.json without data_id", prepared_corpus(without("data_id")), "(KeyError: 'data_id')"
    ),
    BadInput(
        "prepared-vocab",
        "a meta.json without vocab_size",
        prepared_corpus(without("vocab_size")),
        "KeyError: 'vocab_size'",
    ),
    BadInput(
        "prepared-mask",
        "a meta.json without mask_token_id",
        prepared_corpus(without("mask_token_id")),
        "KeyError: 'mask_token_id'",
    ),
    BadInput(
        "prepared-pad",
        "a meta.json with a padding id beyond the vocabulary",
        prepared_corpus(lambda data: edit_json(data / "meta.json", pad_token_id=300)),
        "ValueError: pad_token_id is 300",
    ),
    BadInput(
        "prepared-secret",
        "prepared sequences without permission to read them",
        prepared_corpus(lambda data: locked(data / "train.bin")),
        "train.bin cannot be used: Permission denied",
    ),
    # run folders
    BadInput(
        "runs-file-report",
        "a file as the report's runs_dir",
        lambda folder: {"runs_dir": folder / "text.txt", "pages": "00"},
        "cannot make the folder",
        "report",
    ),
    BadInput(
        "runs-file", "a file as runs_dir", lambda folder: {"runs_dir": folder / "text.txt"}, "cannot make the folder"
    ),
    BadInput("runs-none", "an empty runs_dir", {"runs_dir": ""}, "runs_dir='' is empty"),
    BadInput("runs-long", "a runs_dir of 400 characters", {"runs_dir": "/" + "a" * 400}, "File name too long"),
    BadInput(
        "runs-user", "a runs_dir of an unknown user", {"runs_dir": "~nosuchuser/x"}, "no home folder of that user"
    ),
    BadInput("runs-locked", "a runs_dir that may not be entered", locked_folder("runs_dir"), "Permission denied"),
    BadInput(
        "run-locked",
        "a finished run whose lock is another user's",
        run(lambda run: locked(run / ".lock")),
        ".lock cannot be used: Permission denied",
    ),
    BadInput(
        "run-secret",
        "a finished run without permission to read its model",
        run(lambda run: locked(run / "model" / "model.safetensors")),
        "model.safetensors cannot be used: Permission denied",
    ),
    BadInput(
        "record-cut",
        "the record of a finished run cut short",
        run(lambda run: cut(run / "record.json")),
        "record.json cannot be read",
    ),
    BadInput(
        "record-schema",
        "a record of a later version",
        run(lambda run: edit_json(run / "record.json", schema=1000)),
        "was written in schema 1000",
    ),
    BadInput(
        "encoder-flipped",
        "a finished run with one bit changed in its encoder",
        run(lambda run: flip(run / "encoder" / "model.safetensors")),
        "has changed since it was written",
    ),
    BadInput(
        "model-gone", "a finished run without its model", run(lambda run: shutil.rmtree(run / "model")), "is missing"
    ),
    BadInput(
        "metrics-line",
        "an unfinished run with a damaged line in metrics.jsonl",
        run(unfinished_and_damaged),
        "line 1 of",
    ),
    BadInput(
        "record-other",
        "a record of another run in the folder",
        run(lambda run: edit_json(run / "record.json", run_id="other")),
        "belongs to run other",
    ),
    # checkpoints
    BadInput(
        "checkpoint-none", "no checkpoint to fine-tune", {"checkpoint": None}, "checkpoint is missing", "finetune"
    ),
    BadInput(
        "checkpoint-absent", "a checkpoint that is not there", {"checkpoint": "/no/such"}, "no such folder", "finetune"
    ),
    BadInput(
        "checkpoint-long",
        "a checkpoint with a name of 400 characters",
        {"checkpoint": "a" * 400},
        "File name too long",
        "finetune",
    ),
    BadInput(
        "checkpoint-user",
        "a checkpoint of an unknown user",
        {"checkpoint": "~nosuchuser/x"},
        "no home folder of that user",
        "finetune",
    ),
    BadInput(
        "checkpoint-locked",
        "a checkpoint that may not be entered",
        locked_folder("checkpoint"),
        "Permission denied",
        "finetune",
    ),
    BadInput(
        "checkpoint-secret",
        "an encoder without permission to read its weights",
        encoder(lambda copy: locked(copy / "model.safetensors")),
        "model.safetensors cannot be used: Permission denied",
        "finetune",
    ),
    BadInput(
        "checkpoint-empty",
        "a folder without an encoder as checkpoint",
        empty_folder("checkpoint"),
        "no config.json in it",
        "finetune",
    ),
    BadInput(
        "checkpoint-hub",
        "an unknown hub name as checkpoint",
        {"checkpoint": "no-such/name"},
        "the hub did not give it",
        "finetune",
    ),
    BadInput(
        "checkpoint-run",
        "a run's folder instead of its encoder",
        lambda folder: {"checkpoint": run_of(folder)},
        "is a run folder: its encoder is",
        "finetune",
    ),
    BadInput(
        "checkpoint-model",
        "the pre-training model instead of its encoder",
        lambda folder: {"checkpoint": run_of(folder) / "model"},
        "cannot be loaded for classification",
        "finetune",
    ),
    BadInput(
        "weights-none",
        "an encoder without weights",
        encoder(lambda copy: (copy / "model.safetensors").unlink()),
        "cannot be loaded for classification",
        "finetune",
    ),
    BadInput(
        "weights-cut",
        "an encoder with its weights cut short",
        encoder(lambda copy: cut(copy / "model.safetensors", 0.9)),
        "cannot be loaded for classification",
        "finetune",
    ),
    BadInput(
        "weights-pickle",
        "an encoder with pickled weights only",
        encoder(pickled),
        "safetensors weights of an encoder",
        "finetune",
    ),
    BadInput(
        "weights-shape",
        "an encoder with weights of another width",
        encoder(lambda copy: edit_json(copy / "config.json", hidden_size=64)),
        "its weights have other shapes than its config.json",
        "finetune",
    ),
    BadInput(
        "weights-depth",
        "an encoder with weights of fewer layers",
        encoder(lambda copy: edit_json(copy / "config.json", num_hidden_layers=4)),
        "of the encoder's weights are missing",
        "finetune",
    ),
    BadInput(
        "weights-pointer",
        "a Git LFS pointer instead of weights",
        encoder(lambda copy: (copy / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")),
        "cannot be loaded for classification",
        "finetune",
    ),
    BadInput(
        "random-twice",
        "a random baseline of a random encoder",
        {"checkpoint": "random:roberta-base", "random_baseline": True},
        "is random already: leave random_baseline out",
        "finetune",
    ),
    BadInput(
        "config-cut",
        "an encoder with its config.json cut short",
        encoder(lambda copy: cut(copy / "config.json")),
        "cannot be loaded",
        "finetune",
    ),
    BadInput(
        "config-type",
        "an encoder of an unknown kind",
        encoder(lambda copy: edit_json(copy / "config.json", model_type="nosuch")),
        "cannot be loaded",
        "finetune",
    ),
    BadInput(
        "config-code",
        "an encoder that asks for code of its own",
        encoder(
            lambda copy: edit_json(copy / "config.json", model_type="nosuch", auto_map={"AutoConfig": "code.Config"})
        ),
        "cannot be loaded",
        "finetune",
    ),
    BadInput(
        "config-heads",
        "an encoder of no heads",
        encoder(lambda copy: edit_json(copy / "config.json", num_attention_heads=0)),
        "cannot be loaded for classification",
        "finetune",
    ),
    BadInput(
        "config-padding",
        "an encoder whose padding is beyond its vocabulary",
        encoder(lambda copy: edit_json(copy / "config.json", pad_token_id=10**6)),
        "cannot be loaded for classification",
        "finetune",
    ),
    BadInput(
        "checkpoint-tokenizer",
        "an encoder without a tokenizer",
        encoder(lambda copy: (copy / "tokenizer.json").unlink()),
        "no tokenizer in it",
        "finetune",
    ),
    BadInput(
        "too-long", "longer texts than the encoder takes", {"max_length": 64}, "takes at most 32 tokens", "finetune"
    ),
    # a checkpoint to go on from
    BadInput(
        "start-kind",
        "a BERT to go on from",
        start(lambda copy: edit_json(copy / "config.json", model_type="bert")),
        "a checkpoint of the kind 'bert'; expected one of roberta",
    ),
    BadInput(
        "start-model",
        "the pre-training model to go on from, instead of its encoder",
        lambda folder: {"init_encoder": run_of(folder) / "model"},
        "a checkpoint of the kind 'threeml_self'; expected one of",
    ),
    BadInput(
        "start-size",
        "a checkpoint to go on from, and a width that is not its own",
        start(lambda copy: None, hidden_size=64),
        "has 32; leave hidden_size out",
    ),
    BadInput(
        "start-positions",
        "longer sequences than a checkpoint to go on from has positions for",
        start(lambda copy: None, sequence_length=64),
        "has positions for 32 tokens; take shorter sequences",
    ),
    BadInput(
        "start-tokenizer",
        "a checkpoint to go on from without a tokenizer",
        start(lambda copy: (copy / "tokenizer.json").unlink()),
        "no tokenizer in it",
    ),
    BadInput(
        "start-mask",
        "a checkpoint to go on from whose tokenizer has no mask token",
        start(lambda copy: edit_json(copy / "tokenizer_config.json", mask_token=None)),
        "has no mask_token",
    ),
    BadInput(
        "start-vocabulary",
        "a checkpoint to go on from with a tokenizer of other tokens",
        start(lambda copy: edit_json(copy / "config.json", vocab_size=200), vocab_size=200),
        "does not fit its weights",
    ),
    BadInput(
        "start-weights",
        "a checkpoint to go on from without weights",
        start(lambda copy: (copy / "model.safetensors").unlink()),
        "no weights in it; expected safetensors files",
    ),
    BadInput(
        "start-shapes",
        "a checkpoint to go on from with weights of another width",
        start(lambda copy: edit_json(copy / "config.json", intermediate_size=96)),
        "its weights have other shapes than its config.json",
    ),
    BadInput(
        "start-warmup",
        "a warm-up of the decoder alone without a checkpoint",
        {"decoder_warmup_steps": 1},
        "a fresh encoder has to learn; give init_encoder, or 0",
    ),
    # downstream tasks
    BadInput("task", "a misspelt task", {"tasks": "colla"}, "unknown task 'colla': did you mean 'cola'?", "finetune"),
    BadInput(
        "wnli", "the task the paper leaves out", {"tasks": "wnli"}, "WNLI is left out, as in the paper", "finetune"
    ),
    BadInput(
        "grid", "a word in a grid of numbers", {"finetune_epochs": "3,x"}, "expected whole numbers such as", "finetune"
    ),
    BadInput(
        "trials", "no trials", {"num_trials": 0}, "num_trials=0: expected at least 1, or None for all", "finetune"
    ),
    BadInput(
        "glue-absent",
        "a folder of tasks that is not there",
        {"glue": "/no/such"},
        "no such folder; expected 'bundled'",
        "finetune",
    ),
    BadInput("glue-long", "tasks with a name of 400 characters", {"glue": "a" * 400}, "File name too long", "finetune"),
    BadInput("glue-locked", "a folder of tasks that may not be entered", locked_folder("glue"), "denied", "finetune"),
    BadInput(
        "glue-inner", "a task that may not be entered", locked_task, "CoLA cannot be used: Permission", "finetune"
    ),
    BadInput("glue-empty", "a folder without tasks", empty_folder("glue"), "has neither CoLA/*.tsv nor", "finetune"),
    BadInput(
        "tsv-fields",
        "a task with a row of too few fields",
        glue("CoLA/train.tsv", "gj04\t1\t\tfine\ngj04\t1\n"),
        "line 2: 2 fields instead of 4",
        "finetune",
    ),
    BadInput(
        "tsv-label",
        "a task with a label out of range",
        glue("STS-B/dev.tsv", "sentence1\tsentence2\tscore\na\tb\t5.5\n"),
        "unknown label '5.5'; STS-B has numbers from 0 to 5",
        "finetune",
    ),
    BadInput(
        "tsv-column",
        "a task's file without a column",
        glue("RTE/train.tsv", "index\tsentence1\tlabel\n1\ta\tentailment\n"),
        "no column 'sentence2' in its first line",
        "finetune",
    ),
    BadInput(
        "glue-parquet",
        "a damaged parquet file of a task",
        damaged_parquet_task,
        "train.parquet is not a readable parquet file",
        "finetune",
    ),
    BadInput("no-start", "RTE without the MNLI it starts from", no_mnli, "or set from_mnli=False", "finetune"),
    BadInput("tsv-split", "a task without validation set", glue("QQP/dev.tsv", None), "has no dev.tsv or", "finetune"),
    BadInput(
        "tsv-rows", "a task without rows", glue("SST-2/dev.tsv", "sentence\tlabel\n"), "no example in", "finetune"
    ),
    BadInput(
        "tsv-latin", "a task in Latin-1", glue("CoLA/dev.tsv", b"a\t1\t\tcaf\xe9\n"), "is not valid UTF-8", "finetune"
    ),
    # the study
    BadInput(
        "study-rate",
        "a mask rate of 1.4 in a list of the study",
        {"study_mask_rates": "0.4,1.4"},
        "mask_rate=1.4",
        "study",
    ),
    BadInput(
        "study-twice",
        "a value twice in a list of the study",
        {"study_depths": "1,1"},
        "above 0 and given once",
        "study",
    ),
    BadInput(
        "study-split",
        "a mask split of two numbers in a list of the study",
        {"study_splits": "80-10"},
        "sum to 100",
        "study",
    ),
    BadInput("study-task", "an unknown task for a study", {"tasks": "mnil"}, "unknown task 'mnil'", "study"),
    BadInput("workers", "no workers", {"num_workers": 0}, "num_workers=0: expected at least 1", "study"),
    BadInput(
        "study-length",
        "texts longer than the encoders to be pre-trained take",
        {"max_length": 64},
        "encoder takes at most 32 tokens",
        "study",
    ),
    # probing
    BadInput(
        "ud-none", "a task on words without a treebank", {"probe_tasks": "upos", "encoders": "x"}, "give ud", "probe"
    ),
    BadInput(
        "ud-path",
        "a folder of treebanks that is not there",
        {"ud": "/no/such", "encoders": "x"},
        "no such folder",
        "probe",
    ),
    BadInput(
        "ud-columns",
        "a word with three columns",
        treebank("1\tdog\tNOUN\n"),
        "line 1: 3 columns instead of 10",
        "probe",
    ),
    BadInput(
        "ud-latin", "a treebank in Latin-1", treebank(ROW.replace("dog", "d\xf6g").encode("latin-1")), "UTF-8", "probe"
    ),
    BadInput(
        "ud-same", "a treebank whose test has all its training sentences", treebank(ROW), "in the test too", "probe"
    ),
    BadInput(
        "ud-depth",
        "trees of one depth, asked for it",
        treebank(ROW.replace("dog", "cat"), probe_tasks="depth"),
        "depth is 0 for all 1 training sentences",
        "probe",
    ),
    BadInput("ud-empty", "a treebank without a sentence", treebank("# text = dog\n"), "no sentence in its", "probe"),
    BadInput(
        "ud-cycle",
        "words that are each other's heads",
        treebank(
            ROW + ROW.replace("1\t", "2\t").replace("0\t", "3\t") + ROW.replace("1\t", "3\t").replace("0\t", "2\t")
        ),
        "line 2: the heads form a cycle, 2 <- 3 <- 2",
        "probe",
    ),
    BadInput("probe-twice", "an encoder named twice", {"encoders": "a,a"}, "each once", "probe"),
    BadInput(
        "probe-path",
        "an encoder that is not there",
        treebank(ROW.replace("dog", "cat"), encoders="/no/such"),
        "no such folder",
        "probe",
    ),
    # mutual information
    BadInput(
        "mi-run",
        "an unknown run id to analyse",
        {"runs": "self-40-0"},
        "self-40-0 is no finished run",
        "information",
    ),
    BadInput("mi-path", "a run folder that is not there", {"runs": "/no/such"}, "is no finished run", "information"),
    BadInput(
        "mi-long",
        "a run with a name of 400 characters",
        {"runs": "a" * 400},
        "File name too long",
        "information",
    ),
    BadInput("mi-user", "a run of an unknown user", {"runs": "~nosuchuser/x"}, "no home folder", "information"),
    BadInput("mi-none", "a comma and no run", {"runs": " , "}, "runs is empty", "information"),
    BadInput(
        "mi-encoder",
        "a run's encoder instead of the run",
        lambda folder: {"runs": run_of(folder) / "encoder"},
        "is no finished run",
        "information",
    ),
    BadInput("mi-layers", "a layer by name", {"state_layers": "last"}, "expected 'all' or layer", "information"),
    BadInput("mi-layer", "a layer beyond the last", {"state_layers": "0,3"}, "there is no layer 3", "information"),
    BadInput("mi-clusters", "more clusters than states", {"num_clusters": 10**6}, "lower num_clusters", "information"),
    BadInput(
        "mi-text",
        "a run whose text has changed since",
        another_text,
        "the text has changed since",
        "information",
    ),
    BadInput(
        "mi-model",
        "a run whose model was cut short",
        run(lambda run: cut(run / "model" / "model.safetensors")),
        "bytes instead of",
        "information",
    ),
    BadInput(
        "mi-stage",
        "a run that pre-trained nothing",
        run(lambda run: edit_json(run / "record.json", stage="finetune")),
        "is a run of stage finetune, expected one of pre-training",
        "information",
    ),
    BadInput(
        "mi-failed",
        "a run that diverged",
        run(lambda run: edit_json(run / "record.json", failure="it diverged")),
        "has no model: it diverged",
        "information",
    ),
    BadInput("mi-store", "an unknown place for states", {"states_store": "ram"}, "one of disk, mem", "information"),
    # benchmark and report
    BadInput(
        "variant",
        "an unknown model in a benchmark",
        {"benchmark_variants": "bert"},
        "benchmark_variants='bert'",
        "benchmark",
    ),
    BadInput(
        "part", "an unknown part of a benchmark", {"benchmark_parts": "sped"}, "benchmark_parts='sped'", "benchmark"
    ),
    BadInput(
        "rounds",
        "a benchmark of too few rounds for an interval",
        {"num_benchmark_rounds": 5},
        "num_benchmark_rounds=5: expected at least 6",
        "benchmark",
    ),
    BadInput(
        "sessions", "a benchmark without sessions", {"num_benchmark_sessions": 0}, "expected at least 1", "benchmark"
    ),
    BadInput(
        "sessions-of-what",
        "sessions of a benchmark that measure no speed",
        {"num_benchmark_sessions": 5, "benchmark_parts": "memory"},
        "benchmark_parts='memory': expected speed in it, as num_benchmark_sessions=5",
        "benchmark",
    ),
    BadInput(
        "rates", "a mask rate of 1.5 in a benchmark", {"benchmark_rates": "0.5,1.5"}, "mask_rate=1.5", "benchmark"
    ),
    BadInput("page", "a page that does not exist", {"pages": "13"}, "pages='13': no notebook 13", "report"),
    BadInput("page-none", "no page", {"pages": ""}, "pages='' is empty", "report"),
    BadInput("page-comma", "a comma and no page", {"pages": "00,"}, "no notebook ''", "report"),
    BadInput("report-preset", "a report of an unknown preset", {"preset": "smal"}, "did you mean 'small'?", "report"),
    # the hub and trackers
    BadInput("push-none", "no run to push", {"pushed_run": "None"}, "pushed_run is missing", "push"),
    BadInput("push-run", "a run to push that is not there", {"pushed_run": "self-40-0"}, "no finished run", "push"),
    BadInput(
        "push-encoder",
        "a run's encoder to push instead of the run",
        lambda folder: {"pushed_run": run_of(folder) / "encoder"},
        "is no finished run; expected the id or folder of a pre-training run: that is",
        "push",
    ),
    BadInput(
        "push-failed",
        "a run to push that diverged",
        run(lambda run: edit_json(run / "record.json", failure="the run diverged")),
        "has no model to push",
        "push",
    ),
    BadInput(
        "push-changed",
        "a run to push whose model has changed",
        run(lambda run: flip(run / "model" / "model.safetensors")),
        "has changed since it was written",
        "push",
    ),
    BadInput("push-nowhere", "no repository to push to", {"push_to_hub": "None"}, "push_to_hub is missing", "push"),
    BadInput("push-name", "a name that no repository has", {"push_to_hub": "a/b/c"}, "expected owner/name", "push"),
    BadInput("push-root", "an unknown part to push", {"hub_root": "decoder"}, "one of encoder, model", "push"),
    BadInput(
        "push-there",
        "a dry run into a folder that is there",
        lambda folder: {"dry_run": folder},
        "a new folder",
        "push",
    ),
    BadInput("push-offline", "a push with HF_HUB_OFFLINE", {}, "HF_HUB_OFFLINE is set", "push"),
    BadInput(
        "pretrain-push", "a pre-training to push with HF_HUB_OFFLINE", {**NEW, "push_to_hub": "a/b"}, "HF_HUB_OFFLINE"
    ),
    BadInput(
        "tracker", "an unknown tracker", {"report_to": "tensorbord"}, "some of tensorboard, trackio, wandb, mlflow"
    ),
    BadInput("replaced", "a parameter that another one replaces", {"tensorboard": True}, "report_to=tensorboard"),
    BadInput("checkpoint-steps", "a checkpoint behind the last step", {"checkpoint_steps": "9"}, "at most max_steps=2"),
]

# -- faults ---------------------------------------------------------------------------------------------------

FAULTS = [
    # pre-training
    Fault(
        "`kill -9` of a pre-training, again and again: preparing data, in the loop, saving a state, writing the model",
        "each start goes on after the last saved step",
        "weights and metrics end equal, bit for bit, to those of an undisturbed run; nothing half-written is left",
        "tests/integration/test_chaos.py::test_killed_runs_end_as_an_undisturbed_one",
    ),
    Fault(
        "a rival that is not known, mask rates or treebanks that the comparison lacks",
        "one line, before the first of its runs",
        "everything",
        "tests/integration/test_rivals.py::test_bad_input_is_one_line_before_any_run",
    ),
    Fault(
        "a rival whose run diverges with a seed, or at every learning rate",
        "the page says how many seeds ended, or that it was not run",
        "all other rivals' results",
        "tests/unit/study/test_rivals.py::test_a_seed_that_diverged_is_said_and_nothing_else_is_hidden",
    ),
    Fault(
        "SIGTERM to a pre-training, as schedulers send it",
        "one line with the step, status 143",
        "the state after the current update; the run ends as an undisturbed one, bit for bit",
        "tests/integration/test_distributed.py::test_sigterm_saves_and_exits_143",
    ),
    Fault(
        "SIGTERM while data are prepared",
        "one line, status 143",
        "no half-written folder is left",
        "tests/integration/test_distributed.py::test_sigterm_while_data_are_prepared",
    ),
    Fault(
        "SIGTERM to torchrun; the run goes on with one process instead of two",
        "all processes stop after the same update",
        "the state; batches, corruption and dropout come as they would have",
        "tests/integration/test_distributed.py::test_begun_with_two_it_goes_on_with_one",
    ),
    Fault(
        "an error in one of two processes",
        "its own line; the other says that it lost it; nothing hangs",
        "the states; no record is left",
        "tests/integration/test_distributed.py::test_an_error_in_one_process_ends_them_all",
    ),
    Fault(
        "`kill -9` of a notebook's process that waits for torchrun",
        "its processes end within seconds",
        "the states; the lock is free",
        "tests/integration/test_distributed.py::test_processes_end_with_the_one_that_started_them",
    ),
    Fault(
        "a batch that the processes cannot share",
        "one line with both numbers, before anything is started",
        "everything",
        "tests/integration/test_distributed.py::test_a_batch_that_cannot_be_shared",
    ),
    Fault(
        "a GPU too small for a micro-batch",
        "one line: which `micro_batch_size` fits, as tried",
        "the states",
        "tests/integration/test_distributed.py::test_out_of_memory_says_what_fits",
    ),
    Fault(
        "the same, with `auto_find_micro_batch_size=True`",
        "the run goes on with the micro-batch that fits; its record says which",
        "the curve is that of a run given this micro-batch",
        "tests/integration/test_distributed.py::test_out_of_memory_accumulates_when_asked",
    ),
    Fault(
        "a GPU too small for one sequence",
        "one line",
        "the states",
        "tests/integration/test_distributed.py::test_nothing_fits",
    ),
    Fault(
        "a file system that is full while a run trains (a real one, of a few MB)",
        "one line with the file that could not be written",
        "the last state; with more room the run ends as an undisturbed one",
        "tests/integration/test_disk.py::test_a_full_disk_while_training",
    ),
    Fault(
        "a file system that is full while data are prepared",
        "one line, status 2",
        "nothing half-written is left",
        "tests/integration/test_disk.py::test_a_full_disk_while_data_are_prepared",
    ),
    Fault(
        "a file system that is read-only",
        "one line that names runs_dir",
        "every file, byte for byte",
        "tests/integration/test_disk.py::test_a_read_only_disk",
    ),
    Fault(
        "a Ray worker is killed, or gets SIGTERM as its host is taken away",
        "the run starts again on another one",
        "the study ends",
        "tests/integration/test_cluster.py::test_lost_workers",
    ),
    Fault(
        "a Ray host is lost in the middle of ten runs",
        "its runs start again on the other host",
        "all ten records, none twice",
        "tests/integration/test_cluster.py::test_a_host_is_lost",
    ),
    Fault(
        "a Ray host is lost in the middle of 24 fine-tunings",
        "its runs start again on the other host; RTE, STS-B and MRPC still wait for MNLI",
        "24 records, none twice, the same runs and scores as on one host",
        "tests/integration/test_cluster.py::test_24_finetunings_and_a_lost_host",
    ),
    Fault(
        "a run's lock that a process of a lost host still holds",
        "the run that was started again waits for it, up to a minute",
        "the run has one writer at any time",
        "tests/integration/test_cluster.py::test_a_lock_that_a_lost_host_still_holds_is_waited_for",
    ),
    Fault(
        "`kill -9` of the driver of a study on Ray",
        "Ray and its workers end with it",
        "finished runs; the next call does what is missing",
        "tests/integration/test_cluster.py::test_the_driver_is_killed",
    ),
    Fault(
        "no Ray cluster at `ray_address`, an error in a run on Ray, a run too large for every host",
        "one line each",
        "finished runs",
        "tests/integration/test_cluster.py::test_what_a_user_has_to_know_comes_back_in_one_line",
    ),
    Fault(
        "a study planned on a host with another kind of device than the run's",
        "one line: start it on a host like those that do the runs",
        "the record under its own name",
        "tests/unit/runs/test_sweep.py::test_a_run_that_is_another_one_here",
    ),
    Fault(
        "an architecture of one's own whose source is nowhere, as if it was typed in",
        "a warning with the reason; the run ends",
        "`model/`, which loads where the architecture is registered, and `encoder/`",
        "tests/integration/test_architecture.py::test_what_was_typed_in_ends_no_run",
    ),
    Fault(
        "`threeml export` to an unknown form or a folder in use, of no encoder, without its libraries, too long",
        "one line each, before anything is written",
        "every file",
        "tests/unit/training/test_export.py::test_refusals",
    ),
    Fault(
        "`threeml export` of an encoder whose weights do not fit",
        "one line",
        "nothing half-written is left",
        "tests/unit/training/test_export.py::test_what_fails_leaves_nothing",
    ),
    Fault(
        "texts of several lengths, or too short for the rate, for `CorruptingCollator`; a tokenizer without a mask",
        "one line each, with the remedy",
        "nothing was begun",
        "tests/unit/training/test_collator.py::test_refusals",
    ),
    Fault(
        "a run saved and loaded in the middle, with dropout on",
        "the following losses and weights are the same, bit for bit",
        "weights, moments, where the run stands",
        "tests/unit/training/test_checkpoint.py::test_resume_is_bit_for_bit",
    ),
    Fault(
        "a loss that is not finite, made so at step 7",
        "one line: the step, where the last good state is, the paper's remedy",
        "the last good state; the run goes on from it",
        "tests/integration/test_pretrain.py::test_loss_not_finite",
    ),
    Fault(
        "a training loss that stays above that of a uniform guess after the warm-up (learning_rate 10)",
        "one line, as for a loss that is not finite; the run is recorded as diverged and no encoder is exported",
        "the record, with the reason; the other runs of a study go on",
        "tests/integration/test_pretrain.py::test_a_run_that_blew_up_is_no_success",
    ),
    Fault(
        "a result that is not finite",
        "one line; no JSON file ever holds Infinity or NaN",
        "the file before, if there is one",
        "tests/unit/foundation/test_files.py::test_json_holds_no_number_that_other_readers_refuse",
    ),
    Fault(
        "mutual information from so few states that its bias cannot be taken out (under 5 for each cell in use)",
        "the values, marked as from too few states, and no verdict",
        "the record",
        "tests/unit/information/test_findings.py::test_what_gives_no_verdict",
    ),
    Fault(
        "two models compared with one or two fine-tuning seeds a side",
        "the difference and its interval over examples alone; no p-value, and the table says why",
        "the record",
        "tests/unit/glue/test_metrics.py::test_few_seeds_give_no_p_value",
    ),
    Fault(
        "a report made from records of before the bias study was recorded",
        "one sentence in its place; the page is made",
        "the records",
        "tests/unit/information/test_findings.py::test_records_without_a_bias_study_say_so",
    ),
    Fault(
        "a run that ends on the unigram plateau",
        "a warning with both perplexities and what to try",
        "the run; its record says so",
        "tests/integration/test_pretrain.py::test_a_run_says_what_it_makes_of_the_text",
    ),
    Fault(
        "parameters that explode",
        "one line; no state is written",
        "the state before, if there is one",
        "tests/integration/test_pretrain.py::test_exploded_parameters_are_not_saved",
    ),
    Fault(
        "the newest saved state cut to half its size",
        "a warning that names it; the run goes on from the state before and ends as an undisturbed one",
        "the damaged file, for a look, and the older state",
        "tests/integration/test_pretrain.py::test_a_damaged_state_falls_back_to_the_one_before[truncated]",
    ),
    Fault(
        "one bit changed in the newest saved state",
        "a warning that names it; the run goes on from the state before and ends as an undisturbed one",
        "the damaged file, for a look, and the older state",
        "tests/integration/test_pretrain.py::test_a_damaged_state_falls_back_to_the_one_before[flipped]",
    ),
    Fault(
        "every saved state damaged",
        "one line: none can be loaded, and what to remove to start again",
        "the damaged files",
        "tests/integration/test_pretrain.py::test_all_states_damaged",
    ),
    Fault(
        "a saved state of another model",
        "one line: it is of another model",
        "all other files",
        "tests/integration/test_pretrain.py::test_a_state_of_another_model",
    ),
    Fault(
        "a system clock that goes back a day at every look",
        "the same results; durations come from a clock that does not jump",
        "the whole run",
        "tests/integration/test_pretrain.py::test_the_clock_jumps",
    ),
    Fault(
        "a full disk while a state is saved",
        "one line: the disk is full",
        "the state before, byte for byte; no part of the new one",
        "tests/unit/training/test_checkpoint.py::test_disk_full_while_saving_keeps_the_previous_state",
    ),
    Fault(
        "a second process on the same run",
        "one line: it is being written by another process",
        "the run of the first process",
        "tests/integration/test_pretrain.py::test_two_processes_do_not_write_the_same_run",
    ),
    Fault(
        "the folder of a run removed while it runs, and the run begun anew by another process",
        "one line: the first process stops at its next metrics",
        "the other's run; no record tells the sizes of files that still grow",
        "tests/integration/test_pretrain.py::test_a_folder_removed_under_a_run[True]",
    ),
    Fault(
        "a pre-training under papermill that fails",
        "the one line stands last in the terminal, behind papermill's own traceback, and alone in the notebook",
        "the states",
        "tests/integration/notebooks/test_notebooks.py::test_a_run_that_fails_ends_with_one_line",
    ),
    Fault(
        "a model called with an argument that means nothing to it, such as `label` or `position_ids`",
        "one line with its name and the arguments there are",
        "nothing is passed over",
        "tests/unit/models/test_models.py::test_an_argument_that_means_nothing_is_refused",
    ),
    Fault(
        "records of an older version of the package",
        "they are passed over; damaged ones are named in one line",
        "the old files",
        "tests/unit/runs/test_record.py::test_records_of_an_older_schema_are_passed_over",
    ),
    Fault(
        "a finished run asked for again",
        "its record is read, nothing is trained",
        "the record, untouched",
        "tests/integration/test_pretrain.py::test_a_finished_run_is_not_repeated",
    ),
    Fault(
        "one bit changed in the weights of a finished run",
        "one line: damaged run",
        "all other files",
        "tests/integration/test_pretrain.py::test_damaged_run[flipped]",
    ),
    Fault(
        "a finished run whose encoder was removed",
        "one line: damaged run",
        "all other files",
        "tests/integration/test_pretrain.py::test_damaged_run[encoder]",
    ),
    Fault(
        "text with more special tokens than the mask rate leaves room for",
        "one line, before the run starts",
        "no run folder is made",
        "tests/integration/test_pretrain.py::test_more_special_tokens_than_the_rate_allows",
    ),
    # the hub and trackers
    Fault(
        "a hub that stops answering in the middle of a push",
        "one line, status 2",
        "what was uploaded; the same command sends the rest, and no large file twice",
        "tests/integration/test_push.py::test_half_an_upload_goes_on",
    ),
    Fault(
        "a push without a token",
        "one line that says how to make one, status 2; with `push_to_hub` before anything is trained",
        "everything",
        "tests/integration/test_push.py::test_no_token",
    ),
    Fault(
        "a push with a token that the hub does not know",
        "one line, status 2, without the token",
        "everything",
        "tests/integration/test_push.py::test_a_token_that_the_hub_does_not_know",
    ),
    Fault(
        "a push with a token that may only read",
        "one line, status 2, without the token",
        "everything",
        "tests/integration/test_push.py::test_a_token_that_may_only_read",
    ),
    Fault(
        "a push to a name of another user",
        "one line, status 2",
        "the other's repository",
        "tests/integration/test_push.py::test_a_name_of_another",
    ),
    Fault(
        "a push to a repository that holds something else",
        "one line, status 2",
        "what it holds",
        "tests/integration/test_push.py::test_a_repository_that_holds_something_else",
    ),
    Fault(
        "a push without a network",
        "one line within seconds, status 2",
        "everything",
        "tests/integration/test_push.py::test_no_network",
    ),
    Fault(
        "a disk that fills up while a dry run is written",
        "one line, status 2; no folder is left",
        "everything",
        "tests/integration/test_push.py::test_a_full_disk_in_a_dry_run",
    ),
    Fault(
        "a run stopped behind a kept checkpoint that goes on from before it",
        "the checkpoint is written again",
        "all checkpoints equal an undisturbed run's, bit for bit",
        "tests/integration/test_push.py::test_checkpoints_are_exact",
    ),
    Fault(
        "a tracker that fails, at its start, at a step or at the end",
        "one warning; the run goes on without it",
        "the run, and all other trackers",
        "tests/integration/test_trackers.py::test_a_tracker_that_fails_is_named_once_and_costs_nothing",
    ),
    Fault(
        "a run with trackers that is stopped and goes on",
        "the same run of the tracker goes on",
        "each step is there once",
        "tests/integration/test_trackers.py::test_a_tracker_has_what_the_run_says",
    ),
    # text
    Fault(
        "`kill -9` while text is prepared, also of a streamed data set and of corpora in shares, then in training",
        "the next start goes on behind what was saved, at most 30 s before",
        "text and weights end equal, bit for bit, to those of an undisturbed run",
        "tests/integration/test_streams.py::test_a_run_killed_in_preparation_and_in_training_goes_on",
    ),
    Fault(
        "SIGTERM while a data set is streamed",
        "one line, status 143, that blames no hub; the next start goes on",
        "what was saved",
        "tests/unit/data/test_build.py::test_sigterm_is_no_fault_of_the_hub",
    ),
    Fault(
        "a disk that is full when all text is read and only the counts are left to be written",
        "one line: the disk is full; the next start goes on",
        "what was saved",
        "tests/unit/data/test_build.py::test_a_disk_that_is_full_at_the_very_end_costs_nothing",
    ),
    Fault(
        "a hub that goes down in the middle of a stream",
        "the hub's client tries again and says so, then one line; the next start goes on",
        "the shards that were read are not asked for again; the text ends equal, byte for byte",
        "tests/integration/test_streams.py::test_a_stream_from_a_hub_that_goes_down",
    ),
    Fault(
        "saved progress of a preparation that is damaged or without its tokenizer",
        "it counts for nothing; the text is prepared anew",
        "the result is the same, byte for byte",
        "tests/unit/data/test_build.py::test_saved_progress_that_is_of_no_use_counts_for_nothing",
    ),
    Fault(
        "null in the columns with the text",
        "it is no text, never the word None; documents without text are counted and said",
        "all other text",
        "tests/unit/data/test_corpus.py::test_null_is_no_text_and_columns_are_joined",
    ),
    Fault(
        "a full disk while text is prepared",
        "one line: the disk is full",
        "what was saved in longer than 30 s, which the next start goes on with; else no half-prepared folder",
        "tests/unit/data/test_prepare.py::test_disk_full_leaves_nothing",
    ),
    Fault(
        "prepared sequences cut short in the cache",
        "one line: damaged data cache, remove the folder",
        "all other files",
        "tests/unit/data/test_prepare.py::test_damaged_cache",
    ),
    Fault(
        "token ids beyond the vocabulary in prepared sequences",
        "one line when such a sequence is read: damaged data cache, remove the folder",
        "all other files; a run that was started keeps its last state",
        "tests/unit/data/test_sequences.py::test_token_ids_beyond_the_vocabulary",
    ),
    Fault(
        "a zst file cut at any byte",
        "one line: it is damaged or truncated; frames one after the other are read as one text",
        "everything",
        "tests/unit/data/test_corpus.py::test_zst_cut_at_any_byte",
    ),
    Fault(
        "a change of the corpus after it was prepared",
        "the text is prepared anew",
        "what was prepared before",
        "tests/unit/data/test_prepare.py::test_cache_is_used_and_follows_content",
    ),
    Fault(
        "no network for a corpus on the hub",
        "one line: the hub did not give it",
        "everything",
        "tests/unit/data/test_corpus.py::test_no_network_for_the_hub",
    ),
    Fault(
        "a hub that refuses, has no address or does not answer: for a corpus, tasks, a tokenizer or a checkpoint",
        "one line with the address within 5 seconds",
        "everything",
        "tests/integration/test_hub.py::test_a_hub_that_cannot_be_reached",
    ),
    Fault(
        "the same, with what is asked for in the hub's cache",
        "it is read from there",
        "everything",
        "tests/integration/test_hub.py::test_what_the_cache_holds_is_used_without_the_hub",
    ),
    Fault(
        "hidden copies, such as `.ipynb_checkpoints`, and other files in a folder of texts",
        "they are not read; how many of each kind is said and kept with the text",
        "everything",
        "tests/unit/data/test_folders.py::test_what_is_passed_over_in_a_folder",
    ),
    Fault(
        "links in a folder of texts: to folders, upwards, in circles, to the same file",
        "folders are followed; every text is read once",
        "everything",
        "tests/unit/data/test_folders.py::test_links_are_followed_and_nothing_is_read_twice",
    ),
    Fault(
        "validation documents that are training documents too",
        "a warning with their number, which is kept with the text and in records",
        "everything",
        "tests/unit/data/test_prepare.py::test_validation_documents_that_are_in_training_too",
    ),
    Fault(
        "half a character in a text",
        "it becomes a question mark",
        "all other text",
        "tests/unit/data/test_corpus.py::test_half_a_character_does_not_stop_a_run",
    ),
    # files
    Fault(
        "two processes that write the same file at once",
        "each writes all of it, one after the other comes to stand there",
        "the file of either; neither removes what the other is writing",
        "tests/unit/foundation/test_files.py::test_two_processes_write_the_same_file",
    ),
    Fault(
        "two processes that note the hashes of different corpora at once",
        "both are noted",
        "the hashes of both",
        "tests/unit/foundation/test_files.py::test_two_processes_note_hashes",
    ),
    Fault(
        "a kill between the two steps that put a new folder in the place of an old one",
        "the next start puts the old folder back, then goes on",
        "the old folder, until the new one is whole",
        "tests/unit/foundation/test_files.py::test_a_kill_between_the_two_steps_of_a_folder",
    ),
    Fault(
        "temporary files of a process that was killed",
        "the next writer of the same file removes them",
        "those of living processes",
        "tests/unit/foundation/test_files.py::test_leftovers_of_the_dead_are_removed",
    ),
    # fine-tuning
    Fault(
        "`kill -9` of a fine-tuning study",
        "the same command does what is missing",
        "finished runs; the one that was cut is done again",
        "tests/integration/test_finetune.py::test_a_killed_study_goes_on",
    ),
    Fault(
        "a run of the grid that diverges",
        "it is recorded and counted as failed; the study goes on",
        "all other runs; the failure is not tried again",
        "tests/integration/test_finetune.py::test_diverged_runs_are_recorded_and_counted",
    ),
    Fault(
        "every MNLI run diverges, and RTE starts from MNLI",
        "RTE is recorded as failed and has no score",
        "the other tasks and their scores",
        "tests/integration/test_finetune.py::test_if_every_run_failed_there_is_no_score",
    ),
    Fault(
        "a model that gives one answer to everything",
        "it is counted as collapsed; an undefined metric counts as 0 and is named",
        "the run with its answers",
        "tests/integration/test_finetune.py::test_constant_answers_are_counted_as_collapsed",
    ),
    Fault(
        "the encoder that RTE starts from is gone, or was half written",
        "that MNLI run is fine-tuned again for its encoder",
        "its record and predictions, untouched",
        "tests/integration/test_finetune.py::test_a_lost_encoder_is_made_again",
    ),
    Fault(
        "tokenised tasks damaged in the cache",
        "one line: damaged data cache",
        "all other files",
        "tests/unit/glue/test_encode.py::test_a_task_is_tokenised_once",
    ),
    Fault(
        "a bad label in the last of eight tasks",
        "one line with file and line number, before any run",
        "everything; no run has begun",
        "tests/integration/test_finetune.py::test_nothing_starts_on_bad_input",
    ),
    Fault(
        "malformed rows, with `skip_bad_rows`",
        "they are left out and counted in the record",
        "all good rows",
        "tests/unit/glue/test_readers.py::test_bad_rows_can_be_left_out_and_are_counted",
    ),
    Fault(
        "the tokenizer of another encoder beside the weights",
        "one line: it does not fit",
        "everything",
        "tests/unit/training/test_encoders.py::test_bad_checkpoints",
    ),
    Fault(
        "answers on different examples compared in pairs",
        "one line: not the same validation examples",
        "both files",
        "tests/unit/glue/test_metrics.py::test_comparing_different_examples_is_refused",
    ),
    # studies and workers
    Fault(
        "`kill -9` of a whole study with workers",
        "the same command does what is missing",
        "all finished runs, untouched",
        "tests/integration/test_experiments.py::test_killed_and_started_again",
    ),
    Fault(
        "a pre-training of a study that diverges",
        "it is recorded as failed; the study goes on",
        "all other runs; the failure is not tried again",
        "tests/integration/test_experiments.py::test_a_run_that_diverges_does_not_end_the_study",
    ),
    Fault(
        "an unknown task in a study",
        "one line, before any run",
        "everything; no run has begun",
        "tests/integration/test_experiments.py::test_bad_input_before_any_run",
    ),
    Fault(
        "a worker killed, as for want of memory",
        "one line: run again, with fewer workers",
        "all finished runs",
        "tests/integration/test_workers.py::test_a_killed_worker_is_reported",
    ),
    Fault(
        "an error in a worker",
        "the study ends with that error and begins no further run",
        "the runs that are finished",
        "tests/integration/test_workers.py::test_an_error_in_a_worker_ends_the_study",
    ),
    Fault(
        "a study killed while its workers compute",
        "the workers end within seconds",
        "all finished runs; none half-recorded",
        "tests/integration/test_workers.py::test_workers_do_not_outlive_the_study",
    ),
    Fault(
        "an error in the second of two runs",
        "the error comes out",
        "the first run; a damaged record of it is named later",
        "tests/unit/runs/test_sweep.py::test_an_error_keeps_what_was_done",
    ),
    # mutual information
    Fault(
        "a kill while states are collected",
        "the next start goes on with the next group of sequences",
        "the states on disk; files end equal, byte for byte",
        "tests/unit/information/test_states.py::test_a_killed_collection_goes_on",
    ),
    Fault(
        "a kill between two layers",
        "the next start measures the missing layers only",
        "the layers measured before",
        "tests/integration/test_information.py::test_a_killed_study_keeps_its_layers",
    ),
    Fault(
        "a progress file that is damaged or of other states",
        "it counts for nothing; the states are collected again",
        "the result is the same, byte for byte",
        "tests/unit/information/test_states.py::test_progress_that_is_of_no_use_counts_for_nothing",
    ),
    Fault(
        "states on disk cut short, changed or of another model",
        "one line that names the file or folder",
        "all other files",
        "tests/unit/information/test_states.py::test_damage_is_one_line",
    ),
    Fault(
        "too little disk for the states",
        "one line, before anything is written",
        "everything",
        "tests/unit/information/test_states.py::test_too_little_disk_is_seen_before_anything_is_written",
    ),
    Fault(
        "too little memory for the states of a layer",
        "one line: take fewer states, or keep them on disk",
        "everything",
        "tests/unit/information/test_states.py::test_memory_takes_as_many_layers_as_fit",
    ),
    Fault(
        "a state beyond the range of float16",
        "one line that names the layer",
        "all other files",
        "tests/unit/information/test_states.py::test_states_beyond_float16",
    ),
    Fault(
        "a run whose decoder was removed",
        "one line: the model is missing or has no decoder",
        "all other files",
        "tests/integration/test_information.py::test_a_run_without_its_decoder_or_with_another_text",
    ),
    Fault(
        "states that are not a number",
        "one line",
        "everything",
        "tests/unit/information/test_clustering.py::test_states_that_are_not_finite",
    ),
    # benchmark and report
    Fault(
        "a machine too noisy for a benchmark",
        "no speed is given, status 75",
        "the record, which says so; the next call measures again",
        "tests/integration/test_benchmark.py::test_measured_once_unless_it_gave_no_speed",
    ),
    Fault(
        "a machine that others keep busy when a benchmark is to start",
        "it is waited for, then one line, status 75; a report's page is made, and gives no speed",
        "all files; nothing is recorded",
        "tests/integration/test_benchmark.py::test_a_busy_machine_is_refused",
    ),
    Fault(
        "a kill between two sessions of a benchmark",
        "the same command measures the sessions that are missing",
        "the sessions before",
        "tests/integration/test_benchmark.py::test_each_session_is_a_process_and_finished_ones_stay",
    ),
    Fault(
        "a notebook of the report that fails",
        "it is named; the others are executed; no page of it is made",
        "the notebooks that were executed before",
        "tests/integration/notebooks/test_report.py::test_notebooks_are_executed_where_out_of_date",
    ),
    Fault(
        "a run deleted that a page shows",
        "that page is made again",
        "all other pages",
        "tests/integration/notebooks/test_report.py::test_a_page_whose_run_is_gone_is_made_again",
    ),
    Fault(
        "an executed notebook that ended in an error",
        "one line; no report is built",
        "the report before, whole",
        "tests/integration/notebooks/test_report.py::test_warnings_stay_and_failures_are_refused",
    ),
    Fault(
        "a misspelt parameter given to a notebook",
        "papermill ends with that one line",
        "everything",
        "tests/integration/notebooks/test_notebooks.py::test_a_misspelt_parameter_is_refused",
    ),
    Fault(
        "the cells of a notebook run again after an edit",
        "they run; what later cells defined is not in the way",
        "the runs done before",
        "tests/integration/notebooks/test_notebooks.py::test_cells_can_be_run_again",
    ),
    # an installed package
    Fault(
        "a library that is not installed, as an extra was left out",
        "one line: what needs which library, and the command that installs it",
        "everything; runs that need no more than the base install go on",
        "tests/integration/test_wheel.py::test_a_library_that_is_missing",
    ),
    Fault(
        "notebooks copied into a folder with notebooks of the same names that were edited",
        "one line, nothing is copied; `--overwrite` replaces them",
        "all that was in the folder",
        "tests/unit/reporting/test_notebooks.py::test_no_notebook_is_overwritten_without_being_told",
    ),
    Fault(
        "a disk that fills up while notebooks are copied",
        "one line with the file",
        "every notebook that is there is whole; the same command goes on",
        "tests/unit/reporting/test_notebooks.py::test_a_full_disk_leaves_whole_notebooks_and_the_same_command_goes_on",
    ),
    Fault(
        "notebooks copied to where no folder can be made or written",
        "one line with the path",
        "everything",
        "tests/unit/reporting/test_notebooks.py::test_a_folder_that_cannot_be_made_or_written",
    ),
]

# -- the document ---------------------------------------------------------------------------------------------


def render() -> str:
    """The table of docs/reliability.md."""
    rows = [(fault.done, fault.outcome, fault.kept, fault.test) for fault in FAULTS]
    rows += [
        (
            f"{row.done} (`{row.command}`)",
            f"one line, status 2: `... {row.says} ...`",
            "all files, byte for byte",
            f"tests/integration/test_faults.py::test_bad_input[{row.id}]",
        )
        for row in BAD_INPUTS
    ]
    lines = [
        f"{len(FAULTS)} faults and {len(BAD_INPUTS)} bad inputs:",
        "",
        "| what was done | what comes out | what is kept | test |",
        "|---|---|---|---|",
        *(f"| {done} | {outcome} | {kept} | `{test}` |" for done, outcome, kept, test in rows),
    ]
    return "\n".join(lines)


def replace_table(text: str) -> str:
    """The document with the table as it is now."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n{render()}\n\n{END}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(replace_table(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
