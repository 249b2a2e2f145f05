"""What the command line loads: nothing heavy before it is needed. How long that takes: benchmarks/cli_startup.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import Console

HEAVY = {"torch", "transformers", "mlflow", "azure", "optuna", "numpy", "pyarrow", "tokenizers", "pandas"}


def loaded(console: Console, *words: str) -> set[str]:
    """Top-level packages that a command imports."""
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
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


def test_help_loads_nothing_but_the_parser(console: Console) -> None:
    found = loaded(console, "--help")
    assert "argparse" in found
    assert not found & (HEAVY | {"pydantic", "yaml"})


@pytest.mark.parametrize(
    "words", [("submit", "pretrain", "--dry-run"), ("submit", "pretrain", "--dryrun", "-o", "json")]
)
def test_dry_run_loads_no_heavy_package(console: Console, words: tuple[str, ...]) -> None:
    found = loaded(console, *words)
    assert "pydantic" in found
    assert not found & HEAVY
    assert not (console.home / "runs").exists()
