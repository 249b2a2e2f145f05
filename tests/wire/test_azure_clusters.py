"""`orchestrator cluster` against the double: create, change or keep a cluster, and report which."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.azure.sizes import store_sizes
from orchestrator.cli.main import main
from orchestrator.client import Orchestrator
from orchestrator.jobs.base import Plan
from orchestrator.runs.restarts import RestartLimits
from orchestrator.support.errors import ConflictError, SpecError
from orchestrator.testing import AzureDouble
from tests.conftest import write_corpus, write_spec

T4 = "Standard_NC4as_T4_v3"
PUT = "PUT *computes/gpu"
CREATE = ("create", "--name", "gpu", "--sku", T4)
Cluster = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cluster(
    azure: AzureDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cluster:
    """Return a function that runs `orchestrator cluster` here: exit code, stdout, stderr."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["cluster", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_example_of_the_help_is_accepted(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["cluster", "--help"])
    examples = re.findall(r"orchestrator cluster (create .+)", capsys.readouterr().out)
    assert examples
    for example in examples:
        code, out, _ = cluster(*example.split(), "-y")
        assert (code, "created" in out) == (0, True)


def test_create_reports_creation_and_changes(cluster: Cluster, azure: AzureDouble) -> None:
    made = cluster(*CREATE, "--max-nodes", "2", "-y")
    assert made == (0, f"cluster gpu: created, 0 to 2 x {T4}\n", "")
    assert cluster(*CREATE, "--max-nodes", "2", "-y")[1] == f"cluster gpu: exists, 0 to 2 x {T4}\n"
    assert len(azure.requests(PUT)) == 1
    changed = cluster(*CREATE, "--max-nodes", "4", "--idle-seconds", "600", "-y")
    assert changed[1] == "cluster gpu: updated, maxNodeCount 2 -> 4, nodeIdleTimeBeforeScaleDown PT2M -> PT10M\n"
    scaled = cluster("scale", "--name", "gpu", "--min-nodes", "1", "-y")
    assert scaled[1] == "cluster gpu: updated, minNodeCount 0 -> 1\n"
    assert len(azure.requests(PUT)) == 3
    assert azure.violations == []


def test_create_takes_network_and_identity_of_the_project(cluster: Cluster, azure: AzureDouble) -> None:
    """A workspace with a managed network refuses machines with public addresses."""
    subnet = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/v/subnets/default"
    section = f"azure:\n  node_public_ip: false\n  cluster_identity: system\n  subnet: {subnet}\n"
    Path("orchestrator.yaml").write_text(section)
    assert cluster(*CREATE, "-y")[0] == 0
    (sent,) = azure.requests(PUT)
    assert sent.body["identity"] == {"type": "SystemAssigned"}
    inner = sent.body["properties"]["properties"]
    assert (inner["enableNodePublicIp"], inner["subnet"]) == (False, {"id": subnet})
    assert azure.violations == []


def test_list_shows_the_state(cluster: Cluster, azure: AzureDouble) -> None:
    cluster(*CREATE, "-y")
    azure.state.resources["computes/gpu"]["properties"]["provisioningState"] = "Failed"
    head, row = (line.split() for line in cluster("list")[1].splitlines())
    assert (head[:2], row[:2]) == (["CLUSTER", "STATE"], ["gpu", "failed"])
    assert "its state is Failed" in cluster(*CREATE, "-y")[2]


def test_update_keeps_other_properties(cluster: Cluster, azure: AzureDouble) -> None:
    cluster(*CREATE, "-y")
    subnet = {"id": "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/v/subnets/default"}
    azure.state.resources["computes/gpu"]["properties"]["properties"]["subnet"] = subnet
    azure.state.resources["computes/gpu"]["tags"] = {"team": "nlp"}
    cluster("scale", "--name", "gpu", "--max-nodes", "3", "-y")
    sent = azure.requests(PUT)[-1].body
    assert sent["properties"]["properties"]["subnet"] == subnet
    assert sent["tags"] == {"team": "nlp"}
    assert "provisioningState" not in sent["properties"]
    cluster(*CREATE, "--max-nodes", "4", "-y")
    again = azure.requests(PUT)[-1].body
    assert again["properties"]["properties"]["subnet"] == subnet
    assert again["properties"]["properties"]["scaleSettings"]["maxNodeCount"] == 4
    assert again["tags"] == {"team": "nlp"}
    assert azure.violations == []


