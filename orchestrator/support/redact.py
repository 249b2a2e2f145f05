"""Keep secrets out of text that is printed or stored: SAS signatures, tokens, keys, client secrets, variables."""

from __future__ import annotations

import re

SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|SIGNATURE", re.IGNORECASE)
"""Names of environment variables whose values are secrets."""
HIDDEN = "(not shown)"
"""Shown in place of the value of such a variable."""
REDACTED = "REDACTED"
"""Replaces a secret inside a text."""
# Only forms that an issuer of secrets defines: redacting every long word would hide hashes and ids, which users need.
# The text on both sides of a secret stays, so that the message remains readable.
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
_TOKEN = re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?")  # a JSON web token, as Azure issues them


def redact(text: str) -> str:
    """Return the text with every secret in it replaced."""
    return _TOKEN.sub(REDACTED, _SECRETS.sub(rf"\g<1>{REDACTED}", text))


def is_secret(key: str) -> bool:
    """Return whether a dotted key names an environment variable that holds a secret."""
    return key.startswith("environment.variables.") and SECRET.search(key) is not None
