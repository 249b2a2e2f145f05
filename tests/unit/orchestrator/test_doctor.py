"""Every check of the doctor, on a healthy machine and with a real defect."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from orchestrator.doctor import machine, packages, project
from orchestrator.support.finding import Finding
from tests.conftest import tmpfs
from train_jobs.artifacts.mounts import Mount, mount_of

REPOSITORY = Path(__file__).resolve().parents[3]


def program(folder: Path, name: str, script: str) -> dict[str, str]:
    """Write a program to a separate folder of the PATH."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"PATH": str(folder)}


@contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    with tmpfs(folder, "1m"):
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        yield folder


def finding_named(findings: Iterator[Finding], name: str) -> Finding:
    (found,) = (finding for finding in findings if finding.name == name)
    return found


# All checks


def test_healthy_machine_check_changes_and_imports_nothing(tmp_path: Path) -> None:
    check = (
        "import json, os, sys; from pathlib import Path; from orchestrator import doctor\n"
        "home = Path(sys.argv[1])\n"
        "found = doctor.examine(home=home / 'home', folder=home, environ=os.environ, backend_name='local')\n"
        "print(json.dumps([finding.model_dump() for finding in found]))\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", check, str(tmp_path)], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    document, modules = done.stdout.splitlines()
    assert not {"torch", "mlflow", "numpy", "azure"} & set(modules.split())
    findings = [Finding.model_validate(finding) for finding in json.loads(document)]
    assert [finding for finding in findings if finding.level == "fail"] == []
    assert all(finding.fix for finding in findings if finding.level == "warn")
    assert len({finding.name for finding in findings}) == len(findings) >= 18
    assert list(tmp_path.iterdir()) == []


# Packages


def install(folder: Path, name: str, version: str, *requires: str, python: str = ">=3.11") -> None:
    """Create the metadata of an installed distribution."""
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    lines = [f"Name: {name}", f"Version: {version}", f"Requires-Python: {python}"]
    metadata.write_text("\n".join(["Metadata-Version: 2.1", *lines, *(f"Requires-Dist: {need}" for need in requires)]))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that precedes all others on the path of installed packages."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def test_missing_or_wrong_package_named_with_its_user(installed: Path) -> None:
    install(installed, "bert-orchestrator", "0.1.0", "near>=2", "absent", "extra-only; extra == 'dev'")
    install(installed, "near", "1.5", "far[fast]<3", "other-system; sys_platform == 'plan9'")
    install(installed, "far", "3.1", "fast-part; extra == 'fast'")
    problems, seen = packages.unmet("bert-orchestrator")
    assert [tuple(problem) for problem in problems] == [
        ("absent", "bert-orchestrator", None),
        ("far<3", "near", "3.1"),
        ("fast-part", "far", None),
        ("near>=2", "bert-orchestrator", "1.5"),
    ]
    assert seen == 2
    (finding,) = packages.requirements()
    assert finding.level == "fail"
    assert "absent (for bert-orchestrator): not installed" in finding.text
    assert "near>=2 (for bert-orchestrator): 1.5" in finding.text
    assert str(finding.fix).endswith("-m pip install 'absent' 'far<3' 'fast-part' 'near>=2'")


def test_mutually_dependent_packages_are_checked_once(installed: Path) -> None:
    install(installed, "bert-orchestrator", "0.1.0", "one", "two")
    install(installed, "one", "1", "two")
    install(installed, "two", "1rc1", "one>=0")
    assert packages.unmet("bert-orchestrator") == ([], 2)
    (finding,) = packages.requirements()
    assert (finding.level, finding.text) == ("ok", "2 installed, in compatible versions")


def test_old_python_is_reported(installed: Path) -> None:
    install(installed, "bert-orchestrator", "0.1.0", python=">=3.99")
    finding = packages.python()
    assert finding.level == "fail"
    assert "needed >=3.99" in finding.text


def test_checkout_that_is_not_installed_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "DISTRIBUTION", "not-installed-anywhere")
    assert packages.python().level == "warn"
    assert list(packages.requirements()) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__version__ = '2.13.0+cu129'\ncuda: Optional[str] = '12.9'\n", "2.13.0+cu129, built for CUDA 12.9"),
        ('__version__ = "2.13.0+cpu"\ncuda: Optional[str] = None\n', "2.13.0+cpu, CPU build"),
    ],
)
def test_torch_build_is_read_from_its_files(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "torch" / "version.py").write_text(text)
    check = "from orchestrator.doctor.packages import torch_build; print(torch_build().text)"
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, env=environ, check=True)
    assert done.stdout.strip() == expected


