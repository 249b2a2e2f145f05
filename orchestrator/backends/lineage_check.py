"""Holds the lineage of a run against what lies on this machine: token stores, its own model, those of its ancestors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.jobs.pretrain.plan import FINGERPRINT_CACHE
from orchestrator.runs.lineage_report import Check, CheckedLineage, Verdict
from orchestrator.runs.status import Handle
from orchestrator.support.errors import NotFoundError
from orchestrator.support.home import TOKEN_STORES
from train_jobs.artifacts.fingerprints import content_hashes
from train_jobs.artifacts.lineage import READ, Lineage, Link, read_lineage, store_digest
from train_jobs.artifacts.start_model import initial_weights
from train_jobs.artifacts.store_manifest import read_manifest
from train_jobs.artifacts.task_files import task_files
from train_jobs.config.errors import DataError
from train_jobs.config.finetune import FinetuneConfig

DIGITS = 8


def checked_lineage(run: RunFolder, handle: Handle, home: Path) -> CheckedLineage:
    """Reads the lineage of a run and looks for each link.

    Args:
        run: the run.
        handle: its handle; runs that lie beside it have handles of the same backend.
        home: the home folder, for the cache of content hashes.

    Raises:
        NotFoundError: the run has not begun to train.
        ConflictError: a link does not verify.
    """
    lineage = read_lineage(run.lineage)
    if lineage is None:
        raise NotFoundError(f"run {run.name} has no lineage yet", fix=f"orchestrator status {run.name}")
    stores = Path(run.read_json("request.json").get("token_stores", home / TOKEN_STORES))
    cache = home / FINGERPRINT_CACHE
    models = _models(run, handle, lineage)
    checks = {}
    for link in lineage.links:
        if link.kind == "data":
            checks[link.hash] = _check_store(link, _store_of(link, run, stores), cache)
        elif link.kind == "tables":
            checks[link.hash] = _check_tables(link, _tuned_on(link, lineage, run, handle), cache)
        else:
            checks[link.hash] = _check_model(link, models.get(link.hash), cache)
    return CheckedLineage(lineage=lineage, checks=checks)


def _models(run: RunFolder, handle: Handle, lineage: Lineage) -> dict[str, Path]:
    """Hash of a link -> folder of its model: where a run here took it from, else where the run that made it put it."""
    found: dict[str, Path] = {}
    for link in lineage.links:  # parents before children, who know better
        maker = run if link is lineage.head else _run_of(link, run, handle)
        if maker is None:
            continue
        found[link.hash] = maker.model
        config, parents = maker.read_json("config.json"), lineage.parents(link)
        initial, phase = config.get("init_from"), config.get("phase_from")
        if initial is not None and Path(initial).is_dir():
            found |= {parent.hash: Path(initial) for parent in parents if parent.kind not in READ}
        if phase is not None and Path(phase).is_dir():  # a checkpoint that came without a lineage is a link itself
            found |= {parent.hash: Path(phase) for parent in parents if parent.kind == "external"}
    return found


def _run_of(link: Link, run: RunFolder, handle: Handle) -> RunFolder | None:
    """The run of this backend that a link tells of, if it is here."""
    told = link.facts.get("run")
    if told != str(replace(handle, name=link.name)):
        return None
    found = RunFolder(run.path.parent / link.name)
    return found if found.config.is_file() else None


def _tuned_on(link: Link, lineage: Lineage, run: RunFolder, handle: Handle) -> list[Path]:
    """The files of a task, where the run here that read them was told that they are; none if no such run is here."""
    child = next(other for other in lineage.links if link.hash in other.inputs)
    maker = run if child is lineage.head else _run_of(child, run, handle)
    if maker is None:
        return []
    try:
        return [file.path for file in task_files(FinetuneConfig.model_validate(maker.read_json("config.json")))]
    except (DataError, ValidationError):
        return []


def _check_tables(link: Link, files: list[Path], cache: Path) -> Check:
    there = [path for path in files if path.is_file()]
    if not there:
        return Check(verdict=Verdict.ABSENT)
    found = {(path.name, digest) for path, digest in zip(there, content_hashes(there, cache), strict=True)}
    where = str(there[0].parent)
    for source in link.facts["sources"]:
        if (Path(source["name"]).name, source["sha256"]) not in found:
            return Check(verdict=Verdict.CHANGED, where=where, why=f"{source['name']} in {where} is another")
    return Check(verdict=Verdict.VERIFIED, where=where)


def _check_model(link: Link, folder: Path | None, cache: Path) -> Check:
    if link.weights is None:
        return Check(verdict=Verdict.OPEN)
    weights = initial_weights(folder, cache) if folder is not None else None
    if weights is None:
        return Check(verdict=Verdict.ABSENT)
    if weights != link.weights:
        return Check(verdict=Verdict.CHANGED, where=str(folder), why=f"the weights in {folder} are {weights[:DIGITS]}")
    return Check(verdict=Verdict.VERIFIED, where=str(folder))


def _store_of(link: Link, run: RunFolder, stores: Path) -> Path:
    """Where a link's token store is: among those made for training, or where the run was told that it is."""
    made = stores / str(link.facts["store"])
    if made.is_dir():
        return made
    data = run.read_json("config.json").get("data", {})
    told = [Path(path) for path in (data.get("store"), *data.get("text", ())) if isinstance(path, str)]
    return next((path for path in told if _key(path) == link.facts["store"]), made)


def _key(folder: Path) -> str | None:
    manifest = read_manifest(folder)
    return manifest.key if manifest is not None else None


def _check_store(link: Link, folder: Path, cache: Path) -> Check:
    """Every file of the store is read, or its hash remembered."""
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
        files = [folder / shard["file"] for shard in manifest["shards"]]
        vocabulary, *hashes = content_hashes([folder / "vocab.txt", *files], cache)
    except FileNotFoundError:
        return Check(verdict=Verdict.ABSENT)
    except (OSError, ValueError, KeyError):
        return Check(verdict=Verdict.CHANGED, where=str(folder), why=f"{folder} is damaged")
    content = store_digest({"file": path.name, "sha256": found} for path, found in zip(files, hashes, strict=True))
    if (content, vocabulary) != (link.facts["content"], link.facts["vocabulary"]):
        return Check(verdict=Verdict.CHANGED, where=str(folder), why=f"{folder} holds something else")
    return Check(verdict=Verdict.VERIFIED, where=str(folder))
