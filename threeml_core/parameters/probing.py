"""Parameters of probing: what frozen encoders are asked (09_probing)."""

from __future__ import annotations

import dataclasses

from threeml_core.parameters.parameter import COUNT, SEED, at_least, one_of, parameter, setting, some_of

CONTROL = "{} by heart"
"""Name of the control task of a task on words: a class for each word type, at random."""

TASKS = ("upos", "deprel", "bigram_shift", "shuffled_span")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbingParameters:
    """Probing: what frozen encoders are asked, and how."""

    STAGES = "probe"

    encoders: str | None = setting(
        None,
        "folders or hub names, random:<either> for its size with random weights; join with commas",
        none="the study's models at equal steps, pre-trained if need be, and one with random weights a seed",
    )
    probe_tasks: str = parameter("all", "what is asked", some_of(TASKS))
    ud: str | None = parameter(
        None,
        "folder of Universal Dependencies, .conllu, also compressed; 'test' in a file's name: test",
        none="no treebank: word order alone",
    )
    max_probe_sentences: int = parameter(
        40_000, "at most this many sentences of the validation text, for the tasks on word order", at_least(100)
    )
    probe_pooling: str = parameter("mean", "a word's state: of its first token, or the mean", one_of(("first", "mean")))
    probe_length: int | None = parameter(
        None,
        "tokens that an encoder is given at once; longer texts go in equal windows",
        at_least(8),
        none="those of its pre-training if it is of this project, else 128, or as many as it takes",
    )
    probe_seed: int = parameter(
        0, "seed of what is moved in a sentence, of control labels, and of random weights", SEED
    )
    probe_batch_size: int = setting(64, "texts in a forward pass", COUNT)
