"""Other users of the machine: what they can read of a home folder, and what they get to see when they try."""

from __future__ import annotations

import grp
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from errno import ENOTSUP
from pathlib import Path

import pytest

from orchestrator.client import Orchestrator
from orchestrator.doctor import machine
from orchestrator.fetch.remote_file import Partial
from orchestrator.support import access
from orchestrator.support.access import open_home
from orchestrator.support.errors import StorageError, UsageError
from tests.conftest import Console, Finished, wait_for, write_spec
from tests.home_modes import NOBODY, mode_of, other_modes, python_for_all, umask
from train_jobs.artifacts.files import hold
from train_jobs.artifacts.tracking.mlflow_store import Condition, examine, prepare

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run commands as another user")


@pytest.fixture
def open_console() -> Iterator[Console]:
    """Yield the command line in a folder that every user can enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Console(home=Path(folder, "home"), cwd=Path(folder))


def run_as_nobody(python: str | Path, *words: str, environ: dict[str, str] | None = None) -> Finished:
    """Run a Python command as a user without rights."""
    command = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", str(python), *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=environ, timeout=240, check=False)
    return Finished(done.returncode, done.stdout, done.stderr)


@pytest.mark.long
def test_run_and_prepare_leave_nothing_to_others(console: Console, corpus: Path) -> None:
    """The umask forbids nothing, so whatever is private is so by the orchestrator's own doing."""
    spec = write_spec(console.cwd / "job.yaml", data={"text": [str(corpus)]}, train={"steps": 4})
    with umask(0):
        for kind in ("prepare", "pretrain"):
            flags = ("-f", str(spec)) if kind == "pretrain" else ("--data", str(corpus), "--set", "data.vocab_size=256")
            done = console("submit", kind, *flags)
            assert done.code == 0, done.err
        assert console("list").code == 0
    for mask in (0, 0o022):
        with umask(mask):
            assert console("download", "@last", "metrics", "--to", f"mine-{mask}").code == 0
        assert mode_of(console.cwd / f"mine-{mask}") == 0o777 & ~mask
        assert mode_of(console.cwd / f"mine-{mask}" / "metrics.jsonl") == 0o666 & ~mask
    wait_for((console.home / "mlflow.db").exists, seconds=300, what="the MLflow store, which no run waits for")
    assert {path.name for path in console.home.iterdir()} >= {
        "cache",
        "mlflow.db",
        "mlflow.lock",
        "runs",
        "token-stores",
    }
    assert other_modes(console.home) == {}


def test_sdk_keeps_the_umask_of_its_process(tmp_path: Path) -> None:
    with umask(0o002):
        Orchestrator(home=tmp_path / "place" / "home").runs()
        (tmp_path / "place" / "home" / "cache").mkdir()
        (tmp_path / "mine").touch()
        assert os.umask(0o002) == 0o002
    assert mode_of(tmp_path / "mine") == 0o664
    assert other_modes(tmp_path / "place" / "home") == {}


def test_home_of_earlier_version_becomes_private_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.touch()
    elsewhere.chmod(0o644)
    (home / "runs" / "one" / "code").mkdir(parents=True)
    (home / "runs" / "one" / "lock").touch()
    (home / "link").symlink_to(elsewhere)
    for path in (home, *home.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    (home / "runs" / "one" / "code" / "tool.sh").touch()
    (home / "runs" / "one" / "code" / "tool.sh").chmod(0o755)

    open_home(home)
    said = f"home folder {home} was open to other users (0755): it and everything in it is now private\n"
    assert capsys.readouterr().err == said
    assert other_modes(home) == {"runs/one/code/tool.sh": "0700"}
    assert mode_of(elsewhere) == 0o644
    open_home(home)
    assert capsys.readouterr().err == ""
    with umask(0):
        (home / "runs" / "one" / "later").touch()
    assert mode_of(home / "runs" / "one" / "later") == 0o600


def test_home_reached_by_a_link_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "disk" / "runs").mkdir(parents=True, mode=0o755)
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    open_home(tmp_path / "home")
    assert other_modes(tmp_path / "disk") == {}


def test_wide_lock_of_private_home_is_repaired(tmp_path: Path) -> None:
    open_home(tmp_path / "home")
    lock = tmp_path / "home" / "lock"
    lock.touch()
    lock.chmod(0o644)
    with hold(lock):
        assert mode_of(lock) == 0o600


