"""The first screen of a report: what was found and at what scale, in at most three sentences from its records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from threeml_core.benchmark import speeds
from threeml_core.config import StudyConfig, study_steps
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.glue.tasks import GLUE_TASKS, select_tasks
from threeml_core.reporting import cells
from threeml_core.reporting.claims import claim_table, key_figure, measured
from threeml_core.reporting.documents import Study, judged_by_probes, probes_found
from threeml_core.reporting.forest import FINE_TUNED, PROBES, forest_plot
from threeml_core.reporting.notes import first_notes
from threeml_core.reporting.performance import noise_statement, speed_comparison
from threeml_core.reporting.references import AVERAGE, WORDS, references
from threeml_core.reporting.rivals import answer as rivals_answer
from threeml_core.reporting.rivals import comparison_table, plot_scores
from threeml_core.reporting.speedrun import answer as speedrun_answer
from threeml_core.reporting.speedrun import ladder_table
from threeml_core.reporting.standing import standing_table
from threeml_core.reporting.style import Figure
from threeml_core.reporting.table import Table
from threeml_core.runs.archive import RESULTS, SESSIONS, read_archive
from threeml_core.runs.record import RunRecord
from threeml_core.statistics.verdicts import CONTRADICTED, NOT_RUN, SUPPORTED, UNDECIDED, Claim
from threeml_core.study.claims import claims
from threeml_core.study.ledger import find
from threeml_core.study.results import Result, averages
from threeml_core.study.rivals import read_race
from threeml_core.study.rungs import climbed, read_sweep

FINDINGS = {
    "06_comparison": "study",
    "09_probing": "probes",
    "11_speedrun": "speedrun",
    "12_rivals": "rivals",
    "08_performance": "clock",
}
"""Page -> what a report that has it is about; the first of them counts."""


def scale(config: StudyConfig, records: Sequence[RunRecord]) -> str:
    """Of the study in a few words, for titles: its preset, its encoders, the tokens of a pre-training."""
    trained = [r.parameters for r in records if r.stage == "pretrain" and r.failure is None]
    tokens = {of["max_steps"]: of["max_steps"] * of["batch_size"] * of["sequence_length"] for of in trained}
    text = f"preset {config.preset}, {config.num_hidden_layers} layers × {config.hidden_size}"
    if not tokens:
        return text
    steps = study_steps(config)
    most = f"{_count(tokens[steps])}" if steps in tokens else f"up to {_count(max(tokens.values()))}"
    return f"{text}, {most} tokens"


def _count(number: float) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:g}"


def _range(values: Sequence[float], text: Callable[[float], str] = _count) -> str:
    """Of sorted values the first and the last, if they read differently."""
    return " to ".join(dict.fromkeys(map(text, (*values[:1], *values[-1:]))))


def scale_sentence(config: StudyConfig, results: Sequence[Result]) -> str:
    """Preset, size, steps, seeds, text and tasks of the models of Table 3, or of what there is."""
    shown = cells.with_equal_steps(results, config) or list(results)
    c = shown[0].run.config if shown else config
    steps = sorted({result.run.config.max_steps for result in shown} or {config.max_steps})
    tokens = [c.batch_size * c.sequence_length * each for each in steps]
    counts = sorted({r.data["parameters"] for result in shown for r in result.ended.values()})
    size = _range(counts)
    seeds = max((len(result.ended) for result in shown), default=0)
    return (
        f"Scale: preset {config.preset}, encoders of {c.num_hidden_layers} layers × {c.hidden_size}"
        f"{f' ({size} parameters)' if size else ''}, "
        f"{_range(steps, '{:,}'.format)} steps of {c.batch_size} sequences of {c.sequence_length} tokens "
        f"({_range(tokens)}), {_plural(seeds, 'pre-training seed')}, "
        f"{_text_of(config)}{_tasks_of(config) if any(result.comparison for result in shown) else ''}."
    )


def _text_of(config: StudyConfig) -> str:
    first, *others = config.corpus.split(",")
    if first == "bundled":
        return "the bundled text"
    return f"text {first}" + (f" and {_plural(len(others), 'more file')}" if others else "")


def _tasks_of(config: StudyConfig) -> str:
    tasks = select_tasks(config)
    kind = "tasks of GLUE" if tasks[0].name in GLUE_TASKS else "diagnostic tasks (not GLUE)"
    most = config.max_train_examples
    return f", {len(tasks)} {kind}" + (f" with at most {most:,} training examples each" if most else "")


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'s' * (count != 1)}"


def verdict_sentence(found: Sequence[Claim], probed: Sequence[Claim] = (), where: str = "", judged: str = "") -> str:
    """How many claims are supported, contradicted and undecided, and why, if all that are so have one reason.

    Args:
        found: the claims as the study judges them.
        probed: some of them by probes.
        where: in words, whose probes these are.
        judged: in words, which of the paper's claims `found` are.
    """
    if len(found) == 1:
        text = f"The paper's claim{judged}, {_short_name(found[0])}, is {found[0].verdict}"
    else:
        text = f"Of the paper's {len(found)} claims{judged}, {_counted(found)}"
    if reasons := [set(claim.reasons.split("; ")) for claim in found if claim.verdict == UNDECIDED]:
        if common := set.intersection(*reasons):
            text += f" ({'; '.join(sorted(common))})"
    if known := [claim for claim in probed if claim.verdict != NOT_RUN]:
        text += f"; by probes of frozen encoders{where}, {_counted(known)}"
    return f"{text}."


def _counted(found: Sequence[Claim]) -> str:
    parts = []
    for verdict in (SUPPORTED, CONTRADICTED, UNDECIDED, NOT_RUN):
        if names := [_short_name(claim) for claim in found if claim.verdict == verdict]:
            who = "all" if len(names) == len(found) > 1 else cells.joined(names)
            parts.append(f"{who} {'is' if len(names) == 1 else 'are'} {verdict}")
    return cells.joined(parts)


def _short_name(claim: Claim) -> str:
    return claim.name.partition(" ")[0]


def model_sentence(results: Sequence[Result], config: StudyConfig, records: Sequence[RunRecord] | None = None) -> str:
    """3ML_self at the highest rate: FLOPs of vanilla-15%, perplexity and score against vanilla-40%; a bag of words."""
    shown = [result for result in cells.with_equal_steps(results, config) if result.ended]
    vanilla = [result for result in shown if result.run.config.architecture == "vanilla"]
    ours = [result for result in shown if result.run.config.architecture == "self"]
    if not vanilla or not ours:
        return "Not all models of Table 3 have been run." if shown else "Nothing of it has been run yet."
    model, other = ours[-1], vanilla[-1]
    share = "".join(f"takes {1 / up:.0%} of the FLOPs of vanilla-15%, " for up in cells.speedup(model))
    text = f"{model.run.model} {share}and against {other.run.model} has a perplexity at [MASK]s of "
    text += f"{cells.perplexity(model)} against {cells.perplexity(other)}"
    if averages(model.comparison) and averages(other.comparison):
        score = f"{cells.average(model.comparison)} against {cells.average(other.comparison)}"
        text += f", an average score of {score} ({cells.average_difference(model.comparison, other.comparison)})"
    if plateau := sum(result.on_plateau for result in shown):
        text += f"; {plateau} of {len(shown)} models are still on the unigram plateau"
    scores = [score for result in shown for score in averages(result.comparison).values()]
    words = references(shown, "comparison", records).get(WORDS, {}).get(AVERAGE)
    if words is not None and scores:
        beats = "more than every encoder, so scores of this size say little of them" if words > max(scores) else ""
        text += f"; a bag of words scores {words:.1f}" + (f", {beats}" if beats else "")
    return f"{text}."


def difference_sentence(found: Sequence[Claim]) -> str:
    """The comparisons that decided a claim, with the mean differences and their intervals; else all of them."""
    decided = [f for claim in found for f in claim.findings if claim.verdict == f.verdict in (SUPPORTED, CONTRADICTED)]
    findings = decided or [finding for claim in found for finding in claim.findings if finding.values]
    return f"Mean accuracy: {'; '.join(f'{of.what}: {measured(of)}' for of in findings) or NOT_RUN}."


def probe_sentences(found: Sequence[Claim]) -> list[str]:
    """What probes say: of a budget, if that is judged (E1), and of the paper's claims (C1 to C7)."""
    paper = [claim for claim in found if claim.name.startswith("C")]
    verdicts = verdict_sentence(paper, judged=" that probes of frozen encoders judge")
    if not (budget := [claim for claim in found if claim not in paper]):
        return [verdicts, difference_sentence(paper)]
    rates = [claim for claim in paper if claim.name.startswith("C1 ")]
    text = "With the FLOPs of vanilla-15%, 3ML_self"
    verdict = {SUPPORTED: "has the better encoder", CONTRADICTED: "does not have the better encoder"}
    text += f" {verdict.get(budget[0].verdict, 'is neither better nor worse as far as these seeds can tell')}"
    differences = [f"{of.what.partition(' against')[0]} {measured(of)}" for c in (*budget, *rates) for of in c.findings]
    return [f"{text} (mean probe accuracy against vanilla-15%: {cells.joined(differences)}).", verdicts]


