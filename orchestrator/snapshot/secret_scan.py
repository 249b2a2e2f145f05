"""Find secrets in the bytes of a file: issuers' formats, the rules of detect-secrets, passwords, compressed files.

Three kinds of rules, the surest first: formats that an issuer defines (`SHAPES`, and those of detect-secrets); secrets
by the key of a credential file; values that look like a password behind a name such as `db_password`. The last kind is
filtered: a submission that is refused for nothing costs the user more than a finding is worth. No finding contains the
secret.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from io import BytesIO
from typing import Any, NamedTuple

from train_jobs.artifacts.redaction import SHAPES

MAX_UNPACKED = 32 << 20  # bytes of a compressed file that are searched, with everything packed in it
MAX_DEPTH = 5  # of compressed files in compressed files: there are some that contain themselves
BLOCK = 1024  # bytes: an error loses the block in which it is found
ZIP = b"PK\x03\x04"
MAX_SNIPPET = 300  # characters searched behind a name: some rules take quadratic time on long lines
COMPRESSED: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}
DAMAGED = (OSError, EOFError, RuntimeError, ValueError, struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
"""Errors of damaged and of encrypted files, and of other formats that begin like one of these."""
BYTE_ORDER_MARKS = {  # those of UTF-32 first: one begins like that of UTF-16
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
GITLAB = (b"glpat-", b"gldt-", b"glft-", b"glsoat-", b"glrt-", b"glcbt-", b"glimt-", b"glptt-", b"glagent-", b"gloas-")
# Module of detect-secrets -> lower-case texts of which every match contains one. Left out: `artifactory` and
# `ibm_cloud_iam`, which match ordinary identifiers; `jwt`, `private_key`, whose rules here also require the signature
# and the key; `high_entropy_strings`, `ip_public`: hashes and addresses are no secrets.
LIBRARY = {
    "aws": (b"aws", b"akia", b"asia", b"abia", b"acca"),
    "basic_auth": (b"://",),
    "cloudant": (b"cloudant",),
    "discord": (b"discord",),
    "github_token": (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_"),
    "gitlab_token": (*GITLAB, b"gr1348941"),
    "ibm_cos_hmac": (b"secret",),
    "mailchimp": (b"-us",),
    "npm": (b"_authtoken",),
    "openai": (b"t3blbkfj",),
    "pypi_token": (b"pypi-",),
    "sendgrid": (b"sg.",),
    "slack": (b"xox", b"hooks.slack.com"),
    "softlayer": (b"softlayer",),
    "square_oauth": (b"sq0csp-",),
    "stripe": (b"k_live_",),
    "telegram_token": (b":aa",),
    "twilio": (b"twilio",),
}
FILTERED = {"basic_auth", "npm"}  # modules whose matches are also what documentation writes


class ExposedSecret(NamedTuple):
    """Something in a text that looks like a secret."""

    line: int
    """From 1."""
    what: str
    """Kind of secret, never the secret itself."""


class _Text(NamedTuple):
    content: bytes
    path: str  # of the file, or of the member of an archive
    packed: str = ""  # note for messages


class _Rule(NamedTuple):
    what: str
    needles: tuple[bytes, ...]  # lower case; every match contains one, and searching for them is far quicker
    pattern: re.Pattern[bytes]
    filtered: bool = False  # the last group is a password only if it looks like one


_OWN = tuple(
    _Rule(shape.what, (shape.needle.lower().encode(),), re.compile(shape.pattern.encode())) for shape in SHAPES
) + tuple(
    _Rule(what, needles, re.compile(pattern))
    for what, needles, pattern in (
        # keys of credential files: .aws/credentials and .boto, kaggle.json, gcloud, .netrc, W&B, Vault
        (
            "an AWS or Google secret key",
            (b"secret",),
            rb"(?i)secret_?access_?key[\"']?\s{0,3}[:=]\s{0,3}[\"']?[A-Z0-9/+]{40}(?![A-Z0-9/+=])",
        ),
        ("a Kaggle key", (b'"key"', b"kaggle_key"), rb"(?i)(?:\"key\"\s*:\s*\"|kaggle_key\W{1,4})[0-9a-f]{32}\b"),
        (
            "an OAuth credential",
            (b'"refresh_token"', b'"client_secret"'),
            rb"\"(?:refresh_token|client_secret)\"\s*:\s*\"[\w/.~+-]{20,}\"",
        ),
        (
            "a password of .netrc",
            (b"machine",),
            rb"(?m)^\s*machine\s+\S+\s+login\s+\S+\s+password\s+[^\s<${*]{6,}",
        ),
        ("a Weights & Biases key", (b"wandb",), rb"(?i)wandb[\w.]*(?:\(key|key|login\()\W{1,6}[0-9a-f]{40}\b"),
        (
            "a Hashicorp Vault token",
            (b"vault",),
            rb"(?i)vault[\w-]{0,10}token[\"']?\s{0,3}[:=]\s{0,3}[\"']?(?:s\.)?[A-Z0-9]{24,}\b",
        ),
    )
)
_NAMES = re.compile(rb"(?i)passw(?:or)?d|passphrase|pwd|secret|(?:api|auth|account|client|service|db)_?key")
# Templates and examples; names of things; and hashes, which are no passwords though stored under such names.
_EXAMPLE = re.compile(
    r"(?i)^(?:my|the|some|new|old|not|no|a|an)?[-_]?(?:change|your|example|sample|dummy|fake|test|todo|redacted|hidden"
    r"|placeholder|secret|passw|insert|enter|user|admin|none|null|token|abc|foo|spam|key|sha\d|\W)|example|placeholder|xxx"
    r"|\*\*\*|\.\.\.|\\|^[\w-]+(?:\.[\w-]+)+$|^[0-9a-f]{16,}$|\$(?:$|[A-Z_]+$)"
)
_PASSWORD = re.compile(r"(?=.*[A-Za-z])(?=.*[\d!@#$%^&*?~])[^\s(){}\[\]<>'\"`,;:/|=]{7,80}")


def secrets_in(content: bytes, path: str = "") -> Iterator[ExposedSecret]:
    """Yield everything in a file's bytes that looks like a secret, kind by kind.

    The lines of an archive are those of its members.

    Args:
        content: bytes of the file.
        path: its path, by whose ending passwords without quotation marks are recognised; empty: unknown.
    """
    for text in _texts(content, path, MAX_UNPACKED, MAX_DEPTH):
        yield from _secrets_in_text(text)


def _secrets_in_text(source: _Text) -> Iterator[ExposedSecret]:
    text, path, packed = source
    lower, taken = text.lower(), list[tuple[int, int]]()
    for rule in (*_OWN, *_library_rules()):
        if not any(needle in lower for needle in rule.needles):
            continue
        for match in rule.pattern.finditer(text):
            overlaps = any(start < match.end() and match.start() < end for start, end in taken)
            if not overlaps and (not rule.filtered or _is_password(match[match.lastindex or 0].decode("latin-1"))):
                taken.append(match.span())
                yield ExposedSecret(text.count(b"\n", 0, match.start()) + 1, rule.what + packed)
    lines = {text.count(b"\n", 0, start) + 1 for start, _ in taken}
    found = (line for line in _password_lines(text, path) if line not in lines)
    yield from (ExposedSecret(line, f"a password{packed}") for line in dict.fromkeys(found))


def _texts(content: bytes, path: str, most: int, depth: int) -> Iterator[_Text]:
    """Yield the text of a file; of a packed one the texts in it, and of a damaged one also its bytes as they are."""
    members, intact = _unpacked(content, path, most) if depth else ([], False)
    for name, member in members:
        for text in _texts(member, name, most, depth - 1):
            yield text._replace(packed=", compressed")
            most -= len(text.content)
    if not intact:
        yield _Text(_as_utf8(content), path)


def _unpacked(content: bytes, path: str, most: int) -> tuple[list[tuple[str, bytes]], bool]:
    """Return name and content of what is packed in a file, and whether that is all of it."""
    openers: list[tuple[str, Callable[[], Any]]] = []
    try:
        if content.startswith(ZIP):
            archive = zipfile.ZipFile(BytesIO(content))
            openers = [(one.filename, partial(archive.open, one)) for one in archive.infolist() if not one.is_dir()]
    except DAMAGED:
        return [], False
    openers += [
        (path, partial(opened, BytesIO(content))) for magic, opened in COMPRESSED.items() if content.startswith(magic)
    ]
    members, intact = [], bool(openers)
    for name, opener in openers:
        read = bytearray()
        try:
            with opener() as stream:
                while most > 0 and (block := stream.read1(min(BLOCK, most))):
                    read += block
                    most -= len(block)
        except DAMAGED:
            intact = False
        members.append((name, bytes(read)))
    return members, intact


def _as_utf8(content: bytes) -> bytes:
    """Return a text in UTF-8; other content as it is."""
    encoding = next((name for mark, name in BYTE_ORDER_MARKS.items() if content.startswith(mark)), None)
    if encoding is None and len(content) > 3 and content[:4].count(0) == 2:  # ASCII in UTF-16, without a mark
        encoding = {(0, 0): "utf-16-le"}.get((content[1], content[3])) or {(0, 0): "utf-16-be"}.get(
            (content[0], content[2])
        )
    return content.decode(encoding, errors="replace").encode() if encoding else content


@cache
def _library_rules() -> tuple[_Rule, ...]:
    rules = []
    for name, needles in LIBRARY.items():
        module = import_module(f"detect_secrets.plugins.{name}")  # 0.3 s, only for a folder of the user's code
        plugin = next(
            one for key, one in vars(module).items() if key.endswith("Detector") and key != "RegexBasedDetector"
        )
        for pattern in plugin.denylist:
            source = pattern.pattern.encode()
            if name not in FILTERED:  # their patterns have no ends: any long word may contain a match
                source = rb"(?<![A-Za-z0-9])(?:" + source + rb")(?![A-Za-z0-9])"
            compiled = re.compile(source, pattern.flags & ~re.UNICODE)
            rules.append(_Rule(f"a secret ({plugin.secret_type})", needles, compiled, name in FILTERED))
    return tuple(rules)


def _password_lines(text: bytes, path: str) -> Iterator[int]:
    """Yield the lines on which a name such as `db_password` is given a value that looks like a password."""
    from detect_secrets.plugins.keyword import KeywordDetector

    detector, seen = KeywordDetector(), -1
    for match in _NAMES.finditer(text):
        if match.start() < seen:
            continue
        end = text.find(b"\n", match.start())
        end = min(end if end >= 0 else len(text), match.start() + MAX_SNIPPET)
        seen = end  # one snippet has all names of its line
        # a notebook is JSON: its code has escaped quotation marks
        snippet = text[match.start() : end].decode("latin-1").replace('\\"', '"').replace("\\n", "")
        found = detector.analyze_line(filename=path.removesuffix(".ipynb") or "x.py", line=snippet)
        if any(_is_password(secret.secret_value or "") for secret in found):
            yield text.count(b"\n", 0, match.start()) + 1


def _is_password(value: str) -> bool:
    """Return whether a value looks like a password or a key, and not like a name, a template or an example."""
    from detect_secrets.filters.heuristic import is_sequential_string, is_templated_secret

    plausible = _PASSWORD.fullmatch(value) is not None and _EXAMPLE.search(value) is None
    return plausible and not is_sequential_string(value) and not is_templated_secret(value)
