"""The HTML report: no request to any host, links that resolve, figures with descriptions, tables that are there."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from concurrent.futures import Future
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest

from tests.conftest import SHARED
from threeml_core.config import make_config
from threeml_core.foundation.errors import ParameterError, StudyError
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.paper import reported_values
from threeml_core.reporting import execute
from threeml_core.reporting.report import SCRIPT, build_report
from threeml_core.runs.archive import read_archive
from threeml_core.runs.record import RunRecord
from threeml_core.study.ledger import find

REPORT = PROJECT_ROOT / "reports" / "tiny"
PAGES = sorted(REPORT.glob("*.html"))


class Parsed(HTMLParser):
    """Links, ids, figures and their labels of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: list[str] = []
        self.images: list[dict] = []
        self.open: list[str] = []
        self.misnested: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        values = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in ("link", "img", "iframe", "source") or (tag == "script" and "src" in values):
            self.loaded.append(values.get("src") or values.get("href") or "")
        if "id" in values:
            self.ids.append(values["id"])
        if tag in ("img", "svg"):
            self.images.append(values)

    def handle_startendtag(self, tag: str, attrs: list) -> None:  # as in SVG
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.open:
            self.misnested.append(tag)
            return
        while (last := self.open.pop()) != tag:
            if last not in MAY_STAY_OPEN:
                self.misnested.append(last)


VOID = {"meta", "link", "br", "hr", "img", "input", "source", "wbr", "col"}
MAY_STAY_OPEN = {"p", "li", "tr", "td", "th", "dd", "dt"}


