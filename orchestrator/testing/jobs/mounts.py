"""Inputs and outputs of a job as folders: a mount is a link to the container's own, so both sides see every write."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

from orchestrator.testing.blobs.containers import Storage
from orchestrator.testing.cloud_state import Document, State
from orchestrator.testing.proxy.messages import Refusal

DATASTORE_URI = re.compile(r"azureml://(?:subscriptions/.*/)?datastores/(?P<store>[^/]+)/paths/(?P<path>.*)")
BINDING = re.compile(r"\${{\s*(?P<kind>inputs|outputs)\.(?P<name>\w+)\s*}}")
OPTIONAL = re.compile(r"\$\[\[(.*?)\]\]")


class MountError(Exception):
    """An input that is not there, or a reference to something that the job does not have."""


def place_of(uri: str, state: State, storage: Storage) -> Path:
    """Where data lie.

    Args:
        uri: of a datastore path, a blob, or the ARM id of a data or model version.

    Raises:
        MountError: it leads nowhere in this workspace.
    """
    if found := DATASTORE_URI.fullmatch(uri):
        return _inside(storage, storage.datastores.get(found["store"], ""), found["path"], uri)
    parts = urlsplit(uri)
    if parts.scheme in ("http", "https", "wasbs") and parts.hostname == state.place.blob_host:
        container, _, name = unquote(parts.path).lstrip("/").partition("/")
        return _inside(storage, container, name, uri)
    base = f"{state.place.workspace_path}/".lower()
    path = uri.removeprefix("azureml:")
    if path.lower().startswith(base) and (asset := state.resources.get(path[len(base) :])) is not None:
        properties = asset["properties"]
        stored = properties.get("dataUri") or properties.get("modelUri") or properties.get("codeUri")
        return place_of(stored, state, storage)
    raise MountError(f"{uri} could not be found")


def _inside(storage: Storage, container: str, name: str, uri: str) -> Path:
    try:
        return storage.path(container, name.rstrip("/"))
    except Refusal as refusal:
        raise MountError(f"{uri}: {refusal.message}") from None


class Mounts:
    """What one job sees of its data.

    Args:
        folder: the job's own; links and copies go below it.
        name: of the job.
    """

    def __init__(self, folder: Path, name: str, state: State, storage: Storage) -> None:
        self.folder = folder
        self.name = name
        self.state = state
        self.storage = storage
        self.values: dict[tuple[str, str], str] = {}
        """(inputs or outputs, name) -> path or literal."""

    def add(self, inputs: Document, outputs: Document) -> None:
        """Makes all of them.

        Raises:
            MountError: an input is not there.
        """
        for name, described in inputs.items():
            self.values["inputs", name] = self._input(name, described)
        for name, described in outputs.items():
            self.values["outputs", name] = self._output(name, described)

    def _input(self, name: str, described: Document) -> str:
        if described["jobInputType"] == "literal":
            return str(described["value"])
        source = place_of(described["uri"], self.state, self.storage)
        if not source.exists():
            raise MountError(f"input {name}: {described['uri']} does not exist")
        target = self._target("inputs", name, source)
        if described.get("mode") == "Download":
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        else:
            target.symlink_to(source)
        return str(target)

    def _output(self, name: str, described: Document) -> str:
        uri = described.get("uri") or f"azureml://datastores/workspaceblobstore/paths/azureml/{self.name}/{name}/"
        source = place_of(uri, self.state, self.storage)
        source.mkdir(parents=True, exist_ok=True)
        target = self._target("outputs", name, source)
        target.symlink_to(source)
        return str(target)

    def _target(self, kind: str, name: str, source: Path) -> Path:
        folder = self.folder / "mounts" / kind
        folder.mkdir(parents=True, exist_ok=True)
        return folder / (f"{name}{source.suffix}" if source.is_file() else name)

    def resolve(self, command: str) -> str:
        """The command with paths and values in the places of `${{inputs.x}}` and `${{outputs.y}}`.

        Raises:
            MountError: it names one that the job does not have.
        """

        def optional(found: re.Match[str]) -> str:
            names = [(binding["kind"], binding["name"]) for binding in BINDING.finditer(found[1])]
            return found[1] if all(name in self.values for name in names) else ""

        def value(found: re.Match[str]) -> str:
            if (named := (found["kind"], found["name"])) not in self.values:
                raise MountError(f"the command names {found[0]}, which the job does not have")
            return self.values[named]

        return BINDING.sub(value, OPTIONAL.sub(optional, command))

    def variables(self) -> dict[str, str]:
        """`AZURE_ML_INPUT_x` and `AZURE_ML_OUTPUT_y`."""
        return {f"AZURE_ML_{kind[:-1].upper()}_{name}": value for (kind, name), value in self.values.items()}
