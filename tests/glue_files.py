"""A folder in the official `glue_data` layout, with sentences made here: every label can be read off one word."""

from __future__ import annotations

import random
from pathlib import Path

HEADERS = {
    "CoLA": None,
    "SST-2": "sentence\tlabel",
    "MRPC": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "STS-B": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
    "QQP": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "MNLI": "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
    "sentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
    "QNLI": "index\tquestion\tsentence\tlabel",
    "RTE": "index\tsentence1\tsentence2\tlabel",
}
LABELS = {
    "CoLA": ["0", "1"],
    "SST-2": ["0", "1"],
    "MRPC": ["0", "1"],
    "STS-B": ["0.0", "2.5", "5.000"],
    "QQP": ["0", "1"],
    "MNLI": ["entailment", "neutral", "contradiction"],
    "QNLI": ["entailment", "not_entailment"],
    "RTE": ["entailment", "not_entailment"],
}
WORDS = ["cat", "dog", "bird"]


def row(task: str, number: int, first: str, second: str, label: str) -> str:
    """A line of the official file; the dev files of MNLI have more columns, which by name makes no difference."""
    fillers = {
        "CoLA": ["gj04", label, "", second],
        "SST-2": [second, label],
        "MRPC": [label, "1", "2", first, second],
        "STS-B": [str(number), "g", "f", "2012", "1", "none", "none", first, second, label],
        "QQP": [str(number), "1", "2", first, second, label],
        "MNLI": [str(number), *["n/a"] * 7, first, second, label, label],
        "QNLI": [str(number), first, second, label],
        "RTE": [str(number), first, second, label],
    }
    return "\t".join(fillers[task])


def write_split(path: Path, task: str, size: int, seed: int) -> None:
    rng = random.Random(seed)
    lines = [HEADERS[task]] if HEADERS[task] else []
    for number in range(size):
        label = rng.randrange(len(LABELS[task]))
        first = f"The {rng.choice(WORDS)} sees the house" + " again" * rng.randrange(4) + "."
        second = f'The {WORDS[label]} said "no' + rng.choice(["", '"', " and went away"]) + "."  # a stray quote
        lines.append(row(task, number, first, second, LABELS[task][label]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_glue(folder: Path, train: int = 64, dev: int = 24) -> Path:
    """All eight tasks."""
    for task in HEADERS:
        write_split(folder / task / "train.tsv", task, train, 0)
        tags = ["_matched", "_mismatched"] if task == "MNLI" else [""]
        for number, tag in enumerate(tags, 1):
            write_split(folder / task / f"dev{tag}.tsv", task, dev, number)
    return folder