def test_create_with_another_size_is_refused(cluster: Cluster, azure: AzureDouble) -> None:
    cluster(*CREATE, "-y")
    code, _, err = cluster("create", "--name", "gpu", "--sku", "Standard_NC24ads_A100_v4", "-y")
    assert (code, err.splitlines()[0]) == (
        1,
        "error[conflict]: cluster gpu has size Standard_NC4as_T4_v3, not Standard_NC24ads_A100_v4",
    )
    code, _, err = cluster(*CREATE, "--tier", "low-priority", "-y")
    warning, error = err.splitlines()[:2]
    assert "tier low-priority is the old name of spot" in warning
    assert (code, error) == (1, "error[conflict]: cluster gpu has tier dedicated, not spot")


def test_cluster_create_warns_of_unsupported_machines(cluster: Cluster, azure: AzureDouble) -> None:
    code, out, err = cluster("create", "--name", "old", "--sku", "Standard_ND40rs_v2", "-y")
    assert (code, out) == (0, "cluster old: created, 0 to 1 x Standard_ND40rs_v2\n"), err
    assert "warning: Standard_ND40rs_v2 has V100 GPUs, which the environment's torch cannot use; instead: --sku" in err


def test_unconfirmed_change_is_not_made(cluster: Cluster, azure: AzureDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = cluster(*CREATE)
    assert (code, "confirmation needed" in err) == (2, True)

    class Terminal:
        def __init__(self, answer: str) -> None:
            self.answer = answer

        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return self.answer

    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    code, _, err = cluster(*CREATE)
    assert (code, "not confirmed" in err) == (2, True)
    assert azure.requests(PUT) == []
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert cluster(*CREATE)[0] == 0


def test_list_and_show_have_cost_of_idle_machines(cluster: Cluster, azure: AzureDouble) -> None:
    assert cluster("list")[:2] == (0, "")
    cluster(*CREATE, "--min-nodes", "1", "-y")
    cluster("create", "--name", "big-one", "--sku", "Standard_ND96isr_H200_v5", "-y")
    rows = {row["name"]: row for row in json.loads(cluster("list", "-o", "json")[1])}
    assert rows["gpu"]["idle_cost_per_day"] == round(0.526 * 24, 2)
    assert (rows["gpu"]["min_nodes"], rows["gpu"]["nodes"], rows["gpu"]["idle_seconds"]) == (1, 1, 120)
    assert rows["big-one"]["idle_cost_per_day"] is None
    text = cluster("list")[1]
    assert "$12.62" in text
    assert max(map(len, text.splitlines())) <= 80
    shown = json.loads(cluster("show", "--name", "gpu", "-o", "json")[1])
    assert shown == rows["gpu"]


def test_delete_removes_cluster(cluster: Cluster, azure: AzureDouble) -> None:
    cluster(*CREATE, "-y")
    assert cluster("delete", "--name", "gpu", "-y")[1] == "cluster gpu: deleted\n"
    code, _, err = cluster("delete", "--name", "gpu", "-y")
    assert (code, err.splitlines()[0]) == (5, "error[not-found]: cluster gpu does not exist")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("create", "--name", "gpu"), "required: --sku"),
        (("list", "--name", "gpu"), "unknown arguments of cluster: --name gpu"),
        (("scale", "--name", "gpu", "--sku", T4), "unknown arguments of cluster: --sku"),
        ((*CREATE, "--min-nodes", "3", "--max-nodes", "2"), "less than --min-nodes 3"),
        (("create", "--name", "1gpu", "--sku", T4, "-y"), "invalid cluster name '1gpu'"),
        (("create", "--name", "gpu", "--sku", "Standard_NC6", "-y"), "fix      --sku Standard_NC"),
    ],
)
def test_invalid_flags_are_refused(words: tuple[str, ...], message: str, cluster: Cluster) -> None:
    code, _, err = cluster(*words)
    assert code == 2
    assert message in err


