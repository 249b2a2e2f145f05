"""What plans of all kinds share: machines with their price, code, environment, and data by content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.jobs.base import Plan
from orchestrator.snapshot import Snapshot, take_snapshot
from orchestrator.specs.compute import ResolvedCompute
from orchestrator.specs.resolved import Resolved
from train_jobs.artifacts.fingerprints import DataFingerprint, content_hashes, text_files
from train_jobs.artifacts.store_manifest import StoreManifest
from train_jobs.config import TextConfig
from train_jobs.config.prepare import not_shaping

HASH_DIGITS = 8
COMPUTE_NOT_SHAPING = {"master_port", "price_per_hour", "size", "gpu", "memory_bytes"}


def text_paths(data: TextConfig, folder: Path | None, store: Path | None) -> list[Path]:
    """Return text, vocabulary and store, which may lie in the user's folder of code."""
    text = [Path(path) for source in data.text for path in source.path]
    if folder is not None and any(folder.is_relative_to(path) for path in text):
        text = [*text, *text_files(text)]  # the folder is itself data, and not all that is in it
    return [path for path in (*text, data.vocabulary, store) if path is not None]


def text_identity(data: TextConfig, found: DataFingerprint | StoreManifest) -> dict[str, Any]:
    """A section of text, with content in place of paths: that of a store, or of files and how they are read."""
    section = not_shaping(data.model_dump(mode="json")) | {"store": None}
    if isinstance(found, StoreManifest):
        section["text"] = found.key
    else:
        sources = [{**told, "path": None} for told in section["text"] if isinstance(told, dict)]
        section["text"] = [found.sha256, *sources]
    vocabulary = data.vocabulary
    section["vocabulary"] = hashlib.sha256(vocabulary.read_bytes()).hexdigest() if vocabulary else None
    return section


@dataclass(frozen=True)
class SharedFacts:
    """Machines with their price, code and environment of a plan of any kind."""

    resolved: Resolved
    compute: ResolvedCompute
    snapshot: Snapshot
    environment: dict[str, str]

    @classmethod
    def of(cls, resolved: Resolved, home: Path, data: Iterable[Path], like: Plan | None) -> SharedFacts:
        """Finds it.

        Args:
            resolved: the spec.
            home: the home folder.
            data: files and folders that may lie in the user's folder of code and are never shipped with it.
            like: a plan that stands on the same code and environment: they are not looked at again.
        """
        spec = resolved.spec
        return cls(
            resolved,
            resolved.site.price(resolved.compute, home, low_priority=spec.compute.tier != "dedicated"),
            _code_of(resolved, home, data, like),
            like.environment if like is not None else resolved.site.environment(spec),
        )

    def fields(self, shaping: dict[str, Any], data: DataFingerprint, warnings: Iterable[str] = ()) -> dict[str, Any]:
        """Return the fields that plans of all kinds have.

        Args:
            shaping: what of the job's configuration shapes its result, with content in place of paths.
            data: the text, or the rows.
            warnings: besides those of the spec.
        """
        spec, run_hash = self.resolved.spec, _run_hash_of(self.resolved, shaping, self.snapshot, self.environment)
        return {
            "name": f"{spec.slug}-{run_hash}",
            "run_hash": run_hash,
            "spec": spec,
            "compute": self.compute,
            "changes": self.resolved.changes,
            "snapshot": self.snapshot,
            "data": data,
            "environment": self.environment,
            "warnings": (*self.resolved.warnings, *warnings),
        }


def _code_of(resolved: Resolved, home: Path, data: Iterable[Path], like: Plan | None) -> Snapshot:
    """Return the snapshot of the code, and check its entry module."""
    if like is not None:
        return like.snapshot
    apart = {home.resolve(): "home folder", **dict.fromkeys(data, "data")}
    snapshot = take_snapshot(code=resolved.spec.code, apart=apart)
    if "code.entry" in resolved.changes:
        snapshot.check_entry(resolved.spec.code.entry, where=resolved.changes["code.entry"].origin)
    return snapshot


def remote_data(name: str) -> DataFingerprint:
    """Return a fingerprint of data that this machine cannot read: the hash of its name, which has a version."""
    return DataFingerprint(name=name, files=0, total_bytes=0, sha256=hashlib.sha256(name.encode()).hexdigest())


def files_fingerprint(name: str, files: Mapping[str, Path], cache: Path) -> DataFingerprint:
    """Files by content.

    Args:
        name: what they are called in the plan.
        files: name by which the job knows each -> where it lies.
        cache: a JSON file that remembers content hashes, see `train_jobs.artifacts.fingerprints.fingerprint`.
    """
    hashes = content_hashes(list(files.values()), cache)
    lines = sorted(f"{key}\0{digest}\n" for key, digest in zip(files, hashes, strict=True))
    unique = {*files.values()}
    return DataFingerprint(
        name=name,
        files=len(unique),
        total_bytes=sum(path.stat().st_size for path in unique),
        sha256=hashlib.sha256("".join(lines).encode()).hexdigest(),
    )


def _run_hash_of(resolved: Resolved, job: dict[str, Any], snapshot: Snapshot, environment: dict[str, str]) -> str:
    """Hash of all that shapes the result. Names, tags, card, tracking, backend, port and price do not.

    Args:
        resolved: the spec.
        job: what of the job's configuration shapes it, with content in place of paths.
        snapshot: the code.
        environment: the versions.
    """
    identity = {
        "job": job,
        "compute": resolved.compute.model_dump(mode="json", exclude=COMPUTE_NOT_SHAPING),
        "snapshot": snapshot.digest,
        "entry": resolved.spec.code.entry,
        "environment": environment,
        "variables": resolved.spec.environment.variables,
    }
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:HASH_DIGITS]
