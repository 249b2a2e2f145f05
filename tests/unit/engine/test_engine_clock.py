"""The clock of the loop with a device that works while the host continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toy import ToyTask, make_loop, run

from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.engine.loop import loop as loop_module
from train_jobs.engine.runtime.distributed import World

FORWARD, UPDATE = 3.0, 5.0  # seconds of work on the device in each step


class Device:
    """A device whose queue takes time only when the host reads from it; it owns the clock."""

    def __init__(self) -> None:
        self.now = self.queued = 0.0

    def wait(self) -> None:
        """Let the queued work take its time."""
        self.now, self.queued = self.now + self.queued, 0.0


@pytest.mark.parametrize("log_every", [1, 2, 6])
def test_clock_counts_optimizer_and_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_every: int) -> None:
    """The optimizer's work is only queued when a step ends; a report must not leave it out."""
    device, read = Device(), World.read

    def waiting_read(world: World, vector: torch.Tensor) -> list[float]:
        device.wait()
        return read(world, vector)

    class Task(ToyTask):
        def train_batch(self, cursor: dict[str, int]) -> Any:
            device.queued += FORWARD
            return super().train_batch(cursor)

    monkeypatch.setattr(World, "read", waiting_read)
    monkeypatch.setattr(loop_module, "synchronize", lambda _: device.wait())
    monkeypatch.setattr(loop_module.time, "perf_counter", lambda: device.now)
    loop = make_loop(Task(), tmp_path, steps=6, log_every=log_every, validate_every=3)
    step = loop.optimizer.step

    def queue_step() -> None:
        device.queued += UPDATE
        step()

    loop.optimizer.step = queue_step  # type: ignore[method-assign]
    run(loop)
    rates = [metrics["sequences_per_second"] for metrics in training_reports(tmp_path)]
    assert rates == pytest.approx([loop.task.rows / (FORWARD + UPDATE)] * (6 // log_every))  # type: ignore[attr-defined]


def training_reports(folder: Path) -> list[dict[str, float]]:
    """Return the metrics of the reports that have a speed."""
    found = [report["metrics"] for _, report in read_reports(folder / "metrics.jsonl")]
    return [metrics for metrics in found if "sequences_per_second" in metrics]


def test_agreement_ahead_changes_no_result(tmp_path: Path) -> None:
    runs = []
    for ahead in (False, True):
        loop = make_loop(ToyTask(dropout=0.3), tmp_path / str(ahead), agree_ahead=ahead, prefetch=ahead)
        run(loop)
        runs.append(loop.task.model.state_dict())
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=0)