def test_scale_checks_quota_for_new_machines(cluster: Cluster, azure: AzureDouble) -> None:
    azure.set_quota("standardNCASv3_T4Family", 12)
    cluster(*CREATE, "--min-nodes", "2", "--max-nodes", "2", "-y")
    assert cluster("scale", "--name", "gpu", "--max-nodes", "3", "-y")[0] == 0
    code, _, err = cluster("scale", "--name", "gpu", "--max-nodes", "4", "-y")
    assert code == 4
    assert "need  16 cores of standardNCASv3_T4Family, limit 12, used 8" in err
    assert "fix   --max-nodes 3" in err  # the number that this command uses


def test_running_machines_need_no_new_quota(
    cluster: Cluster, azure: AzureDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    azure.set_quota("standardNCASv3_T4Family", 32)
    cluster(*CREATE, "--max-nodes", "8", "-y")
    monkeypatch.setattr(azure.jobs, "nodes_of", lambda name: 4)
    assert cluster("scale", "--name", "gpu", "--max-nodes", "5", "-y")[:2] == (
        0,
        "cluster gpu: updated, maxNodeCount 8 -> 5\n",
    )
    assert cluster("scale", "--name", "gpu", "--max-nodes", "8", "-y")[0] == 0
    assert "need  36 cores" in cluster("scale", "--name", "gpu", "--max-nodes", "9", "-y")[2]
    cluster("create", "--name", "other", "--sku", T4, "-y")
    monkeypatch.setattr(azure.jobs, "nodes_of", lambda name: 6 if name == "other" else 0)
    assert cluster("scale", "--name", "gpu", "--max-nodes", "5", "-y")[0] == 0, "fewer nodes never exceed a quota"
    assert "need  24 cores" in cluster("scale", "--name", "gpu", "--max-nodes", "6", "-y")[2]


def test_flags_name_the_workspace(cluster: Cluster, azure: AzureDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {
        "--subscription": azure.place.subscription,
        "--resource-group": azure.place.resource_group,
        "--workspace": azure.place.workspace,
    }
    for variable in ("SUBSCRIPTION_ID", "RESOURCE_GROUP", "WORKSPACE"):
        monkeypatch.delenv(f"ORCHESTRATOR_AZURE_{variable}")
    code, _, err = cluster("list")
    assert (code, "no Azure ML workspace is given" in err) == (2, True)
    assert cluster("list", *(word for pair in names.items() for word in pair))[0] == 0


def plan_on(folder: Path, environ: dict[str, str] | None = None, **compute: Any) -> Plan:
    """Return a plan on the existing cluster `gpu`, without a size."""
    write_corpus(folder / "corpus.txt")
    write_spec(folder / "job.yaml", data={"text": ["corpus.txt"]}, compute={"cluster": "gpu", **compute})
    return Orchestrator("azure", home=folder / "home", environ=environ).plan(file=folder / "job.yaml")


def test_existing_cluster_needs_no_size(cluster: Cluster, azure: AzureDouble, tmp_path: Path) -> None:
    cluster("create", "--name", "gpu", "--sku", "Standard_NC48ads_A100_v4", "-y")
    before = len(azure.requests("GET *computes/gpu"))
    first = plan_on(tmp_path)
    assert (first.compute.processes_per_node, first.compute.gpu) == (2, "A100")
    assert len(azure.requests("GET *computes/gpu")) == before + 1
    azure.fail_next("*", status=503, times=100)
    assert plan_on(tmp_path).run_hash == first.run_hash, "the last known size is used without asking"


def test_cluster_that_changed_its_size_is_refused_once(cluster: Cluster, azure: AzureDouble, tmp_path: Path) -> None:
    cluster("create", "--name", "gpu", "--sku", "Standard_NC48ads_A100_v4", "-y")
    plan = plan_on(tmp_path)
    cluster("delete", "--name", "gpu", "-y")
    cluster(*CREATE, "-y")
    orchestrator = Orchestrator("azure", home=tmp_path / "home")
    with pytest.raises(ConflictError, match=f"has size {T4}, and the plan was made for Standard_NC48ads_A100_v4"):
        orchestrator.submit(plan)
    assert plan_on(tmp_path).compute.processes_per_node == 1


def test_existing_cluster_may_have_an_unknown_size(cluster: Cluster, azure: AzureDouble, tmp_path: Path) -> None:
    """Azure returns sizes in capitals, also those that are not in the table."""
    cluster(*CREATE, "-y")
    azure.state.resources["computes/gpu"]["properties"]["properties"]["vmSize"] = "STANDARD_D4DS_V4"
    with pytest.raises(SpecError, match="the GPUs of cluster gpu are unknown"):
        plan_on(tmp_path)
    rows = [{"name": "Standard_D4ds_v4", "vCPUs": 4, "memoryGB": 16}]
    store_sizes(tmp_path / "home", rows, "eastus")
    assert plan_on(tmp_path).compute.size == "Standard_D4ds_v4"


def test_existing_spot_cluster_has_restarts_of_spot(cluster: Cluster, azure: AzureDouble, tmp_path: Path) -> None:
    cluster(*CREATE, "--tier", "spot", "-y")
    for more in ({}, {"processes_per_node": 1}, {"tier": "spot"}):
        plan = plan_on(tmp_path, **more)
        assert plan.spec.compute.tier == "spot"
        assert RestartLimits.from_spec(plan.spec.model_dump(mode="json")).preemptions is None
        assert not any("compute.tier" in warning for warning in plan.warnings)
    assert "upper bound of the unknown Spot rate" in str(plan.compute.price_origin)
    run = Orchestrator("azure", home=tmp_path / "home").submit(plan)
    sent = azure.job(run.name).properties
    assert "ORCHESTRATOR_MACHINE_METADATA" in sent["environmentVariables"]


def test_existing_dedicated_cluster_ignores_the_tier(cluster: Cluster, azure: AzureDouble, tmp_path: Path) -> None:
    cluster(*CREATE, "-y")
    plan = plan_on(tmp_path, tier="spot")
    assert plan.spec.compute.tier == "dedicated"
    assert "compute.tier has no effect: the cluster's machines are dedicated" in plan.warnings


def test_cluster_that_changed_its_tier_is_refused_once(cluster: Cluster, azure: AzureDouble, tmp_path: Path) -> None:
    cluster(*CREATE, "-y")
    plan = plan_on(tmp_path)
    cluster("delete", "--name", "gpu", "-y")
    cluster(*CREATE, "--tier", "spot", "-y")
    with pytest.raises(ConflictError, match="has tier spot, and the plan was made for dedicated"):
        Orchestrator("azure", home=tmp_path / "home").submit(plan)
    assert plan_on(tmp_path).spec.compute.tier == "spot"


def test_unknown_cluster_without_answer_is_a_clear_error(cluster: Cluster, azure: AzureDouble, tmp_path: Path) -> None:
    azure.fail_next("*", status=403, times=100)
    with pytest.raises(SpecError, match="the size of cluster gpu is not known here") as failure:
        plan_on(tmp_path)
    assert "--processes N" in str(failure.value.fix)
    assert plan_on(tmp_path, processes_per_node=1).spec.compute.tier == "dedicated", "no answer is needed"
