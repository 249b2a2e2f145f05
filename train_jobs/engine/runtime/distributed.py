"""The processes of a job: rank, device and current stage of this one, and the few collectives that the engine needs.

Reads the variables that torchrun, Azure ML and most launchers set: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
MASTER_ADDR, MASTER_PORT. Without them the job is one process.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from train_jobs.artifacts.files import try_lock
from train_jobs.config import PeerError, SpecError
from train_jobs.engine.runtime.allocator import keep_freed_tensors
from train_jobs.engine.runtime.gpu_check import require_driver, require_usable_gpu

MINIMUM_TIMEOUT = timedelta(minutes=30)
SIGN = ".seen-"  # begins the name of a file by which processes find out whether they share a folder
VISIBLE_SECONDS = 10.0  # a mounted store shows the writes of other machines with a delay
ABANDON_SECONDS = 10.0
# First id of CUDA_VISIBLE_DEVICES: any other, such as Slurm's NoDevFiles, hides all GPUs, for CUDA and for torch.
VISIBLE = re.compile(r"\+?\d|GPU-|MIG-")
AFTER_WATCHDOG = timedelta(minutes=5)  # the watchdog needs half a minute until every process has reported


class Stage(NamedTuple):
    """A stage of the job's work."""

    name: str = "start"
    """data, forward, reduction, validation, checkpoint, ..."""
    step: int = 0
    """The current optimizer step; between steps, the last one."""
    waits: bool = False
    """True while it waits for all other processes: a hang here has its cause in another process."""

    def __str__(self) -> str:
        return f"{self.name} of step {self.step}"


class Activity:
    """Current stage of this process: set by the loop, read by watchdog and profiler from any thread."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.beats = 0
        self.waited = 0.0
        """Seconds in which this process waited for the others."""
        self.queued: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        """Start and end of collectives on a GPU whose duration was not counted yet."""
        self.observer: Callable[[str], AbstractContextManager[None]] | None = None
        """Name of a stage -> context that the stage runs in."""

    @contextmanager
    def doing(self, name: str, *, step: int) -> Iterator[None]:
        """Run the body as a stage; its start and its end count as progress.

        Args:
            name: name of the stage, as in `Stage`.
            step: optimizer step that the stage is part of.
        """
        self.stage = Stage(name, step)
        self.beat()
        with self.observer(name) if self.observer else nullcontext():
            yield
        self.beat()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark the body as waiting for all other processes; its start and its end count as progress."""
        # Without `finally`: after an error the stage stays, so that reports name the stage in which it happened.
        stage, started = self.stage, time.perf_counter()
        self.stage = stage._replace(waits=True)
        self.beat()
        yield
        self.waited += time.perf_counter() - started
        self.stage = stage
        self.beat()

    def beat(self) -> None:
        """Count progress inside a stage."""
        self.beats += 1


