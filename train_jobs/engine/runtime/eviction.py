"""Warning that this machine is to be taken away, where it gives one: Azure's scheduled events, half a minute before.

    GET /metadata/scheduledevents           {"Events": [{"EventType": "Preempt", "Resources": ["aml_3"], ...}]}
    GET /metadata/instance/compute/name     aml_3

Source: Azure's "Scheduled Events for Linux VMs" (version 2020-07-01 of the document). Events of the machine's
neighbours are in it too. Azure promises none of this for low-priority nodes, so nobody may rely on it.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress

from train_jobs.artifacts.host import METADATA_VARIABLE

LAST_EVENTS = frozenset({"Preempt", "Terminate", "Redeploy", "Reboot"})
"""Those that a process does not outlive; it does a Freeze of seconds."""
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
SECONDS = 2.0
FIRST_SECONDS = 150.0  # the service may take two minutes over the first answer


def listen(told: Callable[[str], None], environ: Mapping[str, str], *, seconds: float = SECONDS) -> None:
    """Asks in a thread of its own, on each machine in one process, until an eviction is announced or nobody answers.

    Args:
        told: called once, with what is announced, in that thread.
        environ: environment variables.
        seconds: between two questions.
    """
    address = environ.get(METADATA_VARIABLE)
    if address and environ.get("LOCAL_RANK", "0") == "0":
        threading.Thread(target=_ask, args=(address, told, seconds), name="eviction", daemon=True).start()


def _ask(address: str, told: Callable[[str], None], seconds: float) -> None:
    pause = threading.Event()
    with suppress(OSError, ValueError):  # a warning more or less: training goes on without
        name = _get(address + NAME, FIRST_SECONDS).decode().strip()
        while not (found := announced(json.loads(_get(address + EVENTS, FIRST_SECONDS)), name)):
            pause.wait(seconds)
        told(found)


def announced(document: object, name: str) -> str | None:
    """What the document says will end this machine; None: nothing.

    Raises:
        ValueError: it is not a document of events.
    """
    try:
        for event in document["Events"]:  # type: ignore[index]
            if event["EventType"] in LAST_EVENTS and name in event["Resources"]:
                when = event.get("NotBefore") or "now"
                return f"{event['EventType']} of {name}, {when}"
    except (KeyError, TypeError) as problem:
        raise ValueError("no document of events") from problem
    return None


def _get(url: str, seconds: float) -> bytes:
    """Asks the machine itself: never through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, headers={"Metadata": "true"}), timeout=seconds) as answer:
        content: bytes = answer.read()
    return content
