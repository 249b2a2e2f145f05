"""What there may be too little of: disk, memory. Figures of a plan are estimates, so they warn and refuse nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

from orchestrator.estimates.training import TrainingEstimates
from orchestrator.specs.compute import ResolvedCompute
from orchestrator.support.formatting import bytes_text
from train_jobs.config import FinetuneConfig, PretrainConfig
from train_jobs.config.pretrain import dividing


def disk_warnings(need: int, folder: Path, what: str) -> list[str]:
    """A warning if the disk that a folder is on, or will be, has less than `need` bytes free."""
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free >= need:
        return []
    where = f"need up to {bytes_text(need)}, have {bytes_text(free)} free where {folder} lies"
    return [f"the disk may fill up with {what}: {where}"]


def memory_warnings(need: int, compute: ResolvedCompute, way: str) -> list[str]:
    """A warning if a process may need more than it has.

    Args:
        need: bytes.
        compute: the machines.
        way: what to do about it.
    """
    have = compute.memory_bytes
    if have is None or need <= have:
        return []
    owner = f"its {compute.gpu}" if compute.gpu else "its share of the machine"
    return [f"memory may run out: a process needs {bytes_text(need)}, {owner} has {bytes_text(have)}: {way}"]


def training_warnings(
    job: PretrainConfig | FinetuneConfig,
    estimates: TrainingEstimates,
    compute: ResolvedCompute,
    sequences: int,
    *,
    fixed: bool = False,
) -> list[str]:
    """The same of a process that trains, with the largest micro batch that fits.

    Args:
        job: what is trained; where it finds that micro batch itself, one sequence is what has to fit.
        estimates: the figures.
        compute: the machines.
        sequences: of the micro batch whose activations those have.
        fixed: whether that is part of the recipe, which no other would leave as it is.
    """
    share = -(-job.train.global_batch_size // compute.world_size)
    sizes = [] if fixed else dividing(share, sequences - 1)
    held = estimates.process_bytes - estimates.activation_bytes
    needs = {size: held + size * estimates.activation_bytes // sequences for size in (1, *sizes)}
    fitting = max((size for size in sizes if needs[size] <= (compute.memory_bytes or 0)), default=None)
    found = job.train.micro_batch_size == "auto"
    if fitting is not None:
        way = f"--set train.micro_batch_size={fitting} needs {bytes_text(needs[fitting])}"
    elif compute.world_size > 1 and not job.optimizer.sharded:
        way = f"one sequence at a time needs {bytes_text(needs[1])}, with optimizer.sharded=true less"
    else:
        way = f"one sequence at a time needs {bytes_text(needs[1])}"
    return memory_warnings(needs[1] if found else estimates.process_bytes, compute, way)
