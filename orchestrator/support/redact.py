"""Recognise secrets in settings, by the name of an environment variable or by their format; see also `redact`."""

from __future__ import annotations

import re

from train_jobs.artifacts.redaction import MIN_VALUE, REDACTED, redact

__all__ = [
    "HIDDEN",
    "REDACTED",
    "SECRET",
    "is_distinctive",
    "is_secret",
    "looks_secret",
    "named_secret",
    "names_secret",
    "redact",
]

SECRET = re.compile(
    "KEY|TOKEN|SECRET|PASSW|PASSPHRASE|_PASS$|_PWD$|CREDENTIAL|SIGNATURE|CONN(?:ECTION)?_?STR|_(?:SAS|PAT|AUTH)$",
    re.IGNORECASE,
)
"""Names of environment variables whose values are not shown."""
HIDDEN = "(not shown)"
"""Shown in place of the value of such a variable."""
# Narrower than SECRET, because these refuse: TOKENIZERS_PARALLELISM is not the name of a secret. The first are names of
# secrets only. The others are also names of settings: MAX_TOKEN, SORT_KEY, PWD.
_SECRET_NAME = re.compile(
    r"(?:PASSWORDS?|PASSWD|PASSPHRASE|SECRETS?|CREDENTIALS?|CONN(?:ECTION)?_?STR(?:ING)?"
    r"|(?:API|AUTH|ACCESS|ACCOUNT|PRIVATE|SECRET|SHARED|STORAGE|SIGNING|ENCRYPTION|MASTER)_?KEY|[A-Z0-9]_PWD)"
    r"(?:_?\d{1,2})?$",
    re.IGNORECASE,
)
_PERHAPS_SECRET_NAME = re.compile(
    r"(?:\w*KEY|\w*TOKEN|(?:^|_)(?:PASS|PWD|SIGNATURE|SAS|PAT|AUTH))(?:_?\d{1,2})?$", re.IGNORECASE
)
_SWITCH_OR_PATH = re.compile(
    r"(?i)|\d|true|false|yes|no|on|off|none|disabled?|enabled?"
    r"|(?:~|\.\.?)/.*|(?:/[\w.+@ -]+){2,}/?|/[\w.+@ -]+\.[a-z]{2,5}"
)
_SETTING_NAME = re.compile(
    r"(?i)(?:mask|pad|eos|bos|sep|cls|unk|max|min)_?token$|(?:forward|backward|first|second|single|multi|by|com)_?pass$"
)
# Numbers, switches, paths and short words are settings, whatever the name.
_PLAIN_VALUE = re.compile(r"[\d.,+eE-]*|[~./].*|.{,5}|(?i:false|disabled?|enabled?)")
_WORD = re.compile(r"[A-Z]?[a-z]{,11}|[A-Z]{,12}")


def is_secret(key: str) -> bool:
    """Return whether a dotted key names an environment variable that holds a secret."""
    return key.startswith("environment.variables.") and SECRET.search(key) is not None


def looks_secret(name: str, value: str) -> bool:
    """Return whether the name and the value of an environment variable look like those of a secret."""
    if named_secret(name, value) or redact(value) != value:
        return True
    return _PERHAPS_SECRET_NAME.search(name) is not None and _PLAIN_VALUE.fullmatch(value) is None


def named_secret(name: str, value: str) -> bool:
    """Return whether a name belongs to secrets alone, and the value is no switch and no path of a file."""
    return _SECRET_NAME.search(name) is not None and _SWITCH_OR_PATH.fullmatch(value) is None


def is_distinctive(name: str, value: str) -> bool:
    """Return whether a text that contains the value of a declared secret exposes it.

    `--env` also passes settings such as HOME. Short values, words, switches and paths are in many texts by chance. So
    are numbers, except under the name of a secret.
    """
    ordinary = _SWITCH_OR_PATH if SECRET.search(name) else _PLAIN_VALUE
    return len(value) >= MIN_VALUE and not any(pattern.fullmatch(value) for pattern in (ordinary, _WORD))


def names_secret(name: str) -> bool:
    """Return whether a variable of a script has the name of a secret; a KEY alone may be that of a cache."""
    named = _SECRET_NAME.search(name) or re.search(r"(?i)(?:TOKEN|PASS|PWD)$", name)
    return named is not None and _SETTING_NAME.search(name) is None
