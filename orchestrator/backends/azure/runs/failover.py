"""Other machines for a job: tried in turn at its submission, and when its cluster cannot get any while it is queued."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.backends.azure import places
from orchestrator.backends.azure.assets import report
from orchestrator.backends.azure.clusters import UnusableClusterError, is_unusable
from orchestrator.backends.azure.known_clusters import forget_cluster
from orchestrator.backends.azure.options import SERVERLESS
from orchestrator.backends.azure.runs.observer import Observer
from orchestrator.backends.azure.runs.record import AzureAttempt, RunRecord
from orchestrator.backends.azure.serverless import ensure_machines
from orchestrator.backends.azure.submission import AzureRequest
from orchestrator.backends.azure.wire.control_plane import Wire
from orchestrator.backends.base import PLAN, REQUEST
from orchestrator.runs.status import RunState
from orchestrator.support.errors import CapacityError, ConflictError, QuotaError

NO_CAPACITY = "AllocationFailed"  # code of a cluster's error


class Target(NamedTuple):
    """A request for certain machines, with the documents that record it."""

    request: AzureRequest
    """The request; its alternatives are the machines that have not been tried yet."""
    documents: Mapping[str, str]
    """Name -> text."""


def targets_of(request: AzureRequest, documents: Mapping[str, str]) -> list[Target]:
    """Return the targets of a request, in the order in which they are tried.

    Args:
        request: the request.
        documents: of the run: name -> text. That of the plan gets size and price of the machines.
    """
    found = [Target(request, documents)]
    for number, other in enumerate(request.alternatives, 1):
        moved = request.model_copy(
            update={"cluster": other.cluster, "job": other.job, "alternatives": request.alternatives[number:]}
        )
        plan = json.loads(documents[PLAN])
        plan["compute"] |= other.compute.model_dump(mode="json", exclude={"region"}, exclude_none=True)
        changed = {PLAN: json.dumps(plan, indent=1), REQUEST: moved.model_dump_json(indent=1)}
        found.append(Target(moved, {**documents, **changed}))
    return found


def first_available(wire: Wire, targets: Sequence[Target], home: Path) -> Target:
    """Return the first target whose machines Azure provides; each try that fails is reported.

    Args:
        wire: the workspace.
        targets: at least one.
        home: the user's orchestrator folder.

    Raises:
        CapacityError, QuotaError: Azure provides none of them; the error of the last try.
        ConflictError: the cluster has other machines, or that of the last try is unusable.
    """
    for number, target in enumerate(targets, 1):
        cluster = target.request.cluster
        others = number < len(targets)
        is_new = others and cluster.name != SERVERLESS and wire.compute(cluster.name) is None
        try:
            report(ensure_machines(wire, cluster, target.request.job))
        except (CapacityError, QuotaError, UnusableClusterError) as problem:
            if not others:
                raise
            made = wire.compute(cluster.name) if is_new else None
            # What Azure could not make would refuse later runs. A quota error may leave the cluster that another
            # command has just made, and that works.
            if made is not None and (isinstance(problem, CapacityError) or is_unusable(made)):
                wire.delete_compute(cluster.name)
            report(f"machines {number} of {len(targets)}: {problem.message}; trying the next")
        except ConflictError:
            forget_cluster(home, target.request.workspace, cluster.name)
            raise
        else:
            return target
    raise AssertionError("there is at least one target")


def leave_machines(observer: Observer, record: RunRecord) -> bool:
    """Cancel a queued job whose cluster gets no machines, if others are left; return whether the run moves.

    Args:
        observer: of the run.
        record: of the run, as Azure has just reported it.

    Raises:
        UserError: Azure refused, or cannot be reached; the next call repeats the cancel.
    """
    last, cluster = record.last, observer.request["cluster"]["name"]
    queued = last.confirmed and last.state == RunState.QUEUED and not record.cancelled
    if not (queued and observer.request.get("alternatives")) or cluster == SERVERLESS:
        return False
    alternatives = len(observer.request["alternatives"])
    if not last.moved:
        errors = _errors(observer.wire.compute(cluster))
        if not any(error.get("code") == NO_CAPACITY for error in errors):
            return False
        # on record first: Azure reports only that the job was cancelled
        moved = record.with_last(moved=True, alternatives=alternatives)
        if observer.folder.update(record, moved) is not moved:
            return True  # another command has changed the record meanwhile
        report(f"cluster {cluster} gets no machines: {errors[0].get('message')}; trying the next")
    # also if the move is on record: the process that recorded it may have died before these requests
    observer.mark(places.moved_mark(last.job), str(alternatives))
    observer.wire.cancel_job(last.job)
    return True


def move(observer: Observer, attempt: AzureAttempt, home: Path) -> None:
    """Record the next machines that Azure provides as those of the run, here and in its datastore.

    Repeated for the same attempt, it changes nothing: a process may die before it submits the next one.

    Args:
        observer: of the run.
        attempt: that left its machines.
        home: the user's orchestrator folder.

    Raises:
        CapacityError, QuotaError: Azure provides none of the machines that are left.
    """
    folder, request = observer.folder, AzureRequest.model_validate(observer.request)
    if len(request.alternatives) < (attempt.alternatives or 1):
        return
    documents = {name: json.dumps(folder.document(name), indent=1) for name in (PLAN, REQUEST)}
    target = first_available(observer.wire, targets_of(request, documents)[1:], home)
    encoded = {name: text.encode() for name, text in target.documents.items()}
    observer.files().upload(places.job_folder(folder.name), encoded)
    folder.write_documents(target.documents)


def _errors(cluster: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    if cluster is None:
        return []
    return [one.get("error") or {} for one in cluster["properties"]["properties"].get("errors") or []]