def clock_sentences(records: Sequence[RunRecord]) -> list[str]:
    """What sessions in turns say of the time of 3ML's step against vanilla-15% and Hugging Face; where, how sure."""
    found = {of.name: of for of in speeds.speeds(records)} if records else {}
    ours = [of for name, of in found.items() if name.startswith("self")]
    if not ours:
        return [noise_statement(records) if records else "The clock has not been measured."]
    of = ours[-1]
    hf = f", and {speeds.text_of(of.over_hf)} times as fast as Hugging Face's run_mlm" if of.over_hf else ""
    return [
        f"{of.label} trains {speeds.text_of(of.over_vanilla)} times as fast as {found[speeds.BASELINE].label} "
        f"({of.realised.value:.0%} of its speed-up in FLOPs){hf}.",
        noise_statement(records),
    ]


def study_page(config: StudyConfig, records: Sequence[RunRecord]) -> tuple[list[str], list[Figure | Table | str]]:
    """Of a report with Table 3: its sentences, and the claims as a plot and a table, notes and key figure."""
    stages = {stage: [record for record in records if record.stage == stage] for stage in {r.stage for r in records}}
    results = find(config, None, [*stages.get("pretrain", ()), *stages.get("finetune", ())])
    found = claims(config, results, stages.get("mutual_information", ()), stages.get("benchmark", ()))
    probed, where = _probed(config, bool(stages.get("probe")))
    probed = [claim for claim in probed if any(finding.values for finding in claim.findings)]
    said = [verdict_sentence(found, probed, where), model_sentence(results, config, records)]
    said.append(scale_sentence(config, results))
    notes = f"{first_notes(results)} The rule of the verdicts, which no result can change: "
    notes += "[comparison](06_comparison.ipynb#the-paper-s-claims)."
    forest = forest_plot({FINE_TUNED: found, PROBES: probed})
    return said, [forest, key_figure(results, config, records), notes, claim_table(found)]


