"""What looks like a secret: files by their names, texts by what they hold.

    secret_name("conf/.env.prod")                 # ".env.*", the pattern that it fits
    list(secrets_in(path.read_bytes()))           # [ExposedSecret(line=3, what="an AWS access key")]

What is looked for in a text was made by its issuer to be found: a fixed beginning, a known length. A password that has
no shape is not found. No finding carries the secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

SECRET_NAMES = (
    *(".env", ".env.*", "*.env", ".envrc", "secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.ppk", "*.jks", "*.keystore", "*.kdbx"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    *(".netrc", "_netrc", ".pgpass", ".pypirc", ".git-credentials", ".htpasswd", ".dockercfg"),
    *("credentials*.json", "client_secret*.json", "service-account*.json", "service_account*.json"),
    *("kubeconfig", "kubeconfig.*", "*.kubeconfig", "accesstokens.json", "msal_token_cache*"),
    *(".aws/credentials", ".azure/*", ".docker/config.json", ".kube/config", ".ssh/*"),
)
HARMLESS_NAMES = ("*.example", "*.sample", "*.template", "*.dist", "*.pub", "example.env", "sample.env", "template.env")


class ExposedSecret(NamedTuple):
    """Something in a text that looks like a secret."""

    line: int
    """From 1."""
    what: str
    """What it looks like, never what it is."""


class _Shape(NamedTuple):
    what: str
    needle: bytes  # part of every match: a plain search for it is a hundred times as fast as the pattern
    pattern: re.Pattern[bytes]


_SHAPES = tuple(
    _Shape(what, needle.encode(), re.compile(pattern.encode()))
    for what, needle, pattern in (
        # with some body: programs that read keys have the first line alone
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
        ("a Hugging Face token", "hf_", r"\bhf_[A-Za-z0-9]{34,}\b"),
        ("an OpenAI key", "sk-", r"(?<![\w-])sk-[A-Za-z0-9]{40,}\b"),
        ("an API key", "sk-", r"(?<![\w-])sk-(?:admin|ant|proj|svcacct)-[\w-]{40,}"),
        ("a PyPI token", "pypi-", r"\bpypi-AgE[\w-]{50,}"),
        ("a Slack token", "xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{20,}"),
        ("a Slack webhook", "hooks.slack.com/", r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9+/]{40,}"),
        ("a bearer token", "eyJ", r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{20,}"),
    )
)


def secret_name(path: str) -> str | None:
    """The pattern that a path (posix, relative) fits which files of secrets have; None: it fits none."""
    folder, _, name = path.lower().rpartition("/")
    if any(fnmatchcase(name, pattern) for pattern in HARMLESS_NAMES):
        return None
    nearest = f"{folder.rpartition('/')[2]}/{name}"
    return next((p for p in SECRET_NAMES if fnmatchcase(nearest if "/" in p else name, p)), None)


def secrets_in(content: bytes) -> Iterator[ExposedSecret]:
    """Everything in a file's bytes that looks like a secret, kind by kind."""
    for shape in _SHAPES:
        if shape.needle in content:
            for match in shape.pattern.finditer(content):
                yield ExposedSecret(content.count(b"\n", 0, match.start()) + 1, shape.what)
