"""Two commands at the same moment: the second one runs in the middle of the first one."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import wait_for

Command = Callable[[], object]


def overtake(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, command: Command) -> Command:
    """Run a second command when the first one calls a function, as far as it gets; return a call for its result."""
    original, pool, second = getattr(owner, name), ThreadPoolExecutor(1), list[Future[object]]()
    started: list[bool] = []
    waits = _note_waiting(monkeypatch)

    def called(*arguments: object, **options: object) -> object:
        if not started:
            started.append(True)
            second.append(pool.submit(command))
            wait_for(lambda: waits or second[0].done(), what="the second command")
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, called)
    return lambda: second[0].result()


def _note_waiting(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that is not empty once a command has waited for a lock: it has then run as far as it gets."""
    flock = fcntl.flock
    waits: list[bool] = []

    def noted(handle: Any, how: int) -> None:
        try:
            flock(handle, how)
        except BlockingIOError:
            waits.append(True)
            raise

    monkeypatch.setattr(fcntl, "flock", noted)
    return waits
