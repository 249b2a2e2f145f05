"""Profiler of a few steps: a trace for a viewer, and a table of the longest operations.

    OUTPUT/profile/rank-0.trace.json.gz   a Chrome trace: opens in ui.perfetto.dev and chrome://tracing
    OUTPUT/profile/operations.json        mean time of a step, share of each stage, the longest operations

Only rank 0 is recorded: all ranks do the same work, and a trace of BERT-base takes tens of megabytes per step. Recorded
steps are slower than others; the weights are the same.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from train_jobs.config import ProfileConfig
from train_jobs.config.pretrain import PROFILE_WARMUP
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.storage import write_json

TRACE = "rank-0.trace.json.gz"
OPERATIONS = "operations.json"
STEP = "step {}"  # name of a step's range in the trace
MAX_OPERATIONS = 30


class StepProfiler:
    """Recorder of the steps that the configuration names.

    Args:
        config: steps to record.
        world: device, and the activity whose stages are timed.
        folder: folder of trace and table. None on all processes but the recorded one.
        log: callback that receives a text with the path of the trace.
    """

    def __init__(
        self, config: ProfileConfig, world: World, folder: Path | None, *, log: Callable[[str], None] = print
    ) -> None:
        self._config, self._activity, self._device, self._folder = config, world.activity, world.device, folder
        self._log = log
        self._wanted: range | None = None
        self._recorder: profile | None = None
        self._clock = Clock()

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Record the body as an optimizer step, if it is one of those to record.

        Args:
            number: number of the step, from 1. The first call decides which steps are recorded: without
                `profile.start` those after a warm-up, also when the run resumes.
        """
        if self._wanted is None:
            first = self._config.start or number + PROFILE_WARMUP
            self._wanted = range(first, first + self._config.steps)
        if self._folder is None or number not in self._wanted:
            yield
            return
        if self._recorder is None:
            self._recorder = _recorder(self._device)
            self._recorder.start()
        self._activity.observer = self._stage
        started = self._now()
        try:
            with record_function(STEP.format(number)):
                yield
        except BaseException:
            self._recorder.stop()
            raise
        finally:
            self._activity.observer = None
        self._clock.step(number, self._now() - started)
        if number == self._wanted[-1]:
            self.close()

    def close(self) -> None:
        """Write the recorded steps; if the disk fails, print a warning and continue."""
        recorder, self._recorder = self._recorder, None
        if recorder is None or self._folder is None:
            return
        with self._activity.doing("profile", step=self._clock.steps[-1]):
            recorder.stop()
            table = {
                "trace": TRACE,
                "device": self._device.type,
                **self._clock.as_dict(),
                "operations": operations(_in_steps(recorder.events() or []), self._device),
            }
            try:
                self._folder.mkdir(exist_ok=True)
                # Under a temporary name: a trace takes seconds to write, and a viewer rejects a part of one.
                draft = self._folder / f".{TRACE}"
                recorder.export_chrome_trace(str(draft))
                write_json(self._folder / OPERATIONS, table)
                draft.replace(self._folder / TRACE)
            except OSError as problem:
                print(f"warning: cannot write the profile: {problem}", file=sys.stderr, flush=True)
                return
        self._log(f"profiled steps {self._clock.steps[0]} to {self._clock.steps[-1]}: {self._folder / TRACE}")

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        started = self._now()
        with record_function(name):
            yield
        self._clock.stage(name, self._now() - started)

    def _now(self) -> float:
        """Return the time in seconds once the device is idle: queued work counts for the stage that queued it."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


class Clock:
    """Durations of the recorded steps and of their stages, in seconds."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self._seconds = 0.0
        self._stages: defaultdict[str, float] = defaultdict(float)

    def step(self, number: int, seconds: float) -> None:
        """Add a step."""
        self.steps.append(number)
        self._seconds += seconds

    def stage(self, name: str, seconds: float) -> None:
        """Add a stage."""
        self._stages[name] += seconds

    def as_dict(self) -> dict[str, Any]:
        """Return steps (first, last), step_ms (mean), and stages with name, mean ms and share (0 to 1), JSON-safe."""
        count = len(self.steps)
        stages = {**self._stages, "other": self._seconds - sum(self._stages.values())}
        return {
            "steps": [self.steps[0], self.steps[-1]],
            "step_ms": 1000 * self._seconds / count,
            "stages": [
                {"name": name, "ms": 1000 * seconds / count, "share": seconds / self._seconds}
                for name, seconds in stages.items()
            ],
        }


def operations(events: Iterable[Any], device: torch.device) -> list[dict[str, Any]]:
    """Return the operations with the longest own time, without the operations that they call, the longest first.

    Args:
        events: torch's FunctionEvents, times in microseconds.
        device: device whose time decides the order.

    Returns:
        At most 30 rows with name, calls, self_cpu_ms, self_device_ms and share of the total (0 to 1).
    """
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        # Kernels are events of their own, but their time is also in the operation that launched them; and our ranges
        # contain operations. Counting either would count the same time twice.
        if event.device_type != DeviceType.CPU or event.is_user_annotation:
            continue
        row = found.setdefault(event.name, {"name": event.name, "calls": 0, "self_cpu_ms": 0.0, "self_device_ms": 0.0})
        row["calls"] += 1
        row["self_cpu_ms"] += event.self_cpu_time_total / 1000
        row["self_device_ms"] += event.self_device_time_total / 1000
    key = "self_device_ms" if device.type == "cuda" else "self_cpu_ms"
    total = sum(row[key] for row in found.values()) or 1.0
    rows = sorted(found.values(), key=lambda row: row[key], reverse=True)[:MAX_OPERATIONS]
    return [{**row, "share": row[key] / total} for row in rows]


def _in_steps(events: Iterable[Any]) -> Iterator[Any]:
    """Yield the events within steps: the trace also has those between them, such as a validation."""
    events = list(events)
    prefix = STEP.format("")
    steps = [event.time_range for event in events if event.is_user_annotation and event.name.startswith(prefix)]
    for event in events:
        if any(step.start <= event.time_range.start <= step.end for step in steps):
            yield event


def _recorder(device: torch.device) -> profile:
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # otherwise Kineto logs its start and stop to stderr
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    return profile(
        activities=activities, acc_events=True
    )  # one cycle only; without acc_events torch 2.11 warns that a second one would clear events
