"""Redaction: the one function that removes secrets from a text before it is printed or stored.

It knows two kinds of secrets. Texts with the format of an issuer (`SHAPES`), or assigned to a name such as
`client_secret`, are recognised anywhere. The values of the run's own secrets are known: a process of a run has their
names in ORCHESTRATOR_RUN_SECRETS and their values in its environment, and `protect` adds the values that this process
looked up. `redact` reads a whole text, `StreamRedactor` a log that arrives in pieces. Standard library alone: the
parent of each rank loads this file without site-packages.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import string
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

SECRETS_VARIABLE = "ORCHESTRATOR_RUN_SECRETS"
"""Names of the variables that hold the run's secrets, separated by commas."""
REDACTED = "REDACTED"
"""Replaces a secret inside a text."""
MIN_VALUE = 6  # characters; shorter values, such as `1` or `true`, occur everywhere in a log
MIN_LINE = 8  # characters of a line of a longer secret
MAX_HELD = 1 << 16  # bytes of an unfinished line that wait for the rest of a secret
MAX_TAIL = 1 << 13  # bytes of a longer line that wait
MAX_KEY = 1 << 14  # characters of a private key; one of 8192 bits has 6500


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
        ("a bearer token", "eyJ", r"(?<![\w-])eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{20,}"),
    )
)
# What is shorter than the issuer's length is redacted too: a log may cut a line, and a test token is still a token.
_PREFIXES = (
    *("hf_", "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "npm_", "k_live_", "k_test_"),
    *("sk-proj-", "sk-ant-", "sk-admin-", "sk-svcacct-", "hvb.", "hvs.", "hvr.", "xox"),
)
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
_URL_PASSWORD = r"(://[^\s/:@\"']*):[^\s/@\"']+(?=@)"
_TOKEN = r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"  # a JSON web token, as Azure issues them
# From the first line to the last; of a key without its last line, the lines that look like one. The text behind the
# first line must contain key material: source code that reads keys has the first line alone.
_KEY_START, _KEY_NAME, KEY_MATERIAL = "-----BEGIN ", "PRIVATE KEY", re.compile(r"[A-Za-z0-9+/]{40}")
_KEY_END = re.compile("-----END [A-Z ]{0,60}-----")
_KEY_HEADER = re.compile(r"\s*(?:[A-Z][\w-]{1,20}:.{0,100})?")  # of an encrypted key, and the empty line behind it
_KEY_LINE, _KEY_LOOKAHEAD = 80, 300  # characters
_KEY = (
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY[A-Z ]{0,30}-----(?=(?s:.){0,200}?[A-Za-z0-9+/]{40})(?:"
    rf"(?s:(?!-----BEGIN ).){{0,{MAX_KEY}}}?-----END [A-Z ]{{0,30}}PRIVATE KEY[A-Z ]{{0,30}}-----"
    r"|(?:(?:\s|\\[nr]|[\"',])*(?:[A-Z][\w-]{1,20}:[^\n\\]{0,100}|[A-Za-z0-9+/=]{16,}))++)"
)
# Words of `_NAMED` in lower case, and what follows them: a search for a fixed text is fifty times as fast as `_NAMED`.
_HINTS = (
    *((word, rf"{word}[\"']?[ \t]*[:=]") for word in ("token", "secret", "assertion", "passphrase", "_pat")),
    ("key", r"key(?<=[\w-]key)[\"']?[ \t]*[:=]"),
    ("passw", r"passw(?:or)?d[\"']?[ \t]*[:=]"),
    ("credential", r"credentials?[\"']?[ \t]*[:=]"),
    ("signature", r"signature[\"']?[ \t]*[:=]"),
    ("sig", r"sig[=%]"),
    ("bearer", r"bearer\s"),
    ("authorization", r"authorization"),
)
_RULES = (
    *(
        (shape.needle, shape.pattern, REDACTED)
        for shape in SHAPES
        if not shape.needle.startswith((*_PREFIXES, "hv", _KEY_NAME))  # covered by `_PREFIXED` and `_KEY`
    ),
    *((prefix, _PREFIXED, REDACTED) for prefix in _PREFIXES),
    ("://", _URL_PASSWORD, rf"\g<1>:{REDACTED}"),
    ("eyJ", _TOKEN, REDACTED),
)  # text that every match contains, pattern of one line, replacement
_NEEDLES = (_KEY_START, *dict.fromkeys(needle for needle, _, _ in _RULES))
_STARTS = frozenset(
    word[:end].lower() for word in (*_NEEDLES, *(word for word, _ in _HINTS)) for end in range(1, len(word))
)
_LONGEST_START = max(map(len, _STARTS))
_PROMPT = re.compile(rb"[:=?>]\s*\Z")
_protected: set[str] = set()


def protect(values: Iterable[str]) -> None:
    """Add secrets that `redact` removes in this process from now on."""
    _protected.update(values)


def secret_values(environ: Mapping[str, str]) -> list[str]:
    """Return the values of the run's secrets: those of `protect`, and those in a process's environment."""
    names = environ.get(SECRETS_VARIABLE, "").split(",")
    return [*_protected, *(environ[name] for name in names if environ.get(name))]


def redact(text: str) -> str:
    """Return the text with every secret in it replaced."""
    if forms := known_forms(frozenset(secret_values(os.environ))):
        text = _without(text.encode(errors="surrogateescape"), forms).decode(errors="surrogateescape")
    return redact_formats(text)


def redact_formats(text: str) -> str:
    """Return the text without secrets that have the format of an issuer or follow the name of a secret.

    Every pattern reads only the lines in which a fixed part of it was found: most lines of a log have none.
    """
    if _KEY_NAME in text and _KEY_START in text:
        text = _compiled(_KEY).sub(REDACTED, text)
    for needle, pattern, replacement in _RULES:
        if needle in text:
            text = _with_lines_replaced(text, _line_hits(text, needle), pattern, replacement)
    lower = text.lower()
    if len(lower) != len(text):  # a few capitals outside of ASCII become two characters
        lower = re.sub("[A-Z]+", lambda word: word[0].lower(), text)
    hits = {hit.start() for word, pattern in _HINTS if word in lower for hit in _compiled(pattern).finditer(lower)}
    return _with_lines_replaced(text, sorted(hits), _NAMED, rf"\g<1>{REDACTED}") if hits else text


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern at its first use: few processes ever need one. ASCII: a log is read as bytes."""
    return re.compile(pattern, re.ASCII)


def _line_hits(text: str, needle: str) -> Iterator[int]:
    """Yield the first place of a text in each line that contains it."""
    at = text.find(needle)
    while at >= 0:
        yield at
        end = text.find("\n", at)
        at = text.find(needle, end) if end >= 0 else -1


def _with_lines_replaced(text: str, hits: Iterable[int], pattern: str, replacement: str) -> str:
    """Return the text with the matches of a pattern replaced in those lines that contain one of the ascending hits."""
    parts, done = list[str](), 0
    for hit in hits:
        if hit < done:  # in a line that was just replaced
            continue
        start = text.rfind("\n", done, hit) + 1 or done
        end = text.find("\n", hit)
        end = len(text) if end < 0 else end
        parts += text[done:start], _compiled(pattern).sub(replacement, text[start:end])
        done = end
    return "".join(parts) + text[done:]


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


def secret_lines(value: str) -> set[str]:
    """Return the lines of a secret of several lines that are secrets themselves: a log may have them one at a time.

    Not the short ones, nor single words and the first and last lines of keys, which other texts contain too.
    """
    lines = {line.strip() for line in value.splitlines()} - {value}
    return {
        line for line in lines if len(line) >= MIN_LINE and not re.fullmatch(r"-----.*-----|[A-Z]?[a-z]+|[A-Z]+", line)
    }


@lru_cache
def known_forms(values: frozenset[str]) -> tuple[bytes, ...]:
    """Return all forms of the values that are long enough, and of their lines; the longest first."""
    texts = {text for value in values for text in (value, *secret_lines(value))}
    forms = {form for text in texts if len(text) >= MIN_VALUE for form in value_forms(text)}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def _without(text: bytes, forms: tuple[bytes, ...]) -> bytes:
    for form in forms:  # not one pattern: `in` searches a hundred times as fast as alternatives
        if form in text:
            text = text.replace(form, REDACTED.encode())
    return text


class StreamRedactor:
    """Removes secrets from a stream of bytes that arrives in pieces: the run's own, and those that `redact` recognises.

    Args:
        values: the run's secrets.
        write: receives the bytes without them.
    """

    def __init__(self, values: Iterable[str], write: Callable[[bytes], object]) -> None:
        self._forms, self._write, self._held = known_forms(frozenset(values)), write, b""
        self._longest = max(map(len, self._forms), default=1) - 1
        self._beginnings: dict[bytes, list[bytes]] = {}  # first bytes -> forms; every shorter beginning -> nothing
        for form in self._forms:
            self._beginnings.setdefault(form[:MIN_VALUE], []).append(form)
            self._beginnings.update((form[:end], []) for end in range(1, MIN_VALUE))

    def feed(self, piece: bytes) -> None:
        """Pass on a piece, except an end that may be the beginning of a secret."""
        text = _without(self._held + piece, self._forms)
        end = min(self._end_before_value(text), _end_before_format(text))
        self._held = text[end:]
        self._pass_on(text[:end])

    def release_prompt(self) -> None:
        """Pass on what is held if it asks for input, such as `Password: `: the user must see it."""
        if _PROMPT.search(self._held) and self._end_before_value(self._held) == len(self._held):
            self.close()

    def close(self) -> None:
        """Pass on the rest."""
        held, self._held = self._held, b""
        self._pass_on(held)

    def _pass_on(self, text: bytes) -> None:
        if text:
            # latin-1: any bytes, each one character
            self._write(redact_formats(text.decode("latin-1")).encode("latin-1"))

    def _end_before_value(self, text: bytes) -> int:
        """Return the start of the beginning of a known value at the end of a text; the text's length without one."""
        for start in range(max(0, len(text) - self._longest), len(text)):
            forms = self._beginnings.get(text[start : start + MIN_VALUE])
            if forms is not None and (len(text) - start < MIN_VALUE or _any_starts(forms, text[start:])):
                return start
        return len(text)


def _end_before_format(text: bytes) -> int:
    """Return where an unfinished secret may begin, by its format; the text's length without one."""
    end = _end_before_word(text)
    key = text.rfind(_KEY_START.encode(), max(0, len(text) - MAX_KEY))
    if key >= 0:
        block = text[key:].decode("latin-1")
        last = _KEY_END.search(block)
        lines = [line for line in block.split("\n")[1:-1] if _KEY_HEADER.fullmatch(line) is None][-3:]
        stale = len(lines) == 3 and not any(map(KEY_MATERIAL.search, lines))  # other output follows, no key
        unfinished = _KEY_NAME in block[:_KEY_LINE] and not stale and (last is None or key + last.end() > end)
        if unfinished and (len(block) < _KEY_LOOKAHEAD or KEY_MATERIAL.search(block, 0, _KEY_LOOKAHEAD)):
            return min(key, end)
    return end


def _end_before_word(text: bytes) -> int:
    """Return the start of an unfinished last line that may contain a secret, or of its last word if that may be one."""
    start = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
    line = text[start:].decode("latin-1")
    if not line:
        return len(text)
    lower = line.lower()
    if len(line) > MAX_HELD:  # only its end waits, from the first word there that may begin a secret
        tail, low = line[-MAX_TAIL:], lower[-MAX_TAIL:]
        hits = [tail.find(needle) for needle in _NEEDLES] + [low.find(word) for word, _ in _HINTS]
        if first := [hit for hit in hits if hit >= 0]:
            return len(text) - len(tail) + max(tail.rfind(" ", 0, min(first)), 0)
        line, lower = tail, low
    if any(needle in line for needle in _NEEDLES) or any(word in lower for word, _ in _HINTS):
        return start
    # a letter: the fixed part of a secret may be in the middle of a word
    if line[-1].isalnum() or any(lower[-length:] in _STARTS for length in range(1, _LONGEST_START + 1)):
        return len(text) - len(line) + max(map(line.rfind, string.whitespace)) + 1
    return len(text)


def _any_starts(forms: list[bytes], beginning: bytes) -> bool:
    return any(len(form) > len(beginning) and form.startswith(beginning) for form in forms)


class _RedactedOutput:
    """A stream of text that passes on each write without secrets."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(redact(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def redact_output() -> None:
    """Remove secrets from what this process prints and logs from now on, each write by itself."""
    streams: tuple[Any, Any] = _RedactedOutput(sys.stdout), _RedactedOutput(sys.stderr)
    sys.stdout, sys.stderr = streams
