"""Figures that stand in prose are those of the committed records."""

from __future__ import annotations

import dataclasses
import functools
import html
import math
import re
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from threeml_core.config import StudyConfig, make_config
from threeml_core.flops import config_speedup
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.glue.metrics import task_score
from threeml_core.glue.tasks import GLUE_TASKS
from threeml_core.information.findings import first_block
from threeml_core.information.ledger import information_records, probe_records
from threeml_core.reporting.answer import clock_sentences
from threeml_core.reporting.documents import REPLICATIONS
from threeml_core.reporting.figure_4 import layers_of
from threeml_core.reporting.page import without_dead_links
from threeml_core.reporting.rivals import answer as rivals_answer
from threeml_core.reporting.speedrun import answer
from threeml_core.reporting.standing import standing_table
from threeml_core.reporting.table_2 import swap_table
from threeml_core.runs.archive import SESSIONS, from_records, read_archive
from threeml_core.runs.record import RunRecord
from threeml_core.statistics.intervals import Interval, pooled_spread
from threeml_core.statistics.verdicts import Claim, Finding, corrected_verdicts
from threeml_core.study.ledger import find
from threeml_core.study.probes import (
    ABLATIONS,
    DECIDING,
    OTHER_SIZES,
    PROBED,
    PROBES,
    RANDOM,
    ProbeEvidence,
    Probes,
    compared,
    named,
    probe_claims,
    probes_of,
    results_to_probe,
)
from threeml_core.study.results import Result
from threeml_core.study.rivals import read_race
from threeml_core.study.rungs import RUNGS, Climbed, best_of, climbed, gain, read_sweep, too_slow

README = (PROJECT_ROOT / "README.md").read_text(encoding="utf-8")


def archived(preset: str) -> StudyConfig:
    return from_records(make_config({"preset": preset}), PROJECT_ROOT / "reports" / preset)


@functools.cache
def replication(preset: str) -> tuple[StudyConfig, list[Result], ProbeEvidence, Probes]:
    """A committed report that probes judge."""
    config = archived(preset)
    results = results_to_probe(config)
    found = probes_of(config, results, probe_records(config))
    return config, results, ProbeEvidence(config, results, probes=found), found


def contradicted(found: Sequence[Claim], change: Callable[[Finding], Finding]) -> tuple[set[str], set[str]]:
    """Claims that are contradicted alone, and corrected, if each comparison is judged as `change` makes it."""
    other = [dataclasses.replace(claim, findings=tuple(map(change, claim.findings))) for claim in found]
    verdicts = zip([claim.name[:2] for claim in other], other, corrected_verdicts(other), strict=True)
    judged = [(name, claim.verdict, corrected) for name, claim, corrected in verdicts]
    return {n for n, alone, _ in judged if alone == "contradicted"}, {n for n, _, c in judged if c == "contradicted"}


def not_pooled(finding: Finding) -> Finding:
    return dataclasses.replace(finding, pooled=False)


@pytest.fixture(scope="module")
def ladder() -> list[Climbed]:
    config = archived("speedrun")
    swept = read_sweep(config)
    assert len({result.run.seeds for result in swept}) == 1 and not too_slow(config, swept)
    found = climbed(config, swept)
    for of in found:  # each with the best rate of its recipe, and seeds that tuned nothing
        assert list(of.steps) == [1, 2, 3] and best_of(swept) and not of.is_bound
    return found


def test_the_speedrun(ladder: list[Climbed]) -> None:
    assert [of.rung for of in ladder] == list(RUNGS)
    gains = {of.rung.name: found for of in ladder[1:] if (found := gain(ladder[0], of))}
    best = max(gains.values(), key=lambda found: found.mean)
    assert best.low is not None and best.low > 6  # what was aimed at
    (said,) = re.findall(r"\[(\d+) times\]\(docs/performance.md#the-speedrun\)", README)
    assert int(said) == round(best.mean) and f"{best.mean:.1f}" in answer(ladder)[0]
    own = [gain(ladder[i - 1], ladder[i]) for i, rung in enumerate(RUNGS) if "3ML" in rung.name or rung.name == "Muon"]
    assert all(found is not None and found.mean < 1 for found in own)  # "cost more than they gain", or undecided


