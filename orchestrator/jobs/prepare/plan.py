"""The plan of a preparation: text, store, and what it will need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from orchestrator.estimates.shortages import disk_warnings
from orchestrator.jobs.base import Plan
from orchestrator.jobs.facts import plan_rows
from orchestrator.jobs.ground import SharedFacts, remote_data, text_identity, text_paths
from orchestrator.jobs.prepare.estimate import PrepareEstimates, estimate_preparation
from orchestrator.jobs.prepare.inputs import preparation_needs
from orchestrator.jobs.prepare.spec import PrepareSpec
from orchestrator.runs.status import Counts
from orchestrator.specs.local_machine import usable_cores
from orchestrator.specs.resolved import Resolved
from orchestrator.support.formatting import bytes_text, counted, duration_text
from orchestrator.support.home import FINGERPRINT_CACHE
from train_jobs.artifacts.fingerprints import fingerprint
from train_jobs.artifacts.text_files import require_outside
from train_jobs.config import PrepareConfig


class PreparePlan(Plan):
    """A preparation of text."""

    stores: ClassVar[bool] = True
    spec: PrepareSpec
    """What the user wants."""
    job: PrepareConfig
    """What the job itself will read."""
    estimates: PrepareEstimates
    """What it will need."""

    @property
    def counts(self) -> Counts:
        """Parts of the text, of each of its steps."""
        return "parts"

    def facts(self) -> list[tuple[str, str]]:
        """Return the plan for humans: label and fact; an empty label continues the row above."""
        return plan_rows(self, how=preparation_rows(self))


def plan_preparation(resolved: Resolved, home: Path, like: Plan | None) -> PreparePlan:
    """Read text and code, and return the plan.

    Args:
        resolved, home, like: see `resolve.make_plan`.

    Raises:
        DataError: the text cannot be read, or the store would lie in its folder.
    """
    spec = resolved.spec
    assert isinstance(spec, PrepareSpec)
    job = spec.job_config()
    remote = resolved.site.remote_data(spec)
    if not remote and job.store is not None:
        require_outside(job.data.text, job.store, what="the store", fix="another --store, outside of it")
    data = remote_data(remote) if remote else fingerprint(job.data.text, cache=home / FINGERPRINT_CACHE)
    shared = SharedFacts.of(resolved, home, text_paths(job.data, spec.code.folder, job.store), like)
    store = str(job.store) if job.store else None
    shaping = {"data": text_identity(job.data, data), "store": store, "keep_steps": job.keep_steps}
    estimates = estimate_preparation(job, data, nodes=shared.compute.nodes, cores=usable_cores())
    warnings = disk_warnings(estimates.disk_bytes, job.store or home, "the store")
    needs = preparation_needs(job, data, remote)
    return PreparePlan(**shared.fields(shaping, data, warnings), needs=needs, job=job, estimates=estimates)


def preparation_rows(plan: PreparePlan) -> Iterator[tuple[str, str]]:
    """Store, work, time, memory, disk."""
    job, estimates = plan.job, plan.estimates
    yield "store", str(job.store) if job.store else "below the home folder, named by its content: pretrain finds it"
    vocabulary = str(job.data.vocabulary or f"trained here, {job.data.vocab_size:,} pieces")
    yield "vocabulary", f"{vocabulary}, {'lower case' if job.data.lowercase else 'cased'}"
    yield (
        "work",
        f"{bytes_text(estimates.text_bytes)} of text in {counted(estimates.parts, 'part')} by"
        f" {counted(estimates.workers, 'worker')}:"
        f" {duration_text(estimates.seconds)} (estimate)",
    )
    yield "memory", f"{bytes_text(estimates.process_bytes)} on each node (estimate)"
    yield (
        "disk",
        f"{bytes_text(estimates.disk_bytes)} at most: the store's {bytes_text(estimates.store_bytes)}, and"
        f" {bytes_text(estimates.steps_bytes)} {'beside it' if job.keep_steps else 'while it is made'} (estimate)",
    )
