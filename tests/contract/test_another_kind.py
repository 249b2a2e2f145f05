"""A job kind from another package runs like the built-in ones, locally and on the double of Azure."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.client import Orchestrator
from orchestrator.jobs.registry import job_kind, kind_names
from orchestrator.runs.status import RunState
from orchestrator.testing import AzureDouble
from tests.conftest import Console

SOURCE = Path(__file__).parent / "tokenize_kind"
TEXT = "The cat and the dog\n"
CLUSTER = {"compute.cluster": "cpu-ds3", "compute.sku": "Standard_DS3_v2"}


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a text; install the package of the kind for this process and its children."""
    site = tmp_path / "site-packages"
    shutil.copytree(SOURCE, site)
    facts = site / "tokenize_kind-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: tokenize-kind\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[orchestrator.jobs]\ntokenize = tokenize_kind:TOKENIZE\n")
    monkeypatch.syspath_prepend(str(site))
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *([before] if before else [])]))
    path = tmp_path / "words.txt"
    path.write_text(TEXT)
    yield path
    sys.modules.pop("tokenize_kind", None)


def test_registered_kind_is_offered(text: Path) -> None:
    assert kind_names()[-1] == "tokenize"
    assert job_kind("tokenize").spec.model_fields["recipe"].default == "plain"


@pytest.mark.long
def test_registered_kind_runs_here(text: Path, console: Console) -> None:
    done = console("submit", "tokenize", "--data", str(text), "-o", "json")
    assert done.code == 0, done.err
    status = json.loads(done.out)
    assert (status["kind"], status["state"]) == ("tokenize", "completed")
    outputs = console.folder(status["name"]) / "outputs"
    assert json.loads((outputs / "result.json").read_text()) == {"tokens": 5, "distinct": 4}
    wrong = console("validate", "tokenize", "--data", str(text), "--set", "lowrcase=no")
    assert 'lowrcase: unknown key (did you mean "lowercase"?)' in wrong.err


def test_registered_kind_runs_on_azure(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_AZURE_POLL_SECONDS", "0.2")
    with AzureDouble(tmp_path / "azure") as double:
        client = Orchestrator("azure", home=tmp_path / "home")
        plan = client.plan("tokenize", overrides={"text": str(text), "lowercase": False, **CLUSTER})
        run = client.submit(plan)
        run.wait()
        assert run.status().state == RunState.COMPLETED, [line.text for line in run.logs()]
        (result,) = run.download("result", to=tmp_path / "fetched")
        assert json.loads(result.read_text()) == {"tokens": 5, "distinct": 5}
        assert (double.violations, double.refused) == ([], [])
