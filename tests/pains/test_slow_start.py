"""Pain 1: a command line that is slow to start. How long it takes: benchmarks/cli_startup.py and list_runs.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import Console
from tests.run_folders import make_run

HEAVY = {"torch", "transformers", "mlflow", "azure", "optuna", "numpy", "pyarrow", "tokenizers", "pandas"}
VERBS = ("submit", "list", "logs", "data", "cost", "doctor", "completion")


def loaded(console: Console, *words: str) -> set[str]:
    """Modules that a command imports, and the packages that they are of."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "orchestrator.cli.main", *words],
        capture_output=True,
        text=True,
        cwd=console.cwd,
        env=console.environ(),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    modules = {line.rpartition("|")[2].strip() for line in lines}
    return modules | {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize("words", [(), *((verb,) for verb in VERBS)])
def test_help_loads_nothing_but_the_parser(console: Console, words: tuple[str, ...]) -> None:
    found = loaded(console, *words, "--help")
    assert "argparse" in found
    assert not found & (HEAVY | {"pydantic", "yaml", "argcomplete"})


@pytest.mark.parametrize(
    "words", [("submit", "pretrain", "--dry-run"), ("submit", "pretrain", "--dryrun", "-o", "json")]
)
def test_dry_run_loads_no_heavy_package(console: Console, words: tuple[str, ...]) -> None:
    found = loaded(console, *words)
    assert "pydantic" in found
    assert not found & HEAVY
    assert not (console.home / "runs").exists()


@pytest.mark.parametrize("words", [("list",), ("status", "one"), ("cost", "one"), ("download", "one", "plan")])
def test_looking_at_runs_loads_nothing_that_planning_needs(console: Console, words: tuple[str, ...]) -> None:
    make_run(console.home, "one", plan={"world_size": 2, "changes": {}})
    found = loaded(console, *words)
    assert "orchestrator.backends.folder.backend" in found
    assert not found & (HEAVY | {"orchestrator.jobs.pretrain.plan", "orchestrator.specs.job"})
    if words[0] != "download":  # near names for an output that there is not
        assert "yaml" not in found