@dataclass(frozen=True)
class World:
    """This process among all processes of the job."""

    rank: int
    local_rank: int
    size: int
    device: torch.device
    local_size: int = 1
    """Processes on this node."""
    activity: Activity = field(default_factory=Activity, compare=False, repr=False)
    """Current stage of this process."""

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes checkpoints, metrics and the export."""
        return self.rank == 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum `tensor` over all processes, in place, and return it; every process must call it."""
        if self.size > 1:
            if tensor.is_cuda:  # the work queued so far is this process's own: it must not count as waiting
                torch.cuda.current_stream(tensor.device).synchronize()
            with self.activity.waiting():
                dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
                # With nccl the call only queues the reduction, so a hang would be attributed to the stage after it.
                # Waiting here costs nothing: every caller reads the sum next.
                if tensor.is_cuda:
                    torch.cuda.current_stream(tensor.device).synchronize()
        return tensor

    def queue_sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum `tensor` as `sum_` does; on a GPU only queue the sum, so that the host does not wait.

        The next `read` waits for it and counts its time as waiting for the other processes.
        """
        if self.size == 1 or not tensor.is_cuda:
            return self.sum_(tensor)
        begun, done = _event(), _event()
        begun.record()
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
        done.record()
        self.activity.queued.append((begun, done))
        return tensor

    def start_sum_(self, tensor: torch.Tensor) -> Callable[[], None]:
        """Start the sum of `tensor` over all processes, in place; every process must call it.

        Returns:
            Function that waits for the sum. On a GPU only the device waits, and the next `read` counts its time.
        """
        if self.size == 1:
            return lambda: None
        work = dist.all_reduce(tensor, op=dist.ReduceOp.SUM, async_op=True)
        assert work is not None

        def wait() -> None:
            if not tensor.is_cuda:
                with self.activity.waiting():
                    work.wait()
                return
            begun, done = _event(), _event()
            begun.record()
            work.wait()
            done.record()
            self.activity.queued.append((begun, done))

        return wait

    def read(self, vector: torch.Tensor) -> list[float]:
        """Wait for the device and return the numbers of a vector on the host."""
        if not vector.is_cuda or self.size == 1:
            return vector.tolist()
        # A process that never arrives in a queued collective makes this read hang: its stage reports that.
        stage = self.activity.stage
        self.activity.stage = stage._replace(waits=True)
        self.activity.beat()
        found: list[float] = vector.tolist()
        self.activity.stage = stage
        self.activity.waited += sum(begun.elapsed_time(done) for begun, done in self.activity.queued) / 1000
        self.activity.queued.clear()
        self.activity.beat()
        return found

    @property
    def device_name(self) -> str:
        """Name of the GPU, or cpu."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"

    def minimum(self, value: int) -> int:
        """Return the lowest `value` of all processes; every process must call it."""
        # A sum of one-hot entries instead of a MIN reduction: `sum_` is the only reduction that the watchdog and the
        # benchmarks observe.
        values = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        values[self.rank] = value
        return int(self.sum_(values).min())

    def from_main(self, value: int) -> int:
        """Return the main process's `value` on every process; every process must call it."""
        return int(self.sum_(torch.tensor(value if self.is_main else 0, dtype=torch.int64, device=self.device)).item())

    def broadcast_(self, tensor: torch.Tensor, rank: int) -> None:
        """Broadcast `tensor` from the process of `rank` to all, in place."""
        if self.size > 1:
            with self.activity.waiting():
                dist.broadcast(tensor, rank)

    def broadcast_each_(self, parts: Sequence[torch.Tensor]) -> None:
        """Broadcast each `parts[rank]` from the process of that rank to all, in place."""
        if self.size > 1:
            with self.activity.waiting():
                # All are started before the first wait, so that sends of different processes overlap.
                for work in [dist.broadcast(part, rank, async_op=True) for rank, part in enumerate(parts)]:
                    work.wait()

    def gather_texts(self, text: str) -> list[str]:
        """Return the `text` of every process, in the order of ranks; every process must call it."""
        # Not all_gather_object: it unpickles data from the network, and pads every text to the longest.
        mine = torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8).to(self.device)
        sizes = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        sizes[self.rank] = len(mine)
        parts = [
            mine if rank == self.rank else torch.empty(size, dtype=torch.uint8, device=self.device)
            for rank, size in enumerate(self.sum_(sizes).tolist())
        ]
        self.broadcast_each_(parts)
        return [bytes(part.tolist()).decode("utf-8") for part in parts]

    def shares_folder(self, folder: Path) -> bool:
        """Return whether all processes see the same `folder`, which is created if it does not exist.

        Args:
            folder: path on each node; on several nodes it may be a local disk or a shared one.
        """
        # The random name keeps a file of an earlier job with the same folder from answering for this one.
        sign = folder / f"{SIGN}{self.gather_texts(uuid.uuid4().hex)[0]}"
        folder.mkdir(parents=True, exist_ok=True)
        with _shown(sign) if self.is_main else nullcontext():
            self.barrier()
            deadline = time.monotonic() + VISIBLE_SECONDS
            while not (seen := sign.exists()) and time.monotonic() < deadline:
                time.sleep(0.2)
            return self.minimum(int(seen)) == 1

    def log(self, text: str) -> None:
        """Print `text` on the main process."""
        if self.is_main:
            print(text, flush=True)

    def barrier(self) -> None:
        """Wait until every process calls it."""
        if self.size > 1:
            with self.activity.waiting():
                dist.barrier()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


@contextmanager
def _shown(sign: Path) -> Iterator[None]:
    """Show a file to other processes, then delete it; first delete those that killed processes left."""
    for other in sign.parent.glob(f"{SIGN}*"):
        with suppress(OSError), other.open("rb") as stream:
            if try_lock(stream):  # else its process lives
                other.unlink()
    sign.touch()
    with sign.open("rb") as stream:  # opened again: some mounted stores show a file only once its writer has closed it
        with suppress(OSError):  # a disk without locks
            try_lock(stream)
        try:
            yield
        finally:
            sign.unlink(missing_ok=True)


