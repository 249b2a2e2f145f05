"""Secrets of a run: references to where they are kept, looked up at each start, never stored.

    env:NAME                  variable of the environment of the command that starts the run
    file:/PATH                line NAME=VALUE of a file that only its owner can read
    keyring:SERVICE/USER      entry of the user's keyring (extra `keyring`)
    keyvault:VAULT/SECRET     secret of an Azure Key Vault

A spec, a plan and a request hold references alone. The values reach the processes of a run through their environment.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

from orchestrator.support.errors import NotFoundError, UsageError, UserError
from orchestrator.support.redact import is_distinctive
from train_jobs.artifacts.redaction import KEY_MATERIAL, protect, value_forms
from train_jobs.artifacts.regular_files import open_regular
from train_jobs.config.errors import in_shell

ENVIRONMENT, FILE, KEYRING, KEY_VAULT = "env", "file", "keyring", "keyvault"
FORMS = f"{ENVIRONMENT}:NAME, {FILE}:/PATH, {KEYRING}:SERVICE/USER or {KEY_VAULT}:VAULT/SECRET"
# by name: only the room of Azure imports Azure's packages
_KEY_VAULT_READER = "orchestrator.backends.azure.wire.key_vault:read_secret"
ENV_FILE = "--env-file FILE with lines NAME=VALUE"
MOST_CHARACTERS = 1 << 20  # of a file of variables; Linux passes no more than 2 MiB to a process
PRIVATE = 0o077  # permission bits that a file of secrets must not have
# The address of a server needs no user and no query. That of a database may have both, without a password: SQLAlchemy
# takes everything up to the last @ for one, and `odbc_connect` contains an encoded list of parameters.
_CREDENTIALS = re.compile(
    r"^https?://.*[@?#]|^[^:/]+:(?!/)[^@]*@|://[^:/]*:[^@]*@"
    r"|[?].*(?:passw(?:or)?d|pwd|token|secret|credential|signature)\w*(?:=|%3D)",
    re.IGNORECASE | re.DOTALL,
)


class SecretReference(NamedTuple):
    """The place of a secret."""

    source: str
    """One of env, file, keyring, keyvault."""
    place: str
    """Name of the variable, path of the file, SERVICE/USER, or VAULT/SECRET."""

    @classmethod
    def parse(cls, text: str) -> SecretReference:
        """Read `SOURCE:PLACE`.

        Raises:
            ValueError: it has another form; the message does not contain the text, which may be the secret itself.
        """
        source, _, place = text.partition(":")
        found = cls(source, place)
        pair = all(place.partition("/"))
        valid = {
            ENVIRONMENT: place.isidentifier(),
            FILE: Path(place).is_absolute(),
            KEYRING: pair,
            KEY_VAULT: pair and all(part.replace("-", "").isalnum() for part in place.split("/", 1)),
        }
        if not valid.get(source):
            raise ValueError(f"must name the place of the secret: {FORMS}")
        return found

    @property
    def text(self) -> str:
        """The place for people, such as `your environment`."""
        kept = {ENVIRONMENT: "your environment", KEYRING: f"your keyring ({self.place})"}
        return kept.get(self.source) or {FILE: self.place, KEY_VAULT: f"Key Vault {self.place}"}[self.source]


def look_up(references: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values of secrets: name -> value. From now on, `redact` removes them in this process.

    Args:
        references: name -> reference, as in `environment.secrets`.
        environ: environment variables.

    Raises:
        UsageError: a secret is not to be had; reports all of them, and what to type for the first.
    """
    found: dict[str, str] = {}
    missing: dict[str, UserError] = {}
    for name, text in references.items():
        reference = SecretReference.parse(text)
        try:
            found[name] = _read(name, reference, environ)
        except UserError as problem:
            missing[name] = problem
    protect(found.values())
    if missing:
        first = next(iter(missing.values()))
        facts = {name: problem.message for name, problem in missing.items()}
        raise UsageError(f"needs {', '.join(missing)}", facts=facts, fix=first.fix)
    return found


