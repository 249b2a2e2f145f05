"""The files of a run, by where they go in the datastore: code, Docker context, text, what it starts from, its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backends.azure.assets.images import train_image
from orchestrator.jobs.inputs import Content

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan
import sys
import tempfile
import time

from orchestrator.backends.azure.assets.assets import Asset, data_name, uploaded
from orchestrator.backends.azure.wire.blobs import Files
from orchestrator.backends.azure.wire.control_plane import Body, Store, Wire
from orchestrator.backends.azure.wire.workspace import Workspace
from orchestrator.support.errors import NotFoundError
from orchestrator.support.formatting import bytes_text
from train_jobs.artifacts.files import write_text

SEEN = Path("cache", "azure-assets.json")  # below the home folder: which assets a workspace was seen to have


def asset_files(kind: str, name: str, plan: Plan, scratch: Path) -> dict[str, Content]:
    """Files of an asset of a request: name below its folder -> content.

    Args:
        kind, name: of the asset.
        plan: that the request is of.
        scratch: an empty folder, for the snapshot.

    Raises:
        ConflictError: a file changed since the plan was made.
    """
    if kind == "environments":
        return dict(train_image(plan.compute.device).files)
    if kind == "codes":
        plan.snapshot.write(scratch)
        return {file.path: scratch / file.path for file in plan.snapshot.files}
    return dict(next(one.list_files() for one in uploaded(plan) if data_name(one) == name))


def remember_asset(home: Path, workspace: Workspace, name: str, version: str) -> None:
    """Notes that a workspace has an asset, for the next plan."""
    known = _read(home)
    key = _key(workspace, name, version)
    if key not in known:
        (home / SEEN).parent.mkdir(parents=True, exist_ok=True)
        write_text(home / SEEN, json.dumps({**known, key: time.strftime("%Y-%m-%d")}, indent=1))


def _key(workspace: Workspace, name: str, version: str) -> str:
    return f"{workspace.id}/{name}:{version}"


def _read(home: Path) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads((home / SEEN).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def ensure_asset(wire: Wire, files: Files, store: Store, asset: Asset, plan: Plan) -> None:
    """Sees to it that the workspace has an asset; what it has is neither uploaded nor built again.

    Raises:
        NotFoundError: it is not there, and is none of ours.
    """
    label = f"{asset.kind} {asset.name}:{asset.version}"
    if wire.asset(asset.kind, asset.name, asset.version) is not None:
        say(f"{label}: cached")
        return
    if asset.body is None:
        raise NotFoundError(
            f"the workspace has no {label}",
            facts={"where": f"workspace {wire.workspace.workspace}"},
            fix="--set azure.environment=auto",
        )
    if asset.folder is not None:
        with tempfile.TemporaryDirectory(prefix="orchestrator-") as scratch:
            content = asset_files(asset.kind, asset.name, plan, Path(scratch))
            bar = UploadBar(label)
            sent = files.upload(asset.folder, content, bar)
            bar.end()
        say(f"{label}: {len(content)} files, {bytes_text(sent)} uploaded")
    wire.put_asset(asset.kind, asset.name, asset.version, filled(asset.body, store))
    if asset.kind == "environments":
        say(f"{label}: Azure builds it before the first job starts, which takes some 10 minutes")


def filled(body: Body, store: Store) -> Body:
    """A body with the datastore's own names in the place of `{account}`, `{endpoint}` and `{container}`."""
    text = json.dumps(body)
    for name, value in (("account", store.account), ("endpoint", store.endpoint), ("container", store.container)):
        text = text.replace(f"{{{name}}}", value)
    found: Body = json.loads(text)
    return found


class UploadBar:
    """Says on a terminal how far an upload is, in place."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{self._label}: {bytes_text(done)} of {bytes_text(total)}")
            sys.stderr.flush()
            self._shown = True

    def end(self) -> None:
        """Makes way for what follows."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