def test_the_probes() -> None:
    config, results, _, found = replication("small-probes")
    (row,) = (line for line in README.splitlines() if line.startswith("| Probes"))
    alone = found.words.metrics["tasks"]["upos"]["words"]
    scores = [found.score(model, "upos").mean for model in (RANDOM, "3ML_self-40%", "vanilla-40%")]
    assert [int(n) for n in re.findall(r"(\d+)%", row.replace("vanilla-40%", ""))] == [
        round(100 * value) for value in (*scores, alone)
    ]
    verdicts = {claim.name[:2]: claim.verdict for claim in probe_claims(config, results, found)}
    text = (PROJECT_ROOT / "docs" / "probing.md").read_text(encoding="utf-8")
    assert "the paper's C1 and C3 hold and C2 and C5 do not, C4, C6 and C7 are undecided" in text
    words = {"C1": "supported", "C3": "supported", "C2": "contradicted", "C5": "contradicted"}
    assert verdicts == {**words, **dict.fromkeys(("C4", "C6", "C7"), "undecided")}
    wide = found.score("3ML_self-40%, decoder width 96", "upos").mean
    assert wide > found.score("vanilla-40%", "upos").mean  # "as much of parts of speech"
    # Table 2's models were probed beside other work
    timed = [seeds for model, seeds in found.models.items() if "," not in model]
    seconds = [record.timing["seconds"] for seeds in timed for record in seeds.values()]
    said = f"{min(seconds):.1f} to {max(seconds):.1f} s on one core"
    assert said in (PROJECT_ROOT / "docs" / "performance.md").read_text(encoding="utf-8") and max(seconds) < 90


def test_the_second_replication() -> None:
    """What README, its notice and docs/reading-the-report.md say of `small-modern`."""
    config, results, evidence, found = replication("small-modern")
    main = {named(of, config) for of in results if "Table 3" in of.run.exhibits} | {RANDOM}
    seeds = {model: len(of) for model, of in found.models.items()}
    assert seeds == {model: 6 if model in main else 3 for model in seeds} and len(seeds.keys() - main) == 25
    claims = {claim.name[:2]: claim for claim in probe_claims(config, results, found)}
    decided = {name: claim.verdict for name, claim in claims.items() if claim.verdict != "undecided"}
    assert decided == dict.fromkeys(("C1", "C2", "C3", "C7", "E1"), "contradicted")
    family = [finding for claim in claims.values() for finding in claim.findings]
    assert len(family) == 19 and all(finding.values for finding in family)
    corrected = dict(zip(claims, corrected_verdicts(list(claims.values())), strict=True))
    assert {name for name, verdict in corrected.items() if verdict == "contradicted"} == {*decided} - {"C1"}
    cross = evidence.model("cross", 0.4)
    for other in (evidence.model("vanilla", 0.15), evidence.model("vanilla", 0.4), evidence.model("self", 0.4)):
        assert evidence.scores(cross, other, 0, math.inf).verdict == "supported"
    loss = {named(of, config): of.metric("eval_loss") for of in results if of.ended}
    assert all(loss["3ML_self-40%, 2,539 steps"][seed] < loss["vanilla-15%"][seed] for seed in range(6))
    shares = {row[0]: row[2] for row in standing_table(found, results, config).rows}
    assert {share for name, share in shares.items() if "steps" in name} == {"100%"} and shares["3ML_cross-40%"] == "78%"
    plateau = {result.run.model: result for result in replication("small-probes")[1]}["3ML_cross-40%"]
    assert min(plateau.metric("eval_perplexity_masked").values()) > 0.75 * 679


