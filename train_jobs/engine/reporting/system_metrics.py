"""Load of a job's machines: CPU, memory, disk, network and GPUs, under MLflow's names of system metrics.

The first process of each machine samples in a thread and appends to OUTPUT/system/node-0.jsonl, node-1.jsonl, ..., in
the format of metrics.jsonl; the mirror copies both. MLflow's own variables apply: MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING
(false: nothing is sampled) and MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL (seconds).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from train_jobs.artifacts.host import RunClock, host_memory
from train_jobs.artifacts.metrics_file import SYSTEM_FILE, SYSTEM_FOLDER, read_reports
from train_jobs.engine.reporting.gpu_load import gpu_reader

if TYPE_CHECKING:  # at run time it would load torch into every preparation process
    from train_jobs.engine.runtime.distributed import World

ENABLED_VARIABLE = "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING"
INTERVAL_VARIABLE = "MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL"
PREFIX = "system/"
NODE_PREFIX = "system/node_{}/"  # of jobs on several machines
MEGABYTE = 1e6
FIRST_SECONDS = 10.0  # MLflow's interval
LATER_SECONDS = 60.0  # after an hour: a week then has 10,000 samples, not 60,000
HOUR = 3600.0
LOOPBACK = "lo"


class HostLoad:
    """CPU, memory, disk and network of this machine; shares of time are since the sample before.

    Args:
        folder: folder on the disk that is measured.
        proc: mount point of proc(5).
    """

    def __init__(self, folder: Path, proc: Path = Path("/proc")) -> None:
        self._folder, self._proc = folder, proc
        self._cpu = self._cpu_ticks()
        self._network = self._network_bytes()

    def sample(self) -> dict[str, float]:
        """Return the metrics by MLflow's names, without prefix."""
        before, self._cpu = self._cpu, self._cpu_ticks()
        busy, total = (now - then for now, then in zip(self._cpu, before, strict=True))
        memory, disk = host_memory(self._proc / "meminfo"), shutil.disk_usage(self._folder)
        received, sent = (now - then for now, then in zip(self._network_bytes(), self._network, strict=True))
        used = memory.total - memory.available
        return {
            **({"cpu_utilization_percentage": 100 * busy / total} if total > 0 else {}),
            "system_memory_usage_megabytes": used / MEGABYTE,
            "system_memory_usage_percentage": 100 * used / memory.total,
            "disk_usage_percentage": 100 * disk.used / disk.total,
            "disk_usage_megabytes": disk.used / MEGABYTE,
            "disk_available_megabytes": disk.free / MEGABYTE,
            "network_receive_megabytes": received / MEGABYTE,
            "network_transmit_megabytes": sent / MEGABYTE,
        }

    def _cpu_ticks(self) -> tuple[int, int]:
        """Return busy and total ticks of all processors since the boot."""
        with (self._proc / "stat").open() as stream:
            ticks = [int(field) for field in stream.readline().split()[1:9]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # proc(5): the fourth is idle, the fifth waits for disks

    def _network_bytes(self) -> tuple[int, int]:
        """Return received and sent bytes of all interfaces but the loopback one."""
        lines = (self._proc / "net" / "dev").read_text().splitlines()[2:]
        rows = [(name.strip(), counts.split()) for name, _, counts in (line.partition(":") for line in lines)]
        found = [(int(counts[0]), int(counts[8])) for name, counts in rows if name != LOOPBACK]
        return sum(received for received, _ in found), sum(sent for _, sent in found)


class SystemMonitor:
    """Thread that records the load of this machine while the body of a `with` statement runs.

    Args:
        output: folder of the run.
        node: number of this machine.
        nodes: number of machines.
        gpus: whether the job uses GPUs.
        on: False: record nothing.
    """

    def __init__(self, output: Path, *, node: int = 0, nodes: int = 1, gpus: bool = False, on: bool = True) -> None:
        self._prefix = NODE_PREFIX.format(node) if nodes > 1 else PREFIX
        self._output, self._file = output, output / SYSTEM_FOLDER / SYSTEM_FILE.format(node)
        self._every, self._gpus = _interval(), gpus
        self._on = on and os.environ.get(ENABLED_VARIABLE, "").lower() not in ("false", "0")
        self._clock, self._done = RunClock.inherited(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="system-metrics", daemon=True)

    @classmethod
    def of(cls, world: World, output: Path) -> Self:
        """Return the monitor of this process's machine; only the first process of each machine records."""
        node, nodes = world.rank // world.local_size, world.size // world.local_size
        return cls(output, node=node, nodes=nodes, gpus=world.device.type == "cuda", on=world.local_rank == 0)

    def __enter__(self) -> Self:
        if self._on:
            self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Take a last sample and end the thread; safe to repeat."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(1.0)  # a hung disk must not delay the end of a job

    def _work(self) -> None:
        try:
            self._sample()
        except Exception as problem:  # a machine without proc(5), a full disk: the job trains on
            print(f"warning: no system metrics from now on: {problem}", file=sys.stderr)

    def _sample(self) -> None:
        started, host = time.monotonic(), HostLoad(self._output)
        gpus: Callable[[], dict[str, float]] | None = gpu_reader() if self._gpus else None
        self._file.parent.mkdir(exist_ok=True)
        step = _steps(self._file)
        with self._file.open("a", encoding="utf-8") as stream:
            if stream.tell():
                stream.write("\n")  # ends a line that a killed job left incomplete; readers skip empty lines
            last = False
            while not last:
                early = time.monotonic() - started < HOUR
                last = self._done.wait(self._every or (FIRST_SECONDS if early else LATER_SECONDS))
                values = {**host.sample(), **(gpus() if gpus else {})}
                metrics = {f"{self._prefix}{name}": value for name, value in values.items()}
                stream.write(json.dumps({"step": step, "time": self._clock.now(), "metrics": metrics}) + "\n")
                stream.flush()
                step += 1


def _interval() -> float | None:
    """Return the interval in the environment; None: 10 s in the first hour, 60 s later."""
    with suppress(KeyError, ValueError):
        return max(float(os.environ[INTERVAL_VARIABLE]), 0.1)
    return None


def _steps(file: Path) -> int:
    """Return the number of the next sample: MLflow counts samples as steps."""
    return max((int(report["step"]) for _, report in read_reports(file)), default=-1) + 1 if file.exists() else 0