def test_torch_that_fails_to_load_has_its_own_message(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.12: cannot open')\n")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    finding = packages.torch_devices(environ)
    assert finding.level == "fail"
    assert "libcudart.so.12: cannot open" in finding.text


def test_hanging_torch_fails_in_time(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time; time.sleep(600)\n")
    finding = packages.torch_devices({**os.environ, "PYTHONPATH": str(tmp_path)}, seconds=0.5)
    assert (finding.level, finding.text) == ("fail", "torch did not answer within 0.5 s")


def test_gpus_invisible_to_torch_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = packages.torch_devices({**os.environ, "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7,8"})
    assert finding.level == "fail"
    assert finding.text.startswith("9 GPUs are visible, torch finds ")


# The machine


def test_gpus_are_those_of_the_driver(tmp_path: Path) -> None:
    script = 'echo "A, 80 GB"; echo "A, 80 GB"'
    environ = program(tmp_path, "nvidia-smi", script)
    assert (machine.gpus(environ).level, machine.gpus(environ).text) == ("ok", "2: A, 80 GB")
    hidden = machine.gpus({**environ, "CUDA_VISIBLE_DEVICES": "1"})
    assert (hidden.level, hidden.text) == ("warn", "1 visible of 2: A, 80 GB")
    assert machine.gpus({"PATH": ""}).text == "none"


def test_failing_driver_has_its_own_message(tmp_path: Path) -> None:
    environ = program(tmp_path, "nvidia-smi", "echo 'Driver/library version mismatch'; exit 18")
    finding = machine.gpus(environ)
    assert (finding.level, finding.text) == ("fail", "nvidia-smi: Driver/library version mismatch")


def test_hanging_driver_fails_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SMI_SECONDS", 0.2)
    environ = program(tmp_path, "nvidia-smi", "PATH=/bin:/usr/bin; exec sleep 60")
    assert machine.gpus(environ).text == "nvidia-smi does not answer: TimeoutExpired"


def test_memory_respects_the_container_limit(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 64000000 kB\nMemAvailable: 32000000 kB\n")
    assert machine.memory(meminfo, tmp_path).text == "32.8 GB available"
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.memory(meminfo, tmp_path).text == "32.8 GB available"
    (tmp_path / "memory.max").write_text("4000000000\n")
    (tmp_path / "memory.current").write_text("1000000000\n")
    assert (machine.memory(meminfo, tmp_path).level, machine.memory(meminfo, tmp_path).text) == (
        "ok",
        "3 GB available, limit 4 GB",
    )
    (tmp_path / "memory.current").write_text("2500000000\n")
    assert machine.memory(meminfo, tmp_path).level == "warn"


def test_little_shared_memory_is_a_warning(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "shm", "64m") as folder:
        finding = machine.shared_memory(folder)
    assert (finding.level, finding.fix) == ("warn", "docker run --shm-size=8g, for several GPUs")
    with tmpfs(tmp_path / "more", "65m") as folder:
        assert machine.shared_memory(folder).level == "ok"
    assert machine.shared_memory(tmp_path / "nowhere").level == "warn"


def test_low_limit_of_open_files_is_a_warning() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for limit, level in ((1023, "warn"), (1024, "ok")):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            finding = machine.open_files()
            assert (finding.level, finding.text) == (level, f"at most {limit}")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_loopback_interface_that_is_down_fails() -> None:
    check = "from orchestrator.doctor.machine import loopback; print(loopback().level)"
    command = [sys.executable, "-c", check]
    assert subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY).stdout == "ok\n"
    alone = shutil.which("unshare")
    if alone is None or subprocess.run([alone, "-n", "true"], capture_output=True).returncode:
        pytest.skip("cannot create a network without a loopback interface")
    assert subprocess.run([alone, "-n", *command], capture_output=True, text=True, cwd=REPOSITORY).stdout == "fail\n"


def test_wrong_clock_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time()
    assert machine.clock(tmp_path / "home").level == "ok"
    for shift, level in ((-3650 * 86400, "fail"), (100, "warn"), (1, "ok")):
        monkeypatch.setattr(time, "time", lambda shift=shift: real + shift)
        assert machine.clock(tmp_path / "home").level == level


# Storage


def test_unwritable_home_fails(tmp_path: Path) -> None:
    with read_only(tmp_path / "disk") as disk:
        (finding,) = machine.home_folder(disk / "home")
    assert finding.level == "fail"
    assert finding.text == f"cannot write to {disk / 'home'} (tmpfs): read-only file system"
    assert "ORCHESTRATOR_HOME" in str(finding.fix)


def test_name_of_a_mount_may_be_in_latin_1(tmp_path: Path) -> None:
    (disk := tmp_path / os.fsdecode(b"M\xfcller")).mkdir()
    check = (
        "import sys, pathlib; from orchestrator.doctor.machine import home_folder;"
        " print(*(one.level for one in home_folder(pathlib.Path(sys.argv[1]))))"
    )
    mount = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(disk)]
    if shutil.which("unshare") is None or subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("cannot mount a disk")
    found = subprocess.run(
        [*mount, sys.executable, "-c", check, str(disk / "home")], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert (found.stdout, found.stderr) == ("ok ok\n", "")


def test_home_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    finding = machine.access(tmp_path / "home")
    assert (finding.level, finding.text) == ("fail", f"cannot use home folder {tmp_path / 'home'}: it is a file")


def test_full_home_fails_with_its_disk(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "64k") as disk:
        (disk / "all").write_bytes(b"x" * 48_000)
        (finding,) = machine.home_folder(disk)
        assert (finding.level, finding.text) == ("fail", f"cannot write to {disk} (tmpfs): No space left on device")
        assert finding_named(machine.disks(disk / "home"), "disk").level == "fail"
        assert [path.name for path in disk.iterdir()] == ["all"]


@pytest.mark.parametrize(("size", "level"), [("90m", "fail"), ("200m", "warn"), ("6g", "ok")])
def test_disk_space_for_checkpoints_is_checked(tmp_path: Path, size: str, level: str) -> None:
    with tmpfs(tmp_path / "disk", size) as disk:
        finding = finding_named(machine.disks(disk), "disk")
    assert finding.level == level
    assert f"free at {disk}" in finding.text


def test_full_temporary_folder_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tmpfs(tmp_path / "disk", "1m") as disk:
        monkeypatch.setattr(machine.tempfile, "tempdir", str(disk))
        assert finding_named(machine.disks(tmp_path), "temporary files").level == "fail"

    def no_folder() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(machine.tempfile, "gettempdir", no_folder)
    finding = finding_named(machine.disks(tmp_path), "temporary files")
    assert (finding.level, "TMPDIR" in str(finding.fix)) == ("fail", True)


def test_file_system_is_named_whatever_its_path(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "with a blank", "1m") as disk:
        assert mount_of(disk).kind == "tmpfs"
        assert mount_of(disk / "..").kind == mount_of(tmp_path).kind != "tmpfs"
    assert mount_of(Path("/proc/self")).kind == "proc"


@pytest.mark.parametrize(
    ("kind", "held", "levels"),
    [
        ("ext4", True, {"home": "ok", "locks": "ok"}),
        ("nfs4", True, {"home": "ok", "locks": "warn"}),
        ("fuse.blobfuse2", False, {"home": "ok", "locks": "fail"}),
        ("overlay", True, {"home": "warn", "locks": "ok"}),
    ],
)
def test_file_systems_that_lose_locks_or_files_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, held: bool, levels: dict[str, str]
) -> None:
    monkeypatch.setattr(machine, "mount_of", lambda folder: Mount(folder, kind))
    if not held:  # a mount whose server ignores locks
        monkeypatch.setattr(fcntl, "flock", lambda stream, how: None)
    findings = list(machine.home_folder(tmp_path))
    assert {finding.name: finding.level for finding in findings} == levels
    assert all(kind in finding.text for finding in findings)


# The project


def test_missing_git_is_a_warning(tmp_path: Path) -> None:
    assert project.git({"PATH": str(tmp_path)}).level == "warn"
    assert project.git(program(tmp_path, "git", "echo git version 2.39.5")).text == "2.39.5"


def test_invalid_project_defaults_fail_with_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orchestrator.yaml").write_text("train:\n  stpes: 1\n  seed: x\n")
    (finding,) = project.defaults(tmp_path, {"PATH": ""})
    assert finding.level == "fail"
    assert "orchestrator.yaml:2: train.stpes" in finding.text
    assert "orchestrator.yaml:3: train.seed" in finding.text
    assert project.store(tmp_path, tmp_path, {"PATH": ""}).level == "fail"


def test_unknown_variable_is_a_warning(tmp_path: Path) -> None:
    fine, warning = project.defaults(tmp_path, {"PATH": "", "ORCHESTRATOR_TRIAN__STEPS": "1"})
    assert (fine.level, warning.level) == ("ok", "warn")
    assert "ORCHESTRATOR_TRIAN__STEPS" in warning.text


def test_unknown_backend_fails(tmp_path: Path) -> None:
    finding = project.backend("aws", tmp_path)
    assert finding.level == "fail"
    assert "unknown backend 'aws' (known: " in finding.text
    assert project.backend("local", tmp_path).level == "ok"


# The tracking store


@pytest.fixture(scope="module")
def original_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a store with MLflow, with one run."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    make = "import sys; from mlflow.tracking import MlflowClient; MlflowClient(sys.argv[1]).create_run('0')"
    subprocess.run([sys.executable, "-c", make, f"sqlite:///{path}"], check=True, capture_output=True)
    return path


@pytest.fixture
def store(original_store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original_store, tmp_path / "mlflow.db"))


