"""What a process is doing at this moment, by name: the watchdog tells it of one that hangs, the profiler times it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple


class Stage(NamedTuple):
    """A part of the work."""

    name: str = "start"
    """data, forward, reduction, validation, checkpoint, ..."""
    step: int = 0
    """The optimizer step that is being made; between steps, the last one made."""
    waits: bool = False
    """True where it goes on only once all other processes have come as far: a hang here is another's fault."""

    def __str__(self) -> str:
        return f"{self.name} of step {self.step}"


class Activity:
    """Kept by whoever works, read by whoever looks on, from any thread."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.beats = 0
        self.observer: Callable[[str], AbstractContextManager[None]] | None = None
        """Makes what each stage runs inside of, from its name."""

    @contextmanager
    def doing(self, name: str, *, step: int) -> Iterator[None]:
        """The body is this stage; its begin and its end are progress."""
        self.stage = Stage(name, step)
        self.beat()
        with self.observer(name) if self.observer else nullcontext():
            yield
        self.beat()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The body ends only once all other processes have come as far; its begin and its end are progress."""
        stage = self.stage
        self.stage = stage._replace(waits=True)
        self.beat()
        yield
        self.stage = stage
        self.beat()

    def beat(self) -> None:
        """Progress inside a stage."""
        self.beats += 1