def test_the_findings_of_the_second_replication() -> None:
    """What its page of findings and its design's last amendment say, beyond the claims."""
    folder, (config, results, evidence, found) = PROJECT_ROOT / "reports" / "small-modern", replication("small-modern")
    by_name = {named(of, config): of for of in results}
    page = " ".join((folder / "FINDINGS.md").read_text(encoding="utf-8").split())

    def said(first: str, second: str, sign: int = 1) -> str:
        interval = evidence.scores(by_name[first], by_name[second], 0, math.inf).interval
        assert interval is not None and interval.high is not None
        return f"{sign * interval.mean:.1f} ± {interval.high - interval.mean:.1f}"

    cross, own, one, fifteen = "3ML_cross-40%", "3ML_self-40%", "vanilla-40%", "vanilla-15%"
    score = {n: 100 * np.mean([found.mean(n, seed, DECIDING) for seed in found.models[n]]) for n in found.models}
    alone = np.mean([100 * found.words.metrics["tasks"][task]["words"] for task in DECIDING])
    assert f"Random weights score {score[RANDOM]:.1f}, words alone {alone:.1f}" in page
    runs = {name: of for name, of in found.runs.items() if found.size(name) == (4, 96)}
    size = {run.data["encoder_parameters"] for of in runs.values() for run in of.values()}
    assert {f"{count / 1e6:.2f} M parameters" for count in size} == {"0.64 M parameters"} and "0.64 M" in README
    assert f"of vanilla-15% by {said(f'{cross}, 2,548 steps', fifteen)} points" in page
    assert f"loses {said(own, one, -1)} points at 40% and {said('3ML_self-50%', one, -1)} at 50%" in page
    equal = [f"{own}, 2,539 steps", "3ML_self-50%, 2,673 steps"]
    assert f"worse, by {said(equal[0], fifteen, -1)} and {said(equal[1], fifteen, -1)}." in page
    assert f"it is {said(own, cross, -1)} behind" in page
    assert f"Here {said(one, fifteen)} points: decided alone" in page
    rates = {record.data["run"]: record.metrics["rates"] for record in read_archive(folder) if record.stage == "rates"}
    for rate in ("0.15", "0.4"):
        of = {n: [rates[r.run_id][rate]["eval_loss"] for r in by_name[n].ended.values()] for n in (*equal, fifteen)}
        assert max(*of[equal[0]], *of[equal[1]]) < min(of[fifteen]), rate
    losses = [np.subtract(*(list(by_name[n].metric("eval_loss").values()) for n in (of, one))) for of in (own, cross)]
    loss = [f"{values.mean():.3f}" for values in losses]
    assert f"by {loss[0]} ± 0.025 (3ML_self) and {loss[1]} ± 0.025 nats (3ML_cross)" in page
    bigger = [f"{own}, {how}" for how in ("decoder width 96", "2 decoder layers", "4 decoder layers")]
    gains = sorted((said(name, own) for name in bigger), key=lambda text: -float(text.split()[0]))
    assert f"({gains[0]} to {gains[-1]} points)" in page
    masked = {
        n: statistics.geometric_mean(by_name[n].metric("eval_perplexity_masked").values()) for n in (own, *bigger)
    }
    low, *_, high = sorted(masked[name] for name in bigger)
    assert f"from {masked[own]:.0f} to between {low:.0f} and {high:.0f}" in page
    for masks, text in ((False, "80-20-0, by {} nats"), (True, "is undecided ({})")):
        (row,) = (row for row in swap_table(results, masked=masks).rows if row[0] == "3ML_cross")
        mean, half = row[3].split(" ± ")
        assert text.format(f"{float(mean):{'+' if masks else ''}.2f} ± {float(half):.2f}") in page
    clock = clock_sentences(read_archive(PROJECT_ROOT / "reports" / "benchmark", SESSIONS))
    assert clock[0].startswith(page.partition("on two cores ")[2].partition(" as fast")[0])

    design = " ".join((folder / "DESIGN.md").read_text(encoding="utf-8").split())
    fallen = [n for n, of in runs.items() if any(run.metrics["on_unigram_plateau"] for run in of.values())]
    assert fallen == [f"{own}, 100-0-0"] and "3ML_self with 100-0-0 and seed 0, ended on the unigram plateau" in design
    values = {name: [100 * found.mean(name, seed, DECIDING) for seed in found.models[name]] for name in runs}
    joined = f"{one}, 1,830 steps"  # of the sizes, trained after the amendments
    pools = [{name: of for name, of in values.items() if name != joined}, values]
    (amended, before), (everything, spread) = (
        (pooled_spread(of.values()), pooled_spread([of[name] for name in of if name not in fallen])) for of in pools
    )
    assert amended and before and everything and spread and spread == found.spreads[4, 96]
    assert f"with it the spread is {amended.deviation:.2f} points" in design
    assert f"without it {before.deviation:.2f}" in design
    now = f"{spread.deviation:.2f} points ({spread.freedom} degrees of freedom)"
    assert f"{now} instead of {before.deviation:.2f}" in design
    assert f"with the fallen run {everything.deviation:.2f} instead of {amended.deviation:.2f}" in design
    claims = probe_claims(config, results, found)
    with_it = contradicted(
        claims, lambda f: dataclasses.replace(f, spread=everything) if f.unit == "points" and not f.doubt else f
    )
    assert with_it == ({"C3", "E1"}, {"C3"}) and "With it C3 holds corrected, E1 alone" in page
    alone, corrected = contradicted(claims, not_pooled)
    assert {"C1", "C2", "C3", "C7", "E1"} <= alone and corrected == {"C3", "E1"}
    assert "by own seeds all hold alone, C3 and E1 corrected" in page
    of_losses = next(f.spread for claim in claims for f in claim.findings if f.unit == "nats")
    assert spread.alike and before.alike and of_losses is not None and of_losses.alike is not None
    assert f"Bartlett's p {spread.alike:.2f} instead of {before.alike:.2f}" in design
    assert f"(`small-modern`: p = {before.alike:.2f} for points, {of_losses.alike:.2f} for nats)" in design


