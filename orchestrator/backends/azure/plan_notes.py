"""The submission of a plan, with the lines that the plan shows only for a run on Azure.

They are the workspace, the cluster, the image, and what is billed beyond the job.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backends.azure.assets import Asset, first_seen
from orchestrator.backends.azure.catalogue import UNKNOWN, base_image, shipped_facts
from orchestrator.backends.azure.clusters import machines_at_a_time, shape_text
from orchestrator.backends.azure.options import AZURE, SERVERLESS, AzureSpec, Workspace
from orchestrator.backends.azure.serverless import exported_file
from orchestrator.backends.azure.submission import AzureRequest, job_documents
from orchestrator.backends.azure.supervision import supervision_text
from orchestrator.backends.base import Submission
from orchestrator.runs.restarts import RestartLimits

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan

BUILD_MINUTES = 10  # of an environment, roughly
START_MINUTES = 5  # from the allocation of a machine to the start of the job in its container; assumed
HOUR = 3600.0
CENT = 0.01


def plan_submission(plan: Plan, request: AzureRequest, home: Path) -> Submission:
    """Return the submission that sends the request of a plan.

    Args:
        plan: the plan.
        request: of the plan, see `build_request`, or of a sweep derived from it.
        home: the user's orchestrator folder, which records the assets seen so far.
    """
    job = request.job["properties"]
    is_command = job["jobType"] == "Command"
    return Submission(
        backend=AZURE,
        plan=plan,
        request=request,
        command=(job["command"],) if is_command else (),
        variables=job["environmentVariables"] if is_command else {},
        documents=job_documents(request, plan),
        notes=tuple(request_notes(request, plan, home)),
        export=exported_file(request.name, request.job) if is_command else request.job,
    )


def request_notes(request: AzureRequest, plan: Plan, home: Path) -> Iterator[str]:
    """Yield the lines that a plan shows only for a run on Azure, `label: text` each.

    Args:
        request: of the run.
        plan: the plan.
        home: the user's orchestrator folder, which records the assets seen so far.
    """
    workspace, cluster, compute = request.workspace, request.cluster, plan.spec.compute
    missing = f"not given yet: export {', '.join(workspace.missing)}, or add config.json"
    yield f"workspace: {missing if workspace.missing else f'{workspace.workspace} in {workspace.resource_group}'}"
    if cluster.name == SERVERLESS:
        yield f"cluster: none, serverless machines for this job: {_size_of(request)}, {compute.tier}"
    elif cluster.body is None:
        yield f"cluster: {cluster.name}, which must exist, and is not changed"
    else:
        idle = f"machines released after {compute.idle_seconds} s"
        yield f"cluster: {cluster.name}: {shape_text(cluster.body)}, {idle}; created or changed to fit"
        yield from _room(plan)
    if request.elastic_nodes is not None:
        span = f"{request.nodes} to {request.elastic_nodes}"
        yield f"elastic: starts on {span} machines, as many as Azure has; time and cost are shown for {request.nodes}"
    for number, choice in enumerate(plan.compute.choices, 1):
        price = "unknown price" if choice.price_per_hour is None else f"${choice.price_per_hour:,.2f} an hour"
        yield f"machines {number}: {choice.size} in {choice.region or 'the region of the workspace'}, {price}"
    environment = next((one for one in request.assets if one.kind == "environments"), None)
    if environment is not None:
        yield f"image: {_image_text(home, workspace, environment)}"
    builds = environment is not None and environment.body is not None and not first_seen(home, workspace, environment)
    yield from _overhead(plan, builds=builds, creates=cluster.body is not None)
    if request.secrets:
        yield (
            f"exposed: {', '.join(request.secrets)} in the job's definition (azure.secrets_in_body): all users of the"
            " workspace can read it, and each restart needs it where this plan finds it"
        )
    if "services" in request.job["properties"]:
        yield f"ssh: az ml job connect-ssh --name {request.name} --node-index 0, while the job runs"
    if request.supervisor is not None:
        yield f"supervision: {supervision_text(plan)}"
    if compute.tier == "spot":
        yield f"eviction: {_eviction(plan)}"


def _room(plan: Plan) -> Iterator[str]:
    """Yield the line about the trials of a sweep that have machines at the same time."""
    runs = plan.compute.concurrent_runs
    if runs > 1:
        room = machines_at_a_time(plan) // plan.compute.nodes
        waiting = "" if room >= runs else ", the others wait in the queue"
        yield f"room: for {room} of {runs} concurrent trials{waiting}; less if the quota is smaller"


def _size_of(request: AzureRequest) -> str:
    resources = request.job["properties"]["resources"]
    return f"{resources['instanceCount']} x {resources['instanceType']}"


def _overhead(plan: Plan, *, builds: bool, creates: bool) -> Iterator[str]:
    """Yield the line about what is billed beyond the job's own time.

    Args:
        plan: the plan.
        builds: whether the environment has to be built.
        creates: whether the cluster has the idle time of the plan.
    """
    compute, price = plan.spec.compute, plan.compute.price_per_hour
    parts = []
    if price is not None:
        idle = compute.idle_seconds if creates else 0
        machines = machines_at_a_time(plan)
        cost = price * machines * (START_MINUTES * 60 + idle) / HOUR
        tail = f" and {idle} s idle afterwards" if idle else ""
        of_all = f" of {machines} machines" if machines > plan.compute.nodes else ""
        parts.append(f"about ${cost:,.2f} for {START_MINUTES} minutes to start (assumed){tail}{of_all}")
        if creates and compute.min_nodes:
            parts.append(f"${price * compute.min_nodes * 24:,.2f} a day for {compute.min_nodes} that stay on")
    if builds:
        rate = shipped_facts("prices").items["image_build"]
        cost = rate["usd_per_core_second"] * rate["cores"] * BUILD_MINUTES * 60
        parts.append(f"about ${cost:,.2f} for the image build")
    if parts:
        yield f"overhead: {', '.join(parts)}"


def _eviction(plan: Plan) -> str:
    """Return the most work that one eviction loses: Azure promises no warning before it."""
    limits = RestartLimits.from_spec(plan.spec.model_dump(include={"max_restarts", "max_preemptions", "compute"}))
    restarts = "the run is not restarted (--max-preemptions 0)"
    by = "Azure" if plan.spec.settings_of(AzureSpec).supervise == "cloud" else "a process that follows the run"
    if limits.preemptions is None:
        restarts = f"{by} restarts it each time"
    elif limits.preemptions:
        restarts = f"{by} restarts it up to {limits.preemptions} times"
    price = plan.compute.price_per_hour
    start = "" if price is None else f", ${price * plan.compute.nodes * START_MINUTES / 60:,.2f}"
    billed = f"evicted time is billed, as is each restart (about {START_MINUTES} minutes to start{start})"
    again = f"and Azure promises no warning; {billed}; {restarts}"
    checkpoint = plan.saves
    if checkpoint is None:
        return f"each loses the parts in progress, {again}"
    parts = [f"{checkpoint.every:,} steps"] if checkpoint.every else []
    if checkpoint.every_minutes:
        parts.append(f"{checkpoint.every_minutes:g} minutes")
    seconds = _seconds_between_checkpoints(plan)
    money = ""
    if price is not None and seconds is not None:
        most = price * plan.compute.nodes * seconds / HOUR
        money = f", up to ${most:,.2f}" if most >= CENT else ", less than $0.01"
    return (
        f"each loses the work since the last checkpoint ({' or '.join(parts) or 'none is saved'}, whichever is"
        f" sooner{money}), {again}"
    )


def _seconds_between_checkpoints(plan: Plan) -> float | None:
    """Return the longest time between two checkpoints in seconds; None: unknown, or none is saved."""
    checkpoint = plan.saves
    if checkpoint is None:
        return None
    found = [checkpoint.every_minutes * 60] if checkpoint.every_minutes else []
    if checkpoint.every and plan.seconds_per_step is not None:
        found.append(checkpoint.every * plan.seconds_per_step)
    return min(found, default=None)


def _image_text(home: Path, workspace: Workspace, environment: Asset) -> str:
    name = f"{environment.name}:{environment.version}"
    if environment.body is None:
        return f"{name}, which must exist"
    base = base_image(environment.name)
    digest = f"digest {base.digest}" if base.digest == UNKNOWN else base.digest
    on = f"on {base.image.rpartition('/')[2]}:{base.tag}, {digest}"
    if (seen := first_seen(home, workspace, environment)) is not None:
        return f"{name} {on}, cached (seen {seen})"
    return f"{name} {on}, will build, about {BUILD_MINUTES} minutes, unless the workspace has it"
