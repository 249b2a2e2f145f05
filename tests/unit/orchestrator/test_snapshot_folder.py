"""The user's own folder: shipped files, excluded files, and reasons to refuse a submission."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.snapshot import Snapshot, take_snapshot
from orchestrator.snapshot.walk import Walk
from orchestrator.specs.job import CodeSpec
from orchestrator.support.errors import ConflictError, SpecError

PEM = "-----BEGIN PRIVATE" + " KEY-----\n" + "MC4CAQAwBQYDK2VwBCIEIABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopq\n"
AWS = "AKIA" + "QWERTYUIOPASDFGH"
GITHUB = "ghp_" + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJ"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Create a package of one file, outside of any repository."""
    (tmp_path / "site" / "train_jobs").mkdir(parents=True)
    (tmp_path / "site" / "train_jobs" / "pretrain.py").write_text("print('theirs')\n")
    return tmp_path / "site" / "train_jobs"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Create a folder with one module."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "my_pretrain.py").write_text("print('mine')\n")
    return tmp_path / "code"


def write(root: Path, *paths: str, text: str = "x\n") -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def take(package: Path, code: Path, apart: dict[Path, str] | None = None, **settings: Any) -> Snapshot:
    return take_snapshot(package, code=CodeSpec(folder=code, **settings), excluded=apart)


def shipped(snapshot: Snapshot) -> list[str]:
    return [file.path for file in snapshot.files if not file.path.startswith("train_jobs/")]


def excluded(snapshot: Snapshot) -> dict[str, str]:
    return {entry.path: entry.why for entry in snapshot.left_out}


