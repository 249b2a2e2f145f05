"""Data assets of a workspace that their user names: created from files of this machine or from an address in Azure."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from orchestrator.backends.azure import places
from orchestrator.backends.azure.assets import Asset, ensure_asset
from orchestrator.backends.azure.options import AzureSpec, is_remote
from orchestrator.backends.azure.wire.control_plane import Body, Wire
from orchestrator.backends.stored_data import DataAssets
from orchestrator.support.errors import ConflictError, NotFoundError, UsageError
from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.text_files import files_below

DATA = "data"
URI = "azureml:{}:{}"


class AzureDataAssets(DataAssets):
    """The data assets of a workspace.

    Args:
        wire: connection to the workspace.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def rows(self) -> list[dict[str, Any]]:
        """Return the newest version of each asset."""
        return [self.row(str(one["name"])) for one in self._wire.assets(DATA)]

    def row(self, name: str, version: str | None = None) -> dict[str, Any]:
        """Return one version of an asset."""
        versions = self._wire.asset_versions(DATA, name)
        if not versions:
            raise NotFoundError(f"unknown data asset {name!r}", fix="orchestrator data asset list")
        found = next((one for one in versions if version in {None, one["name"]}), None)
        if found is None:
            known = ", ".join(str(one["name"]) for one in versions)
            raise NotFoundError(
                f"data asset {name} has no version {version}",
                facts={"known": known},
                fix=f"orchestrator data asset show {name}",
            )
        return _row(name, found, [str(one["name"]) for one in versions])

    def create(self, name: str, source: str, version: str | None = None) -> dict[str, Any]:
        """Upload files, or take the address of files in Azure, and create a version of an asset."""
        if is_remote(source):
            self._create_remote(name, source, version)
        else:
            version = self._create_local(name, Path(source), version)
        return self.row(name, version)

    def _create_local(self, name: str, path: Path, version: str | None) -> str:
        if not path.exists():
            raise UsageError(f"no such file or folder: {path}", fix="orchestrator data asset create --help")
        files = _files(path)
        total = hashlib.sha256()
        for file, place in sorted(files.items()):
            total.update(f"{file}\0{file_sha256(place)}\n".encode())
        digest = total.hexdigest()
        version = version or digest[: places.DIGITS]
        folder, datastore = places.content_folder(DATA, digest), AzureSpec().datastore
        kind, below = ("uri_file", path.name) if path.is_file() else ("uri_folder", "")
        uri = places.datastore_uri(datastore, folder + below)
        self._check_free(name, version, uri)
        asset = Asset(kind=DATA, name=name, version=version, body=_body(kind, uri), folder=folder)
        ensure_asset(self._wire, datastore, asset, lambda _: files)
        return version

    def _create_remote(self, name: str, uri: str, version: str | None) -> None:
        if version is None:
            raise UsageError(
                "cannot derive a version: only files of this machine are read", fix=f"--version 1, for {uri}"
            )
        if uri.startswith("azureml:") and not uri.startswith("azureml://"):
            raise UsageError(f"{uri} is a data asset already", fix=f"orchestrator submit pretrain --data {uri}")
        self._check_free(name, version, uri)
        kind = "uri_folder" if uri.endswith("/") else "uri_file"
        self._wire.put_asset(DATA, name, version, _body(kind, uri))

    def _check_free(self, name: str, version: str, uri: str) -> None:
        existing = self._wire.asset(DATA, name, version)
        if existing is not None and (there := existing["properties"].get("dataUri")) != uri:
            raise ConflictError(
                f"data asset {name}:{version} exists with other content",
                facts={"address": there},
                fix="--version with another version, or none",
            )


def _body(kind: str, uri: str) -> Body:
    return {"properties": {"dataType": kind, "dataUri": uri, "isAnonymous": False, "isArchived": False}}


def _files(path: Path) -> dict[str, Path]:
    """Return the name of each file below a folder, or of the one file, with its path; hidden files are left out.

    Raises:
        DataError: a folder below it cannot be read.
        UsageError: the folder has no file, or a name is not UTF-8.
    """
    if path.is_file():
        found = {path.name: path}
    else:
        found = {one.relative_to(path).as_posix(): one for one in files_below(path)}
    if not found:
        raise UsageError(f"no file in {path}", fix="orchestrator data asset create --help")
    if wrong := [name for name in found if name.encode(errors="ignore").decode() != name]:
        raise UsageError(f"cannot upload {found[wrong[0]]}: its name is not UTF-8", fix="rename it")
    return found


def _row(name: str, version: Body, versions: list[str]) -> dict[str, Any]:
    own = version["properties"]
    return {
        "name": name,
        "version": version["name"],
        "type": own.get("dataType"),
        "address": own.get("dataUri"),
        "created": (version.get("systemData") or {}).get("createdAt"),
        "use": URI.format(name, version["name"]),
        "versions": versions,
    }
