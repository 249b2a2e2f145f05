"""Find secrets in the bytes of a file: issuers' formats, the rules of detect-secrets, passwords, variables of scripts.

Three kinds of rules, the surest first: formats that an issuer defines (`SHAPES`, and those of detect-secrets); secrets
by the key of a credential file; values that look like a password behind a name such as `db_password`. The last kind is
filtered: a submission that is refused for nothing costs the user more than a finding is worth. No finding contains the
secret.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib import import_module
from typing import NamedTuple

from orchestrator.snapshot.packed_texts import Text, base64_texts, texts_of
from orchestrator.support.redact import names_secret
from train_jobs.artifacts.redaction import SHAPES

MAX_SNIPPET = 300  # characters searched behind a name: some rules take quadratic time on long lines
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
            rb"(?m)^[ \t]*machine\s+\S+\s+login\s+\S+\s+password\s+[^\s<${*]{6,}",
        ),
        ("a Weights & Biases key", (b"wandb",), rb"(?i)wandb[\w.]{0,40}(?:\(key|key|login\()\W{1,6}[0-9a-f]{40}\b"),
        (
            "a Hashicorp Vault token",
            (b"vault",),
            rb"(?i)vault[\w-]{0,10}token[\"']?\s{0,3}[:=]\s{0,3}[\"']?(?:s\.)?[A-Z0-9]{24,}\b",
        ),
    )
)
_NAME = r"passw(?:or)?d|passphrase|pwd|secret|(?:api|auth|account|client|service|db)_?key"
_NAMES = re.compile(f"(?i){_NAME}".encode())
# Templates and examples; names of things; and hashes, which are no passwords though stored under such names.
_EXAMPLE = re.compile(
    r"(?i)^(?:my|the|some|new|old|not|no|a|an)?[-_]?(?:change|your|example|sample|dummy|fake|test|todo|redacted|hidden"
    r"|placeholder|secret|passw|insert|enter|user|admin|none|null|token|abc|foo|spam|key|sha\d)|example|placeholder"
    r"|(?-i:x{4}|X{4}|(?:^|[\W_])(?:x{3}|X{3})|(?:x{3}|X{3})$)|\*\*\*|\.\.\.|\\|^[\w-]+(?:\.[\w-]+)+$|^[0-9a-f]{16,}$"
)
_MARKED = re.compile(r"(?i)^(?:my|the|some|new|old|not|no|a|an)?[-_]?\W|\$(?:$|[A-Z_]+$)")  # variables, selectors
_PASSWORD = re.compile(r"(?=.*[A-Za-z])(?=.*[\d!@#$%^&*?~])[^\s(){}\[\]<>'\"`,;:/|=]{7,80}")
_GENERATED = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*\d)[^\s'\"`]{10,80}")  # with any character
_EXPRESSION = re.compile(
    # a variable, a field of a template, a macro, a call or an index
    r"^[$%@#.-]\w+%?$|^\$\w+[/.:]|\$\{|\$[A-Z_]+$|^[$%@!*&]?\(|%\(\w+\)|\{[A-Za-z_][\w.]*\}|^@\w+\."
    r"|^[A-Za-z_][\w.]*[(\[].*[)\]]$"
    # an address, a path, a resource; the hash of a password; the characters of a pattern
    r"|://|^/|^arn:|^[\w.~-]*(?:[/:][\w.-]+)+/?$|^\$?(?:\w+\$)?(?:2[aby]|apr1|argon2\w*|\d)\$|^pbkdf2|^scrypt:|A-Z|a-z"
)
_SCRIPT_PATH = re.compile(
    r"(?i)(?:^|/)(?:[^/]*\.(?:sh|bash|zsh|ksh|csh|fish|slurm|sbatch|dockerfile)|(?:docker|container)file[^/]*"
    r"|\.?(?:bash|zsh|ksh|csh)(?:rc|env)|\.?(?:(?:bash|z)_?)?(?:profile|login|aliases))$"
)
_SCRIPT_START = re.compile(rb"#![^\n]{0,100}\b(?:ba|z|k|c|da|fi)?sh\b")
_SCRIPT_WORDS = (
    b"pass",
    b"pwd",
    b"secret",
    b"token",
    b"key",
    b"credential",
    b"conn",
)  # in every name of `names_secret`
_VALUE = rb"(\"[^\"\n]{1,400}\"|'[^'\n]{1,400}'|[^\s;&|<>()\"'`]{1,400})"
_SHELL_VALUE = re.compile(rb"(?<![\w$.-])([A-Za-z_]\w{1,60})=" + _VALUE)
_DOCKER_VALUE = re.compile(rb"(?im)^[ \t]*(?:ENV|setenv|set[ \t]+-\w+)[ \t]+(\w{2,60})[ \t]+" + _VALUE + rb"[ \t\r]*$")
_RANDOM = re.compile(r"(?=.*[A-Za-z])(?=.*\d)[A-Za-z0-9+/=_.~-]{16,400}")
_HEX = re.compile("[0-9a-f]{32,128}")
# What detect-secrets misses: a name with a type, and a value that begins with a punctuation mark.
_GIVEN = re.compile(
    rf"(?i)(?:{_NAME})[\w-]{{0,40}}[\"'\])]{{0,3}}\s{{0,3}}(?::\s{{0,3}}[\w.\[\], |]{{1,40}})?[:=]>?\s{{0,3}}[bru]?"
    r"(?:\"([^\"]+)\"|'([^']+)'|([^\w\s\"'`()\[\]{}<>=][^\s\"'`]*)\s*$)"
)


def secrets_in(
    content: bytes, path: str = "", declared: Mapping[str, tuple[bytes, ...]] | None = None
) -> Iterator[ExposedSecret]:
    """Yield everything in a file's bytes that looks like a secret, kind by kind.

    The lines of an archive are those of its members.

    Args:
        content: bytes of the file.
        path: its path, by whose ending passwords without quotation marks are recognised; empty: unknown.
        declared: name of a secret of the run -> forms of its value; see `secret_sources.distinctive_forms`.
    """
    for text in texts_of(content, path):
        yield from _declared_lines(text, declared or {})
        yield from _secrets_in_text(text)
        lines = _Lines(text.content)
        for place, decoded in base64_texts(text.content):
            inner = Text(decoded, "", f"{text.packed}, in base64")
            yield from (found._replace(line=lines.number(place)) for found in _secrets_in_text(inner))


class _Lines:
    """Numbers of the lines of a text. Counting line ends again for each finding would take quadratic time."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    @cached_property
    def _ends(self) -> list[int]:
        return [match.start() for match in re.finditer(b"\n", self._text)]

    def number(self, place: int) -> int:
        """Return the number of the line, from 1, that a place is in."""
        return bisect_left(self._ends, place) + 1


