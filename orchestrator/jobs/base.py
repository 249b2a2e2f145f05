"""Base of the plans of all kinds: machines with their price, code, environment, data by content, and their hash."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field

from orchestrator.estimates.memory import TrainingEstimates
from orchestrator.jobs.inputs import JobOutput, Needs
from orchestrator.runs.status import Counts
from orchestrator.snapshot import Snapshot, take_snapshot
from orchestrator.specs.compute import ResolvedCompute
from orchestrator.specs.job import JobSpec
from orchestrator.specs.resolved import Change, Resolved
from orchestrator.support.formatting import wrapped
from orchestrator.support.secret_sources import distinctive_forms
from train_jobs.artifacts.fingerprints import DataFingerprint, content_hashes, text_files
from train_jobs.artifacts.lineage import Link
from train_jobs.artifacts.store_manifest import StoreManifest
from train_jobs.artifacts.vocabulary_file import read_vocabulary
from train_jobs.config import CheckpointConfig, FinetuneConfig, PretrainConfig, TextConfig
from train_jobs.config.fields import Config
from train_jobs.config.prepare import result_settings
from train_jobs.config.urls import is_url


class Plan(Config):
    """A plan: the job, the machines, the code and the data of a run."""

    name: str
    """The run's name: slug and hash."""
    run_hash: str
    """8 hex digits of a hash over all inputs of the result: two plans that share it would train the same weights."""
    spec: JobSpec
    """The spec that it was made from."""
    job: Config
    """Configuration that the job itself reads."""
    compute: ResolvedCompute
    """Nodes, processes, device and threads, with every `auto` resolved."""
    changes: dict[str, Change]
    """Dotted path -> value and origin of the values that differ from presets and defaults."""
    snapshot: Snapshot
    """The code."""
    data: DataFingerprint
    """The data, by content."""
    parent: Link | None = None
    """The model or run that training starts from, as the last link of its lineage; None: random weights."""
    environment: dict[str, str]
    """Version of Python and of each package that affects results."""
    warnings: tuple[str, ...]
    """Warnings for the user; they never prevent a submission."""
    needs: Needs = Field(default=Needs(), exclude=True)
    """Inputs of the job, for a backend on another machine."""
    checked: str | None = None
    """How much of the data was read for problems; None: it was not read."""
    delivery: Path | None = None
    """File on this machine that receives the result once it is complete; None: the result remains with the run."""
    stores: ClassVar[bool] = False
    """Whether the job creates or reads token stores, and receives their folder."""

    @property
    def steps(self) -> int | None:
        """Total number of optimizer steps, or of the unit named by `counts`; None: unknown."""
        return None

    @property
    def seconds_per_step(self) -> float | None:
        """Estimated seconds of an optimizer step, at the slow rate of the machines; None: unknown."""
        return None

    @property
    def counts(self) -> Counts:
        """Unit of progress."""
        return "steps"

    @property
    def makes(self) -> tuple[JobOutput, ...]:
        """Outputs of the job: the run's own and, for some kinds, the shared folder of token stores."""
        return (JobOutput("run"), *((JobOutput("stores", shared=True),) if self.stores else ()))

    @property
    def saves(self) -> CheckpointConfig | None:
        """When checkpoints are saved; None: the job saves none."""
        return None

    @property
    def weights_bytes(self) -> int | None:
        """Maximum bytes of checkpoints and models on the disk; None: the job saves none."""
        return None

    @property
    def writes_result(self) -> bool:
        """Whether the job writes result.json before it ends with 0: the built-in jobs do, another module need not."""
        return self.spec.code.entry.startswith("train_jobs.")

    def portable(self) -> dict[str, Any]:
        """Return the job's configuration as JSON, without paths of this machine.

        A backend on another machine adds the paths of `needs.placed` instead.
        """
        config = self.job.model_dump(mode="json")
        for key in self.needs.local:
            tree, model = config, type(self.job)
            *sections, last = key.split(".")
            for section in sections:
                tree, model = tree[section], type(getattr(self.job, section))
            field = model.model_fields[last]
            if field.is_required():
                del tree[last]
            else:
                tree[last] = field.get_default(call_default_factory=True)
        return config

    @property
    def world_size(self) -> int:
        """Number of processes of the whole job."""
        return self.compute.world_size

    def with_variables(self, variables: Mapping[str, str]) -> Self:
        """Return the plan with additional environment variables and an unchanged hash.

        A sweep uses this to assign GPUs to a trial, which must not change its identity.
        """
        environment = self.spec.environment
        more = environment.model_copy(update={"variables": {**environment.variables, **variables}})
        return self.model_copy(update={"spec": self.spec.model_copy(update={"environment": more})})

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as JSON, with a summary of the snapshot instead of all its files."""
        document = self.model_dump(mode="json", by_alias=True, exclude={"snapshot"}, serialize_as_any=True)
        counted = {"steps": self.steps, "counts": self.counts, "world_size": self.world_size}
        return {**document, **counted, "snapshot": self.snapshot.summary()}

    @abstractmethod
    def facts(self) -> list[tuple[str, str]]:
        """Return the plan for humans as rows of label and text; an empty label continues the previous row."""

    def summary(self) -> str:
        """Return the plan as text of at most 80 columns."""
        return wrapped(self.name, self.facts())

    def _repr_html_(self) -> str:
        """Return the plan as HTML for a notebook."""
        from orchestrator.support.html import card

        return card(self.name, self.facts())


HASH_DIGITS = 8  # of a run's hash: a home folder has thousands of runs, for which collisions are improbable
# keys that do not affect a result
PRICES = {"price_per_hour", "highest_price_per_hour"}
COMPUTE_NOT_SHAPING = {"master_port", *PRICES, "size", "region", "gpu", "memory_bytes", "choices", "concurrent_runs"}


class TrainingPlan(Plan):
    """A plan of a job that trains."""

    job: FinetuneConfig | PretrainConfig
    """Configuration that the job itself reads."""
    accumulation_steps: int | None
    """Micro batches per process and optimizer step; None: the job finds the micro batch size before its first step."""
    micro_batch_reason: str = ""
    """Why the job has this micro batch; empty: the spec gives it."""
    estimates: TrainingEstimates
    """Estimated resources."""

    @property
    def saves(self) -> CheckpointConfig:
        """When checkpoints are saved."""
        return self.job.checkpoint

    @property
    def weights_bytes(self) -> int:
        """Maximum bytes of checkpoints and models on the disk."""
        return self.estimates.disk_bytes


def text_paths(data: TextConfig, folder: Path | None, store: Path | None) -> list[Path]:
    """Return the paths of text, vocabulary and store, which must not be packaged with the user's code.

    Args:
        data: the section of text.
        folder: folder of the user's code; None: no folder.
        store: a token store; None: no store.
    """
    text = [Path(path) for source in data.text for path in source.path if not is_url(path)]
    # If the text is the code's own folder or above it, excluding that path would exclude the code as well.
    if folder is not None and any(folder.is_relative_to(path) for path in text):
        text = [*text, *text_files(text)]
    return [path for path in (*text, data.vocabulary, store) if path is not None]


def text_identity(data: TextConfig, found: DataFingerprint | StoreManifest) -> dict[str, Any]:
    """Return a section of text with content hashes in place of paths, so that a moved file keeps the run's hash."""
    section = result_settings(data.model_dump(mode="json")) | {"store": None}
    if isinstance(found, StoreManifest):
        section["text"] = found.key
    else:
        sources = [{**source, "path": None} for source in section["text"] if isinstance(source, dict)]
        section["text"] = [found.sha256, *sources]
    vocabulary = data.vocabulary
    section["vocabulary"] = hashlib.sha256(read_vocabulary(vocabulary)).hexdigest() if vocabulary else None
    return section


