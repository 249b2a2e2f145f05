"""User code in spec and plan: where it is searched, its part of the hash, its part of the summary."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import orchestrator.jobs.base as plan_module
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.jobs.base import Plan
from orchestrator.jobs.resolve import make_plan, resolve_spec
from orchestrator.snapshot import take_snapshot
from orchestrator.specs.job import CodeSpec
from orchestrator.specs.resolved import Flag
from orchestrator.support.errors import DataError, SpecError
from tests.conftest import SMALL_TEXT

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a current folder with a text, a code folder, and a package that does not change during the test."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "text.txt": SMALL_TEXT,
        "code/my_pretrain.py": "import train_jobs.pretrain\n",
        "site/train_jobs/pretrain.py": "steps = 1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    package = tmp_path / "site" / "train_jobs"
    monkeypatch.setattr(plan_module, "take_snapshot", lambda **user: take_snapshot(package, **user))
    return tmp_path


def plan(*sets: str, text: str = "text.txt", home: str = "home") -> Plan:
    everything = [f"data.text=[{text}]", "train.micro_batch_size=4", "compute.threads_per_process=1", *sets]
    return make_plan(resolve_spec("pretrain", sets=everything, environ=NO_GPU), home=Path(home).absolute())


def shipped(made: Plan) -> list[str]:
    return [file.path for file in made.snapshot.files]


def joined_summary(made: Plan) -> str:
    return " ".join(made.summary().split())


def test_relative_folder_starts_at_its_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "specs" / "code").mkdir(parents=True)
    (folder / "specs" / "job.yaml").write_text("code: {folder: code}\n")
    given = [
        ({"file": Path("specs/job.yaml")}, "specs/code"),
        ({"sets": ["code.folder=code"]}, "code"),
        ({"flags": {"code.folder": Flag("code", "--code")}}, "code"),
        ({"environ": {**NO_GPU, "ORCHESTRATOR_CODE__FOLDER": "code"}}, "code"),
    ]
    for source, path in given:
        assert resolve_spec("pretrain", **{"environ": NO_GPU, **source}).spec.code.folder == folder / path
    monkeypatch.setenv("HOME", str(folder))
    assert resolve_spec("pretrain", sets=["code.folder=~/code"], environ=NO_GPU).spec.code.folder == folder / "code"


def test_invalid_values_are_reported_with_all_others() -> None:
    with pytest.raises(SpecError) as caught:
        resolve_spec(
            "pretrain",
            sets=[
                "code.folder=gone",
                "code.entry=a/b.py",
                "code.largest_file_mb=0",
                "code.entyr=x",
                "data.text=[gone.txt]",
            ],
            environ=NO_GPU,
        )
    starts = [
        f"--set: code.folder: no such folder: {Path.cwd()}/gone",
        "--set: code.entry: must be the dotted name of a module, as after `python -m`, not 'a/b.py'",
        "--set: code.largest_file_mb: must be greater than 0",
        '--set: code.entyr: unknown key (did you mean "entry"?)',
        "--set: data.text.0: no such file or folder",
    ]
    for start in starts:
        assert sum(problem.startswith(start) for problem in caught.value.problems) == 1, caught.value.problems
    assert len(caught.value.problems) == len(starts)


def test_file_is_not_a_code_folder() -> None:
    with pytest.raises(SpecError, match=r"code\.folder: no such folder: "):
        resolve_spec("pretrain", sets=["code.folder=text.txt"], environ=NO_GPU)


@pytest.mark.parametrize(
    ("sets", "ignored"),
    [
        (["code.folder=code"], ["code.folder"]),
        (["code.folder=code", "code.entry=my_pretrain"], []),
        (["code.folder=code", "code.entry=my_pretrain", "code.largest_file_mb=1", "code.allow_secrets=[a]"], []),
        (["code.entry=my_pretrain", "code.largest_file_mb=1"], ["code.largest_file_mb"]),
        (["code.largest_total_mb=1", "code.allow_secrets=[a]"], ["code.largest_total_mb", "code.allow_secrets"]),
    ],
)
def test_code_settings_without_effect_are_warnings(sets: list[str], ignored: list[str]) -> None:
    warnings = resolve_spec("pretrain", sets=sets, environ=NO_GPU).warnings
    assert [warning.partition(" has no effect: ")[0] for warning in warnings] == ignored


def test_run_hash_covers_user_code_and_command_only(folder: Path) -> None:
    without = plan().run_hash
    given = ["code.folder=code", "code.entry=my_pretrain"]
    first = plan(*given).run_hash
    assert first != without
    assert plan("code.folder=code").run_hash not in {first, without}
    assert plan(*given, "code.largest_file_mb=5", "code.largest_total_mb=50").run_hash == first
    shutil.copytree(folder / "code", folder / "moved")
    assert plan("code.folder=moved", "code.entry=my_pretrain").run_hash == first
    assert plan(*given, "code.allow_secrets=[my_pretrain.py]").run_hash == first
    (folder / "code" / "my_pretrain.py").write_text("import train_jobs.pretrain  # changed\n")
    assert plan(*given).run_hash not in {first, without}


def test_missing_entry_module_refused_with_location(folder: Path) -> None:
    (folder / "job.yaml").write_text("code:\n  folder: code\n  entry: my_pretrian\n")
    with pytest.raises(SpecError) as caught:
        make_plan(resolve_spec("pretrain", file=Path("job.yaml"), environ=NO_GPU), home=folder / "home")
    assert caught.value.message == 'code.entry: no module my_pretrian (did you mean "my_pretrain"?)'
    assert caught.value.facts["where"] == "job.yaml:3"


def test_request_runs_the_entry_module(folder: Path) -> None:
    made = plan("code.folder=code", "code.entry=my_pretrain")
    request = LocalBackend(folder / "home").prepare(made, run=made.name).request
    assert request.command[1:4] == ["-m", "my_pretrain", "--config"]
    assert LocalBackend(folder / "home").prepare(plan(), run="x").command[1:3] == ("-m", "train_jobs.pretrain")


def test_data_and_home_inside_code_not_shipped(folder: Path) -> None:
    for name in ("data/a.txt", "vocab.txt", "notes.md", "home/cache/x"):
        (folder / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "code" / name).write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    (folder / "code" / "data" / "a.txt").write_text(SMALL_TEXT)
    made = plan("code.folder=code", "data.vocabulary=code/vocab.txt", text="code/data", home="code/home")
    assert shipped(made) == ["my_pretrain.py", "notes.md", "train_jobs/pretrain.py"]
    assert {entry.path: entry.why for entry in made.snapshot.left_out} == {
        "data/": "data",
        "home/": "home folder",
        "vocab.txt": "data",
    }


def test_linked_table_keeps_its_name_and_is_not_shipped(folder: Path) -> None:
    """Caches of Hugging Face, DVC and git-annex name a file by a link; the file itself has no suffix."""
    rows = [f"p{index},{line}" for index, line in enumerate(SMALL_TEXT.splitlines()) if line]
    for name in ("blobs/cc1", "snap/n1.csv"):
        (folder / "code" / name).parent.mkdir()
    (folder / "code/blobs/cc1").write_text("\n".join(["patient,text", *rows]))
    (folder / "code/snap/n1.csv").symlink_to("../blobs/cc1")
    (folder / "current").symlink_to("code/snap")
    made = plan("code.folder=code", text="{path: current/n1.csv, column: text}")
    assert made.spec.model_dump()["data"]["text"] == [str(folder / "code/snap/n1.csv")]
    assert shipped(made) == ["my_pretrain.py", "train_jobs/pretrain.py"]
    with pytest.raises(DataError, match="no column 'body'"):
        plan(text="{path: code/snap/n1.csv, column: body}")


def test_output_of_the_command_is_not_shipped(folder: Path) -> None:
    """`orchestrator submit ... > code/out.log`: the log grows between plan and copy."""
    log = folder / "code" / "out.log"
    for descriptor in (1, 2):
        kept = os.dup(descriptor)
        try:
            with log.open("w") as stream:
                os.dup2(stream.fileno(), descriptor)
            made = plan("code.folder=code")
        finally:
            os.dup2(kept, descriptor)
            os.close(kept)
        assert {entry.path: entry.why for entry in made.snapshot.left_out} == {"out.log": "output of this command"}
    assert shipped(plan("code.folder=code")) == ["my_pretrain.py", "out.log", "train_jobs/pretrain.py"]


@pytest.mark.parametrize("text", ["code", "."])
def test_data_folder_as_code_ships_no_texts(folder: Path, text: str) -> None:
    (folder / "code" / "deep").mkdir()
    (folder / "code" / "deep" / "a.txt").write_text(SMALL_TEXT)
    (folder / "code" / "deep" / "b.md").write_text("one\n")
    made = plan("code.folder=code", text=text)
    assert shipped(made) == ["deep/b.md", "my_pretrain.py", "train_jobs/pretrain.py"]
    assert {entry.path: entry.why for entry in made.snapshot.left_out} == {"deep/a.txt": "data"}


def test_plan_shows_shipped_and_excluded_files(folder: Path) -> None:
    (folder / "code" / ".gitignore").write_text("data/\n*.log\n")
    for name in (*(f"data/{number}.bin" for number in range(1200)), "a.log", "__pycache__/a.pyc"):
        (folder / "code" / name).parent.mkdir(exist_ok=True)
        (folder / "code" / name).write_text("")
    made = plan("code.folder=code", "code.entry=my_pretrain")
    text = joined_summary(made)
    assert f"snapshot 2 files, 37 B, digest {made.snapshot.digest[:8]}" in text
    assert "largest my_pretrain.py 27 B, train_jobs/pretrain.py 10 B ignoring .gitignore left out" in text
    assert (
        "left out 1,203 files: data/ 1,200 (.gitignore), __pycache__/ 1 (cache), .gitignore 1 (ignore file), "
        "a.log 1 (.gitignore) commit none, not in a git repository"
    ) in text
    assert max(len(line) for line in made.summary().splitlines()) <= 80


def test_plan_explains_that_nothing_is_excluded() -> None:
    text = joined_summary(plan("code.folder=code"))
    assert "ignoring nothing: no .amlignore or .gitignore left out nothing commit" in text
    assert "left out" not in joined_summary(plan())


def test_plan_names_the_first_of_many_ignore_files(folder: Path) -> None:
    for name in "abcdef":
        (folder / "code" / name).mkdir()
        (folder / "code" / name / ".gitignore").write_text("*.log\n")
    few = ", ".join(f"{name}/.gitignore" for name in "abcde")
    assert f"ignoring {few}, ... left out" in joined_summary(plan("code.folder=code"))
    (folder / "code" / "f" / ".gitignore").unlink()
    assert f"ignoring {few} left out" in joined_summary(plan("code.folder=code"))


def test_plan_reports_more_exclusions_than_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.snapshot.walk.Walk.most_counted", 2)
    for number in range(3):
        (folder / "code" / ".git").mkdir(exist_ok=True)
        (folder / "code" / ".git" / str(number)).write_text("")
        for name in (f"{number}.pyc", f"{number}.pyo"):
            (folder / "code" / name).write_text("")
    assert (
        "left out more than 8 files: .git/ 2+ (version control), 0.pyc 1 (cache), 0.pyo 1 (cache), 1.pyc 1 (cache), "
        "1.pyo 1 (cache), ... commit unknown: not a git repository"
    ) in joined_summary(plan("code.folder=code"))


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_commit_is_in_the_plan_but_not_in_its_hash(folder: Path) -> None:
    def git(*words: str) -> str:
        settings = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=main"]
        command = ["git", *settings, "-C", "code", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def label() -> str | None:
        facts = plan("code.folder=code").snapshot.git
        assert facts is not None
        return facts.label

    git("init", "--quiet")
    assert "commit none yet on main, dirty: 1 files not committed" in joined_summary(plan("code.folder=code"))
    assert label() is None
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    commit, before = git("rev-parse", "HEAD"), plan("code.folder=code")
    assert f"commit {commit[:8]} on main, clean" in joined_summary(before)
    assert label() == commit
    git("commit", "--quiet", "--allow-empty", "-m", "second")
    assert plan("code.folder=code").run_hash == before.run_hash
    (folder / "code" / "new.py").write_text("")
    commit = git("rev-parse", "HEAD")
    assert label() == f"{commit}+dirty"
    document = json.loads(json.dumps(plan("code.folder=code").as_dict()))
    assert document["snapshot"]["git"] == {
        "commit": commit,
        "branch": "main",
        "uncommitted": 1,
        "problem": None,
        "remote": None,
        "dirty": True,
    }
    assert document["snapshot"]["folder"] == str(folder / "code")
    assert document["spec"]["code"]["entry"] == CodeSpec().entry
    git("checkout", "--quiet", "--detach")
    assert f"commit {commit[:8]}, dirty: 1 files not committed" in joined_summary(plan("code.folder=code"))


def test_git_state_of_the_package_is_shown(folder: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    subprocess.run(["git", "init", "--quiet", "site"], check=True)
    subprocess.run(["git", "-C", "site", "add", "."], check=True)
    branch = (folder / "site" / ".git" / "HEAD").read_text().strip().rpartition("/")[2]
    state = f"train_jobs: none yet on {branch}, dirty: 1 files not committed"
    assert f"commit {state}" in joined_summary(plan())
    assert f"commit none, not in a git repository {state}" in joined_summary(plan("code.folder=code"))


def test_module_of_own_class_must_be_shipped(folder: Path) -> None:
    """Nothing is imported: the module must be a shipped file or in another package; the job checks the rest."""
    (folder / "mine" / "deep").mkdir(parents=True)
    (folder / "mine" / "lion.py").write_text("raise SystemExit('imported')\n")
    (folder / "mine" / "deep" / "sop.py").write_text("")
    (folder / "stray.py").write_text("")  # in the current folder, but not shipped
    own = ["optimizer=lion:Lion", "objective=deep.sop:Order", "schedule=torch.optim.lr_scheduler:none"]
    made = plan(*own, "code.folder=mine")
    assert (made.job.optimizer.name, made.job.objective.name) == ("lion:Lion", "deep.sop:Order")
    assert not any("code.folder" in warning for warning in made.warnings)
    with pytest.raises(SpecError) as caught:
        plan("optimizer=lino:Lion", "objective=deep.gone:Order", "schedule=stray:rate", "code.folder=mine")
    assert caught.value.problems == [
        f'--set: objective.name: no module deep.gone in {folder / "mine"} (did you mean "deep.sop"?)',
        f'--set: optimizer.name: no module lino in {folder / "mine"} (did you mean "lion"?)',
        f"--set: schedule.name: no module stray in {folder / 'mine'}",
    ]
    with pytest.raises(SpecError) as caught:
        plan("optimizer=lion:Lion")
    assert caught.value.problems == ["--set: optimizer.name: no module lion and no --code DIR that could hold it"]


def test_unused_settings_of_own_class_warn(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "own.py").write_text("")
    own = ["optimizer=own:A", "schedule=own:b", "objective=own:C", "code.folder=mine"]
    rest = ["optimizer.eps=1e-3", "optimizer.weight_decay=0.5", "schedule.power=3", "objective.next_sentence=false"]
    warnings = plan(*own, *rest).warnings
    assert tuple(warning for warning in warnings if "no effect" in warning) == (
        "objective.next_sentence has no effect: own:C has objective.options",
        "optimizer.eps has no effect: own:A has optimizer.options",
        "schedule.power has no effect: own:b has schedule.options",
    )
