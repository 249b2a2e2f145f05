"""The processes of a job: who we are, on which device, and the few collectives that the engine needs.

Reads the variables that torchrun, Azure ML and most launchers set: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
MASTER_ADDR, MASTER_PORT. Without them the job is one process.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from train_jobs.config import PeerError, SpecError
from train_jobs.engine.runtime.activity import Activity

LEAST_PATIENCE = timedelta(minutes=30)
SEEN_SECONDS = 10.0  # a mounted store may take a while to show what another machine wrote
BEHIND_WATCHDOG = timedelta(minutes=5)  # it needs half a minute to tell where all processes stand


@dataclass(frozen=True)
class World:
    """This process among all."""

    rank: int
    local_rank: int
    size: int
    device: torch.device
    local_size: int = 1
    """Processes on this node."""
    activity: Activity = field(default_factory=Activity, compare=False, repr=False)
    """What this process is doing."""

    @property
    def is_main(self) -> bool:
        """True on the one process that writes checkpoints, metrics and the export."""
        return self.rank == 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sums `tensor` over all processes, in place."""
        if self.size > 1:
            with self.activity.waiting():
                dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
                if tensor.is_cuda:  # where the call only queues it; every caller reads the sum at once anyway
                    torch.cuda.current_stream(tensor.device).synchronize()
        return tensor

    @property
    def device_name(self) -> str:
        """What computes: the kind of GPU, or cpu."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"

    def lowest(self, value: int) -> int:
        """The least `value` of any process."""
        values = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        values[self.rank] = value
        return int(self.sum_(values).min())

    def from_main(self, value: int) -> int:
        """The main process's `value`, on every process."""
        told = torch.tensor(value if self.is_main else 0, dtype=torch.int64, device=self.device)
        return int(self.sum_(told).item())

    def from_one_(self, tensor: torch.Tensor, rank: int) -> None:
        """Gives all processes what `tensor` holds on that of `rank`."""
        if self.size > 1:
            with self.activity.waiting():
                dist.broadcast(tensor, rank)

    def from_each_(self, parts: Sequence[torch.Tensor]) -> None:
        """Gives all processes what each `parts[rank]` holds on the process of that rank."""
        if self.size > 1:
            with self.activity.waiting():
                for work in [dist.broadcast(part, rank, async_op=True) for rank, part in enumerate(parts)]:
                    work.wait()

    def texts(self, text: str) -> list[str]:
        """What every process gave as `text`, in the order of ranks."""
        mine = torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8).to(self.device)
        sizes = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        sizes[self.rank] = len(mine)
        parts = [
            mine if rank == self.rank else torch.empty(size, dtype=torch.uint8, device=self.device)
            for rank, size in enumerate(self.sum_(sizes).tolist())
        ]
        self.from_each_(parts)
        return [bytes(part.tolist()).decode("utf-8") for part in parts]

    def share(self, folder: Path) -> bool:
        """Whether all processes see the same `folder`, which is made where it is not there."""
        sign = folder / f".seen-{self.texts(uuid.uuid4().hex)[0]}"
        folder.mkdir(parents=True, exist_ok=True)
        if self.is_main:
            sign.touch()
        self.barrier()
        patience = time.monotonic() + SEEN_SECONDS
        while not (seen := sign.exists()) and time.monotonic() < patience:
            time.sleep(0.2)
        everywhere = self.lowest(int(seen)) == 1
        if self.is_main:
            sign.unlink(missing_ok=True)
        return everywhere

    def say(self, text: str) -> None:
        """Prints on the main process."""
        if self.is_main:
            print(text, flush=True)

    def barrier(self) -> None:
        """Waits for all processes."""
        if self.size > 1:
            with self.activity.waiting():
                dist.barrier()


def alone() -> World:
    """One process, without a group."""
    return World(rank=0, local_rank=0, size=1, device=torch.device("cpu"))


def start(device: str = "auto", *, hang_seconds: float | None = None) -> World:
    """Joins the process group: nccl on GPUs, gloo on CPUs.

    Args:
        device: "auto" (a GPU if there is one), "cpu" or "gpu".
        hang_seconds: after how long a watchdog ends a process that hangs; collectives give up later than that, since
            they cannot say why. None: there is none.

    Raises:
        SpecError: a GPU is asked for and there is none, or fewer than processes on this node.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    gpus = torch.cuda.device_count() if device != "cpu" else 0
    if device == "gpu" and gpus == 0:
        raise SpecError("a GPU is asked for and this machine has none", fix="--set compute.device=auto")
    if gpus and local_rank >= gpus:
        raise SpecError(
            "more processes than GPUs on this node",
            facts={"need": f"{os.environ.get('LOCAL_WORLD_SIZE', local_rank + 1)} GPUs", "have": gpus},
            fix=f"--set compute.processes_per_node={gpus}",
        )
    place = torch.device("cuda", local_rank) if gpus else torch.device("cpu")
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if size > 1:
        dist.init_process_group(
            "nccl" if place.type == "cuda" else "gloo", rank=rank, world_size=size, timeout=_patience(hang_seconds)
        )
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return World(rank=rank, local_rank=local_rank, size=size, device=place, local_size=local_size)


def _patience(hang_seconds: float | None) -> timedelta | None:
    """How long a collective waits; None: as long as torch has it, which is 10 minutes with nccl."""
    if hang_seconds is None:
        return None
    return max(LEAST_PATIENCE, timedelta(seconds=hang_seconds) + BEHIND_WATCHDOG)


def explain(problem: BaseException, rank: int) -> PeerError | None:
    """The PeerError behind `problem`, if a collective failed because another process is gone."""
    text = str(problem)
    lost = isinstance(problem, dist.DistError) or (isinstance(problem, RuntimeError) and "gloo" in text.lower())
    if not lost:
        return None
    return PeerError(
        f"rank {rank} lost contact with another process of the job",
        facts={"says": text.splitlines()[0][:200]},
        fix="look for the rank that ended first in the other logs, then resume the run",
    )


def stop() -> None:
    """Leaves the process group, if there is one."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