def _declared_lines(source: Text, declared: Mapping[str, tuple[bytes, ...]]) -> Iterator[ExposedSecret]:
    """Yield the first place of each declared secret."""
    for name, forms in declared.items():
        if places := [place for form in forms if (place := source.content.find(form)) >= 0]:
            line = _Lines(source.content).number(min(places))
            yield ExposedSecret(line, f"the value of the declared secret {name}{source.packed}")


def _secrets_in_text(source: Text) -> Iterator[ExposedSecret]:
    text, path, packed = source
    lines, lower = _Lines(text), text.lower()
    starts, ends = list[int](), list[int]()  # of the findings, ascending; they do not overlap
    for rule in (*_OWN, *_library_rules()):
        if not any(needle in lower for needle in rule.needles):
            continue
        taken = list[tuple[int, int]]()
        for match in rule.pattern.finditer(text):
            after = bisect_left(ends, match.start() + 1)
            overlaps = after < len(starts) and starts[after] < match.end()
            if not overlaps and (not rule.filtered or _is_password(match[match.lastindex or 0].decode("latin-1"))):
                taken.append(match.span())
                yield ExposedSecret(lines.number(match.start()), rule.what + packed)
        if taken:
            starts, ends = (
                sorted([*starts, *(start for start, _ in taken)]),
                sorted([*ends, *(end for _, end in taken)]),
            )
    known = {lines.number(start) for start in starts}
    for found, what in (*_password_lines(text, path), *_script_lines(text, lower, path)):
        if (line := lines.number(found)) not in known:
            known.add(line)
            yield ExposedSecret(line, what + packed)


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


def _password_lines(text: bytes, path: str) -> Iterator[tuple[int, str]]:
    """Yield the places where a name such as `db_password` is given a value that looks like a password."""
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
        values = [secret.secret_value or "" for secret in found]
        values += [next(filter(None, groups)) for groups in _GIVEN.findall(snippet)]
        if any(map(_is_password, values)):
            yield match.start(), "a password"


def _script_lines(text: bytes, lower: bytes, path: str) -> Iterator[tuple[int, str]]:
    """Yield the places where a shell script or a Dockerfile sets a variable with the name of a secret to a value."""
    if not (_SCRIPT_PATH.search(path) or _SCRIPT_START.match(text)) or not any(word in lower for word in _SCRIPT_WORDS):
        return
    for match in (*_SHELL_VALUE.finditer(text), *_DOCKER_VALUE.finditer(text)):
        name, value = match[1].decode(), match[2].decode("latin-1")
        expanded = not value.startswith("'") and re.search("[$`]", value)
        if names_secret(name) and not expanded and _is_script_secret(value.strip("\"'")):
            yield match.start(), f"a secret in {name}"


def _is_script_secret(value: str) -> bool:
    path = re.match(r"(?:[a-z]+:/)?[/~.]", value) is not None
    mixed = re.search(r"[A-Z]", value) is not None or "/" not in value
    random = _RANDOM.fullmatch(value) is not None and mixed and _EXAMPLE.search(value) is None
    return not path and (random or _HEX.fullmatch(value) is not None or _is_password(value))


def _is_password(value: str) -> bool:
    """Return whether a value looks like a password or a key, and not like a name, a template or an example."""
    from detect_secrets.filters.heuristic import is_sequential_string, is_templated_secret

    chosen = _PASSWORD.fullmatch(value) and not _MARKED.search(value)
    generated = _GENERATED.fullmatch(value) and not _EXPRESSION.search(value)
    plausible = bool(chosen or generated) and _EXAMPLE.search(value) is None
    return plausible and not is_sequential_string(value) and not is_templated_secret(value)
