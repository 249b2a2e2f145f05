"""The plan of a pretraining: steps, batch, what it starts from and what it will need."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from orchestrator.estimates.memory import disk_warnings, training_warnings
from orchestrator.estimates.pace import Span
from orchestrator.jobs.base import Plan, SharedFacts, TrainingPlan, remote_data, text_identity, text_paths
from orchestrator.jobs.facts import (
    document_rows,
    document_warnings,
    origins_text,
    plan_rows,
    span_text,
    start_text,
    stretch_rows,
    training_rows,
)
from orchestrator.jobs.inputs import DATA, START, At, Content, JobInput, Needs, model_input, text_needs
from orchestrator.jobs.phases import required_recipe
from orchestrator.jobs.pretrain.estimate import Estimates, estimate
from orchestrator.jobs.pretrain.spec import PretrainSpec
from orchestrator.jobs.text_loss import loss_warnings, measured_text, sentence_warnings, words_rows
from orchestrator.jobs.text_passes import (
    passes_over,
    passes_text,
    passes_warnings,
    require_enough_text,
    training_tokens,
    vocabulary_warnings,
)
from orchestrator.specs.resolved import Resolved
from orchestrator.support.home import FINGERPRINT_CACHE
from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.fingerprints import DataFingerprint, fingerprint
from train_jobs.artifacts.lineage import LINEAGE_FILE, Link, PhaseFacts
from train_jobs.artifacts.model_tokenizer import VOCABULARY
from train_jobs.artifacts.model_trust import SETTING, require_trusted, require_trusted_phase
from train_jobs.artifacts.sequence_figures import SequenceFigures, find_figures
from train_jobs.artifacts.source_mixture import epoch_tokens, held_out_warnings, mixture_text
from train_jobs.artifacts.start_model import KEY as INIT_FROM
from train_jobs.artifacts.start_model import STRETCH, initial_lineage, read_initial_model
from train_jobs.artifacts.start_phase import KEY as PHASE_FROM
from train_jobs.artifacts.start_phase import (
    MODEL,
    EarlierPhase,
    find_checkpoint,
    phase_lineage,
    read_phase,
    verify_phase,
)
from train_jobs.artifacts.store_manifest import (
    MANIFEST_FILE,
    StoreManifest,
    on_store,
    require_manifest,
    store_folder,
    store_warnings,
)
from train_jobs.artifacts.text_documents import TextCount, count_documents
from train_jobs.artifacts.text_sample import TextFacts
from train_jobs.artifacts.vocabulary_file import given_rule, pieces_of
from train_jobs.config import PretrainConfig
from train_jobs.config.errors import SpecError
from train_jobs.config.fields import user_code_names
from train_jobs.config.pretrain import OBSERVERS
from train_jobs.readers.text_check import CheckedText, check_text

LONGEST = 100 * 86400.0  # seconds


class PretrainPlan(TrainingPlan):
    """A pretraining."""

    stores: ClassVar[bool] = True
    spec: PretrainSpec
    """What the user wants."""
    job: PretrainConfig
    """What the job itself will read."""
    phase: PhaseFacts | None
    """The checkpoint that weights and moments are taken over from; None: none is."""
    estimates: Estimates
    """What it will need."""
    text: TextFacts | None
    """How the text becomes words; None for a token store, for embedded text and for text on another machine."""
    documents: tuple[TextCount, ...] = ()
    """Documents of each source with plain text."""
    sequences: SequenceFigures | None = None
    """How the sequences use the text of a token store; None: found out by the job."""
    mixture: str | None = None
    """Shares of the sources in every window of examples; None for a single source."""
    passes: float | None = None
    """Approximate passes over the training text; None: its size is unknown."""

    @property
    def steps(self) -> int:
        """Optimizer steps that it will take."""
        return self.job.train.steps

    @property
    def seconds_per_step(self) -> float | None:
        """Estimated seconds of an optimizer step; None on an unknown GPU."""
        span = self.estimates.span
        return None if span is None else span.seconds_most / self.job.train.steps

    def facts(self) -> list[tuple[str, str]]:
        """Return the plan for humans: label and fact; an empty label continues the row above."""
        train, span = self.job.train, self.estimates.span
        how = training_rows(
            self,
            f"{train.steps:,}, {train.steps * train.global_batch_size:,} sequences{passes_text(self.passes)}",
            [("time", span_text(span))] if span is not None else [],
            max_sequences=self.estimates.micro_batch_size,
            copy_bytes=self.estimates.checkpoint_copy_bytes,
        )
        mixture = [("sources", self.mixture)] if self.mixture else []
        rows = [*document_rows(self.documents), *mixture, *words_rows(self.job.data, self.text)]
        rows += [*_sequence_rows(self), *_model_rows(self)]
        return plan_rows(self, rows, how)


def plan_pretraining(resolved: Resolved, home: Path, reuse: Plan | None) -> PretrainPlan:
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
    on_cpu = resolved.compute.device == "cpu"
    text = _read_text(resolved, spec.job_config().on_device(on_cpu=on_cpu), home, reuse)
    job, start = text.job, text.store or text.data
    phase = read_phase(find_checkpoint(job.phase_from)) if job.phase_from else None
    if phase is not None or required_recipe(resolved) is not None:  # the second: before that recipe is trained
        require_trusted_phase(job.trust)
    parent = _parent(job, phase, home / FINGERPRINT_CACHE)
    shared = SharedFacts.of(resolved, home, text_paths(job.data, spec.code.folder, job.data.store), reuse)
    own = {key: resolved.changes[key].origin for key in user_code_names(job) if key in resolved.changes}
    if missing := shared.snapshot.missing_modules(user_code_names(job), own):
        raise SpecError("cannot find classes of the spec in the code", problems=missing, fix="--code DIR with it")
    world_size = shared.compute.world_size
    estimates = estimate(
        job,
        vocab_size=text.store.vocab_size if text.store else _vocab_size(job),
        device=shared.compute.device,
        world_size=world_size,
        compute=shared.compute,
    )
    fixed = job.train.loss_normalization == "micro_batch"
    warnings = [
        *disk_warnings(estimates.disk_bytes, home, "checkpoints"),
        *text.warnings(),
        *_duration_warnings(estimates.span),
        *training_warnings(job, estimates, shared.compute, estimates.micro_batch_size, fixed=fixed),
    ]
    return PretrainPlan(
        **shared.fields(_training(job, start, phase or parent), text.data, warnings),
        needs=pretraining_needs(job, text.data, text.remote, phase or parent),
        job=job,
        accumulation_steps=job.train.accumulation_steps(world_size),
        micro_batch_reason=spec.train.micro_batch_reason(on_cpu=on_cpu),
        parent=parent,
        phase=phase.facts if phase else None,
        estimates=estimates,
        documents=text.documents,
        text=text.facts,
        mixture=text.mixture(),
        sequences=text.sequences,
        passes=text.passes,
        checked=text.checked.text() if text.checked else None,
    )


def _duration_warnings(span: Span | None) -> Iterator[str]:
    """Yield a warning about a run of more than 100 days."""
    if span is not None and span.seconds_most > LONGEST:
        yield (
            f"the run takes {span_text(span)}: --recipe tiny, fewer train.steps, or GPUs (docs/gpu.md) make it days"
            " at most"
        )


class _PlannedText(NamedTuple):
    """The text of a pretraining, as far as this machine can read it."""

    job: PretrainConfig
    store: StoreManifest | None
    remote: str | None
    data: DataFingerprint
    documents: tuple[TextCount, ...] = ()
    facts: TextFacts | None = None
    sequences: SequenceFigures | None = None
    checked: CheckedText | None = None

    @property
    def passes(self) -> float | None:
        """Approximate number of epochs; None: the size of the text is unknown."""
        store = self.store
        tokens = sum(epoch_tokens(store)) if store is not None else training_tokens(self.job.data, self.facts)
        return passes_over(self.job, tokens)

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each source, by name."""
        if self.store is not None:
            return {source.name: source.weight for source in self.store.sources}
        return {source.title: source.weight for source in self.job.data.text}

    def warnings(self) -> Iterator[str]:
        """Yield warnings about sentences, documents and lost letters."""
        data = self.job.data
        if self.store is not None:
            yield from held_out_warnings(self.store)
        if self.store is not None and self.job.objective.next_sentence:
            yield from store_warnings(self.store, sequence_length=data.sequence_length)
        if self.checked is not None:
            yield from self.checked.warnings()
        yield from document_warnings(self.documents, data.validation_fraction)
        start = next((key for key in (INIT_FROM, PHASE_FROM) if getattr(self.job, key) is not None), None)
        yield from loss_warnings(data, self.facts, start=start)
        if self.job.objective.next_sentence:
            yield from sentence_warnings(self.facts)
        if self.store is None:
            yield from vocabulary_warnings(data, self.facts)
        yield from passes_warnings(self.job, self.passes, self.weights)

    def mixture(self) -> str | None:
        """Return how sources are mixed; None with a single one."""
        if self.store is not None:
            return mixture_text(self.store)
        sources = self.job.data.text
        if len(sources) < 2:
            return None
        weights = [f"{source.title} x {source.weight:g}" for source in sources if source.weight != 1]
        weighted = f" ({', '.join(weights)})" if weights else ""
        return f"{len(sources)}, mixed in every window of examples by tokens x weight{weighted}; the job prints shares"


