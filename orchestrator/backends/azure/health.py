"""Azure: which workspace, who asks, whether it answers, and what of GPUs may be had there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backends.azure.options import AzureSpec
from orchestrator.support.errors import SpecError, UserError
from orchestrator.support.finding import Finding, fail, ok, warn

if TYPE_CHECKING:
    from orchestrator.backends.azure.wire.control_plane import Wire

SCOPE = "https://management.azure.com/.default"
QUOTA_PAGE = "https://ml.azure.com/quota"


def examine(folder: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What a run on Azure needs, as far as it can be seen without making anything; ends where the rest hangs on it.

    Args:
        folder: where the project is.
        environ: environment variables.
    """
    from orchestrator.backends.azure.wire.control_plane import Wire
    from orchestrator.backends.azure.wire.sign_in import SignIn
    from orchestrator.backends.azure.wire.workspace import find_workspace
    from orchestrator.jobs.resolve import resolve_spec
    from orchestrator.specs.resolved import find_project

    try:
        spec = resolve_spec("pretrain", project=find_project(folder), environ=environ).spec.settings_of(AzureSpec)
    except SpecError:
        yield fail("workspace", "not looked at: the project's defaults are wrong", "mend those first")
        return
    try:
        workspace = find_workspace(spec.model_dump(), environ, folder).require()
    except UserError as problem:
        yield _failed("workspace", problem)
        return
    yield ok("workspace", f"{workspace.workspace} in {workspace.resource_group}, {workspace.subscription_id}")
    sign_in = SignIn(environ)
    wire = Wire(workspace)
    try:
        sign_in.get_token(SCOPE)
        yield ok("sign-in", f"by {sign_in.link}")
    except UserError as problem:
        yield _failed("sign-in", problem)
        return
    try:
        region = wire.location()
    except UserError as problem:
        yield _failed("azure", problem)
        return
    yield ok("azure", f"workspace {workspace.workspace} answers, region {region}")
    yield _storage(wire, spec)
    yield _quota(wire, region)


def _storage(wire: Wire, spec: AzureSpec) -> Finding:
    """The datastore that runs write to."""
    try:
        store = wire.store(spec.datastore)
    except UserError as problem:
        return _failed("datastore", problem)
    return ok("datastore", f"{spec.datastore}, container {store.container} of {store.account}")


def _quota(wire: Wire, region: str) -> Finding:
    """Cores of GPU machines that are left."""
    from orchestrator.backends.azure.machines.sizes import SIZES, same_family

    families = {size.family for size in SIZES if size.gpu is not None}
    try:
        usages = wire.usages(region)
    except UserError as problem:
        return _failed("quota", problem)
    of_gpus = [one for one in usages if any(same_family(one["name"], family) for family in families)]
    left = {one["name"]: one["limit"] - one["used"] for one in of_gpus if one["limit"] > one["used"]}
    if not left:
        return warn("quota", f"no cores of GPU machines are left in {region}", f"request some: {QUOTA_PAGE}")
    shown = ", ".join(f"{name} {cores}" for name, cores in sorted(left.items(), key=lambda one: -one[1]))
    return ok("quota", f"cores left in {region}: {shown}")


def _failed(name: str, problem: UserError) -> Finding:
    facts = "; ".join(f"{key} {value}" for key, value in problem.facts.items())
    return fail(name, f"{problem.message} ({facts})" if facts else problem.message, str(problem.fix))
