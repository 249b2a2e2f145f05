"""All of it in the cloud, that is in its double: a cluster, a token store, a model trained on it, downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.client import Orchestrator
from orchestrator.runs import RunState
from orchestrator.testing import AzureDouble
from tests.conftest import write_corpus, write_spec

ON_AZURE = {"cluster": "cpu", "sku": "Standard_D16s_v5"}


@pytest.mark.slow
def test_text_is_prepared_and_trained_on_in_the_cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_AZURE_POLL_SECONDS", "0.2")
    write_corpus(tmp_path / "corpus.txt")
    text: dict[str, Any] = {"data.text": [str(tmp_path / "corpus.txt")], "compute.cluster": "cpu"}
    with AzureDouble(tmp_path / "azure") as azure:
        cloud = Orchestrator("azure", home=tmp_path / "home", environ={})
        small = {"data.vocab_size": 256, "data.validation_fraction": 0.2, "store": str(tmp_path / "words")}
        plan = cloud.plan("prepare", overrides={**text, **small, "compute.sku": ON_AZURE["sku"]})
        prepared = cloud.submit(plan)
        done = prepared.wait(timeout=300)
        assert (done.kind, done.state) == ("prepare", RunState.COMPLETED), "\n".join(azure.logs(prepared.name))
        assert done.store == "azureml://datastores/workspaceblobstore/paths/orchestrator/token-stores/words"
        assert (azure.folder() / "orchestrator/token-stores/words/manifest.json").is_file()
        assert done.metrics["documents"] > 0

        write_spec(tmp_path / "job.yaml", compute=ON_AZURE, azure={"data": done.store, "preflight": False})
        trained = cloud.submit(cloud.plan(file=tmp_path / "job.yaml"))
        assert trained.wait(timeout=300).state == RunState.COMPLETED, "\n".join(azure.logs(trained.name))
        folder = trained.download("model", to=tmp_path / "model")
        assert any(path.name == "model.safetensors" for path in (tmp_path / "model").rglob("*")), folder
        assert (azure.violations, azure.refused) == ([], [])