def test_complete_or_missing_store_passes(store: Path, tmp_path: Path) -> None:
    before = store.read_bytes()
    assert project.sqlite_store(store) == Finding(name="tracking", level="ok", text=f"{store}, 1 MLflow runs")
    assert store.read_bytes() == before
    finding = project.store(tmp_path, tmp_path / "home", {"PATH": ""})
    assert finding.text == f"{tmp_path / 'home' / 'mlflow.db'}, created by the first run"
    assert not (tmp_path / "home").exists()


def test_overwritten_or_truncated_store_is_damaged(store: Path) -> None:
    whole = store.read_bytes()
    store.write_bytes(b"not a database, whatever its name says" * 200)
    finding = project.sqlite_store(store)
    assert (finding.level, "is damaged" in finding.text) == ("fail", True)
    assert str(finding.fix).startswith("orchestrator mlflow sync --all")
    store.write_bytes(whole[:4096] + b"\0" * (len(whole) - 8192))
    assert "is damaged" in project.sqlite_store(store).text


def test_interrupted_creation_leaves_store_without_tables(store: Path) -> None:
    with closing(sqlite3.connect(store)) as half:
        half.execute("DROP TABLE metrics")
        half.commit()
    finding = project.sqlite_store(store)
    assert (finding.level, "has no table metrics" in finding.text) == ("fail", True)
    store.write_bytes(b"")
    assert "has no table alembic_version, experiments, metrics, runs" in project.sqlite_store(store).text


