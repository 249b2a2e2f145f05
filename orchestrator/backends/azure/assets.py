"""Assets of a job on Azure: code, data and environments, named by their content, and their upload.

Files go below the folders of `places`. An environment's version is the hash of everything that it is built from: an
unchanged one is built once and never again.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.backends.azure import places
from orchestrator.backends.azure.catalogue import base_image
from orchestrator.backends.azure.options import AzureSpec, Workspace
from orchestrator.backends.azure.supervisor_code import ARCHIVE, write_archive
from orchestrator.backends.azure.wire.blobs import Files
from orchestrator.backends.azure.wire.control_plane import Body, Store, Wire
from orchestrator.backends.base import Progress
from orchestrator.jobs.inputs import START, Content, JobInput
from orchestrator.support.errors import NotFoundError
from orchestrator.support.formatting import bytes_text, counted
from train_jobs.artifacts.drafts import scratch_folder
from train_jobs.config.fields import Config

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan

PACKAGE = Path(__file__).resolve().parents[2]
SHIPPED = PACKAGE / "shipped" / "environments"  # of an installed wheel: setup.py puts them there
ENVIRONMENTS = SHIPPED if SHIPPED.is_dir() else PACKAGE.parent / "environments"
CONSTRAINTS = "constraints.txt"  # in the parent folder of the environments; part of a Docker context
CONDA_BASE = "train-cpu"  # conda environments need a base image, and share that of train-cpu
HASH_DIGITS = 12
PYTHON = "3.11"
SEEN = Path("cache", "azure-assets.json")  # below the home folder: asset -> date of the first run that found or made it


class TrainImage(NamedTuple):
    """An environment and its content."""

    name: str
    """train-gpu, train-cpu or serve-cpu."""
    version: str
    """Hash of the rest."""
    conda: str | None
    """Text of the conda file; None: it is built from a Dockerfile."""
    files: dict[str, bytes]
    """Context of the Dockerfile: name -> content."""

    def asset(self) -> Asset:
        """Return the environment as an asset."""
        body: Body = {"isAnonymous": False, "isArchived": False, "osType": "Linux"}
        folder = None
        if self.conda is not None:
            body |= {"image": base_image(CONDA_BASE).reference, "condaFile": self.conda}
        else:
            folder = f"{places.ROOT}environments/{self.name}-{self.version}/"
            body["build"] = {"contextUri": places.ACCOUNT_URL + folder, "dockerfilePath": "Dockerfile"}
        return Asset(
            kind="environments", name=self.name, version=self.version, body={"properties": body}, folder=folder
        )


def train_image(device: str, folder: Path = ENVIRONMENTS) -> TrainImage:
    """Return the environment for jobs on "gpu" or "cpu", see `image`."""
    return image(f"train-{device}", folder)


def image(name: str, folder: Path = ENVIRONMENTS) -> TrainImage:
    """Return one of the environments.

    Args:
        name: train-gpu, train-cpu or serve-cpu.
        folder: of the environments; the constraints are in its parent folder.

    Raises:
        NotFoundError: the environments are neither in the package nor next to it.
    """
    place = folder / name
    if not place.is_dir():
        raise NotFoundError(
            f"cannot find environments/{name}: the installation is incomplete",
            facts={"where": place},
            fix="--set azure.environment=azureml:NAME:VERSION",
        )
    files = {path.name: path.read_bytes() for path in sorted(place.iterdir()) if path.is_file()}
    conda = files.get("conda.yaml")
    if conda is None:
        files[CONSTRAINTS] = (folder.parent / CONSTRAINTS).read_bytes()
    # The version is the hash of all inputs of the build: an unchanged environment is found by its name, and never built
    # again, which takes 10 minutes; a changed one cannot be confused with the cached image.
    total = hashlib.sha256(b"" if conda is None else base_image(CONDA_BASE).reference.encode())
    for file in sorted(files):
        total.update(f"{file}\0{hashlib.sha256(files[file]).hexdigest()}\n".encode())
    version = total.hexdigest()[:HASH_DIGITS]
    return TrainImage(name, version, None, files) if conda is None else TrainImage(name, version, conda.decode(), {})


def pinned_versions(packages: tuple[str, ...], folder: Path = ENVIRONMENTS) -> dict[str, str]:
    """Return the versions of Python and of packages that the environments pin; empty without the environments."""
    path = folder.parent / CONSTRAINTS
    if not path.is_file():
        return {}
    lines = (line.partition("==") for line in path.read_text().splitlines())
    pins = {name.strip(): version.strip() for name, equals, version in lines if equals}
    return {"python": PYTHON, **{package: pins.get(package, "absent") for package in packages}}


class Asset(Config):
    """One version of an environment, of code or of data."""

    kind: str
    """environments, codes or data: the word in Azure's ids."""
    name: str
    """Its name."""
    version: str
    """Its version: a hash of its content, or what the spec names."""
    body: Body | None = None
    """Body to send if the workspace does not have it. None: it must exist."""
    folder: str | None = None
    """Folder of its files in the datastore. None: it has none."""


def asset_id(workspace: Workspace, kind: str, name: str, version: str) -> str:
    """Return Azure's id of an asset.

    Args:
        workspace: the workspace.
        kind: environments, codes, data or models, as in Azure's ids.
        name: of the asset.
        version: of the asset.
    """
    return f"{workspace.id}/{kind}/{name}/versions/{version}"


def data_name(job_input: JobInput) -> str:
    """Return the name of the asset of an input."""
    return f"orchestrator-{job_input.content_type}"


def uploaded(plan: Plan) -> list[JobInput]:
    """Return the inputs that become data assets: all except those in Azure and those that travel with the job."""
    return [one for one in plan.needs.inputs if one.digest and not one.inline and one.remote is None]