@dataclass(frozen=True)
class SharedFacts:
    """Machines with their price, code and environment: the parts that plans of all kinds share."""

    resolved: Resolved
    compute: ResolvedCompute
    snapshot: Snapshot
    environment: dict[str, str]
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, resolved: Resolved, home: Path, data: Iterable[Path], reuse: Plan | None) -> SharedFacts:
        """Return the shared parts of a plan.

        Args:
            resolved: the validated spec.
            home: the home folder.
            data: data files and folders, which are never packaged with the user's code.
            reuse: a plan whose code and environment to reuse. None: read both.

        Raises:
            SpecError: the code contains a file that must not be packaged, or lacks its entry module.
        """
        spec = resolved.spec
        compute = resolved.site.price(resolved.compute, home, spot=spec.compute.tier == "spot")
        return cls(
            resolved,
            compute,
            _code_of(resolved, home, data, reuse),
            reuse.environment if reuse is not None else resolved.site.environment(spec),
            tuple(resolved.site.stale_facts(compute, home)),
        )

    def fields(self, shaping: dict[str, Any], data: DataFingerprint, warnings: Iterable[str] = ()) -> dict[str, Any]:
        """Return the fields that plans of all kinds have.

        Args:
            shaping: the part of the job's configuration that affects its result, with hashes in place of paths.
            data: the text, or the rows.
            warnings: warnings in addition to those of the spec.
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
            "warnings": (*self.resolved.warnings, *self.warnings, *warnings),
        }


def _code_of(resolved: Resolved, home: Path, data: Iterable[Path], reuse: Plan | None) -> Snapshot:
    """Return the snapshot of the code, and check its entry module."""
    if reuse is not None:
        return reuse.snapshot
    real = (path.resolve() for path in data)  # what a link of the data leads to stays out too
    apart = {home.resolve(): "home folder", **dict.fromkeys(real, "data"), **_own_output()}
    declared = distinctive_forms(resolved.spec.environment.secrets, os.environ)
    snapshot = take_snapshot(code=resolved.spec.code, excluded=apart, declared=declared)
    if "code.entry" in resolved.changes:
        snapshot.check_entry(resolved.spec.code.entry, where=resolved.changes["code.entry"].origin)
    return snapshot


def _own_output() -> dict[Path, str]:
    """Return the files that this process prints to: `orchestrator submit ... > log` changes its log as it runs."""
    found = {}
    for descriptor in (1, 2):
        with suppress(OSError):  # closed
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                found[Path(f"/dev/fd/{descriptor}").resolve()] = "output of this command"
    return found


def remote_data(name: str) -> DataFingerprint:
    """Return a fingerprint of data that this machine cannot read: the hash of its name, which contains a version."""
    return DataFingerprint(name=name, files=0, total_bytes=0, sha256=hashlib.sha256(name.encode()).hexdigest())


def files_fingerprint(name: str, files: Mapping[str, Path], cache: Path) -> DataFingerprint:
    """Return a fingerprint of files by content.

    Args:
        name: their name in the plan.
        files: portable name of each file -> its path.
        cache: JSON file of content hashes, see `train_jobs.artifacts.fingerprints.fingerprint`.
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
    """Return the hash of all inputs that affect the result.

    Names, tags, card, tracking, backend, port and price do not.

    Args:
        resolved: the validated spec.
        job: the part of the job's configuration that affects its result, with hashes in place of paths.
        snapshot: the code.
        environment: versions of Python and packages.
    """
    identity = {
        "job": job,
        "compute": resolved.compute.model_dump(mode="json", exclude=COMPUTE_NOT_SHAPING),
        "snapshot": snapshot.digest,
        "entry": resolved.spec.code.entry,
        "environment": environment,
        "variables": resolved.spec.environment.variables,
    }
    if secrets := resolved.spec.environment.secrets:
        identity["secrets"] = sorted(secrets)  # names alone: neither a rotated token nor its place is another run
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:HASH_DIGITS]
