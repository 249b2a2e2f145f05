"""The user's own code: read, hashed, and refused as a whole if anything in it should not leave the machine."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from orchestrator.snapshot.entries import LeftOut, SnapshotFile
from orchestrator.snapshot.git import repository_of
from orchestrator.snapshot.ignore import AML_IGNORE, GIT_IGNORE
from orchestrator.snapshot.secrets import secret_name, secrets_in
from orchestrator.snapshot.walk import Found, Obstacle, Walk, shown
from orchestrator.specs.sections import CodeSpec
from orchestrator.support.errors import ConflictError, SpecError
from train_jobs.config.names import did_you_mean

MB = 1e6
LARGEST_NAMED = 5
MOST_IN_FIX = 20  # paths; nobody pastes more


class UserCode(NamedTuple):
    """What is shipped of the user's folder, and what is not."""

    files: tuple[SnapshotFile, ...]
    """Their paths are relative to the folder."""
    left_out: tuple[LeftOut, ...]
    """What is not shipped."""
    ignore_files: tuple[str, ...]
    """Names of those that were read, the outermost first."""


def read_code(code: CodeSpec, folder: Path, apart: Mapping[Path, str], *, taken: frozenset[str]) -> UserCode:
    """Reads the user's folder.

    Args:
        code: the limits, and the files in which what looks like a secret is none.
        folder: the folder, absolute and without symlinks.
        apart: absolute path -> kind of what is no code, whatever the ignore files say.
        taken: names that are not free at the top of the snapshot.

    Raises:
        SpecError: symlinks that leave the folder, files past a limit, what looks like a secret: all of them at once.
        ConflictError: a file went away meanwhile.
    """
    try:
        walk = Walk(folder, repository=repository_of(folder), apart=apart, taken=taken)
        files, obstacles = _read(folder, walk.found, code)
    except FileNotFoundError as problem:
        raise ConflictError(f"{problem.filename} went away while it was read", fix="the same command again") from None
    obstacles += walk.obstacles
    unknown = _unknown(code.allow_secrets, walk.found)
    if obstacles or unknown:
        raise SpecError(
            f"the code in {folder} cannot be shipped as it is",
            problems=[*map(_problem, sorted(obstacles, key=lambda found: (found.path, found.line or 0))), *unknown],
            facts=_ways_out(obstacles, walk.found, code),
            fix=_fix(folder, obstacles),
        )
    if not files:
        raise SpecError(
            f"there is no code in {folder}", facts={"where": "code.folder"}, fix="--code DIR with code in it"
        )
    return UserCode(tuple(files), tuple(walk.left_out), tuple(walk.ignore_files))


def _read(folder: Path, found: list[Found], code: CodeSpec) -> tuple[list[SnapshotFile], list[Obstacle]]:
    files: list[SnapshotFile] = []
    obstacles: list[Obstacle] = []
    total = 0
    for file in found:
        trusted = file.path in code.allow_secrets
        if not trusted and (pattern := secret_name(file.path) or secret_name(file.target)):
            obstacles.append(Obstacle(file.path, f"has the name of a file of secrets ({pattern})", "secret"))
        if file.size > code.largest_file_mb * MB:
            what = f"{_mb(file.size)}, over code.largest_file_mb ({code.largest_file_mb:g})"
            obstacles.append(Obstacle(file.path, what, "size"))
            continue
        total += file.size
        if total > code.largest_total_mb * MB:
            continue  # refused for that already, and the rest may be terabytes
        try:
            content = (folder / file.path).read_bytes()
        except PermissionError:
            obstacles.append(Obstacle(file.path, "a file that cannot be read"))
            continue
        files.append(SnapshotFile.of(file.path, content))
        if not trusted:
            obstacles += (Obstacle(file.path, f"holds {what}", "text", line) for line, what in secrets_in(content))
    if total > code.largest_total_mb * MB:
        obstacles.append(_too_much(found, total, code.largest_total_mb))
    return files, obstacles


def _too_much(found: list[Found], total: int, limit: float) -> Obstacle:
    largest = sorted(found, key=lambda file: -file.size)[:LARGEST_NAMED]
    named = ", ".join(f"{shown(file.path)} {_mb(file.size)}" for file in largest)
    what = f"{_mb(total)} together, over code.largest_total_mb ({limit:g}); the largest: {named}"
    return Obstacle(f"{len(found):,} files", what, "total")


def _unknown(allowed: list[str], found: list[Found]) -> list[str]:
    """An allowed file that is not shipped is a mistake: the one that was meant is not allowed."""
    paths = [file.path for file in found]
    missing = [path for path in allowed if path not in paths]
    return [f"code.allow_secrets: no such file is shipped: {path}{did_you_mean(path, paths)}" for path in missing]


def _problem(obstacle: Obstacle) -> str:
    where = shown(obstacle.path) + (f":{obstacle.line}" if obstacle.line else "")
    return f"{where}: {obstacle.what}"


def _ways_out(obstacles: list[Obstacle], found: list[Found], code: CodeSpec) -> dict[str, str]:
    """What helps where leaving a file out does not."""
    kinds = {obstacle.kind for obstacle in obstacles}
    ways = {}
    if kinds & {"secret", "text"}:
        named = dict.fromkeys(obstacle.path for obstacle in obstacles if obstacle.kind in {"secret", "text"})
        allowed = shlex.quote(f"code.allow_secrets={json.dumps([*code.allow_secrets, *named])}")
        ways["secrets"] = f"the job gets them by --env NAME; if they are none: --set {allowed}"
    if kinds & {"size", "total"}:
        needed = {
            "code.largest_file_mb": (max(file.size for file in found), code.largest_file_mb),
            "code.largest_total_mb": (sum(file.size for file in found), code.largest_total_mb),
        }
        sets = [f"--set {key}={math.ceil(size / MB)}" for key, (size, limit) in needed.items() if size > limit * MB]
        ways["limits"] = f"{' '.join(sets)} ships them all"
    return ways


def _fix(folder: Path, obstacles: list[Obstacle]) -> str:
    """A command that leaves out whatever is mended so, or words where there is no such thing, or too much of it."""
    ignore_file = folder / (AML_IGNORE if (folder / AML_IGNORE).is_file() else GIT_IGNORE)
    paths = dict.fromkeys(obstacle.path for obstacle in obstacles if obstacle.kind in {"entry", "secret", "size"})
    if not 0 < len(paths) <= MOST_IN_FIX:
        return f"mend what is named, or leave it out: a line each in {ignore_file}"
    lines = " ".join(shlex.quote(_ignore_line(path)) for path in paths)
    return f"printf '\\n%s' {lines} >> {shlex.quote(str(ignore_file))}"


def _ignore_line(path: str) -> str:
    """The line of an ignore file that names this entry and no other."""
    return "/" + re.sub(r"[\\*?\[]| $", r"\\\g<0>", path)


def _mb(size: int) -> str:
    return f"{size / MB:.3g} MB"
