"""A study on Ray: two hosts on the loopback interface, one of which is lost in the middle."""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.glue_files import write_glue
from tests.jobs import die, die_once, fail, hold, leave_host, preempted_once, sent
from tests.treebank_files import write_treebank
from threeml_core.config import make_config
from threeml_core.foundation.errors import LockedError, ParameterError, TrainingError
from threeml_core.foundation.files import PROJECT_ROOT, exclusive
from threeml_core.glue.finetune import finetune_glue, load_tasks
from threeml_core.information.probing import run_probing
from threeml_core.runs.jobs import Job
from threeml_core.runs.record import RunRecord, load_records
from threeml_core.runs.sweep import run_all
from threeml_core.training.encoders import open_encoder

ray = pytest.importorskip("ray", reason="needs the extra `cluster`")

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two hosts of one core each; the driver has joined the first."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    ray.init(address=made.address, logging_level="error", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def on_ray(jobs: list[Job], runs_dir: Path, log: Callable[[str], None]) -> dict[str, RunRecord]:
    return run_all(jobs, runs_dir, log, engine="ray")


def test_order_results_and_a_second_call(cluster: Any, tmp_path: Path) -> None:
    lines: list[str] = []
    follow = Job("baseline", "encoder", sent(tmp_path, "encoder").work, then=lambda record: [sent(tmp_path, "cola")])
    jobs = [sent(tmp_path, "rte", "mnli"), sent(tmp_path, "mnli"), follow]
    records = on_ray(jobs, tmp_path, lines.append)
    assert set(records) == {"mnli", "rte", "encoder", "cola"} and len(records) == 4
    about = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in records}
    assert about["rte"]["started"] >= about["mnli"]["ended"]
    assert {a["threads"] for a in about.values()} == {"1"} and os.getpid() not in {a["process"] for a in about.values()}
    assert lines[0] == "Ray: 2 hosts, 2 CPUs, 0 GPUs" and lines[-1].startswith("4/4 ")
    assert on_ray(jobs, tmp_path, lines.append) == records and lines[-1].startswith("4 of 4 runs are finished")
    assert not list((tmp_path / "running").iterdir())


def test_what_a_user_has_to_know_comes_back_in_one_line(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="^no$"):
        on_ray([Job("baseline", "b", fail), sent(tmp_path, "a")], tmp_path, print)
    lines: list[str] = []
    with pytest.raises(ParameterError, match="'nowhere'.*no Ray cluster answers there") as caught:
        ray_elsewhere(tmp_path)
    assert "\n" not in str(caught.value)
    too_large = Job("baseline", "large", sent(tmp_path, "large").work, num_gpus=8)
    with pytest.raises(TimeoutError):  # the test's own: it waits for a larger host
        on_ray([too_large, sent(tmp_path, "c")], tmp_path, stop_after(lines, "1/2"))
    assert "warning: a run needs 1 CPUs and 8 GPUs on one host, but the largest has 1 CPUs, 0 GPUs" in lines[1]