def test_replaced_tokens_make_3ml_cross() -> None:
    """E2 by the rule that `small-modern`'s design declared before its runs, whose records are those of no table."""
    folder, seeds = PROJECT_ROOT / "reports" / "small-modern", {3, 4, 5}
    config, committed, evidence, main = replication("small-modern")
    counting = [named(result, config) for result in committed if PROBES in result.run.experiments]
    spread = pooled_spread([[100 * main.mean(name, s, DECIDING) for s in main.models[name]] for name in counting])
    assert spread is not None and (round(spread.deviation, 2), spread.freedom) == (0.56, 40)

    more = config.replace(num_ablation_pretrain_seeds=6)
    own = read_archive(folder, "e2.jsonl")
    trained = [record for record in (*read_archive(folder), *own) if record.stage == "pretrain"]
    results = find(more, [*PROBED, "Table 1", "Table 3", *ABLATIONS], trained, any_text=True)
    found = probes_of(more, results, [*probe_records(config), *(of for of in own if of.stage == "probe")])
    one, replaced, unchanged = (f"3ML_cross-40%, {split}" for split in ("100-0-0", "80-20-0", "80-0-20"))
    assert len(own) == 27 and not any(of.metrics.get("on_unigram_plateau") for of in own)
    for name in (one, replaced, unchanged):
        assert set(main.models[name]) == {0, 1, 2} and set(found.models[name]) == {*range(6)}
    alone = {name: {seed: of[seed] for seed in seeds & of.keys()} for name, of in found.models.items()}
    found = dataclasses.replace(found, models=alone)

    findings = []
    for name, low, high in ((replaced, 0.0, math.inf), (unchanged, -math.inf, 0.0)):
        judged = compared(found, name, one, low, high, name)
        assert len(judged.values) == 3 and not judged.doubt
        findings.append(dataclasses.replace(judged, spread=spread, pooled=True))
    assert corrected_verdicts([Claim("E2", "", "", (of,)) for of in findings]) == ["supported", "undecided"]
    halves = []
    for finding in findings:
        assert finding.interval is not None and finding.interval.high is not None
        halves.append(f"{abs(finding.interval.mean):.1f} ± {finding.interval.high - finding.interval.mean:.1f}")
    assert findings[0].interval.mean > 0 > findings[1].interval.mean
    own_half, less = (of.by_own_seeds.high - of.by_own_seeds.mean for of in findings)
    design, page = (" ".join((folder / f"{n}.md").read_text("utf-8").split()) for n in ("DESIGN", "FINDINGS"))
    spent = {r.parameters["mask_split"]: r.flops["training"] for r in own if r.stage == "pretrain"}
    more_flops = f"{spent['80-20-0'] / spent['100-0-0'] - 1:.0%} more FLOPs"
    assert spent["80-0-20"] == spent["80-20-0"] and f"cost the same FLOPs, {more_flops[:3]} more than 100-0-0" in design
    assert f"80-20-0 is {halves[0]} points better than 100-0-0, at {more_flops};" in page
    assert f"gains from replaced tokens: {halves[0]} points by probes (80-20-0 against 100-0-0)" in README
    assert f"is {halves[0]} points above 100-0-0 (p = {findings[0].p_value:.0e}, supported;" in design
    assert f"by these seeds alone ± {own_half:.1f})" in design and f"it is {halves[1]} points below" in design
    by_name = {named(of, config): of for of in committed}
    before = evidence.scores(by_name[unchanged], by_name[one], 0, math.inf).interval
    assert before is not None and before.high is not None
    table_2 = f"{-before.mean:.1f} ± {before.high - before.mean:.1f}"
    assert f"where Table 2c's seeds had {table_2}; by its own seeds alone, 0.2 ± {less:.1f}, it would be" in design
    assert [not_pooled(of).verdict for of in findings] == ["supported", "supported"]
    assert f"which costs the same, {halves[1]} worse (undecided)" in page


def test_the_sizes() -> None:
    """What page of findings, design and the page of both encoders say of encoders of other sizes."""
    config, results, evidence, found = replication("small-modern")
    by_size: dict[tuple[int, int], dict[str, Result]] = {}
    for result in results:
        if OTHER_SIZES in result.run.experiments:
            c = result.run.config
            by_size.setdefault((c.num_hidden_layers, c.hidden_size), {})[result.run.model] = result
    sizes = sorted(by_size)
    assert sizes == [(2, 64), (4, 96), (8, 160)] and all(len(models) == 5 for models in by_size.values())
    assert all({0, 1, 2} <= of.ended.keys() for models in by_size.values() for of in models.values())
    runs = [run for models in by_size.values() for of in models.values() for run in of.ended.values()]
    spent = [run.flops["training"] for run in runs]
    assert max(spent) / min(spent) < 1.005
    design, page, both = (
        " ".join((PROJECT_ROOT / "reports" / name).read_text(encoding="utf-8").split())
        for name in ("small-modern/DESIGN.md", "small-modern/FINDINGS.md", "FINDINGS.md")
    )

    def said(first: str, second: str) -> list[str]:
        texts = []
        for size in sizes:
            interval = evidence.scores(by_size[size][first], by_size[size][second], 0, math.inf).interval
            assert interval is not None and interval.high is not None
            texts.append(f"{interval.mean:+.1f} ± {interval.high - interval.mean:.1f}")
        return texts

    self_, more, cross, one, fifteen = "3ML_self-40%", "3ML_self-50%", "3ML_cross-40%", "vanilla-40%", "vanilla-15%"
    pairs = [(one, fifteen), *((of, other) for other in (one, fifteen) for of in (self_, more, cross)), (self_, cross)]
    differences = {pair: said(*pair) for pair in pairs}
    for (first, second), figures in differences.items():
        assert f"| {first} minus {second} | {' | '.join(figures)} |" in design
    counts = [f"{by_size[size][cross].ended[0].data['encoder_parameters'] / 1e6:.2g}" for size in sizes]
    assert counts == ["0.23", "0.64", "2.8"]
    above = [figure for other in (one, fifteen) for figure in differences[cross, other]]
    assert all(float(figure.split()[0]) > float(figure.split()[2]) for figure in above)  # "ahead of both"
    outside = sorted(float(of.split()[0]) for i, of in enumerate(above) if i % 3 != 1)
    assert f"at 0.23 and 2.8 M parameters too**, by {outside[0]} to {outside[-1]} points" in page
    low, middle, high = differences[self_, one]
    assert f"is {low} at 0.23 M, {middle} at 0.64 M and {high} at 2.8 M (387 to 620 steps)" in page
    assert "3ML_cross is ahead of both vanilla models at 0.23, 0.64 and 2.8 M parameters" in both
    assert f"3ML_self-40% minus vanilla-40% is {low}, {middle} and {high}." in both
    assert f"3ML_self minus vanilla-40% is {low} and {high} there (three seeds)" in README

    score = {
        (size, of.run.model): float(np.mean([100 * found.mean(name, seed, DECIDING) for seed in found.models[name]]))
        for size, models in by_size.items()
        for name, of in ((named(of, config), of) for of in models.values())
    }
    for size in sizes:
        assert max(by_size[size], key=lambda name: score[size, name]) == cross
    scores = [", ".join(f"{score[size, name]:.1f}" for size in sizes) for name in (self_, one)]
    assert " and ".join(scores[0].rsplit(", ", 1)) in design and " and ".join(scores[1].rsplit(", ", 1)) in design
    largest = by_size[8, 160]
    steps = sorted(run.parameters["max_steps"] for of in largest.values() for run in of.ended.values())
    assert (steps[0], steps[-1]) == (387, 620)
    perplexity = statistics.geometric_mean(largest[fifteen].metric("eval_perplexity_masked").values())
    spread = found.spreads[8, 160]
    assert spread is not None and spread.alike is not None
    assert f"a perplexity of {perplexity:.0f} of the unigrams' 680" in design and f"(p = {spread.alike:.3f})" in design


