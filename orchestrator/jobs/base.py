"""What plans of all kinds of jobs have, and how it is found: code, text by content, environment, price, identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.jobs.facts import plan_rows
from orchestrator.runs.status import Counts
from orchestrator.snapshot import Snapshot, take_snapshot
from orchestrator.specs import KINDS, Change, JobSpec, Resolved, ResolvedCompute
from orchestrator.specs.azure import AZURE
from orchestrator.specs.environment import PACKAGES
from orchestrator.support.formatting import wrapped
from train_jobs.artifacts.fingerprints import DataFingerprint, content_hashes
from train_jobs.artifacts.lineage import Link
from train_jobs.config.base import Config

HASH_DIGITS = 8
COMPUTE_NOT_SHAPING = {"master_port", "price_per_hour", "size", "gpu", "memory_bytes"}


class Plan(Config):
    """What will be done."""

    name: str
    """The run's name: slug and hash."""
    run_hash: str
    """8 hex digits over all that shapes the result: two plans that share it would train the same weights."""
    spec: JobSpec
    """What the user wants."""
    job: Config
    """What the job itself will read."""
    compute: ResolvedCompute
    """Nodes, processes, device and threads, nothing left on auto."""
    changes: dict[str, Change]
    """Dotted path -> value and origin of what differs from presets and defaults."""
    snapshot: Snapshot
    """The code."""
    data: DataFingerprint
    """The text, by content."""
    parent: Link | None = None
    """The model or the run that training starts from, as the last link of its lineage; None: weights are drawn."""
    environment: dict[str, str]
    """Version of Python and of each package that shapes a result."""
    warnings: tuple[str, ...]
    """For the user to read; nothing is refused for them."""

    @property
    def steps(self) -> int | None:
        """Optimizer steps, or what else `counts` says, that it shall take; None: nobody can tell."""
        return None

    @property
    def counts(self) -> Counts:
        """What its reports are numbered by."""
        return "steps"

    @property
    def stores(self) -> bool:
        """Whether its job makes or finds token stores, and is told where they are kept."""
        return KINDS[self.spec.kind].stores

    @property
    def world_size(self) -> int:
        """Processes of the whole job."""
        return self.compute.world_size

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON has it; of the snapshot a summary, without the name of every file."""
        document = self.model_dump(mode="json", by_alias=True, exclude={"snapshot"})
        counted = {"steps": self.steps, "counts": self.counts, "world_size": self.world_size}
        return {**document, **counted, "snapshot": self.snapshot.summary()}

    def facts(self) -> list[tuple[str, str]]:
        """The plan for humans: label and fact; a label that is empty goes on with the one before."""
        return plan_rows(self)

    def summary(self) -> str:
        """The same as lines of at most 80 columns."""
        return wrapped(self.name, self.facts())

    def _repr_html_(self) -> str:
        """The same as a notebook shows it."""
        from orchestrator.support.html import card

        return card(self.name, self.facts())


@dataclass(frozen=True)
class Ground:
    """What a plan of any kind stands on: the machines with their price, the code, the environment."""

    resolved: Resolved
    compute: ResolvedCompute
    snapshot: Snapshot
    environment: dict[str, str]

    @classmethod
    def of(cls, resolved: Resolved, home: Path, data: Iterable[Path], like: Plan | None) -> Ground:
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
            priced(resolved.compute, home, low_priority=spec.compute.tier != "dedicated"),
            _code_of(resolved, home, data, like),
            _environment_of(spec, like),
        )

    def fields(self, shaping: dict[str, Any], data: DataFingerprint, warnings: Iterable[str] = ()) -> dict[str, Any]:
        """What plans of all kinds say.

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
    """The code, with what shall run in it."""
    if like is not None:
        return like.snapshot
    apart = {home.resolve(): "home folder", **dict.fromkeys(data, "data")}
    snapshot = take_snapshot(code=resolved.spec.code, apart=apart)
    if "code.entry" in resolved.changes:
        snapshot.check_entry(resolved.spec.code.entry, where=resolved.changes["code.entry"].origin)
    return snapshot


def _environment_of(spec: JobSpec, like: Plan | None) -> dict[str, str]:
    """With what the job will run: this Python and its packages, or what the environment on Azure has."""
    if like is not None:
        return like.environment
    if spec.backend != AZURE:
        return spec.environment.describe()
    if spec.azure.environment != "auto":
        return {"environment": spec.azure.environment}
    from orchestrator.images import pinned_versions

    return pinned_versions(PACKAGES)


def priced(compute: ResolvedCompute, home: Path, *, low_priority: bool) -> ResolvedCompute:
    """With the list price of its machines, where nobody said another.

    Args:
        compute: the machines.
        home: the home folder, where refreshed prices lie.
        low_priority: whether they are of that tier.
    """
    if compute.size is None or compute.price_per_hour is not None:
        return compute
    from orchestrator.estimates.prices import read_prices
    from orchestrator.estimates.sizes import find_size, price_of_size

    size = find_size(compute.size)
    price = price_of_size(size, low_priority=low_priority, refreshed=read_prices(home)) if size else None
    if price is None:
        return compute
    bound = ", of a dedicated machine: low priority costs about a fifth" if price.bound else ""
    origin = f"list price of {price.date} in {price.region}{bound}"
    return compute.model_copy(update={"price_per_hour": price.usd, "price_origin": origin})


def remote_data(name: str) -> DataFingerprint:
    """Data that lies in Azure: nobody here can read it, so its name, which has a version, stands for its content."""
    return DataFingerprint(name=name, files=0, total_bytes=0, sha256=hashlib.sha256(name.encode()).hexdigest())


def files_fingerprint(name: str, files: Mapping[str, Path], cache: Path) -> DataFingerprint:
    """Files by content.

    Args:
        name: what they are called in the plan.
        files: name by which the job knows each -> where it lies.
        cache: a JSON file that remembers content hashes, as of `train_jobs.artifacts.fingerprints.fingerprint`.
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