def refusal(package: Path, code: Path, **settings: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        take(package, code, **settings)
    assert str(code) in caught.value.message
    return caught.value


def test_user_files_are_stored_next_to_the_package(package: Path, code: Path, tmp_path: Path) -> None:
    write(code, "tools/__init__.py", "configs/a.yaml")
    snapshot = take(package, code)
    assert [file.path for file in snapshot.files] == [
        "configs/a.yaml",
        "my_pretrain.py",
        "tools/__init__.py",
        "train_jobs/pretrain.py",
    ]
    snapshot.write(tmp_path / "run")
    assert (tmp_path / "run" / "my_pretrain.py").read_text() == "print('mine')\n"
    assert (tmp_path / "run" / "train_jobs" / "pretrain.py").read_text() == "print('theirs')\n"


def test_digest_covers_exactly_the_code(package: Path, code: Path) -> None:
    before = take(package, code)
    assert before.digest != take_snapshot(package).digest
    write(code, ".gitignore", text="*.log\n")
    write(code, "a.log", "__pycache__/a.pyc")
    assert take(package, code, largest_file_mb=3).digest == before.digest
    write(code, "my_pretrain.py", text="print('changed')\n")
    assert take(package, code).digest != before.digest


def test_user_file_changed_meanwhile_is_refused(package: Path, code: Path, tmp_path: Path) -> None:
    snapshot = take(package, code)
    write(code, "my_pretrain.py", text="print('other')\n")
    with pytest.raises(ConflictError, match=r"code/my_pretrain\.py: it changed while the run was being made") as caught:
        snapshot.write(tmp_path / "run")
    assert caught.value.fix is not None
    assert f"add it to .amlignore or write it outside {code}" in caught.value.fix


def test_files_other_than_code_are_excluded_and_listed(package: Path, code: Path, tmp_path: Path) -> None:
    write(
        code,
        *(".git/config", ".hg/x", ".svn/x", "sub/.git", "__pycache__/x.pyc", "old.pyc", "pkg/b.pyo", ".mypy_cache/x"),
        *(".ruff_cache/x", ".pytest_cache/x", ".ipynb_checkpoints/x", "node_modules/x", ".tox/x", ".nox/x", ".venv/x"),
        *("env/pyvenv.cfg", "env/lib/torch.py", "conda/conda-meta/history", "mlruns/0/meta.yaml", "mlflow.db"),
        *("out/metrics.jsonl", "out/checkpoints/x", "step-1/COMMIT.json", "token-stores/x", "home/runs/x"),
        *("data/a.txt", "data/b/c.txt", "vocab.txt", "corpus/keep.py"),
    )
    write(code, ".gitignore", text="!*\n!.git/\n!__pycache__/\n")
    apart = {code / "home": "home folder", code / "data": "data", code / "vocab.txt": "data", tmp_path: "home folder"}
    snapshot = take(package, code, apart)
    assert shipped(snapshot) == ["corpus/keep.py", "my_pretrain.py"]
    kinds: dict[str, set[str]] = {}
    for path, why in excluded(snapshot).items():
        kinds.setdefault(why, set()).add(path)
    assert kinds == {
        "version control": {".git/", ".hg/", ".svn/", "sub/.git"},
        "cache": {"__pycache__/", "old.pyc", "pkg/b.pyo", ".mypy_cache/", ".ruff_cache/", ".pytest_cache/"}
        | {".ipynb_checkpoints/"},
        "installed packages": {"node_modules/", ".tox/", ".nox/"},
        "virtual environment": {".venv/", "env/", "conda/"},
        "outputs of runs": {"mlruns/", "mlflow.db", "out/", "step-1/", "token-stores/"},
        "home folder": {"home/"},
        "data": {"data/", "vocab.txt"},
        "ignore file": {".gitignore"},
    }
    assert {entry.path: entry.files for entry in snapshot.left_out}["data/"] == 2


def test_root_folder_is_code_whatever_it_contains(package: Path, code: Path) -> None:
    write(code, "pyvenv.cfg", "bin/activate")
    assert shipped(take(package, code)) == ["bin/activate", "my_pretrain.py", "pyvenv.cfg"]


def test_metrics_alone_do_not_mark_an_output_folder(package: Path, code: Path) -> None:
    write(code, "analysis/metrics.jsonl", "analysis/plot.py")
    assert shipped(take(package, code)) == ["analysis/metrics.jsonl", "analysis/plot.py", "my_pretrain.py"]


def test_count_of_excluded_files_is_limited(package: Path, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Walk, "most_counted", 3)
    write(code, *(f"data/{number}" for number in range(4)), *(f"few/{number}" for number in range(3)), "empty.pyc")
    (code / "nothing").mkdir()
    write(code, ".gitignore", text="/data/\n/few/\n/nothing/\n")
    document = take(package, code).summary()["left_out"]
    assert document["files"] == 8
    assert document["counted"] is False
    assert document["most"][:2] == [
        {"path": "data/", "why": ".gitignore", "files": 3, "counted": False},
        {"path": "few/", "why": ".gitignore", "files": 3, "counted": True},
    ]
    assert len(document["most"]) == 4


def test_excluded_folder_is_not_entered(package: Path, code: Path) -> None:
    write(code, "data/.env", "data/weights.bin", text="x" * 2000)
    (code / "data" / "dangling").symlink_to("nowhere")
    write(code, ".gitignore", text="data/\n")
    assert shipped(take(package, code, largest_file_mb=0.001)) == ["my_pretrain.py"]


def test_pipes_and_sockets_are_excluded_without_blocking(
    package: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(code / "pipe")
    os.mkfifo(code / ".gitignore")
    (code / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(code)  # the path of a socket has at most about 100 characters
        listener.bind("socket")
        snapshot = take(package, code)
    assert shipped(snapshot) == ["my_pretrain.py"]
    why = "a pipe, a socket or a device"
    assert excluded(snapshot) == {".gitignore": "ignore file", "link": why, "pipe": why, "socket": why}


def test_symlinks_inside_are_shipped_as_their_targets(package: Path, code: Path, tmp_path: Path) -> None:
    write(code, "configs/a.yaml", "pkg/deep/x.py", "data/a.txt")
    (code / "current.yaml").symlink_to("configs/a.yaml")
    (code / "absolute.yaml").symlink_to(code / "configs" / "a.yaml")
    (code / "linked").symlink_to("pkg")
    (code / "pkg" / "again").symlink_to("../configs")
    (code / "texts").symlink_to("data")
    (code / "text").symlink_to("data/a.txt")
    (code / "repository").symlink_to(".git")
    write(code, ".git/config")
    snapshot = take(package, code, {code / "data": "data", tmp_path: "home folder"})
    assert shipped(snapshot) == [
        *("absolute.yaml", "configs/a.yaml", "current.yaml", "linked/again/a.yaml", "linked/deep/x.py"),
        *("my_pretrain.py", "pkg/again/a.yaml", "pkg/deep/x.py"),
    ]
    assert excluded(snapshot) == {
        ".git/": "version control",
        "data/": "data",
        "repository": "version control",
        "text": "data",
        "texts": "data",
    }
    snapshot.write(tmp_path / "run")
    copied = tmp_path / "run" / "linked" / "again" / "a.yaml"
    assert copied.read_text() == "x\n"
    assert not any(path.is_symlink() for path in (tmp_path / "run").rglob("*"))


def test_ignored_target_of_a_link_is_left_out(package: Path, code: Path) -> None:
    """Also through a link to a folder above it, and by a .gitignore next to the target."""
    write(code, "private/patients.csv", "shared/patients.csv", "notes/patients.csv", "shared/open.csv", "pkg/x.py")
    write(code, ".gitignore", text="private/\n/shared/patients.csv\n")
    write(code, "notes/.gitignore", text="*.csv\n")
    for link, target in (("whole", "private"), ("one.csv", "private/patients.csv"), ("two.csv", "notes/patients.csv")):
        (code / link).symlink_to(target)
    (code / "pkg" / "linked").symlink_to("../shared")
    snapshot = take(package, code)
    assert [path for path in shipped(snapshot) if path.endswith(".csv")] == ["pkg/linked/open.csv", "shared/open.csv"]
    left_out = {"whole": ".gitignore", "one.csv": ".gitignore", "two.csv": "notes/.gitignore"}
    assert excluded(snapshot).items() >= {**left_out, "pkg/linked/patients.csv": ".gitignore"}.items()


def test_symlinks_outside_dangling_or_circular_named(package: Path, code: Path, tmp_path: Path) -> None:
    write(tmp_path, "elsewhere/secret.txt", "corpus/a.txt")
    (code / "out").symlink_to(tmp_path / "elsewhere")
    (code / "near").symlink_to("../elsewhere/secret.txt")
    (code / "gone").symlink_to("nothing.py")
    (code / "self").symlink_to("self")
    (code / "pkg").mkdir()
    (code / "pkg" / "up").symlink_to("..")
    (code / "pkg" / "here").symlink_to(".")
    (code / "corpus").symlink_to(tmp_path / "corpus")  # data, which is excluded anywhere
    with pytest.raises(SpecError) as caught:
        take(package, code, {tmp_path / "corpus": "data"})
    assert caught.value.problems == [
        f"gone: a symlink that leads to nothing: {code}/nothing.py",
        f"near: a symlink that leaves the folder, to {tmp_path}/elsewhere/secret.txt",
        f"out: a symlink that leaves the folder, to {tmp_path}/elsewhere",
        "pkg/here: a symlink to a folder that contains it",
        "pkg/up: a symlink to a folder that contains it",
        "self: a symlink that leads to itself",
    ]


def test_circular_links_terminate(package: Path, code: Path) -> None:
    (code / "a").mkdir()
    (code / "b").mkdir()
    (code / "a" / "b").symlink_to("../b")
    (code / "b" / "a").symlink_to("../a")
    problems = refusal(package, code).problems
    assert problems == [f"{path}: a symlink to a folder that contains it" for path in ("a/b/a", "b/a/b")]


def test_all_reasons_to_refuse_are_named_together(package: Path, code: Path) -> None:
    write(code, ".env", text="PASSWORD=hunter2\n")
    write(code, "keys/tls.pem", text=PEM)
    write(code, "settings.py", text=f"token = '{GITHUB}'\n\nkey = '{AWS}'\n")
    write(code, "weights.bin", text="x" * 12_000)
    write(code, "train_jobs/pretrain.py", "train_jobs.py")
    (code / "out").symlink_to("/")
    problem = refusal(package, code, largest_file_mb=0.0105)
    assert problem.problems == [
        ".env: has the name of a file of secrets (.env)",
        "keys/tls.pem: has the name of a file of secrets (*.pem)",
        "keys/tls.pem:1: holds a private key",
        "out: a symlink that leaves the folder, to /",
        "settings.py:1: holds a GitHub token",
        "settings.py:3: holds an AWS access key",
        "train_jobs.py: has the name of the package that is shipped with the code",
        "train_jobs/: has the name of the package that is shipped with the code",
        "weights.bin: 0.012 MB, over code.largest_file_mb (0.0105)",
    ]
    for secret in (AWS, GITHUB, "hunter2", "MC4CAQ"):
        assert secret not in str(problem)
        assert secret not in json.dumps(problem.as_json())


def test_pasted_fix_solves_what_an_ignore_line_can_solve(package: Path, code: Path) -> None:
    write(code, ".gitignore", text="*.log")  # its last line has no newline
    write(code, "a.log", ".env", "sub dir/[1]*?.pem", "back\\slash.key", "big.bin ", "x'y.key", "#x.key", "!y.key")
    write(code, "train_jobs/x.py")
    (code / "out").symlink_to("/")
    write(code, "big.bin ", text="x" * 2000)
    before = refusal(package, code, largest_file_mb=0.001)
    assert len(before.problems) == 9
    subprocess.run(["/bin/sh", "-c", before.fix or ""], check=True)
    assert shipped(take(package, code, largest_file_mb=0.001)) == ["my_pretrain.py"]


def test_fix_names_the_effective_ignore_file(package: Path, code: Path) -> None:
    write(code, ".env", ".gitignore")
    assert f">> {code}/.gitignore" in str(refusal(package, code))
    write(code, ".amlignore")
    assert f">> {code}/.amlignore" in str(refusal(package, code))


def test_secret_in_text_has_no_exclusion_fix(package: Path, code: Path) -> None:
    write(code, "settings.py", text=f"key = '{AWS}'\n")
    problem = refusal(package, code)
    assert "printf" not in str(problem)
    assert "--env NAME" in problem.facts["secrets"]


def test_false_secrets_are_allowed_one_by_one(package: Path, code: Path) -> None:
    write(code, "tests/dummy.pem", "tests/other.pem", text=PEM)
    first = refusal(package, code, allow_secrets=["tests/dummy.pem"])
    assert [problem.partition(":")[0] for problem in first.problems] == ["tests/other.pem"] * 2
    (assignment,) = [word for word in shlex.split(str(first.facts["secrets"])) if "=" in word]
    assert assignment.startswith("code.allow_secrets=")
    allowed = yaml.safe_load(assignment.partition("=")[2])
    assert shipped(take(package, code, allow_secrets=allowed)) == ["my_pretrain.py", *allowed]


def test_allowed_file_that_is_missing_is_an_error(package: Path, code: Path) -> None:
    write(code, "tests/dummy.txt")
    (problem,) = refusal(package, code, allow_secrets=["tests/dumy.txt"]).problems
    assert problem == 'code.allow_secrets: no such file is shipped: tests/dumy.txt (did you mean "tests/dummy.txt"?)'


def test_link_does_not_rename_a_file_of_secrets(package: Path, code: Path) -> None:
    write(code, ".env")
    (code / "settings.txt").symlink_to(".env")
    found = refusal(package, code).problems
    assert found[-1] == "settings.txt: has the name of a file of secrets (.env)"
    write(code, ".gitignore", text=".env\n")
    assert excluded(take(package, code))["settings.txt"] == ".gitignore"


def test_limit_of_all_files_names_the_largest(package: Path, code: Path) -> None:
    for number in range(7):
        write(code, f"{number}.bin", text="x" * (1000 + 100 * number))
    problem = refusal(package, code, largest_total_mb=0.007)
    assert problem.problems == [
        "8 files: 0.00911 MB together, over code.largest_total_mb (0.007); the largest: 6.bin 0.0016 MB, "
        "5.bin 0.0015 MB, 4.bin 0.0014 MB, 3.bin 0.0013 MB, 2.bin 0.0012 MB"
    ]
    assert problem.facts["limits"] == "--set code.largest_total_mb=1 ships them all"
    write(code, "6.bin", text="x" * 485)
    assert len(shipped(take(package, code, largest_total_mb=0.008))) == 8  # exact to the byte


def test_file_of_exactly_the_limit_is_shipped(package: Path, code: Path) -> None:
    write(code, "a.bin", text="x" * 1000)
    assert "a.bin" in shipped(take(package, code, largest_file_mb=0.001))
    write(code, "a.bin", text="x" * 1001)
    assert (
        refusal(package, code, largest_file_mb=0.001).facts["limits"] == "--set code.largest_file_mb=1 ships them all"
    )


def test_too_large_file_is_not_in_the_total(package: Path, code: Path) -> None:
    write(code, "a.bin", text="x" * 2_000_000)
    problem = refusal(package, code, largest_file_mb=1, largest_total_mb=1.5)
    assert problem.problems == ["a.bin: 2 MB, over code.largest_file_mb (1)"]
    assert problem.facts["limits"] == "--set code.largest_file_mb=2 --set code.largest_total_mb=3 ships them all"
    assert len(shipped(take(package, code, largest_file_mb=2, largest_total_mb=3))) == 2


def test_huge_folder_is_refused_without_reading(package: Path, code: Path) -> None:
    with (code / "a.bin").open("wb") as stream:
        stream.truncate(10**12)  # a sparse file that takes no space
    (problem,) = refusal(package, code, largest_file_mb=1e7).problems
    assert problem.startswith("2 files: 1e+06 MB together, over code.largest_total_mb (100)")


def test_many_problems_fix_is_text_not_long_command(package: Path, code: Path) -> None:
    write(code, *(f"{number}.key" for number in range(20)))
    assert str(refusal(package, code).fix).count(".key") == 20
    write(code, "20.key")
    problem = refusal(package, code)
    assert len(problem.problems) == 21
    assert problem.fix == f"fix the files named, or leave them out with one line each in {code}/.gitignore"


def test_invalid_file_names_are_refused_readably(package: Path, code: Path) -> None:
    write(code, "a\nb.py", "tab\there.py", "no\u00a0break.py")
    (Path(os.fsdecode(os.fsencode(code) + b"/\xff.py"))).write_text("")
    assert refusal(package, code).problems == [
        "a\\nb.py: a name with a line break, or not UTF-8; rename it",
        "\\udcff.py: a name with a line break, or not UTF-8; rename it",
    ]


@contextmanager
def unprivileged() -> Iterator[None]:
    """Give up root's right to read every file."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_unreadable_files_are_named() -> None:
    with tempfile.TemporaryDirectory() as name:  # only its owner may read tmp_path
        root = Path(name)
        root.chmod(0o755)
        write(root, "code/a.py", "code/sub/b.py", "code/c.py", "site/train_jobs/pretrain.py")
        for path in root.rglob("*"):  # whatever the umask
            path.chmod(0o755)
        (root / "code" / "a.py").chmod(0)
        (root / "code" / "sub").chmod(0)
        with unprivileged():
            problems = refusal(root / "site" / "train_jobs", root / "code").problems
        (root / "code" / "sub").chmod(0o700)
    assert problems == ["a.py: a file that cannot be read", "sub/: a folder that cannot be read"]


def test_folder_without_code_is_refused(package: Path, tmp_path: Path) -> None:
    write(tmp_path / "code", ".gitignore", "b.pyc")
    with pytest.raises(SpecError, match="cannot find code in "):
        take(package, tmp_path / "code")


def test_file_deleted_meanwhile_is_a_user_error(package: Path, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(code, "b.py")
    original = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path.name == "b.py":
            path.unlink()
        return original(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(ConflictError, match=r"code/b\.py: it disappeared"):
        take(package, code)


@pytest.mark.parametrize("entry", ["my_pretrain", "train_jobs.pretrain", "tools.train", "tools"])
def test_entry_is_a_module_of_the_code(package: Path, code: Path, entry: str) -> None:
    write(code, "tools/train.py", "tools/__main__.py")
    take(package, code).check_entry(entry, where="--set")


@pytest.mark.parametrize(
    ("entry", "near"),
    [
        ("my_pretrian", ' (did you mean "my_pretrain"?)'),
        ("my_pretrain.py", ' (did you mean "my_pretrain"?)'),
        ("train_jobs.pretain", ' (did you mean "train_jobs.pretrain"?)'),
        ("tools", ' (did you mean "tools.train"?)'),
        ("notes", ""),
    ],
)
def test_unknown_entry_is_refused_with_a_similar_name(package: Path, code: Path, entry: str, near: str) -> None:
    write(code, "tools/train.py", "tools/__init__.py", "notes.txt")
    with pytest.raises(SpecError) as caught:
        take(package, code).check_entry(entry, where="job.yaml:3")
    assert caught.value.message == f"code.entry: no module {entry}{near}"
    assert caught.value.facts == {"where": "job.yaml:3", "known": "my_pretrain, tools.train, train_jobs.pretrain"}


def test_runnable_package_is_a_similar_name(package: Path, code: Path) -> None:
    write(code, "tools/__main__.py")
    with pytest.raises(SpecError, match=r'no module tolls \(did you mean "tools"\?\)'):
        take(package, code).check_entry("tolls", where="--set")


def test_few_modules_are_listed_many_are_not(package: Path, code: Path) -> None:
    write(code, *(f"module_{number}.py" for number in range(13)))
    for more, listed in ((), True), (("one_more.py",), False):
        write(code, *more)
        with pytest.raises(SpecError) as caught:
            take(package, code).check_entry("absent", where="--set")
        assert ("known" in caught.value.facts) is listed


def test_excluded_entry_is_reported(package: Path, code: Path) -> None:
    write(code, "late.py", "lat")
    for line, fact in (("/late.py", "late.py (.gitignore)"), ("la*.py", "late.py (.gitignore)"), ("/lat", None)):
        write(code, ".gitignore", text=line + "\n")
        with pytest.raises(SpecError) as caught:
            take(package, code).check_entry("late" if fact else "late2", where="--set")
        assert caught.value.facts.get("left out") == fact


def test_entry_in_excluded_folder_is_reported(package: Path, code: Path) -> None:
    write(code, "build/late.py", ".gitignore", text="build/\n")
    with pytest.raises(SpecError) as caught:
        take(package, code).check_entry("build.late", where="--set")
    assert caught.value.facts["left out"] == "build/ (.gitignore)"


def test_own_entry_needs_a_folder(package: Path) -> None:
    with pytest.raises(SpecError) as caught:
        take_snapshot(package).check_entry("tools.train", where="--set")
    assert caught.value.fix == "--code DIR with tools/train.py in it"


def test_package_not_searched_for_users_exclusions(package: Path, code: Path) -> None:
    write(package, "keys.pem", text=PEM)
    assert "train_jobs/keys.pem" in {file.path for file in take(package, code).files}
