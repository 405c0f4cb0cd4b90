"""A run on the hub: `threeml push`, against a stand-in that huggingface_hub's own client talks to."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.utils import close_session
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from tests.hub_server import READ_TOKEN, TOKEN, Hub, Repo
from threeml_core.__main__ import main
from threeml_core.config import executed_parameters, make_config, parse_arguments
from threeml_core.foundation.errors import HubError, NotFiniteError
from threeml_core.foundation.files import sha256_file
from threeml_core.foundation.log import no_line
from threeml_core.runs.record import RunRecord, leave_record, read_record, run_folder
from threeml_core.training.checkpoint import SavedStates
from threeml_core.training.loop import pretrain
from threeml_core.training.model_card import hub_card
from threeml_core.training.trainer import Trainer

Push = Callable[..., str]
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of the hub's client, for its own


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Filled by the first test: run folders with a finished run that kept two states."""
    return tmp_path_factory.mktemp("trained")


@pytest.fixture
def run(trained: Path, small: dict, tmp_path: Path) -> RunRecord:
    """That run, in run folders of its own."""
    if not any(trained.iterdir()):
        pretrain(make_config({**small, "runs_dir": str(trained), "checkpoint_steps": "5,10"}), no_line)
    shutil.copytree(trained, tmp_path / "runs")
    (folder,) = (tmp_path / "runs" / "pretrain").iterdir()
    return read_record(folder)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub that answers, and this user's token in the environment."""
    with Hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        close_session()
        yield server
    close_session()


@pytest.fixture
def push(run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Push:
    """The command; what it says, or the one line of its error. The token is never in either."""

    def push(*arguments: str, status: int = 0) -> str:
        argv = ["threeml", "push", run.run_id, *arguments, "-p", "runs_dir", str(tmp_path / "runs")]
        monkeypatch.setattr(sys, "argv", argv)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)  # the client tries again, later and later
        capfd.readouterr()
        if status:
            with pytest.raises(SystemExit) as caught:
                main()
            assert caught.value.code == status
        else:
            main()
        out, err = capfd.readouterr()
        assert not any(token in out + err for token in (TOKEN, READ_TOKEN))
        if status:
            assert err.startswith("error: ") and err.count("\n") == 1 and len(err) < 500, err
        return err if status else out

    return push


def hashes(folder: Path) -> dict[str, str]:
    """Of all files."""
    return {p.relative_to(folder).as_posix(): sha256_file(p) for p in folder.rglob("*") if p.is_file()}


def as_folder(repo: Repo) -> dict[str, bytes]:
    """`<branch>/<path>` -> content."""
    return {
        f"{branch}/{path}": content
        for branch, files in repo.branches.items()
        for path, content in files.items()
        if path != ".gitattributes"
    }


def test_a_run_is_pushed_as_the_dry_run_says(run: RunRecord, hub: Hub, push: Push, tmp_path: Path) -> None:
    """Encoder at the root, model in a folder, checkpoints as branches; loaded again it is the run's; no token in it."""
    push("me/tiny", "-p", "dry_run", str(tmp_path / "dry"), "-p", "hub_private_repo", "true")
    assert "me/tiny" not in hub.repos
    said = push("me/tiny", "-p", "hub_private_repo", "true")
    assert f"{hub.endpoint}/me/tiny/tree/main" in said
    repo = hub.repos["me/tiny"]
    assert repo.private and list(repo.branches) == ["main", "step-5", "step-10"]
    dry = {p.relative_to(tmp_path / "dry").as_posix(): p.read_bytes() for p in (tmp_path / "dry").rglob("*.*")}
    assert as_folder(repo) == dry
    assert all(TOKEN.encode() not in content for content in dry.values())
    folder = run_folder(tmp_path / "runs", "pretrain", run.run_id)
    for branch, place in (("main", folder), ("step-5", folder / "checkpoints" / "step-5")):
        for part, root in (("encoder", ""), ("model", "model/")):
            assert (
                repo.branches[branch][f"{root}model.safetensors"] == (place / part / "model.safetensors").read_bytes()
            )
    again, own = (
        AutoModel.from_pretrained(path).state_dict() for path in (tmp_path / "dry" / "main", folder / "encoder")
    )
    assert all(torch.equal(tensor, own[name]) for name, tensor in again.items() if "pooler" not in name)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "dry" / "step-5")) == 300