def test_the_second_encoder() -> None:
    """What findings and notice of `small-roberta` say; C8's comparisons are of its family, as the design has it."""
    folder = PROJECT_ROOT / "reports" / "small-roberta"
    config, results, evidence, found = replication("small-roberta")
    by_name = {named(of, config): of for of in results}
    assert {name: len(of) for name, of in found.models.items()} == dict.fromkeys((*by_name, RANDOM), 6) and len(
        by_name
    ) == 8
    page, notice = (" ".join((folder / f"{n}.md").read_text(encoding="utf-8").split()) for n in ("FINDINGS", "NOTICE"))

    asked = information_records(config)
    assert len(asked) == 18 and all(layer.has_enough_states for record in asked for layer in layers_of(record))
    c8 = Claim("C8", "", "", tuple(first_block(architecture, asked) for architecture in ("self", "cross")))
    shares = []
    for finding in c8.findings:
        assert finding.interval is not None and finding.interval.low is not None and finding.interval.high is not None
        shares.append(
            tuple(round(100 * v) for v in (finding.interval.mean, finding.interval.low, finding.interval.high))
        )
    assert "{}% ({} to {}) after one layer".format(*shares[0]) in page
    assert "3ML_cross's knows {}% ({} to {})".format(*shares[1]) in page
    assert f"[{shares[0][0]}%](reports/small-roberta/FINDINGS.md)" in README
    assert f"3ML_cross's {shares[1][0]}% |" in README
    family = [claim for claim in probe_claims(config, results, found) if claim.verdict != "not run"]
    assert sum(len(claim.findings) for claim in [*family, c8]) == 11
    halves = [dataclasses.replace(c8, name=f"C8 {n}", findings=(of,)) for n, of in enumerate(c8.findings)]
    assert corrected_verdicts([*family, *halves])[-2:] == ["supported", "contradicted"]
    for claims in (family, [*family, c8]):
        verdicts = dict(zip((claim.name[:2] for claim in claims), corrected_verdicts(claims), strict=True))
        assert {n for n, v in verdicts.items() if v == "supported" and n != "C8"} == {"C1", "C3"}
        assert {n for n, v in verdicts.items() if v == "contradicted" and n != "C8"} == {"C2", "C7"}
    own = [dataclasses.replace(claim, findings=tuple(map(not_pooled, claim.findings))) for claim in (*family, *halves)]
    assert corrected_verdicts(own)[-2:] == ["supported", "contradicted"]
    corrected = {claim.name[:2]: verdict for claim, verdict in zip(own, corrected_verdicts(own), strict=True)}
    assert {n: corrected[n] for n in ("C1", "C2", "C3", "C7", "E1")} == {
        **dict.fromkeys(("C1", "C3"), "supported"),
        **dict.fromkeys(("C2", "C7"), "contradicted"),
        "E1": "undecided",
    }

    def half(interval: Interval | None) -> float:
        assert interval is not None and interval.high is not None
        return interval.high - interval.mean

    def said(first: str, second: str, sign: int = 1, by: str = "interval") -> str:
        finding = evidence.scores(by_name[first], by_name[second], 0, math.inf)
        assert finding.interval is not None
        error = half(getattr(finding, by))
        return f"{sign * finding.interval.mean:.1f} ± {error:.1f}"

    cross, self_, one, fifteen = "3ML_cross-40%", "3ML_self-40%", "vanilla-40%", "vanilla-15%"
    forty, fifty = (name for name in by_name if "steps" in name and "self" in name)
    assert f"by {said(one, fifteen)} points. At 15%" in page
    equal_cross = next(name for name in by_name if "steps" in name and "cross" in name)
    equal = said(next(name for name in by_name if "steps" in name and "self-40" in name), equal_cross)
    assert f"by {said(self_, cross)} points at equal steps; at equal FLOPs by {equal}." in page
    assert f"loses {said(self_, one, -1)} points at 40% and {said('3ML_self-50%', one, -1)} at 50%" in page
    assert (
        f"is {said(self_, one, -1)} points behind" in page and f"model's) {said(forty, one, -1)}, a comparison" in page
    )
    assert f"behind vanilla-40% too, by {said(self_, one, -1)} points; it is ahead of 3ML_cross" in README
    shares = {row[0]: float(row[2].rstrip("%")) for row in standing_table(found, results, config).rows}
    assert f"({100 * 100 / shares[one]:.0f}% of that model's)" in page and shares[forty] == 100
    e1 = f"+{said(forty, fifteen)} and +{said(fifty, fifteen)}"
    assert f"by own seeds {e1})" in notice and f"by own seeds it is {e1}:" in page
    both = [f"+{said(name, fifteen, by='by_pool')}" for name in (forty, fifty)]
    assert f"supported ({', '.join(both)})" in page and f"(pooled {' and '.join(both)} points" in notice
    (budget,) = (claim for claim in family if claim.name.startswith("E1"))
    assert budget.verdict == "undecided" and all(of.by_pool and of.by_pool.low > 0 for of in budget.findings)
    values = {n: [100 * found.mean(n, seed, DECIDING) for seed in found.models[n]] for n in found.models}
    alone = np.mean([100 * found.words.metrics["tasks"][task]["words"] for task in DECIDING])
    assert f"score {np.mean(values[RANDOM]):.1f}, words alone {alone:.1f}" in page
    most, *others = sorted((statistics.stdev(values[name]) for name in by_name), reverse=True)
    (spread,) = found.spreads.values()
    assert spread is not None and f"p = {spread.alike:.2g}; vanilla-15% by {most:.1f} points" in notice
    assert statistics.stdev(values[fifteen]) == most and f"by {min(others):.1f} to {max(others):.1f})" in notice
    masked = {n: list(of.metric("eval_perplexity_masked").values()) for n, of in by_name.items()}
    unigram = {round(run.metrics["unigram_perplexity_masked"]) for of in found.runs.values() for run in of.values()}
    assert unigram == {677} and not any(
        r.metrics["on_unigram_plateau"] for of in found.runs.values() for r in of.values()
    )
    assert f"perplexities are {min(masked[fifteen]):.0f} to {max(masked[fifteen]):.0f}, where" in page
    ahead = {s for s in range(6) if values[fifteen][s] > max(values[forty][s], values[fifty][s])}
    behind = {s for s in range(6) if values[fifteen][s] < min(values[forty][s], values[fifty][s])}
    assert (len(ahead), len(behind)) == (2, 4) and "two of six seeds of that model left the unigram plateau" in page
    assert max(masked[fifteen][s] for s in ahead) < 210 and min(masked[fifteen][s] for s in behind) > 350
    assert [name for name in by_name if np.mean(values[name]) > alone] == [one]
    means = [statistics.geometric_mean(masked[name]) for name in (cross, self_)]
    assert f"{means[0]:.0f} of 677, where 3ML_self has {means[1]:.0f}" in page
    losses = [np.subtract(*(list(by_name[n].metric("eval_loss").values()) for n in (of, one))) for of in (self_, cross)]
    (c7,) = (claim for claim in family if claim.name.startswith("C7"))
    errors = [half(finding.by_own_seeds) for finding in c7.findings[:2]]
    mean = [f"{of.mean():.3f} ± {error:.3f}" for of, error in zip(losses, errors, strict=True)]
    assert f"by {mean[0]} (3ML_self) and {mean[1]} nats (3ML_cross)" in page
    shift = [100 * found.score(name, "bigram_shift").mean for name in (self_, cross, RANDOM, fifteen, one)]
    text = "(bigram shift {:.1f}%, 3ML_cross {:.1f}, random weights {:.1f}, vanilla-15% {:.1f}, vanilla-40% {:.1f})"
    assert text.format(*shift) in page
    size = {run.data["encoder_parameters"] for of in found.runs.values() for run in of.values()}
    assert {f"{count / 1e6:.2f} M parameters" for count in size} == {"0.65 M parameters"} and "0.65 M" in page