def protect_known(references: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    """Make `redact` remove the secrets of a run; return the names of those whose values are not known here.

    Args:
        references: name -> reference, as in `environment.secrets`.
        environ: environment variables.
    """
    known = _known_values(references, environ)
    for value in known.values():
        protect([value, *value.splitlines()])  # logs are read line by line, and keys have several lines
    return [name for name in references if name not in known]


def distinctive_forms(references: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, tuple[bytes, ...]]:
    """Return the bytes by which a text exposes a secret of the run: name -> forms of its value.

    Secrets whose values are not known here, and values that other texts contain by chance, are left out.

    Args:
        references: name -> reference, as in `environment.secrets`.
        environ: environment variables.
    """
    values = {name: value for name, value in _known_values(references, environ).items() if is_distinctive(name, value)}
    protect(values.values())  # an error about the place of a value may quote it
    found = {}
    for name, value in values.items():
        # a line of a longer secret exposes it only with key material, and not if it is `"type": "service_account",`
        texts = [value, *(line.strip() for line in value.splitlines() if KEY_MATERIAL.search(line))]
        found[name] = tuple({form for text in texts for form in value_forms(text)})
    return found


def _known_values(references: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values that are to be had here: name -> value.

    Secrets of a Key Vault are not looked up: a plan works offline, and showing a log must neither need nor use the
    permission to read them.
    """
    known = {}
    for name, text in references.items():
        reference = SecretReference.parse(text)
        if reference.source != KEY_VAULT:
            with suppress(UserError):
                known[name] = _read(name, reference, environ)
    return known


def _read(name: str, reference: SecretReference, environ: Mapping[str, str]) -> str:
    match reference.source:
        case "env":
            if not (value := environ.get(reference.place)):
                fix = f"export {reference.place}=..., then the same command again"
                raise NotFoundError(f"{reference.place} is not set in the environment", fix=fix)
            return value
        case "file":
            values = read_env_file(Path(reference.place))
            if name not in values:
                raise NotFoundError(f"{reference.place} has no line {name}=...", fix=f"add {name}=... to the file")
            return values[name]
        case "keyring":
            return _read_keyring(*reference.place.split("/", 1))
    reader: Callable[[str, str], str] = resolve_name(_KEY_VAULT_READER)
    return reader(*reference.place.split("/", 1))


def _read_keyring(service: str, user: str) -> str:
    try:
        import keyring
    except ModuleNotFoundError:
        fix = "pip install 'bert-orchestrator[keyring]'"
        raise NotFoundError("the keyring package is not installed", fix=fix) from None
    try:
        value = keyring.get_password(service, user)
    except keyring.errors.KeyringError as problem:
        reason = f"the keyring does not answer: {type(problem).__name__}"
        raise NotFoundError(reason, fix="unlock the keyring, or use --env-file FILE") from None
    if not value:
        fix = f"keyring set {in_shell(service)} {in_shell(user)}"
        raise NotFoundError(f"the keyring has no entry {service}/{user}", fix=fix)
    return value


def without_credentials(uri: str) -> str:
    """Return a tracking URI that has no credentials, which requests, plans and commands would show.

    Raises:
        ValueError: it has some; the message does not contain them.
    """
    if _CREDENTIALS.search(uri):
        raise ValueError(
            "must not contain credentials: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or"
            " MLFLOW_TRACKING_TOKEN, in the environment or in environment.secrets"
        )
    return uri


def read_env_file(path: Path) -> dict[str, str]:
    """Return the variables of a file with lines NAME=VALUE; blank lines and lines that begin with # are skipped.

    Raises:
        UsageError: it cannot be read, others than its owner can read it, or a line has another form. The message has
            the number of the line and nothing of its content.
    """
    try:
        with TextIOWrapper(open_regular(path), "utf-8-sig") as stream:
            status = os.fstat(stream.fileno())
            if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & PRIVATE:
                raise UsageError(
                    f"cannot use {path}: others can read it, or it is not yours", fix=f"chmod 600 {in_shell(path)}"
                )
            text = stream.read(MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "not UTF-8"
        raise UsageError(f"cannot read {path}: {reason}", fix=ENV_FILE) from None
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"cannot read {path}: more than {MOST_CHARACTERS:,} characters", fix=ENV_FILE)
    values = {}
    # not splitlines(): a value may contain other characters that Unicode counts as line ends
    for number, line in enumerate(text.split("\n"), start=1):
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals or not name.strip().isidentifier():
            raise UsageError(f"invalid line {number} of {path}: must be NAME=VALUE", fix=f"edit {in_shell(path)}")
        if "\0" in value:
            what = "a NUL character, which no variable can contain"
            raise UsageError(f"invalid line {number} of {path}: {what}", fix=f"edit {in_shell(path)}")
        value = value.strip()
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
        values[name.strip()] = value[1:-1] if quoted else value
    return values