def ray_elsewhere(runs_dir: Path) -> None:
    """As a process that has not joined a cluster yet."""
    script = (
        "from threeml_core.foundation.errors import ParameterError\n"
        "from threeml_core.runs.ray_engine import ray_cluster\n"
        "try:\n    ray_cluster('x', print, 'nowhere', 3).__enter__()\nexcept ParameterError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=runs_dir, timeout=120)
    raise ParameterError(done.stdout.strip() or done.stderr)


def stop_after(lines: list[str], start: str) -> Callable[[str], None]:
    def log(line: str) -> None:
        lines.append(line)
        if line.startswith(start):
            raise TimeoutError

    return log


def test_lost_workers(cluster: Any, tmp_path: Path) -> None:
    """Once: the run starts again. Again and again: one line says what to do."""
    records = on_ray([Job("baseline", "once", functools.partial(die_once, tmp_path))], tmp_path, print)
    assert (tmp_path / "died").exists() and list(records) == ["once"]
    records = on_ray([Job("baseline", "preempted", functools.partial(preempted_once, tmp_path))], tmp_path, print)
    assert (tmp_path / "stopped").exists() and list(records) == ["preempted"]
    with pytest.raises(TrainingError, match="run dying lost its worker 2 times .*want of memory.*Run again, with more"):
        run_all([Job("baseline", "dying", die)], tmp_path, print, engine="ray", ray_max_retries=1)


def test_a_lock_that_a_lost_host_still_holds_is_waited_for(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(LockedError), exclusive(tmp_path / ".lock", "run held"):
        hold(tmp_path, print)

    def held() -> None:
        with exclusive(tmp_path / ".lock", "run held"):
            time.sleep(3)

    thread = threading.Thread(target=held)
    thread.start()
    time.sleep(0.5)
    assert list(on_ray([Job("baseline", "held", functools.partial(hold, tmp_path))], tmp_path, print)) == ["held"]
    thread.join()


def test_a_host_is_lost(cluster: Any, tmp_path: Path) -> None:
    """In the middle of ten runs: all end, none is there twice, only those of the lost host started again."""
    jobs = [
        Job("baseline", f"r{i}", functools.partial(leave_host, tmp_path, f"r{i}", 0.5), title=f"r{i}")
        for i in range(10)
    ]
    lost = next(node for node in cluster.worker_nodes)
    host = lost.node_id
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        if line.startswith("4/10"):
            cluster.remove_node(lost, allow_graceful=False)

    records = on_ray(jobs, tmp_path, log)
    cluster.add_node(num_cpus=1)  # for the tests behind this one
    assert sorted(records) == sorted(job.run_id for job in jobs)
    assert len(load_records(tmp_path, "baseline")) == 10
    starts = {job.run_id: (tmp_path / f"{job.run_id}.starts").read_text().split() for job in jobs}
    assert {host} < set(itertools.chain(*starts.values())), "both hosts took part"
    again = {run: hosts for run, hosts in starts.items() if len(hosts) > 1}
    assert all(hosts[0] == host for hosts in again.values())
    assert lines[-1].startswith("10/10 ")


def test_probes_find_the_same(cluster: Any, small: dict, encoders: dict[str, Path], tmp_path: Path) -> None:
    """The words alone, an encoder and its like with random weights, each on a worker, and in this process."""
    asked = {
        **small,
        "ud": str(write_treebank(tmp_path / "ud")),
        "probe_tasks": "upos,next_word",
        "probe_batch_size": 16,
    }
    names = [str(encoders["post"]), f"random:{encoders['post']}"]
    lines: list[str] = []

    def probed(engine: str) -> list[RunRecord]:
        return run_probing(
            make_config({**asked, "engine": engine, "runs_dir": str(tmp_path / engine)}), names, log=lines.append
        )

    remote, here = probed("ray"), probed("inline")
    assert any(line.startswith("Ray: ") for line in lines)
    for one, other in zip(remote, here, strict=True):
        assert (one.run_id, one.identity, one.data) == (other.run_id, other.identity, other.data)
        assert one.metrics == other.metrics


@pytest.mark.slow
def test_24_finetunings_and_a_lost_host(cluster: Any, encoders: dict[str, Path], tmp_path: Path) -> None:
    """Eight tasks, three seeds; RTE, STS-B and MRPC wait for MNLI. All end, no record is there twice."""
    settings = {
        "engine": "ray",
        "glue": str(write_glue(tmp_path / "glue_data")),
        "runs_dir": str(tmp_path / "runs"),
        "max_length": 32,
        "num_seeds": 3,
        **{f"finetune_{large}learning_rates": "3e-3" for large in ("", "large_")},
        **{f"finetune_{large}batch_sizes": "16" for large in ("", "large_")},
        **{f"finetune_{large}epochs": "10" for large in ("", "large_")},
    }
    config = make_config(settings)
    lost = cluster.worker_nodes and next(iter(cluster.worker_nodes))
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        if line.startswith("16/32"):  # 24 fine-tunings and 8 baselines
            cluster.remove_node(lost, allow_graceful=False)

    study = finetune_glue(config, open_encoder(encoders["post"]), load_tasks(config), log)
    cluster.add_node(num_cpus=1)
    records = load_records(settings["runs_dir"], "finetune")
    assert len(records) == 24 and len({json.dumps(record.identity, sort_keys=True) for record in records}) == 24
    assert len(list((tmp_path / "runs" / "finetune").iterdir())) == 24, "no other folder"
    assert len(study.results) == 8 and not any(record.failure for record in records)
    ended = [line for line in lines if line.split("/")[0].isdecimal()]
    assert len(ended) == 32 and ended[-1].startswith("32/32 ")
    again = finetune_glue(config, open_encoder(encoders["post"]), load_tasks(config), lines.append)
    assert [result.score for result in again.results] == [result.score for result in study.results]
    inline = make_config({**settings, "engine": "inline", "runs_dir": str(tmp_path / "inline"), "tasks": "rte"})
    alone = finetune_glue(inline, open_encoder(encoders["post"]), load_tasks(inline))
    (rte,) = [result for result in study.results if result.task.name == "rte"]
    assert [record.run_id for record in alone.results[0].records] == [record.run_id for record in rte.records]
    scores = [[record.metrics["score"] for record in result.records] for result in (alone.results[0], rte)]
    assert scores[0] == pytest.approx(scores[1]), "the same runs, but for rounding by the number of threads"


@pytest.mark.slow
def test_the_driver_is_killed(encoders: dict[str, Path], tmp_path: Path) -> None:
    """With a Ray of its own it takes all of it along; what was finished stays, and the next call goes on."""
    import psutil

    settings = {
        "engine": "ray",
        "checkpoint": str(encoders["post"]),
        "glue": str(write_glue(tmp_path / "glue_data")),
        "runs_dir": str(tmp_path / "runs"),
        "tasks": "cola",
        "max_length": 32,
        "num_seeds": 8,
        "finetune_learning_rates": "3e-3",
        "finetune_batch_sizes": "16",
        "finetune_epochs": "20",
    }
    parameters = [part for name, value in settings.items() for part in ("-p", name, str(value))]
    command = [sys.executable, "-m", "threeml_core", "finetune", *parameters]
    driver = subprocess.Popen(command, cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    with driver.stdout:
        while not next(driver.stdout).startswith("3/9 "):
            pass
        started = psutil.Process(driver.pid).children(recursive=True)
        driver.kill()
        driver.wait()
    _, alive = psutil.wait_procs(started, timeout=150)
    left = [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert len(started) > 3 and not left
    before = {record.run_id for record in load_records(settings["runs_dir"], "finetune")}
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "of 9 runs are finished; their records are read" in done.stdout
    after = {record.run_id for record in load_records(settings["runs_dir"], "finetune")}
    assert 2 <= len(before) < 8 and before < after and len(after) == 8