def test_what_both_encoders_say() -> None:
    """The first page of all reports: its numbers are those of the two replications and of their own pages."""
    page = " ".join((PROJECT_ROOT / "reports" / "FINDINGS.md").read_text(encoding="utf-8").split())
    by_preset, perplexity, alone, values = {}, {}, set(), {}
    for preset in REPLICATIONS.values():
        config, results, evidence, found = replication(preset)
        by_name = {named(of, config): of for of in results if PROBES in of.run.experiments}
        by_preset[preset] = by_name, evidence
        for name, of in by_name.items():
            perplexity[preset, name] = statistics.geometric_mean(of.metric("eval_perplexity_masked").values())
            values[preset, name] = np.mean([100 * found.mean(name, seed, DECIDING) for seed in found.models[name]])
        alone.add(round(np.mean([100 * found.words.metrics["tasks"][task]["words"] for task in DECIDING]), 1))
    assert len(values) == 16
    modern, roberta = REPLICATIONS.values()

    def said(preset: str, first: str, second: str, sign: int = 1) -> str:
        by_name, evidence = by_preset[preset]
        interval = evidence.scores(by_name[first], by_name[second], 0, math.inf).interval
        assert interval is not None and interval.high is not None and sign * interval.mean > 0
        return f"{sign * interval.mean:.1f} ± {interval.high - interval.mean:.1f}"

    self_, one, fifteen = "3ML_self-40%", "vanilla-40%", "vanilla-15%"
    less = [said(preset, self_, one, -1) for preset in (modern, roberta)]
    assert f"by probes {less[0]} points with ModernBERT's layers and Muon, {less[1]} with RoBERTa's and" in page
    assert said(modern, self_, "3ML_cross-40%", -1) and said(roberta, self_, "3ML_cross-40%")
    more = [said(modern, f"3ML_cross-40%{steps}", fifteen) for steps in ("", ", 2,548 steps")]
    assert f"It is {more[0]} points better than vanilla-15% at 78% of its FLOPs, {more[1]} at the same" in page
    assert f"vanilla-40%**, {said(roberta, one, fifteen)} points better than at 15%" in page
    equal = f"{self_}, 2,539 steps"
    lower = f"({perplexity[modern, equal]:.0f} against {perplexity[modern, fifteen]:.0f})"
    assert f"has the lower one {lower} and scores {said(modern, equal, fifteen, -1)} points less" in page
    (words,) = alone
    assert f"Words alone score {words}: 3ML_self is no better" in page
    assert max(value for (_, name), value in values.items() if name.startswith("3ML_self")) < words + 0.05
    assert [name for (preset, name), value in values.items() if preset == roberta and value > words] == [one]

    own = {preset: (PROJECT_ROOT / "reports" / preset / "FINDINGS.md").read_text("utf-8") for preset in by_preset}
    for preset, pattern in (
        (modern, r"80-20-0 is ([\d.]+ ± [\d.]+ points better than 100-0-0, at \d+% more FLOPs)"),
        (modern, r"trains ([\d.]+ \([\d.]+ to [\d.]+\) times as fast as vanilla-15%)"),
        (roberta, r"masked tokens (\d+% \([\d.]+ to [\d.]+\)) after one layer"),
        (roberta, r"3ML_cross's knows (\d+% \([\d.]+ to\s+[\d.]+)"),
    ):
        (figures,) = re.findall(pattern, " ".join(own[preset].split()))
        assert figures.replace("knows ", "") in page, figures
    assert "0.64 M parameters" in own[modern] and "0.65 M parameters" in own[roberta]
    assert "Encoders of 0.64 and 0.65 M parameters, 4.1 and 5.3 M tokens" in page


