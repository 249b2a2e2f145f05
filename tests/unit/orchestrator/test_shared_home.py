"""Two live users of one group who share a home folder, and a third who is not in the group."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.conftest import Console, committed, processes_of, wait_for, write_corpus, write_endless_spec, write_spec
from tests.home_modes import other_modes, python_for_all

OWNER, MEMBER, STRANGER = 1, 2, 65534  # uids of system users of every Linux
TEAM = 100  # users
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run commands as other users"),
    pytest.mark.timeout(600),
]


@dataclass
class Team:
    """One home folder and the command line of three users."""

    folder: Path
    owner: Console
    member: Console
    stranger: Console


def console_of(user: int, group: int, home: Path, python: Path) -> Console:
    """Return the command line of another user, with a folder of their own."""
    cwd = home.parent / f"user-{user}"
    cwd.mkdir(mode=0o755)
    os.chown(cwd, user, group)
    program = ("setpriv", "--reuid", str(user), "--regid", str(group), "--clear-groups", str(python))
    return Console(home=home, cwd=cwd, variables={"HOME": str(cwd)}, program=program)


@pytest.fixture
def team() -> Iterator[Team]:
    """Yield a home that its owner has shared with a group."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o1777)
        python, home = python_for_all(folder / "python"), folder / "home"
        users = [console_of(user, group, home, python) for user, group in ((OWNER, TEAM), (MEMBER, TEAM))]
        team = Team(folder, *users, console_of(STRANGER, STRANGER, home, python))
        done = team.owner("home", "share", "--group", grp.getgrgid(TEAM).gr_name)
        assert done.code == 0, done.err
        yield team
        folders = [*team.owner.home.glob("runs/*"), *team.owner.home.glob("sweeps/*")]
        wait_for(lambda: not any(processes_of(one) for one in folders), what="end of all processes")


def spec_of(team: Team, **sections: object) -> str:
    """Write the spec of a small job, readable for all."""
    text = write_corpus(team.folder / "corpus.txt")
    spec = write_spec(team.folder / "job.yaml", data={"text": [str(text)]}, train={"steps": 4}, **sections)
    for path in (text, spec):
        path.chmod(0o644)
    return str(spec)


def test_members_use_each_others_runs_and_strangers_read_nothing(team: Team) -> None:
    spec = spec_of(team)
    done = team.owner("submit", "pretrain", "-f", spec, "-o", "json")
    assert done.code == 0, done.err
    first = done.json["name"]

    assert first in team.member("list").out
    assert team.member("status", first, "-o", "json").json["state"] == "completed"
    assert "step 4/4" in team.member("logs", first).out
    done = team.member("download", first, "model", "--to", "mine")
    assert done.code == 0, done.err
    assert (team.member.cwd / "mine" / "model" / "model.safetensors").stat().st_size > 0
    done = team.member("submit", "pretrain", "-f", spec, "--set", "train.seed=2", "-o", "json")
    assert done.code == 0, done.err
    assert team.owner("status", done.json["name"], "-o", "json").json["state"] == "completed"
    for console in (team.member, team.owner):
        done = console("mlflow", "sync", "--all")
        assert done.code == 0, done.err
        assert console("report", first).code == 0

    for words in (["list"], ["status", first], ["logs", first], ["download", first, "--to", "mine"]):
        done = team.stranger(*words)
        assert (done.code, done.out) == (1, "")
        assert "it belongs to another user" in done.err
    walked = subprocess.run([*team.stranger.program[:-1], "ls", "-R", str(team.owner.home)], capture_output=True)
    assert walked.stdout == b""
    assert other_modes(team.owner.home, 0o2770, 0o660) == {}


def endless_run(team: Team) -> str:
    """Start a run of the owner; return its name after its first step."""
    spec_of(team)
    spec = write_endless_spec(team.folder / "endless.yaml", team.folder / "corpus.txt")
    spec.chmod(0o644)
    done = team.owner("submit", "pretrain", "-f", str(spec), "--detach", "-o", "json")
    assert done.code == 0, done.err
    name: str = done.json["name"]
    wait_for(lambda: "step" in team.member("logs", name).out, what="a step")
    return name


def test_member_cancels_and_resumes_a_run_of_the_owner(team: Team) -> None:
    name = endless_run(team)
    assert team.member("cancel", name).code == 0
    wait_for(lambda: team.owner("status", name, "-o", "json").json["state"] == "cancelled", what="cancelled")
    assert committed(team.owner.folder(name))
    done = team.member("resume", name, "--detach")
    assert done.code == 0, done.err
    assert team.owner("cancel", name).code == 0
    wait_for(lambda: team.owner("status", name, "-o", "json").json["state"] == "cancelled", what="cancelled again")
    assert other_modes(team.owner.home, 0o2770, 0o660) == {}


def test_member_cannot_preempt_or_debug_a_run_of_the_owner(team: Team) -> None:
    name = endless_run(team)
    owner = pwd.getpwuid(OWNER).pw_name
    refused = team.member("preempt", name)
    assert refused.code == 1
    assert f"cannot preempt run {name}: its processes belong to user {owner}" in refused.err
    stacks = team.member("debug", name)
    assert f"belongs to user {owner}, who alone can ask it for its stacks" in stacks.out + stacks.err
    assert "File " not in stacks.out
    assert team.owner("status", name, "-o", "json").json["state"] == "running"
    assert team.owner("cancel", name).code == 0
    wait_for(lambda: team.owner("status", name, "-o", "json").json["state"] == "cancelled", what="cancelled")


def test_member_tunes_and_owner_deletes(team: Team) -> None:
    space = {"trial": spec_of(team), "space": {"optimizer.learning_rate": [0.001, 0.002]}, "sampling": "grid"}
    sweep = team.folder / "sweep.yaml"
    sweep.write_text(yaml.safe_dump({**space, "name": "tuned"}))
    sweep.chmod(0o644)
    plan = team.member("submit", "sweep", "-f", str(sweep), "--dry-run")
    assert "shared with group users, whose members can read and change this sweep" in plan.out, plan
    done = team.member("submit", "sweep", "-f", str(sweep), "-o", "json")
    assert done.code == 0, done.err
    name = done.json["name"]
    assert name in team.owner("sweep", "list").out
    assert [row["state"] for row in team.owner("sweep", "show", name, "-o", "json").json["rows"]] == ["completed"] * 2
    assert other_modes(team.owner.home, 0o2770, 0o660) == {}
    assert team.stranger("sweep", "show", name).out == ""
    done = team.owner("prune", "--purge", name, "--yes")
    assert done.code == 0, done.err
    assert team.member("list", "-o", "json").json == []
