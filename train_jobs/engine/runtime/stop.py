"""Stop requests: SIGTERM, Ctrl-C and announced evictions.

Azure announces an eviction half a minute in advance, as a scheduled event:

    GET /metadata/scheduledevents           {"Events": [{"EventType": "Preempt", "Resources": ["aml_3"], ...}]}
    GET /metadata/instance/compute/name     aml_3

Source: Azure's "Scheduled Events for Linux VMs" (version 2020-07-01 of the document). The document
also lists events of neighbouring machines. Azure does not guarantee events for Spot nodes, so nothing may rely
on them.
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
STDERR = 2  # file descriptor: print is not reentrant, and the signal may have interrupted one


class Preempted(Exception):  # noqa: N818 - a request, not an error
    """A run stopped by SIGTERM or Ctrl-C, after its last finished step was committed.

    Args:
        by: "SIGTERM" or "Ctrl-C", for the message and the exit code.
        resume_hint: what is saved and how to resume, for the message. None: a checkpoint is saved.
    """

    def __init__(self, by: str = SIGTERM, *, resume_hint: str | None = None) -> None:
        super().__init__(f"stopped by {by}")
        self.by, self.resume_hint = by, resume_hint


@dataclass
class StopRequest:
    """Stop request of this process: set by SIGTERM, the first Ctrl-C or an announced eviction.

    The loop shares it with all processes at the next step, so that all stop after the same step.
    """

    requested: bool = False
    interrupted: bool = False
    """Whether Ctrl-C set it."""
    _resume_hint: str | None = None
    """Text for `Preempted`, inside the block of `interruptible`."""

    def listen(self) -> None:
        """Turn SIGTERM, Ctrl-C and an announced eviction into a request to stop after the current step."""
        signal.signal(signal.SIGTERM, self._handle_sigterm)
        # Shells start background jobs with SIGINT ignored: their Ctrl-C is meant for the foreground job.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._handle_sigint)
        listen_for_eviction(self._handle_eviction, os.environ)

    def preempted(self, resume_hint: str | None = None) -> Preempted:
        """Return the exception to raise once everything is saved.

        Args:
            resume_hint: see `Preempted`.
        """
        return Preempted(CTRL_C if self.interrupted else SIGTERM, resume_hint=resume_hint)

    @contextmanager
    def interruptible(self, resume_hint: str) -> Iterator[None]:
        """Let a stop request interrupt the body; for work without steps, which resumes from its files.

        Args:
            resume_hint: see `Preempted`.

        Raises:
            Preempted: a stop request arrived before or during the body.
        """
        self._resume_hint = resume_hint
        try:
            self._interrupt_body()
            yield
        except Exception as problem:
            if self._resume_hint is not None or isinstance(problem, Preempted):
                raise
            # A library, such as pydantic, reported the exception of the signal handler as an error of its own.
            raise self.preempted(resume_hint) from problem
        finally:
            self._resume_hint = None

    def _interrupt_body(self) -> None:
        # Raised from the signal handler, in the middle of any statement of the body: only a body that survives a kill
        # at any point may be interrupted like this. Training is not such a body, so it checks `requested` between
        # steps.
        if self.requested and self._resume_hint is not None:
            resume_hint, self._resume_hint = self._resume_hint, None  # a second request must not interrupt the clean-up
            raise self.preempted(resume_hint)

    def _handle_sigterm(self, signum: int, frame: FrameType | None) -> None:
        self.requested = True
        self._interrupt_body()

    def _handle_sigint(self, signum: int, frame: FrameType | None) -> None:
        # Python's own handler for the second one: the user must be able to end a job whose step does not return.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.requested = self.interrupted = True
        self._interrupt_body()
        os.write(STDERR, b"Ctrl-C: stopping after this step; a second Ctrl-C ends the job immediately\n")

    def _handle_eviction(self, event: str) -> None:
        self.requested = True
        print(f"eviction: {event}: stopping after this step, with a checkpoint", flush=True)
        if self._resume_hint is not None:
            os.kill(os.getpid(), signal.SIGTERM)  # this is the polling thread; only the main one can be interrupted


LAST_EVENTS = frozenset({"Preempt", "Terminate", "Redeploy", "Reboot"})
"""Events that end a process; it survives a Freeze of seconds."""
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
SECONDS = 2.0
FIRST_SECONDS = 150.0  # timeout; Azure starts the service at the first request, which can take two minutes


def listen_for_eviction(notify: Callable[[str], None], environ: Mapping[str, str], *, seconds: float = SECONDS) -> None:
    """Poll for an eviction in a daemon thread, in one process per machine; the thread ends if the service fails.

    Args:
        notify: called at most once, in that thread, with a text that describes the event.
        environ: environment variables; the address of the service and LOCAL_RANK.
        seconds: polling interval.
    """
    address = environ.get(METADATA_VARIABLE)
    if address and environ.get("LOCAL_RANK", "0") == "0":
        threading.Thread(target=_poll_events, args=(address, notify, seconds), name="eviction", daemon=True).start()


def _poll_events(address: str, notify: Callable[[str], None], seconds: float) -> None:
    # Outside of Azure nothing answers at this address: training then continues, without advance notice of evictions.
    with suppress(OSError, ValueError):
        name = _get(address + NAME, FIRST_SECONDS).decode().strip()
        while not (found := announced_eviction(json.loads(_get(address + EVENTS, FIRST_SECONDS)), name)):
            time.sleep(seconds)
        notify(found)


def announced_eviction(document: object, name: str) -> str | None:
    """Return the announced event that will end this machine, or None.

    Args:
        document: JSON of the scheduled events, as Azure returns it.
        name: name of this machine.

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
    """Send a GET request to the metadata service."""
    # Its address is link-local: a proxy from the environment would ask its own machine, or fail. Azure rejects requests
    # without the Metadata header.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, headers={"Metadata": "true"}), timeout=seconds) as answer:
        content: bytes = answer.read()
    return content