def _read_text(resolved: Resolved, job: PretrainConfig, home: Path, reuse: Plan | None) -> _PlannedText:
    """Read the token store or the text of a pretraining; text at the site of the job is only named."""
    assert isinstance(resolved.spec, PretrainSpec)
    named, remote = store_folder(job.data, job.data.store), resolved.site.remote_data(resolved.spec)
    if named is not None:
        store = require_manifest(named)
        found = on_store(job, store)
        sequences = find_figures(store.sequences, found.data, found.objective)
        mean = sequences.tokens_per_sequence if sequences else found.data.sequence_length
        return _PlannedText(found.with_batch_of(mean), store, remote, store.data, sequences=sequences)
    given_rule(job.data)  # refuse a wrong vocabulary before the text is read
    job = job.with_batch_of(job.data.sequence_length)
    if remote is not None:
        return _PlannedText(job, None, remote, remote_data(remote))
    checked = None
    if reuse is None and job.data.text:
        checked = check_text(job.data.text, everything=resolved.spec.check == "all")
    data = fingerprint(job.data.text, cache=home / FINGERPRINT_CACHE)
    documents = tuple(count_documents(job.data.text))
    facts = measured_text(job.data)
    require_enough_text(job.data, documents, facts)
    return _PlannedText(job, None, None, data, documents, facts, checked=checked)


def _parent(job: PretrainConfig, phase: EarlierPhase | None, cache: Path) -> Link | None:
    """Return the start of the training as the last link of its lineage; verifies every file by its hash."""
    if job.init_from is not None:
        require_trusted(job.init_from, job.trust)
        read_initial_model(job.init_from).require_stretchable(job.stretch_positions)
        return initial_lineage(job.init_from, cache).head
    if phase is None:
        return None
    verify_phase(phase, cache)
    return phase_lineage(phase).head


def _training(
    job: PretrainConfig, data: DataFingerprint | StoreManifest, start: Link | EarlierPhase | None
) -> dict[str, Any]:
    """Return the settings that shape the result."""
    config = job.model_dump(mode="json", exclude={"card", *OBSERVERS})
    config["data"] = text_identity(job.data, data)
    if job.stretch_positions is None:
        del config[STRETCH]
    config["init_from"] = start.weights if isinstance(start, Link) else None
    config["phase_from"] = start.digest if isinstance(start, EarlierPhase) else None
    return config


def _vocab_size(job: PretrainConfig) -> int:
    """Pieces of the vocabulary: the lines of its file, or the most that one trained on the text can have."""
    if job.data.vocabulary is None:
        return job.data.vocab_size
    return len(pieces_of(job.data.vocabulary)) + len(job.data.add_tokens)


def _sequence_rows(plan: PretrainPlan) -> Iterator[tuple[str, str]]:
    """Yield how sequences use the text, and the tokens of a step if those decide the batch."""
    if plan.sequences is not None:
        yield "sequences", plan.sequences.text()
    elif plan.job.objective.spans_documents:
        yield "sequences", f"filled to {plan.job.data.sequence_length} tokens over the ends of documents"
    if (tokens := plan.job.train.batch_tokens) is not None:
        sequences = f"{plan.job.train.global_batch_size:,} sequences"
        counted = "as counted on the store" if plan.sequences else "if all are full; the job counts their tokens"
        yield "tokens", f"{tokens:,} a step: {sequences} {counted}"


def _model_rows(plan: PretrainPlan) -> Iterator[tuple[str, str]]:
    """Yield what training starts from, and what is trained."""
    shape, estimates, phase = plan.job.model, plan.estimates, plan.phase
    if plan.parent and phase:
        what = f"step {phase.step:,}, weights {phase.weights[:8]} and moments {phase.moments[:8]}"
        yield "from", f"{plan.parent.name}, {what}{origins_text(plan, 'phase_from')}"
    elif plan.parent:
        yield "from", start_text(plan, "init_from")
    yield from stretch_rows(plan.job)
    yield (
        "model",
        f"{shape.num_hidden_layers} layers of width {shape.hidden_size}, "
        f"{estimates.parameters:,} parameters, {estimates.flops_per_step:.3g} FLOPs a step (estimate)",
    )


def pretraining_needs(
    job: PretrainConfig, data: DataFingerprint, remote: str | None, start: Link | EarlierPhase | None
) -> Needs:
    """Return the needs of a pretraining.

    Args:
        job: what is trained.
        data: its text by content.
        remote: name of the text at the site.
        start: the model or the earlier phase that it starts from.
    """
    store = store_folder(job.data, job.data.store)
    needs = text_needs(job.data, data, remote)
    inputs, placed = list(needs.inputs), dict(needs.placed)
    if store is not None and remote is None:
        manifest = file_sha256(store / MANIFEST_FILE)  # which has the hash of every file
        inputs = [one for one in inputs if one.name != DATA]
        inputs.insert(0, JobInput(DATA, "store", manifest, list_files=lambda: _store_files(store)))
        placed = {"data.store": At(DATA), **{key: value for key, value in placed.items() if key != "data.text"}}
    if isinstance(start, EarlierPhase):
        facts = f"{start.facts.step}\0{start.facts.weights}\0{start.facts.moments}"
        digest = hashlib.sha256(facts.encode()).hexdigest()
        inputs.append(JobInput(START, "start", digest, list_files=lambda: _phase_files(start.folder)))
        placed[PHASE_FROM] = At(START, f"checkpoints/step-{start.facts.step:08d}")
    elif job.init_from is not None:
        inputs.append(model_input(Path(job.init_from), (start.weights or "") if start else ""))
        placed[INIT_FROM] = At(START)
    local = (*needs.local, "data.store", INIT_FROM, PHASE_FROM, SETTING)
    return replace(needs, inputs=tuple(inputs), placed=placed, local=local)


def _store_files(store: Path) -> dict[str, Content]:
    return {path.relative_to(store).as_posix(): path for path in sorted(store.rglob("*")) if path.is_file()}


def _phase_files(checkpoint: Path) -> dict[str, Content]:
    """Return checkpoint, vocabulary and lineage of an earlier phase, by their names in the run's outputs."""
    outputs = checkpoint.parent.parent
    found: dict[str, Content] = {
        f"checkpoints/{checkpoint.name}/{path.name}": path for path in sorted(checkpoint.iterdir()) if path.is_file()
    }
    beside = {name: outputs / name for name in (f"{MODEL}/{VOCABULARY}", LINEAGE_FILE)}
    return {**found, **{name: path for name, path in beside.items() if path.is_file()}}
