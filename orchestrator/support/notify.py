"""Tells a webhook what became of a run: one POST of a JSON document that Slack and any server of one's own take.

The address is a secret (who has it can post), so a spec names the environment variable that holds it, and nothing else
of it is written anywhere.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from typing import Any
from urllib.parse import urlsplit

TRIES = 3
SECONDS = 10.0  # for one try
PAUSE_SECONDS = 2.0
NEXT = {"failed": "orchestrator resume", "completed": "orchestrator report"}  # what one types next


def message(
    *, run: str, handle: str, event: str, reason: str | None, step: int | None, steps: int | None
) -> dict[str, Any]:
    """The document: `text` for people, the rest for programs."""
    first = (reason or "").splitlines()[:1]
    where = "" if steps is None else f" at step {step or 0} of {steps}"
    text = f"{run} {event}{where}" + (f": {first[0]}" if first else "")
    return {
        "text": f"{text}\n{NEXT.get(event, 'orchestrator status')} {run}",
        "run": run,
        "handle": handle,
        "event": event,
        "reason": reason,
        "step": step,
        "steps": steps,
    }


def post(url: str, document: dict[str, Any]) -> bool:
    """Sends it, several times if need be; failing is told on stderr without the address, and fails nothing else."""
    for left in reversed(range(TRIES)):
        try:
            _post_once(url, document)
            return True
        except (OSError, ValueError) as problem:  # URLError is an OSError; a word that is no URL is a ValueError
            words = str(problem).replace(url, "(address)")
            print(f"warning: the webhook at {urlsplit(url).hostname} took no message: {words}", file=sys.stderr)
        if left:
            time.sleep(PAUSE_SECONDS)
    return False


def _post_once(url: str, document: dict[str, Any]) -> None:
    body, headers = json.dumps(document).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers, method="POST"), timeout=SECONDS):
        pass
