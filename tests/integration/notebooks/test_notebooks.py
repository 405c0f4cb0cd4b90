"""The notebooks: their form, papermill's commands, nbval's comparison, the report's pages."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest

from threeml_core.config import PARAMETERS, make_config, type_of
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.foundation.log import no_line
from threeml_core.reporting.cost import study_plan
from threeml_core.study.ledger import find
from threeml_core.training.loop import pretrain

NOTEBOOKS = sorted((PROJECT_ROOT / "notebooks").glob("*.ipynb"))
TINY = make_config({})
pytestmark = pytest.mark.usefixtures("quick")
OWN = PROJECT_ROOT / "reports" / "local" / "tiny"  # by `make report` here, so of this machine's runs
EXECUTED = sorted((OWN if (OWN / "index.html").exists() else PROJECT_ROOT / "reports" / "tiny").glob("*.ipynb"))


def code_cells(path: Path) -> list:
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


def parameters_cell(names: Iterable[str]) -> str:
    """What the first cell of a notebook has to be: a line for each parameter with its value in tiny."""
    lines = []
    for name in names:
        about, value = PARAMETERS[name].metadata, getattr(TINY, name)
        choices = " | ".join(about["allowed"].choices if about["allowed"] else ())
        shown = json.dumps(value) if isinstance(value, str) else repr(value)
        line = f"{name}: {type_of(name)[0].__name__} = {shown}  # {about['meaning']}"
        whole = f"{line}: {choices}"
        lines.append(whole if choices and len(whole) <= 120 else line)  # docs/parameters.md has them all
    return "\n".join(lines)


def names_in(cell: str) -> list[str]:
    """The parameters that a first cell shows."""
    return [line.partition(":")[0] for line in cell.splitlines()]


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "00_basic_idea",
        "00_cost_model",
        "01_prepare_data",
        "02_pretrain",
        "03_finetune",
        "04_prerequisites",
        "05_efficient_setting",
        "06_comparison",
        "07_mutual_information",
        "08_performance",
        "09_probing",
        "10_your_own_text",
        "11_speedrun",
        "12_rivals",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_form(path: Path) -> None:
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    cells = code_cells(path)
    assert [i for i, cell in enumerate(cells) if "parameters" in cell.metadata.get("tags", [])] == [0]
    shown = names_in(cells[0].source)
    assert 8 <= len(shown) <= 15 and shown[0] == "preset"
    assert cells[0].source == parameters_cell(shown), "run python tests/integration/notebooks/test_notebooks.py"
    assert "resolve_parameters(globals())" in cells[1].source
    assert notebook.cells[-2].source == "## Result" and "reporting.ending import" in cells[-1].source
    assert len(cells) <= 14
    for cell in cells:
        assert not cell.outputs and cell.execution_count is None, "notebooks are committed without outputs"
        tree = ast.parse(cell.source)
        assert not [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
        assert len(cell.source.splitlines()) <= 12 or cell is cells[0]
        if cell is not cells[0]:
            plain = [
                n for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.value, (ast.Constant, ast.List))
            ]
            assert not plain, "a plain global would be read as a parameter when the cells are run again"
            stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            assert not stored & set(PARAMETERS), "so would a global of a parameter's name, whatever it is"


def papermill(*arguments: str) -> subprocess.CompletedProcess:
    command = ["papermill", "--no-progress-bar", "-k", "python3", *arguments]
    unset = ("PYTEST_CURRENT_TEST", "TQDM_DISABLE")  # ipykernel looks; users have progress
    outside = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.run(command, cwd=PROJECT_ROOT, env=outside, capture_output=True, text=True, timeout=500)


def test_help_lists_the_parameters_of_the_page() -> None:
    done = papermill("notebooks/02_pretrain.ipynb", "--help-notebook")
    assert done.returncode == 0
    for name in names_in(code_cells(PROJECT_ROOT / "notebooks" / "02_pretrain.ipynb")[0].source):
        value = getattr(TINY, name)
        shown = json.dumps(value) if isinstance(value, str) else value
        assert f"  {name}: {type_of(name)[0].__name__} (default {shown})" in done.stdout, name
        assert PARAMETERS[name].metadata["meaning"] in done.stdout


PRINT = """print([config.preset, config.max_steps, config.learning_rate, config.save_steps])
print([config.sources[name] for name in ("preset", "max_steps", "learning_rate", "save_steps")])"""


def resolved(notebook: Path, tmp_path: Path, *arguments: str) -> str:
    """What the first two cells of a notebook make of it."""
    start, out = tmp_path / "start.ipynb", tmp_path / "out.ipynb"
    pages = nbformat.read(notebook, 4)
    cells = [cell for cell in pages.cells if cell.cell_type == "code" and cell.source != PRINT]
    resolve = next(i for i, cell in enumerate(cells) if "resolve_parameters(" in cell.source)
    pages.cells = [*cells[: resolve + 1], nbformat.v4.new_code_cell(PRINT)]
    nbformat.write(pages, start)
    done = papermill(str(start), str(out), *arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    return code_cells(out)[-1].outputs[0].text


def test_a_preset_decides_what_was_not_given(tmp_path: Path) -> None:
    """Values that stand in the first cell do not, unless they are edited there; what papermill passes always counts."""
    page = PROJECT_ROOT / "notebooks" / "02_pretrain.ipynb"
    small, shown = make_config({"preset": "small"}), TINY.max_steps
    assert small.max_steps != shown and small.learning_rate != TINY.learning_rate
    rest = f"{small.learning_rate}, {small.save_steps}]\n"
    of_preset = "'preset small', 'preset small']\n"
    given = resolved(page, tmp_path, "-p", "preset", "small", "-p", "max_steps", str(shown))
    assert given == f"['small', {shown}, {rest}['given', 'given', {of_preset}"
    again = resolved(tmp_path / "out.ipynb", tmp_path, "-p", "preset", "small", "-p", "save_steps", "7")
    assert again == f"['small', {small.max_steps}, {small.learning_rate}, 7]\n" + (
        "['given', 'preset small', 'preset small', 'given']\n"
    ), "an executed page holds the cell that was injected, and papermill puts another in its place"
    assert nbval(tmp_path / "out.ipynb").returncode == 0
    notebook = nbformat.read(page, 4)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    first.source = first.source.replace('"tiny"', '"small"').replace(f"= {shown} ", "= 300 ")
    nbformat.write(notebook, tmp_path / "edited.ipynb")
    assert resolved(tmp_path / "edited.ipynb", tmp_path) == f"['small', 300, {rest}['given', 'given', {of_preset}"


def test_a_misspelt_parameter_is_refused(tmp_path: Path) -> None:
    done = papermill("notebooks/02_pretrain.ipynb", str(tmp_path / "out.ipynb"), "-p", "mask_ratee", "0.5")
    assert done.returncode != 0
    assert "ParameterError: unknown parameter 'mask_ratee': did you mean 'mask_rate'?" in done.stderr
    assert done.stderr.split("\n")[-3:] == [
        "ParameterError: unknown parameter 'mask_ratee': did you mean 'mask_rate'?",
        "",
        "",
    ], "papermill's own traceback stands before it, nothing behind it"


@pytest.fixture
def small_arguments(small: dict, tmp_path: Path) -> list[str]:
    small = {**small, "runs_dir": str(tmp_path / "runs")}
    return [part for name, value in small.items() for part in ("-p", name, str(value))]


def test_a_run_that_fails_ends_with_one_line(small_arguments: list[str], tmp_path: Path) -> None:
    """In the terminal and in the notebook: what papermill shows last, whose own traceback is no part of it."""
    out = tmp_path / "out.ipynb"
    done = papermill("notebooks/02_pretrain.ipynb", str(out), *small_arguments, "-p", "learning_rate", "1e30")
    assert done.returncode != 0
    last = done.stderr.rstrip().split("\n")[-1]
    assert last.startswith("NotFiniteError: ") and "max_grad_norm=1.0" in last
    (error,) = (o for cell in code_cells(out) for o in cell.outputs if o.output_type == "error")
    assert error.traceback == [last]
    assert not list((tmp_path / "runs").glob("pretrain/*/record.json"))


@pytest.mark.parametrize("architecture", ["self", "cross", "vanilla"])
def test_pretrain_notebook(architecture: str, small: dict, small_arguments: list[str], tmp_path: Path) -> None:
    """The README's line, on a small corpus: ends with its record, curves, perplexities and speed-up."""
    out = tmp_path / "out.ipynb"
    arguments = [*small_arguments, "-p", "mask_rate", "0.5", "-p", "architecture", architecture]
    done = papermill("notebooks/02_pretrain.ipynb", str(out), *arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    cells = code_cells(out)
    text = str([output for cell in cells for output in cell.outputs])
    for expected in ("Validation perplexity", "aria-label", "speed-up in FLOPs over vanilla", "record.json", "unigram"):
        assert expected in text
    assert "Forward and backward" in text and "(8, 32)" in text and "After the step" in text
    (record,) = (tmp_path / "runs" / "pretrain").glob("*/record.json")
    assert f"{architecture}-51-" in str(record), "16.25 of 32 tokens"
    metrics = json.loads(record.read_text())["metrics"]
    shown = done.stderr.split("\n")
    assert sum(line.startswith("step 20/20: loss") for line in shown) == 1, "papermill's terminal moves"
    assert shown[shown.index("Result:") + 1 :] == [
        f"{record.parent.name}: training loss {metrics['train_loss']:.3f} nats, validation perplexity "
        f"{metrics['eval_perplexity']:.1f} (both over all corrupted tokens), "
        f"{metrics['eval_perplexity_masked']:.1f} at "
        f"[MASK]s (unigram {metrics['unigram_perplexity_masked']:.1f}), "
        f"{json.loads(record.read_text())['flops']['training']:.3g} training FLOPs",
        f"record: {record}",
        f"encoder: {record.parent}/encoder",
        f"next: papermill notebooks/03_finetune.ipynb out.ipynb -p preset tiny -p runs_dir {tmp_path / 'runs'} "
        f"-p checkpoint {record.parent}/encoder",
        "",
    ], "its last lines say what came out, and where it lies"
    given = {**small, "runs_dir": str(tmp_path / "loop"), "mask_rate": 0.5, "architecture": architecture}
    alone = pretrain(make_config(given), no_line).metrics
    for name in ("train_loss", "eval_loss"):
        assert metrics[name] == pytest.approx(alone[name], rel=1e-3), "the shown step changes nothing in the run"


@pytest.mark.parametrize("given", [{}, {"preset": "small", "plan_only": True}], ids=["tiny", "small"])
def test_the_idea(given: dict, tmp_path: Path) -> None:
    """Every step gives what the ordinary forward gives; no text, no record and no run is needed, with any preset."""
    out = tmp_path / "out.ipynb"
    options = [part for name, value in {**given, "runs_dir": tmp_path / "runs"}.items() for part in ("-p", name, value)]
    done = papermill("notebooks/00_basic_idea.ipynb", str(out), *map(str, options))
    assert done.returncode == 0, done.stderr[-2000:]
    text = str([output for cell in code_cells(out) for output in cell.outputs])
    for expected in (
        "(4, 17)",
        "(4, 17, 64)",
        "(4, 25, 32)",
        "(4, 8, 32)",
        "unchanged",
        f"vanilla, {given.get('preset', 'tiny')}",
    ):
        assert expected in text
    assert text.count("equal") == 2 * 5, "as text and as HTML"
    assert not (tmp_path / "runs").exists()


def test_the_idea_runs_again() -> None:
    """From the top in the same kernel: no cell leaves a plain value that would be taken for a parameter."""
    names: dict = {}
    for cell in 2 * code_cells(PROJECT_ROOT / "notebooks" / "00_basic_idea.ipynb"):
        exec(cell.source, names)
    assert names["config"] == TINY


def test_own_text_notebook(small_arguments: list[str], encoders: dict[str, Path], tmp_path: Path) -> None:
    """Without a checkpoint from the encoder of 02, beside random weights; with one from that, and its class is kept."""
    out = tmp_path / "out.ipynb"
    done = papermill("notebooks/10_your_own_text.ipynb", str(out), *small_arguments, "-p", "validation_fraction", "0.2")
    assert done.returncode == 0, done.stderr[-2000:]
    text = str([output for cell in code_cells(out) for output in cell.outputs])
    for expected in ("max_position_embeddings", "random weights", "Unigram, masked", "RobertaPreLayerNormModel"):
        assert expected in text
    assert len(list((tmp_path / "runs" / "pretrain").glob("*/record.json"))) == 3
    given = dict(zip(small_arguments[1::3], small_arguments[2::3], strict=True))
    kept = ("corpus", "sequence_length", "max_steps", "batch_size", "runs_dir", "validation_fraction", "bf16")
    arguments = [part for name in kept for part in ("-p", name, given[name])]
    start = ["-p", "init_encoder", str(encoders["modern"]), "-p", "decoder_warmup_steps", "2"]
    done = papermill("notebooks/10_your_own_text.ipynb", str(out), *arguments, *start)
    assert done.returncode == 0, done.stderr[-2000:]
    text = str([output for cell in code_cells(out) for output in cell.outputs])
    assert "ModernBertModel" in text and "global_attn_every_n_layers" in text and "random weights" not in text
    assert len(list((tmp_path / "runs" / "pretrain").glob("*/record.json"))) == 4


FINETUNING = {
    "max_position_embeddings": 66,
    "max_length": 64,
    "glue": "bundled",
    "num_seeds": 1,
    "max_train_examples": 64,
    "finetune_epochs": 1,
    "finetune_large_epochs": 1,
    "random_baseline": True,
    "num_workers": 1,
}


def test_finetune_notebook(small_arguments: list[str], tmp_path: Path) -> None:
    """Pre-trains what it needs, fine-tunes on the diagnostic tasks, prints row, spread, curves and failed runs."""
    out = tmp_path / "out.ipynb"
    arguments = [*small_arguments, *(part for name, value in FINETUNING.items() for part in ("-p", name, str(value)))]
    done = papermill("notebooks/03_finetune.ipynb", str(out), *arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    text = str([output for cell in code_cells(out) for output in cell.outputs])
    for expected in (
        "Diagnostic tasks of this project; they are not GLUE",
        "random (3ML_self-40%)",
        "Difference of the mean scores over seeds",
        "a line for the best run of each seed",
        "Failed and collapsed runs",
        "train 64 (subset)",
        "predictions/word_order-",
    ):
        assert expected in text
    assert len(list((tmp_path / "runs" / "finetune").glob("*/record.json"))) == 2 * 3
    stopped = papermill("notebooks/03_finetune.ipynb", str(out), *arguments, "-p", "tasks", "word_oder")
    assert stopped.returncode != 0
    assert "ParameterError: unknown task 'word_oder': did you mean 'word_order'?" in stopped.stderr


def test_information_notebook(small_arguments: list[str], tmp_path: Path) -> None:
    """Pre-trains the three models, measures them, shows figure, table, verdicts and bias; `-p runs` chooses one."""
    out = tmp_path / "out.ipynb"
    arguments = [*small_arguments, "-p", "num_clusters", "20", "-p", "num_kmeans_seeds", "2"]
    done = papermill("notebooks/07_mutual_information.ipynb", str(out), *arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    text = str([output for cell in code_cells(out) for output in cell.outputs])
    for expected in (
        "vanilla, first quarter of the layers, as a share of the gain of all",
        "3ML_self, first layer, as a share of vanilla",
        "0 (embedding)",
        "0 (decoder input)",
        "Shuffled tokens give",
        "Estimates on synthetic states",
    ):
        assert expected in text
    assert len(list((tmp_path / "runs" / "mutual_information").glob("*/record.json"))) == 3
    (bias,) = (tmp_path / "runs" / "bias").glob("*/record.json")
    assert bias.parent.name in text
    (run,) = (tmp_path / "runs" / "pretrain").glob("cross-*")
    done = papermill("notebooks/07_mutual_information.ipynb", str(out), *arguments, "-p", "runs", run.name)
    assert done.returncode == 0, done.stderr[-2000:]
    text = str([output for cell in code_cells(out) for output in cell.outputs])
    assert "no vanilla run with the embedding" in text and "3ML_self" not in text
    wrong = papermill("notebooks/07_mutual_information.ipynb", str(out), *arguments, "-p", "runs", "cross-40")
    assert wrong.returncode != 0
    assert "CheckpointError: runs: cross-40 is no finished run" in wrong.stderr


STUDY = {
    **FINETUNING,
    "random_baseline": False,
    "tasks": "word_order",
    "max_steps": 4,
    "ablation_steps": 4,
    "study_mask_rates": "0.15,0.4",
    "study_depths": "1,2",
    "study_widths": "16",
    "study_splits": "80-20-0,80-0-20",
    "num_clusters": 20,
}


def test_study_notebooks(small_arguments: list[str], tmp_path: Path) -> None:
    """04 to 06 one after the other: each does what the earlier ones left, and shows tables, figures and verdicts."""
    arguments = [*small_arguments, *(part for name, value in STUDY.items() for part in ("-p", name, str(value)))]
    expected = {
        "04_prerequisites": ("Figure 3 in numbers", "(paper 7.8)", "One pre-training seed", "aria-label"),
        "05_efficient_setting": (
            "Table 2a: depth",
            "paper",
            "Table 2c",
            "two figures are swapped",
            "over vanilla at the same rate",
        ),
        "06_comparison": (
            "Table 3: diagnostic tasks",
            "Budget of pre-training, one seed",
            "What this study says of the paper",
            "not GLUE",
        ),
    }
    runs = 0
    for name, shown in expected.items():
        out = tmp_path / f"{name}.ipynb"
        done = papermill(f"notebooks/{name}.ipynb", str(out), *arguments)
        assert done.returncode == 0, done.stderr[-2000:]
        text = str([output for cell in code_cells(out) for output in cell.outputs])
        for part in shown:
            assert part in text, part
        found = len(list((tmp_path / "runs" / "pretrain").glob("*/record.json")))
        assert found > runs, "each has runs of its own"
        runs = found
    assert runs == 2 + 2 + 2 + 4 + 2 + 1, "vanilla 15/40, self and cross 40, depth 1, two splits, 15%, and 3ML_self-50%"


def test_the_plan_of_a_larger_preset(tmp_path: Path) -> None:
    """The runs with their cost, and none of them done; no text, no task and no network is needed."""
    out = tmp_path / "out.ipynb"
    options = ["-p", "preset", "small", "-p", "plan_only", "True", "-p", "runs_dir", str(tmp_path / "runs")]
    done = papermill("notebooks/05_efficient_setting.ipynb", str(out), *options)
    assert done.returncode == 0, done.stderr[-2000:]
    text = str([output for cell in code_cells(out) for output in cell.outputs])
    plan = study_plan(make_config({"preset": "small"}), ["Table 2a", "Table 2b", "Table 2c", "Figure 5"])
    assert repr(plan).splitlines()[-1].split()[0] == "all" and repr(plan).splitlines()[-1] in text.replace("\\n", "\n")
    assert "plan_only: nothing is run" in text and "not run" in text
    assert not (tmp_path / "runs").exists()


def test_cells_can_be_run_again(small: dict, tmp_path: Path) -> None:
    """In JupyterLab one edits the parameters and runs from the top; what later cells defined is not in the way.

    A kernel may start worker processes, too.
    """
    small = {**small, **FINETUNING, "tasks": "word_order", "random_baseline": False, "num_workers": 2}
    notebook = nbformat.read(PROJECT_ROOT / "notebooks" / "03_finetune.ipynb", 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    given = "\n".join(f"{name} = {value!r}" for name, value in {**small, "runs_dir": str(tmp_path)}.items())
    pretraining = nbformat.read(PROJECT_ROOT / "notebooks" / "02_pretrain.ipynb", 4)
    more = [cell for cell in pretraining.cells if cell.cell_type == "code"][2:]
    code += [nbformat.v4.new_code_cell(cell.source) for cell in more]
    again = [nbformat.v4.new_code_cell(cell.source) for cell in (code[0], nbformat.v4.new_code_cell(given), code[1])]
    notebook.cells = [code[0], nbformat.v4.new_code_cell(given), *code[1:], *again]
    nbformat.write(notebook, tmp_path / "twice.ipynb")
    done = papermill(str(tmp_path / "twice.ipynb"), str(tmp_path / "out.ipynb"))
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.usefixtures("as_users_do")
def test_presets_inject_as_files(small_arguments: list[str], tmp_path: Path) -> None:
    """The paper's preset by `-f`, small in every dimension: what papermill does not find in the cell is known to us."""
    out = tmp_path / "out.ipynb"
    arguments = ["-f", "params/efficient-large.yaml", *small_arguments]
    smaller = {"tokenizer": "train", "num_hidden_layers": 2, "intermediate_size": 64, "decoder_hidden_size": 16}
    smaller |= {"decoder_num_attention_heads": 1, "micro_batch_size": 4, "validation_fraction": 0.1, "max_steps": 2}
    arguments += [part for name, value in smaller.items() for part in ("-p", name, str(value))]
    done = papermill("notebooks/02_pretrain.ipynb", str(out), *arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    unknown = re.findall("Passed unknown parameter: (.*)", done.stderr)
    assert unknown and set(unknown) <= set(PARAMETERS)


def nbval(path: Path) -> subprocess.CompletedProcess:
    sanitize = Path(__file__).with_name("sanitize.cfg")
    command = [sys.executable, "-m", "pytest", "--nbval", str(path), f"--nbval-sanitize-with={sanitize}", "-q"]
    command += ["-p", "no:cacheprovider", "--nbval-cell-timeout=400", "-c", "/dev/null", f"--rootdir={PROJECT_ROOT}"]
    return subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=550)


@pytest.fixture(scope="module")
def compared(quick: None) -> Iterator[dict[Path, Future]]:
    """nbval on every page, two at a time. Without the runs that `make report` leaves it would take as long as that."""
    study = find(TINY)
    finished = all(outcome.is_finished for outcome in study)
    with ThreadPoolExecutor(2) as pool:
        yield {path: pool.submit(nbval, path) for path in EXECUTED if finished or path.stem[:2] in ("00", "01")}


@pytest.mark.parametrize("path", EXECUTED, ids=lambda path: path.stem)
def test_executed_notebooks_hold(path: Path, compared: dict[Path, Future]) -> None:
    """nbval runs the report's notebooks again: everything but timings and floats of this machine must be equal."""
    assert all(cell.execution_count for cell in code_cells(path)), "nbval compares only cells that carry a count"
    if path not in compared:
        pytest.skip("the runs of the tiny preset are not here: `make report` makes them")
    done = compared[path].result()
    assert done.returncode == 0, done.stdout[-4000:]
    assert "passed" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_notebooks_run_under_nbval_lax(path: Path) -> None:
    """With their defaults, the tiny preset; without `make report` before, it pre-trains and fine-tunes."""
    command = [sys.executable, "-m", "pytest", "--nbval-lax", str(path), "-q", "-p", "no:cacheprovider"]
    command += ["--nbval-cell-timeout=1200", "-c", "/dev/null", f"--rootdir={PROJECT_ROOT}"]
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]


def test_nbval_would_notice(tmp_path: Path) -> None:
    """A changed number in a checked table fails: the comparison is not empty."""
    source = next(path for path in EXECUTED if path.stem == "00_cost_model")
    notebook = nbformat.read(source, 4)
    text = nbformat.writes(notebook)
    assert "1.3398" in text
    changed = tmp_path / "changed.ipynb"
    changed.write_text(text.replace("1.3398", "1.3399"))
    done = nbval(changed)
    assert done.returncode == 1 and "1.3399" in done.stdout


if __name__ == "__main__":  # after a change of a parameter: python tests/integration/notebooks/test_notebooks.py
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, 4)
        first = next(cell for cell in notebook.cells if cell.cell_type == "code")
        first.source = parameters_cell(names_in(first.source))
        nbformat.write(notebook, path)
