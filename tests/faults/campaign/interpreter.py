"""An interpreter that interferes with the processes of a submission: system calls by strace, and the clock.

It is an environment folder as `python -m venv` makes it, whose `bin/python` is a script. Processes of the submission
start their children with it, because it is their `sys.executable`. The script chooses by the role of a process.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path

from tests.conftest import Console
from tests.faults.campaign.jobs import JOBS, inputs
from tests.faults.campaign.scene import ROLES, Scene

CALLS = ("fsync", "rename", "unlink", "mkdir")
LINE = re.compile(rf"^(\d+ +)?({'|'.join(CALLS)})\(")
DELAY = 50_000  # microseconds of each call on a slow disk
DAY = 24 * 3600
CLOCK = """
import os, time
real = time.time
time.time = lambda: real() + float(open({path!r}).read())
"""
SCRIPT = """#!/bin/bash
start='exec -a {folder}/bin/python {base} "$@"'
if [ ! -e {folder}/over ]; then
  case "$1 $2 $3" in
{cases}
  esac
fi
eval "$start"
"""
SPACE = r"\ "


def make_interpreter(folder: Path, traced: dict[str, str], *, once: bool = False, hook: str = "") -> str:
    """Make the environment folder and return its interpreter.

    Args:
        folder: gets `bin/python` and the files of strace, one for each traced process.
        traced: roles of processes that strace traces, with its options.
        once: trace only the first process.
        hook: source that every interpreter with `site` runs at its start.
    """
    packages = folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    packages.mkdir(parents=True)
    (packages / "real.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    (packages / "sitecustomize.py").write_text(hook)
    shutil.copy(Path(sys.prefix, "pyvenv.cfg"), folder)
    (folder / "bin").mkdir()
    base, condition = os.path.realpath(sys.executable), f"mkdir {folder}/taken 2>/dev/null" if once else "true"
    cases = []
    for pattern, role in ROLES.items():
        traces = f"{condition} && exec strace -DDD {traced.get(role)} -o {folder}/{role}.$$.calls"
        command = f'{traces} bash -c "$start" - "$@"' if role in traced else ""
        cases.append(f"  {pattern.replace(' ', SPACE)}) {command};;")
    script = folder / "bin" / "python"
    script.write_text(SCRIPT.format(folder=folder, cases="\n".join(cases), base=base))
    script.chmod(0o755)
    return str(script)


@contextmanager
def _interpreter(scene: Scene, traced: dict[str, str], *, once: bool = False, hook: str = "") -> Iterator[Path]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        usual = scene.console.program
        scene.console.program = (make_interpreter(Path(folder) / "env", traced, once=once, hook=hook),)
        yield Path(folder) / "env"
        scene.console.program = usual


@cache
def calls(kind: str, role: str) -> list[tuple[str, str]]:
    """Return the system calls of a role in an undisturbed job, each with its number in its thread.

    One role at a time: strace cannot trace a process that the strace of its parent follows.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = Path(folder) / "env"
        program = make_interpreter(environment, {role: f"{_threads(role)}-e trace={','.join(CALLS)}"})
        done = Console(Path(folder, "home"), inputs(kind), program=(program,))(*JOBS[kind].words)
        assert done.code == 0, done.err
        found = []
        for path in sorted(environment.glob("*.calls")):
            numbers: dict[tuple[str, str], int] = {}
            for line in path.read_text(errors="replace").splitlines():
                if match := LINE.match(line):
                    number = numbers[match[1], match[2]] = numbers.get((match[1], match[2]), 0) + 1
                    found.append((match[2], str(number)))
        assert found, f"a {role} of {kind} makes none of these calls"
        return found


def _threads(role: str) -> str:
    """Return the option by which strace follows threads; children of other roles are separate."""
    return "-f " if role in ("rank", "worker") else ""


def kill_at_call(role: str) -> Callable[[Scene], AbstractContextManager[None]]:
    """Return surroundings in which a process of a role is killed as it enters its n-th call of a kind."""

    @contextmanager
    def around(scene: Scene) -> Iterator[None]:
        if scene.detail:  # the calls are traced again in each process, and not always the same ones
            call, number = scene.detail.split()[:2]
        else:
            possible = calls(scene.kind, role)
            call, number = possible[int(scene.moment * len(possible))]
        options = f"{_threads(role)}-e trace={call} -e inject={call}:signal=KILL:when={number}"
        with _interpreter(scene, {role: options}, once=True) as folder:
            scene.detail = f"{call} {number} of a {role}"
            scene.traces = folder
            yield

    return around


def was_killed(scene: Scene) -> bool:
    """Return whether strace killed a process; trace no later one."""
    assert scene.traces is not None
    (scene.traces / "over").touch()
    return any("killed by SIGKILL" in path.read_text(errors="replace") for path in scene.traces.glob("*.calls"))


@contextmanager
def slow_disk(scene: Scene) -> Iterator[None]:
    """Delay each call that waits for a disk, in every process."""
    options = f"-e trace={','.join(CALLS)} -e inject={','.join(CALLS)}:delay_enter={DELAY}"
    with _interpreter(scene, dict.fromkeys(ROLES.values(), options)):
        yield


@contextmanager
def adjustable_clock(scene: Scene) -> Iterator[None]:
    """Give all processes a clock that `jump` sets; libfaketime changes the time since the boot too."""
    with tempfile.NamedTemporaryFile("w") as clock:
        Path(clock.name).write_text("0")
        scene.clock = Path(clock.name)
        with _interpreter(scene, {}, hook=CLOCK.format(path=clock.name)):
            yield


def jump(scene: Scene) -> bool:
    """Set the clock two hours back, or 400 days forward."""
    assert scene.clock is not None
    offset = scene.draw.choice([-2 * 3600, 400 * DAY])
    scene.detail = f"by {offset} s"
    fresh = scene.clock.with_suffix(".new")  # renamed: a reader must never see an empty file
    fresh.write_text(str(offset))
    fresh.replace(scene.clock)
    return True