def test_the_report_is_there() -> None:
    assert {page.name for page in PAGES} == {
        "index.html",
        "00_basic_idea.html",
        "00_cost_model.html",
        "01_prepare_data.html",
        "02_pretrain.html",
        "03_finetune.html",
        "04_prerequisites.html",
        "05_efficient_setting.html",
        "06_comparison.html",
        "07_mutual_information.html",
        "08_performance.html",
        "09_probing.html",
        "10_your_own_text.html",
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    parsed = Parsed(text)
    assert [source for source in parsed.loaded if not source.startswith("data:")] == []
    assert not re.search(r"url\(\s*['\"]?https?:|@import", text)
    assert re.findall(r"(?s)<script>(.*?)</script>", text) == [SCRIPT]
    for link in parsed.links:
        path, _, anchor = link.partition("#")
        if path.startswith(("http:", "https:")):
            continue
        target = page.parent / path if path else page
        assert target.is_file(), link
        if anchor:
            assert anchor in Parsed(target.read_text(encoding="utf-8")).ids, link
    assert len(parsed.ids) == len(set(parsed.ids)), "ids are unique in a page"
    assert parsed.misnested == parsed.open == []
    for image in parsed.images:
        assert len(image.get("aria-label") or image.get("alt") or "") > 20
    for name in ("Preset", "Commit", "Versions", "Hardware", "Date", "Seeds"):
        assert f"<dt>{name}</dt>" in text
    assert str(PROJECT_ROOT) not in text and "Traceback" not in text
    assert "$$" not in text and not re.search(r"\\(phi|frac|cdot)", re.sub(r"<annotation.*?</annotation>", "", text))


def test_tables_and_figures_of_this_part() -> None:
    cost = (REPORT / "00_cost_model.html").read_text(encoding="utf-8")
    for expected in (
        "Reported and computed",
        "1.3398",
        "1.5465",
        "reproduced",
        "Counted by torch",
        "Plan of preset tiny",
        "<math",
    ):
        assert expected in cost
    run = (REPORT / "02_pretrain.html").read_text(encoding="utf-8")
    for expected in (
        "Validation perplexity",
        "The model has left the unigram plateau",
        "3ML_self",
        "3ML_cross",
        "vanilla",
    ):
        assert expected in run
    assert "Tokens/s" not in run, "clocks of runs that were not measured in turns do not stand side by side"


def records_of(stage: str) -> list[dict]:
    return [vars(record) for record in read_archive(REPORT) if record.stage == stage]


TINY = make_config({})


def test_records_behind_the_report() -> None:
    """The five models of Table 3 have left the plateau, on one corruption; each is on the page of single runs."""
    records = [r for r in records_of("pretrain") if r["parameters"]["max_steps"] == TINY.max_steps]
    models = {(r["parameters"]["architecture"], r["parameters"]["mask_rate"]) for r in records}
    assert models == {("vanilla", 0.15), ("vanilla", 0.4), ("self", 0.4), ("self", 0.5), ("cross", 0.4)}
    assert len({record["metrics"]["eval_corruption"] for record in records}) == 1
    page = (REPORT / "02_pretrain.html").read_text(encoding="utf-8")
    for record in records:
        assert record["run_id"] in page
        assert f"{record['metrics']['eval_perplexity_masked']:.1f}" in page
        share = record["metrics"]["eval_perplexity_masked"] / record["metrics"]["unigram_perplexity_masked"]
        assert share < 0.9 or record["parameters"]["mask_rate"] == 0.15, (
            "the tiny preset has to leave the unigram plateau by at least 10%"
        )


COUNTERPARTS = {
    "Figure 3": ("04_prerequisites", ("Figure 3: how much can be masked", "Figure 3 in numbers")),
    "Table 1": ("04_prerequisites", ("Table 1: validation perplexity",)),
    "Figure 4": ("07_mutual_information", ("Mutual information between the states of [MASK]s",)),
    "Table 2a": ("05_efficient_setting", ("Table 2a: depth of the decoder",)),
    "Table 2b": ("05_efficient_setting", ("Table 2b: width of the decoder",)),
    "Table 2c": ("05_efficient_setting", ("Table 2c: masking strategy", "two figures are swapped")),
    "Figure 5": ("05_efficient_setting", ("Average score against the speed-up", "Figure 5 in numbers")),
    "Table 3": ("06_comparison", ("Table 3: diagnostic tasks", "Table 3 as reported, longer-base")),
    "pre-training hyperparameters": ("00_cost_model", ("Pre-training recipes (Appendix A)",)),
    "fine-tuning hyperparameters": ("00_cost_model", ("Plan: the whole grid, seeds per task: 5",)),
    "FLOPs and their notation": ("00_cost_model", ("Cost by Appendix C", "Reported and computed")),
}
"""Every table and figure of the paper that has numbers -> its page, and what stands there."""


@pytest.mark.parametrize("artefact", COUNTERPARTS)
def test_every_table_and_figure_has_its_counterpart(artefact: str) -> None:
    name, expected = COUNTERPARTS[artefact]
    page = (REPORT / f"{name}.html").read_text(encoding="utf-8")
    for text in expected:
        assert text in page
    for value in reported_values():
        if value.artefact == artefact and value.metric.endswith(("accuracy", "mcc", "f1", "perplexity")):
            assert re.search(rf"[>/ ]{re.escape(value.reported)}[)</]", page), f"{value.setting} {value.metric}"


def test_the_list_of_counterparts_is_the_papers() -> None:
    """Captions in the LaTeX: eleven of these, the sub-tables' common one, and two drawings without numbers."""
    if not (SHARED / "paper" / "3ml.tex").exists():
        pytest.skip("../shared/paper is not here")
    text = re.sub(r"(?m)^%.*", "", (SHARED / "paper" / "3ml.tex").read_text(encoding="utf-8"))
    assert len(re.findall(r"\\caption\{", text)) == len(COUNTERPARTS) + 1 + 2


def test_the_study_behind_the_report() -> None:
    """results.jsonl holds every run of the study, each named on its page, and the tables' cells follow from it."""
    records = {stage: [RunRecord(**record) for record in records_of(stage)] for stage in ("pretrain", "finetune")}
    outcomes = find(TINY, None, [*records["pretrain"], *records["finetune"]])
    assert len(outcomes) == 21 and all(outcome.is_finished for outcome in outcomes)
    pages = {name: (REPORT / f"{name}.html").read_text(encoding="utf-8") for name, _ in COUNTERPARTS.values()}
    pages = {name: re.sub("</?span>|<wbr/?>", "", text) for name, text in pages.items()}
    for outcome in outcomes:
        for artefact in outcome.run.exhibits:
            page = pages[COUNTERPARTS[artefact][0]]
            for record in outcome.pretraining.values():
                assert record.run_id in page
                if artefact in ("Table 1", "Table 2a", "Table 2b", "Table 2c", "Figure 3"):
                    assert f">{record.metrics['eval_perplexity_masked']:.1f}<" in page
        averages = [d.average for d in (*outcome.comparison.values(), *outcome.ablation.values())]
        for average in averages:
            assert average is not None and any(f">{100 * average:.1f} (subset)<" in page for page in pages.values())


def test_the_first_page_has_the_claims_first() -> None:
    """Sentences, then nine verdicts, before the list of pages; with one seed none but undecided."""
    page = html.unescape((REPORT / "index.html").read_text(encoding="utf-8"))
    places = [
        page.index(said)
        for said in (
            "Of the paper's 9 claims, all are undecided (one pre-training seed: no interval)",
            "3ML_self-50% takes 77% of the FLOPs of vanilla-15%",
            "Scale: preset tiny, encoders of 4 layers × 64",
            "<figcaption>The paper's claims,",
            "The models of Table 3",
            "What this study says of the paper",
            'id="pages"',
        )
    ]
    assert places == sorted(places)
    rows = re.findall(r"<tr><th[^>]*>(C\d)</th>(.*?)</tr>", page)
    assert [name for name, _ in rows] == [f"C{i}" for i in range(1, 10)]
    assert all(">undecided<" in row and "one pre-training seed" in row for _, row in rows)
    assert "One pre-training seed: no interval is possible" in page


def test_finetuning_behind_the_report() -> None:
    """Every run and every bag of words of the page has its record, and the page says what it is not."""
    page = (REPORT / "03_finetune.html").read_text(encoding="utf-8")
    runs, baselines = records_of("finetune"), records_of("baseline")
    runs = [record for record in runs if record["run_id"] in page]
    assert {record["data"]["task"] for record in runs} == {"word_order", "next_sentence", "passage_relation"}
    assert len(runs) == 3 * 3 and len(baselines) == 3
    for record in (*runs, *baselines):
        assert record["run_id"] in page and record["failure"] is None
    for expected in (
        "they are not GLUE",
        "95% interval",
        "Bag of words",
        "Constant answer",
        "Failed and collapsed runs",
    ):
        assert expected in page


def test_information_behind_the_report() -> None:
    """Every value of the figure stands in the table and in a record; the floor is below, the ceiling above it."""
    page = (REPORT / "07_mutual_information.html").read_text(encoding="utf-8")
    records = records_of("mutual_information")
    assert [record["parameters"]["architecture"] for record in records] == ["vanilla", "self", "cross"]
    assert len({record["data"]["sample"] for record in records}) == 1
    for record in records:
        assert record["data"]["run"] in page
        for layer in record["metrics"]["layers"]:
            corrected = sum(layer["corrected"]) / len(layer["corrected"])
            assert f">{corrected:.3f}<" in page
            assert corrected < min(layer["plug_in"]) <= layer["entropy"]
            assert max(layer["floor"]) < min(layer["plug_in"]) or layer["layer"] == 0
    for expected in ("statements, and what these models say", "Plug-in (bits)", "ceiling", "floor", "final LayerNorm"):
        assert expected in page


def notebook(path: Path, *cells) -> None:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells), metadata={"kernelspec": kernel}), path)


