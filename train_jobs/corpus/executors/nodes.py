"""Several machines at one store: who we are among them, and whether the others are still there.

Parts are shared out by rank, and each waits for the records that the others write into the folder that all of them
see; there is no other channel.
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

if TYPE_CHECKING:  # or the processes that make text into tokens would load torch
    from train_jobs.engine.runtime.distributed import World

POLL_SECONDS = 0.2
BEAT_SECONDS = 5.0
SECONDS_BETWEEN_LINES = 10.0
PATIENCE_SECONDS = 600.0  # for a sign of life: others may still be starting, and a mounted store may be slow
T = TypeVar("T")


@dataclass(frozen=True)
class Node:
    """This process among all that prepare the same store."""

    rank: int = 0
    size: int = 1
    local_size: int = 1
    """Processes on this machine."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Node:
        """As torchrun and most launchers tell."""
        return cls(
            rank=int(environ.get("RANK", "0")),
            size=int(environ.get("WORLD_SIZE", "1")),
            local_size=int(environ.get("LOCAL_WORLD_SIZE", "1")),
        )

    @classmethod
    def among(cls, world: World, folder: Path) -> Node:
        """The first process of this machine among those of all machines that share `folder`; on the others of no use.

        Where a machine has a folder of its own by that name, each makes all that it needs itself. All processes call
        this together.
        """
        first = [rank for rank, local in enumerate(world.texts(str(world.local_rank))) if local == "0"]
        if len(first) == 1 or not world.share(folder):
            return ALONE
        return cls(rank=first.index(world.rank) if world.rank in first else 0, size=len(first))

    @property
    def leads(self) -> bool:
        """Whether this is the one that does what cannot be shared out."""
        return self.rank == 0

    def owner(self, part: int) -> int:
        """The rank that makes a part."""
        return part % self.size


ALONE = Node()


def other_text(one: int, another: int) -> DataError:
    """What to say where two ranks that make one store read different texts."""
    return DataError(
        "the nodes do not see the same text",
        facts={"where": f"rank {one} and rank {another}"},
        fix="put the text where all nodes see it, at the same path",
    )


class StoreComplete(Exception):  # noqa: N818 - what was waited for, and more
    """The others needed nothing more of this node: the store is there, and the steps' files are gone."""


class Peers:
    """The other nodes, as far as their files tell.

    Args:
        folder: that all see.
        node: who we are.
        key: of the store; whoever has another one reads another text.
        say: told now and then whom we wait for.
        complete: whether the store is there.
    """

    def __init__(
        self,
        folder: Path,
        node: Node,
        key: str,
        say: Callable[[str], None],
        complete: Callable[[], bool] = lambda: False,
    ) -> None:
        self._folder, self._node, self._key, self._say, self._complete = folder, node, key, say, complete
        self._said = float("-inf")

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Gives a sign of life now and then; with one node there is nobody to give it to."""
        if self._node.size == 1:
            yield
            return
        over = threading.Event()
        thread = threading.Thread(target=self._beat, args=(over,), name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def wait(self, what: str, rank: int, look: Callable[[], T | None]) -> T:
        """What `look` finds, once it finds something that the node of that rank makes.

        Raises:
            PeerError: the node gave no sign of life for ten minutes.
            DataError: it reads another text.
            StoreComplete: nobody will make it any more.
        """
        first = seen = self._sign(rank)
        since = time.monotonic()
        while (found := look()) is None:
            assert rank != self._node.rank, f"{what} is ours to make"
            if self._complete():
                raise StoreComplete
            sign = self._sign(rank)
            if sign != seen:
                seen, since = sign, time.monotonic()
            if seen != first and seen["key"] != self._key:
                raise other_text(rank, self._node.rank)
            if time.monotonic() - since > PATIENCE_SECONDS:
                raise PeerError(
                    f"rank {rank} has given no sign of life for {PATIENCE_SECONDS / 60:.0f} minutes",
                    facts={"waiting for": what, "where": self._folder},
                    fix="look into its log; then start all nodes again: they go on where they were",
                )
            if time.monotonic() - self._said > SECONDS_BETWEEN_LINES:
                self._say(f"waiting for {what} of rank {rank}")
                self._said = time.monotonic()
            time.sleep(POLL_SECONDS)
        return found

    def _beat(self, over: threading.Event) -> None:
        count = int(time.time())  # another one than that of an earlier start
        while not over.is_set():
            with suppress(OSError):  # the folder goes when the store is complete
                write_text(self._file(self._node.rank), json.dumps({"key": self._key, "beat": count}))
            count += 1
            over.wait(BEAT_SECONDS)

    def _sign(self, rank: int) -> dict[str, object]:
        with suppress(OSError, ValueError):
            return dict(json.loads(self._file(rank).read_text()))
        return {"key": self._key}

    def _file(self, rank: int) -> Path:
        return self._folder / f"alive-{rank}.json"
