"""Compares the lineage of a run with what this machine has: token stores, its model and those of its ancestors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.runs.lineage_report import Check, CheckedLineage, Verdict
from orchestrator.runs.status import Handle
from orchestrator.support.errors import NotFoundError
from orchestrator.support.home import FINGERPRINT_CACHE, TOKEN_STORES
from train_jobs.artifacts.fingerprints import content_hashes
from train_jobs.artifacts.lineage import LINEAGE_FILE, READ, Lineage, Link, parse_lineage, store_digest
from train_jobs.artifacts.start_model import initial_weights
from train_jobs.artifacts.store_manifest import read_manifest
from train_jobs.artifacts.task_files import task_files
from train_jobs.config.errors import DataError
from train_jobs.config.finetune import FinetuneConfig

DIGITS = 8


@dataclass(frozen=True)
class Records:
    """What a backend has on record of its runs."""

    read: Callable[[str, str], bytes]
    """Read a document of a run, see `Backend.read`."""
    folder: Callable[[str], Path | None]
    """A run's folder on this machine."""

    def document(self, run: str, name: str) -> dict[str, Any]:
        """A JSON document of a run; empty if it has none."""
        return dict(json.loads(self.read(run, name) or b"{}"))


@dataclass(frozen=True)
class _Maker:
    """A run that made a link."""

    config: dict[str, Any]
    """What its job read."""
    model: Path | None
    """Folder of its model, if that is on this machine."""


def checked_lineage(handle: Handle, home: Path, records: Records) -> CheckedLineage:
    """Read the lineage of a run and look for each link.

    Args:
        handle: of the run; runs of the same backend and place are looked up by their names.
        home: the home folder, for the cache of content hashes.
        records: of the run's backend.

    Raises:
        NotFoundError: the run has not begun to train.
        ConflictError: a link does not verify.
    """
    run = handle.name
    data = records.read(run, LINEAGE_FILE)
    if not data:
        raise NotFoundError(f"run {run} has no lineage yet", fix=f"orchestrator status {run}")
    lineage = parse_lineage(data, Path(records.folder(run) or run, "outputs", LINEAGE_FILE))
    makers = _makers(lineage, handle, records)
    stores = Path(records.document(run, "request.json").get("token_stores", home / TOKEN_STORES))
    cache = home / FINGERPRINT_CACHE
    models = _models(lineage, makers)
    checks = {}
    for link in lineage.links:
        if link.kind == "data":
            checks[link.hash] = _check_store(link, _store_of(link, makers[lineage.head.hash].config, stores), cache)
        elif link.kind == "tables":
            checks[link.hash] = _check_tables(link, _tuned_on(link, lineage, makers), cache)
        else:
            checks[link.hash] = _check_model(link, models.get(link.hash), cache)
    return CheckedLineage(lineage=lineage, checks=checks)


def _makers(lineage: Lineage, handle: Handle, records: Records) -> dict[str, _Maker]:
    """Hash of a link -> the run of this backend that made it, for those that exist here."""
    found = {}
    for link in lineage.links:
        if link is not lineage.head and link.facts.get("run") != str(replace(handle, name=link.name)):
            continue
        name = handle.name if link is lineage.head else link.name
        with suppress(NotFoundError):
            folder = records.folder(name)
            if config := records.document(name, "config.json"):
                found[link.hash] = _Maker(config, folder / "outputs" / "model" if folder else None)
    return found


def _models(lineage: Lineage, makers: Mapping[str, _Maker]) -> dict[str, Path]:
    """Hash of a link -> folder of its model: where a run here took it from, else where the run that made it put it."""
    found: dict[str, Path] = {}
    for link in lineage.links:  # parents before children, who know better
        maker = makers.get(link.hash)
        if maker is None:
            continue
        if maker.model is not None:
            found[link.hash] = maker.model
        config, parents = maker.config, lineage.parents(link)
        initial, phase = config.get("init_from"), config.get("phase_from")
        if initial is not None and Path(initial).is_dir():
            found |= {parent.hash: Path(initial) for parent in parents if parent.kind not in READ}
        if phase is not None and Path(phase).is_dir():  # a checkpoint that came without a lineage is a link itself
            found |= {parent.hash: Path(phase) for parent in parents if parent.kind == "external"}
    return found


def _tuned_on(link: Link, lineage: Lineage, makers: Mapping[str, _Maker]) -> list[Path]:
    """The files of a task, where the run that read them had them; none if that run does not exist here."""
    child = next(other for other in lineage.links if link.hash in other.inputs)
    if child.hash not in makers:
        return []
    try:
        return [file.path for file in task_files(FinetuneConfig.model_validate(makers[child.hash].config))]
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


def _store_of(link: Link, config: Mapping[str, Any], stores: Path) -> Path:
    """Where a link's token store is: among those made for training, or where the run's configuration has it."""
    made = stores / str(link.facts["store"])
    if made.is_dir():
        return made
    data = config.get("data", {})
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