@pytest.mark.parametrize("place", [Path.symlink_to, Path.hardlink_to])
def test_lock_that_links_to_a_file_opens_it_to_nobody(tmp_path: Path, place: Callable[[Path, Path], None]) -> None:
    """In a folder like /tmp, another user can place a link under the name of a lock."""
    mine, lock = tmp_path / "mine", tmp_path / "all" / "lock"
    mine.touch(0o700)
    lock.parent.mkdir()
    lock.parent.chmod(0o1777)
    place(lock, mine)
    with suppress(OSError), hold(lock, seconds=0):
        pass
    assert mode_of(mine) & 0o077 == 0


@root_only
def test_other_user_cannot_hold_a_lock(open_console: Console) -> None:
    lock = open_console.cwd / "lock"
    lock.touch(0o644)
    with hold(lock):
        done = run_as_nobody(sys.executable, "-c", f"import fcntl; fcntl.flock(open({str(lock)!r}), fcntl.LOCK_SH)")
        assert "PermissionError" in done.err


@root_only
@pytest.mark.parametrize("left", [None, 0o644])
def test_other_user_cannot_hold_a_download(open_console: Console, left: int | None) -> None:
    """Nor one that an earlier version left with a wider mode. The complete file has the mode of every new file."""
    target, part = open_console.cwd / "b.bin", open_console.cwd / ".b.bin.part"
    if left is not None:
        part.touch()
        part.chmod(left)
    with umask(0o022), Partial.open(target) as partial:
        done = run_as_nobody(
            sys.executable, "-c", f"import fcntl; fcntl.flock(open({str(part)!r}), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        )
        assert "PermissionError" in done.err
        partial.place()
        assert mode_of(target) == 0o644


@root_only
def test_member_of_a_group_completes_the_download_of_another(open_console: Console) -> None:
    folder = open_console.cwd / "data"
    folder.mkdir()
    os.chown(folder, -1, NOBODY)
    folder.chmod(0o2775)
    with umask(0o002), Partial.open(folder / "b.bin") as partial:
        partial.stream.write(b"abc")
    python = python_for_all(open_console.cwd / "python")
    code = (
        "import os; os.umask(0o002); from pathlib import Path; from orchestrator.fetch.remote_file import Partial\n"
        f"with Partial.open(Path({str(folder / 'b.bin')!r})) as partial: partial.place()"
    )
    done = run_as_nobody(python, "-c", code, environ=open_console.environ(HOME="/nonexistent"))
    assert done.code == 0, done.err
    assert (folder / "b.bin").read_bytes() == b"abc"


@pytest.mark.parametrize("name", ["what?", "50%41"])
def test_home_where_mlflow_has_no_store_is_refused(console: Console, name: str) -> None:
    """The store was created next to the home, or not at all, and no run was copied."""
    console.home = console.home.with_name(name)
    done = console("list")
    assert done.code == 1
    assert "its path has a ? or an escape such as %20" in done.err
    assert not console.home.exists()


def test_home_may_have_other_special_characters(console: Console) -> None:
    console.home = console.home.with_name("my home #1 50% ü'q;&+@:")
    assert prepare(console.home / "mlflow.db") is None
    assert examine(console.home / "mlflow.db").condition is Condition.READY
    assert console("list").code == 0


@pytest.mark.parametrize("command", [["list"], ["status", "@last"], ["plan", "pretrain"], ["skus"], ["cancel", "x"]])
def test_home_that_is_a_file_is_a_storage_error(console: Console, command: list[str]) -> None:
    console.home.touch()
    done = console(*command)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"error[storage]: cannot use home folder {console.home}: it is a file\n  fix  ")


def test_home_that_anyone_can_replace_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "place"
    (place / "home").mkdir(parents=True)
    place.chmod(0o777)
    with pytest.raises(StorageError, match="any user can replace it") as caught:
        open_home(place / "home")
    assert str(caught.value.fix).startswith(f"chmod o-w {place}")
    place.chmod(0o1777)
    open_home(place / "home")


