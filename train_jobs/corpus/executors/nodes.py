"""The nodes that share the preparation of one store: their ranks, their parts and their heartbeats.

Parts are assigned by rank. Nodes communicate only through files in the shared folder: each waits for the records that
the others write.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from train_jobs.artifacts.files import write_text
from train_jobs.config.errors import DataError, PeerError

if TYPE_CHECKING:  # at run time it would load torch into every preparation process
    from train_jobs.engine.runtime.distributed import World

POLL_SECONDS = 0.2
BEAT_SECONDS = 5.0
SECONDS_BETWEEN_LINES = 10.0
PATIENCE_SECONDS = 600.0  # for a heartbeat: others may still be starting, and a mounted store may be slow
T = TypeVar("T")


@dataclass(frozen=True)
class Node:
    """This process for_world those that prepare the same store."""

    rank: int = 0
    """Number of this node, from 0."""
    size: int = 1
    """Number of nodes."""
    local_size: int = 1
    """Number of processes on this machine; they divide its cores."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Node:
        """Return the node that RANK, WORLD_SIZE and LOCAL_WORLD_SIZE describe, as torchrun sets them."""
        return cls(
            rank=int(environ.get("RANK", "0")),
            size=int(environ.get("WORLD_SIZE", "1")),
            local_size=int(environ.get("LOCAL_WORLD_SIZE", "1")),
        )

    @classmethod
    def for_world(cls, world: World, folder: Path) -> Node:
        """Return the node of this machine's first process for_world the machines that share `folder`.

        If the machines do not share the folder, each prepares its own store. The call is collective: all processes
        must make it, but only the first one of each machine uses the result.

        Args:
            world: processes of the job.
            folder: folder of token stores.
        """
        first = [rank for rank, local in enumerate(world.gather_texts(str(world.local_rank))) if local == "0"]
        if len(first) == 1 or not world.shares_folder(folder):
            return ALONE
        return cls(rank=first.index(world.rank) if world.rank in first else 0, size=len(first))

    @property
    def leads(self) -> bool:
        """Whether this node does the work that cannot be divided."""
        return self.rank == 0

    def owner(self, part: int) -> int:
        """Return the rank that processes a part."""
        # Static, because a mounted blob store offers no atomic operation by which nodes could claim parts.
        return part % self.size


ALONE = Node()


def text_mismatch_error(one: int, another: int) -> DataError:
    """Return the error for two ranks of one store that read different texts."""
    return DataError(
        "the nodes do not see the same text",
        facts={"where": f"rank {one} and rank {another}"},
        fix="put the text where all nodes see it, at the same path",
    )


class StoreComplete(Exception):  # noqa: N818 - a result, not an error
    """The other nodes have completed the store and removed the files of the steps."""


class Peers:
    """The other nodes, observed through their files.

    Args:
        folder: folder of the steps, shared by all nodes.
        node: this process.
        key: key of the store; a node with another key reads another text.
        log: called every ten seconds with a line that names the missing record.
        complete: returns whether the store is complete.
    """

    def __init__(
        self,
        folder: Path,
        node: Node,
        key: str,
        log: Callable[[str], None],
        complete: Callable[[], bool] = lambda: False,
    ) -> None:
        self._folder, self._node, self._key, self._log, self._complete = folder, node, key, log, complete
        self._logged_at = float("-inf")

    @contextmanager
    def heartbeats(self) -> Iterator[None]:
        """Write a heartbeat file every five seconds while the context is open, if there are several nodes."""
        if self._node.size == 1:
            yield
            return
        stopped = threading.Event()
        thread = threading.Thread(target=self._write_heartbeats, args=(stopped,), name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def wait(self, what: str, rank: int, look: Callable[[], T | None]) -> T:
        """Wait for a record of another node and return it.

        Args:
            what: name of the record, for messages.
            rank: the node that writes it.
            look: returns the record, or None while it does not exist.

        Raises:
            PeerError: the node wrote no heartbeat for ten minutes.
            DataError: the node reads another text.
            StoreComplete: the store is complete, so the record was removed.
        """
        # A heartbeat counts when its content changes. Clocks of machines differ, and a file of an earlier start may
        # still exist with another key.
        first = seen = self._read_heartbeat(rank)
        since = time.monotonic()
        while (found := look()) is None:
            assert rank != self._node.rank, f"this node writes {what} itself"
            if self._complete():
                raise StoreComplete
            heartbeat = self._read_heartbeat(rank)
            if heartbeat != seen:
                seen, since = heartbeat, time.monotonic()
            if seen != first and seen["key"] != self._key:
                raise text_mismatch_error(rank, self._node.rank)
            if time.monotonic() - since > PATIENCE_SECONDS:
                raise PeerError(
                    f"rank {rank} has written no heartbeat for {PATIENCE_SECONDS / 60:.0f} minutes",
                    facts={"waiting for": what, "where": self._folder},
                    fix="read its log, then start all nodes again; they resume",
                )
            if time.monotonic() - self._logged_at > SECONDS_BETWEEN_LINES:
                self._log(f"waiting for {what} of rank {rank}")
                self._logged_at = time.monotonic()
            time.sleep(POLL_SECONDS)
        return found

    def _write_heartbeats(self, stopped: threading.Event) -> None:
        count = int(time.time())  # differs from all heartbeats of an earlier start
        while not stopped.is_set():
            with suppress(OSError):  # the folder is removed when the store is complete
                write_text(self._file(self._node.rank), json.dumps({"key": self._key, "beat": count}))
            count += 1
            stopped.wait(BEAT_SECONDS)

    def _read_heartbeat(self, rank: int) -> dict[str, object]:
        with suppress(OSError, ValueError):
            return dict(json.loads(self._file(rank).read_text()))
        return {"key": self._key}

    def _file(self, rank: int) -> Path:
        return self._folder / f"alive-{rank}.json"
