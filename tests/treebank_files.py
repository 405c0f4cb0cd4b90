"""A small treebank whose labels follow from the words, in CoNLL-U, from a grammar of our own."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

NOUNS, VERBS = ("cat", "dog", "bird", "fish", "horse", "cow", "bee"), ("sees", "hears", "follows", "likes")


def write_treebank(folder: Path, sentences: int = 120) -> Path:
    """Training and test file: "The cat sees the dog ." with 2 labels of every word; each once, ten a document."""
    found = list(itertools.product(NOUNS, VERBS, NOUNS))
    random.Random(0).shuffle(found)
    folder.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("small-train", found[:sentences]), ("small-test", found[sentences:][: sentences // 2])):
        blocks = []
        for number, (one, verb, other) in enumerate(chosen):
            words = [("The", "DET", 2, "det"), (one, "NOUN", 3, "nsubj"), (verb, "VERB", 0, "root")]
            words += [("the", "DET", 5, "det"), (other, "NOUN", 3, "obj"), (".", "PUNCT", 3, "punct")]
            rows = [
                f"{i}\t{w}\t_\t{pos}\t_\t_\t{head}\t{label}\t_\t_" for i, (w, pos, head, label) in enumerate(words, 1)
            ]
            blocks.append("\n".join([f"# newdoc id = {name}-{number // 10}"] * (number % 10 == 0) + rows) + "\n\n")
        (folder / f"{name}.conllu").write_text("".join(blocks), encoding="utf-8")
    return folder
