"""What the machine has, and lets a process have."""

from __future__ import annotations

import resource
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from orchestrator.specs.local_machine import SMI_QUERY, SMI_SECONDS, listed_gpus, usable_cores
from orchestrator.support.finding import Finding, fail, ok, warn
from orchestrator.support.formatting import bytes_text
from train_jobs.artifacts.host import host_memory

LOOPBACK = "127.0.0.1"
LEAST_MEMORY = 2e9  # of which Python with torch and MLflow take 0.4
LEAST_SHARED = 64 * 1024 * 1024  # what a container gets unless it is given more; NCCL wants more on several GPUs
LEAST_FILES = 1024
SKEW_SECONDS = 5.0
CONNECT_SECONDS = 5.0


def gpus(environ: Mapping[str, str]) -> Finding:
    """GPUs that a job would see, and what the driver says of them."""
    listed = listed_gpus(environ)
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return ok("gpus", f"{len(listed)} by CUDA_VISIBLE_DEVICES" if listed else "none")
    try:
        answer = subprocess.run([program, *SMI_QUERY], capture_output=True, text=True, timeout=SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return fail("gpus", f"nvidia-smi does not answer: {type(problem).__name__}", "restart the machine")
    if answer.returncode != 0:
        words = (answer.stdout + answer.stderr).strip().splitlines() or ["no message"]
        return fail("gpus", f"nvidia-smi: {words[0]}", "reload or install the NVIDIA driver")
    kinds = answer.stdout.strip().splitlines()
    shown = "; ".join(sorted(set(kinds)))
    if listed is not None and len(listed) < len(kinds):
        fix = "unset CUDA_VISIBLE_DEVICES to use all of them"
        return warn("gpus", f"{len(listed)} visible of {len(kinds)}: {shown}", fix)
    return ok("gpus", f"{len(kinds)}: {shown}")


def cores() -> Finding:
    """CPU cores that this process may use."""
    return ok("cores", f"{usable_cores()} usable")


def memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> Finding:
    """Memory that is free, or left in the container."""
    available, limit, _ = host_memory(meminfo, cgroup)
    text = f"{bytes_text(available)} available" + ("" if limit is None else f", limit {bytes_text(limit)}")
    if available < LEAST_MEMORY:
        return warn("memory", text, "end other programs, or --set train.micro_batch_size=8")
    return ok("memory", text)


def shared_memory(folder: Path) -> Finding:
    """What processes of a machine share for their messages."""
    if not folder.is_dir():
        return warn("shared memory", f"there is no {folder}", "mount a tmpfs there: several GPUs need it")
    size = shutil.disk_usage(folder).total
    if size <= LEAST_SHARED:
        return warn("shared memory", f"{bytes_text(size)} at {folder}", "docker run --shm-size=8g, for several GPUs")
    return ok("shared memory", f"{bytes_text(size)} at {folder}")


def open_files() -> Finding:
    """How many files a process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < LEAST_FILES:
        return warn("open files", f"at most {soft}", f"ulimit -n {LEAST_FILES * 4}")
    return ok("open files", f"at most {soft}")


def loopback() -> Finding:
    """Whether processes of this machine can meet: torchrun's rendezvous needs a port on the loopback interface."""
    try:
        with closing(socket.create_server((LOOPBACK, 0))) as server, closing(socket.socket()) as client:
            client.settimeout(CONNECT_SECONDS)
            client.connect(server.getsockname())
    except OSError as problem:
        why = f"cannot listen and connect on {LOOPBACK}: {problem.strerror or problem}"
        return fail("rendezvous", why, "ip link set lo up; no firewall on the loopback interface")
    return ok("rendezvous", f"ports on {LOOPBACK} work")


def clock(home: Path) -> Finding:
    """A clock that is behind its own programs, or not the one of the home folder's server, makes times into lies."""
    installed = (Path(__file__).parents[1] / "__init__.py").stat().st_mtime
    fix = "set the clock: timedatectl set-ntp true"
    if time.time() < installed - SKEW_SECONDS:
        return fail("clock", "it is before this program was installed", fix)
    place = next((folder for folder in (home, *home.parents) if folder.is_dir()), home)
    try:
        with tempfile.NamedTemporaryFile(dir=place) as probe:
            skew = Path(probe.name).stat().st_mtime - time.time()
    except OSError:
        return ok("clock", time.strftime("%Y-%m-%d %H:%M:%S %Z"))  # that nothing can be written is said elsewhere
    if abs(skew) > SKEW_SECONDS:
        return warn("clock", f"files in {place} are dated {skew:+.0f} s off this machine's clock", fix)
    return ok("clock", time.strftime("%Y-%m-%d %H:%M:%S %Z"))
