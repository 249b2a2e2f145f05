"""Two real processes over gloo, with shares of 3 and 4 rows of a global batch of 7."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toy import ToyTask, make_loop, reports_in, run, weights_of
from safetensors.torch import load_file

from train_jobs.artifacts.files import try_lock
from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.config import SpecError
from train_jobs.engine.runtime import distributed
from train_jobs.engine.runtime.distributed import explain_lost_peer

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a job of two processes and return its folder; see `engine_toy.main`."""
    folder = tmp_path_factory.mktemp("job")
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("engine_toy.py")), str(folder)]
    common = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": str(REPOSITORY),
    }
    processes = [
        subprocess.Popen(
            command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    errors = []
    try:
        errors = [process.communicate(timeout=60)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 17], "\n".join(errors)
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Return the weights that a single process trains."""
    loop = make_loop(ToyTask(rows=7), tmp_path_factory.mktemp("alone"))
    run(loop)
    return weights_of(loop)


def results(job: Path, rank: int) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((job / f"results-{rank}.json").read_text())
    return document


def test_uneven_shares_train_like_one_process(job: Path, alone: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(load_file(job / "uninterrupted-0.safetensors"), alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["uninterrupted", "resumed"])
def test_all_processes_end_with_same_bits(job: Path, name: str) -> None:
    first, second = (load_file(job / f"{name}-{rank}.safetensors") for rank in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_stop_on_one_process_stops_all_at_same_step(job: Path) -> None:
    assert json.loads((job / "stopped" / "checkpoints" / "step-00000003" / "state.json").read_text())["world_size"] == 2
    resumed, uninterrupted = (load_file(job / f"{name}-0.safetensors") for name in ("resumed", "uninterrupted"))
    torch.testing.assert_close(resumed, uninterrupted, rtol=0, atol=0)


def test_budget_clock_of_rank_0_ends_all_at_same_step(job: Path) -> None:
    first, second = (json.loads((job / f"timed-{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first["rate"] == 0.0
    assert 1 < first["step"] < 100, "the clock of the first process, and that alone"


def test_report_across_stop_equals_uninterrupted_one(job: Path) -> None:
    """Stopped at step 3 with reports every 2 steps: each process restores its own sums bit-exactly."""
    state = json.loads((job / "stopped" / "checkpoints" / "step-00000003" / "state.json").read_text())
    assert [rows for *_, rows in state["meter"]["sums"]] == [3, 4], "the shares of step 3"
    assert reports_in(job / "stopped") == reports_in(job / "uninterrupted")


def test_checkpoint_clock_of_rank_0_applies_to_all(job: Path) -> None:
    """The clock advances by a minute on each read, so a checkpoint is due at the fourth read."""
    assert sorted(path.name for path in (job / "clocked" / "checkpoints").iterdir()) == [
        "step-00000003",
        "step-00000006",
    ]


def test_report_covers_global_batch_and_appears_once(job: Path, tmp_path: Path) -> None:
    run(make_loop(ToyTask(rows=7), tmp_path))
    expected, found = (
        [(report["step"], report["metrics"].get("train_loss")) for _, report in read_reports(folder / "metrics.jsonl")]
        for folder in (tmp_path, job / "uninterrupted")
    )
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert [loss for _, loss in found if loss] == pytest.approx([loss for _, loss in expected if loss], rel=1e-5)


def test_slow_process_is_in_every_report(job: Path) -> None:
    reports = [report["metrics"] for _, report in read_reports(job / "paced" / "metrics.jsonl")]
    found = [metrics for metrics in reports if "slowest_rank" in metrics]
    assert len(found) == 3
    assert all(metrics["slowest_rank"] == 1 and metrics["slowest_rank_ratio"] > 3 for metrics in found)


def test_lost_peer_is_explained(job: Path) -> None:
    document = results(job, 0)
    assert (document["stopped at"], document["resumed at"]) == (3, 3)
    assert document["explained"]["kind"] == "peer"
    assert "rank 0 lost the connection" in document["explained"]["message"]


def test_other_problems_are_not_blamed_on_peers() -> None:
    assert explain_lost_peer(RuntimeError("shapes differ"), 0) is None


def test_single_process_needs_no_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    world = distributed.start("cpu")
    assert (world.rank, world.size, world.device.type, world.is_main) == (0, 1, "cpu", True)
    assert world.sum_(torch.ones(2)).tolist() == [1.0, 1.0]
    world.barrier()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_missing_gpu_is_spec_error() -> None:
    with pytest.raises(SpecError, match="this machine has no GPU") as caught:
        distributed.start("gpu")
    assert caught.value.fix == "--set compute.device=auto"


def test_file_of_a_shared_folder_does_not_outlive_its_process(tmp_path: Path) -> None:
    (tmp_path / ".seen-of-a-killed-process").touch()
    living = tmp_path / ".seen-of-a-living-process"
    living.touch()
    world = distributed.single_process_world()
    with living.open("rb") as stream:
        assert try_lock(stream)
        assert world.shares_folder(tmp_path)
        assert list(tmp_path.iterdir()) == [living]
    assert world.shares_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []
