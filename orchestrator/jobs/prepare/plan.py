"""The plan of a preparation: text, store, inputs, and rules of thumb for time, memory and disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from orchestrator.estimates.memory import disk_warnings
from orchestrator.jobs.base import Plan, SharedFacts, remote_data, text_identity, text_paths
from orchestrator.jobs.facts import document_rows, document_warnings, plan_rows
from orchestrator.jobs.inputs import At, Needs, text_needs
from orchestrator.jobs.prepare.spec import PrepareSpec
from orchestrator.jobs.text_loss import loss_warnings, measured_text, sentence_warnings, words_rows
from orchestrator.jobs.text_passes import require_enough_text, vocabulary_warnings
from orchestrator.runs.status import Counts
from orchestrator.specs.compute import usable_cores
from orchestrator.specs.resolved import Resolved
from orchestrator.support.formatting import bytes_text, counted, duration_text
from orchestrator.support.home import FINGERPRINT_CACHE
from train_jobs.artifacts.fingerprints import DataFingerprint, fingerprint
from train_jobs.artifacts.text_documents import TextCount, count_documents
from train_jobs.artifacts.text_files import part_bytes, require_outside, source_files, text_bytes
from train_jobs.artifacts.text_sample import TextFacts
from train_jobs.artifacts.vocabulary_file import given_rule
from train_jobs.config import PrepareConfig
from train_jobs.config.fields import Config
from train_jobs.config.prepare import MIN_BYTES_FOR_WORKERS
from train_jobs.readers.text_check import check_text

BYTES_PER_SECOND = 5_000_000  # of text, in each worker, all steps together, sentences included; bz2 and wikitext slower
WORKER_BYTES = 500_000_000
STORE_SHARE = 0.5  # of a byte of English text: a token of two bytes for every 4.5 characters, and offsets
STEPS_SHARE = 0.45  # documents compressed with zstd, and their hashes


class PrepareEstimates(Config):
    """Resources that a preparation needs: rules of thumb, not measurements."""

    text_bytes: int
    """Text, uncompressed."""
    parts: int
    """Units of work, at least one for each source."""
    workers: int | None
    """Processes that share them, on all nodes; None: those of an existing Dask cluster."""
    seconds: float | None
    """How long it takes; None: not known, as on an existing Dask cluster."""
    process_bytes: int
    """Memory of the processes of a node together."""
    store_bytes: int
    """The store."""
    steps_bytes: int
    """Outputs of the steps, kept during the preparation or with keep_steps."""

    @property
    def disk_bytes(self) -> int:
        """Most that it takes of the disk."""
        return self.store_bytes + self.steps_bytes


def estimate_preparation(job: PrepareConfig, data: DataFingerprint, *, nodes: int, cores: int) -> PrepareEstimates:
    """Return the estimates of a preparation.

    Args:
        job: what is prepared.
        data: its text.
        nodes: machines.
        cores: of each machine, taken to be those of this one.
    """
    files = [file for source in job.data.text if source.dataset is None for file in source_files(source)]
    text = sum(map(text_bytes, files)) or data.total_bytes
    parts = max(-(-text // part_bytes(text)), len(job.data.text), 1)
    each = min(cores if job.data.workers == "auto" else job.data.workers, parts)
    busy = nodes if _shares_nodes(job, data, nodes) else 1
    if job.data.executor.is_existing:
        workers = None
    elif busy == 1 and job.data.executor.name != "dask" and text < MIN_BYTES_FOR_WORKERS:
        workers = 1
    else:
        workers = min(each * busy, parts)
    return PrepareEstimates(
        text_bytes=text,
        parts=parts,
        workers=workers,
        seconds=None if workers is None else text / (BYTES_PER_SECOND * workers),
        process_bytes=WORKER_BYTES * -(-(workers or 1) // busy),
        store_bytes=int(text * STORE_SHARE),
        steps_bytes=int(text * STEPS_SHARE),
    )


def _shares_nodes(job: PrepareConfig, data: DataFingerprint, nodes: int) -> bool:
    """Return whether all nodes share the work; otherwise the first does all of it."""
    at_url = isinstance(job.store, str)
    return nodes > 1 and not at_url and job.data.executor.starts_cluster(nodes, data.total_bytes)


class PreparePlan(Plan):
    """A preparation of text."""

    stores: ClassVar[bool] = True
    spec: PrepareSpec
    """What the user wants."""
    job: PrepareConfig
    """What the job itself will read."""
    estimates: PrepareEstimates
    """What it will need."""
    text: TextFacts | None
    """How the text becomes words; None for embedded text and for text on another machine."""
    documents: tuple[TextCount, ...] = ()
    """Documents of each source with plain text."""

    @property
    def counts(self) -> Counts:
        """Parts of the text, of each of its steps."""
        return "parts"

    def facts(self) -> list[tuple[str, str]]:
        """Return the plan for humans: label and fact; an empty label continues the row above."""
        return plan_rows(self, document_rows(self.documents), preparation_rows(self))


def plan_preparation(resolved: Resolved, home: Path, reuse: Plan | None) -> PreparePlan:
    """Read text and code, and return the plan.

    Args:
        resolved, home, like: see `resolve.make_plan`.

    Raises:
        DataError: the text cannot be read, or the store would be inside its folder.
    """
    spec = resolved.spec
    assert isinstance(spec, PrepareSpec)
    job = spec.job_config()
    remote = resolved.site.remote_data(spec)
    if not remote and job.store is not None:
        require_outside(job.data.text, job.store, what="the store", fix="another --store, outside of it")
    given_rule(job.data)  # refuse a wrong vocabulary before the text is read
    checked = None
    if not remote and reuse is None and job.data.text:
        checked = check_text(job.data.text, everything=spec.check == "all")
    data = remote_data(remote) if remote else fingerprint(job.data.text, cache=home / FINGERPRINT_CACHE)
    local = job.store if isinstance(job.store, Path) else None
    shared = SharedFacts.of(resolved, home, text_paths(job.data, spec.code.folder, local), reuse)
    store = str(job.store) if job.store else None
    shaping = {"data": text_identity(job.data, data), "store": store, "keep_steps": job.keep_steps}
    estimates = estimate_preparation(job, data, nodes=shared.compute.nodes, cores=usable_cores())
    warnings = [] if isinstance(job.store, str) else disk_warnings(estimates.disk_bytes, local or home, "the store")
    text = None if remote else measured_text(job.data)
    warnings += [*loss_warnings(job.data, text), *sentence_warnings(text), *vocabulary_warnings(job.data, text)]
    documents = () if remote else tuple(count_documents(job.data.text))
    require_enough_text(job.data, documents, text)
    warnings += checked.warnings() if checked else ()
    warnings += document_warnings(documents, job.data.validation_fraction)
    return PreparePlan(
        **shared.fields(shaping, data, warnings),
        needs=preparation_needs(job, data, remote),
        job=job,
        checked=checked.text() if checked else None,
        estimates=estimates,
        documents=documents,
        text=text,
    )


def preparation_rows(plan: PreparePlan) -> Iterator[tuple[str, str]]:
    """Store, work, time, memory, disk."""
    job, estimates = plan.job, plan.estimates
    yield "store", str(job.store) if job.store else "below the home folder, named by its content: pretrain finds it"
    vocabulary = str(job.data.vocabulary or f"trained here, {job.data.vocab_size:,} pieces")
    yield "vocabulary", vocabulary
    yield from words_rows(job.data, plan.text)
    work = f"{bytes_text(estimates.text_bytes)} of text in {counted(estimates.parts, 'part')} by"
    if estimates.workers is None or estimates.seconds is None:
        yield "work", f"{work} the workers of the cluster"
    else:
        yield "work", f"{work} {counted(estimates.workers, 'worker')}: {duration_text(estimates.seconds)} (estimate)"
    if plan.job.data.executor.name == "dask" or plan.compute.nodes > 1:
        yield (
            "executor",
            executor_text(job, plan.compute.nodes, shared=_shares_nodes(job, plan.data, plan.compute.nodes)),
        )
    yield "memory", f"{bytes_text(estimates.process_bytes)} on each node (estimate)"
    yield (
        "disk",
        f"{bytes_text(estimates.disk_bytes)} at most: the store's {bytes_text(estimates.store_bytes)}, and"
        f" {bytes_text(estimates.steps_bytes)} {'beside it' if job.keep_steps else 'while it is made'} (estimate)",
    )


def executor_text(job: PrepareConfig, nodes: int, *, shared: bool) -> str:
    """Return what runs the work on the parts.

    Args:
        job: what is prepared.
        nodes: machines.
        shared: whether they share the work.
    """
    config = job.data.executor
    if config.is_existing:
        return f"the Dask cluster of {config.scheduler or config.scheduler_file}, which must see text and store"
    if nodes > 1 and not shared:
        return "processes of the first node; the others wait for it"
    if config.name == "processes":
        return "processes of this node"
    where = f"{counted(nodes, 'node')}, the scheduler on the first" if nodes > 1 else "this node"
    return f"a Dask cluster that the job starts on {where}"


def preparation_needs(job: PrepareConfig, data: DataFingerprint, remote: str | None) -> Needs:
    """Return the needs of a preparation.

    Args:
        job: what is prepared.
        data: its text by content.
        remote: name of the text at the site.
    """
    needs = text_needs(job.data, data, remote)
    placed = dict(needs.placed)
    if job.store is not None:
        placed["store"] = job.store if isinstance(job.store, str) else At("stores", job.store.name)
    return replace(needs, placed=placed, local=(*needs.local, "store"))
