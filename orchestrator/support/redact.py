"""Recognise secrets in settings, by the name of an environment variable or by their format; see also `redact`."""

from __future__ import annotations

import re

from train_jobs.artifacts.redaction import REDACTED, redact

__all__ = ["HIDDEN", "REDACTED", "SECRET", "is_secret", "looks_secret", "redact"]

SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|SIGNATURE", re.IGNORECASE)
"""Names of environment variables whose values are not shown."""
HIDDEN = "(not shown)"
"""Shown in place of the value of such a variable."""
# Narrower than SECRET, because it refuses: TOKENIZERS_PARALLELISM is not the name of a secret.
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:\w*KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASS|PWD|CREDENTIALS?|SIGNATURE|SAS|PAT)$", re.IGNORECASE
)
# Numbers, switches, paths and short words are settings, whatever the name.
_PLAIN_VALUE = re.compile(r"[\d.,+eE-]*|[~./].*|.{,5}|(?i:false|disabled?|enabled?)")


def is_secret(key: str) -> bool:
    """Return whether a dotted key names an environment variable that holds a secret."""
    return key.startswith("environment.variables.") and SECRET.search(key) is not None


def looks_secret(name: str, value: str) -> bool:
    """Return whether the name and the value of an environment variable look like those of a secret."""
    named = _SECRET_NAME.search(name) is not None and _PLAIN_VALUE.fullmatch(value) is None
    return named or redact(value) != value
