"""A network that is away for some seconds: the submission has a network namespace of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.faults.campaign.scene import Scene

NAMESPACE = f"faults-{os.getpid()}"


def needs_namespaces() -> str:
    """Return why no network namespace can be made here; empty: it can."""
    if os.geteuid():
        return "only root can make network namespaces"
    return "" if shutil.which("ip") else "iproute2 is not installed"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def own_network(scene: Scene) -> Iterator[None]:
    """Start the submission in a network with only the interface by which the nodes talk."""
    _ip("netns", "add", NAMESPACE)
    usual = scene.console.program
    try:
        _ip("-n", NAMESPACE, "link", "set", "lo", "up")
        scene.console.program = ("ip", "netns", "exec", NAMESPACE, *usual)
        yield
    finally:
        scene.console.program = usual
        _ip("netns", "del", NAMESPACE)


def cut(seconds: float) -> Callable[[Scene], bool]:
    """Return a fault that takes the network away for some time."""

    def hit(scene: Scene) -> bool:
        _ip("-n", NAMESPACE, "link", "set", "lo", "down")
        time.sleep(seconds)
        _ip("-n", NAMESPACE, "link", "set", "lo", "up")
        return True

    return hit
