"""The user's own code: read, hashed, and refused as a whole if any file should not leave the machine.

Secret files are recognised by their names, secrets in other files by their content. No finding contains the
secret.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from orchestrator.snapshot.git import repository_of
from orchestrator.snapshot.secret_scan import secrets_in
from orchestrator.snapshot.walk import (
    AML_IGNORE,
    GIT_IGNORE,
    LeftOut,
    Obstacle,
    ShippedFile,
    SnapshotFile,
    Walk,
    printable,
)
from orchestrator.specs.job import CodeSpec
from orchestrator.support.errors import ConflictError, SpecError
from train_jobs.config.errors import did_you_mean

MB = 1e6
LARGEST_NAMED = 5
MAX_IN_FIX = 20  # paths; a longer command is not pasted
SECRET_NAMES = (
    *(".env", ".env.*", "*.env", ".envrc", "secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.ppk", "*.jks", "*.keystore", "*.kdbx"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    *(".netrc", "_netrc", ".pgpass", ".pypirc", ".git-credentials", ".htpasswd", ".dockercfg"),
    *("credentials*.json", "client_secret*.json", "service-account*.json", "service_account*.json"),
    *("kubeconfig", "kubeconfig.*", "*.kubeconfig", "accesstokens.json", "msal_token_cache*"),
    *(".boto", "kaggle.json", "application_default_credentials.json", ".vault-token", ".s3cfg"),
    *(".aws/credentials", ".azure/*", ".docker/config.json", ".kube/config", ".ssh/*"),
)
# Names that match a pattern above and hold no secrets: templates that projects commit, and public keys.
HARMLESS_NAMES = ("*.example", "*.sample", "*.template", "*.dist", "*.pub", "example.env", "sample.env", "template.env")


def secret_name(path: str) -> str | None:
    """Return the pattern of names of secret files that a posix path matches, None if it matches none."""
    folder, _, name = path.lower().rpartition("/")
    if any(fnmatchcase(name, pattern) for pattern in HARMLESS_NAMES):
        return None
    # patterns with a slash name a file in a folder, wherever that folder is
    nearest = f"{folder.rpartition('/')[2]}/{name}"
    return next((p for p in SECRET_NAMES if fnmatchcase(nearest if "/" in p else name, p)), None)


class UserCode(NamedTuple):
    """Files of the user's folder that are shipped, and entries that are not."""

    files: tuple[SnapshotFile, ...]
    """Their paths are relative to the folder."""
    left_out: tuple[LeftOut, ...]
    """Entries that are not shipped."""
    ignore_files: tuple[str, ...]
    """Names of the ignore files that were read, the outermost first."""


def read_code(
    code: CodeSpec,
    folder: Path,
    excluded: Mapping[Path, str],
    *,
    reserved: frozenset[str],
    declared: Mapping[str, tuple[bytes, ...]] | None = None,
) -> UserCode:
    """Read the user's folder.

    Args:
        code: the limits, and the files whose apparent secrets may be shipped.
        folder: the folder, absolute and without symlinks.
        excluded: absolute path -> kind of things that are not code, whatever the ignore files contain.
        reserved: names that are not available at the top of the snapshot.
        declared: name of a secret of the run -> forms of its value; see `secret_sources.distinctive_forms`.

    Raises:
        SpecError: symlinks that leave the folder, files over a limit, apparent secrets: all of them together.
        ConflictError: a file disappeared meanwhile.
    """
    try:
        walk = Walk(folder, repository=repository_of(folder), excluded=excluded, reserved=reserved)
        files, obstacles = _read(folder, walk.found, code, declared or {})
    except FileNotFoundError as problem:
        raise ConflictError(
            f"cannot read {problem.filename}: it disappeared", fix="run the same command again"
        ) from None
    obstacles += walk.obstacles
    paths = [file.path for file in walk.found]
    # an error, not ignored: with a typo, the intended file would be refused, and the reason hard to see
    missing = [path for path in code.allow_secrets if path not in paths]
    unknown = [f"code.allow_secrets: no such file is shipped: {path}{did_you_mean(path, paths)}" for path in missing]
    if obstacles or unknown:
        # all problems together: each round costs the user a read of the whole folder
        ordered = sorted(obstacles, key=lambda obstacle: (obstacle.path, obstacle.line or 0))
        raise SpecError(
            f"cannot ship the code in {folder}",
            problems=[
                *(f"{printable(path)}{f':{line}' if line else ''}: {what}" for path, what, _, line in ordered),
                *unknown,
            ],
            facts=_alternatives(obstacles, walk.found, code),
            fix=_fix(folder, obstacles),
        )
    if not files:
        raise SpecError(
            f"cannot find code in {folder}", facts={"where": "code.folder"}, fix="--code DIR with code in it"
        )
    return UserCode(tuple(files), tuple(walk.left_out), tuple(walk.ignore_files))