def plan_assets(plan: Plan) -> list[Asset]:
    """Return the assets of a plan: environment, code and data, without their files."""
    azure, digest = plan.spec.settings_of(AzureSpec), plan.snapshot.digest
    if azure.environment == "auto":
        environment = train_image(plan.compute.device).asset()
    else:
        _, name, version = azure.environment.split(":")
        environment = Asset(kind="environments", name=name, version=version)
    return [environment, code_asset(places.CODE, digest, places.content_folder("code", digest)), *_data(plan, azure)]


def code_asset(name: str, digest: str, folder: str) -> Asset:
    """Return the asset of a folder of code.

    Args:
        name: of the asset. Azure's SDK would draw a random one for each job, and the asset could not be found again.
        digest: hash of the content, whose beginning becomes the version.
        folder: path in the datastore, with a slash at its end.
    """
    body = {"properties": {"codeUri": places.ACCOUNT_URL + folder.rstrip("/"), "isAnonymous": False}}
    return Asset(kind="codes", name=name, version=digest[: places.DIGITS], body=body, folder=folder)


def _data(plan: Plan, azure: AzureSpec) -> Iterator[Asset]:
    for job_input in uploaded(plan):
        folder = places.content_folder("models" if job_input.name == START else "data", job_input.digest)
        uri = places.datastore_uri(azure.datastore, folder)
        body = {"dataType": "uri_folder", "dataUri": uri, "isAnonymous": False, "isArchived": False}
        version = job_input.digest[: places.DIGITS]
        yield Asset(kind="data", name=data_name(job_input), version=version, body={"properties": body}, folder=folder)


def asset_files(plan: Plan, asset: Asset, scratch: Path) -> dict[str, Content]:
    """Return the files of an asset of a plan: name below its folder -> content.

    Args:
        plan: the plan.
        asset: one of its assets.
        scratch: an empty folder, for the snapshot.

    Raises:
        ConflictError: a file changed since the plan was made.
    """
    if asset.kind == "environments":
        return dict(image(asset.name).files)
    if asset.name == places.SUPERVISOR_CODE:
        return {ARCHIVE: write_archive(scratch, ENVIRONMENTS)}
    if asset.kind == "codes":
        plan.snapshot.write(scratch)
        return {file.path: scratch / file.path for file in plan.snapshot.files}
    return dict(next(one.list_files() for one in uploaded(plan) if data_name(one) == asset.name))


def ensure_asset(wire: Wire, datastore: str, asset: Asset, files: Callable[[Path], Mapping[str, Content]]) -> None:
    """Upload and create an asset unless the workspace has it.

    Args:
        wire: the workspace.
        datastore: name of its datastore.
        asset: the asset.
        files: returns the asset's files, name below its folder -> content; called with an empty folder to use.

    Raises:
        NotFoundError: the workspace does not have it, and it is not one that we make.
    """
    label = f"{asset.kind} {asset.name}:{asset.version}"
    if wire.asset(asset.kind, asset.name, asset.version) is not None:
        return report(f"{label}: cached")
    if asset.body is None:
        raise NotFoundError(
            f"cannot find {label} in the workspace",
            facts={"where": f"workspace {wire.workspace.workspace}"},
            fix="--set azure.environment=auto",
        )
    if asset.folder is not None:
        with scratch_folder("upload") as scratch, _progress(label) as progress:
            content = files(scratch)
            # code and environments are small: copying one of their files takes more requests than sending it
            versions = f"{asset.folder.rstrip('/').rpartition('/')[0]}/" if asset.kind == "data" else ""
            sent = Files(wire, datastore).upload(asset.folder, content, progress, copy_below=versions)
        report(f"{label}: {counted(len(content), 'file')}, {bytes_text(sent)} uploaded")
    # After the upload, because a version never changes: an asset whose upload was interrupted would stay incomplete
    # for ever. Blobs that already exist are not sent again, so repeating an interrupted upload is cheap.
    body = fill_placeholders(asset.body, wire.store(datastore))
    wire.put_asset(asset.kind, asset.name, asset.version, body)
    if asset.kind == "environments":
        report(f"{label}: Azure builds it when it is first used, which takes about 10 minutes")
    return None


def fill_placeholders(body: Body, store: Store) -> Body:
    """Return a body with the datastore's names in the place of `{account}`, `{endpoint}` and `{container}`."""
    text = json.dumps(body)
    for name in ("account", "endpoint", "container"):
        text = text.replace(f"{{{name}}}", getattr(store, name))
    return dict(json.loads(text))


def remember_asset(home: Path, workspace: Workspace, asset: Asset) -> None:
    """Record that a workspace has an asset: a dry run is offline, and reads from here whether an image is cached."""
    if first_seen(home, workspace, asset) is None:
        known = places.read_cache(home / SEEN)
        places.write_cache(home / SEEN, {**known, _seen_key(workspace, asset): time.strftime("%Y-%m-%d")})


def first_seen(home: Path, workspace: Workspace, asset: Asset) -> str | None:
    """Return the date on which a run first found an asset in a workspace; None: no run has."""
    return places.read_cache(home / SEEN).get(_seen_key(workspace, asset))


def _seen_key(workspace: Workspace, asset: Asset) -> str:
    return f"{workspace.id}/{asset.name}:{asset.version}"


def report(text: str) -> None:
    """Print a line of progress, to stderr."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _progress(label: str) -> Iterator[Progress]:
    """Show the progress of an upload in place, on a terminal only."""
    on_terminal = sys.stderr.isatty()

    def show(done: int, total: int) -> None:
        if on_terminal:
            print(f"\r\x1b[K{label}: {bytes_text(done)} of {bytes_text(total)}", end="", file=sys.stderr, flush=True)

    yield show
    if on_terminal:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
