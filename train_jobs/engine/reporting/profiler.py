"""Where the time of a few steps goes: a trace for a viewer, and a table of the operations that took longest.

    OUTPUT/profile/rank-0.trace.json.gz   a Chrome trace: opens in ui.perfetto.dev and chrome://tracing
    OUTPUT/profile/operations.json        mean time of a step, share of each of its stages, the top operations

Of rank 0 alone: all ranks do the same work, and a trace of BERT-base is tens of megabytes a step. Recorded steps
take longer than others; the weights are the same with and without.
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
STEP = "step {}"  # the name of a range of the trace
MOST_OPERATIONS = 30


class StepProfiler:
    """Records the steps that the configuration names.

    Args:
        config: which steps.
        world: where the work is done, and the stages that are timed.
        folder: where trace and table go; None on every process but the one that is profiled.
        say: tells a person that they are there.
    """

    def __init__(
        self, config: ProfileConfig, world: World, folder: Path | None, *, say: Callable[[str], None] = print
    ) -> None:
        self._config, self._activity, self._device, self._folder = config, world.activity, world.device, folder
        self._say = say
        self._wanted: range | None = None
        self._recorder: profile | None = None
        self._clock = Clock()

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """The body makes optimizer step `number`, counted from 1; the first one called for sets the start of all."""
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
        """Writes what was recorded; a disk that refuses it is warned of and stops nothing."""
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
                draft = self._folder / f".{TRACE}"
                recorder.export_chrome_trace(str(draft))
                write_json(self._folder / OPERATIONS, table)
                draft.replace(self._folder / TRACE)
            except OSError as problem:
                print(f"warning: the profile could not be written: {problem}", file=sys.stderr, flush=True)
                return
        self._say(f"profiled steps {self._clock.steps[0]} to {self._clock.steps[-1]}: {self._folder / TRACE}")

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        started = self._now()
        with record_function(name):
            yield
        self._clock.stage(name, self._now() - started)

    def _now(self) -> float:
        """Seconds, once the device has done what it was given: its work counts where it is asked for."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


class Clock:
    """Seconds of each step and of each stage of it."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self._seconds = 0.0
        self._stages: defaultdict[str, float] = defaultdict(float)

    def step(self, number: int, seconds: float) -> None:
        """Adds a step."""
        self.steps.append(number)
        self._seconds += seconds

    def stage(self, name: str, seconds: float) -> None:
        """Adds a stage."""
        self._stages[name] += seconds

    def as_dict(self) -> dict[str, Any]:
        """First and last step, milliseconds of a step, and of its stages in the order in which they come."""
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
    """The operations that took longest, without the time of those that they call; the longest first.

    Args:
        events: torch's FunctionEvents, times in microseconds.
        device: whose time decides.

    Returns:
        name, calls, self_cpu_ms, self_device_ms, and share of the time of all operations, of at most 30 of them.
    """
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if event.device_type != DeviceType.CPU or event.is_user_annotation:  # kernels count for who launched them
            continue
        row = found.setdefault(event.name, {"name": event.name, "calls": 0, "self_cpu_ms": 0.0, "self_device_ms": 0.0})
        row["calls"] += 1
        row["self_cpu_ms"] += event.self_cpu_time_total / 1000
        row["self_device_ms"] += event.self_device_time_total / 1000
    key = "self_device_ms" if device.type == "cuda" else "self_cpu_ms"
    total = sum(row[key] for row in found.values()) or 1.0
    rows = sorted(found.values(), key=lambda row: row[key], reverse=True)[:MOST_OPERATIONS]
    return [{**row, "share": row[key] / total} for row in rows]


def _in_steps(events: Iterable[Any]) -> Iterator[Any]:
    """Leaves out what came between the steps, as a validation: the trace has it, the table is of the steps."""
    events = list(events)
    prefix = STEP.format("")
    steps = [event.time_range for event in events if event.is_user_annotation and event.name.startswith(prefix)]
    for event in events:
        if any(step.start <= event.time_range.start <= step.end for step in steps):
            yield event


def _recorder(device: torch.device) -> profile:
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or it tells on stderr that it starts and that it stops
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    return profile(activities=activities, acc_events=True)  # there is one cycle; torch 2.11 warns of others