def test_the_model_may_lie_at_the_root(run: RunRecord, push: Push, tmp_path: Path) -> None:
    (tmp_path / "runs" / "pretrain" / run.run_id / "model" / "modeling.py").touch()
    for root, model in (("model", ""), ("encoder", "model/")):
        push("me/tiny", "-p", "dry_run", str(tmp_path / root), "-p", "hub_root", root)
        files = {p.relative_to(tmp_path / root / "main").as_posix() for p in (tmp_path / root / "main").rglob("*.*")}
        assert {"config.json", f"{model}modeling.py", "modeling.py", "README.md"} <= files
        card = (tmp_path / root / "main" / "README.md").read_text()
        assert ('AutoModelForMaskedLM.from_pretrained("me/tiny", trust' in card) == (root == "model")


def test_the_card(run: RunRecord, push: Push, tmp_path: Path, small: dict) -> None:
    """Data, FLOPs, energy, perplexities, plateau, probes if probed, and a command that is the same run."""
    probes = {"tasks": {"upos": {"accuracy": 0.77}, "upos by heart": {"accuracy": 0.5}}}
    data = {"run": run.run_id, "is_random": False}
    probe = run_folder(tmp_path / "runs", "probe", "self-40-0123456789")
    leave_record(probe, {}, run, {}, metrics=probes, data=data)
    push("me/tiny", "-p", "dry_run", str(tmp_path / "dry"))
    card = (tmp_path / "dry" / "main" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n") and "\npipeline_tag: feature-extraction\n---\n" in card
    metrics = run.metrics
    assert f"{metrics['eval_perplexity_masked']:.2f} at masked tokens" in card
    assert f"{run.flops['training']:.3g}; " in card and "| Energy | not measured |" in card
    assert ("it shows nothing about the method" in card) == metrics["on_unigram_plateau"]
    assert "| Linear probes | upos 77.0% |" in card
    assert 'AutoTokenizer.from_pretrained("me/tiny")' in card and '"encoder"' not in card
    (command,) = (line for line in card.splitlines() if line.startswith("threeml pretrain"))
    again = parse_arguments("", shlex.split(command)[2:])
    assert executed_parameters(again) == executed_parameters(make_config(small))
    assert again.corpus == small["corpus"]
    step = (tmp_path / "dry" / "step-5" / "README.md").read_text()
    assert "The state after step 5." in step and "The state after" not in card


def test_the_card_of_a_model_without_code(run: RunRecord) -> None:
    """Of an earlier version, or of an architecture of one's own that cannot bring it."""
    card = hub_card("---\ntags: []\n---\n# Encoder", run, (), "me/tiny", "encoder", "main", portable=False)
    assert "import threeml_core.models.build" in card and 'from_pretrained("me/tiny", subfolder="model")\n' in card
    assert "trust_remote_code" not in card


def test_half_an_upload_goes_on(run: RunRecord, hub: Hub, push: Push) -> None:
    """The hub dies after three of six large files: one line; the same command sends the others, and no file twice."""
    hub.dies_after = 3
    said = push("me/tiny", status=2)
    assert "the same command goes on" in said
    assert "README.md" not in hub.repos["me/tiny"].branches["main"], "main is there when all is there"
    half = len(hub.received)
    assert 0 < half < 6
    hub.dies_after = None
    push("me/tiny")
    assert len(hub.received) == len(set(hub.received)) == 6
    assert hub.repos["me/tiny"].branches["main"]["README.md"]


def test_a_second_push_sends_what_has_changed(run: RunRecord, hub: Hub, push: Push, tmp_path: Path) -> None:
    push("me/tiny")
    sent, commits = list(hub.received), list(hub.repos["me/tiny"].commits)
    push("me/tiny")
    assert (hub.received, hub.repos["me/tiny"].commits) == (sent, commits)
    probe = run_folder(tmp_path / "runs", "probe", "self-40-0123456789")
    data = {"run": run.run_id, "is_random": False}
    leave_record(probe, {}, run, {}, metrics={"tasks": {"upos": {"accuracy": 0.77}}}, data=data)
    push("me/tiny")
    assert hub.received == sent
    new = hub.repos["me/tiny"].commits[len(commits) :]
    assert new == [("step-5", ["README.md"]), ("step-10", ["README.md"]), ("main", ["README.md"])]


def test_no_token(hub: Hub, push: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    assert "no token" in push("me/tiny", status=2)
    assert "me/tiny" not in hub.repos


def test_a_token_that_the_hub_does_not_know(hub: Hub, push: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where the hub's answer repeats it."""
    monkeypatch.setenv("HF_TOKEN", "hf_unknown")
    said = push("me/tiny", status=2)
    assert "does not know this token" in said and "hf_unknown" not in said


def test_a_token_that_may_only_read(hub: Hub, push: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", READ_TOKEN)
    assert "may not write there" in push("me/tiny", status=2)


def test_a_name_of_another(hub: Hub, push: Push) -> None:
    assert "may not write there" in push("other/new", status=2)
    assert "may not write there" in push("other/model", status=2), "it is there, and can be read"


def test_a_repository_that_holds_something_else(hub: Hub, push: Push) -> None:
    hub.repos["me/taken"] = Repo(False)
    hub.repos["me/taken"].branches["main"] |= {"README.md": b"My own", "model.safetensors": b"1"}
    before = as_folder(hub.repos["me/taken"])
    assert "me/taken is taken: it holds 2 files" in push("me/taken", status=2)
    assert as_folder(hub.repos["me/taken"]) == before and not hub.received


def test_no_network(hub: Hub, push: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be reached" in push("me/tiny", status=2)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in push("me/tiny", status=2)


def test_a_full_disk_in_a_dry_run(push: Push, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", full)
    before = sorted(tmp_path.iterdir())
    assert "the disk is full" in push("me/tiny", "-p", "dry_run", str(tmp_path / "dry"), status=2)
    assert sorted(tmp_path.iterdir()) == before


def test_a_run_that_was_changed_is_not_pushed(run: RunRecord, hub: Hub, push: Push, tmp_path: Path) -> None:
    weights = tmp_path / "runs" / "pretrain" / run.run_id / "checkpoints" / "step-5" / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert "has changed since it was written" in push("me/tiny", status=2)
    assert "me/tiny" not in hub.repos


def test_pretrain_pushes_when_it_ends(
    hub: Hub, run: RunRecord, small: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished run too; a hub that cannot be asked shows before anything is prepared or trained."""
    given = {**small, "runs_dir": str(tmp_path / "runs"), "push_to_hub": "me/ended", "checkpoint_steps": "5"}
    with monkeypatch.context() as patch, pytest.raises(HubError, match="no token"):
        patch.delenv("HF_TOKEN")
        pretrain(make_config({**given, "runs_dir": str(tmp_path / "new")}), no_line)
    assert not (tmp_path / "new").exists()
    record = pretrain(make_config(given), no_line)
    assert record.run_id == run.run_id, "what is pushed and kept is no part of a run's identity"
    assert "README.md" in hub.repos["me/ended"].branches["main"]
    assert TOKEN not in (tmp_path / "runs" / "pretrain" / run.run_id / "record.json").read_text()


def test_checkpoints_are_exact(run: RunRecord, own_runs: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that stopped behind one and goes on from before it: an undisturbed run's; the last one is the end."""

    def stopped(trainer: Trainer) -> Tensor:
        return honest(trainer) if trainer.state.step < 8 else torch.tensor(float("nan"))

    config, honest = make_config({**own_runs, "checkpoint_steps": "5,7,10,20"}), Trainer.update
    with monkeypatch.context() as patch, pytest.raises(NotFiniteError):
        patch.setattr(Trainer, "update", stopped)
        pretrain(config, no_line)
    kept = Path(config.runs_dir, "pretrain", run.run_id, "checkpoints")
    assert sorted(path.name for path in kept.iterdir()) == ["step-5", "step-7"]
    before = hashes(kept / "step-7")
    record = pretrain(config, no_line)
    assert record.run_id == run.run_id and record.metrics == run.metrics
    assert hashes(kept / "step-7") == before
    undisturbed = run_folder(Path(run.parameters["runs_dir"]), "pretrain", run.run_id)
    assert all(hashes(kept / name) == hashes(undisturbed / "checkpoints" / name) for name in ("step-5", "step-10"))
    weights = {name: digest for name, digest in hashes(kept.parent).items() if name.endswith(".safetensors")}
    for part in ("encoder", "model"):
        assert weights[f"checkpoints/step-20/{part}/model.safetensors"] == weights[f"{part}/model.safetensors"]


def test_a_checkpoint_that_the_run_has_passed_is_named(own_runs: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for when the run goes on behind it, it cannot be kept; the run ends all the same."""
    config, lines = make_config(own_runs), []
    with monkeypatch.context() as patch, pytest.raises(NotFiniteError):
        honest = SavedStates.check
        patch.setattr(SavedStates, "check", lambda s, m, step: s.stop("stopped") if step > 6 else honest(s, m, step))
        pretrain(config, no_line)
    record = pretrain(config.replace(checkpoint_steps="5,10"), lines.append)
    assert "warning: checkpoint_steps: the run is at step 6, nothing is kept of [5]" in lines
    kept = record.folder(config.runs_dir) / "checkpoints"
    assert [path.name for path in kept.iterdir()] == ["step-10"]
