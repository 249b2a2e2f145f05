"""Shell completion: bash itself, and the protocol of argcomplete."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.ui.completion_finder import DistinctCompletions
from tests.conftest import Console
from tests.run_folders import make_run
from tests.unit.cli.conftest import Command
from train_jobs.artifacts.layers import preset_names

# bash calls the registered function with the current line when TAB is pressed
PRESS_TAB = """
source <(orchestrator completion bash)
complete -p orchestrator
COMP_LINE="$1" COMP_POINT=${#1} COMP_TYPE=9
_python_argcomplete orchestrator
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def shell(tmp_path: Path) -> Console:
    """Return the command line with a home of two runs and a sweep, and `orchestrator` on the PATH."""
    console = Console(home=tmp_path / "home", cwd=tmp_path)
    for age, name in enumerate(["pretrain-tiny-00000001", "other-00000002"]):
        make_run(console.home, name, age=age)
    sweep = console.home / "sweeps" / "search-00000003"
    sweep.mkdir(parents=True)
    (sweep / "lock").touch()
    program = tmp_path / "bin" / "orchestrator"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m orchestrator.cli.main "$@"\n')
    program.chmod(0o755)
    return console


def completions(console: Console, line: str) -> list[str]:
    path = f"{console.cwd / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", PRESS_TAB, "bash", line],
        capture_output=True,
        text=True,
        cwd=console.cwd,
        env=console.environ(PATH=path),
        check=False,
    )
    assert done.stderr == ""
    registered, *words = done.stdout.splitlines()
    assert registered.startswith("complete ")
    return [word.strip() for word in words if word]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("orchestrator sub", ["submit"]),
        ("orchestrator status ", ["@last", "pretrain-tiny-00000001", "other-00000002"]),
        ("orchestrator status pre", ["pretrain-tiny-00000001"]),
        ("orchestrator sweep show ", ["@last", "search-00000003"]),
        ("orchestrator resume s", ["search-00000003"]),
        ("orchestrator status s", []),
        ("orchestrator diff @last o", ["other-00000002"]),
        ("orchestrator status loc", ["local://pretrain-tiny-00000001", "local://other-00000002"]),
        ("orchestrator status local://o", ["//other-00000002"]),  # bash keeps the part before the colon
        ("orchestrator list --state fa", ["failed"]),
        ("orchestrator list -b ", ["azure", "debug", "local"]),
        ("orchestrator submit pretrain --sku Standard_ND96isr_H1", ["Standard_ND96isr_H100_v5"]),
        ("orchestrator download @last che", ["checkpoints"]),
        ("orchestrator submit pretrain --recipe ", preset_names()),
        ("orchestrator submit pretrain --recipe large-n", ["large-nvidia-phase1", "large-nvidia-phase2"]),
        ("orchestrator submit pretrain --set train.st", ["train.steps="]),
        ("orchestrator submit pretrain --set optimizer.name=", ["adamw", "lamb"]),
        ("orchestrator submit pretrain --set data.lower", ["data.lowercase="]),
        ("orchestrator submit pretrain --set data.lowercase=t", ["true"]),
        ("orchestrator submit pretrain --dry", ["--dry-run", "--dryrun"]),
    ],
)
def test_bash_completes(shell: Console, line: str, words: list[str]) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    assert completions(shell, line) == words


def test_completing_runs_imports_no_heavy_module(shell: Console) -> None:
    line = "orchestrator status "
    words = [sys.executable, "-X", "importtime", "-m", "orchestrator.cli.main"]
    done = subprocess.run(
        ["bash", "-c", 'exec "$@" 8>&1', "bash", *words],
        capture_output=True,
        text=True,
        env=shell.environ(_ARGCOMPLETE="1", COMP_LINE=line, COMP_POINT=str(len(line))),
        check=True,
    )
    assert "pretrain-tiny-00000001" in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "argcomplete" in loaded
    assert not {"pydantic", "yaml", "torch", "mlflow", "orchestrator.client"} & loaded


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_shell_accepts_completion_script(name: str, orchestrator: Command, tmp_path: Path) -> None:
    done = orchestrator("completion", name)
    assert done.code == 0
    assert "orchestrator" in done.out
    assert done.err == ""  # `source <(...)` reads it whenever a shell starts
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    script = tmp_path / "script"
    script.write_text(done.out)
    subprocess.run([name, "-n", str(script)], check=True)


def test_completion_on_terminal_shows_installation(orchestrator: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.cli.verbs.setup.sys.stdout.isatty", lambda: True)
    assert "source <(orchestrator completion bash)" in orchestrator("completion", "bash").err


def test_unknown_shell_is_a_usage_error(orchestrator: Command) -> None:
    assert orchestrator("completion", "tcsh").code == 2


class CountedText(str):
    """A text that counts its comparisons."""

    compared = 0
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        type(self).compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_completions_are_not_compared_with_each_other() -> None:
    names = [CountedText(f"run-{number}") for number in range(2000)]
    assert DistinctCompletions().filter_completions([*names, *names]) == names
    assert CountedText.compared < 10 * len(names)
