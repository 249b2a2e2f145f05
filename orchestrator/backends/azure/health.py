"""Checks of Azure for `orchestrator doctor`: workspace, sign-in, region, datastore, quota of GPU machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.backends.azure.options import AzureSpec, find_workspace
from orchestrator.backends.azure.sizes import SIZES, same_family
from orchestrator.backends.azure.wire.control_plane import Wire
from orchestrator.backends.azure.wire.sign_in import SignIn
from orchestrator.jobs.resolve import resolve_spec
from orchestrator.specs.resolved import find_project
from orchestrator.support.errors import SpecError, UserError
from orchestrator.support.finding import Finding, fail, ok, warn

SCOPE = "https://management.azure.com/.default"
QUOTA_PAGE = "https://ml.azure.com/quota"


def examine(folder: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings about the prerequisites of a run on Azure, without creating anything.

    It stops at the first failed prerequisite that all later checks need.

    Args:
        folder: of the project.
        environ: environment variables.
    """
    name = "workspace"
    try:
        spec = project_settings(folder, environ)
    except SpecError:
        yield fail(name, "not checked: the project's defaults are not valid", "fix those first")
        return
    try:
        workspace = find_workspace(spec.model_dump(), environ, folder).require()
        yield ok(name, f"{workspace.workspace} in {workspace.resource_group}, {workspace.subscription_id}")
        name = "sign-in"
        sign_in, wire = SignIn(environ), Wire(workspace)
        sign_in.get_token(SCOPE)
        yield ok(name, f"by {sign_in.credential_name}")
        name = "azure"
        region = wire.location()
        yield ok(name, f"workspace {workspace.workspace} answers, region {region}")
    except UserError as problem:
        yield _failed(name, problem)
        return
    try:
        store = wire.store(spec.datastore)
        yield ok("datastore", f"{spec.datastore}, container {store.container} of {store.account}")
    except UserError as problem:
        yield _failed("datastore", problem)
    try:
        yield _quota(wire, region)
    except UserError as problem:
        yield _failed("quota", problem)


def project_settings(folder: Path, environ: Mapping[str, str]) -> AzureSpec:
    """Return the section `azure` of the project's defaults and of the environment variables.

    Args:
        folder: of the project.
        environ: environment variables.

    Raises:
        SpecError: they are not valid.
    """
    return resolve_spec("pretrain", project=find_project(folder), environ=environ).spec.settings_of(AzureSpec)


def _quota(wire: Wire, region: str) -> Finding:
    # only families of GPUs that jobs can use: a workspace has a hundred quotas
    families = {size.family for size in SIZES if size.gpu is not None}
    usages = [one for one in wire.usages(region) if any(same_family(one["name"], family) for family in families)]
    left = {one["name"]: one["limit"] - one["used"] for one in usages if one["limit"] > one["used"]}
    if not left:
        return warn("quota", f"no cores of GPU machines are left in {region}", f"request some: {QUOTA_PAGE}")
    shown = ", ".join(f"{name} {cores}" for name, cores in sorted(left.items(), key=lambda one: -one[1]))
    return ok("quota", f"cores left in {region}: {shown}")


def _failed(name: str, problem: UserError) -> Finding:
    facts = "; ".join(f"{key} {value}" for key, value in problem.facts.items())
    return fail(name, f"{problem.message} ({facts})" if facts else problem.message, str(problem.fix))
