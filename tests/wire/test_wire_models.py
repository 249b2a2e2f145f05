"""Models and their endpoints, from registration to deletion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import requests
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from wire_entities import environment

from orchestrator.testing import AzureDouble


def test_model_is_deployed_called_and_deleted(azure: AzureDouble, ml: Any, tmp_path: Path) -> None:
    from azure.ai.ml.entities import ManagedOnlineDeployment, ManagedOnlineEndpoint, Model

    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    model = ml.models.create_or_update(Model(name="bert", path=str(tmp_path / "model"), tags={"run": "one"}))
    assert (model.version, model.tags) == ("1", {"run": "one"})
    assert [found.version for found in ml.models.list("bert")] == ["1"]
    ml.environments.create_or_update(environment())
    ml.online_endpoints.begin_create_or_update(ManagedOnlineEndpoint(name="words", auth_mode="key")).result()
    wanted = ManagedOnlineDeployment(
        name="blue",
        endpoint_name="words",
        model="azureml:bert:1",
        environment="azureml:train:1",
        instance_type="Standard_NC4as_T4_v3",
        instance_count=1,
    )
    ml.online_deployments.begin_create_or_update(wanted, skip_script_validation=True).result()
    endpoint = ml.online_endpoints.get("words")
    endpoint.traffic = {"green": 100}
    with pytest.raises(HttpResponseError, match="unknown deployments: green"):
        ml.online_endpoints.begin_create_or_update(endpoint).result()
    endpoint.traffic = {"blue": 50}
    with pytest.raises(HttpResponseError, match="sum up to 0 or 100"):
        ml.online_endpoints.begin_create_or_update(endpoint).result()
    endpoint.traffic = {"blue": 100}
    ml.online_endpoints.begin_create_or_update(endpoint).result()
    azure.score_with("words", lambda document: {"length": len(document["text"])})
    key = ml.online_endpoints.get_keys("words").primary_key
    asked = {"json": {"text": "word"}, "headers": {"Authorization": f"Bearer {key}"}}
    with requests.post(endpoint.scoring_uri, **asked) as reply:
        assert reply.json() == {"length": 4}
    with requests.post(endpoint.scoring_uri, json={"text": "word"}) as reply:
        assert reply.status_code == 401
    with pytest.raises(HttpResponseError, match="blue still gets traffic"):
        ml.online_deployments.begin_delete("blue", "words").result()
    ml.online_endpoints.begin_delete("words").result()
    with pytest.raises(ResourceNotFoundError):
        ml.online_deployments.get("blue", "words")
    assert azure.violations == []