def _probed(config: StudyConfig, has_own: bool) -> tuple[list[Claim], str]:
    """Claims by probes, of the study's own encoders, or of those of the committed report `<preset>-probes`."""
    beside = f"{config.preset}-probes"
    if has_own:
        return judged_by_probes(config), ""
    if (PROJECT_ROOT / "reports" / beside / RESULTS).exists():
        return judged_by_probes(Study(beside).config), f" of this size ({beside})"
    return [], ""


def first_page(
    config: StudyConfig, records: Sequence[RunRecord], pages: Sequence[str], committed: Path
) -> tuple[list[str], list[Figure | Table | str]]:
    """Sentences and what stands below them (Markdown, figures, tables); both empty: no page finds anything.

    Args:
        config: of the study.
        records: that the report shows.
        pages: names of its notebooks.
        committed: folder of the report, in which sessions of a benchmark may lie.
    """
    about = next((about for page, about in FINDINGS.items() if page in pages), "")
    if about == "study":
        return study_page(config, records)
    if about == "probes":
        found = judged_by_probes(config)
        results = find(config, None, [record for record in records if record.stage == "pretrain"])
        standing = standing_table(probes_found(config), results, config)
        said = [*probe_sentences(found), scale_sentence(config, results)]
        return said, [standing, forest_plot({PROBES: found}), claim_table(found)]
    if about == "speedrun":
        ladder = climbed(config, read_sweep(config))
        tried = [result for rung in ladder for result in rung.results if result.ended]
        return [*speedrun_answer(ladder)[:2], scale_sentence(config, tried)], [ladder_table(ladder)]
    if about == "rivals":
        race = read_race(config)
        largest = [result for of in race.raced for result in of.results[-1:] if result.ended]
        said = [*rivals_answer(race), scale_sentence(config, largest)]
        return said, [plot_scores(race, config), comparison_table(race)] if largest else []
    if about == "clock":
        sessions = [record for record in records if record.stage == "benchmark"]
        if not sessions and (committed / SESSIONS).exists():
            sessions = read_archive(committed, SESSIONS)
        return clock_sentences(sessions), [speed_comparison(sessions)] if sessions else []
    return [], []
