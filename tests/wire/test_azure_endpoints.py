"""`orchestrator model endpoints|traffic|rollback`, and a second deployment of an endpoint, against the double."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.azure.backend import AzureBackend
from orchestrator.backends.azure.runs.models import deploy
from orchestrator.backends.azure.runs.observer import Observer
from orchestrator.cli.main import main
from orchestrator.client import Orchestrator
from orchestrator.support.errors import ConflictError, NotFoundError, UserError
from orchestrator.testing import AzureDouble
from tests.conftest import write_corpus, write_spec

pytestmark = pytest.mark.usefixtures("small_snapshot")

PUT = "PUT *onlineEndpoints/*"
Model = Callable[..., tuple[int, Any, str]]
Deploy = Callable[..., dict[str, Any]]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Model:
    """Return a function that runs `orchestrator model` here: exit code, document, stderr."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, Any, str]:
        code = main(["model", *words, "-o", "json"])
        out, err = capsys.readouterr()
        return code, json.loads(out), err

    return run


@pytest.fixture
def deployed(azure: AzureDouble, tmp_path: Path) -> Deploy:
    """Return a function that deploys a version of a model, and have version 1 at the endpoint `words`."""
    text = write_corpus(tmp_path / "corpus.txt")
    write_spec(
        tmp_path / "job.yaml",
        data={"text": [str(text)]},
        compute={"cluster": "gpu", "sku": "Standard_NC4as_T4_v3"},
    )
    here = Orchestrator("azure", home=tmp_path / "home", environ={})
    run = here.submit(here.plan(file=tmp_path / "job.yaml"))
    backend = AzureBackend(tmp_path / "home")
    observer: Observer = backend._observe(run.name)

    def make(version: str, **options: Any) -> dict[str, Any]:
        def register() -> dict[str, Any]:
            body = {"properties": {"modelType": "custom_model", "modelUri": "azureml://datastores/d/paths/p/"}}
            observer.wire.put_asset("models", "bert", version, body)
            return {"name": "bert", "version": version}

        return deploy(observer, register, options.pop("endpoint", "words"), None, **options)

    make("1")
    return make


def shares(row: dict[str, Any]) -> dict[str, int]:
    """Return the traffic of an endpoint's deployments."""
    return {one["name"]: one["traffic"] for one in row["deployments"]}


def test_second_deployment_gets_its_share_and_is_rolled_back(
    azure: AzureDouble, deployed: Deploy, model: Model
) -> None:
    made = deployed("2", traffic=10)
    assert (made["deployment"], made["traffic"]) == ("green", {"blue": 90, "green": 10})
    code, (row,), _ = model("endpoints")
    assert (code, row["endpoint"], row["uri"], shares(row)) == (0, "words", made["uri"], made["traffic"])
    assert [(one["model"], one["version"], one["state"]) for one in row["deployments"]] == [
        ("bert", "1", "Succeeded"),
        ("bert", "2", "Succeeded"),
    ]
    assert shares(model("traffic", "words", "blue=40,green=60", "-y")[1]) == {"blue": 40, "green": 60}
    assert shares(model("traffic", "words", "green=100", "-y")[1]) == {"blue": 0, "green": 100}
    assert shares(model("rollback", "words", "-y")[1]) == {"blue": 100, "green": 0}
    sent = len(azure.requests(PUT))
    assert shares(model("rollback", "words", "--delete", "-y")[1]) == {"blue": 100}
    assert len(azure.requests(PUT)) == sent
    assert deployed("3", traffic=100)["traffic"] == {"blue": 0, "green": 100}
    assert azure.violations == []


def test_first_deployment_alone_cannot_be_rolled_back(azure: AzureDouble, deployed: Deploy, model: Model) -> None:
    code, _, err = model("rollback", "words", "-y")
    assert (code, "no record of a former deployment" in err) == (1, True)
    with pytest.raises(ConflictError, match="already exists"):
        deployed("2")
    with pytest.raises(NotFoundError, match="others does not exist"):
        deployed("2", endpoint="others", traffic=10)
    deployed("2", traffic=10)
    with pytest.raises(ConflictError, match="must go to a single one first"):
        deployed("3", traffic=10)


@pytest.mark.parametrize(
    ("traffic", "message"),
    [
        ("blue=90,green=5", "its sum is 95, not 100"),
        ("blue=90,gren=10", "has no deployment 'gren'"),
        ("blue=90,blue=10", "each name once"),
        ("blue=110,green=-10", "from 0 to 100"),
        ("blue", "expected NAME=PERCENT"),
    ],
)
def test_bad_traffic_is_not_sent(
    azure: AzureDouble, deployed: Deploy, model: Model, traffic: str, message: str
) -> None:
    deployed("2", traffic=10)
    before = len(azure.requests(PUT))
    code, document, err = model("traffic", "words", traffic, "-y")
    assert code != 0
    assert message in err
    assert message in document["error"]["message"]
    assert len(azure.requests(PUT)) == before


def test_failed_deployment_gets_no_traffic(azure: AzureDouble, deployed: Deploy, model: Model) -> None:
    azure.fail_deployment("green", code="ResourceNotReady", message="User container has crashed.")
    with pytest.raises(UserError, match="User container has crashed"):
        deployed("2", traffic=10)
    (row,) = model("endpoints")[1]
    assert shares(row) == {"blue": 100, "green": 0}
    code, _, err = model("traffic", "words", "blue=90,green=10", "-y")
    assert (code, "green of endpoint words cannot get traffic: its state is Failed" in err) == (1, True)
    azure.state.failing_deployments.clear()
    assert deployed("3", traffic=10)["traffic"] == {"blue": 90, "green": 10}
    (row,) = model("endpoints")[1]
    assert [one["version"] for one in row["deployments"]] == ["1", "3"]
