"""Pain 1: a command line that starts slowly. Timings: benchmarks/cli_startup.py and load.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import Console
from tests.run_folders import make_run

HEAVY = {"torch", "transformers", "mlflow", "azure", "optuna", "numpy", "pyarrow", "tokenizers", "pandas"}
PLANNING = {
    "orchestrator.jobs.pretrain.plan",
    "orchestrator.specs.job",
    *(f"train_jobs.config.{kind}" for kind in ("prepare", "pretrain", "finetune", "predict")),
}
VERBS = ("submit", "list", "logs", "data", "cost", "doctor", "completion")


def loaded(console: Console, *words: str) -> set[str]:
    """Return the modules that a command imports, and their packages."""
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
def test_help_imports_only_parser(console: Console, words: tuple[str, ...]) -> None:
    found = loaded(console, *words, "--help")
    assert "argparse" in found
    assert not found & (HEAVY | {"pydantic", "yaml", "argcomplete"})


@pytest.mark.parametrize(
    "words", [("submit", "pretrain", "--dry-run"), ("submit", "pretrain", "--dryrun", "-o", "json")]
)
def test_dry_run_imports_no_heavy_package(console: Console, words: tuple[str, ...]) -> None:
    found = loaded(console, *words)
    assert "pydantic" in found
    assert not found & HEAVY
    assert not (console.home / "runs").exists()


@pytest.mark.parametrize("words", [("list",), ("status", "one"), ("cost", "one"), ("download", "one", "plan")])
def test_inspecting_runs_imports_no_planning_modules(console: Console, words: tuple[str, ...]) -> None:
    make_run(console.home, "one", plan={"world_size": 2, "changes": {}})
    found = loaded(console, *words)
    assert "orchestrator.backends.folder.backend" in found
    assert not found & (HEAVY | PLANNING)
    if words[0] != "download":  # suggestions for an output that does not exist
        assert "yaml" not in found
