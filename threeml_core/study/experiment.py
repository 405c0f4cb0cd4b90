"""An experiment: a table or figure of the paper, or an ablation of your own, as one object. No torch.

An ablation of your own is one file: an `Experiment` in `study/experiments/`, where it is found by itself, or in a
script that gives it to `run_study`, `find` and `experiment_table`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from threeml_core.config import StudyConfig, study_steps
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.parameters.masking import rate_label
from threeml_core.statistics.verdicts import Claim

Changes = dict[str, Any]
"""Parameters of a run that are not those of the study, and their values."""


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """What its runs change, how their encoders are fine-tuned, what is shown and claimed.

    What it does not vary is as the study's configuration has it (the paper's gray rows).

    Attributes:
        name: such as "Table 2a".
        title: what it is about, for captions.
        models: architectures, or architectures with a mask rate; each is run with all that varies.
        vary: parameter -> its values, or the name of the parameter that lists them, such as `study_depths`.
        further: of a study -> more runs, such as those that depend on others.
        tasks: on which its encoders are fine-tuned: `all` that the study asks for; those of the paper's ablations
            (`ablation`), with steps and pre-training seeds of their own (`ablation_steps`, ...); "": none.
        heading: of the column of what varies; "": the parameter's name.
        columns: heading -> perplexity of pre-training that stands beside the scores, see `Result.metric`. What the
            paper reports (`paper.py`) under the experiment's name stands beside it too.
        claims: from what a study found (`evidence.Evidence`) to a claim of the paper with what is said of it.
        is_ablation: its runs get the ablations' number of seeds, as those with `tasks="ablation"` do.
    """

    name: str
    title: str
    models: Iterable[str | tuple[str, float]]
    vary: Mapping[str, str | Sequence[Any]] = dataclasses.field(default_factory=dict)
    further: Callable[[StudyConfig], Sequence[Changes]] = lambda config: ()
    tasks: str = ""
    heading: str = ""
    columns: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"Perplexity, masked": "eval_perplexity_masked"}
    )
    claims: Sequence[Callable[[Any], Claim]] = ()
    is_ablation: bool = False

    def values(self, config: StudyConfig, parameter: str) -> Sequence[Any]:
        """Those that a parameter of `vary` takes."""
        values = self.vary[parameter]
        return config.listed(values) if isinstance(values, str) else values

    def changes(self, config: StudyConfig) -> list[Changes]:
        """What each of its runs changes in the study's configuration, in the order in which they are done.

        Raises:
            ParameterError: a value in a list that nothing can have.
        """
        steps = self.tasks == "ablation" and config.ablation_steps or study_steps(config)
        names = (*self.vary, "architecture", "mask_rate")  # the last one only where a model has its own
        models = [(m,) if isinstance(m, str) else m for m in self.models]
        points = itertools.product(*(self.values(config, parameter) for parameter in self.vary))
        runs = [dict(zip(names, (*point, *model), strict=False)) for point in points for model in models]
        return [{"max_steps": steps, **changes} for changes in (*runs, *self.further(config))]


def comparison_config(config: StudyConfig) -> StudyConfig:
    """How the models of Table 3 are fine-tuned: on all tasks asked for, with all seeds."""
    return config.replace(checkpoint=None)


def ablation_config(config: StudyConfig) -> StudyConfig:
    """How the models of the ablations are fine-tuned: on MNLI, QNLI and QQP. Source: section 3.1."""
    tasks = config.tasks if config.glue == "bundled" else "ablation"
    return config.replace(checkpoint=None, tasks=tasks, num_seeds=config.num_ablation_seeds or config.num_seeds)


@dataclasses.dataclass(frozen=True)
class StudyRun:
    """A pre-training run of the study (`config` has its first seed), and the experiments that need it."""

    config: StudyConfig
    experiments: tuple[Experiment, ...]

    @property
    def exhibits(self) -> tuple[str, ...]:
        """Names of the tables and figures that show it."""
        return tuple(experiment.name for experiment in self.experiments)

    @property
    def model(self) -> str:
        """Architecture and mask rate, as in the paper."""
        return f"{ARCHITECTURES[self.config.architecture].label}-{rate_label(self.config.parameters())}"

    @property
    def seeds(self) -> range:
        """Its pre-training seeds."""
        c = self.config
        is_ablation = all(of.is_ablation or of.tasks == "ablation" for of in self.experiments)
        count = is_ablation and c.num_ablation_pretrain_seeds or c.num_pretrain_seeds
        return range(c.seed, c.seed + count)

    def finetunings(self, config: StudyConfig) -> dict[str, StudyConfig]:
        """Of a study: `Experiment.tasks` -> how its encoders are fine-tuned on them."""
        ways = {"all": comparison_config, "ablation": ablation_config}
        needed = {experiment.tasks for experiment in self.experiments}
        return {tasks: way(config) for tasks, way in ways.items() if tasks in needed}