def _read(
    folder: Path, found: list[ShippedFile], code: CodeSpec, declared: Mapping[str, tuple[bytes, ...]]
) -> tuple[list[SnapshotFile], list[Obstacle]]:
    files: list[SnapshotFile] = []
    obstacles: list[Obstacle] = []
    total = 0
    for file in found:
        trusted = file.path in code.allow_secrets
        # the target too: a symlink `settings` to `.env` would ship the secrets under a harmless name
        if not trusted and (pattern := secret_name(file.path) or secret_name(file.target)):
            obstacles.append(Obstacle(file.path, f"has the name of a file of secrets ({pattern})", "secret"))
        if file.size > code.largest_file_mb * MB:
            what = f"{_mb(file.size)}, over code.largest_file_mb ({code.largest_file_mb:g})"
            obstacles.append(Obstacle(file.path, what, "size"))
            continue
        total += file.size
        if total > code.largest_total_mb * MB:
            continue  # already refused for its size: reading the remaining files could take hours
        try:
            content = (folder / file.path).read_bytes()
        except PermissionError:
            obstacles.append(Obstacle(file.path, "a file that cannot be read"))
            continue
        files.append(SnapshotFile.from_content(file.path, content))
        if not trusted:
            obstacles += (
                Obstacle(file.path, f"holds {what}", "text", line)
                for line, what in secrets_in(content, file.path, declared)
            )
    if total > code.largest_total_mb * MB:
        largest = sorted(found, key=lambda file: -file.size)[:LARGEST_NAMED]
        named = ", ".join(f"{printable(file.path)} {_mb(file.size)}" for file in largest)
        what = f"{_mb(total)} together, over code.largest_total_mb ({code.largest_total_mb:g}); the largest: {named}"
        obstacles.append(Obstacle(f"{len(found):,} files", what, "total"))
    return files, obstacles


def _alternatives(obstacles: list[Obstacle], found: list[ShippedFile], code: CodeSpec) -> dict[str, str]:
    """Return facts that help where leaving a file out does not."""
    kinds = {obstacle.kind for obstacle in obstacles}
    ways = {}
    if kinds & {"secret", "text"}:
        named = dict.fromkeys(obstacle.path for obstacle in obstacles if obstacle.kind in {"secret", "text"})
        allowed = shlex.quote(f"code.allow_secrets={json.dumps([*code.allow_secrets, *named])}")
        ways["secrets"] = f"pass them to the job by --env NAME; if they are not secret: --set {allowed}"
    if kinds & {"size", "total"}:
        needed = {
            "code.largest_file_mb": (max(file.size for file in found), code.largest_file_mb),
            "code.largest_total_mb": (sum(file.size for file in found), code.largest_total_mb),
        }
        sets = [f"--set {key}={math.ceil(size / MB)}" for key, (size, limit) in needed.items() if size > limit * MB]
        ways["limits"] = f"{' '.join(sets)} ships them all"
    return ways


def _fix(folder: Path, obstacles: list[Obstacle]) -> str:
    """Return a command that ignores the files that may be left out; a sentence if that is no file, or too many."""
    ignore_file = folder / (AML_IGNORE if (folder / AML_IGNORE).is_file() else GIT_IGNORE)
    paths = dict.fromkeys(obstacle.path for obstacle in obstacles if obstacle.kind in {"entry", "secret", "size"})
    if not 0 < len(paths) <= MAX_IN_FIX:
        return f"fix the files named, or leave them out with one line each in {ignore_file}"
    # escape what an ignore file would take for a pattern: each line names one entry and no other
    lines = " ".join(shlex.quote("/" + re.sub(r"[\\*?\[]| $", r"\\\g<0>", path)) for path in paths)
    return f"printf '\\n%s' {lines} >> {shlex.quote(str(ignore_file))}"


def _mb(size: int) -> str:
    return f"{size / MB:.3g} MB"
