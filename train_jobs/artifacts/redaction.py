"""Redaction: the one function that removes secrets from a text before it is printed or stored.

It knows two kinds of secrets. Texts with the format of an issuer (`SHAPES`), or assigned to a name such as
`client_secret`, are recognised anywhere. The values of the run's own secrets are known: a process of a run has their
names in ORCHESTRATOR_RUN_SECRETS and their values in its environment, and `protect` adds the values that this process
looked up. Standard library alone: the parent of each rank loads this file without site-packages.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, quote_plus

SECRETS_VARIABLE = "ORCHESTRATOR_RUN_SECRETS"
"""Names of the variables that hold the run's secrets, separated by commas."""
REDACTED = "REDACTED"
"""Replaces a secret inside a text."""
MIN_VALUE = 6  # characters; shorter values, such as `1` or `true`, occur everywhere in a log


class Shape(NamedTuple):
    """Format of the secrets of one issuer."""

    what: str
    """Kind of secret."""
    needle: str
    """Part of every match: searching for it is a hundred times as fast as the pattern."""
    pattern: str
    """Regular expression."""


SHAPES = tuple(
    Shape(*shape)
    for shape in (
        # with 40 characters of the key: source code that reads keys contains the first line alone
        ("a private key", "PRIVATE KEY", r"-----BEGIN [A-Z ]*PRIVATE KEY[A-Z ]*-----(?s:.){0,200}?[A-Za-z0-9+/]{40}"),
        ("an AWS access key", "AKIA", r"\bAKIA[0-9A-Z]{16}\b"),
        ("an AWS access key", "ASIA", r"\bASIA[0-9A-Z]{16}\b"),
        ("an Azure account key", "AccountKey=", r"\bAccountKey=[A-Za-z0-9+/]{86}=="),
        ("an Azure access key", "SharedAccessKey=", r"\bSharedAccessKey=[A-Za-z0-9+/]{43}="),
        ("an Azure SAS signature", "sig=", r"\bsig=[A-Za-z0-9%+/]{40,}(?:%3[Dd]|=)"),
        ("an Azure client secret", "Q~", r"(?<![\w.~-])[\w.~-]{3}\dQ~[\w.~-]{31,34}(?![\w.~-])"),
        ("a Databricks token", "dapi", r"\bdapi[0-9a-f]{32}\b"),
        *(("a GitHub token", f"gh{kind}_", rf"\bgh{kind}_[A-Za-z0-9]{{36,}}\b") for kind in "oprsu"),
        ("a GitHub token", "github_pat_", r"\bgithub_pat_\w{50,}"),
        ("a GitLab token", "glpat-", r"\bglpat-[\w-]{20,}"),
        ("a Google API key", "AIza", r"\bAIza[\w-]{35}(?![\w-])"),
        ("a Google client secret", "GOCSPX-", r"\bGOCSPX-[\w-]{28}(?![\w-])"),
        ("a Google refresh token", "1//0", r"(?<![\w/])1//0[\w-]{40,}"),
        ("a Hashicorp Vault token", "hv", r"\bhv[bsr]\.[\w-]{24,}"),
        ("a Hugging Face token", "hf_", r"\bhf_[A-Za-z0-9]{34,}\b"),
        ("an npm token", "npm_", r"\bnpm_[A-Za-z0-9]{36}\b"),
        ("an OpenAI key", "sk-", r"(?<![\w-])sk-[A-Za-z0-9]{40,}\b"),
        ("an API key", "sk-", r"(?<![\w-])sk-(?:admin|ant|proj|svcacct)-[\w-]{40,}"),
        ("a PyPI token", "pypi-", r"\bpypi-AgE[\w-]{50,}"),
        ("a SendGrid key", "SG.", r"\bSG\.[\w-]{22}\.[\w-]{43}(?![\w-])"),
        ("a Slack token", "xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{20,}"),
        ("a Slack webhook", "hooks.slack.com/", r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9+/]{40,}"),
        ("a Stripe key", "k_live_", r"\b[rs]k_live_[A-Za-z0-9]{24,}\b"),
        ("a Weights & Biases key", "wandb_v", r"\bwandb_v\d_[A-Za-z0-9_]{40,}"),
        ("a bearer token", "eyJ", r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{20,}"),
    )
)
# What is shorter than the issuer's length is redacted too: a log may cut a line, and a test token is still a token.
_PREFIXED = (
    r"\b(?:hf_|gh[oprsu]_|github_pat_|glpat-|npm_|[rs]k_(?:live|test)_|sk-(?:proj|ant|admin|svcacct)-|hv[bsr]\.|xox[abeoprs]-)"
    r"[\w-]{16,}"
)
# A secret by its name. `token` alone needs a word before it, or capitals: models have tokens of other kinds.
_NAMED = r"""(?x)
    (
      (?i: (?:^|[?&;\s"']|%3[Ff]|%26|%3[Bb]) sig (?:=|%3[Dd]|%253[Dd])
        | \b bearer \s+ | \b authorization ["']? \s* [:=] \s* ["']? basic \s+
        | \b sharedaccess(?:signature|key)=
        | (?: (?: access|refresh|auth|api|sas|id|session|security|private|personal|bot ) [_-]? token
            | client[_-]?(?:secret|assertion)
            | (?: api|account|primary|secondary|access|secret|shared|subscription|auth|encryption|signing ) [_-]? key
            | passw(?:or)?d | passphrase | (?<![a-z]) secret
          ) ["']? \s* [:=] \s* ["']?
      )
      | \b [A-Z][A-Z0-9_]* (?:TOKEN|SECRET|PASSWORD|CREDENTIALS?|_KEY|_PAT) ["']? \s? [:=] \s? ["']?
    )
    [^\s"'&,;<>(){}\[\]\\]{6,}
    """
_URL_PASSWORD = r"(?<=://)([^\s/:@\"']*):[^\s/@\"']+(?=@)"
_TOKEN = r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"  # a JSON web token, as Azure issues them
# Found in every text that _NAMED matches, and in few others: _NAMED itself takes eight times as long.
_HINT = re.compile(
    r"(?i)(?:token|secret|assertion|key|passw(?:or)?d|passphrase|credentials?|signature|_pat)[\"']?\s*[:=]"
    r"|sig(?:=|%)|bearer\s|authorization"
)
_PREFIXES = ("hf_", "gh", "glpat-", "npm_", "k_live_", "k_test_", "sk-", "hv", "xox")
_RULES = (
    *((shape.needle, shape.pattern, REDACTED) for shape in SHAPES),
    *((prefix, _PREFIXED, REDACTED) for prefix in _PREFIXES),
    ("://", _URL_PASSWORD, rf"\g<1>:{REDACTED}"),
    ("eyJ", _TOKEN, REDACTED),
)  # text that every match contains, pattern, replacement
_protected: set[str] = set()


def protect(values: Iterable[str]) -> None:
    """Add secrets that `redact` removes in this process from now on."""
    _protected.update(values)


def secret_values(environ: Mapping[str, str]) -> list[str]:
    """Return the values of the run's secrets, from the environment of one of its processes."""
    names = environ.get(SECRETS_VARIABLE, "").split(",")
    return [environ[name] for name in names if environ.get(name)]


def redact(text: str) -> str:
    """Return the text with every secret in it replaced."""
    if forms := known_forms(frozenset([*_protected, *secret_values(os.environ)])):
        text = _without(text.encode(errors="surrogateescape"), forms).decode(errors="surrogateescape")
    for needle, pattern, replacement in _RULES:
        if needle in text:
            text = re.sub(pattern, replacement, text)  # compiled here: few processes ever need one
    if "\n" not in text:
        return re.sub(_NAMED, rf"\g<1>{REDACTED}", text) if _HINT.search(text) else text
    lines = text.splitlines(keepends=True)  # most lines of a log have no hint, and the pattern is slow
    return "".join(re.sub(_NAMED, rf"\g<1>{REDACTED}", line) if _HINT.search(line) else line for line in lines)


def value_forms(value: str) -> set[bytes]:
    """Return the forms in which a value may occur in a text: plain, URL-encoded, JSON, Python, HTML, and inside base64.

    Base64 has three forms, by the position of the value in the encoded text; each is cut to what the value determines.
    """
    plain = value.encode(errors="surrogateescape")
    forms = {plain, quote(plain, safe="").encode(), quote(plain).encode(), quote_plus(plain).encode()}
    quoted = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], ascii(value)[1:-1]}
    quoted |= {repr(value)[1:-1], repr(plain)[2:-1], html.escape(value), html.escape(value, quote=False)}
    forms |= {form.encode(errors="surrogateescape") for form in quoted}
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + plain).rstrip(b"=")
        first, spare = -(-before * 8 // 6), (before + len(plain)) % 3
        sure = encoded[first : len(encoded) - (1 if spare else 0)]
        forms |= {sure, sure.replace(b"+", b"-").replace(b"/", b"_")}
    return {form for form in forms if len(form) >= MIN_VALUE}


@lru_cache
def known_forms(values: frozenset[str]) -> tuple[bytes, ...]:
    """Return all forms of the values that are long enough, the longest first."""
    forms = {form for value in values if len(value) >= MIN_VALUE for form in value_forms(value)}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def _without(text: bytes, forms: tuple[bytes, ...]) -> bytes:
    for form in forms:  # not one pattern: `in` searches a hundred times as fast as alternatives
        if form in text:
            text = text.replace(form, REDACTED.encode())
    return text


class StreamRedactor:
    """Removes the run's secrets from a stream of bytes that arrives in pieces.

    Args:
        values: the secrets.
        write: receives the bytes without them.
    """

    def __init__(self, values: Iterable[str], write: Callable[[bytes], object]) -> None:
        known = frozenset(value for value in values if len(value) >= MIN_VALUE)
        self._forms, self._write, self._held = known_forms(known), write, b""
        self._starts = {form[:end] for form in self._forms for end in range(1, len(form))}
        self._longest = max(map(len, self._starts), default=0)

    def feed(self, piece: bytes) -> None:
        """Pass on a piece, except an end that may be the beginning of a secret."""
        text = _without(self._held + piece, self._forms)
        lengths = range(min(self._longest, len(text)), 0, -1)
        keep = next((length for length in lengths if text[-length:] in self._starts), 0)
        end = len(text) - keep
        self._held = text[end:]
        if end:
            self._write(text[:end])

    def close(self) -> None:
        """Pass on the rest."""
        if self._held:
            self._write(self._held)
        self._held = b""
