"""The unmodified client works with a workspace like a user, and the double records the requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from wire_entities import cluster, data, environment, get_json, job, prepare

from orchestrator.testing import AzureDouble


def test_cluster_is_created_shown_and_deleted(azure: AzureDouble, ml: Any) -> None:
    made = ml.compute.begin_create_or_update(cluster(tier="low_priority", idle_time_before_scale_down=900)).result()
    assert (made.name, made.provisioning_state, made.tier) == ("gpu", "Succeeded", "low_priority")
    assert (made.max_instances, made.idle_time_before_scale_down) == (2, 900)
    assert [found.name for found in ml.compute.list()] == ["gpu"]
    ml.compute.begin_delete("gpu").result()
    with pytest.raises(ResourceNotFoundError):
        ml.compute.get("gpu")
    (put,) = azure.requests("PUT */computes/gpu")
    assert put.query["api-version"] == "2023-08-01-preview"
    assert put.body["properties"]["properties"]["vmPriority"] == "LowPriority"


def test_environment_by_conda_and_by_folder(azure: AzureDouble, ml: Any, tmp_path: Path) -> None:
    from azure.ai.ml.entities import BuildContext, Environment

    assert ml.environments.create_or_update(environment()).version == "1"
    changed = Environment(name="train", image="mcr.microsoft.com/azureml/base:2")
    assert ml.environments.create_or_update(changed).version == "2"
    assert ml.environments.get("train", label="latest").image.endswith(":2")
    assert [found.version for found in ml.environments.list("train")] == ["2", "1"]
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM scratch\n")
    built = ml.environments.create_or_update(Environment(name="built", build=BuildContext(path=str(context))))
    assert built.build.path.endswith("/context/")
    assert list(azure.folder().glob("LocalUpload/*/context/Dockerfile"))


def test_version_of_an_asset_never_changes(ml: Any) -> None:
    from azure.ai.ml.entities import Environment

    first = Environment(name="train", image="mcr.microsoft.com/azureml/base:1", version="7")
    ml.environments.create_or_update(first)
    assert ml.environments.create_or_update(first).version == "7"
    with pytest.raises(HttpResponseError, match="image cannot change"):
        ml.environments.create_or_update(
            Environment(name="train", image="mcr.microsoft.com/azureml/base:2", version="7")
        )


def test_data_are_uploaded_once(azure: AzureDouble, ml: Any, tmp_path: Path) -> None:
    asset = data(tmp_path / "corpus")
    (tmp_path / "corpus" / "large.bin").write_bytes(bytes(range(256)) * 150_000)  # more than one block
    path = ml.data.create_or_update(asset).path
    assert path.startswith("azureml://")
    stored = next(azure.folder().glob("LocalUpload/*/corpus/large.bin"))
    assert stored.read_bytes() == (tmp_path / "corpus" / "large.bin").read_bytes()
    uploads = len(azure.requests("PUT *.blob.*large.bin"))
    assert uploads > 1
    asset.version = None
    assert ml.data.create_or_update(asset).version == "2"
    assert len(azure.requests("PUT *.blob.*large.bin")) == uploads


def test_job_is_accepted_shown_listed_and_cancelled(azure: AzureDouble, ml: Any, code: Path, tmp_path: Path) -> None:
    prepare(ml, tmp_path)
    ml.jobs.create_or_update(job("one", code))
    assert ml.jobs.get("one").status == "Starting"
    azure.move("one", "Running")
    assert ml.jobs.get("one").status == "Running"
    ml.jobs.create_or_update(job("two", code))
    assert [found.name for found in ml.jobs.list()] == ["two", "one"]
    ml.jobs.begin_cancel("one").result()
    assert ml.jobs.get("one").status == "Canceled"
    (put, _) = azure.requests("PUT */jobs/*")
    sent = put.body["properties"]
    assert put.query["api-version"] == "2025-01-01-preview"
    assert sent["distribution"] == {"distributionType": "PyTorch", "processCountPerInstance": 2}
    assert sent["resources"]["instanceCount"] == 2
    assert len(azure.requests("POST */startPendingUpload")) == 1, "the same code was uploaded twice"
    assert azure.violations == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compute": "nowhere"}, "Unknown compute target 'nowhere'"),
        ({"environment": "azureml:nothing:1"}, "environmentId .* could not be found"),
        ({"instance_count": -1}, "InstanceCount must be at least 1"),
        ({"instance_count": 3}, "only has 2 maximum nodes"),
        ({"tags": {f"t{number}": "x" for number in range(51)}}, "at most 50 tags"),
        ({"tags": {"k": "x" * 1001}}, "at most 1000 characters"),
        ({"experiment_name": "my experiment"}, "Experiment name must be 1-256 characters"),
    ],
)
def test_job_refused_by_the_service_is_refused(
    ml: Any, code: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    prepare(ml, tmp_path)
    with pytest.raises(HttpResponseError, match=message):
        ml.jobs.create_or_update(job("one", code, **change))
    with pytest.raises(ResourceNotFoundError):
        ml.jobs.get("one")


def test_job_name_is_used_only_once(azure: AzureDouble, ml: Any, code: Path, tmp_path: Path) -> None:
    prepare(ml, tmp_path)
    ml.jobs.create_or_update(job("one", code))
    ml.jobs.create_or_update(job("one", code))
    assert len(azure.jobs.all()) == 1
    with pytest.raises(HttpResponseError, match="already exists, with another command"):
        ml.jobs.create_or_update(job("one", code, command="echo other", inputs={}, outputs={}))


def test_archived_entities_are_listed_separately(azure: AzureDouble, ml: Any, code: Path, tmp_path: Path) -> None:
    from azure.ai.ml.constants import ListViewType
    from azure.ai.ml.entities import Environment

    prepare(ml, tmp_path)
    ml.environments.create_or_update(Environment(name="train", image="mcr.microsoft.com/azureml/base:2"))
    ml.environments.archive("train", version="2")
    assert ml.environments.get("train", label="latest").version == "1"
    ml.environments.restore("train", version="2")
    assert ml.environments.get("train", label="latest").version == "2"
    ml.environments.archive("train", version="1")
    ml.jobs.create_or_update(job("one", code))
    ml.jobs.create_or_update(job("two", code))
    ml.jobs.archive("one")

    def listed(view: str) -> tuple[list[str], list[str]]:
        kind = ListViewType(view)
        versions = ml.environments.list("train", list_view_type=kind)
        return [found.version for found in versions], [found.name for found in ml.jobs.list(list_view_type=kind)]

    assert listed("ActiveOnly") == (["2"], ["two"])
    assert listed("ArchivedOnly") == (["1"], ["one"])
    assert listed("All") == (["2", "1"], ["two", "one"])
    one = get_json(azure, "environments/train/versions", "2023-04-01-preview", **{"listViewType": "All", "$top": "1"})
    assert [found["name"] for found in one["value"]] == ["2"]


def test_unknown_workspace_is_missing(azure: AzureDouble, client: Any) -> None:
    with pytest.raises(ResourceNotFoundError, match="workspaces/other"):
        client(azure, "other").workspaces.get("other")