def test_store_in_use_is_locked(store: Path) -> None:
    with closing(sqlite3.connect(store, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        finding = project.sqlite_store(store, seconds=0.1)
    assert (finding.level, finding.fix) == ("fail", f"fuser {store}")
    assert "is locked by another process" in finding.text
    assert project.sqlite_store(store).level == "ok"


def test_unwritable_store_fails(store: Path, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "4m") as disk:
        shutil.copy(store, disk / "mlflow.db")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        finding = project.sqlite_store(disk / "mlflow.db")
    assert finding.level == "fail"
    assert finding.text.endswith("disk/mlflow.db is on a read-only file system")
    assert finding.fix == f"mount it writable: sudo mount -o remount,rw {tmp_path / 'disk'}"


class OtherServer(BaseHTTPRequestHandler):
    """A server that is not MLflow."""

    def do_GET(self) -> None:
        self.send_error(404, "Not here")

    do_POST = do_GET  # noqa: N815

    def log_message(self, *words: object) -> None:
        pass


def test_other_server_fails_with_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with HTTPServer(("127.0.0.1", 0), OtherServer) as http:
        Thread(target=http.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{http.server_port}"
        (tmp_path / "orchestrator.yaml").write_text(f"tracking: {{uri: '{uri}'}}\n")
        finding = project.store(tmp_path, tmp_path, dict(os.environ))
        http.shutdown()
    assert finding.level == "fail"
    assert finding.text.startswith(f"{uri}: ")
    assert "404" in finding.text


def test_silent_server_fails_in_time() -> None:
    finding = project.server("http://127.0.0.1:9", dict(os.environ), seconds=0.2)
    assert (finding.level, finding.text) == ("fail", "http://127.0.0.1:9 did not answer within 0.2 s")


def test_tracking_uri_follows_variables_and_project(tmp_path: Path) -> None:
    assert project.chosen_backend(tmp_path, {}) == "local"
    (tmp_path / "orchestrator.yaml").write_text("backend: debug\n")
    assert project.chosen_backend(tmp_path, {}) == "debug"
    assert project.chosen_backend(tmp_path, {"ORCHESTRATOR_BACKEND": "local"}) == "local"
    (tmp_path / "orchestrator.yaml").write_text("bakcend: azure\n")
    assert project.chosen_backend(tmp_path, {}) == "local"