class Inline:
    """Stands for the pool of processes: does the work here, so that a test does not wait for their imports."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, work: Callable, *arguments: object) -> Future:
        done: Future = Future()
        done.set_result(work(*arguments))
        return done


@pytest.fixture
def two_notebooks(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two notebooks that write when they were executed, and a study without runs."""
    source = tmp_path / "notebooks"
    source.mkdir()
    text = f"from pathlib import Path\nlog = Path({str(tmp_path / 'log')!r})\n"
    for name in ("06_comparison", "07_b"):
        parameters = nbformat.v4.new_code_cell('preset = "tiny"', metadata={"tags": ["parameters"]})
        work = nbformat.v4.new_code_cell(f"{text}print(preset, file=log.open('a'), end=' {name}\\n')")
        notebook(source / f"{name}.ipynb", nbformat.v4.new_markdown_cell(f"# {name}"), parameters, work)
    monkeypatch.setattr(execute, "NOTEBOOKS", source)
    monkeypatch.setattr(execute, "_run_study", lambda given: None)
    monkeypatch.setattr(execute, "ProcessPoolExecutor", Inline)
    return source


def test_notebooks_are_executed_where_out_of_date(two_notebooks: Path, tmp_path: Path) -> None:
    """Once each, the one that judges last; again only what has changed; a failure keeps what was done, and is told."""
    config = make_config({"runs_dir": str(tmp_path / "runs"), "max_steps": 3})
    lines: list[str] = []

    def executed() -> list[str]:
        return (tmp_path / "log").read_text().splitlines()

    folder, failed = execute.execute_notebooks(config, lines.append)
    assert failed == []
    assert executed() == ["tiny 07_b", "tiny 06_comparison"]
    assert sorted(path.name for path in folder.glob("*.ipynb")) == ["06_comparison.ipynb", "07_b.ipynb"]
    execute.execute_notebooks(config, lines.append)
    assert len(executed()) == 2 and lines[-1] == "2 of 2 notebooks are up to date"
    execute.execute_notebooks(make_config({"runs_dir": str(tmp_path / "runs"), "max_steps": 4}), lines.append)
    assert len(executed()) == 4, "another value, another result"
    path = two_notebooks / "06_comparison.ipynb"
    broken = nbformat.read(path, 4)
    broken.cells[-1].source = "raise ValueError('no')"
    nbformat.write(broken, path)
    config = make_config({"runs_dir": str(tmp_path / "runs"), "max_steps": 4})
    _, failed = execute.execute_notebooks(config, lines.append)
    assert failed == ["06_comparison failed: ValueError: no"] and "unfinished/06_comparison.ipynb" in lines[-1]
    assert len(executed()) == 4 and not (folder / "06_comparison.ipynb").exists(), "no page from an old notebook"
    assert (folder / "07_b.ipynb").exists()
    path.unlink()
    execute.execute_notebooks(config, lines.append)
    assert len(executed()) == 4 and [p.name for p in folder.glob("*.ipynb")] == ["07_b.ipynb"]


