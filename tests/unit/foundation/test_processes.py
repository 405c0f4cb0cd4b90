"""How the threads of this package's processes wait: briefly, unless the user has decided, and nobody else's."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.foundation.processes import environment_of_children, is_running, spin_environment

SHOW = "import os; print(os.environ.get('GOMP_SPINCOUNT'))"
NOTEBOOK = f"from threeml_core.config import resolve_parameters; resolve_parameters({{}}); {SHOW}"


def said(arguments: list[str], **given: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, *arguments], env={**inherited, **given}, cwd=PROJECT_ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("given", "expected"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_a_notebook_waits_briefly(given: dict[str, str], expected: str) -> None:
    assert said(["-c", NOTEBOOK], **given) == expected


def test_a_policy_of_the_users_stays() -> None:
    assert said(["-c", NOTEBOOK], OMP_WAIT_POLICY="passive") == "None"


def test_a_command_waits_briefly_before_torch_is_there() -> None:
    """libgomp says what it was told when torch loads it, which a command does before its first own line."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-m", "threeml_core", "pretrain", "--help"],
        env={**inherited, "OMP_DISPLAY_ENV": "verbose"},
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
    )
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("this torch has no libgomp")
    assert "GOMP_SPINCOUNT = '1000'" in done.stderr


def test_a_program_of_the_users_is_left_alone() -> None:
    assert said(["-c", f"import threeml_core.config; {SHOW}"]) == "None"


def test_children_inherit_and_this_process_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    with environment_of_children(OMP_NUM_THREADS="2", **spin_environment()):
        assert said(["-c", SHOW], GOMP_SPINCOUNT=os.environ["GOMP_SPINCOUNT"]) == "1000"
        assert os.environ["OMP_NUM_THREADS"] == "2"
    assert "GOMP_SPINCOUNT" not in os.environ and os.environ["OMP_NUM_THREADS"] == "5"


def test_an_ended_process_that_is_still_listed_is_not_running() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    assert is_running(os.getpid())
    deadline = time.monotonic() + 30
    while is_running(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(process.pid), "nobody has waited for it yet"
    process.wait()
    assert not is_running(process.pid)