def test_the_tuning_of_the_second_replication() -> None:
    """Its design's tables of AdamW's rates and of GLUE's pilots; a task is learned by the rule that stands there."""
    folder = PROJECT_ROOT / "reports" / "small-modern"
    design, records = (folder / "DESIGN.md").read_text(encoding="utf-8"), read_archive(folder, "tuning.jsonl")
    tried: dict[float, dict[tuple[str, float], dict[str, float]]] = {}
    tuned: dict[str, dict[tuple[str, str], RunRecord]] = {}
    for record in records:
        p, checkpoint = record.parameters, record.data.get("checkpoint", "")
        if record.stage == "pretrain":
            tried.setdefault(p["learning_rate"], {})[p["architecture"], p["mask_rate"]] = record.metrics
        else:
            model = "random" if checkpoint.startswith("random:") else checkpoint.split("/")[-2].split("-")[0]
            tuned.setdefault(p["finetune_learning_rates"], {})[record.data["task"], model] = record
    models = (("vanilla", 0.15), ("vanilla", 0.4), ("self", 0.4), ("self", 0.5), ("cross", 0.4))
    losses = {rate: [of[m]["eval_loss"] for m in models] for rate, of in tried.items()}
    for name, rate in {"1e-3": 1e-3, "1.5e-3": 1.5e-3, "3e-3": 3e-3}.items():
        cells = [f"{tried[rate][m]['eval_perplexity_masked']:.0f} ({tried[rate][m]['eval_loss']:.3f})" for m in models]
        assert f"| {name} | {' | '.join(cells)} | " in design
        assert f"{np.mean(losses[rate]):.3f}" in design.partition(f"| {name} |")[2].partition("\n")[0]
    assert all(min(values) == values[-1] for values in zip(*(losses[rate] for rate in sorted(losses)), strict=True))

    tasks = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
    means: dict[str, list[str]] = {rate: [] for rate in tuned}
    for rate, of in tuned.items():
        for model in ("vanilla", "self"):
            scores = [100 * of[task, model].metrics["score"] for task in tasks]
            means[rate].append(f"{np.mean(scores):.1f}")
    assert f"{' and '.join(means['5e-4'])}, against {' and '.join(means['8e-5'])} at 8e-5" in design
    for task in tasks:
        about, found = GLUE_TASKS[task], {m: tuned["5e-4"][task, m] for m in ("vanilla", "self", "random")}
        metric = "accuracy" if task == "qqp" else "score"
        value = {model: 100 * record.metrics[metric] for model, record in found.items()}
        answers = found["self"].metrics["constant_answers"]
        constant = 100 * max(a["accuracy"] if task == "qqp" else task_score(about, a) for a in answers)
        size = sum(part["examples"] for name, part in found["self"].data["splits"].items() if name != "train")
        floor = max(constant, value["random"])
        # of an accuracy the interval's lower end; tasks with other scores fall short of the floor themselves
        error = 196 * math.sqrt(0.25 / size) if task in ("sst2", "qqp", "mnli", "qnli", "rte") else 0.0
        learned = all(value[model] - error > floor for model in ("vanilla", "self"))
        row = [f"{number:.1f}" for number in (*value.values(), constant)]
        assert f"| {about.title} | {' | '.join(row)} | {'yes' if learned else 'no'} |" in design


