"""Notify a webhook of the end of a run: one POST of a JSON document that Slack and other servers accept.

The address is a secret, since it suffices to post. A spec names the environment variable that holds it, and the
address itself is never stored.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
import urllib.request
from typing import Any
from urllib.parse import urlsplit

TRIES = 3
SECONDS = 10.0  # time limit of one try
PAUSE_SECONDS = 2.0  # between two tries
NEXT = {"failed": "orchestrator resume", "completed": "orchestrator report"}  # useful next command


def message(
    *, run: str, handle: str, event: str, reason: str | None, step: int | None, steps: int | None
) -> dict[str, Any]:
    """Return the document to post: `text` for people, the other keys for programs.

    Args:
        run: the run's name.
        handle: the run's handle.
        event: completed, failed or diverging.
        reason: reason of the event, if any; `text` has its first line.
        step: last reported step. None: no step was reported.
        steps: steps of the whole run. None: the job counts no steps.
    """
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
    """Post the document, with retries; return whether that succeeded. Failures are printed without the address.

    Args:
        url: address of the webhook, a secret.
        document: see `message`.
    """
    for left in reversed(range(TRIES)):
        try:
            _post_once(url, document)
            return True
        # URLError is an OSError; an invalid URL is a ValueError; an answer that is not HTTP is an HTTPException
        except (OSError, ValueError, http.client.HTTPException) as problem:
            # a warning, never an error: the run has its result, whether the message arrives or not
            reason = str(problem).replace(url, "(address)")
            print(
                f"warning: cannot notify the webhook at {urlsplit(url).hostname}: {reason}",
                file=sys.stderr,
            )
        if left:
            time.sleep(PAUSE_SECONDS)
    return False


def _post_once(url: str, document: dict[str, Any]) -> None:
    body, headers = json.dumps(document).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers, method="POST"), timeout=SECONDS):
        pass
