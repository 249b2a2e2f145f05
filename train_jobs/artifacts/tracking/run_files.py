"""Artifacts of an MLflow run: each file once, by the hash of its content, however often a run is copied."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train_jobs.artifacts.drafts import scratch_folder
from train_jobs.artifacts.files import file_sha256

FILES_TAG = "orchestrator.artifacts"
MANIFEST = "artifacts.json"
"""Artifact with size and hash of all others."""
TABLES = "tables"
"""Folder of tables in the form of MLflow's `log_table`."""
TABLES_TAG = "mlflow.loggedArtifacts"


def log_files(client: Any, run_id: str, folder: Path) -> int:
    """Log the files below a folder that a run lacks, or has with another content; return their number.

    A tag with the hash of the manifest is written last. A later call with the same files therefore makes no request
    but those that read the run.

    Args:
        client: MLflow's client.
        run_id: id of the run.
        folder: files at their paths among the run's artifacts; they may be symbolic links. Gets the manifest.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): path for path in paths}
    if not files:
        return 0
    manifest: dict[str, dict[str, Any]] = {
        name: {"bytes": path.stat().st_size, "sha256": file_sha256(path)} for name, path in files.items()
    }
    text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    size = sum(one["bytes"] for one in manifest.values())
    tag = f"{len(files)} files, {size} bytes, sha256 {hashlib.sha256(text.encode()).hexdigest()}"
    earlier = _logged(client, run_id)
    if client.get_run(run_id).data.tags.get(FILES_TAG) == tag and earlier:
        return 0
    missing = [name for name in files if earlier.get(name) != manifest[name]]
    for name in missing:
        client.log_artifact(run_id, str(files[name]), _parent(name))
    (folder / MANIFEST).write_text(text, encoding="utf-8")
    client.log_artifact(run_id, str(folder / MANIFEST))
    if tables := [{"path": name, "type": "table"} for name in files if name.startswith(f"{TABLES}/")]:
        client.set_tag(run_id, TABLES_TAG, json.dumps(tables))
    client.set_tag(run_id, FILES_TAG, tag)
    return len(missing)


def _parent(name: str) -> str | None:
    return name.rpartition("/")[0] or None


def _logged(client: Any, run_id: str) -> Mapping[str, Any]:
    """Return the manifest of an earlier call; empty without one."""
    if not any(one.path == MANIFEST for one in client.list_artifacts(run_id)):
        return {}
    with scratch_folder("mlflow") as temporary:
        text = Path(client.download_artifacts(run_id, MANIFEST, str(temporary))).read_text(encoding="utf-8")
    try:
        found: Mapping[str, Any] = json.loads(text)
    except ValueError:  # an upload was interrupted
        return {}
    return found
