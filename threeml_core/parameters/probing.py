"""Parameters of probing: what frozen encoders are asked (09_probing)."""

from __future__ import annotations

import dataclasses

from threeml_core.parameters.masking import MASK_RATES
from threeml_core.parameters.parameter import COUNT, SEED, at_least, one_of, parameter, setting, some_of

CONTROL = "{} by heart"
"""Name of the control task of a task on words: a class for each word type, at random."""

STRENGTHS = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Of the ridge penalty, on standardised states, as a share of their number; held-out training text chooses one."""

TASKS = ("upos", "deprel", "bigram_shift", "shuffled_span")
TASKS_BY_NAME = ("next_word", "sentence_length", "depth")
"""No part of `all`, which is what records of it were asked, and of no claim."""

WORD_TASKS = ("upos", "deprel", "next_word")
TREEBANK_TASKS = (*WORD_TASKS, "depth")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbingParameters:
    """Probing: what frozen encoders are asked, and how."""

    STAGES = "probe"

    encoders: str | None = setting(
        None, "folders, hub names or random:<either>; join with commas", none="the study's, and random weights"
    )
    probe_ablations: bool = setting(False, "the models of Table 2 too, pre-trained if need be: for claims C4 to C6")
    probe_sizes: bool = setting(False, "the models of each of study_sizes too, with the ablations' number of seeds")
    probe_tasks: str = parameter("all", "what is asked", some_of((*TASKS, *TASKS_BY_NAME), TASKS))
    ud: str | None = parameter(None, "folder of treebanks, .conllu; '*test*': for the test", none="word order alone")
    max_probe_sentences: int = parameter(40_000, "most sentences of the validation text that are asked", at_least(100))
    probe_pooling: str = parameter("mean", "a word's state: of its first token, or the mean", one_of(("first", "mean")))
    probe_length: int | None = parameter(
        None, "tokens an encoder gets at once; more go in windows", at_least(8), none="as pre-trained, or 128"
    )
    probe_seed: int = parameter(
        0, "seed of moved words and of control labels; of random weights where no study has one", SEED
    )
    probe_rates: str = parameter("0.15,0.25,0.4,0.6,0.8", "rate matrix: mask rates of validation", MASK_RATES)
    probe_batch_size: int = setting(64, "texts in a forward pass", COUNT)