@pytest.mark.parametrize("named", ["users/me", "link", "users/me/../me", "users"])
def test_whole_home_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    """Also by a link, by a path with `..`, and as part of a folder above it."""
    mine = tmp_path / "users" / "me"
    mine.mkdir(parents=True)
    (tmp_path / "link").symlink_to(mine)
    monkeypatch.setenv("HOME", str(mine))
    (mine / "letters").touch()
    (mine / "letters").chmod(0o644)
    with pytest.raises(StorageError, match="all your other files") as caught:
        open_home(tmp_path / named)
    assert caught.value.fix == f"export ORCHESTRATOR_HOME={mine / '.orchestrator'}"
    assert mode_of(mine / "letters") == 0o644
    open_home(mine / ".orchestrator")


@root_only
def test_home_of_another_user_is_refused(open_console: Console) -> None:
    console = open_console
    python = python_for_all(console.cwd / "python")
    assert console("list").code == 0
    for verb in (["list"], ["cancel", "run"], ["preempt", "run"], ["debug", "run"]):
        environ = console.environ(HOME="/nonexistent")
        done = run_as_nobody(python, "-m", "orchestrator.cli.main", *verb, environ=environ)
        assert done.code == 1, done
        assert done.err.splitlines()[:3] == [
            f"error[storage]: cannot use home folder {console.home}: it belongs to another user",
            "  owner  root",
            "  you    nobody",
        ]


def test_file_system_without_acls_takes_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(ENOTSUP, "not supported")

    monkeypatch.setattr(os, "setxattr", refuse)
    monkeypatch.setattr(os, "getxattr", refuse)
    monkeypatch.setattr(access, "is_command", lambda: False)
    with umask(0o022):
        open_home(tmp_path / "home")
        assert os.umask(0o022) == 0o022  # a user's program
        monkeypatch.setattr(access, "is_command", lambda: True)
        open_home(tmp_path / "home")
        assert os.umask(0o022) == 0o077
    assert (mode_of(tmp_path / "home"), access.child_umask(tmp_path / "home")) == (0o700, 0o077)
    with pytest.raises(StorageError, match="no ACLs, which sharing needs"):
        access.share_home(tmp_path / "home", grp.getgrgid(os.getegid()).gr_name)


def test_unknown_or_foreign_group_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown group 'no-such-team'"):
        access.share_home(tmp_path / "home", "no-such-team")
    mine = {os.getegid(), *os.getgroups()}
    foreign = next(group.gr_name for group in grp.getgrall() if group.gr_gid not in mine)
    with pytest.raises(UsageError, match=f"cannot share the home folder with group {foreign}: you are not in it"):
        access.share_home(tmp_path / "home", foreign)
    assert access.shared_group(tmp_path / "home") is None


def test_shared_home_gives_its_group_everything(console: Console) -> None:
    group = grp.getgrgid(os.getegid()).gr_name
    assert console("list").code == 0
    assert console("home", "share", "--group", group, "-o", "json").json == {"home": str(console.home), "group": group}
    with umask(0o077):
        plan = console("plan", "pretrain", "--recipe", "tiny")
        (console.home / "runs").mkdir()
    assert f"shared with group {group}, whose members can read and change this run" in plan.out
    assert f"is shared with group {group}" in machine.access(console.home).text
    assert other_modes(console.home, 0o2770, 0o660) == {}
    assert console("home", "unshare").code == 0
    assert other_modes(console.home) == {}
    assert machine.access(console.home).text == f"only you can enter {console.home}"


def test_doctor_reports_files_that_others_may_read(tmp_path: Path) -> None:
    open_home(tmp_path / "home")
    (tmp_path / "home" / "restored").touch()
    (tmp_path / "home" / "restored").chmod(0o644)
    (tmp_path / "home" / "library.so").touch()
    (tmp_path / "home" / "library.so").chmod(0o711)  # as a linker leaves it; others cannot read it
    finding = machine.access(tmp_path / "home")
    assert (finding.level, finding.fix) == ("warn", f"chmod -R go-rwx {tmp_path / 'home'}")
    assert finding.text.endswith("but 1 file in it allow more")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_doctor_proposes_nothing_for_files_of_others(tmp_path: Path) -> None:
    """Only their owners can change the modes; other users cannot enter the home."""
    open_home(tmp_path / "home")
    (tmp_path / "home" / "theirs").touch()
    (tmp_path / "home" / "theirs").chmod(0o664)
    os.chown(tmp_path / "home" / "theirs", 65534, -1)
    assert machine.access(tmp_path / "home").level == "ok"
