"""Secrets of Azure in text that is printed or kept: signatures of SAS addresses, tokens, keys, client secrets."""

from __future__ import annotations

import re

HIDDEN = "REDACTED"
# What stands before a secret is kept, what follows it too.
_SECRETS = re.compile(
    r"""(?ix)
    ( [?&;]sig=
    | \b bearer \s+
    | \b accountkey=
    | \b sharedaccess(?:signature|key)=
    | \b (?:access_token|refresh_token|client_secret|client_assertion|sas_?token|(?:account|primary|secondary)_?key)
      ["']? \s* [:=] \s* ["']?
    )
    [\w.~+/=%-]{6,}
    """
)
_TOKEN = re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?")  # of the form that Azure's have, wherever it stands


def redact(text: str) -> str:
    """The text with every secret in it replaced."""
    return _TOKEN.sub(HIDDEN, _SECRETS.sub(rf"\g<1>{HIDDEN}", text))
