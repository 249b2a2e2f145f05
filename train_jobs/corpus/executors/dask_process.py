"""The processes of a Dask cluster that a preparation starts on its own nodes.

    python -m train_jobs.corpus.executors.dask_process scheduler PARENT_PID SCRATCH_FOLDER HOST [DASHBOARD]
    python -m train_jobs.corpus.executors.dask_process workers PARENT_PID SCRATCH_FOLDER MEETING_FILE KEY COUNT

The scratch folder is for Dask's own files; it is deleted at the end. The scheduler reads its certificates as JSON from
stdin and writes its address as a line of JSON. The workers of a node find both in the meeting file, on the disk that
all nodes share, and follow the scheduler to its next address when it is started again. Both end with their parent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import dask
from distributed import Nanny, Scheduler
from distributed.comm.core import connect
from distributed.security import Security

from train_jobs.artifacts.files import read_object
from train_jobs.engine.runtime.children import end_with_parent

ALONE, OTHER_TEXT = 3, 4  # exit codes: no scheduler for a long time; the scheduler prepares another text
PATIENCE_SECONDS = 600.0  # for the scheduler: its node may still start, and a mounted store may be slow
ANSWER_SECONDS = 5.0  # for a scheduler that prepares another text, or has finished
POLL_SECONDS = 0.2
DEFAULTS = {
    "distributed": {
        # Several kills are no sign of a bad part where machines are evicted. Beyond them the part is to blame.
        "scheduler": {"allowed-failures": 10, "worker-ttl": "2 minutes"},
        "worker": {"profile": {"enabled": False}},  # sampling every 10 ms costs the task's thread time
        # With the 20 ms and 500 ms of Dask itself, a cluster without work takes four times the processor time.
        "admin": {"tick": {"interval": "500ms"}, "system-monitor": {"interval": "2s", "gil": {"enabled": False}}},
    }
}
LOCAL_ONLY = "127.0.0.1:0"


def quiet() -> None:
    """Print nothing of Dask in this process: what it warns about is handled, or an error of the preparation."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)


def main() -> int:
    """Run a scheduler, or the workers of a node, until a signal ends it; return an exit code."""
    role, parent, scratch, *words = sys.argv[1:]
    # SIGTERM, not SIGKILL: the scratch folder is deleted on the way out.
    if not end_with_parent(int(parent), signal.SIGTERM):
        return 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is meant for the parent, which ends this process
    signal.signal(signal.SIGTERM, partial(_end, scratch))
    quiet()
    dask.config.update_defaults(DEFAULTS)  # below the user's own Dask configuration
    dask.config.set({"temporary-directory": scratch})
    try:
        if role == "scheduler":
            return asyncio.run(run_scheduler(words[0], words[1] if len(words) > 1 else None))
        meeting, key, count = words
        return asyncio.run(NodeWorkers(Path(meeting), key, int(count)).run())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _end(scratch: str, signum: int, frame: FrameType | None) -> None:
    """End this process; the workers of a node end with it."""
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)


async def run_scheduler(host: str, dashboard: str | None) -> int:
    """Run a scheduler until it is closed.

    Args:
        host: address that it listens on.
        dashboard: HOST:PORT of the dashboard. None: no dashboard.
    """
    security = security_of(json.loads(sys.stdin.readline()))
    address = f"tls://{host}:0"
    async with Scheduler(
        host=address, security=security, dashboard=dashboard is not None, dashboard_address=dashboard or LOCAL_ONLY
    ) as scheduler:
        print(json.dumps({"address": scheduler.address}), flush=True)
        await scheduler.finished()
    return 0


def security_of(tls: Mapping[str, str]) -> Security:
    """Return the security of every process of the cluster, from the PEM texts of `ca`, `cert` and `key`."""
    roles = {f"tls_{role}_{what}": tls[what] for role in ("client", "scheduler", "worker") for what in ("cert", "key")}
    return Security(require_encryption=True, tls_ca_file=tls["ca"], **roles)


class NodeWorkers:
    """The workers of one node: a nanny in this process for each, which starts its worker again when it dies.

    Args:
        meeting: file with the scheduler's address and certificates.
        key: key of the store; a running scheduler of another text is refused.
        count: number of workers.
    """

    def __init__(self, meeting: Path, key: str, count: int) -> None:
        self._meeting, self._key, self._count = meeting, key, count
        self._connected_at = time.monotonic()
        self._connected = 0
        self._code = 0

    async def run(self) -> int:
        """Run the workers; return an exit code if there is no scheduler, or if it prepares another text."""
        workers = [asyncio.create_task(self._worker(number)) for number in range(self._count)]
        while not self._code:
            await asyncio.sleep(POLL_SECONDS)
            if await self._is_other_text():
                self._code = OTHER_TEXT
            elif self._connected:
                self._connected_at = time.monotonic()
            elif time.monotonic() - self._connected_at > PATIENCE_SECONDS:
                self._code = ALONE
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        return self._code

    async def _worker(self, number: int) -> None:
        """Keep one worker connected to the scheduler of the meeting file."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if (found := self._scheduler()) is None:
                continue
            # Of an earlier start, or not reachable yet: the next round reads the file again.
            with suppress(OSError, TimeoutError, RuntimeError):
                async with self._nanny(found, number) as nanny:
                    self._connected += 1
                    try:
                        while nanny.status.name not in {"closed", "closing", "failed"} and self._scheduler() == found:
                            await asyncio.sleep(POLL_SECONDS)
                    finally:
                        self._connected -= 1

    def _nanny(self, found: dict[str, Any], number: int) -> Nanny:
        return Nanny(
            found["address"],
            nthreads=1,
            name=f"{os.uname().nodename}-{os.getpid()}-{number}",
            memory_limit=0,  # as for other worker processes: the limit is the machine's
            security=security_of(found["tls"]),
            preload=["train_jobs.corpus.executors.dask_task"],
            dashboard=False,
            dashboard_address=LOCAL_ONLY,
            death_timeout=60,
        )

    def _scheduler(self) -> dict[str, Any] | None:
        """Return the content of the meeting file; None if it is missing or has another key."""
        found = read_object(self._meeting)
        return found if found is not None and found.get("key") == self._key else None

    async def _is_other_text(self) -> bool:
        """Return whether the scheduler of the meeting file runs and prepares another text.

        A killed job leaves its file behind. If its text or settings have changed, the next start has another key.
        """
        found = read_object(self._meeting)
        if found is None or found.get("key") == self._key:
            return False
        try:
            arguments = security_of(found["tls"]).get_connection_args("client")
            comm = await connect(found["address"], timeout=ANSWER_SECONDS, **arguments)
        except (OSError, TimeoutError, ValueError, TypeError, KeyError, RuntimeError):
            return False
        await comm.close()
        return read_object(self._meeting) == found  # else it has finished meanwhile


if __name__ == "__main__":
    sys.exit(main())
