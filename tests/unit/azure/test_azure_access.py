"""Access to what a run on Azure needs and makes: networks, identities, SSH into a running job, elastic machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.support.errors import SpecError
from orchestrator.testing.schemas.schema import mismatches
from tests.unit.azure.conftest import MakePlan, request_of


def test_new_cluster_has_network_and_identity(make_plan: MakePlan, tmp_path: Path) -> None:
    subnet = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/v/subnets/default"
    identity = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ManagedIdentity/userAssignedIdentities/trainer"
    options = {"subnet": subnet, "node_public_ip": False, "cluster_identity": identity}
    body = request_of(make_plan({f"azure.{key}": value for key, value in options.items()})).cluster.body
    assert body is not None
    assert body["identity"] == {"type": "UserAssigned", "userAssignedIdentities": {identity: {}}}
    assert body["properties"]["properties"]["subnet"] == {"id": subnet}
    assert body["properties"]["properties"]["enableNodePublicIp"] is False
    assert mismatches("computes", "2023-08-01-preview", {"location": "eastus", **body}) == []


def test_ssh_key_becomes_a_service_of_the_job(make_plan: MakePlan, tmp_path: Path) -> None:
    from azure.ai.ml.entities import SshJobService

    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGn me@here"
    (tmp_path / "key.pub").write_text(f"{key}\n")
    job = request_of(make_plan({"azure.ssh_public_key": str(tmp_path / "key.pub")})).job
    sdk = SshJobService(ssh_public_keys=key, nodes="all")._to_rest_object().as_dict()
    assert job["properties"]["services"]["ssh"] == sdk
    assert mismatches("jobs", "2025-01-01-preview", job) == []


@pytest.mark.parametrize("text", ["-----BEGIN OPENSSH PRIVATE KEY-----\nsecret\n", "nothing"])
def test_private_key_is_not_sent(make_plan: MakePlan, tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(SpecError, match="must be one public key") as failure:
        request_of(make_plan({"azure.ssh_public_key": str(tmp_path / "key")}))
    assert "secret" not in str(failure.value)


def test_training_is_not_elastic(make_plan: MakePlan) -> None:
    with pytest.raises(SpecError, match="the number of machines of a pretrain job is fixed") as failure:
        request_of(make_plan({"azure.elastic_nodes": 4}))
    assert failure.value.fix == "--set compute.nodes=4 --set azure.elastic_nodes=null"


def test_client_id_names_the_managed_identity(make_plan: MakePlan, tmp_path: Path) -> None:
    client = "00000000-0000-4000-8000-000000000009"
    job = request_of(make_plan({"azure.identity": "managed", "azure.identity_client_id": client})).job
    assert job["properties"]["identity"] == {"identityType": "Managed", "clientId": client}
