"""Several sizes and regions: tried in the order of their price until quota and capacity suffice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import require
from orchestrator.backends.azure.backend import AzureBackend
from orchestrator.backends.azure.clusters import Cluster
from orchestrator.backends.azure.places import write_cache
from orchestrator.backends.azure.prices import PRICES_FILE
from orchestrator.backends.azure.runs import dispatch, failover, observer
from orchestrator.backends.azure.wire.control_plane import Body, Wire
from orchestrator.backends.capabilities import Resumes
from orchestrator.client import Orchestrator
from orchestrator.jobs.base import Plan
from orchestrator.run import Run
from orchestrator.runs.status import RunState
from orchestrator.support.errors import AuthError, ConflictError, QuotaError, SpecError
from orchestrator.testing import AzureDouble
from tests.conftest import write_corpus, write_spec

pytestmark = pytest.mark.usefixtures("small_snapshot")

T4, A100, H100 = "Standard_NC4as_T4_v3", "Standard_NC24ads_A100_v4", "Standard_NC40ads_H100_v5"
T4_FAMILY, A100_FAMILY = "standardNCASv3_T4Family", "StandardNCADSA100v4Family"
MakePlan = Callable[..., Plan]


@pytest.fixture
def orchestrator(tmp_path: Path, azure: AzureDouble) -> Orchestrator:
    return Orchestrator("azure", home=tmp_path / "home")


@pytest.fixture
def make_plan(tmp_path: Path, orchestrator: Orchestrator) -> MakePlan:
    """Return a function that plans the micro job on machines that the arguments describe."""
    write_corpus(tmp_path / "corpus.txt")

    def plan(**compute: Any) -> Plan:
        write_spec(tmp_path / "job.yaml", data={"text": ["corpus.txt"]}, compute={"cluster": "gpu", **compute})
        return orchestrator.plan(file=tmp_path / "job.yaml")

    return plan


def clusters(azure: AzureDouble) -> dict[str, tuple[str, str]]:
    """Return size and region of each cluster by its name."""
    return {
        cluster["name"]: (cluster["properties"]["properties"]["vmSize"], cluster["location"])
        for cluster in azure.state.below("computes")
    }


def test_cheapest_size_with_quota_is_used(
    azure: AzureDouble, orchestrator: Orchestrator, make_plan: MakePlan, capsys: pytest.CaptureFixture[str]
) -> None:
    azure.set_quota(T4_FAMILY, 0)
    azure.set_quota(A100_FAMILY, 0)
    plan = make_plan(sku=[H100, T4, A100])
    assert [choice.size for choice in plan.compute.choices] == [T4, A100, H100]
    assert (plan.compute.size, plan.compute.price_per_hour, plan.compute.gpu) == (T4, 0.526, "T4")
    run = orchestrator.submit(plan)
    err = capsys.readouterr().err
    assert f"machines 1 of 3: not enough cores for 1 x {T4} in eastus; trying the next" in err
    assert f"machines 2 of 3: not enough cores for 1 x {A100} in eastus; trying the next" in err
    (found,) = clusters(azure).items()
    assert found[1] == (H100, "eastus")
    assert azure.job(run.name).properties["computeId"].endswith(f"/computes/{found[0]}")
    azure.move(run.name, "Running")
    assert run.status().state == RunState.RUNNING
    assert orchestrator.attach(run.name).cost().price_per_hour == 6.98
    assert azure.violations == []


def test_capacity_failure_tries_the_next_region(
    azure: AzureDouble, orchestrator: Orchestrator, make_plan: MakePlan, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = make_plan(sku=T4, region=["westeurope", "eastus"])
    first, _ = (note for note in orchestrator.prepare(plan).notes if note.startswith("machines"))
    assert first == f"machines 1: {T4} in westeurope, $0.53 an hour"
    failing = orchestrator.prepare(plan).request.cluster.name
    azure.fail_compute(failing, code="AllocationFailed", message="There is not enough capacity in the region.")
    orchestrator.submit(plan)
    assert "machines 1 of 2: " in capsys.readouterr().err
    assert [*clusters(azure).values()] == [(T4, "eastus")]


@pytest.mark.parametrize("left", [False, True])
def test_quota_failure_tries_the_next_size(
    azure: AzureDouble, orchestrator: Orchestrator, make_plan: MakePlan, capsys: pytest.CaptureFixture[str], left: bool
) -> None:
    """Azure refuses what its quota allows by its numbers; a failed cluster may remain of an earlier run."""
    plan = make_plan(sku=[T4, A100])
    failing = orchestrator.prepare(plan).request.cluster.name
    azure.fail_compute(failing, code="ClusterCoreQuotaReached", message="The cluster would exceed the core quota.")
    if left:
        with pytest.raises(QuotaError):
            orchestrator.submit(make_plan(sku=T4, cluster=failing))
    orchestrator.submit(plan)
    assert "machines 1 of 2: " in capsys.readouterr().err
    assert {size for size, _ in clusters(azure).values()} == ({T4, A100} if left else {A100})
    assert size_of(azure, orchestrator.submit(plan, new=True).name) == A100


def test_failed_cluster_without_another_size_is_an_error(
    azure: AzureDouble, orchestrator: Orchestrator, make_plan: MakePlan
) -> None:
    azure.fail_compute("gpu", code="ClusterCoreQuotaReached", message="The cluster would exceed the core quota.")
    with pytest.raises(QuotaError):
        orchestrator.submit(make_plan(sku=T4))
    with pytest.raises(ConflictError, match="cannot use cluster gpu: its state is Failed") as failure:
        orchestrator.submit(make_plan(sku=T4))
    assert str(failure.value.fix).startswith("orchestrator cluster delete --name gpu")


def test_cluster_made_meanwhile_is_kept(
    azure: AzureDouble, orchestrator: Orchestrator, make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command makes the same cluster, which has the same name, while this one is refused for its quota."""
    plan, provide, refused = make_plan(sku=[T4, A100]), failover.ensure_machines, []

    def made_meanwhile(wire: Wire, cluster: Cluster, job: Body) -> str:
        text = provide(wire, cluster, job)
        if not refused:
            refused.append(cluster.name)
            raise QuotaError("no quota is left")
        return text

    monkeypatch.setattr(failover, "ensure_machines", made_meanwhile)
    orchestrator.submit(plan)
    assert {size for size, _ in clusters(azure).values()} == {T4, A100}
    assert azure.requests("DELETE *computes*") == []