def test_a_link_to_a_page_that_is_not_there_becomes_its_words() -> None:
    text = '<a href="a.html#x">one</a> <a href="b.html">two</a> <a href="https://c.org/b.html">three</a>'
    assert without_dead_links(text, {"a.html"}) == text.replace('<a href="b.html">two</a>', "two")


def test_the_rivals() -> None:
    race = read_race(archived("rivals"))
    found: dict[str, dict[str, list[str]]] = {}
    for (rival, what), claim in race.claims.items():
        found.setdefault(what, {}).setdefault(claim.verdict, []).append(rival)
    by_loss = ["SparseQueries-15%", "SparseQueries-40%", "token dropping-40%"]
    for what, better in {"probes": by_loss[2:], "loss at 15%": by_loss, "loss at 40%": by_loss}.items():
        assert found[what]["supported"] == better and found[what]["contradicted"] == ["vanilla-15%"], what
    assert set(corrected_verdicts(list(race.claims.values()))) == {"undecided"}
    text = (PROJECT_ROOT / "docs" / "rivals.md").read_text(encoding="utf-8")
    assert "SparseQueries, at both rates, and token dropping at 40% are better" in text and "nothing is decided" in text
    times = {of.rival.name: float(np.median(of.turns)) for of in race.raced if of.turns is not None}
    assert min(times[name] for name in times if name.startswith(("3ML", "MAE"))) > 0.98 * times["vanilla-40%"]
    assert max(times[name] for name in (*by_loss, "ContextFirst-15%")) < 0.95 * times["vanilla-40%"]
    page = html.unescape((PROJECT_ROOT / "reports" / "rivals" / "index.html").read_text(encoding="utf-8"))
    assert all(sentence in page for sentence in rivals_answer(race))


def test_the_notes_on_the_paper() -> None:
    """Speed-ups at an equal rate, the impossible perplexity, and rows of unequal length."""
    text = " ".join((PROJECT_ROOT / "docs" / "paper-notes.md").read_text(encoding="utf-8").split())
    said = re.search(r"\(([\d.]+) and ([\d.]+) for 3ML_self .*? large model, ([\d.]+) and ([\d.]+) of the base", text)
    presets = [(recipe, rate) for recipe in ("efficient-large", "longer-base") for rate in (0.4, 0.5)]
    models = [make_config({"preset": recipe, "architecture": "self", "mask_rate": rate}) for recipe, rate in presets]
    assert said and list(said.groups()) == [f"{config_speedup(model, 'paper', None):.2f}" for model in models]
    assert f"{math.exp((math.log(7.7) - 0.8 * math.log(15.1)) / 0.2):.1f}" == "0.5" and "perplexity of 0.5" in text
    kept = np.random.default_rng(0).binomial(64, 1 - 0.8 * 0.5, (2000, 64))
    assert f"keeps {kept.min(1).mean():.0f} to {kept.max(1).mean():.0f} of" in text
    assert f"at {kept.max(1).mean() / 64:.0%} of the full length" in text
