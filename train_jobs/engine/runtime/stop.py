"""Requests to stop: SIGTERM, Ctrl-C, and a machine that is about to be taken away.

Azure announces an eviction half a minute before, in its scheduled events:

    GET /metadata/scheduledevents           {"Events": [{"EventType": "Preempt", "Resources": ["aml_3"], ...}]}
    GET /metadata/instance/compute/name     aml_3

Source: Azure's "Scheduled Events for Linux VMs" (version 2020-07-01 of the document). Events of the machine's
neighbours are in it too. Azure promises none of this for low-priority nodes, so nothing may rely on it.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from train_jobs.artifacts.host import METADATA_VARIABLE

SIGTERM, CTRL_C = "SIGTERM", "Ctrl-C"
STDERR = 2  # its descriptor: the signal may have interrupted a print


class Preempted(Exception):  # noqa: N818 - a request, not an error
    """A run stopped by SIGTERM or Ctrl-C, after its last finished step was committed.

    Args:
        by: SIGTERM or Ctrl-C.
        kept: what is saved instead of a checkpoint and how to resume, for the message.
    """

    def __init__(self, by: str = SIGTERM, *, kept: str | None = None) -> None:
        super().__init__(f"stopped by {by}")
        self.by, self.kept = by, kept


@dataclass
class StopRequest:
    """A request to stop: set by SIGTERM, the first Ctrl-C or an announced eviction.

    The loop shares it with all processes at the next step, so that all stop at the same one.
    """

    asked: bool = False
    interrupted: bool = False
    """By Ctrl-C."""
    _kept: str | None = None
    """Text for `Preempted`, inside the block of `at_once`."""

    def listen(self) -> None:
        """Turn SIGTERM, Ctrl-C and an announced eviction into a request to stop after the current step."""
        signal.signal(signal.SIGTERM, self._note)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in a shell's background job
            signal.signal(signal.SIGINT, self._interrupt)
        listen_for_eviction(self._announced, os.environ)

    def ending(self) -> Preempted:
        """Return the exception to raise when everything is saved."""
        return Preempted(CTRL_C if self.interrupted else SIGTERM)

    @contextmanager
    def at_once(self, kept: str) -> Iterator[None]:
        """Let a request interrupt the body: for work without steps that can resume from its files.

        Args:
            kept: see `Preempted`.

        Raises:
            Preempted: a request came.
        """
        self._kept = kept
        try:
            self._interrupt_body()
            yield
        finally:
            self._kept = None

    def _interrupt_body(self) -> None:
        if self.asked and self._kept is not None:
            kept, self._kept = self._kept, None  # a second request must not interrupt the clean-up
            raise Preempted(self.ending().by, kept=kept)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.asked = True
        self._interrupt_body()

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.asked = self.interrupted = True
        self._interrupt_body()
        os.write(STDERR, b"Ctrl-C: stopping after this step; a second Ctrl-C ends the job immediately\n")

    def _announced(self, event: str) -> None:
        self.asked = True
        print(f"eviction: {event}: stopping after this step, with a checkpoint", flush=True)
        if self._kept is not None:
            os.kill(os.getpid(), signal.SIGTERM)  # interrupts the main thread


LAST_EVENTS = frozenset({"Preempt", "Terminate", "Redeploy", "Reboot"})
"""Events that end a process; it survives a Freeze of seconds."""
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
SECONDS = 2.0
FIRST_SECONDS = 150.0  # the service may take two minutes over the first answer


def listen_for_eviction(notify: Callable[[str], None], environ: Mapping[str, str], *, seconds: float = SECONDS) -> None:
    """Poll in a thread, in one process per machine, until an eviction is announced or the service does not answer.

    Args:
        notify: called once in that thread, with the event.
        environ: environment variables.
        seconds: interval of polling.
    """
    address = environ.get(METADATA_VARIABLE)
    if address and environ.get("LOCAL_RANK", "0") == "0":
        threading.Thread(target=_poll_events, args=(address, notify, seconds), name="eviction", daemon=True).start()


def _poll_events(address: str, notify: Callable[[str], None], seconds: float) -> None:
    with suppress(OSError, ValueError):  # training continues without the warning
        name = _get(address + NAME, FIRST_SECONDS).decode().strip()
        while not (found := announced_eviction(json.loads(_get(address + EVENTS, FIRST_SECONDS)), name)):
            time.sleep(seconds)
        notify(found)


def announced_eviction(document: object, name: str) -> str | None:
    """Return the event of a document that will end this machine, or None.

    Raises:
        ValueError: the document does not list events.
    """
    try:
        for event in document["Events"]:  # type: ignore[index]
            if event["EventType"] in LAST_EVENTS and name in event["Resources"]:
                return f"{event['EventType']} of {name}, {event.get('NotBefore') or 'now'}"
    except (KeyError, TypeError) as problem:
        raise ValueError("the document does not list events") from problem
    return None


def _get(url: str, seconds: float) -> bytes:
    """Send a request to the machine's own service, never through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, headers={"Metadata": "true"}), timeout=seconds) as answer:
        content: bytes = answer.read()
    return content