def test_cluster_that_cannot_grow_is_kept(
    azure: AzureDouble, orchestrator: Orchestrator, make_plan: MakePlan, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was there before: other jobs may run on it."""
    orchestrator.submit(make_plan(sku=[T4, A100]))
    (first,) = clusters(azure)
    azure.fail_compute(first, code="AllocationFailed", message="There is not enough capacity in the region.")
    orchestrator.submit(make_plan(sku=[T4, A100], max_nodes=3, nodes=2))
    assert "machines 1 of 2: " in capsys.readouterr().err
    assert {size for size, _ in clusters(azure).values()} == {T4, A100}


@pytest.mark.parametrize("region", ["West Europe", "WestEurope"])
def test_region_may_have_its_display_name(
    azure: AzureDouble, orchestrator: Orchestrator, make_plan: MakePlan, tmp_path: Path, region: str
) -> None:
    entries = {
        T4: {"dedicated": 0.9, "region": "japaneast", "date": "2026-11-20"},
        f"{T4}@westeurope": {"dedicated": 0.6, "region": "westeurope", "date": "2026-11-20"},
    }
    write_cache(tmp_path / "home" / PRICES_FILE, entries)
    plan = make_plan(sku=T4, region=region)
    assert plan.compute.price_per_hour == 0.6
    for _ in range(2):
        orchestrator.submit(plan, new=True)
    assert [*clusters(azure).values()] == [(T4, "westeurope")]
    assert plan.run_hash == make_plan(sku=T4).run_hash


def test_regions_are_ordered_by_their_prices(tmp_path: Path, make_plan: MakePlan) -> None:
    entries = {
        f"{T4}@{region}": {"dedicated": price, "region": region, "date": "2026-11-20"}
        for region, price in (("westeurope", 0.6), ("eastus", 0.7), ("uksouth", 0.5))
    }
    write_cache(tmp_path / "home" / PRICES_FILE, entries)
    plan = make_plan(sku=[T4], region=["eastus", "westeurope", "uksouth"])
    assert [choice.region for choice in plan.compute.choices] == ["uksouth", "westeurope", "eastus"]
    assert make_plan(sku=T4).run_hash == plan.run_hash


def test_quota_for_none_of_the_sizes_is_an_error(
    azure: AzureDouble, orchestrator: Orchestrator, make_plan: MakePlan
) -> None:
    azure.set_quota(T4_FAMILY, 0)
    azure.set_quota(A100_FAMILY, 0)
    with pytest.raises(QuotaError, match=f"not enough cores for 1 x {A100}"):
        orchestrator.submit(make_plan(sku=[A100, T4]))
    assert clusters(azure) == {}


def test_serverless_sizes_are_tried_in_turn(
    azure: AzureDouble, orchestrator: Orchestrator, make_plan: MakePlan
) -> None:
    azure.set_quota(T4_FAMILY, 0)
    run = orchestrator.submit(make_plan(cluster="serverless", sku=[T4, A100]))
    assert azure.job(run.name).properties["resources"]["instanceType"] == A100
    assert clusters(azure) == {}


def test_sizes_with_different_gpu_counts_are_refused(make_plan: MakePlan) -> None:
    with pytest.raises(SpecError, match="different numbers of processes") as failure:
        make_plan(sku=[T4, "Standard_NC48ads_A100_v4"])
    assert failure.value.facts["processes"] == f"{T4} 1, Standard_NC48ads_A100_v4 2"
    plan = make_plan(sku=[T4, "Standard_NC48ads_A100_v4"], processes_per_node=1, threads_per_process="auto")
    assert plan.compute.threads_per_process == 4, "the least of both sizes"


def test_queued_job_without_machines_moves_on(
    azure: AzureDouble, orchestrator: Orchestrator, make_plan: MakePlan, tmp_path: Path
) -> None:
    run = orchestrator.submit(make_plan(sku=[T4, A100]))
    azure.move(run.name, "Queued")
    assert not run.follow_up()[1]
    assert azure.job(run.name).status == "Queued", "Azure may still find machines"
    (first,) = clusters(azure)
    azure.without_capacity(first)
    assert not run.follow_up()[1]
    assert azure.job(run.name).status == "Canceled"
    assert not run.follow_up()[1]
    second = azure.job(f"{run.name}-a2").properties["computeId"].rpartition("/")[2]
    assert clusters(azure)[second] == (A100, "eastus")
    azure.move(f"{run.name}-a2", "Running")
    other = Orchestrator("azure", home=tmp_path / "other").attach(f"azure://double/{run.name}")
    for status in (run.status(), other.status()):
        assert (status.state, status.attempt) == (RunState.RUNNING, 2)
    assert other.cost().price_per_hour == 3.673
    azure.move(f"{run.name}-a2", "Failed", {"code": "UserError", "message": "a bug of the job"})
    assert run.follow_up()[1], "the move is no restart, and errors have none here"
    assert azure.violations == []


@pytest.fixture
def stuck(azure: AzureDouble, orchestrator: Orchestrator, make_plan: MakePlan) -> Run:
    """Submit a run with three sizes, whose job is queued at a cluster that gets no machines."""
    run = orchestrator.submit(make_plan(sku=[T4, A100, H100]))
    azure.move(run.name, "Queued")
    azure.without_capacity(next(iter(clusters(azure))))
    return run


def size_of(azure: AzureDouble, job: str) -> str:
    """Return the size of the machines of a job's cluster."""
    return clusters(azure)[azure.job(job).properties["computeId"].rpartition("/")[2]][0]


def restart(run: Run) -> bool:
    """Do what a follower does at each look; return whether the run continues."""
    return require(run._backend, Resumes).restart_if_needed(run.name)


def test_move_whose_cancel_failed_is_repeated(azure: AzureDouble, stuck: Run) -> None:
    azure.fail_next("POST *jobs/*/cancel", status=403)
    with pytest.raises(AuthError):
        restart(stuck)
    assert azure.job(stuck.name).status == "Queued"
    for _ in range(2):
        assert restart(stuck)
    assert azure.job(stuck.name).status == "Canceled"
    assert size_of(azure, f"{stuck.name}-a2") == A100


def test_move_waits_for_the_end_of_an_outage(
    azure: AzureDouble, stuck: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A later look submits its attempt, as that of a restart."""
    monkeypatch.setattr(dispatch, "PAUSES", ())
    assert restart(stuck)
    azure.fail_next("PUT management.azure.com*/jobs/*", status=503)
    assert restart(stuck)
    assert "trying again" in capsys.readouterr().err
    assert len(azure.jobs.all()) == 1
    assert restart(stuck)
    assert size_of(azure, f"{stuck.name}-a2") == A100


def test_job_that_got_machines_in_the_end_is_no_move(azure: AzureDouble, stuck: Run) -> None:
    """The cancel never arrived, and the cluster found machines: the next eviction is an eviction."""
    azure.fail_next("POST *jobs/*/cancel", status=403)
    with pytest.raises(AuthError):
        restart(stuck)
    azure.move(stuck.name, "Running")
    azure.move(stuck.name, "Failed", {"code": "UserError", "message": "PreemptionError: Nodes got pre-empted."})
    (attempt,) = stuck.status().attempts
    assert (attempt.state, attempt.reason) == (RunState.PREEMPTED, "PreemptionError: Nodes got pre-empted.")
    assert not restart(stuck), "evictions of dedicated machines have no restarts here"
    assert len(azure.jobs.all()) == 1


@pytest.mark.parametrize("sizes", [[T4, A100, H100], [T4, A100]])
@pytest.mark.parametrize("step", [(AzureBackend, "_submit_again"), (Wire, "put_job")])
def test_follower_killed_in_a_move_skips_no_machines(
    azure: AzureDouble,
    orchestrator: Orchestrator,
    make_plan: MakePlan,
    monkeypatch: pytest.MonkeyPatch,
    sizes: list[str],
    step: tuple[type, str],
) -> None:
    """The next machines are on record when it dies: before or after its attempt is recorded."""

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(observer, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(observer, "LOOK_PAUSE", 0.0)
    run = orchestrator.submit(make_plan(sku=sizes))
    azure.move(run.name, "Queued")
    azure.without_capacity(next(iter(clusters(azure))))
    assert restart(run)
    with monkeypatch.context() as patch:
        patch.setattr(*step, killed)
        with pytest.raises(KeyboardInterrupt):
            restart(run)
    assert restart(run)
    assert size_of(azure, f"{run.name}-a2") == A100
    assert len(azure.jobs.all()) == 2


def test_attempts_cost_what_their_own_machines_cost(
    azure: AzureDouble,
    orchestrator: Orchestrator,
    make_plan: MakePlan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten hours on a T4, an eviction, a move to a machine that costs more than ten times as much."""
    monkeypatch.setenv("ORCHESTRATOR_AZURE_POLL_SECONDS", "0.0001")  # pauses before restarts are multiples of it
    run = orchestrator.submit(make_plan(sku=[T4, H100], tier="spot"))
    azure.move(run.name, "Running")
    assert run.status().state == RunState.RUNNING
    path = tmp_path / "home" / "azure" / run.name / "record.json"
    record = json.loads(path.read_text())
    record["attempts"][0]["started"] -= 36000
    path.write_text(json.dumps(record))
    azure.move(run.name, "Failed", {"code": "UserError", "message": "PreemptionError: Nodes got pre-empted."})
    before = run.status().cost
    price = run.cost().price_per_hour
    assert price is not None
    assert before == pytest.approx(10 * price, rel=0.01)
    restart(Orchestrator("azure", home=tmp_path / "home").attach(run.name))
    azure.move(f"{run.name}-a2", "Queued")
    azure.without_capacity(next(iter(clusters(azure))))
    for _ in range(2):
        assert restart(run)
    assert size_of(azure, f"{run.name}-a3") == H100
    assert run.status().cost == pytest.approx(before, rel=0.01)
    cost = run.cost()
    assert (cost.cost, cost.repeated_cost) == pytest.approx((before, before), rel=0.01)
    assert cost.price_per_hour is not None
    assert cost.price_per_hour > 2 * price
