"""A sweep whose trials need a secret: each trial gets it, no file has it, and without it the sweep stops."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml

from tests.conftest import Console, processes_of, wait_for, write_spec
from tests.e2e.test_canaries import Hunt, copy_to_mlflow, draw, redirect

pytestmark = pytest.mark.long

NAME = "REGISTRY_TOKEN"
PRINTING = f"""
import hashlib, os
value = os.environ["{NAME}"]
print("digest", hashlib.sha256(value.encode()).hexdigest(), "value", value, flush=True)
import train_jobs.pretrain as job
from train_jobs.engine.runtime import boundary
boundary.exit_process(job.main())
"""


def write_sweep(folder: Path, corpus: Path, reference: str) -> Path:
    """Write a sweep of two trials with a secret, whose code prints its digest and the secret itself."""
    (folder / "code").mkdir()
    (folder / "code" / "printing.py").write_text(PRINTING)
    code = {"folder": str(folder / "code"), "entry": "printing"}
    secrets = {"secrets": {NAME: reference}}
    write_spec(folder / "job.yaml", data={"text": [str(corpus)]}, train={"steps": 4}, code=code, environment=secrets)
    space = {"space": {"optimizer.learning_rate": [0.001, 0.002]}, "sampling": "grid", "limits": {"concurrent": 1}}
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"trial": "job.yaml", **space}))
    return folder / "sweep.yaml"


@pytest.mark.timeout(600)
def test_trials_get_a_secret_that_no_file_has(console: Console, corpus: Path) -> None:
    value = draw(24)
    redirect(console)
    sweep = write_sweep(console.cwd, corpus, f"env:{NAME}")
    hunt = Hunt({NAME: value}, set())
    refused = console("submit", "sweep", "-f", str(sweep))
    assert (refused.code, refused.err.splitlines()[-3][:7]) == (2, "error[u"), refused.err
    assert f"needs {NAME}" in refused.err
    assert not (console.home / "sweeps").exists()

    planned = hunt.look_at(console("submit", "sweep", "-f", str(sweep), "--dry-run", **{NAME: value}))
    assert f"{NAME} from your environment: an unattended restart after a reboot lacks it" in " ".join(
        planned.out.split()
    )
    with hunt.watching_processes():
        done = hunt.look_at(console("submit", "sweep", "-f", str(sweep), "-o", "json", **{NAME: value}))
        assert done.code == 0, done.err
        runs = [row["runs"][0] for row in done.json["rows"]]
        assert [row["state"] for row in done.json["rows"]] == ["completed", "completed"]
        for run in runs:
            hunt.look_at(console("logs", run))
            hunt.look_at(console("status", run, "-o", "json"))
        hunt.look_at(console("sweep", "report", done.json["name"]))
        wait_for(lambda: not any(processes_of(console.folder(run)) for run in runs), what="end of all processes")
        copy_to_mlflow(hunt, console, **{NAME: value})
    digest = hashlib.sha256(value.encode()).hexdigest()
    for run in runs:
        assert f"digest {digest} value REDACTED" in (console.folder(run) / "logs" / "rank-0.log").read_text()
    hunt.require_clean(console)
    assert hunt.files > 50
    assert hunt.command_lines > 100


@pytest.mark.timeout(600)
def test_sweep_stops_when_the_secret_disappears(console: Console, untracked: None, corpus: Path) -> None:
    secret = console.cwd / "secret.env"
    secret.write_text(f"{NAME}={draw(24)}\n")
    secret.chmod(0o600)
    sweep = write_sweep(console.cwd, corpus, f"file:{secret}")
    begun = console("submit", "sweep", "-f", str(sweep), "-d")
    assert begun.code == 0, begun.err
    name = begun.out.strip()
    first = console.folder(f"{name}-t0000")
    wait_for(lambda: processes_of(first), what="the first trial")
    kept = secret.read_text()
    secret.unlink()
    shown = wait_for(lambda: ended(console, name), what="the end of the sweep")
    assert shown["state"] == "failed"
    assert f"needs {NAME}" in shown["reason"]
    assert f"needs {NAME}" in console("resume", name).err
    secret.write_text(kept)
    secret.chmod(0o600)
    done = console("resume", name, "-o", "json")
    assert done.code == 0, done.err
    assert [row["state"] for row in done.json["rows"]] == ["completed", "completed"]


def ended(console: Console, name: str) -> dict[str, str] | None:
    """Return the status of a finished sweep."""
    status: dict[str, str] = console("sweep", "show", name, "-o", "json").json
    return status if status["state"] not in {"queued", "starting", "running"} else None
