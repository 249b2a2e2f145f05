"""Compare the lineage of a run with what this machine has: token stores, its model and those of its ancestors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.runs.lineage_report import Check, CheckedLineage, Verdict
from orchestrator.runs.run_documents import parse_object
from orchestrator.runs.status import Handle
from orchestrator.support.errors import NotFoundError
from orchestrator.support.home import FINGERPRINT_CACHE, TOKEN_STORES
from train_jobs.artifacts.files import parse_checked
from train_jobs.artifacts.fingerprints import content_hashes
from train_jobs.artifacts.lineage import LINEAGE_FILE, READ, Lineage, Link, parse_lineage, store_digest
from train_jobs.artifacts.start_model import initial_weights
from train_jobs.artifacts.store_manifest import MANIFEST_FILE, stored_manifest
from train_jobs.artifacts.task_files import task_files
from train_jobs.config import DataError, FinetuneConfig

DIGITS = 8
ABSENT = Check(verdict=Verdict.ABSENT)


@dataclass(frozen=True)
class Records:
    """Documents and folders of a backend's runs."""

    read: Callable[[str, str], bytes]
    """Read a document of a run, see `Backend.read`."""
    folder: Callable[[str], Path | None]
    """A run's folder on this machine."""

    def document(self, run: str, name: str) -> dict[str, Any]:
        """Return a JSON document of a run; empty if it has none.

        Raises:
            StorageError: it is damaged.
        """
        return parse_object(run, self.folder(run) or run, name, self.read(run, name) or b"{}")


@dataclass(frozen=True)
class _Maker:
    """A run that made a link."""

    config: dict[str, Any]
    """The configuration of its job."""
    model: Path | None
    """Folder of its model, if that is on this machine."""


def checked_lineage(handle: Handle, home: Path, records: Records) -> CheckedLineage:
    """Read the lineage of a run and check each link.

    Args:
        handle: of the run; runs of the same backend and place are looked up by their names.
        home: the home folder, for the cache of content hashes.
        records: of the run's backend.

    Raises:
        NotFoundError: the run has not begun to train.
        ConflictError: a link does not verify.
        StorageError: a document of the run, or of one that it starts from, is damaged.
    """
    run = handle.name
    data = records.read(run, LINEAGE_FILE)
    if not data:
        raise NotFoundError(f"run {run} has no lineage yet", fix=f"orchestrator status {run}")
    lineage = parse_lineage(data, Path(records.folder(run) or run, "outputs", LINEAGE_FILE))
    makers = _makers(lineage, handle, records)
    # requests of Azure have no such field: the stores of its runs are in the datastore
    stores = Path(records.document(run, "request.json").get("token_stores", home / TOKEN_STORES))
    cache = home / FINGERPRINT_CACHE
    models = _models(lineage, makers)
    own = makers.get(lineage.head.hash)
    config = own.config if own else {}
    checks = {}
    for link in lineage.links:
        if link.kind == "data":
            checks[link.hash] = _check_store(link, _store_of(link, config, stores), cache)
        elif link.kind == "tables":
            checks[link.hash] = _check_tables(link, _task_files(link, lineage, makers), cache)
        else:
            checks[link.hash] = _check_model(link, models.get(link.hash), cache)
    return CheckedLineage(lineage=lineage, checks=checks)


def _makers(lineage: Lineage, handle: Handle, records: Records) -> dict[str, _Maker]:
    """Return hash of a link -> the run of this backend that made it, for those that exist here."""
    found = {}
    for link in lineage.links:
        if link is not lineage.head and link.facts.get("run") != str(replace(handle, name=link.name)):
            continue
        name = handle.name if link is lineage.head else link.name
        with suppress(NotFoundError):  # the run was deleted: its link is still in the lineage of its children
            folder = records.folder(name)
            if config := records.document(name, "config.json"):
                found[link.hash] = _Maker(config, folder / "outputs" / "model" if folder else None)
    return found


def _models(lineage: Lineage, makers: Mapping[str, _Maker]) -> dict[str, Path]:
    """Return hash of a link -> folder of its model: where a child read it, else where its own run wrote it."""
    found: dict[str, Path] = {}
    for link in lineage.links:  # parents before children, so that the folder that a child read replaces the parent's
        maker = makers.get(link.hash)
        if maker is None:
            continue
        if maker.model is not None:
            found[link.hash] = maker.model
        parents = lineage.parents(link)
        # a checkpoint in `phase_from` that came without a lineage is a link of its own
        for key, kinds in (("init_from", {parent.kind for parent in parents} - {*READ}), ("phase_from", {"external"})):
            start = maker.config.get(key)
            if start is not None and Path(start).is_dir():
                found |= {parent.hash: Path(start) for parent in parents if parent.kind in kinds}
    return found


def _task_files(link: Link, lineage: Lineage, makers: Mapping[str, _Maker]) -> list[Path]:
    """Return the files of a task where its run read them; none if that run does not exist here."""
    child = next(other for other in lineage.links if link.hash in other.inputs)
    if child.hash not in makers:
        return []
    try:
        return [file.path for file in task_files(FinetuneConfig.model_validate(makers[child.hash].config))]
    except (DataError, ValidationError):
        return []


def _check_tables(link: Link, files: list[Path], cache: Path) -> Check:
    existing = [path for path in files if path.is_file()]
    if not existing:
        return ABSENT
    found = {(path.name, digest) for path, digest in zip(existing, content_hashes(existing, cache), strict=True)}
    where = existing[0].parent
    for source in link.facts["sources"]:
        if (Path(source["name"]).name, source["sha256"]) not in found:
            return _check(where, f"{source['name']} in {where} has changed")
    return _check(where)


def _check_model(link: Link, folder: Path | None, cache: Path) -> Check:
    if link.weights is None:
        return Check(verdict=Verdict.OPEN)
    weights = initial_weights(folder, cache) if folder is not None else None
    if folder is None or weights is None:
        return ABSENT
    return _check(folder, None if weights == link.weights else f"the weights in {folder} are {weights[:DIGITS]}")


def _store_of(link: Link, config: Mapping[str, Any], stores: Path) -> Path:
    """Return the folder of a link's token store: among those made for training, or in the run's configuration."""
    made = stores / str(link.facts["store"])
    if made.is_dir():
        return made
    data = config.get("data", {})
    named = [Path(path) for path in (data.get("store"), *data.get("text", ())) if isinstance(path, str)]
    keys = ((path, stored_manifest(path)) for path in named)
    return next((path for path, found in keys if found and found.key == link.facts["store"]), made)


def _check_store(link: Link, folder: Path, cache: Path) -> Check:
    """Compare every file of the store, by its content or by its cached hash."""
    # not by the manifest's own hashes: a changed shard next to an unchanged manifest must be found
    try:
        manifest = parse_checked((folder / MANIFEST_FILE).read_bytes())
        files = [folder / shard["file"] for shard in manifest["shards"]]
        vocabulary, *hashes = content_hashes([folder / "vocab.txt", *files], cache)
    except FileNotFoundError:
        return ABSENT
    except (OSError, ValueError, KeyError):
        return _check(folder, f"{folder} is damaged")
    content = store_digest({"file": path.name, "sha256": found} for path, found in zip(files, hashes, strict=True))
    same = (content, vocabulary) == (link.facts["content"], link.facts["vocabulary"])
    return _check(folder, None if same else f"{folder} has other content")


def _check(where: Path, why: str | None = None) -> Check:
    """Return the check of an existing file or folder: changed if there is a reason, else verified."""
    return Check(verdict=Verdict.CHANGED if why else Verdict.VERIFIED, where=str(where), why=why)