def single_process_world() -> World:
    """Return a world of one process on the CPU, without a process group."""
    return World(rank=0, local_rank=0, size=1, device=torch.device("cpu"))


def uses_gpu(device: str) -> bool:
    """Return whether a job uses GPUs on this machine: "auto" (if it has one), "cpu" or "gpu".

    Raises:
        MachineError: the driver is too old for this torch.
    """
    if device == "cpu" or not VISIBLE.match(os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip()):
        return False
    # Before the GPUs are counted: some ways to count them find none if the driver is old, and the job would silently
    # train on the CPU.
    require_driver()
    return torch.cuda.device_count() > 0


def start(device: str = "auto", *, hang_seconds: float | None = None) -> World:
    """Join the process group: nccl for tensors on GPUs, gloo for tensors on the host.

    Args:
        device: "auto" (a GPU if the machine has one), "cpu" or "gpu".
        hang_seconds: seconds after which the watchdog ends a process that hangs. None: no watchdog.

    Returns:
        This process in the group; without the variables of a launcher, a world of one process.

    Raises:
        SpecError: there is no GPU although one is required, or fewer GPUs than processes on this node.
        MachineError: the GPU cannot be used: an old driver, a build of torch without code for it, a broken GPU.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    gpus = torch.cuda.device_count() if uses_gpu(device) else 0
    if device == "gpu" and gpus == 0:
        raise SpecError("cannot use compute.device gpu: this machine has no GPU", fix="--set compute.device=auto")
    if gpus and local_rank >= gpus:
        raise SpecError(
            "cannot start: more processes than GPUs on this node",
            facts={"need": f"{os.environ.get('LOCAL_WORLD_SIZE', local_rank + 1)} GPUs", "have": gpus},
            fix=f"--set compute.processes_per_node={gpus}",
        )
    place = torch.device("cuda", local_rank) if gpus else torch.device("cpu")
    if place.type == "cuda":
        require_usable_gpu(place)  # before the group: nccl binds a rank to the current device
    else:
        keep_freed_tensors()
    if size > 1:
        gpu = place.type == "cuda"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpu else "gloo",
            rank=rank,
            world_size=size,
            timeout=_timeout(hang_seconds),
            # Connects the GPUs now instead of in the first step, and lets barriers know the device of this rank.
            device_id=place if gpu else None,
        )
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return World(rank=rank, local_rank=local_rank, size=size, device=place, local_size=local_size)


def _timeout(hang_seconds: float | None) -> timedelta | None:
    """Return the timeout of collectives; None: torch's default, 10 minutes with nccl."""
    if hang_seconds is None:
        return None
    # Later than the watchdog: its report names the rank that hangs, while a timeout of a collective only names a
    # victim.
    return max(MINIMUM_TIMEOUT, timedelta(seconds=hang_seconds) + AFTER_WATCHDOG)


def explain_lost_peer(problem: BaseException, rank: int) -> PeerError | None:
    """Return the PeerError for a collective that failed because another process ended; None for other exceptions."""
    # gloo raises a plain RuntimeError with the address of the peer; only nccl and the store have exceptions of their
    # own.
    text = str(problem)
    lost = isinstance(problem, dist.DistError) or (isinstance(problem, RuntimeError) and "gloo" in text.lower())
    if not lost:
        return None
    return PeerError(
        f"rank {rank} lost the connection to another process of the job",
        facts={"says": text.splitlines()[0][:200]},
        fix="look in the logs of the other ranks for the one that ended first, then resume the run",
    )


def stop() -> None:
    """Destroy the process group, if this process joined one."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def abandon() -> None:
    """Leave the process group after an error, without waiting for collectives that will not end."""
    # Without it NCCL's threads outlive the interpreter, and its watchdog reports a second, misleading error. A normal
    # destroy waits for queued collectives, which the other processes may never join, so a thread with a deadline does
    # it.
    if not (dist.is_available() and dist.is_initialized()):
        return
    leaving = threading.Thread(target=_abandon, name="leave-process-group", daemon=True)
    leaving.start()
    leaving.join(ABANDON_SECONDS)


def _abandon() -> None:
    with suppress(Exception):  # the error that ended the job matters, not this one
        if "nccl" in dist.get_backend_config():
            dist.distributed_c10d._abort_process_group()
        else:
            dist.destroy_process_group()
