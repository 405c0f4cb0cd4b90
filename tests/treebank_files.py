"""A small treebank whose labels follow from the words, in CoNLL-U, from a grammar of our own."""

from __future__ import annotations

import random
from pathlib import Path

NOUNS, VERBS = ("cat", "dog", "bird", "fish", "horse"), ("sees", "hears", "follows", "likes")


def write_treebank(folder: Path, sentences: int = 120) -> Path:
    """Training and test file: "The cat sees the dog ." with 2 labels of every word; returns the folder."""
    rng = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("small-train", sentences), ("small-test", sentences // 2)):
        blocks = []
        for number in range(count):
            one, verb, other = rng.choice(NOUNS), rng.choice(VERBS), rng.choice(NOUNS)
            words = [("The", "DET", 2, "det"), (one, "NOUN", 3, "nsubj"), (verb, "VERB", 0, "root")]
            words += [("the", "DET", 5, "det"), (other, "NOUN", 3, "obj"), (".", "PUNCT", 3, "punct")]
            rows = [
                f"{i}\t{w}\t_\t{pos}\t_\t_\t{head}\t{label}\t_\t_" for i, (w, pos, head, label) in enumerate(words, 1)
            ]
            blocks.append("\n".join([f"# newdoc id = {name}-{number // 10}"] * (number % 10 == 0) + rows) + "\n\n")
        (folder / f"{name}.conllu").write_text("".join(blocks), encoding="utf-8")
    return folder
