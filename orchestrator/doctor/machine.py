"""Checks of the machine: GPUs, memory, limits, clock, disks and locks."""

from __future__ import annotations

import resource
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from orchestrator.specs.compute import SMI_QUERY, SMI_SECONDS, listed_gpus, usable_cores
from orchestrator.support.access import open_entries, open_home, shared_group
from orchestrator.support.errors import StorageError
from orchestrator.support.finding import Finding, fail, ok, warn
from orchestrator.support.formatting import bytes_text, counted
from train_jobs.artifacts.drafts import scratch_folder
from train_jobs.artifacts.files import try_lock
from train_jobs.artifacts.host import host_memory
from train_jobs.artifacts.mounts import mount_of, write_error
from train_jobs.config.errors import in_shell

LOOPBACK = "127.0.0.1"
MIN_MEMORY = 2e9  # Python with torch and MLflow takes 0.4 of these
MIN_SHARED = 64 * 1024 * 1024  # default of a container; NCCL needs more on several GPUs
MIN_FILES = 1024
SKEW_SECONDS = 5.0  # far more than NTP leaves, and enough to disturb `logs --since`
CONNECT_SECONDS = 5.0
MIN_FREE = 100e6  # less than one small checkpoint
LOW_FREE = 5e9  # a few checkpoints of BERT-base
REMOTE = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "lustre")  # prefixes of the types
PROBE_BYTES = 64 * 1024
MOVE_HOME = "set ORCHESTRATOR_HOME to a folder on a local disk"


def gpus(environ: Mapping[str, str]) -> Finding:
    """Check the GPUs that a job would see, and their driver."""
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
    """Report the CPU cores that this process may use."""
    return ok("cores", f"{usable_cores()} usable")


def memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> Finding:
    """Check the free memory of the machine or its container."""
    available, limit, _ = host_memory(meminfo, cgroup)
    text = f"{bytes_text(available)} available" + ("" if limit is None else f", limit {bytes_text(limit)}")
    fix = "stop other programs, or --set train.micro_batch_size=8"
    return warn("memory", text, fix) if available < MIN_MEMORY else ok("memory", text)


def shared_memory(folder: Path) -> Finding:
    """Check the shared memory through which processes exchange data.

    Containers get 64 MB by default, and NCCL or a data loader with workers then dies with a bus error.
    """
    if not folder.is_dir():
        return warn("shared memory", f"{folder} does not exist", "mount a tmpfs there: several GPUs need it")
    size = shutil.disk_usage(folder).total
    text, fix = f"{bytes_text(size)} at {folder}", "docker run --shm-size=8g, for several GPUs"
    return warn("shared memory", text, fix) if size <= MIN_SHARED else ok("shared memory", text)


def open_files() -> Finding:
    """Check the limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    text, fix = f"at most {soft}", f"ulimit -n {MIN_FILES * 4}"
    return warn("open files", text, fix) if soft < MIN_FILES else ok("open files", text)


def loopback() -> Finding:
    """Check the loopback interface: torchrun's rendezvous needs a port on it."""
    try:
        with closing(socket.create_server((LOOPBACK, 0))) as server, closing(socket.socket()) as client:
            client.settimeout(CONNECT_SECONDS)
            client.connect(server.getsockname())
    except OSError as problem:
        why = f"cannot listen and connect on {LOOPBACK}: {problem.strerror or problem}"
        return fail("rendezvous", why, "ip link set lo up, and allow the loopback interface in the firewall")
    return ok("rendezvous", f"ports on {LOOPBACK} work")


def clock(home: Path) -> Finding:
    """Check the clock against the time of installation, and against the clock of the home folder's server."""
    # A clock far in the past makes every TLS certificate invalid. File times of a network disk come from its server: a
    # skew shifts `logs --since` and the order of runs.
    installed = (Path(__file__).parents[1] / "__init__.py").stat().st_mtime
    fix = "set the clock: timedatectl set-ntp true"
    if time.time() < installed - SKEW_SECONDS:
        return fail("clock", "earlier than the installation of this program", fix)
    place = nearest_existing(home)
    try:
        with tempfile.NamedTemporaryFile(dir=place) as probe:
            skew = Path(probe.name).stat().st_mtime - time.time()
    except OSError:  # `home_folder` reports it
        skew = 0.0
    if abs(skew) > SKEW_SECONDS:
        return warn("clock", f"times of files in {place} are {skew:+.0f} s off this machine's clock", fix)
    return ok("clock", time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def home_folder(home: Path) -> Iterator[Finding]:
    """Check that the home folder is writable, and that locks work on its file system."""
    place = nearest_existing(home)
    kind = mount_of(place).kind
    where = f"{home} ({kind})"
    try:
        with scratch_folder("doctor", place) as probe:
            (probe / "bytes").write_bytes(bytes(PROBE_BYTES))
            # two descriptors, because a lock of flock belongs to the open file: some network file systems grant both
            lock = probe / "lock"
            with lock.open("w", encoding="utf-8") as first, lock.open("w", encoding="utf-8") as second:
                held = try_lock(first) and not try_lock(second)
    except OSError as problem:
        error = write_error(f"cannot write to {where}", problem, place, fix="free some space", then=f", or {MOVE_HOME}")
        yield fail("home", error.message, str(error.fix))
        return
    if kind == "overlay":
        yield warn(
            "home",
            f"{where} is deleted with its container",
            "mount a volume, and set ORCHESTRATOR_HOME to a folder on it",
        )
    else:
        yield ok("home", where if home.is_dir() else f"{where}, created by the first run")
    if not held:
        text = f"two processes get the same lock on {kind}: lost runs would go unnoticed"
        yield fail("locks", text, MOVE_HOME)
    elif kind.startswith(REMOTE):
        yield warn("locks", f"they work, but {kind} may lose them when its server is unreachable", MOVE_HOME)
    else:
        yield ok("locks", f"they work on {kind}")


def access(home: Path) -> Finding:
    """Check who has access to the home folder, and the modes of everything in it."""
    try:
        open_home(home, create=False)
    except StorageError as problem:
        facts = "".join(f"; {label}: {value}" for label, value in problem.facts.items())
        return fail("access", f"{problem.message}{facts}", str(problem.fix))
    group = shared_group(home)
    text = (
        f"only you can enter {home}"
        if group is None
        else f"{home} is shared with group {group}: its members can change everything"
    )
    if count := open_entries(home):
        fix = f"chmod -R {'go' if group is None else 'o'}-rwx {in_shell(home)}"
        return warn("access", f"{text}, but {counted(count, 'file')} in it allow more", fix)
    return ok("access", text)


def disks(home: Path) -> Iterator[Finding]:
    """Check the space for runs and for temporary files."""
    try:
        temporary = Path(tempfile.gettempdir())
    except FileNotFoundError:
        yield fail("temporary files", "no writable folder for them", "free some space in /tmp, or set TMPDIR")
    else:
        yield _free_space("temporary files", temporary, "free some space, or set TMPDIR", warn_below=MIN_FREE)
    yield _free_space("disk", nearest_existing(home), "orchestrator prune --keep-last 3 --dry-run", warn_below=LOW_FREE)


def _free_space(name: str, place: Path, fix: str, *, warn_below: float) -> Finding:
    free = shutil.disk_usage(place).free
    text = f"{bytes_text(free)} free at {place}"
    if free < MIN_FREE:
        return fail(name, text, fix)
    return warn(name, text, fix) if free < warn_below else ok(name, text)


def nearest_existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(place for place in (folder, *folder.parents) if place.is_dir())
