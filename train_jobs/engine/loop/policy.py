"""Settings and services of a training loop, created by the job and injected into the loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train_jobs.artifacts.lineage import METRICS_FILE
from train_jobs.config import CheckpointConfig, ProfileConfig, TrainConfig
from train_jobs.engine.checkpoint.checkpoints import Cadence, CheckpointStore
from train_jobs.engine.reporting.metrics import MetricsLog, ProgressLine
from train_jobs.engine.reporting.profiler import StepProfiler
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.stop import StopRequest

HOUR = 3600.0


class TimeBudget:
    """Training time over all attempts of a run; the time between two attempts does not count.

    Args:
        hours: the budget. None: no limit, and no time is measured.
        clock: monotonic time in seconds.
    """

    def __init__(self, hours: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = None if hours is None else hours * HOUR
        self._clock = clock
        self._began = clock()

    def start(self, spent: float) -> None:
        """Start an attempt.

        Args:
            spent: training time of earlier attempts in seconds, as stored in the checkpoint that this one resumes from.
        """
        self._began = self._clock() - spent

    def spent(self) -> float:
        """Return the seconds used so far on this process's own clock; 0 without a budget."""
        return 0.0 if self._seconds is None else self._clock() - self._began

    def share(self, spent: float) -> float:
        """Return `spent` seconds as a share of the budget: above 1 after its end, 0 without a budget."""
        return 0.0 if self._seconds is None else spent / self._seconds

    def seconds_left(self, spent: float, wanted: float) -> float:
        """Return the estimated seconds until the end of training.

        Args:
            spent: seconds used so far.
            wanted: seconds that the remaining steps would take without a budget.
        """
        return wanted if self._seconds is None else min(wanted, max(self._seconds - spent, 0.0))


@dataclass(frozen=True, kw_only=True)
class LoopPolicy:
    """Settings and pure functions that decide the course of training."""

    config: TrainConfig
    precision: str
    """bf16, fp16 or fp32."""
    schedule: Callable[[int, float], float]
    """Optimizer step (from 0), share of the time budget used -> learning rate."""
    max_grad_norm: float | None
    """Clip of the global gradient norm. None: no clip."""
    validate_every: int
    """Steps between two validations."""
    best_by: Callable[[Mapping[str, float]], float] = lambda metrics: metrics["loss"]
    """Function of a validation's metrics that the best checkpoint minimises."""
    patience: int | None = None
    """Stop after this many validations without improvement. None: only the number of steps ends training."""
    sharded: bool = False
    """Whether each process keeps only the optimizer state of its share of the tensors (ZeRO stage 1)."""
    prefetch: bool | None = None
    """Whether a thread prefetches the next batch. None: on GPUs only; on a CPU it would take cores from the step."""
    batch_process: bool | None = None
    """Whether a process of its own makes the batches that are prefetched. None: on GPUs, if the task allows it."""
    agree_ahead: bool | None = None
    """Whether the processes agree on the next step while the device computes this one. None: several GPUs do."""
    peak_flops: float | None = None
    """Floating-point operations per second that all devices together could make. None: unknown."""
    checkpoint_extra: Mapping[str, Any] = field(default_factory=dict)
    """Stored in state.json of every checkpoint in addition to the state of the loop."""


@dataclass(frozen=True, kw_only=True)
class LoopServices:
    """Services of a loop: reports, checkpoints, clocks and stop requests."""

    checkpoints: CheckpointStore
    cadence: Cadence
    """When a checkpoint is due; one more follows the last step."""
    metrics: MetricsLog
    progress: ProgressLine
    stop: StopRequest
    profiler: StepProfiler
    """Profiler of selected steps."""
    budget: TimeBudget = field(default_factory=lambda: TimeBudget(None))
    """The step during which it runs out is the last one."""

    @classmethod
    def from_config(
        cls,
        config: CheckpointConfig,
        output: Path,
        world: World,
        *,
        steps: int,
        stop: StopRequest,
        profile: ProfileConfig | None = None,
        hours: float | None = None,
        best_is_result: bool = False,
    ) -> LoopServices:
        """Return the services of a run; only those of the main process write files.

        Args:
            config: schedule and retention of checkpoints.
            output: output folder of the run.
            world: the processes.
            steps: optimizer steps of the whole run.
            stop: the stop request that signals set.
            profile: steps to record. None: no step.
            hours: training time over all attempts. None: no limit.
            best_is_result: whether the best checkpoint, not the last one, is the result.
        """
        progress = ProgressLine(steps)
        return cls(
            checkpoints=CheckpointStore.from_config(config, output, best_is_result=best_is_result, warn=progress.line),
            cadence=Cadence(config),
            metrics=MetricsLog(output / METRICS_FILE if world.is_main else None),
            progress=progress,
            stop=stop,
            profiler=StepProfiler(
                profile or ProfileConfig(), world, output / "profile" if world.is_main else None, log=progress.line
            ),
            budget=TimeBudget(hours),
        )
