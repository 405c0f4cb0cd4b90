"""The first screen: sentences and the forest plot follow from the claims' records, whatever they say."""

from __future__ import annotations

import base64
import dataclasses
import io
import math
from pathlib import Path

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image

from tests.unit.reporting.test_comparison import LARGE, outcomes_of
from threeml_core.config import make_config
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.reporting.answer import clock_sentences, first_page, model_sentence, scale, scale_sentence
from threeml_core.reporting.answer import verdict_sentence as said
from threeml_core.reporting.claims import key_figure
from threeml_core.reporting.forest import FINE_TUNED, MARKS, PROBES, forest_plot, paper_value
from threeml_core.reporting.style import FIGURE, Figure
from threeml_core.runs.archive import SESSIONS, from_records, read_archive
from threeml_core.runs.record import STAGES, load_records
from threeml_core.statistics.verdicts import Claim, Finding
from threeml_core.study.claims import claims
from threeml_core.study.ledger import find
from threeml_core.study.results import Result


def claim(name: str, *values: float, doubt: str = "") -> Claim:
    """Says: above 0."""
    return Claim(name, "It is better.", "Table 3", (Finding("a against b", "points", 0, math.inf, values, doubt),))


YES, NO, OPEN = claim("C1", 1, 1.1, 1.2), claim("C2", -1, -1.1, -1.2), claim("C3", -1, 0, 1)
ONE_SEED, NOTHING = claim("C4", 1), claim("C5")


@pytest.fixture(scope="module")
def outcomes() -> list[Result]:
    return outcomes_of(LARGE)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ((YES,), "The paper's claim, C1, is supported."),
        ((YES, claim("C9", 1, 1.1, 1.2)), "Of the paper's 2 claims, all are supported."),
        ((YES, NO), "Of the paper's 2 claims, C1 is supported and C2 is contradicted."),
        ((OPEN,), "The paper's claim, C3, is undecided (the interval reaches beyond the range)."),
        ((ONE_SEED,), "The paper's claim, C4, is undecided (one pre-training seed: no interval)."),
        ((OPEN, ONE_SEED), "Of the paper's 2 claims, all are undecided."),
        ((NOTHING,), "The paper's claim, C5, is not run."),
        (
            (YES, NO, OPEN, claim("C6", doubt="on the unigram plateau"), NOTHING),
            "Of the paper's 5 claims, C1 is supported, C2 is contradicted, C3 and C6 are undecided and C5 is not run.",
        ),
    ],
)
def test_verdicts_in_a_sentence(found: tuple[Claim, ...], sentence: str) -> None:
    assert said(found) == sentence


def test_verdicts_by_probes_stand_beside() -> None:
    probed = [dataclasses.replace(NO, name="C1 by probes"), dataclasses.replace(NOTHING, name="C2 by probes")]
    sentence = "The paper's claim, C1, is supported; by probes of frozen encoders there, C1 is contradicted."
    assert said([YES], probed, " there") == sentence


def test_the_models_in_a_sentence(outcomes: list[Result]) -> None:
    """3ML_self-50% has 1 / 1.25 of the FLOPs, the same perplexity and a point more, as its records say."""
    text = model_sentence(outcomes, LARGE)
    assert "3ML_self-50% takes 80% of the FLOPs of vanilla-15%, and against vanilla-40%" in text
    assert "a perplexity at [MASK]s of 10.0 (10.0 to 10.0) against 10.0 (10.0 to 10.0)" in text
    assert "an average score of 85.1 ± 0.2 against 84.1 ± 0.2 (+1.0 ± 0.0)" in text
    assert model_sentence(find(LARGE, None, []), LARGE) == "Nothing of it has been run yet."
    some = [outcome for outcome in outcomes if outcome.run.config.architecture == "vanilla"]
    assert model_sentence(some, LARGE) == "Not all models of Table 3 have been run."


def test_the_scale(outcomes: list[Result]) -> None:
    records = [record for outcome in outcomes for record in outcome.ended.values()]
    assert scale(LARGE, records) == "preset efficient-large, 24 layers × 1024, 12.1 B tokens"
    assert scale(make_config({}), []) == "preset tiny, 4 layers × 64"
    text = scale_sentence(LARGE, outcomes)
    assert text.startswith("Scale: preset efficient-large, encoders of 24 layers × 1024 (1 M parameters), 23,000 steps")
    assert "3 pre-training seeds" in text and "8 tasks of GLUE" in text
    assert "0 pre-training seeds, the bundled text." in scale_sentence(make_config({}), [])


def with_what(claim: Claim, what: str) -> Claim:
    findings = tuple(dataclasses.replace(finding, what=what) for finding in claim.findings)
    return dataclasses.replace(claim, findings=findings)


