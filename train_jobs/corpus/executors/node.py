"""This process among those that prepare one store together: its rank, and whether it leads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from train_jobs.config.errors import DataError

if TYPE_CHECKING:  # at run time it would load torch into every preparation process
    from train_jobs.engine.runtime.distributed import World


@dataclass(frozen=True)
class Node:
    """This process among those that prepare the same store."""

    rank: int = 0
    """Number of this node, from 0."""
    size: int = 1
    """Number of nodes."""
    local_size: int = 1
    """Number of processes on this machine; they divide its cores."""
    address: str = "127.0.0.1"
    """Host of the first node, by which the others reach it."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Node:
        """Return the node that RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and MASTER_ADDR describe, as torchrun sets them."""
        return cls(
            rank=int(environ.get("RANK", "0")),
            size=int(environ.get("WORLD_SIZE", "1")),
            local_size=int(environ.get("LOCAL_WORLD_SIZE", "1")),
            address=environ.get("MASTER_ADDR", cls.address),
        )

    @classmethod
    def for_world(cls, world: World, folder: Path, environ: Mapping[str, str]) -> Node:
        """Return the node of this machine's first process among the machines that share `folder`.

        If the machines do not share the folder, each prepares its own store. The call is collective: all processes
        must make it, but only the first one of each machine uses the result.

        Args:
            world: processes of the job.
            folder: folder of token stores.
            environ: environment variables; MASTER_ADDR is the host of the first process.
        """
        first = [rank for rank, local in enumerate(world.gather_texts(str(world.local_rank))) if local == "0"]
        if len(first) == 1 or not world.shares_folder(folder):
            return ALONE
        rank = first.index(world.rank) if world.rank in first else 0
        return cls(rank=rank, size=len(first), address=environ.get("MASTER_ADDR", cls.address))

    @property
    def leads(self) -> bool:
        """Whether this node does the work that cannot be divided."""
        return self.rank == 0


ALONE = Node()


def text_mismatch_error(**facts: str) -> DataError:
    """Return the error for processes that share a preparation but read different texts.

    Args:
        facts: facts of the error.
    """
    return DataError(
        "the nodes do not see the same text",
        facts=facts,
        fix="put the text where all nodes see it, at the same path",
    )
