"""The last cell of a notebook: what came out, where it lies, and the command that goes on from it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from IPython.display import display

from threeml_core.config import StudyConfig
from threeml_core.foundation.log import tell_terminal
from threeml_core.reporting.answer import model_sentence, verdict_sentence
from threeml_core.reporting.pretraining import loss_sentence
from threeml_core.runs.record import RunRecord
from threeml_core.statistics.verdicts import NOT_RUN
from threeml_core.study.claims import claims
from threeml_core.study.results import Result


class Ending:
    """A page's result as Markdown, and as text, which papermill's terminal gets as well when it is displayed.

    Args:
        said: sentences.
        where: what lies where, or what to do next: label -> path or command.
    """

    def __init__(self, said: Sequence[str], where: Mapping[str, str]) -> None:
        self.said, self.where = tuple(said), dict(where)

    def __repr__(self) -> str:
        return "\n".join(["Result:", *self.said, *(f"{label}: {value}" for label, value in self.where.items())])

    def _repr_markdown_(self) -> str:
        return "\n\n".join(self.said) + "\n\n" + "\n".join(f"* {label}: `{of}`" for label, of in self.where.items())

    def _ipython_display_(self) -> None:
        display({"text/markdown": self._repr_markdown_(), "text/plain": repr(self)}, raw=True)
        tell_terminal(repr(self))


def result(
    config: StudyConfig,
    said: str | Iterable[str],
    records: RunRecord | Iterable[RunRecord] = (),
    then: str = "",
    where: Mapping[str, str] | None = None,
    **given: object,
) -> Ending:
    """The result of a page.

    Args:
        config: of the page.
        said: what came out; a sentence or several.
        records: behind it; their folders are named, of many those of their stages.
        then: the notebook that goes on from here.
        where: label -> path of what else lies somewhere.
        given: parameters for that notebook, beside those that this one was given.
    """
    records = [records] if isinstance(records, RunRecord) else list(records)
    lies = {} if config.plan_only else _places(records, config.runs_dir) | dict(where or {})
    if then:
        lies["next"] = _command(then, config, given)
    return Ending([said] if isinstance(said, str) else list(said), lies)


def _places(records: Sequence[RunRecord], runs_dir: str) -> dict[str, str]:
    if len(records) == 1:
        folder = f"{runs_dir}/{records[0].stage}/{records[0].run_id}"
        return {"record": f"{folder}/record.json"}
    stages = [record.stage for record in records]
    return {f"{stages.count(stage)} records": f"{runs_dir}/{stage}" for stage in dict.fromkeys(stages)}


def _command(notebook: str, config: StudyConfig, more: Mapping[str, object]) -> str:
    """With what this page was given; a checkpoint knows how it was made, and a plan needs its preset alone."""
    names = [name for name, source in config.sources.items() if source == "given" and name != "preset"]
    if config.plan_only or "checkpoint" in more:
        names = [name for name in names if name == "runs_dir" and not config.plan_only]
    given = {"preset": config.preset, **{name: getattr(config, name) for name in names}, **more}
    parts = [part for name, value in given.items() for part in ("-p", name, f"{value}")]
    return shlex.join(["papermill", f"notebooks/{notebook}.ipynb", "out.ipynb", *parts])


def of_pretraining(record: RunRecord, config: StudyConfig) -> Ending:
    """Of one run: loss, perplexity and FLOPs, its record, its encoder, and how to fine-tune that."""
    encoder = f"{config.runs_dir}/{record.stage}/{record.run_id}/encoder"
    more = {} if config.plan_only else {"checkpoint": encoder}
    return result(config, loss_sentence(record), record, "03_finetune", {"encoder": encoder}, **more)


def of_study(results: Sequence[Result], config: StudyConfig, then: str = "") -> Ending:
    """Of a page of the study: the paper's claims that its runs judge, and the models of Table 3, if it has them."""
    judged = [claim for claim in claims(config, results, ()) if claim.verdict != NOT_RUN]
    said = [verdict_sentence(judged, judged=" that this page judges")] if judged else ["No claim is judged: not run."]
    if any("Table 3" in result.run.exhibits for result in results):
        said.append(model_sentence(results, config))
    trained = [record for result in results for record in result.ended.values()]
    studies = [study for result in results for of in (result.comparison, result.ablation) for study in of.values()]
    tuned = {record.run_id: record for study in studies for found in study.records.values() for record in found}
    return result(config, said, [*trained, *tuned.values()], then)
