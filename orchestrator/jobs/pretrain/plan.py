"""The plan of a pretraining: steps, batch, what it starts from and what it will need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from orchestrator.estimates.shortages import disk_warnings, training_warnings
from orchestrator.jobs.base import Plan
from orchestrator.jobs.facts import _memory, _what_is_kept, _when_saved, plan_rows, span_text
from orchestrator.jobs.ground import SharedFacts, remote_data, text_identity, text_paths
from orchestrator.jobs.pretrain.estimate import Estimates, estimate
from orchestrator.jobs.pretrain.inputs import pretraining_needs
from orchestrator.jobs.pretrain.spec import PretrainSpec
from orchestrator.specs.resolved import Resolved
from orchestrator.support.formatting import bytes_text
from orchestrator.support.home import FINGERPRINT_CACHE
from train_jobs.artifacts.fingerprints import DataFingerprint, fingerprint
from train_jobs.artifacts.lineage import Link, PhaseFacts
from train_jobs.artifacts.start_model import initial_lineage
from train_jobs.artifacts.start_phase import EarlierPhase, find_checkpoint, phase_lineage, read_phase, verify_phase
from train_jobs.artifacts.store_manifest import StoreManifest, on_store, require_manifest, store_folder
from train_jobs.config import CheckpointConfig, PretrainConfig
from train_jobs.config.errors import DataError, SpecError
from train_jobs.config.own import own_names
from train_jobs.config.pretrain import OBSERVERS


class PretrainPlan(Plan):
    """A pretraining."""

    stores: ClassVar[bool] = True
    spec: PretrainSpec
    """What the user wants."""
    job: PretrainConfig
    """What the job itself will read."""
    accumulation_steps: int | None
    """Micro batches that each process sums up before an optimizer step; None: the micro batch is yet to be found."""
    phase: PhaseFacts | None
    """The checkpoint that weights and moments are taken over from; None: none is."""
    estimates: Estimates
    """What it will need."""

    @property
    def steps(self) -> int:
        """Optimizer steps that it will take."""
        return self.job.train.steps

    @property
    def saves(self) -> CheckpointConfig:
        """When checkpoints are saved."""
        return self.job.checkpoint

    @property
    def weights_bytes(self) -> int:
        """Most that checkpoints and models take of the disk."""
        return self.estimates.disk_bytes

    def facts(self) -> list[tuple[str, str]]:
        """Return the plan for humans: label and fact; an empty label continues the row above."""
        return plan_rows(self, model_rows(self), training_rows(self))


def plan_pretraining(resolved: Resolved, home: Path, like: Plan | None) -> PretrainPlan:
    """Read text, code and what training starts from, and return the plan.

    Args:
        resolved, home, like: see `resolve.make_plan`.

    Raises:
        DataError: the text cannot be read, or the vocabulary is no UTF-8 text.
        SpecError: the user's code holds what must not be shipped, or lacks what runs.
        ConflictError: the lineage of what training starts from does not verify, or a file of a checkpoint.
    """
    spec = resolved.spec
    assert isinstance(spec, PretrainSpec)
    job = spec.job_config()
    named = store_folder(job.data, job.data.store)
    store = require_manifest(named) if named is not None else None
    remote = resolved.site.remote_data(spec)
    if store is not None:
        job, data = on_store(job, store), store.data
    elif remote is not None:
        data = remote_data(remote)
    else:
        data = fingerprint(job.data.text, cache=home / FINGERPRINT_CACHE)
    phase = read_phase(find_checkpoint(job.phase_from)) if job.phase_from else None
    parent = _parent(job, phase, home / FINGERPRINT_CACHE)
    shared = SharedFacts.of(resolved, home, text_paths(job.data, spec.code.folder, job.data.store), like)
    own = {key: resolved.changes[key].origin for key in own_names(job) if key in resolved.changes}
    if missing := shared.snapshot.missing_modules(own_names(job), own):
        raise SpecError("what the spec names is not in the code", problems=missing, fix="--code DIR with it")
    world_size = shared.compute.world_size
    estimates = estimate(
        job,
        vocab_size=store.vocab_size if store else _vocab_size(job),
        device=shared.compute.device,
        world_size=world_size,
        compute=shared.compute,
    )
    warnings = disk_warnings(estimates.disk_bytes, home, "checkpoints")
    fixed = job.train.loss_normalization == "micro_batch"
    warnings += training_warnings(job, estimates, shared.compute, estimates.micro_batch_size, fixed=fixed)
    return PretrainPlan(
        **shared.fields(_training(job, store or data, phase or parent), data, warnings),
        needs=pretraining_needs(job, data, remote, phase or parent),
        job=job,
        accumulation_steps=job.train.accumulation_steps(world_size),
        parent=parent,
        phase=phase.facts if phase else None,
        estimates=estimates,
    )


def _parent(job: PretrainConfig, phase: EarlierPhase | None, cache: Path) -> Link | None:
    """What training starts from, as the last link of its lineage; every file of it is read, or its hash remembered."""
    if job.init_from is not None:
        return initial_lineage(job.init_from, cache).head
    if phase is None:
        return None
    verify_phase(phase, cache)
    return phase_lineage(phase).head


def _training(
    job: PretrainConfig, data: DataFingerprint | StoreManifest, start: Link | EarlierPhase | None
) -> dict[str, Any]:
    """What of a pretraining shapes the result."""
    config = job.model_dump(mode="json", exclude={"card", *OBSERVERS})
    config["data"] = text_identity(job.data, data)
    config["init_from"] = start.weights if isinstance(start, Link) else None
    config["phase_from"] = start.digest if isinstance(start, EarlierPhase) else None
    return config


def _vocab_size(job: PretrainConfig) -> int:
    """Pieces of the vocabulary: the lines of its file, or the most that one trained on the text can have."""
    if job.data.vocabulary is None:
        return job.data.vocab_size
    try:
        pieces = job.data.vocabulary.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as problem:
        raise DataError(
            f"{job.data.vocabulary} is not UTF-8",
            facts={"where": f"data.vocabulary, byte {problem.start}"},
            fix="--set data.vocabulary=PATH of a WordPiece vocab.txt",
        ) from None
    return len(pieces) + len(job.data.add_tokens)


def model_rows(plan: PretrainPlan) -> Iterator[tuple[str, str]]:
    """What is trained, and from where on."""
    job, estimates = plan.job, plan.estimates
    if plan.parent:
        origins = [f"  ({plan.changes[key].origin})" for key in ("init_from", "phase_from") if key in plan.changes]
        what = f"weights {(plan.parent.weights or '')[:8]}"
        if plan.phase:
            what = f"step {plan.phase.step:,}, weights {plan.phase.weights[:8]} and moments {plan.phase.moments[:8]}"
        yield "from", "".join([f"{plan.parent.name}, {what}", *origins])
    yield (
        "model",
        (
            f"{job.model.num_hidden_layers} layers of width {job.model.hidden_size}, "
            f"{estimates.parameters:,} parameters, {estimates.flops_per_step:.3g} FLOPs a step (estimate)"
        ),
    )


def training_rows(plan: PretrainPlan) -> Iterator[tuple[str, str]]:
    """Batch, steps, memory, checkpoints."""
    job, estimates = plan.job, plan.estimates
    yield "batch", _batch(plan)
    yield "steps", f"{job.train.steps:,}, {job.train.steps * job.train.global_batch_size:,} sequences"
    if estimates.span is not None:
        yield "time", span_text(estimates.span)
    yield "schedule", job.schedule.text(job.optimizer.learning_rate)
    yield (
        "memory",
        (
            f"{_memory(estimates.process_bytes, plan)}: {bytes_text(estimates.state_bytes)} state"
            + (f" (moments sharded over {plan.world_size})" if job.optimizer.sharded and plan.world_size > 1 else "")
            + f", {bytes_text(estimates.activation_bytes)} activations"
            + (f" of {estimates.micro_batch_size} sequences" if plan.accumulation_steps is None else "")
            + (f", {bytes_text(estimates.library_bytes)} libraries" if estimates.library_bytes else "")
            + (
                f"; on rank 0's host {bytes_text(estimates.checkpoint_copy_bytes)} more, to write checkpoints from"
                if estimates.checkpoint_copy_bytes
                else ""
            )
            + " (estimate)"
        ),
    )
    yield "checkpoints", f"{_when_saved(job.checkpoint)}; kept: {_what_is_kept(job.checkpoint)}"
    yield (
        "disk",
        (
            f"{bytes_text(estimates.disk_bytes)} at most: {estimates.checkpoints_at_once} checkpoints of "
            f"{bytes_text(estimates.checkpoint_bytes)}, one of them being written, and the model's "
            f"{bytes_text(estimates.model_bytes)} (estimate)"
        ),
    )


def _batch(plan: PretrainPlan) -> str:
    train = plan.job.train
    if plan.accumulation_steps is None:
        return (
            f"{train.global_batch_size} = micro x accumulation x {plan.world_size} (world); micro is auto: the largest "
            f"that fits is found before the first step, {plan.estimates.micro_batch_size} at most"
        )
    return (
        f"{train.global_batch_size} = {train.micro_batch_size} x {plan.accumulation_steps} x "
        f"{plan.world_size} (global = micro x accumulation x world)"
    )