def test_a_page_whose_run_is_gone_is_made_again(two_notebooks: Path, tmp_path: Path) -> None:
    config = make_config({"runs_dir": str(tmp_path / "runs")})
    record = tmp_path / "runs" / "pretrain" / "07_b" / "record.json"  # a run that is called as the page prints
    record.parent.mkdir(parents=True)
    record.touch()
    lines: list[str] = []
    execute.execute_notebooks(config, lines.append)
    execute.execute_notebooks(config, lines.append)
    assert lines[-1] == "2 of 2 notebooks are up to date"
    record.unlink()
    execute.execute_notebooks(config, lines.append)
    assert "1 of 2 notebooks are up to date" in lines


def test_none_is_given_as_none(two_notebooks: Path, tmp_path: Path) -> None:
    """To papermill None means that nothing is given; a None of ours has to override the preset."""
    config = make_config({"runs_dir": str(tmp_path / "runs"), "max_train_examples": "None"})
    folder, _ = execute.execute_notebooks(config, lambda line: None)
    assert 'max_train_examples = "None"' in nbformat.read(folder / "07_b.ipynb", 4).cells[2].source


def test_warnings_stay_and_failures_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "executed"
    source.mkdir()
    config = make_config({"runs_dir": str(tmp_path / "runs")})
    cell = nbformat.v4.new_code_cell("x", execution_count=1)
    cell.outputs = [nbformat.v4.new_output("stream", name="stderr", text="UserWarning: look here\n")]
    notebook(source / "00_a.ipynb", nbformat.v4.new_markdown_cell("# Title $n^2$\n\nFirst words, `code`."), cell)
    index = build_report(source, tmp_path / "report", config)
    assert "First words, code." in index.read_text()
    assert "UserWarning: look here" in (tmp_path / "report" / "00_a.html").read_text()
    before = index.read_text()
    cell.outputs = [nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[])]
    notebook(source / "01_b.ipynb", cell)
    with pytest.raises(StudyError, match="01_b.ipynb ended in an error .ValueError: no."):
        build_report(source, tmp_path / "report", config)
    assert index.read_text() == before, "a refused report leaves the previous one"
    with pytest.raises(StudyError, match="no executed notebook"):
        build_report(tmp_path / "report2", tmp_path / "report", config)


def test_pages_of_a_report() -> None:
    def names(**given: object) -> list[str]:
        return [path.stem for path in execute.pages_of(make_config(given))]

    assert len(names()) == 12 and "11_speedrun" not in names()  # a report by itself
    assert names(preset="speedrun") == ["11_speedrun"] and names(pages="11") == ["11_speedrun"]
    assert names(preset="small-probes") == ["09_probing"] and "09_probing" not in names(preset="small")
    assert names(preset="benchmark") == ["08_performance"]
    assert names(pages="8, 00") == ["00_basic_idea", "00_cost_model", "08_performance"]
    assert names(pages=7) == ["07_mutual_information"]  # as papermill passes `-p pages 7`
    with pytest.raises(ParameterError, match="pages='13': no notebook 13"):
        names(pages="13")