def test_a_forest(outcomes: list[Result]) -> None:
    """Each comparison with value, verdict and the paper's value; a verdict has a word and a mark, not only a colour."""
    found = claims(LARGE, outcomes, ())
    figure = forest_plot({FINE_TUNED: found})
    assert "C1 supported (vanilla-40% against vanilla-15%: average +2.5 ± 0.0 points, the paper +0.7)" in figure.alt
    assert "C8 not run" in figure.alt and "the paper 0.68" in figure.alt
    for each in found:
        assert each.name in figure.svg and MARKS[each.verdict] in figure.svg and f">{each.verdict}</text>" in figure.svg
    probed = [dataclasses.replace(NO, name="C1 by probes")]
    both = forest_plot({FINE_TUNED: [YES, OPEN], PROBES: probed})
    assert "C1 supported, probes contradicted (a against b +1.1 ± 0.2 points, probes -1.1 ± 0.2 points)" in both.alt
    assert "fine-tuned" in both.svg and "probes" in both.svg
    assert forest_plot({FINE_TUNED: [ONE_SEED], PROBES: ()}).alt.endswith("C4 undecided (a against b +1.0 points).")
    assert "not run" in forest_plot({FINE_TUNED: [NOTHING]}).svg


def test_a_forest_of_two_encoders() -> None:
    """Each has as many steps as its FLOPs bear: numbers of steps that differ are not the comparison's."""
    one, other = (with_what(YES, f"x, {steps} steps against y") for steps in ("2,539", "3,120"))
    both = forest_plot({"ours": [one], "theirs": [other]})
    assert "x against y" in both.svg and ", ours first: C1 supported, theirs supported (x against y +1.1" in both.alt
    assert "x, 2,539 steps against y" in forest_plot({"ours": [one], "theirs": [one]}).svg


def test_the_papers_values() -> None:
    """Table 3: 85.0 against 84.3 and 1 / 1.47 of the FLOPs; Table 1: 9.5 against 7.8; Table 2a: three tasks."""

    def value(unit: str, *settings: str) -> float | None:
        return paper_value(Finding("", unit, 0, 1, (), settings=settings))

    assert value("points", "vanilla 0.4", "vanilla 0.15") == pytest.approx(0.7)
    assert value("", "self 0.5", "vanilla 0.15") == pytest.approx(1 / 1.47)
    assert value("nats", "self 0.4", "vanilla 0.4") == pytest.approx(math.log(9.5 / 7.8))
    depth = "self 0.4 decoder_num_hidden_layers="
    assert value("points", f"{depth}2", f"{depth}8") == pytest.approx((84.0 + 91.6 + 91.2 - 82.8 - 90.7 - 91.0) / 3)
    assert value("points", "self 0.4", "self 0.41") is None and value("points") is None


def test_the_papers_models_are_open_marks(outcomes: list[Result]) -> None:
    alt = key_figure(outcomes, LARGE).alt
    assert "Open: the paper's, at its scores or at the edge next to them (vanilla-15% 1.00, 84.3; " in alt
    assert "3ML_self-50% 1.47, 85.0" in alt


def test_a_first_page_of_each_report(tmp_path: Path) -> None:
    """From the committed records: three sentences at most, with figures in them."""
    for preset, page in (("small", "06_comparison"), ("small-probes", "09_probing"), ("speedrun", "11_speedrun")):
        config = from_records(make_config({"preset": preset}), PROJECT_ROOT / "reports" / preset)
        records = [record for stage in STAGES for record in load_records(config.runs_dir, stage)]
        sentences, shown = first_page(config, records, ["08_performance", page], tmp_path)
        assert 1 <= len(sentences) <= 3 and shown
        assert sentences[-1].startswith(f"Scale: preset {preset}, encoders of 4 layers × 96")
        if preset == "small":
            assert (
                "C2 and C5 are contradicted" in sentences[0] and "a bag of words scores 45.9, more than" in sentences[1]
            )
        if preset == "small-probes":
            judged = (
                "encoders judge, C1 and C3 are supported, C2 and C5 are contradicted and C4, C6 and C7 are undecided"
            )
            assert judged in sentences[0] and "3ML_self-40% against vanilla-40%: -3.4 ± 1.9 points" in sentences[1]
            assert "2 layers against 4" not in sentences[1]  # of a claim that is undecided
    assert first_page(make_config({}), [], ["00_basic_idea"], tmp_path) == ([], [])


def test_the_clock_in_two_sentences() -> None:
    sessions = read_archive(PROJECT_ROOT / "reports" / "benchmark", SESSIONS)
    first, where = clock_sentences(sessions)
    assert first == (
        "3ML_self-50% trains 1.45 (1.43 to 1.47) times as fast as vanilla-15% (96% of its speed-up in FLOPs), and 1.86 "
        "(1.79 to 1.92) times as fast as Hugging Face's run_mlm."
    )
    assert "in 5 sessions of 8 rounds" in where
    assert clock_sentences([]) == ["The clock has not been measured."]


def test_a_figure_shows_where_no_svg_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's output is a PNG for its viewers and the SVG under a name of our own; then the caption."""
    shell = InteractiveShell.instance()
    monkeypatch.setattr(shell, "display_pub", CapturingDisplayPublisher())
    figure: Figure = forest_plot({PROBES: [YES]})
    figure._ipython_display_()
    drawn, caption = shell.display_pub.outputs
    assert set(drawn["data"]) == {FIGURE, "image/png", "text/plain"} and "<svg" in drawn["data"][FIGURE]
    image = Image.open(io.BytesIO(base64.b64decode(drawn["data"]["image/png"])))
    assert 600 < image.width < 900 and len(drawn["data"]["image/png"]) < 100_000
    assert caption["metadata"] == {"caption": True} and figure.caption[20:60] in caption["data"]["text/html"]
